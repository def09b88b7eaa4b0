//! The agent's HTTPS port for reports and bundles.
//!
//! Authorized readers fetch the last report or a fresh bundle, and other nodes deliver their reports. It is
//! served over TLS with client certificates only.

mod callers;

use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use futures_util::stream::unfold;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};
use jiff::Timestamp;
use landfall_durable as durable;
use landfall_evidence::bundle::{BundleWriter, Packing, bundle_id};
use landfall_evidence::collect::{Host, Plan, collect};
use landfall_model::chain;
use landfall_model::envelope::{Envelope, MAX_ENVELOPE};
use landfall_net::serve::{
    Accept, BodyBudget, BodyLimits, CallerSemaphore, Handler, Limits, Peer, Permit, PermitLimits,
    RequestBody, ResponseBody, Session, response, text_response,
};
use landfall_net::{
    CertificateFiles, ClientCertificates, Listener, Pieces, Reloading, ServerTlsFiles, TlsError, TlsPolicy,
};
use rustls::ServerConfig;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, mpsc};

use self::callers::{Caller, READERS};
use crate::keeper::{MAX_REPORT, REPORT, Unwritten};
use crate::metrics;
use crate::neighbours::{NeighbourError, Neighbours};
use crate::spool::SPOOLS;

/// Interval between attempts to open the port.
const OPEN_AGAIN: Duration = Duration::from_secs(15);
const LIMITS: Limits = Limits {
    connections: 96,
    idle: Duration::from_secs(30),
    stalled_write: Duration::from_secs(60),
    ..Limits::SMALL
};
/// Connections of readers, who are single users or a hub. They have the same rights and count as one caller.
const READER_SLOTS: PermitLimits = PermitLimits::new(16, 16);
/// Connections of nodes that deliver a report, which may need several times its size while it is parsed. A node gets
/// one, and a spare if its first connection broke silently. Other callers have no slots.
const NODE_SLOTS: PermitLimits = PermitLimits::new(4, 2);
/// Twice the memory of a report in each slot, because a body may use at most as many bytes as remain.
const BODIES: BodyLimits = BodyLimits {
    callers: 2 * NODE_SLOTS.total * MAX_ENVELOPE,
    unauthenticated: 0,
    timeout: Duration::from_secs(10),
};
/// Lifetime of a reader's connection; a bundle over a slow link takes time.
const READER_LIMIT: Duration = Duration::from_secs(3600);
/// Lifetime of a node's connection; nodes time out after 10 s.
const NODE_LIMIT: Duration = Duration::from_secs(20);
/// Lifetime of a connection without a slot.
const REFUSAL_LIMIT: Duration = Duration::from_secs(10);
/// Chunks of a bundle that wait to be sent. Collection pauses until the reader receives them.
const PIECES: usize = 2;
/// Blocking threads: one bundle, one file read, and one spare.
const THREADS: usize = 3;
/// `Retry-After` values in seconds: while a bundle is collected, before the first report, and without a slot.
const TRY_BUNDLE_AFTER: &str = "30";
const TRY_REPORT_AFTER: &str = "5";
const TRY_PLACE_AFTER: &str = "5";

const NEIGHBOURS: &str = "/neighbours";

type Answer = Response<ResponseBody>;

