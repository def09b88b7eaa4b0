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

/// A socket whose peer can be detected as disconnected even with unread bytes.
pub(crate) trait Peer: AsyncRead + AsyncWrite + Send + Unpin {
    fn has_hung_up(&self) -> bool;

    /// Whether closing the socket signals end of stream by itself.
    fn closes_well(&self) -> bool {
        true
    }

    /// Sends a message that the peer must read separately from later data. The receipt resolves when more data may
    /// follow. With TLS, every record is a separate read.
    fn send_alone(&mut self, message: &[u8]) -> impl Future<Output = io::Result<Receipt>> + Send {
        async move {
            self.write_all(message).await?;
            self.flush().await?;
            Ok(Receipt(None))
        }
    }
}

/// A receipt for a message: a pipe whose other end is sent with the message and closed with it.
#[derive(Debug)]
pub(crate) struct Receipt(Option<OwnedFd>);

/// The network of an agent's connections: the host's, or a simulated one.
pub(crate) trait Network: Clone + Send + Sync + 'static {
    type Socket: Peer + 'static;

    fn resolve(&self, address: &str) -> impl Future<Output = io::Result<Vec<SocketAddr>>> + Send;
    fn connect(&self, address: SocketAddr) -> impl Future<Output = io::Result<Self::Socket>> + Send;
}

/// The host's network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host;

/// Time without acknowledgments after which a peer is considered dead.
const SILENCE_LIMIT: Duration = Duration::from_secs(60);

/// Disables Nagle's algorithm and enables the detection of dead peers. Errors are ignored: the connection works without
/// these options.
pub(crate) fn prepare(socket: &TcpStream) {
    let _ = socket.set_nodelay(true);
    let _ = rustix::net::sockopt::set_socket_keepalive(socket, true);
    let limit = u32::try_from(SILENCE_LIMIT.as_millis()).unwrap_or(u32::MAX);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(socket, limit);
}

/// Binds a listener. The unspecified IPv6 address includes IPv4; hosts without IPv6 fall back to IPv4.
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

    /// Sends a message with a descriptor as its read receipt.
    ///
    /// The kernel closes an unclaimed descriptor when the accompanying bytes are read. Data must not follow before
    /// that: a read stops at such bytes although more are available. A client that takes a short read for an empty
    /// socket would then miss the rest.
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
        // A short message always fits in an empty socket buffer.
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
