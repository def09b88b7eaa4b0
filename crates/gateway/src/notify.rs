//! Tells systemd how it goes, where systemd asked to be told.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends lines such as `READY=1`. Without systemd there is nobody to tell.
pub fn notify(lines: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else { return };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    if let Err(error) = address.and_then(|address| send(&address, lines)) {
        tracing::debug!(%error, "systemd was not told");
    }
}

fn send(address: &SocketAddr, lines: &str) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(lines.as_bytes(), address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_arrive() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let listening = UnixDatagram::bind(&path).unwrap();
        send(&SocketAddr::from_pathname(&path).unwrap(), "READY=1").unwrap();
        let mut bytes = [0; 64];
        let count = listening.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..count], b"READY=1");
    }
}
