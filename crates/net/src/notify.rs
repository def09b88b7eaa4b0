//! State for the service manager, by the protocol of `sd_notify(3)`.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The service manager that requested notifications.
#[derive(Debug)]
pub struct Notify {
    socket: UnixDatagram,
    manager: SocketAddr,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot use the notification socket `{}`", socket.to_string_lossy())]
pub struct InvalidSocket {
    socket: OsString,
    source: io::Error,
}

// === impl Notify ===

impl Notify {
    /// Returns the manager that started this process; `None` without one, or if its socket is invalid.
    pub fn from_environment() -> Option<Self> {
        let socket = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty())?;
        let opened = Self::new(&socket);
        opened
            .inspect_err(
                |error| tracing::warn!(%error, source = %error.source, "service manager not notified"),
            )
            .ok()
    }

    /// Parses the value of `NOTIFY_SOCKET`: a path, or `@` and an abstract name.
    pub fn new(socket: &OsStr) -> Result<Self, InvalidSocket> {
        let open = || -> io::Result<Self> {
            let manager = match socket.as_bytes() {
                [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
                [b'/', ..] => SocketAddr::from_pathname(socket)?,
                _ => return Err(io::ErrorKind::InvalidInput.into()),
            };
            let socket = UnixDatagram::unbound()?;
            // A manager that does not read must not block this process.
            socket.set_nonblocking(true)?;
            Ok(Self { socket, manager })
        };
        open().map_err(|source| InvalidSocket { socket: socket.to_owned(), source })
    }

    /// Sends an assignment, such as `READY=1` or `STATUS=…`.
    pub fn send(&self, assignment: &str) -> io::Result<()> {
        self.socket.send_to_addr(assignment.as_bytes(), &self.manager).map(drop)
    }
}
