//! The lifecycle of one client connection.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Buf as _, BytesMut};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Method, Request};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use landfall_model::chain;
use landfall_net::{ClientHello, Prefixed, Protocol, carry, classify, prepare, proxy_header, read_first};
use rustls::pki_types::CertificateDer;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::answer::Answer;
use crate::body::BoxError;
use crate::credentials::{Credentials, OWN_PROTOCOL, Peer};
use crate::situation::{Situation, splices};
use crate::{Gateway, forward, health, own, tunnel};

/// The server name (SNI) of clients that want this gateway and no API server.
pub const OWN_NAME: &str = "bootstrap.landfall.dev";
/// Timeout to connect to the API server of a spliced connection.
const DIAL_LIMIT: Duration = Duration::from_secs(5);
/// Interval for re-verifying a client's certificate, so that an expired one is not accepted much longer.
const JUDGED_FOR: Duration = Duration::from_secs(20);
/// The limits of kube-apiserver.
const MAX_HEAD: u32 = 1024 * 1024;
const MAX_STREAMS: u32 = 250;
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_LIMIT: Duration = Duration::from_secs(15);
/// Response of Go's HTTPS server to a plain HTTP request.
const SPEAK_TLS: &[u8] = b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";

/// A terminated connection, whose requests the gateway serves or forwards.
pub(crate) struct Connection {
    pub(crate) gateway: Arc<Gateway>,
    /// The thread that serves the connection.
    pub(crate) lane: usize,
    pub(crate) client: SocketAddr,
    chain: Option<Vec<CertificateDer<'static>>>,
    judged: Mutex<Option<Judged>>,
    /// Canceled by the first request.
    begun: CancellationToken,
}

struct Judged {
    credentials: Arc<Credentials>,
    at: Instant,
    peer: Peer,
}

/// Serves a connection to its end. State that only the beginning needs is boxed and freed early, so that idle
/// connections use less memory.
pub(crate) async fn serve(gateway: Arc<Gateway>, lane: usize, stream: TcpStream, peer: SocketAddr) {
    let Some((stream, first, client, protocol)) = Box::pin(greet(&gateway, stream, peer)).await else {
        return;
    };
    match protocol {
        Protocol::Tls(hello) => {
            let situation = gateway.outlook.now();
            if splices(gateway.config.mode, &situation) && !is_ours(&hello) {
                drop(hello);
                gateway.metrics.spliced.add(1);
                splice(&gateway, stream, first, situation).await;
            } else {
                gateway.metrics.terminated.add(1);
                Box::pin(terminate(gateway, lane, stream, first, client)).await;
            }
        }
        Protocol::Ssh => match gateway.config.ssh {
            Some(target) => {
                gateway.metrics.ssh.add(1);
                Box::pin(tunnel::ssh(&gateway, stream, first, client, target)).await;
            }
            None => gateway.metrics.refused.add(1),
        },
        Protocol::Http => {
            gateway.metrics.refused.add(1);
            Box::pin(speak_tls(stream, gateway.config.patience.first)).await;
        }
        Protocol::Unknown => gateway.metrics.refused.add(1),
    }
}

/// Determines the address and protocol of a client; returns `None` for a connection that is not served.
async fn greet(
    gateway: &Gateway,
    mut stream: TcpStream,
    peer: SocketAddr,
) -> Option<(TcpStream, BytesMut, SocketAddr, Protocol)> {
    let limit = gateway.config.patience.first;
    let refused = |error: &dyn std::error::Error| gateway.refuse(peer, error);
    let mut first = BytesMut::new();
    let mut client = peer;
    if gateway.config.proxy_protocol_from.iter().any(|network| network.contains(peer.ip())) {
        let header =
            read_first(&mut stream, &mut first, limit, |bytes| proxy_header(bytes).transpose()).await;
        let header = header.inspect_err(|error| refused(error)).ok()?;
        let header = header.inspect_err(|error| refused(error)).ok()?;
        first.advance(header.length);
        client = header.client.unwrap_or(peer);
    }
    match read_first(&mut stream, &mut first, limit, classify).await {
        Ok(protocol) => Some((stream, first, client, protocol)),
        // Probes that open and close a connection are not logged.
        Err(landfall_net::FirstError::Silent) => None,
        Err(error) => {
            gateway.refuse(client, &error);
            None
        }
    }
}

async fn speak_tls(mut stream: TcpStream, within: Duration) {
    // The client may have disconnected.
    let _ = tokio::time::timeout(within, stream.write_all(SPEAK_TLS)).await;
}

fn is_ours(hello: &ClientHello) -> bool {
    hello.server_name.as_deref() == Some(OWN_NAME)
        || hello.protocols.iter().any(|protocol| protocol == OWN_PROTOCOL)
}

/// Passes the client's TLS connection through to an API server, unmodified.
async fn splice(gateway: &Gateway, mut client: TcpStream, first: BytesMut, situation: Arc<Situation>) {
    let Some(mut server) = Box::pin(reach(gateway, first, situation)).await else { return };
    // Both ends see for themselves how the connection ended.
    if let Ok(carried) = carry(&gateway.pipes, &mut client, &mut server).await {
        gateway.metrics.spliced_bytes.add(carried.up + carried.down);
    }
}

/// Connects to the first API server that accepts, and sends it the bytes that the client has sent already.
async fn reach(gateway: &Gateway, first: BytesMut, situation: Arc<Situation>) -> Option<TcpStream> {
    for target in gateway.outlook.targets(&situation, gateway.config.upstream.local) {
        let Some(mut server) = dial(target).await else { continue };
        let saying = tokio::time::timeout(DIAL_LIMIT, server.write_all(&first)).await;
        return matches!(saying, Ok(Ok(()))).then_some(server);
    }
    None
}

