use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::{Body as _, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{HOST, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::{Method, Request, Response, Uri, Version};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;

use super::{Unsent, UpstreamError, connect};
use crate::body::Body;

/// Idle time after which a connection is not reused: below the 90 s after which kube-apiserver closes it.
const IDLE_LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of idle connections per API server.
const MAX_IDLE: usize = 256;
/// Timeout for an idle connection to become ready; a new one takes little longer.
const READY_LIMIT: Duration = Duration::from_millis(50);
/// Concurrent requests on one HTTP/2 connection: the lowest limit of any API server.
const MAX_STREAMS: usize = 100;
/// Flow-control windows for responses: the values that kube-apiserver grants its own clients.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// A vanished peer is detected within the sum of the two.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_LIMIT: Duration = Duration::from_secs(15);

/// Connections of one identity.
pub(crate) struct Pool {
    http_1: Arc<ClientConfig>,
    http_2: Arc<ClientConfig>,
    name: String,
    idle: Arc<IdleByTarget>,
    shared: Mutex<HashMap<SocketAddr, Vec<Shared>>>,
    /// Only one new shared connection is opened at a time; waiting requests may use it.
    connecting: tokio::sync::Mutex<()>,
}

struct Idle {
    sender: http1::SendRequest<Body>,
    since: Instant,
}

#[derive(Clone)]
struct Shared {
    sender: http2::SendRequest<Body>,
    streams: Arc<AtomicUsize>,
}

type IdleByTarget = Mutex<HashMap<SocketAddr, Vec<Idle>>>;

/// A connection that returns to its pool when its response is read to the end. Dropped earlier, it closes its
/// connection or stream.
pub(crate) struct Returning(Way);

enum Way {
    Exclusive { sender: http1::SendRequest<Body>, target: SocketAddr, idle: Arc<IdleByTarget> },
    Stream(#[expect(dead_code, reason = "counts by living")] Stream),
}

struct Stream(Arc<AtomicUsize>);

// === impl Pool ===

impl Pool {
    pub(super) fn new([http_1, http_2]: [Arc<ClientConfig>; 2], name: String) -> Self {
        Self {
            http_1,
            http_2,
            name,
            idle: Arc::default(),
            shared: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        }
    }

    /// Sends a request with its original HTTP version.
    pub(crate) async fn send(
        &self,
        target: SocketAddr,
        request: Request<Body>,
    ) -> Result<(Response<Incoming>, Returning), Unsent> {
        if request.version() == Version::HTTP_2 {
            self.send_shared(target, request).await
        } else {
            self.send_exclusive(target, request).await
        }
    }

    /// Opens a dedicated connection for an upgrade request.
    pub(crate) async fn dedicated(
        &self,
        target: SocketAddr,
    ) -> Result<http1::SendRequest<Body>, UpstreamError> {
        let stream = Box::pin(connect(target, &self.http_1, &self.name)).await?;
        let (sender, connection) = http1::handshake(stream).await.map_err(speak)?;
        tokio::spawn(async move {
            // The request on this connection gets its error.
            let _ = connection.with_upgrades().await;
        });
        Ok(sender)
    }

    async fn send_exclusive(
        &self,
        target: SocketAddr,
        request: Request<Body>,
    ) -> Result<(Response<Incoming>, Returning), Unsent> {
        let mut request = self.as_http_1(request);
        loop {
            let (mut sender, fresh) = match self.take_idle(target) {
                Some(sender) => (sender, false),
                None => (
                    Box::pin(self.connect_1(target))
                        .await
                        .map_err(|error| unsent(error, Some(std::mem::take(&mut request))))?,
                    true,
                ),
            };
            if !fresh && !is_ready(&mut sender).await {
                continue;
            }
            let spare = if fresh { None } else { spare(&request) };
            match sender.try_send_request(request).await {
                Ok(response) => {
                    let idle = Arc::clone(&self.idle);
                    return Ok((response, Returning(Way::Exclusive { sender, target, idle })));
                }
                Err(mut failed) => match failed.take_message().or(spare) {
                    Some(again) if !fresh => request = again,
                    message => {
                        let error = UpstreamError::Speak { source: failed.into_error().into() };
                        return Err(unsent(error, message));
                    }
                },
            }
        }
    }

    async fn send_shared(
        &self,
        target: SocketAddr,
        mut request: Request<Body>,
    ) -> Result<(Response<Incoming>, Returning), Unsent> {
        // The server may send GOAWAY between selection and sending; three attempts bound the retries.
        for _ in 0..3 {
            let shared = match self.share(target).await {
                Ok(Some(shared)) => shared,
                Ok(None) => return Box::pin(self.send_exclusive(target, request)).await,
                Err(error) => return Err(unsent(error, Some(request))),
            };
            let stream = Stream::new(&shared.streams);
            let spare = spare(&request);
            let mut sender = shared.sender;
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, Returning(Way::Stream(stream)))),
                Err(mut failed) => {
                    let Some(again) = failed.take_message().or(spare) else {
                        let error = UpstreamError::Speak { source: failed.into_error().into() };
                        return Err(unsent(error, None));
                    };
                    request = again;
                    self.forget(target, &shared.streams);
                }
            }
        }
        Err(unsent(UpstreamError::Late { target }, Some(request)))
    }

    /// Returns a connection with capacity for one more request; `None` when the server does not support HTTP/2.
    async fn share(&self, target: SocketAddr) -> Result<Option<Shared>, UpstreamError> {
        match self.shared_with_room(target) {
            Some(shared) => Ok(Some(shared)),
            None => Box::pin(self.connect_2(target)).await,
        }
    }

    async fn connect_2(&self, target: SocketAddr) -> Result<Option<Shared>, UpstreamError> {
        let _one = self.connecting.lock().await;
        if let Some(shared) = self.shared_with_room(target) {
            return Ok(Some(shared));
        }
        let stream = connect(target, &self.http_2, &self.name).await?;
        if stream.inner().get_ref().1.alpn_protocol() != Some(b"h2") {
            return Ok(None);
        }
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_LIMIT)
            .handshake(stream)
            .await
            .map_err(speak)?;
        tokio::spawn(async move {
            // The requests on this connection get its error.
            let _ = connection.await;
        });
        let shared = Shared { sender, streams: Arc::default() };
        let mut all = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(target).or_default().push(shared.clone());
        Ok(Some(shared))
    }

    fn shared_with_room(&self, target: SocketAddr) -> Option<Shared> {
        let mut all = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let own = all.get_mut(&target)?;
        own.retain(|shared| !shared.sender.is_closed());
        own.iter().find(|shared| shared.has_room()).cloned()
    }

    fn forget(&self, target: SocketAddr, streams: &Arc<AtomicUsize>) {
        let mut all = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = all.get_mut(&target) {
            own.retain(|shared| !Arc::ptr_eq(&shared.streams, streams));
        }
    }

    async fn connect_1(&self, target: SocketAddr) -> Result<http1::SendRequest<Body>, UpstreamError> {
        let stream = connect(target, &self.http_1, &self.name).await?;
        let (sender, connection) = http1::handshake(stream).await.map_err(speak)?;
        tokio::spawn(async move {
            // The request on this connection gets its error.
            let _ = connection.await;
        });
        Ok(sender)
    }

    fn take_idle(&self, target: SocketAddr) -> Option<http1::SendRequest<Body>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let own = idle.get_mut(&target)?;
        // The most recently returned connection is the most likely to be open.
        while let Some(Idle { sender, since }) = own.pop() {
            if since.elapsed() >= IDLE_LIMIT {
                own.clear();
                return None;
            }
            if !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    /// Converts a request to HTTP/1.1: only the path in the URI, and the host in a header.
    fn as_http_1(&self, mut request: Request<Body>) -> Request<Body> {
        if !request.headers().contains_key(HOST) {
            let host = request.uri().authority().map_or(self.name.as_str(), |authority| authority.as_str());
            if let Ok(host) = HeaderValue::from_str(host) {
                request.headers_mut().insert(HOST, host);
            }
        }
        if request.uri().authority().is_some() {
            let path = request.uri().path_and_query().cloned();
            *request.uri_mut() = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
        }
        *request.version_mut() = Version::HTTP_11;
        request
    }
}

