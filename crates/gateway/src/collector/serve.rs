use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use jiff::Timestamp;
use landfall_diagnose::{Engine, RuleSet};
use landfall_evidence::bundle::{BundleWriter, Packing, bundle_id};
use landfall_evidence::collect::{Host, Plan, collect};
use landfall_evidence::read::{self, Input};
use landfall_model::chain;
use landfall_net::Pieces;
use landfall_net::serve::{Accept, Handler, Limits, Peer, RequestBody, ResponseBody, Session};
use tokio::net::UnixListener;
use tokio::sync::{Mutex, Semaphore, mpsc};

use super::{BUNDLE, BUNDLE_ID, IDENTITY, REPORT, SINCE, ZSTD};
use crate::answer::{Answer, failure, json};
use crate::body::{Body, BoxError};

/// Queued pieces of a bundle. Collection pauses while the queue is full.
const PIECES: usize = 4;
/// Limits for one gateway as the only client.
const LIMITS: Limits = Limits {
    connections: 16,
    first_request: Duration::from_secs(30),
    idle: Duration::from_secs(30),
    stalled_write: Duration::from_secs(300),
    ..Limits::SMALL
};

#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    #[error("open the root folder `{path}`")]
    Root { path: PathBuf, source: io::Error },
    #[error("read what is to be collected")]
    Plan(#[source] landfall_evidence::collect::PlanError),
    #[error("prepare the built-in rules")]
    Rules(#[source] BoxError),
    #[error("listen on `{path}`")]
    Listen { path: PathBuf, source: io::Error },
    #[error("`{0}` exists and is not a socket")]
    NotASocket(PathBuf),
}

struct Collector {
    root: PathBuf,
    engine: Arc<Engine>,
    /// One bundle at a time: collecting loads a host that may already be in trouble.
    bundling: Arc<Semaphore>,
    reporting: Mutex<()>,
}

/// Serves bundles and reports of the host below `root` on the socket, until `until` resolves.
pub async fn serve(
    socket: &Path,
    root: &Path,
    until: impl Future<Output = ()>,
) -> Result<(), CollectorError> {
    // Every configuration error must show before the first connection is accepted.
    open(root)?;
    let rules = RuleSet::embedded().map_err(|error| CollectorError::Rules(error.into()))?;
    let engine = Engine::new(rules).map_err(|error| CollectorError::Rules(error.into()))?;
    let collector = Arc::new(Collector {
        root: root.to_owned(),
        engine: Arc::new(engine),
        bundling: Arc::new(Semaphore::new(1)),
        reporting: Mutex::new(()),
    });
    let listener = listen(socket)?;
    tracing::info!(socket = %socket.display(), "collector listening");
    landfall_net::serve::serve(Accept::Unix(listener), LIMITS, collector, until).await;
    // The next collector replaces a socket that remains.
    let _ = std::fs::remove_file(socket);
    Ok(())
}

fn listen(path: &Path) -> Result<UnixListener, CollectorError> {
    let failed = |source| CollectorError::Listen { path: path.to_owned(), source };
    match std::fs::symlink_metadata(path) {
        Ok(there) if there.file_type().is_socket() => std::fs::remove_file(path).map_err(failed)?,
        Ok(_) => return Err(CollectorError::NotASocket(path.to_owned())),
        Err(_) => {}
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let listener = UnixListener::bind(path).map_err(failed)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(listener)
}

fn open(root: &Path) -> Result<(Host, Plan), CollectorError> {
    let host = Host::at(root).map_err(|source| CollectorError::Root { path: root.to_owned(), source })?;
    let plan = Plan::of(&host).map_err(CollectorError::Plan)?;
    Ok((host, plan))
}

impl Handler for Collector {
    type State = ();

    /// Accepts only processes of root and of this process's user, whatever the permissions of the directory allow.
    fn open(&self, peer: Peer) -> Option<Session<()>> {
        let own = rustix::process::geteuid().as_raw();
        if !peer.uid.is_some_and(|uid| uid == 0 || uid == own) {
            tracing::warn!(uid = peer.uid, "connection of another user rejected");
            return None;
        }
        Some(Session::new(()))
    }

    fn handle<'h>(
        &'h self,
        _: &'h Arc<()>,
        request: Request<RequestBody>,
    ) -> Pin<Box<dyn Future<Output = Response<ResponseBody>> + Send + 'h>> {
        Box::pin(async move { self.answer(request).await.map(BodyExt::boxed_unsync) })
    }
}

