//! One connection, from the TLS handshake to its end.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use landfall_model::chain;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::activity::Activity;
use super::pending::FirstRequest;
use super::stall::StallGuard;
use super::{BoxError, Handler, Limits, Peer, RequestBody};

/// Maximum number of streams of one HTTP/2 connection.
const MAX_STREAMS: u32 = 100;
/// Maximum number of unread bytes in all request bodies of an HTTP/2 connection. A report fits.
const WINDOW: u32 = 128 << 10;
/// The first bytes of an HTTP/2 connection without TLS. No HTTP/1 method begins with them.
const HTTP2_PREFACE: [u8; 3] = *b"PRI";

pub(super) struct Connection<H> {
    pub(super) handler: Arc<H>,
    pub(super) limits: Limits,
    pub(super) first_request: FirstRequest,
    /// Changes when the server ends.
    pub(super) ended: watch::Receiver<()>,
}

/// A connection that is ready for HTTP. The stream is boxed because it is large and moves several times.
pub(super) struct Opened {
    pub(super) stream: Box<dyn Stream>,
    pub(super) peer: Peer,
    /// Known before the first read: hyper would detect it with a small first read, after which the read buffer doubles.
    pub(super) is_http2: bool,
}

pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

// === impl Connection ===

impl<H: Handler> Connection<H> {
    pub(super) async fn serve_tls(self, stream: TcpStream, address: SocketAddr, tls: Arc<ServerConfig>) {
        // Below TLS, so that every byte that the client accepts counts as progress.
        let stream = StallGuard::new(stream, self.limits.stalled_write);
        // Has no timeout of its own: a pending connection is evicted.
        let stream = match TlsAcceptor::from(tls).accept(stream).await {
            Ok(stream) => Box::new(stream),
            Err(error) => return tracing::debug!(%address, error = %chain(&error), "TLS handshake failed"),
        };
        let session = stream.get_ref().1;
        let certificate = session.peer_certificates().and_then(<[_]>::first);
        let certificate = certificate.map(|certificate| certificate.clone().into_owned());
        let is_http2 = session.alpn_protocol() == Some(b"h2");
        let peer = Peer { address: Some(address), certificate, uid: None };
        self.serve(Opened { stream, peer, is_http2 }).await;
    }

    pub(super) async fn serve_tcp(self, stream: TcpStream, address: SocketAddr) {
        let mut first = [0; HTTP2_PREFACE.len()];
        // An error occurs again when the stream is read.
        let _ = stream.peek(&mut first).await;
        let is_http2 = first == HTTP2_PREFACE;
        let stream = Box::new(StallGuard::new(stream, self.limits.stalled_write));
        let peer = Peer { address: Some(address), certificate: None, uid: None };
        self.serve(Opened { stream, peer, is_http2 }).await;
    }

    pub(super) async fn serve_unix(self, stream: UnixStream) {
        let uid = stream.peer_cred().ok().map(|peer| peer.uid());
        let stream = Box::new(StallGuard::new(stream, self.limits.stalled_write));
        let peer = Peer { address: None, certificate: None, uid };
        self.serve(Opened { stream, peer, is_http2: false }).await;
    }

    pub(super) async fn serve(self, opened: Opened) {
        let Opened { stream, peer, is_http2 } = opened;
        let address = peer.address;
        let Some(session) = self.handler.open(peer) else { return };
        let (lifetime, keep_alive, evictable) = (session.lifetime, session.keep_alive, session.evictable);
        let state = Arc::new(session.state);
        let mut serving = pin!(self.requests(stream, is_http2, state, keep_alive, evictable));
        let served = match lifetime {
            None => serving.await,
            Some(lifetime) => match tokio::time::timeout(lifetime, serving.as_mut()).await {
                Ok(served) => served,
                Err(_) => return tracing::debug!(?address, "connection lifetime exceeded"),
            },
        };
        if let Err(error) = served {
            tracing::debug!(?address, error = %chain(&*error), "connection failed");
        }
    }

    async fn requests(
        self,
        stream: Box<dyn Stream>,
        is_http2: bool,
        state: Arc<H::State>,
        keep_alive: bool,
        evictable: bool,
    ) -> Result<(), BoxError> {
        let Self { handler, limits, first_request, mut ended } = self;
        let activity = Activity::default();
        let seen = activity.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            if !evictable {
                first_request.set();
            }
            let (handler, state) = (Arc::clone(&handler), Arc::clone(&state));
            let in_progress = is_http2.then(|| seen.request());
            let request = request.map(|body| RequestBody::new(body, is_http2, limits.body_rate));
            async move {
                let response = handler.handle(&state, request).await;
                Ok::<_, Infallible>(match in_progress {
                    Some(in_progress) => response.map(|body| in_progress.until_sent(body)),
                    None => response,
                })
            }
        });
        let builder = Builder::new(TokioExecutor::new());
        let mut builder = if is_http2 { builder.http2_only() } else { builder.http1_only() };
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.idle)
            .keep_alive(keep_alive)
            .max_buf_size(limits.head)
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(limits.idle)
            .max_concurrent_streams(MAX_STREAMS)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_header_list_size(u32::try_from(limits.head).unwrap_or(u32::MAX));
        let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            served = serving.as_mut() => return served,
            // The client is notified; requests in progress complete. The server bounds the drain.
            _ = ended.changed() => serving.as_mut().graceful_shutdown(),
            () = activity.idle(limits.idle) => {
                serving.as_mut().graceful_shutdown();
                return tokio::time::timeout(limits.idle, serving).await.unwrap_or(Ok(()));
            }
        }
        serving.await
    }
}