/// Returns whether an idle connection can be used: it may be closing, or still send a body whose response arrived
/// early.
async fn is_ready(sender: &mut http1::SendRequest<Body>) -> bool {
    sender.is_ready() || matches!(tokio::time::timeout(READY_LIMIT, sender.ready()).await, Ok(Ok(())))
}

/// Returns a copy of an idempotent request for a retry, because its connection may have been closing.
fn spare(request: &Request<Body>) -> Option<Request<Body>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) || !request.body().is_end_stream() {
        return None;
    }
    let mut copy = Request::new(Body::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

fn speak(source: hyper::Error) -> UpstreamError {
    UpstreamError::Speak { source: source.into() }
}

fn unsent(error: UpstreamError, request: Option<Request<Body>>) -> Unsent {
    Unsent { error, request: request.map(Box::new) }
}

// === impl Shared ===

impl Shared {
    fn has_room(&self) -> bool {
        self.streams.load(Ordering::Relaxed) < MAX_STREAMS
    }
}

// === impl Stream ===

impl Stream {
    fn new(streams: &Arc<AtomicUsize>) -> Self {
        streams.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(streams))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Returning ===

impl Returning {
    /// Returns the connection to its pool after the response was read to its end.
    pub(crate) fn done(self) {
        if let Way::Exclusive { sender, target, idle } = self.0
            && !sender.is_closed()
        {
            let mut idle = idle.lock().unwrap_or_else(PoisonError::into_inner);
            let own = idle.entry(target).or_default();
            if own.len() < MAX_IDLE {
                own.push(Idle { sender, since: Instant::now() });
            }
        }
    }
}