/// Address, certificate and client CA of the agent's port.
#[derive(Clone, Debug)]
pub struct Serve {
    pub address: SocketAddr,
    pub certificate: CertificateFiles,
    pub client_authority: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error("cannot prepare the network")]
    Runtime(#[source] io::Error),
    #[error("cannot use the TLS files")]
    Tls(#[source] TlsError),
    #[error("cannot make a place for the reports of other nodes")]
    Neighbours(#[source] durable::Error),
    #[error("cannot listen on {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
}

/// An open port.
pub(crate) struct Port {
    runtime: Runtime,
    listener: Listener,
    tls: Arc<Reloading<ServerConfig>>,
    desk: Arc<Desk>,
}

/// Decides which callers are served and answers them.
struct PortHandler {
    desk: Arc<Desk>,
    readers: CallerSemaphore<()>,
    nodes: CallerSemaphore<String>,
}

/// The data from which requests are answered.
struct Desk {
    root: PathBuf,
    report: PathBuf,
    spools: PathBuf,
    unwritten: Unwritten,
    neighbours: Arc<Neighbours>,
    bodies: BodyBudget<String>,
    /// One bundle at a time: collection loads a machine that may be failing.
    bundling: Arc<Semaphore>,
}

/// Serves until the process exits, from the time at which the port can be opened. kubeadm writes the
/// cluster's CA during a join, and addresses appear with the network; no other component waits for the port.
pub(crate) fn serve(serve: &Serve, root: &Path, state: &Path, unwritten: &Unwritten) {
    let mut told = String::new();
    loop {
        match Port::open(serve.clone(), root, state, unwritten.clone()) {
            Ok(port) => return port.run(),
            Err(error) => {
                let words = chain(&error).to_string();
                if told != words {
                    tracing::warn!(error = words, "cannot open the port; retrying every 15 s");
                    told = words;
                }
            }
        }
        thread::park_timeout(OPEN_AGAIN);
    }
}

// === impl Port ===

impl Port {
    pub(crate) fn open(
        serve: Serve,
        root: &Path,
        state: &Path,
        unwritten: Unwritten,
    ) -> Result<Self, ServeError> {
        let Serve { address, certificate, client_authority } = serve;
        let files = ServerTlsFiles { certificate, client_ca: Some(client_authority) };
        let tls = files.load(ClientCertificates::Required, &[b"http/1.1"], TlsPolicy::default());
        let tls = tls.map_err(ServeError::Tls)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(THREADS)
            .build()
            .map_err(ServeError::Runtime)?;
        let listener = {
            let _inside = runtime.enter();
            Listener::bind(address).map_err(|source| ServeError::Listen { address, source })?
        };
        let desk = Arc::new(Desk {
            root: root.to_owned(),
            report: state.join(REPORT),
            spools: state.join(SPOOLS),
            unwritten,
            neighbours: Arc::new(Neighbours::open(state).map_err(ServeError::Neighbours)?),
            bodies: BodyBudget::new(BODIES),
            bundling: Arc::new(Semaphore::new(1)),
        });
        Ok(Self { runtime, listener, tls, desk })
    }

    #[cfg(test)]
    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Serves until the process exits.
    pub(crate) fn run(self) {
        let Self { runtime, listener, tls, desk } = self;
        tracing::info!(address = %listener.address(), "serving reports and bundles");
        runtime.block_on(async {
            tokio::spawn(Arc::clone(&tls).watch());
            let port = PortHandler::new(desk);
            let accept = Accept::Tls(listener, tls);
            landfall_net::serve::serve(accept, LIMITS, Arc::new(port), std::future::pending()).await;
        });
    }
}

// === impl PortHandler ===

impl PortHandler {
    fn new(desk: Arc<Desk>) -> Self {
        Self { desk, readers: CallerSemaphore::new(READER_SLOTS), nodes: CallerSemaphore::new(NODE_SLOTS) }
    }
}

impl Handler for PortHandler {
    type State = (Caller, Option<Arc<Permit>>);

    /// Readers may send any number of requests; a node delivers one report. A caller without a slot gets the reason and
    /// may be evicted for others.
    fn open(&self, peer: Peer) -> Option<Session<Self::State>> {
        let caller = peer.certificate.map_or(Caller::Unauthorized, |certificate| Caller::of(&certificate));
        let slot = match &caller {
            Caller::Reader => self.readers.try_acquire(None),
            Caller::Node(name) => self.nodes.try_acquire(Some(name)),
            Caller::Unauthorized => None,
        };
        let slot = slot.map(Arc::new);
        let (lifetime, keep_alive) = match (&caller, &slot) {
            (_, None) => (REFUSAL_LIMIT, false),
            (Caller::Reader, Some(_)) => (READER_LIMIT, true),
            (Caller::Node(_) | Caller::Unauthorized, Some(_)) => (NODE_LIMIT, false),
        };
        let evictable = slot.is_none();
        Some(Session { state: (caller, slot), lifetime: Some(lifetime), keep_alive, evictable })
    }

    fn handle<'h>(
        &'h self,
        state: &'h Arc<Self::State>,
        request: Request<RequestBody>,
    ) -> Pin<Box<dyn Future<Output = Answer> + Send + 'h>> {
        let (caller, slot) = &**state;
        Box::pin(async move {
            match (caller, slot) {
                (_, Some(slot)) => self.desk.answer(caller, Arc::clone(slot), request).await,
                (Caller::Unauthorized, None) => not_permitted(),
                (Caller::Reader | Caller::Node(_), None) => later(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "this agent answers as many callers as it can; try again in a few seconds",
                    TRY_PLACE_AFTER,
                ),
            }
        })
    }
}

