//! The HTTP server of every role: accept, TLS, limits, graceful shutdown.
//!
//! Clients may open connections without a request, send a request byte by byte, or never read a response. [`Limits`]
//! bounds each of these once for all roles. The role's [`Handler`] authorizes the requests, and passes the caller to
//! [`BodyBudget`] and [`CallerSemaphore`], which leave memory and permits to other callers.

mod activity;
mod body;
mod budget;
mod connection;
mod limits;
mod pending;
mod semaphore;
mod stall;

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, MissedTickBehavior};

pub use self::body::{BodyError, RequestBody};
pub use self::budget::{BodyBudget, ReadBodyError};
use self::connection::Connection;
pub use self::limits::{BodyLimits, Limits, PermitLimits};
use self::pending::{FirstRequest, PendingConnections};
pub use self::semaphore::{CallerSemaphore, Permit};
use crate::{Listener, Reloading};

/// Pause after the connection limit was reached, before the next attempt.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const EVICT_INTERVAL: Duration = Duration::from_secs(1);
const WARN_INTERVAL: Duration = Duration::from_secs(60);

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
pub type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;
type ResponseFuture<'h> = Pin<Box<dyn Future<Output = Response<ResponseBody>> + Send + 'h>>;

/// The peer of a connection.
#[derive(Clone, Debug)]
pub struct Peer {
    /// `None` for a Unix socket.
    pub address: Option<SocketAddr>,
    /// The client certificate, as verified by the TLS settings.
    pub certificate: Option<CertificateDer<'static>>,
    /// The user of a process at the other end of a Unix socket.
    pub uid: Option<u32>,
}

/// Decisions of a [`Handler`] about a connection before its first request.
#[derive(Debug)]
pub struct Session<S> {
    pub state: S,
    /// Maximum time from the end of the TLS handshake to the end of the connection.
    pub lifetime: Option<Duration>,
    /// Whether the connection serves more than one request.
    pub keep_alive: bool,
    /// Whether the connection may be evicted for others although it sent a request.
    pub evictable: bool,
}

/// The requests and responses of a role.
pub trait Handler: Send + Sync + 'static {
    /// State of a connection, kept until it ends.
    type State: Send + Sync + 'static;

    /// Accepts a new connection; `None` closes it.
    fn open(&self, peer: Peer) -> Option<Session<Self::State>>;

    fn handle<'h>(&'h self, state: &'h Arc<Self::State>, request: Request<RequestBody>)
    -> ResponseFuture<'h>;
}

/// The listener of a server.
#[derive(Debug)]
pub enum Accept {
    Tcp(Listener),
    Tls(Listener, Arc<Reloading<ServerConfig>>),
    Unix(UnixListener),
}

struct Server<H> {
    handler: Arc<H>,
    limits: Limits,
    slots: Arc<Semaphore>,
    pending: PendingConnections,
    warned: Option<Instant>,
    ended: watch::Sender<()>,
}

enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

/// Serves connections until `until` resolves, then finishes the requests in progress.
pub async fn serve<H: Handler>(
    mut accept: Accept,
    limits: Limits,
    handler: Arc<H>,
    until: impl Future<Output = ()>,
) {
    let mut server = Server {
        handler,
        limits,
        slots: Arc::new(Semaphore::new(limits.connections)),
        pending: PendingConnections::new(limits.first_request),
        warned: None,
        ended: watch::Sender::new(()),
    };
    tokio::select! {
        () = server.accept(&mut accept) => {}
        () = until => {}
    }
    drop(accept);
    server.pending.evict_all();
    server.ended.send_replace(());
    if tokio::time::timeout(limits.drain, server.ended.closed()).await.is_err() {
        tracing::warn!("requests dropped at shutdown");
    }
}

/// Returns a response of plain text or JSON, according to `media_type`.
pub fn response(
    status: StatusCode,
    media_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<ResponseBody> {
    let body = Full::new(body.into()).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response
}

pub fn text_response(status: StatusCode, text: impl Into<Bytes>) -> Response<ResponseBody> {
    response(status, "text/plain; charset=utf-8", text)
}

// === impl Session ===

impl<S> Session<S> {
    pub fn new(state: S) -> Self {
        Self { state, lifetime: None, keep_alive: true, evictable: false }
    }
}

// === impl Server ===

impl<H: Handler> Server<H> {
    async fn accept(&mut self, accept: &mut Accept) {
        let mut evict = tokio::time::interval(EVICT_INTERVAL);
        evict.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let accepted = tokio::select! {
                accepted = accept.next() => accepted,
                _ = evict.tick() => {
                    self.pending.evict_expired();
                    continue;
                }
            };
            let tls = match accept {
                Accept::Tls(_, tls) => Some(tls.get()),
                Accept::Tcp(_) | Accept::Unix(_) => None,
            };
            // Meanwhile further connections wait in the kernel's queue.
            let slot = self.slot().await;
            self.spawn(accepted, tls, slot);
        }
    }

    fn spawn(&mut self, accepted: Accepted, tls: Option<Arc<ServerConfig>>, slot: OwnedSemaphorePermit) {
        let first_request = FirstRequest::default();
        let connection = Connection {
            handler: Arc::clone(&self.handler),
            limits: self.limits,
            first_request: first_request.clone(),
            ended: self.ended.subscribe(),
        };
        let address = match &accepted {
            Accepted::Tcp(_, address) => Some(address.ip()),
            Accepted::Unix(_) => None,
        };
        let task = tokio::spawn(async move {
            let _slot = slot;
            match (accepted, tls) {
                (Accepted::Tcp(stream, address), Some(tls)) => {
                    connection.serve_tls(stream, address, tls).await;
                }
                (Accepted::Tcp(stream, address), None) => connection.serve_tcp(stream, address).await,
                (Accepted::Unix(stream), _) => connection.serve_unix(stream).await,
            }
        });
        self.pending.add(address, first_request, task.abort_handle());
    }

    /// Acquires a connection slot. If there is none, connections without a request are evicted.
    async fn slot(&mut self) -> OwnedSemaphorePermit {
        loop {
            if let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() {
                return slot;
            }
            self.warn_saturated();
            self.pending.evict_oldest();
            let slot = Arc::clone(&self.slots).acquire_owned();
            if let Ok(Ok(slot)) = tokio::time::timeout(ACCEPT_PAUSE, slot).await {
                return slot;
            }
        }
    }

    fn warn_saturated(&mut self) {
        if self.warned.is_none_or(|warned| warned.elapsed() >= WARN_INTERVAL) {
            self.warned = Some(Instant::now());
            tracing::warn!(
                limit = self.limits.connections,
                hint = "allow more open files (LimitNOFILE=, ulimit -Hn) if this many clients are expected",
                "connection limit reached"
            );
        }
    }
}

// === impl Accept ===

impl Accept {
    async fn next(&mut self) -> Accepted {
        loop {
            match self {
                Self::Tcp(listener) | Self::Tls(listener, _) => {
                    let (stream, address) = listener.accept().await;
                    return Accepted::Tcp(stream, address);
                }
                Self::Unix(listener) => match listener.accept().await {
                    Ok((stream, _)) => return Accepted::Unix(stream),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept connections");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }
}

#[cfg(test)]
mod tests;
