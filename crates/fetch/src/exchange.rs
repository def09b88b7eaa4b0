//! One question with its credentials to one place, and its whole answer: nothing is tried again and no redirect is
//! followed, because a header that holds a password must not travel to where somebody else points.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use landfall_model::Secret;
use reqwest::Response;
use reqwest::header::{ACCEPT_ENCODING, HeaderValue};

use crate::client::transport;
use crate::digest::{Algorithm, Digest, Hasher};
use crate::{FetchError, Fetcher};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Post,
}

/// What is asked.
#[expect(missing_debug_implementations, reason = "its headers are credentials")]
pub struct Exchange {
    pub method: Method,
    pub url: String,
    pub headers: Vec<(&'static str, Secret<String>)>,
    pub body: Option<String>,
    /// For the head of the answer, and between two pieces of it.
    pub within: Duration,
    /// Bytes of the answer.
    pub limit: u64,
}

/// What was answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// Names in lower case; values that are no text are left out.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// An answer that was written to a file instead of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    pub answer: Answer,
    /// Of what was written; nothing was, unless the answer was a success.
    pub file: Option<(Digest, u64)>,
}

// === impl Exchange ===

impl Exchange {
    pub fn get(url: impl Into<String>, within: Duration, limit: u64) -> Self {
        Self { method: Method::Get, url: url.into(), headers: Vec::new(), body: None, within, limit }
    }

    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, Secret::new(value.into())));
        self
    }
}

// === impl Answer ===

impl Answer {
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

// === impl Fetcher ===

impl Fetcher {
    /// Asks once. Every answer is one, whatever its status.
    pub async fn exchange(&self, exchange: &Exchange) -> Result<Answer, FetchError> {
        let (mut answer, mut response) = self.begin_exchange(exchange).await?;
        while let Some(chunk) = next(&mut response, exchange).await? {
            if (answer.body.len() + chunk.len()) as u64 > exchange.limit {
                return Err(too_long(exchange));
            }
            answer.body.extend_from_slice(&chunk);
        }
        Ok(answer)
    }

    /// Asks once and writes a successful answer's body to a file, which is for the owner alone and on the disk when this
    /// returns. The caller gives it its final name.
    pub async fn exchange_to_file(&self, exchange: &Exchange, path: &Path) -> Result<Saved, FetchError> {
        let (answer, mut response) = self.begin_exchange(exchange).await?;
        if !answer.is_success() {
            return Ok(Saved { answer, file: None });
        }
        let failed = |source| FetchError::Write { path: path.to_owned(), source };
        let mut options = std::fs::OpenOptions::new();
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.write(true).create(true).truncate(true).open(path).map_err(failed)?;
        let mut hasher = Hasher::new(Algorithm::Sha256);
        let mut length = 0_u64;
        while let Some(chunk) = next(&mut response, exchange).await? {
            length += chunk.len() as u64;
            if length > exchange.limit {
                return Err(too_long(exchange));
            }
            hasher.add(&chunk);
            file.write_all(&chunk).map_err(failed)?;
        }
        file.sync_all().map_err(failed)?;
        Ok(Saved { answer, file: Some((hasher.finish(), length)) })
    }

    async fn begin_exchange(&self, exchange: &Exchange) -> Result<(Answer, Response), FetchError> {
        let request = match exchange.method {
            Method::Get => self.direct.get(&exchange.url),
            Method::Head => self.direct.head(&exchange.url),
            Method::Post => self.direct.post(&exchange.url),
        };
        let mut request = request.header(ACCEPT_ENCODING, "identity");
        for (name, value) in &exchange.headers {
            // A value that cannot be sent is left out; whoever wants it will say so.
            if let Ok(mut value) = HeaderValue::from_str(value.expose()) {
                value.set_sensitive(true);
                request = request.header(*name, value);
            }
        }
        if let Some(body) = &exchange.body {
            request = request.body(body.clone());
        }
        let response = tokio::time::timeout(exchange.within, request.send()).await;
        let response = response.map_err(|_| idle(exchange))?;
        let response = response.map_err(|source| transport(&exchange.url, source))?;
        let headers = response.headers().iter();
        let headers = headers.filter_map(|(name, value)| {
            value.to_str().ok().map(|value| (name.as_str().to_owned(), value.to_owned()))
        });
        let answer =
            Answer { status: response.status().as_u16(), headers: headers.collect(), body: Vec::new() };
        if response.content_length().is_some_and(|length| length > exchange.limit)
            && exchange.method != Method::Head
        {
            return Err(too_long(exchange));
        }
        Ok((answer, response))
    }
}

async fn next(response: &mut Response, exchange: &Exchange) -> Result<Option<Vec<u8>>, FetchError> {
    let chunk = tokio::time::timeout(exchange.within, response.chunk()).await;
    let chunk = chunk.map_err(|_| idle(exchange))?;
    let chunk = chunk.map_err(|source| transport(&exchange.url, source))?;
    Ok(chunk.map(|chunk| chunk.to_vec()))
}

fn idle(exchange: &Exchange) -> FetchError {
    FetchError::Idle { url: exchange.url.clone(), seconds: exchange.within.as_secs() }
}

fn too_long(exchange: &Exchange) -> FetchError {
    FetchError::TooLong { url: exchange.url.clone(), limit: exchange.limit }
}