// === impl Desk ===

impl Desk {
    async fn answer(&self, caller: &Caller, slot: Arc<Permit>, request: Request<RequestBody>) -> Answer {
        let path = request.uri().path().to_owned();
        match (caller, request.method(), path.as_str()) {
            (Caller::Node(name), &Method::POST, NEIGHBOURS) => {
                self.take(name.clone(), slot, request.into_body()).await
            }
            (Caller::Node(_) | Caller::Unauthorized, ..) => not_permitted(),
            (_, &Method::GET, "/report") => self.report().await,
            (_, &Method::GET, "/bundle") => {
                let mut accepted = request.headers().get_all(hyper::header::ACCEPT).iter();
                let zstd = accepted.any(|accept| accept.as_bytes() == b"application/zstd");
                self.bundle(if zstd { Packing::Zstd } else { Packing::Gzip })
            }
            (_, &Method::GET, "/livez") => text(StatusCode::OK, "ok"),
            (_, &Method::GET, "/metrics") => self.metrics().await,
            (_, &Method::GET, NEIGHBOURS) => self.neighbours().await,
            (_, &Method::GET, path) if path.starts_with(NEIGHBOURS) => {
                let name = path.strip_prefix(NEIGHBOURS).and_then(|rest| rest.strip_prefix('/'));
                match name.and_then(|rest| rest.strip_suffix("/report")) {
                    Some(name) => self.neighbour(name.to_owned()).await,
                    None => text(StatusCode::NOT_FOUND, "a neighbour has `/neighbours/NAME/report`"),
                }
            }
            (_, _, "/report" | "/bundle" | "/livez" | "/metrics" | NEIGHBOURS) => {
                text(StatusCode::METHOD_NOT_ALLOWED, "only `GET` is understood here")
            }
            _ => text(
                StatusCode::NOT_FOUND,
                "an agent has `/report`, `/bundle`, `/livez`, `/metrics` and `/neighbours`",
            ),
        }
    }

    /// Stores another node's report.
    async fn take(&self, name: String, slot: Arc<Permit>, body: RequestBody) -> Answer {
        let body = match self.bodies.read(&name, body, MAX_ENVELOPE).await {
            Ok(body) => body,
            Err(error) => return text(error.status(), &error.to_string()),
        };
        let (neighbours, root) = (Arc::clone(&self.neighbours), self.root.clone());
        let taken = tokio::task::spawn_blocking(move || {
            // A node that disconnects early leaves its report in memory until this is done, so the slot stays
            // taken.
            let _slot = slot;
            let cluster = Host::at(&root).ok().and_then(|host| host.cluster());
            neighbours.take(&name, cluster.as_deref(), &body)
        });
        let taken = taken.await;
        let Ok(taken) = taken else { return broken() };
        let Err(error) = taken else { return text(StatusCode::OK, "kept") };
        let words = chain(&error).to_string();
        match error {
            NeighbourError::Envelope(_) | NeighbourError::Signature => {
                text(StatusCode::UNPROCESSABLE_ENTITY, &words)
            }
            NeighbourError::Name { .. } => text(StatusCode::FORBIDDEN, &words),
            NeighbourError::Write(_) | NeighbourError::List(_) => {
                tracing::warn!(error = words, "A neighbour's report cannot be kept.");
                broken()
            }
        }
    }

    async fn neighbours(&self) -> Answer {
        let neighbours = Arc::clone(&self.neighbours);
        match tokio::task::spawn_blocking(move || neighbours.names()).await {
            Ok(Ok(names)) => {
                response(StatusCode::OK, "application/json", serde_json::json!({"nodes": names}).to_string())
            }
            _ => broken(),
        }
    }

