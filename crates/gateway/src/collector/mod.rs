//! The collector: the process that reads the host.
//!
//! It serves HTTP on a Unix socket and has no access to the key of the front proxy. The gateway starts a collector, or
//! uses the socket of one that runs elsewhere, such as on the host of its container.

mod serve;
mod start;

use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;
use std::time::Duration;

use hyper::Request;
use hyper::header::HOST;
use jiff::Timestamp;
use landfall_model::identity::NodeIdentity;
use landfall_net::http::{self, Answer, Body, Connection, HttpError, Limits};
use tokio::net::UnixStream;
use tokio::time::Instant;

pub use self::serve::{CollectorError, serve};
pub(crate) use self::start::{Started, start};

/// Paths of the collector.
pub(crate) const BUNDLE: &str = "/bundle";
/// Query parameters of a bundle.
pub(crate) const ZSTD: &str = "packing=zstd";
pub(crate) const SINCE: &str = "since=";
pub(crate) const REPORT: &str = "/report";
pub(crate) const IDENTITY: &str = "/identity";
/// Response header with the ID of a bundle.
pub(crate) const BUNDLE_ID: &str = "landfall-bundle";

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Interval between attempts to connect; a starting collector is ready within a few of them.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// Timeout for the response head; only a report takes longer.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Timeout for a report: reading a complete host is slow.
const REPORT_LIMIT: Duration = Duration::from_secs(300);
const MAX_REPORT: usize = 64 * 1024 * 1024;
const MAX_IDENTITY: usize = 64 * 1024;

/// Failure of a request to the collector.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("cannot read the identity of the host")]
    Identity(#[source] serde_json::Error),
}

#[derive(Clone, Debug)]
pub(crate) struct Collector {
    socket: PathBuf,
}

// === impl Collector ===

impl Collector {
    pub(crate) fn at(socket: PathBuf) -> Self {
        Self { socket }
    }

    /// Returns whether the socket exists. Every probe calls this, so that it sends no request to the collector.
    pub(crate) fn is_there(&self) -> bool {
        std::fs::metadata(&self.socket).is_ok_and(|socket| socket.file_type().is_socket())
    }

    /// Requests a bundle, which the collector streams while it collects.
    pub(crate) async fn bundle(&self, zstd: bool, since: Option<Timestamp>) -> Result<Answer, AskError> {
        let since = since.map(|since| format!("{SINCE}{}", since.as_second()));
        let parameters: Vec<String> = zstd.then(|| ZSTD.to_owned()).into_iter().chain(since).collect();
        let request = request(&format!("{BUNDLE}?{}", parameters.join("&")))?;
        Ok(self.connect().await?.send(request, HEAD_LIMIT).await?.success(HEAD_LIMIT).await?)
    }

    /// Requests a report about the host, as JSON.
    pub(crate) async fn report(&self) -> Result<bytes::Bytes, AskError> {
        self.read(REPORT, Limits { within: REPORT_LIMIT, answer: MAX_REPORT }).await
    }

    /// Requests the identity of the host.
    pub(crate) async fn identity(&self) -> Result<NodeIdentity, AskError> {
        let bytes = self.read(IDENTITY, Limits { within: HEAD_LIMIT, answer: MAX_IDENTITY }).await?;
        serde_json::from_slice(&bytes).map_err(AskError::Identity)
    }

    async fn read(&self, path: &str, limits: Limits) -> Result<bytes::Bytes, AskError> {
        Ok(self.connect().await?.exchange(request(path)?, limits).await?)
    }

    /// Connects to the collector, and waits for one that starts or restarts.
    async fn connect(&self) -> Result<Connection, HttpError> {
        let to = format!("the collector at `{}`", self.socket.display());
        let until = Instant::now() + CONNECT_LIMIT;
        let stream = http::in_time(&to, CONNECT_LIMIT, async {
            loop {
                match UnixStream::connect(&self.socket).await {
                    Err(error)
                        if matches!(
                            error.kind(),
                            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
                        ) && Instant::now() + CONNECT_PAUSE < until =>
                    {
                        tokio::time::sleep(CONNECT_PAUSE).await;
                    }
                    stream => {
                        return stream.map_err(|source| HttpError::Unreachable { to: to.clone(), source });
                    }
                }
            }
        });
        Connection::over(Box::new(stream.await?), to.clone()).await
    }
}

fn request(path: &str) -> Result<Request<Body>, HttpError> {
    Ok(Request::get(path).header(HOST, "collector").body(http::empty())?)
}