// === impl Collector ===

impl Collector {
    async fn answer(&self, request: Request<RequestBody>) -> Answer {
        match request.uri().path() {
            BUNDLE => self.bundle(request.uri().query().unwrap_or_default()),
            REPORT => self.report().await,
            IDENTITY => match Host::at(&self.root) {
                Ok(host) => json(&host.identity()),
                Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
            },
            _ => failure(StatusCode::NOT_FOUND, "a collector has `/bundle`, `/report` and `/identity`"),
        }
    }

    fn bundle(&self, query: &str) -> Answer {
        let packing = if query.split('&').any(|part| part == ZSTD) { Packing::Zstd } else { Packing::Gzip };
        let since = query.split('&').find_map(|part| part.strip_prefix(SINCE));
        let since = since.map(|seconds| seconds.parse().ok().and_then(|at| Timestamp::from_second(at).ok()));
        if since == Some(None) {
            return failure(StatusCode::BAD_REQUEST, "`since` is not a time");
        }
        let Ok(turn) = Arc::clone(&self.bundling).try_acquire_owned() else {
            return failure(StatusCode::TOO_MANY_REQUESTS, "a bundle is being made");
        };
        let (host, plan) = match open(&self.root) {
            Ok(opened) => opened,
            Err(error) => return failure(StatusCode::INTERNAL_SERVER_ERROR, &chain(&error).to_string()),
        };
        let plan = match since.flatten() {
            Some(since) => plan.since(since),
            None => plan,
        };
        let started = Timestamp::now();
        let id = bundle_id(started);
        let (sender, pieces) = mpsc::channel(PIECES);
        let mut answer = Response::new(Body::Fed(pieces));
        let kind = match packing {
            Packing::Gzip => "application/gzip",
            Packing::Zstd => "application/zstd",
        };
        answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        if let Ok(id) = HeaderValue::from_str(&id) {
            answer.headers_mut().insert(HeaderName::from_static(BUNDLE_ID), id);
        }
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let out = Pieces::new(sender.clone());
            let mut bundle = BundleWriter::new(out, packing, &id, host.identity(), started);
            let made = collect(host, &plan, &mut bundle, &|_| {})
                .map_err(|error| chain(&error).to_string())
                .and_then(|()| bundle.finish(Timestamp::now()).map_err(|error| error.to_string()))
                .and_then(|mut finished| {
                    io::Write::flush(&mut finished.out).map_err(|error| error.to_string())
                });
            if let Err(error) = made {
                tracing::warn!(error, "a bundle was cut short");
                // A reader that is still connected sees a truncated stream; the send fails if it has disconnected.
                let _ = sender.blocking_send(Err(error.into()));
            }
        });
        answer
    }

    async fn report(&self) -> Answer {
        let _one = self.reporting.lock().await;
        let (host, plan) = match open(&self.root) {
            Ok(opened) => opened,
            Err(error) => return failure(StatusCode::INTERNAL_SERVER_ERROR, &chain(&error).to_string()),
        };
        let engine = Arc::clone(&self.engine);
        let made = tokio::task::spawn_blocking(move || {
            let machine = Input::Machine { host, plan };
            read::diagnose(&engine, vec![machine], &|_| {}).map_err(|error| chain(&error).to_string())
        });
        match made.await {
            Ok(Ok(report)) => json(&report),
            Ok(Err(error)) => failure(StatusCode::INTERNAL_SERVER_ERROR, &error),
            Err(_) => failure(StatusCode::INTERNAL_SERVER_ERROR, "the report could not be made"),
        }
    }
}
