//! A connection to an agent: sequential requests with responses bounded in size and time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use hyper::{Request, StatusCode};
use landfall_net::http::{self, Connection, HttpError, Limits};
use rustls::ClientConfig;
use serde::Deserialize;
use tokio::time::Instant;

use super::PulledAgent;
use super::way::{Way, WayError};
use crate::bundles::{LEAST, MINUTE};
use crate::name::NodeName;
use crate::receive::MAX_REPORT;

/// Timeout from the dial to the end of the handshake, and from each request to the end of its response.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);
/// Timeout of a bundle download: a failing machine collects the bundle while sending it.
const BUNDLE_PATIENCE: Duration = Duration::from_secs(1800);
/// Maximum pause within a bundle. A node that failed silently would otherwise occupy its slot until the timeout.
pub(super) const BUNDLE_PAUSE: Duration = Duration::from_secs(60);
/// First period of the minimum rate; later periods last one minute, as for pushed bundles. Collectors wait for
/// hanging commands, and such a machine sends little in a minute.
pub(super) const COLLECTING: Duration = Duration::from_secs(180);
/// Maximum number of neighbor reports; equals the limit of an agent.
pub(super) const MAX_NEIGHBOURS: usize = 64;

/// An open connection to an agent.
pub(super) struct Line(Connection);

#[derive(Debug, thiserror::Error)]
pub(super) enum TalkError {
    #[error("there is no way to it")]
    Way(#[from] WayError),
    #[error(transparent)]
    Http(#[from] HttpError),
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
        let place = agent.place();
        let connection = http::in_time(&place, PATIENCE, async {
            let stream = way.open(agent).await?;
            Ok::<_, TalkError>(Connection::over_tls(stream, tls, &agent.host, place.clone(), PATIENCE).await?)
        });
        Ok(Self(connection.await?))
    }

    /// Uses an open stream to the agent at `place`.
    #[cfg(test)]
    pub(super) async fn over(stream: http::BoxStream, place: String) -> Result<Self, TalkError> {
        Ok(Self(Connection::over(stream, place).await?))
    }

    /// Returns the agent's verified certificate.
    pub(super) fn certificate(&self) -> &[u8] {
        self.0.certificate()
    }

    /// Returns the report at this path, or `None` if there is none yet.
    pub(super) async fn report(&mut self, path: &str) -> Result<Option<Bytes>, TalkError> {
        match self.get(path).await {
            Ok(report) => Ok(Some(report)),
            Err(HttpError::Status {
                status: StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE,
                ..
            }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the nodes whose reports the agent stores; invalid node names are omitted.
    pub(super) async fn neighbours(&mut self) -> Result<Vec<NodeName>, TalkError> {
        let list = match self.get("/neighbours").await {
            Ok(list) => list,
            // An older agent without this path.
            Err(HttpError::Status { status: StatusCode::NOT_FOUND, .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let list: NeighbourList = serde_json::from_slice(&list).map_err(TalkError::Neighbours)?;
        Ok(list.nodes.into_iter().filter_map(|name| NodeName::new(name).ok()).take(MAX_NEIGHBOURS).collect())
    }

    /// Requests a new bundle and returns it as a stream.
    pub(super) async fn bundle(
        mut self,
    ) -> Result<impl Stream<Item = Result<Bytes, TalkError>> + Unpin, TalkError> {
        let request = Request::get("/bundle").body(http::empty()).map_err(HttpError::Request)?;
        let answer = self.0.send(request, PATIENCE).await?.success(PATIENCE).await?;
        let begun = (answer, self, Instant::now() + COLLECTING, 0);
        Ok(Box::pin(stream::unfold(begun, |(mut answer, line, mut until, mut came)| async move {
            let pause = Instant::now() + BUNDLE_PAUSE;
            let piece = loop {
                // A minute is checked only after it ends, while the hub waits for the agent. A slow hub therefore does
                // not abort the download.
                let idle = until.min(pause).saturating_duration_since(Instant::now());
                match answer.piece(idle).await {
                    Err(HttpError::Late { .. }) if until < pause && came >= LEAST => {
                        (until, came) = (Instant::now() + MINUTE, 0);
                    }
                    Err(HttpError::Late { .. }) if until < pause => break Err(TalkError::Slow),
                    Err(HttpError::Late { .. }) => break Err(TalkError::Silent),
                    piece => break piece.map_err(TalkError::Http),
                }
            };
            let piece = piece.transpose()?;
            came += piece.as_ref().map_or(0, Bytes::len);
            Some((piece, (answer, line, until, came)))
        })))
    }

    async fn get(&mut self, path: &str) -> Result<Bytes, HttpError> {
        let request = Request::get(path).body(http::empty())?;
        self.0.exchange(request, Limits { within: PATIENCE, answer: MAX_REPORT }).await
    }
}

/// Limits the duration of `work` to the timeout of a bundle.
pub(super) async fn in_time<T>(work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(BUNDLE_PATIENCE, work).await.ok()
}
