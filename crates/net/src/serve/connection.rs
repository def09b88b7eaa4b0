//! One connection, from the TLS handshake to its end.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use landfall_model::chain;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::activity::Activity;
use super::pending::FirstRequest;
use super::stall::StallGuard;
use super::{Handler, Limits, Peer, RequestBody};

/// Maximum number of streams of one HTTP/2 connection.
const MAX_STREAMS: u32 = 100;
/// Maximum number of unread bytes in all request bodies of an HTTP/2 connection. A report fits.
const WINDOW: u32 = 128 << 10;

pub(super) struct Connection<H> {
    pub(super) handler: Arc<H>,
    pub(super) limits: Limits,
    pub(super) first_request: FirstRequest,
    /// Changes when the server ends.
    pub(super) ended: watch::Receiver<()>,
}

// === impl Connection ===

impl<H: Handler> Connection<H> {
    pub(super) async fn serve_tls(self, stream: TcpStream, address: SocketAddr, tls: Arc<ServerConfig>) {
        // Below TLS, so that every byte that the client accepts counts as progress.
        let stream = StallGuard::new(stream, self.limits.stalled_write);
        // Has no timeout of its own: a pending connection is evicted.
        match TlsAcceptor::from(tls).accept(stream).await {
            Ok(stream) => {
                let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                let certificate = certificate.map(|certificate| certificate.clone().into_owned());
                self.http(stream, Peer { address: Some(address), certificate, uid: None }).await;
            }
            Err(error) => tracing::debug!(%address, error = %chain(&error), "TLS handshake failed"),
        }
    }

    pub(super) async fn serve(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: Peer,
    ) {
        let stream = StallGuard::new(stream, self.limits.stalled_write);
        self.http(stream, peer).await;
    }

    async fn http(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, peer: Peer) {
        let address = peer.address;
        let Some(session) = self.handler.open(peer) else { return };
        let lifetime = session.lifetime;
        let keep_alive = session.keep_alive;
        let serving = self.requests(stream, Arc::new(session.state), keep_alive, session.evictable);
        let served = match lifetime {
            None => serving.await,
            Some(lifetime) => match tokio::time::timeout(lifetime, serving).await {
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
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        state: Arc<H::State>,
        keep_alive: bool,
        evictable: bool,
    ) -> Result<(), super::BoxError> {
        let Self { handler, limits, first_request, mut ended } = self;
        let activity = Activity::default();
        let seen = activity.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            if !evictable {
                first_request.set();
            }
            let (handler, state) = (Arc::clone(&handler), Arc::clone(&state));
            let version = request.version();
            let in_progress = (version == Version::HTTP_2).then(|| seen.request());
            let request = request.map(|body| RequestBody::new(body, version, limits.body_rate));
            async move {
                let response = handler.handle(&state, request).await;
                Ok::<_, Infallible>(match in_progress {
                    Some(in_progress) => response.map(|body| in_progress.until_sent(body)),
                    None => response,
                })
            }
        });
        let mut builder = Builder::new(TokioExecutor::new());
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
