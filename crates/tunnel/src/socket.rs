use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, Interest};
use tokio::net::unix::pipe;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

/// A socket whose peer can be seen leaving although there are bytes of it that were not read.
pub(crate) trait Peer: AsyncRead + AsyncWrite + Send + Unpin {
    fn has_hung_up(&self) -> bool;

    /// Whether closing it says goodbye by itself.
    fn closes_well(&self) -> bool {
        true
    }

    /// Sends what the peer must read alone, and tells when more may follow. TLS gives each record to a read of its own.
    fn send_alone(&mut self, message: &[u8]) -> impl Future<Output = io::Result<Receipt>> + Send {
        async move {
            self.write_all(message).await?;
            self.flush().await?;
            Ok(Receipt(None))
        }
    }
}

/// Tells when a message was read: the end of a pipe whose other end travels with the message, and is closed with it.
#[derive(Debug)]
pub(crate) struct Receipt(Option<OwnedFd>);

/// Where an agent's connections go: to the host's network, or to a simulated one.
pub(crate) trait Network: Clone + Send + Sync + 'static {
    type Socket: Peer + 'static;

    fn resolve(&self, address: &str) -> impl Future<Output = io::Result<Vec<SocketAddr>>> + Send;
    fn connect(&self, address: SocketAddr) -> impl Future<Output = io::Result<Self::Socket>> + Send;
}

/// The host's network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host;

/// A peer that acknowledges nothing for so long is gone.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);

/// Small packets at once, and dead peers noticed. A system that knows none of this still carries bytes.
pub(crate) fn prepare(socket: &TcpStream) {
    let _ = socket.set_nodelay(true);
    let _ = rustix::net::sockopt::set_socket_keepalive(socket, true);
    let limit = u32::try_from(SILENCE_LIMIT.as_millis()).unwrap_or(u32::MAX);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(socket, limit);
}

/// Listens. All of IPv6 means all of IPv4 as well; where there is no IPv6, that is what is left.
pub(crate) async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    match bound {
        Err(error)
            if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED)
                && error.kind() != io::ErrorKind::AddrInUse =>
        {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await.map_err(|_| error)
        }
        bound => bound,
    }
}

fn hung_up(socket: &impl AsFd) -> bool {
    let mut sockets = [PollFd::new(socket, PollFlags::RDHUP)];
    let looked = poll(&mut sockets, Some(&Timespec::default()));
    looked.is_ok_and(|count| count > 0)
}

// === impl Receipt ===

impl Receipt {
    /// Waits until the message was read.
    pub(crate) async fn signed(self) -> io::Result<()> {
        let Some(pipe) = self.0 else { return Ok(()) };
        pipe::Receiver::from_owned_fd(pipe)?.read(&mut [0]).await.map(|_| ())
    }
}

// === impl Host ===

impl Network for Host {
    type Socket = TcpStream;

    async fn resolve(&self, address: &str) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host(address).await?.collect())
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let socket = TcpStream::connect(address).await?;
        prepare(&socket);
        Ok(socket)
    }
}

impl Peer for UnixStream {
    fn has_hung_up(&self) -> bool {
        hung_up(self)
    }

    /// The kernel closes a descriptor nobody asked for when the bytes it came with are read. What follows has to wait for
    /// that: a read ends behind such bytes although there are more, which a client never learns that takes a short read
    /// for an empty socket.
    async fn send_alone(&mut self, message: &[u8]) -> io::Result<Receipt> {
        let (receipt, travels) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let sent = self.async_io(Interest::WRITABLE, || {
            let descriptors = [travels.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
            Ok(sendmsg(&*self, &[IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL)?)
        });
        let sent = sent.await?;
        // A short message always fits an empty socket.
        if sent < message.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(Receipt(Some(receipt)))
    }
}

impl Peer for TcpStream {
    fn has_hung_up(&self) -> bool {
        hung_up(self)
    }
}

impl Peer for TlsStream<TcpStream> {
    fn has_hung_up(&self) -> bool {
        hung_up(self.get_ref().0)
    }

    fn closes_well(&self) -> bool {
        false
    }
}
