//! Reports the progress of the start to systemd, by the protocol of `sd_notify(3)`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The service manager that requested notifications; `None` outside of systemd.
pub(crate) struct Notify(Option<(UnixDatagram, SocketAddr)>);

// === impl Notify ===

impl Notify {
    pub(crate) fn from_environment() -> Self {
        let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
            return Self(None);
        };
        match open(&name) {
            Ok(manager) => Self(Some(manager)),
            Err(error) => {
                tracing::warn!(%error, socket = ?name, "the service manager cannot be told");
                Self(None)
            }
        }
    }

    pub(crate) fn ready(&self) {
        self.send("READY=1");
    }

    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    fn send(&self, text: &str) {
        if let Some((socket, manager)) = &self.0
            && let Err(error) = socket.send_to_addr(text.as_bytes(), manager)
        {
            tracing::warn!(%error, text, "the service manager was not told");
        }
    }
}

/// Opens the socket; `NOTIFY_SOCKET` is a path, or `@` and an abstract name.
fn open(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let manager = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(name)?,
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that does not read must not block this process.
    socket.set_nonblocking(true)?;
    Ok((socket, manager))
}
