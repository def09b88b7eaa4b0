use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::Backoff;

/// Connections that may wait in the accept queue.
const BACKLOG: u32 = 4096;
/// Time without acknowledgments after which a peer is considered dead.
const SILENCE_LIMIT: Duration = Duration::from_secs(90);

/// A listener on a TCP port.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    backoff: Backoff,
}

/// Disables Nagle's algorithm and enables the detection of dead peers. Errors are ignored: the connection works without
/// these options.
pub fn prepare(socket: &TcpStream) {
    let _ = socket.set_nodelay(true);
    let _ = rustix::net::sockopt::set_socket_keepalive(socket, true);
    let limit = u32::try_from(SILENCE_LIMIT.as_millis()).unwrap_or(u32::MAX);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(socket, limit);
}

/// Returns the wildcard address: both families where available; IPv6 sockets fail on a host without IPv6.
pub fn every_address(port: u16) -> SocketAddr {
    let six = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
    let four = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
    if Path::new("/proc/net/if_inet6").exists() { six } else { four }
}

// === impl Listener ===

impl Listener {
    /// Binds a listener; an IPv6 wildcard includes IPv4 where that is the system's default.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = if address.is_ipv6() { TcpSocket::new_v6()? } else { TcpSocket::new_v4()? };
        // A restart must not wait for the connections of the previous process.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Self::new(socket.listen(BACKLOG)?)
    }

    /// Duplicates the listener for another runtime; both accept connections.
    pub fn share(&self) -> io::Result<std::net::TcpListener> {
        self.socket.as_fd().try_clone_to_owned().map(Into::into)
    }

    /// Registers a duplicated listener with the current runtime.
    pub fn adopt(shared: std::net::TcpListener) -> io::Result<Self> {
        Self::new(TcpListener::from_std(shared)?)
    }

    fn new(socket: TcpListener) -> io::Result<Self> {
        let address = socket.local_addr()?;
        let backoff = Backoff::millis::<5, 1000>();
        Ok(Self { socket, address, backoff })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts the next connection. While the system has no free descriptors, it waits; accepted connections continue.
    pub async fn accept(&mut self) -> (TcpStream, SocketAddr) {
        loop {
            match self.socket.accept().await {
                Ok((stream, peer)) => {
                    self.backoff.reset();
                    prepare(&stream);
                    return (stream, SocketAddr::new(peer.ip().to_canonical(), peer.port()));
                }
                // The peer closed the connection before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections");
                    tokio::time::sleep(self.backoff.pause()).await;
                }
            }
        }
    }
}
