//! Bodies of requests, with a bound and a deadline.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use crate::problem::Problem;
use crate::unpack::Packing;

/// How long a report or a batch may take to arrive.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a bundle may pause.
const PAUSE: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error("the connection broke")]
    Connection(#[source] axum::Error),
    #[error("nothing came for {} s", PAUSE.as_secs())]
    Silent,
}

pub(super) async fn whole(body: Body, limit: usize) -> Result<Bytes, Problem> {
    let collected = tokio::time::timeout(PATIENCE, Limited::new(body, limit).collect()).await;
    match collected {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(Problem::new(413, "Too large", format!("the body is larger than {limit} bytes")))
        }
        Ok(Err(_)) => Err(Problem::new(400, "Not understood", "the body ended early")),
        Err(_) => Err(Problem::new(408, "Too slow", "the body took too long")),
    }
}

pub(super) fn stream(body: Body) -> impl Stream<Item = Result<Bytes, Broken>> + Unpin {
    let chunks = futures_util::stream::unfold(Some(body.into_data_stream()), async |chunks| {
        let mut chunks = chunks?;
        match tokio::time::timeout(PAUSE, chunks.next()).await {
            Ok(Some(Ok(chunk))) => Some((Ok(chunk), Some(chunks))),
            Ok(Some(Err(error))) => Some((Err(Broken::Connection(error)), None)),
            Ok(None) => None,
            Err(_) => Some((Err(Broken::Silent), None)),
        }
    });
    Box::pin(chunks)
}

pub(super) fn packing(headers: &HeaderMap) -> Result<Packing, Problem> {
    let name = headers.get(header::CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?"));
    Ok(Packing::named(name)?)
}
