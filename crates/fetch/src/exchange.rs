//! One request with its credentials to one URL, and its complete answer.
//!
//! Nothing is retried and no redirect is followed. A header or a query with a password must not be sent to a URL that
//! another party chose.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use landfall_model::Secret;
use landfall_net::http;
use reqwest::Response;
use reqwest::header::{ACCEPT_ENCODING, CONTENT_LENGTH, HeaderValue, IF_RANGE, RANGE};

use crate::client::transport;
use crate::digest::{Algorithm, Digest, Hasher};
use crate::file::starts_at;
use crate::part::Part;
use crate::{FetchError, Fetcher};

/// Size limit for the body of an error response in place of a file: one page of text.
const MAX_WORDS: usize = 64 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Head,
    Post,
    Put,
    Delete,
}

/// The body of the request.
#[derive(Clone, Debug)]
pub enum Body {
    Bytes(Vec<u8>),
    /// Read while it is sent. The file must keep its stated length: with fewer bytes the request fails, and
    /// additional bytes are ignored.
    File {
        path: PathBuf,
        length: u64,
    },
}

/// The start of a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    Anew,
    /// Resumes an interrupted download if there is one, and if the server confirms the same content by a strong
    /// entity tag. Otherwise the download starts from scratch. Data of an interrupted download stays beside the file.
    WhereCut,
}

/// A request.
#[expect(missing_debug_implementations, reason = "its headers are credentials")]
pub struct Exchange {
    pub method: Method,
    /// The URL as shown in errors.
    pub url: String,
    /// The rest of the query, for stores that expect a password there: sent, but never part of an error.
    pub secret_query: Option<Secret<String>>,
    pub headers: Vec<(&'static str, Secret<String>)>,
    pub body: Option<Body>,
    /// Timeout for the head of the answer, and between two chunks of it.
    pub within: Duration,
    /// Size limit of the answer, in bytes.
    pub limit: u64,
    /// For an answer that is written to a file.
    pub begin: Begin,
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    /// Names in lower case; values that are not text are left out.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// An answer that was written to a file instead of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Its body is empty, or the beginning of an error response.
    pub answer: Answer,
    /// Hash and length of the file; `None` unless the answer was a success.
    pub file: Option<(Digest, u64)>,
}

// === impl Exchange ===

impl Exchange {
    pub fn get(url: impl Into<String>, within: Duration, limit: u64) -> Self {
        Self {
            method: Method::Get,
            url: url.into(),
            secret_query: None,
            headers: Vec::new(),
            body: None,
            within,
            limit,
            begin: Begin::Anew,
        }
    }

    /// The complete URL.
    fn address(&self) -> Secret<String> {
        let Some(query) = &self.secret_query else { return Secret::new(self.url.clone()) };
        let separator = if self.url.contains('?') { '&' } else { '?' };
        Secret::new(format!("{}{separator}{}", self.url, query.expose()))
    }

    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, Secret::new(value.into())));
        self
    }
}

// === impl Body ===

