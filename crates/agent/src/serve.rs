//! The port of the agent: whoever may, fetches the last report or a fresh bundle; other nodes leave theirs. Over TLS, and never
//! without a certificate.

mod callers;

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::Timestamp;
use landfall_evidence::bundle::{BundleWriter, Packing, bundle_id};
use landfall_evidence::collect::{Host, Plan, collect};
use landfall_model::chain;
use landfall_model::envelope::Envelope;
use landfall_steps::durable;
use landfall_wire::{Files, Listener, Live, Pair, Pieces, TlsError, roots, serving};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use self::callers::{Caller, Place, Places, READERS};
use crate::keeper::{REPORT, Unwritten};
use crate::metrics;
use crate::neighbours::{MAX_REPORT as MAX_NEIGHBOUR_REPORT, NeighbourError, Neighbours};
use crate::spool::SPOOLS;

/// Connections of which nobody knows yet whose they are, and of callers that have no place. When there are more, the one that
/// came first goes: anybody can open a connection and say nothing.
const MAX_STRANGERS: usize = 64;
/// How often it is tried again to open a port that could not be opened.
const OPEN_AGAIN: Duration = Duration::from_secs(15);
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// How long a reader may think about the next question.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// The longest conversation with a reader; a bundle over a thin line takes its time.
const READER_LIMIT: Duration = Duration::from_secs(3600);
/// The longest conversation with a node, and how long its report may be under way: nodes give up after 10 s themselves.
const NODE_LIMIT: Duration = Duration::from_secs(20);
const BODY_LIMIT: Duration = Duration::from_secs(10);
/// The longest conversation with one that has no place.
const REFUSAL_LIMIT: Duration = Duration::from_secs(10);
/// Heads of requests are small.
const READ_BUFFER: usize = 16 << 10;
/// Pieces of a bundle that wait to be sent. What the reader does not take, is not collected yet.
const PIECES: usize = 2;
/// Blocking threads: one bundle, one file that is read, and one to spare.
const THREADS: usize = 3;
/// A report is below 100 KiB.
const MAX_REPORT: u64 = 4 << 20;
/// What those are told who come while a bundle is made, and those who come before the first report.
const TRY_BUNDLE_AFTER: &str = "30";
const TRY_REPORT_AFTER: &str = "5";
const TRY_PLACE_AFTER: &str = "5";