    async fn neighbour(&self, name: String) -> Answer {
        let neighbours = Arc::clone(&self.neighbours);
        match tokio::task::spawn_blocking(move || neighbours.read(&name)).await {
            Ok(Some(envelope)) => response(StatusCode::OK, "application/json", envelope),
            Ok(None) => text(StatusCode::NOT_FOUND, "this node has left no report here"),
            Err(_) => broken(),
        }
    }

    async fn metrics(&self) -> Answer {
        let (unwritten, report, spools) = (self.unwritten.bytes(), self.report.clone(), self.spools.clone());
        let page = tokio::task::spawn_blocking(move || {
            let bytes = unwritten.or_else(|| read_report(&report).ok());
            let last = bytes.and_then(|bytes| Envelope::parse(&bytes).ok()?.message().ok());
            metrics::page(last.as_ref(), &spools)
        });
        match page.await {
            Ok(page) => response(StatusCode::OK, landfall_net::metrics::METRICS_MEDIA_TYPE, page),
            Err(_) => broken(),
        }
    }

    /// Returns the last report as on disk, or from memory if the disk rejected it.
    async fn report(&self) -> Answer {
        if let Some(bytes) = self.unwritten.bytes() {
            return response(StatusCode::OK, "application/json", bytes);
        }
        let path = self.report.clone();
        let read = tokio::task::spawn_blocking(move || read_report(&path));
        match read.await.map_err(io::Error::other).flatten() {
            Ok(bytes) => response(StatusCode::OK, "application/json", bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                later(StatusCode::SERVICE_UNAVAILABLE, "there is no report yet", TRY_REPORT_AFTER)
            }
            Err(error) => {
                tracing::warn!(error = %error, "The last report cannot be read.");
                text(StatusCode::INTERNAL_SERVER_ERROR, "the last report cannot be read")
            }
        }
    }

    /// Streams a new bundle while it is collected.
    fn bundle(&self, packing: Packing) -> Answer {
        let Ok(turn) = Arc::clone(&self.bundling).try_acquire_owned() else {
            return later(StatusCode::TOO_MANY_REQUESTS, "a bundle is being made", TRY_BUNDLE_AFTER);
        };
        let opened = Host::at(&self.root).map_err(|error| error.to_string());
        let opened = opened.and_then(|host| match Plan::of(&host) {
            Ok(plan) => Ok((host, plan)),
            Err(error) => Err(chain(&error).to_string()),
        });
        let (host, plan) = match opened {
            Ok(opened) => opened,
            Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, &error),
        };
        let (sender, pieces) = mpsc::channel(PIECES);
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let started = Timestamp::now();
            let out = Pieces::new(sender.clone());
            let mut bundle = BundleWriter::new(out, packing, &bundle_id(started), host.identity(), started);
            let made = collect(host, &plan, &mut bundle, &|_| {})
                .map_err(|error| chain(&error).to_string())
                .and_then(|()| bundle.finish(Timestamp::now()).map_err(|error| error.to_string()))
                .and_then(|mut done| io::Write::flush(&mut done.out).map_err(|error| error.to_string()));
            if let Err(error) = made {
                tracing::warn!(error, "A bundle was cut short.");
                // A truncated stream shows the error to the reader; a disconnected reader does not need it.
                let _ = sender.blocking_send(Err(error.into()));
            }
        });
        let pieces = unfold(pieces, |mut pieces| async move {
            pieces.recv().await.map(|piece| (piece.map(Frame::data), pieces))
        });
        let mut answer = Response::new(StreamBody::new(pieces).boxed_unsync());
        let kind = match packing {
            Packing::Gzip => "application/gzip",
            Packing::Zstd => "application/zstd",
        };
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        answer
    }
}

fn read_report(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_REPORT).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn not_permitted() -> Answer {
    text(StatusCode::FORBIDDEN, &format!("this is for members of {}", READERS.join(", ")))
}

fn broken() -> Answer {
    text(StatusCode::INTERNAL_SERVER_ERROR, "this agent cannot answer; its log says why")
}

fn text(status: StatusCode, words: &str) -> Answer {
    text_response(status, format!("{words}\n"))
}

fn later(status: StatusCode, words: &str, seconds: &'static str) -> Answer {
    let mut answer = text(status, words);
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(seconds));
    answer
}

#[cfg(test)]
mod tests;
