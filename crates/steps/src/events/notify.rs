//! The status line of `systemctl status`, by the protocol of `sd_notify(3)`.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use landfall_model::step::Event;

use super::{Sink, storyline::Titles};

/// Width of a line on a screen; systemd truncates it there anyway.
const MAX_STATUS_BYTES: usize = 256;

/// Sends `STATUS=` to the service manager whenever the line changes.
#[derive(Debug)]
pub struct Notify {
    socket: UnixDatagram,
    manager: SocketAddr,
    titles: Titles,
    last: String,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot use the notification socket `{}`", socket.to_string_lossy())]
pub struct InvalidSocket {
    socket: std::ffi::OsString,
    #[source]
    source: io::Error,
}

// === impl Notify ===

impl Notify {
    /// Parses the value of `NOTIFY_SOCKET`: a path, or `@` and an abstract name.
    pub fn new(socket: &OsStr) -> Result<Self, InvalidSocket> {
        let open = || -> io::Result<Self> {
            let manager = match socket.as_bytes() {
                [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
                [b'/', ..] => SocketAddr::from_pathname(socket)?,
                _ => return Err(io::ErrorKind::InvalidInput.into()),
            };
            let socket = UnixDatagram::unbound()?;
            // A manager that does not read must not block the run.
            socket.set_nonblocking(true)?;
            Ok(Self { socket, manager, titles: Titles::default(), last: String::new() })
        };
        open().map_err(|source| InvalidSocket { socket: socket.to_owned(), source })
    }
}

impl Sink for Notify {
    fn take(&mut self, event: &Event) {
        self.titles.learn(event);
        let Some(line) = self.titles.line(event) else { return };
        let mut line = line.replace(['\n', '\r'], " ");
        let end = (0..=line.len().min(MAX_STATUS_BYTES)).rev().find(|end| line.is_char_boundary(*end));
        line.truncate(end.unwrap_or(0));
        if line == self.last {
            return;
        }
        match self.socket.send_to_addr(format!("STATUS={line}").as_bytes(), &self.manager) {
            Ok(_) => self.last = line,
            Err(error) => tracing::debug!(%error, "status line not sent"),
        }
    }
}
