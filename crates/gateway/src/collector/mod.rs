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

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::http::uri::InvalidUri;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use landfall_model::identity::NodeIdentity;
use tokio::net::UnixStream;

use crate::body::BoxError;

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
    #[error("connect to the collector at `{path}`")]
    Connect { path: PathBuf, source: io::Error },
    #[error("the collector does not answer in time")]
    Late,
    #[error("speak with the collector")]
    Speak(#[source] BoxError),
    #[error("the collector answers {0}")]
    Refused(StatusCode),
}

/// A client of the collector.
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
    pub(crate) async fn bundle(
        &self,
        zstd: bool,
        since: Option<Timestamp>,
    ) -> Result<Response<Incoming>, AskError> {
        let since = since.map(|since| format!("{SINCE}{}", since.as_second()));
        let parameters: Vec<String> = zstd.then(|| ZSTD.to_owned()).into_iter().chain(since).collect();
        self.ask(&format!("{BUNDLE}?{}", parameters.join("&")), HEAD_LIMIT).await
    }

    /// Requests a report about the host, as JSON.
    pub(crate) async fn report(&self) -> Result<bytes::Bytes, AskError> {
        let reading = async { self.read(self.ask(REPORT, REPORT_LIMIT).await?, MAX_REPORT).await };
        tokio::time::timeout(REPORT_LIMIT, reading).await.map_err(|_| AskError::Late)?
    }

    /// Requests the identity of the host.
    pub(crate) async fn identity(&self) -> Result<NodeIdentity, AskError> {
        let reading = async { self.read(self.ask(IDENTITY, HEAD_LIMIT).await?, MAX_IDENTITY).await };
        let bytes = tokio::time::timeout(HEAD_LIMIT, reading).await.map_err(|_| AskError::Late)??;
        serde_json::from_slice(&bytes).map_err(|error| AskError::Speak(error.into()))
    }

    async fn read(&self, answer: Response<Incoming>, limit: usize) -> Result<bytes::Bytes, AskError> {
        let body = Limited::new(answer.into_body(), limit).collect().await.map_err(AskError::Speak)?;
        Ok(body.to_bytes())
    }

    /// Connects to the collector, and waits for one that starts or restarts.
    async fn connect(&self) -> Result<UnixStream, AskError> {
        let until = tokio::time::Instant::now() + CONNECT_LIMIT;
        loop {
            let connecting = tokio::time::timeout_at(until, UnixStream::connect(&self.socket));
            match connecting.await.map_err(|_| AskError::Late)? {
                Ok(stream) => return Ok(stream),
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
                        && tokio::time::Instant::now() + CONNECT_PAUSE < until =>
                {
                    tokio::time::sleep(CONNECT_PAUSE).await;
                }
                Err(source) => return Err(AskError::Connect { path: self.socket.clone(), source }),
            }
        }
    }

    async fn ask(&self, path: &str, within: Duration) -> Result<Response<Incoming>, AskError> {
        let stream = self.connect().await?;
        let speak = |error: hyper::Error| AskError::Speak(error.into());
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(speak)?;
        tokio::spawn(async move {
            // The reader of the response gets the connection's error.
            let _ = connection.await;
        });
        let mut request = Request::new(Empty::<bytes::Bytes>::new());
        *request.uri_mut() = path.parse().map_err(|error: InvalidUri| AskError::Speak(error.into()))?;
        let sending = tokio::time::timeout(within, sender.send_request(request));
        let answer = sending.await.map_err(|_| AskError::Late)?.map_err(speak)?;
        if answer.status() == StatusCode::OK { Ok(answer) } else { Err(AskError::Refused(answer.status())) }
    }
}