const NEIGHBOURS: &str = "/neighbours";

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// Where to listen, as whom, and whose clients may come.
#[derive(Clone, Debug)]
pub struct Serve {
    pub address: SocketAddr,
    pub certificate: Pair,
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

/// A port that is listened on.
pub(crate) struct Port {
    runtime: Runtime,
    listener: Listener,
    tls: Arc<Live<ServerConfig>>,
    desk: Arc<Desk>,
}

/// What questions are answered from.
struct Desk {
    root: PathBuf,
    report: PathBuf,
    spools: PathBuf,
    unwritten: Unwritten,
    neighbours: Arc<Neighbours>,
    /// One bundle at a time: collecting is work for a machine that may be in trouble.
    bundling: Arc<Semaphore>,
}

/// Serves until the process ends, from the moment on at which the port can be opened: kubeadm writes the cluster's authority in
/// the middle of a join, and addresses come with the network. Nothing else waits for it.
pub(crate) fn serve(serve: &Serve, root: &Path, state: &Path, unwritten: &Unwritten) {
    let mut told = String::new();
    loop {
        match Port::open(serve.clone(), root, state, unwritten.clone()) {
            Ok(port) => return port.run(),
            Err(error) => {
                let words = chain(&error).to_string();
                if told != words {
                    tracing::warn!(error = words, "The port is not open yet; it is tried again every 15 s.");
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
        let paths = vec![certificate.certificate.clone(), certificate.key.clone(), client_authority.clone()];
        let tls = Live::load(paths, move |files| server(files, &certificate, &client_authority));
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
            bundling: Arc::new(Semaphore::new(1)),
        });
        Ok(Self { runtime, listener, tls, desk })
    }

    #[cfg(test)]
    pub(crate) fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Serves until the process ends.
    pub(crate) fn run(self) {
        let Self { runtime, mut listener, tls, desk } = self;
        tracing::info!(address = %listener.address(), "Serving reports and bundles.");
        runtime.block_on(async {
            tokio::spawn(Arc::clone(&tls).watch());
            let places = Arc::new(Places::default());
            let mut strangers: VecDeque<AbortHandle> = VecDeque::new();
            loop {
                let (stream, peer) = listener.accept().await;
                let (acceptor, desk) = (TlsAcceptor::from(tls.get()), Arc::clone(&desk));
                let places = Arc::clone(&places);
                strangers.retain(|stranger| !stranger.is_finished());
                if strangers.len() >= MAX_STRANGERS
                    && let Some(first) = strangers.pop_front()
                {
                    first.abort();
                }
                let stranger = tokio::spawn(async move {
                    let Some(stream) = greet(acceptor, stream).await else { return };
                    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                    let caller = certificate.map_or(Caller::Stranger, |certificate| Caller::of(certificate));
                    let Some(place) = places.take(&caller) else {
                        return refuse(stream, peer, &caller).await;
                    };
                    // Who is known is not sent away for others.
                    tokio::spawn(converse(stream, peer, caller, place, desk));
                });
                strangers.push_back(stranger.abort_handle());
            }
        });
    }
}

/// Nobody gets further without a certificate.
async fn greet(acceptor: TlsAcceptor, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
    match tokio::time::timeout(HANDSHAKE_LIMIT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(error = %chain(&error), "A TLS handshake failed.");
            None
        }
        Err(_) => None,
    }
}

/// With one that has a place. Readers may ask as often as they like; a node brings one report and goes.
async fn converse(
    stream: TlsStream<TcpStream>,
    peer: SocketAddr,
    caller: Caller,
    place: Place,
    desk: Arc<Desk>,
) {
    let (limit, stays) = match caller {
        Caller::Reader => (READER_LIMIT, true),
        Caller::Node(_) | Caller::Stranger => (NODE_LIMIT, false),
    };
    let place = Arc::new(place);
    let answer = |request| {
        let (desk, caller, place) = (Arc::clone(&desk), caller.clone(), Arc::clone(&place));
        async move { desk.answer(&caller, place, request).await }
    };
    speak(stream, peer, limit, stays, answer).await;
}

/// With one that has no place: whatever is asked, it is told why, and the connection ends.
async fn refuse(stream: TlsStream<TcpStream>, peer: SocketAddr, caller: &Caller) {
    let answer = |_| {
        std::future::ready(match caller {
            Caller::Stranger => not_permitted(),
            Caller::Reader | Caller::Node(_) => later(
                StatusCode::SERVICE_UNAVAILABLE,
                "this agent answers as many callers as it can; try again in a few seconds",
                TRY_PLACE_AFTER,
            ),
        })
    };
    speak(stream, peer, REFUSAL_LIMIT, false, answer).await;
}

async fn speak<F: Future<Output = Answer>>(
    stream: TlsStream<TcpStream>,
    peer: SocketAddr,
    limit: Duration,
    stays: bool,
    answer: impl Fn(Request<Incoming>) -> F,
) {
    let service = service_fn(|request| {
        let answer = answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT.min(limit))
        .keep_alive(stays)
        .max_buf_size(READ_BUFFER)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(limit, serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%peer, error = %chain(&error), "A caller left."),
        Err(_) => tracing::debug!(%peer, "A caller took too long."),
    }
}

/// TLS that lets nobody in without a certificate of this authority.
fn server(files: &Files, pair: &Pair, authority: &Path) -> Result<ServerConfig, TlsError> {
    let clients = Arc::new(roots(files, authority)?);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(clients, provider)
        .build()
        .map_err(|_| TlsError::Authority { path: authority.to_owned() })?;
    serving(files, std::slice::from_ref(pair), verifier, &[b"http/1.1"])
}

// === impl Desk ===

impl Desk {
    async fn answer(&self, caller: &Caller, place: Arc<Place>, request: Request<Incoming>) -> Answer {
        let path = request.uri().path().to_owned();
        match (caller, request.method(), path.as_str()) {
            (Caller::Node(name), &Method::POST, NEIGHBOURS) => {
                self.take(name.clone(), place, request.into_body()).await
            }
            (Caller::Node(_) | Caller::Stranger, ..) => not_permitted(),
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

    /// Keeps what another node has to say.
    async fn take(&self, name: String, place: Arc<Place>, body: Incoming) -> Answer {
        let body = tokio::time::timeout(BODY_LIMIT, Limited::new(body, MAX_NEIGHBOUR_REPORT).collect()).await;
        let body = match body {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(_)) => return text(StatusCode::PAYLOAD_TOO_LARGE, "a report is no larger than 1 MiB"),
            Err(_) => return text(StatusCode::REQUEST_TIMEOUT, "the report did not come to its end"),
        };
        let (neighbours, root) = (Arc::clone(&self.neighbours), self.root.clone());
        let taken = tokio::task::spawn_blocking(move || {
            // A node that goes without its answer leaves its report in memory until this is done.
            let _place = place;
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
                respond(StatusCode::OK, "application/json", serde_json::json!({"nodes": names}).to_string())
            }
            _ => broken(),
        }
    }

    async fn neighbour(&self, name: String) -> Answer {
        let neighbours = Arc::clone(&self.neighbours);
        match tokio::task::spawn_blocking(move || neighbours.read(&name)).await {
            Ok(Some(envelope)) => respond(StatusCode::OK, "application/json", envelope),
            Ok(None) => text(StatusCode::NOT_FOUND, "this node has left no report here"),
            Err(_) => broken(),
        }
    }

    async fn metrics(&self) -> Answer {
        let (unwritten, report, spools) = (self.unwritten.bytes(), self.report.clone(), self.spools.clone());
        let page = tokio::task::spawn_blocking(move || {
            let bytes = unwritten.or_else(|| read_report(&report).ok());
            let last: Option<Envelope> = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            metrics::page(last.as_ref(), &spools)
        });
        match page.await {
            Ok(page) => respond(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page),
            Err(_) => broken(),
        }
    }

    /// The last report, as it lies on the disk, or would.
    async fn report(&self) -> Answer {
        if let Some(bytes) = self.unwritten.bytes() {
            return respond(StatusCode::OK, "application/json", bytes);
        }
        let path = self.report.clone();
        let read = tokio::task::spawn_blocking(move || read_report(&path));
        match read.await.map_err(io::Error::other).flatten() {
            Ok(bytes) => respond(StatusCode::OK, "application/json", bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                later(StatusCode::SERVICE_UNAVAILABLE, "there is no report yet", TRY_REPORT_AFTER)
            }
            Err(error) => {
                tracing::warn!(error = %error, "The last report cannot be read.");
                text(StatusCode::INTERNAL_SERVER_ERROR, "the last report cannot be read")
            }
        }
    }

    /// A new bundle, sent while it is collected.
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
                // A stream without its end tells the reader; one that is gone need not be told.
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

fn respond(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let body = Full::new(body.into()).map_err(|never: Infallible| match never {});
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

fn not_permitted() -> Answer {
    text(StatusCode::FORBIDDEN, &format!("this is for members of {}", READERS.join(", ")))
}

fn broken() -> Answer {
    text(StatusCode::INTERNAL_SERVER_ERROR, "this agent cannot answer; its log says why")
}

fn text(status: StatusCode, words: &str) -> Answer {
    respond(status, "text/plain; charset=utf-8", format!("{words}\n"))
}

fn later(status: StatusCode, words: &str, seconds: &'static str) -> Answer {
    let mut answer = text(status, words);
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(seconds));
    answer
}

#[cfg(test)]
mod tests;
