//! A connection to an agent: sequential requests with responses bounded in size and time.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use http_body_util::{BodyExt as _, BodyStream, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::PulledAgent;
use super::way::{Way, WayError};
use crate::bundles::{LEAST, MINUTE};
use crate::name::NodeName;
use crate::receive::MAX_REPORT;

/// Timeout from the dial to the end of the handshake, and from each request to the end of its response.
const PATIENCE: Duration = Duration::from_secs(15);
/// Timeout of a bundle download: a failing machine collects the bundle while sending it.
const BUNDLE_PATIENCE: Duration = Duration::from_secs(1800);
/// Maximum pause within a bundle. A node that failed silently would otherwise occupy its slot until the timeout.
pub(super) const BUNDLE_PAUSE: Duration = Duration::from_secs(60);
/// First period of the minimum rate; later periods last one minute, as for pushed bundles. Collectors wait for
/// hanging commands, and such a machine sends little in a minute.
pub(super) const COLLECTING: Duration = Duration::from_secs(180);
/// Maximum number of neighbor reports; equals the limit of an agent.
pub(super) const MAX_NEIGHBOURS: usize = 64;
/// Maximum length of a logged reason.
const MAX_REASON: usize = 200;

/// An open connection to an agent.
pub(super) struct Line {
    host: String,
    certificate: Vec<u8>,
    sender: SendRequest<Empty<Bytes>>,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum TalkError {
    #[error("there is no way to it")]
    Way(#[source] WayError),
    #[error("cannot agree on TLS with it")]
    Tls(#[source] io::Error),
    #[error("it does not speak HTTP")]
    Http(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("its answer is longer than {MAX_REPORT} bytes, or was cut off")]
    Answer(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("it answered {status}: {reason}")]
    Refused { status: u16, reason: String },
    #[error("it did not answer within {} s", PATIENCE.as_secs())]
    Late,
    #[error("nothing came for {} s", BUNDLE_PAUSE.as_secs())]
    Silent,
    #[error("less than {} KiB of its bundle came in a minute", LEAST >> 10)]
    Slow,
    #[error("its list of neighbours cannot be read")]
    Neighbours(#[source] serde_json::Error),
}

#[derive(Deserialize)]
struct NeighbourList {
    nodes: Vec<String>,
}

// === impl Line ===

impl Line {
    pub(super) async fn open(
        agent: &PulledAgent,
        way: &Way,
        tls: Arc<ClientConfig>,
    ) -> Result<Self, TalkError> {
        let open = async {
            let stream = way.open(agent).await.map_err(TalkError::Way)?;
            let name = ServerName::try_from(agent.host.clone());
            let name = name.map_err(|error| TalkError::Tls(io::Error::other(error)))?;
            TlsConnector::from(tls).connect(name, stream).await.map_err(TalkError::Tls)
        };
        let stream = tokio::time::timeout(PATIENCE, open).await.map_err(|_| TalkError::Late)??;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let certificate = certificate.map(|certificate| certificate.to_vec()).unwrap_or_default();
        Self::over(stream, agent.place(), certificate).await
    }

    /// Performs the HTTP handshake over an open stream.
    pub(super) async fn over(
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        host: String,
        certificate: Vec<u8>,
    ) -> Result<Self, TalkError> {
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(http)?;
        // The task ends with the sender, which returns its errors.
        tokio::spawn(connection);
        Ok(Self { host, certificate, sender })
    }

    /// Returns the agent's verified certificate.
    pub(super) fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// Returns the report at this path, or `None` if there is none yet.
    pub(super) async fn report(&mut self, path: &str) -> Result<Option<Bytes>, TalkError> {
        match self.get(path).await {
            Ok(report) => Ok(Some(report)),
            Err(TalkError::Refused { status: 404 | 503, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the nodes whose reports the agent stores; invalid node names are omitted.
    pub(super) async fn neighbours(&mut self) -> Result<Vec<NodeName>, TalkError> {
        let list = match self.get("/neighbours").await {
            Ok(list) => list,
            // An older agent without this path.
            Err(TalkError::Refused { status: 404, .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let list: NeighbourList = serde_json::from_slice(&list).map_err(TalkError::Neighbours)?;
        Ok(list.nodes.into_iter().filter_map(|name| NodeName::new(name).ok()).take(MAX_NEIGHBOURS).collect())
    }

    /// Requests a new bundle and returns it as a stream.
    pub(super) async fn bundle(
        mut self,
    ) -> Result<impl Stream<Item = Result<Bytes, TalkError>> + Unpin, TalkError> {
        let asking = async {
            let answer = self.send("/bundle").await?;
            if answer.status().is_success() { Ok(answer) } else { Err(refused(answer).await?) }
        };
        let answer = tokio::time::timeout(PATIENCE, asking).await.map_err(|_| TalkError::Late)??;
        let pieces = BodyStream::new(answer.into_body());
        let begun = (pieces, self, Instant::now() + COLLECTING, 0);
        Ok(Box::pin(futures_util::stream::unfold(
            begun,
            |(mut pieces, line, mut until, mut came)| async move {
                use futures_util::StreamExt as _;
                let pause = Instant::now() + BUNDLE_PAUSE;
                loop {
                    // A minute is checked only after it ends, while the hub waits for the agent. A slow hub
                    // therefore does not abort the download.
                    let Ok(piece) = tokio::time::timeout_at(until.min(pause), pieces.next()).await else {
                        if until < pause && came >= LEAST {
                            (until, came) = (Instant::now() + MINUTE, 0);
                            continue;
                        }
                        let error = if until < pause { TalkError::Slow } else { TalkError::Silent };
                        return Some((Err(error), (pieces, line, until, came)));
                    };
                    match piece? {
                        Ok(frame) => {
                            // Trailers are ignored.
                            if let Ok(data) = frame.into_data() {
                                came += data.len();
                                return Some((Ok(data), (pieces, line, until, came)));
                            }
                        }
                        Err(error) => return Some((Err(http(error)), (pieces, line, until, came))),
                    }
                }
            },
        )))
    }

    async fn get(&mut self, path: &str) -> Result<Bytes, TalkError> {
        let asking = async {
            let answer = self.send(path).await?;
            if answer.status() == StatusCode::OK { whole(answer).await } else { Err(refused(answer).await?) }
        };
        tokio::time::timeout(PATIENCE, asking).await.map_err(|_| TalkError::Late)?
    }

    async fn send(&mut self, path: &str) -> Result<Response<Incoming>, TalkError> {
        let request = Request::get(path).header("host", &self.host).body(Empty::new());
        let request = request.map_err(|error| TalkError::Http(Box::new(error)))?;
        self.sender.ready().await.map_err(http)?;
        self.sender.send_request(request).await.map_err(http)
    }
}

async fn whole(answer: Response<Incoming>) -> Result<Bytes, TalkError> {
    let body = Limited::new(answer.into_body(), MAX_REPORT).collect().await;
    Ok(body.map_err(TalkError::Answer)?.to_bytes())
}

/// Converts an error response to one line.
async fn refused(answer: Response<Incoming>) -> Result<TalkError, TalkError> {
    let status = answer.status().as_u16();
    let body = whole(answer).await?;
    let reason = String::from_utf8_lossy(&body);
    let reason = reason.trim().chars().filter(|c| !c.is_control()).take(MAX_REASON).collect();
    Ok(TalkError::Refused { status, reason })
}

fn http(error: hyper::Error) -> TalkError {
    TalkError::Http(Box::new(error))
}

/// Limits the duration of `work` to the timeout of a bundle.
pub(super) async fn in_time<T>(work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(BUNDLE_PATIENCE, work).await.ok()
}
