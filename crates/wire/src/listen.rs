use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::Backoff;

/// Connections that wait to be accepted while we are busy.
const BACKLOG: u32 = 4096;
/// A peer that acknowledges nothing for so long is gone.
const SILENCE_LIMIT: Duration = Duration::from_secs(90);

/// A TCP port that is listened on.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    backoff: Backoff,
}

/// Small packets at once, and dead peers noticed. A system that knows none of this still carries bytes.
pub fn prepare(socket: &TcpStream) {
    let _ = socket.set_nodelay(true);
    let _ = rustix::net::sockopt::set_socket_keepalive(socket, true);
    let limit = u32::try_from(SILENCE_LIMIT.as_millis()).unwrap_or(u32::MAX);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(socket, limit);
}

/// Every address of the machine: both families where there are both; a machine without IPv6 has no such socket.
pub fn every_address(port: u16) -> SocketAddr {
    let six = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    let four = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
    if Path::new("/proc/net/if_inet6").exists() { six } else { four }
}

// === impl Listener ===

impl Listener {
    /// Listens; an IPv6 wildcard takes IPv4 as well where the system does so by default.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = if address.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
        // A restart must not wait for the connections of the process before.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Self::new(socket.listen(BACKLOG)?)
    }

    /// The same port for another runtime: whoever has time accepts.
    pub fn share(&self) -> io::Result<std::net::TcpListener> {
        self.socket.as_fd().try_clone_to_owned().map(Into::into)
    }

    /// Takes what was shared over into the runtime this is called on.
    pub fn adopt(shared: std::net::TcpListener) -> io::Result<Self> {
        Self::new(TcpListener::from_std(shared)?)
    }

    fn new(socket: TcpListener) -> io::Result<Self> {
        let address = socket.local_addr()?;
        let backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(1));
        Ok(Self { socket, address, backoff })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection. A system without free descriptors is waited for: what is accepted goes on being served.
    pub async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.socket.accept().await {
                Ok((stream, peer)) => {
                    self.backoff.reset();
                    prepare(&stream);
                    return (stream, SocketAddr::new(peer.ip().to_canonical(), peer.port()));
                }
                // The peer left between its coming and our looking.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections");
                    tokio::time::sleep(self.backoff.pause()).await;
                }
            }
        }
    }
}