impl From<String> for Body {
    fn from(text: String) -> Self {
        Self::Bytes(text.into_bytes())
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
    /// Sends the request once. Every status is returned as an answer.
    pub async fn exchange(&self, exchange: &Exchange) -> Result<Answer, FetchError> {
        let (mut answer, mut response) = self.begin_exchange(exchange, None).await?;
        while let Some(chunk) = next(&mut response, exchange).await? {
            if (answer.body.len() + chunk.len()) as u64 > exchange.limit {
                return Err(too_long(exchange));
            }
            answer.body.extend_from_slice(&chunk);
        }
        Ok(answer)
    }

    /// Sends the request once and writes the body of a successful answer to a file.
    ///
    /// The file is readable by its owner only and is on the disk when this returns. The caller gives it its final
    /// name.
    pub async fn exchange_to_file(&self, exchange: &Exchange, path: &Path) -> Result<Saved, FetchError> {
        if exchange.begin == Begin::WhereCut {
            return self.resume_to_file(exchange, path).await;
        }
        let (mut answer, mut response) = self.begin_exchange(exchange, None).await?;
        if !answer.is_success() {
            answer.body = words(&mut response, exchange).await;
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

    async fn resume_to_file(&self, exchange: &Exchange, path: &Path) -> Result<Saved, FetchError> {
        let mut part = Part::open(path, Algorithm::Sha256)?;
        let tag = part.validator(&exchange.url);
        let after = tag.as_ref().map(|tag| (part.length(), tag.as_str()));
        let (mut answer, mut response) = self.begin_exchange(exchange, after).await?;
        // The file is complete: an earlier process ended before it recorded that.
        let end =
            answer.header("content-range").and_then(|range| range.strip_prefix("bytes */")?.parse().ok());
        let is_whole = answer.status == 416 && tag.is_some() && end == Some(part.length());
        if !is_whole {
            if !answer.is_success() {
                answer.body = words(&mut response, exchange).await;
                return Ok(Saved { answer, file: None });
            }
            let goes_on = tag.is_some() && starts_at(&response) == Some(part.length());
            match answer.status {
                206 if goes_on => {}
                206 => return Err(FetchError::Status { url: exchange.url.clone(), status: 206 }),
                _ => {
                    let tag = answer.header("etag").filter(|tag| tag.starts_with('"'));
                    part.restart(&exchange.url, tag)?;
                }
            }
            while let Some(chunk) = next(&mut response, exchange).await? {
                if part.length() + chunk.len() as u64 > exchange.limit {
                    part.discard();
                    return Err(too_long(exchange));
                }
                part.append(&chunk)?;
            }
        }
        let file = Some((part.digest(), part.length()));
        part.publish(0o600)?;
        Ok(Saved { answer, file })
    }

    /// `after` is the length of the existing data, with its entity tag.
    async fn begin_exchange(
        &self,
        exchange: &Exchange,
        after: Option<(u64, &str)>,
    ) -> Result<(Answer, Response), FetchError> {
        let address = exchange.address();
        let request = match exchange.method {
            Method::Get => self.direct.get(address.expose()),
            Method::Head => self.direct.head(address.expose()),
            Method::Post => self.direct.post(address.expose()),
            Method::Put => self.direct.put(address.expose()),
            Method::Delete => self.direct.delete(address.expose()),
        };
        let mut request = request.header(ACCEPT_ENCODING, "identity");
        for (name, value) in &exchange.headers {
            // An invalid header value is left out; the server will report the missing header.
            if let Ok(mut value) = HeaderValue::from_str(value.expose()) {
                value.set_sensitive(true);
                request = request.header(*name, value);
            }
        }
        if let Some((length, tag)) = after {
            request = request.header(RANGE, format!("bytes={length}-")).header(IF_RANGE, tag);
        }
        match &exchange.body {
            // Sent for an empty body as well, because some servers require it.
            Some(Body::Bytes(bytes)) => {
                request = request.header(CONTENT_LENGTH, bytes.len()).body(bytes.clone());
            }
            Some(Body::File { path, length }) => {
                let file =
                    File::open(path).map_err(|source| FetchError::Read { path: path.clone(), source })?;
                let body = reqwest::Body::wrap(http::file(file, *length));
                request = request.header(CONTENT_LENGTH, *length).body(body);
            }
            None => {}
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

/// Returns the body of an error response, as far as it is short and arrives: the status is known already.
async fn words(response: &mut Response, exchange: &Exchange) -> Vec<u8> {
    let mut words = Vec::new();
    while let Ok(Some(chunk)) = next(response, exchange).await {
        let room = MAX_WORDS.saturating_sub(words.len());
        words.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if room <= chunk.len() {
            break;
        }
    }
    words
}

fn idle(exchange: &Exchange) -> FetchError {
    FetchError::Idle { url: exchange.url.clone(), seconds: exchange.within.as_secs() }
}

fn too_long(exchange: &Exchange) -> FetchError {
    FetchError::TooLong { url: exchange.url.clone(), limit: exchange.limit }
}