pub(crate) async fn dial(target: SocketAddr) -> Option<TcpStream> {
    let stream = match tokio::time::timeout(DIAL_LIMIT, TcpStream::connect(target)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%target, %error, "cannot connect");
            return None;
        }
        Err(_) => return None,
    };
    prepare(&stream);
    Some(stream)
}

/// Performs the TLS handshake with the API server's certificates and serves requests.
async fn terminate(
    gateway: Arc<Gateway>,
    lane: usize,
    stream: TcpStream,
    first: BytesMut,
    client: SocketAddr,
) {
    let acceptor = TlsAcceptor::from(Arc::clone(&gateway.credentials.get().server));
    let shaking = acceptor.accept(Prefixed::new(first, stream));
    let stream = match tokio::time::timeout(gateway.config.patience.first, shaking).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            gateway.metrics.failed_handshakes.add(1);
            tracing::debug!(%client, %error, "a TLS handshake failed");
            return;
        }
        Err(_) => return gateway.metrics.failed_handshakes.add(1),
    };
    let tls = stream.get_ref().1;
    let http_2 = tls.alpn_protocol() == Some(b"h2");
    let chain = tls.peer_certificates().map(<[_]>::to_vec);
    let connection = Arc::new(Connection {
        gateway,
        lane,
        client,
        chain,
        judged: Mutex::default(),
        begun: CancellationToken::new(),
    });
    let served = if http_2 { serve_2(connection, stream).await } else { serve_1(connection, stream).await };
    if let Err(error) = served {
        tracing::debug!(%client, error = %self::chain(&*error), "a connection broke");
    }
}

async fn serve_1(
    connection: Arc<Connection>,
    stream: TlsStream<Prefixed<TcpStream>>,
) -> Result<(), BoxError> {
    let (asked, idle) = (away(&connection), connection.gateway.config.patience.idle);
    let service = service_fn(move |request| answer(Arc::clone(&connection), request));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(idle)
        .max_buf_size(MAX_HEAD as usize)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        ended = serving.as_mut() => return Ok(ended?),
        () = asked => serving.as_mut().graceful_shutdown(),
    }
    Ok(serving.await?)
}

async fn serve_2(
    connection: Arc<Connection>,
    stream: TlsStream<Prefixed<TcpStream>>,
) -> Result<(), BoxError> {
    let asked = away(&connection);
    let service = service_fn(move |request| answer(Arc::clone(&connection), request));
    let serving = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_LIMIT)
        .serve_connection(TokioIo::new(stream), service);
    let mut serving = std::pin::pin!(serving);
    tokio::select! {
        ended = serving.as_mut() => return Ok(ended?),
        () = asked => serving.as_mut().graceful_shutdown(),
    }
    Ok(serving.await?)
}

/// Resolves when clients should reconnect: on shutdown, or when the load balancer has better servers for them.
fn away(connection: &Connection) -> impl Future<Output = ()> + Send + use<> {
    let gateway = &connection.gateway;
    let (drained, policy) = (gateway.drain.asked(), gateway.config.readiness);
    let first = gateway.config.patience.first;
    let mut situations = gateway.outlook.subscribe();
    let begun = connection.begun.clone();
    async move {
        tokio::select! {
            () = drained => {}
            _ = situations.wait_for(|situation| situation.sends_clients_away(policy)) => {}
        }
        // A new client gets one response first.
        let _ = tokio::time::timeout(first, begun.cancelled()).await;
    }
}

/// Answers one request. Every request moves this future, so that only common state is inline and rare state is boxed.
async fn answer(connection: Arc<Connection>, request: Request<Incoming>) -> Result<Answer, BoxError> {
    connection.begun.cancel();
    let answer = if *request.method() == Method::CONNECT {
        Box::pin(tunnel::connect(&connection, request)).await
    } else if let Some(question) = health::Question::of(&request) {
        question.answer(&connection.gateway)
    } else {
        match request.uri().path() {
            own::BUNDLE | own::REPORT | own::IDENTITY => Box::pin(own::answer(&connection, request)).await,
            own::TUNNEL => Box::pin(tunnel::websocket(&connection, request)).await,
            _ => forward::forward(&connection, request).await,
        }
    };
    connection.gateway.metrics.answered(answer.status());
    Ok(answer)
}

// === impl Connection ===

impl Connection {
    /// Verifies the client certificate as of now.
    pub(crate) fn peer(&self, credentials: &Arc<Credentials>) -> Peer {
        let mut judged = self.judged.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(judged) = judged.as_ref()
            && Arc::ptr_eq(&judged.credentials, credentials)
            && judged.at.elapsed() < JUDGED_FOR
        {
            return judged.peer.clone();
        }
        let peer = credentials.judge(self.chain.as_deref());
        *judged =
            Some(Judged { credentials: Arc::clone(credentials), at: Instant::now(), peer: peer.clone() });
        peer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limit for the size of the future: every request moves it about three times, and every HTTP/1 connection reserves
    /// space for it.
    const MAX_ANSWERING: usize = 5 * 1024;

    fn size<A, B, F>(_: impl Fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn answering_stays_small() {
        let size = size(answer);
        assert!(size <= MAX_ANSWERING, "answering takes {size} bytes: put what few requests need into a box");
    }
}
