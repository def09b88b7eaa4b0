use std::path::PathBuf;

use reqwest::header::{CONTENT_RANGE, ETAG, HeaderMap, HeaderValue, IF_RANGE, LAST_MODIFIED, RANGE};
use reqwest::{Response, StatusCode};

use crate::client::{Rounds, Source, transport};
use crate::digest::Digest;
use crate::part::Part;
use crate::patience::Patience;
use crate::{FetchError, Fetcher};

/// A file to download.
#[derive(Clone, Debug)]
pub struct Order {
    /// URLs of the same file in order of preference.
    pub urls: Vec<String>,
    /// Its directory must exist.
    pub target: PathBuf,
    pub digest: Digest,
    pub mode: u32,
    pub max_bytes: u64,
    pub patience: Patience,
}

impl Fetcher {
    /// Downloads a file and returns its source.
    ///
    /// On success the complete file is on the disk and has the expected hash. On failure the target is unchanged.
    pub async fn file(
        &self,
        order: &Order,
        progress: &(dyn Fn(u64, Option<u64>) + Sync),
    ) -> Result<Source, FetchError> {
        let mut rounds = Rounds::new(&order.urls, &order.patience);
        loop {
            let url = rounds.next().await?;
            if rounds.outcome(self.file_at(url, order, progress)).await?.is_some() {
                return Ok(rounds.source());
            }
        }
    }

    async fn file_at(
        &self,
        url: &str,
        order: &Order,
        progress: &(dyn Fn(u64, Option<u64>) + Sync),
    ) -> Result<(), FetchError> {
        let mut part = Part::open(&order.target, order.digest.algorithm)?;
        match self.fill(&mut part, url, order, progress).await {
            Ok(()) => {
                let mode = order.mode;
                let published = tokio::task::spawn_blocking(move || part.publish(mode)).await;
                published.unwrap_or_else(|error| {
                    let source = std::io::Error::other(error);
                    Err(FetchError::Write { path: order.target.clone(), source })
                })
            }
            Err(error) => {
                if error.spoils_the_part() {
                    part.discard();
                }
                Err(error)
            }
        }
    }

    async fn fill(
        &self,
        part: &mut Part,
        url: &str,
        order: &Order,
        progress: &(dyn Fn(u64, Option<u64>) + Sync),
    ) -> Result<(), FetchError> {
        let too_long = || FetchError::TooLong { url: url.to_owned(), limit: order.max_bytes };
        let mut response = self.begin(part, url, order).await?;
        let resumed = part.length() > 0;
        let rest = response.content_length();
        let total = rest.map(|rest| part.length().saturating_add(rest));
        if total.is_some_and(|total| total > order.max_bytes) {
            return Err(too_long());
        }
        part.make_sure_of_room(rest.unwrap_or(0))?;
        progress(part.length(), total);
        loop {
            let chunk = tokio::time::timeout(order.patience.idle, response.chunk()).await;
            let seconds = order.patience.idle.as_secs();
            let chunk = chunk.map_err(|_| FetchError::Idle { url: url.to_owned(), seconds })?;
            let Some(chunk) = chunk.map_err(|source| match total {
                // The error of an interrupted connection.
                Some(expected) if source.is_body() || source.is_decode() => {
                    FetchError::Short { url: url.to_owned(), got: part.length(), expected }
                }
                _ => transport(url, source),
            })?
            else {
                break;
            };
            if part.length() + chunk.len() as u64 > order.max_bytes {
                return Err(too_long());
            }
            part.append(&chunk)?;
            progress(part.length(), total);
        }
        let found = part.digest();
        if found != order.digest {
            return Err(FetchError::WrongHash {
                url: url.to_owned(),
                algorithm: found.algorithm.name(),
                found: found.hex().to_owned(),
                expected: order.digest.hex().to_owned(),
                resumed,
            });
        }
        Ok(())
    }

    /// Returns the response to append: after the existing data if the server agrees, otherwise from the start.
    async fn begin(&self, part: &mut Part, url: &str, order: &Order) -> Result<Response, FetchError> {
        let idle = order.patience.idle;
        let mut headers = HeaderMap::new();
        let validator = part.validator(url).and_then(|text| HeaderValue::from_str(&text).ok());
        if let Some(validator) = validator {
            let range = HeaderValue::from_str(&format!("bytes={}-", part.length()));
            if let Ok(range) = range {
                headers.insert(RANGE, range);
                headers.insert(IF_RANGE, validator);
            }
        }
        let resumes = !headers.is_empty();
        let mut response = match self.get(url, headers, idle).await {
            // There is no data after the existing part, or the server is wrong: from the start.
            Err(FetchError::Status { status: 416, .. }) if resumes => {
                self.get(url, HeaderMap::new(), idle).await?
            }
            response => response?,
        };
        if response.status() == StatusCode::PARTIAL_CONTENT {
            if resumes && starts_at(&response) == Some(part.length()) {
                return Ok(response);
            }
            response = self.get(url, HeaderMap::new(), idle).await?;
            if response.status() == StatusCode::PARTIAL_CONTENT {
                return Err(FetchError::Status { url: url.to_owned(), status: response.status().as_u16() });
            }
        }
        part.restart(url, validator_of(&response).as_deref())?;
        Ok(response)
    }
}

/// Returns the validator for a range request: a strong entity tag, otherwise the time of the last change.
fn validator_of(response: &Response) -> Option<String> {
    let text = |name| response.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let tag = text(ETAG).filter(|tag| tag.starts_with('"'));
    tag.or_else(|| text(LAST_MODIFIED)).map(str::to_owned)
}

pub(crate) fn starts_at(response: &Response) -> Option<u64> {
    let range = response.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}
