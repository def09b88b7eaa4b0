//! The bucket, and what can be done with what is in it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use landfall_fetch::{Algorithm, Answer, Body, Digest, Exchange, FetchError, Fetcher, Method, Saved};

use crate::answer::{self, InvalidAnswer, Listed};
use crate::credentials::{Credentials, CredentialsError};
use crate::location::Location;
use crate::signature::{Request, Slash, escape, query};

/// For the beginning of an answer, and between two pieces of it.
const PATIENCE: Duration = Duration::from_secs(30);
/// A line thinner than this is none for what is uploaded.
const THINNEST_LINE: u64 = 64 << 10;
/// A refusal is a page, a listing of a thousand long keys below two megabytes.
const MAX_WORDS: u64 = 4 << 20;
/// Amazon's own limit.
const MAX_KEY: usize = 1024;
/// How far a store's clock may be off from ours before it is not believed either.
const MAX_SKEW: SignedDuration = SignedDuration::from_hours(24 * 366 * 60);

/// A bucket, and who we are to it.
#[expect(missing_debug_implementations, reason = "leads to credentials")]
pub struct Bucket {
    location: Location,
    /// Read at each use: keys that are lent are renewed.
    credentials: PathBuf,
    fetcher: Fetcher,
    /// Seconds the store is ahead of us, as far as it told.
    ahead: AtomicI64,
}

/// What is stored, with its hash where that is known already.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    Bytes(&'a [u8]),
    /// A file, and the SHA-256 of its content.
    File(&'a Path, &'a Digest),
}

/// What a store says of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub bytes: u64,
    pub kind: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ObjectsError {
    #[error("cannot prepare the way to the object store")]
    Client(#[source] FetchError),
    #[error("cannot be known to the object store")]
    Credentials(#[source] CredentialsError),
    #[error("cannot {doing} `{key}` in the bucket `{bucket}`")]
    Exchange {
        doing: &'static str,
        key: String,
        bucket: String,
        #[source]
        source: Box<FetchError>,
    },
    #[error("{0}")]
    Refused(Box<Refusal>),
    #[error("cannot read `{}` to store it", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{0}` cannot be the name of an object")]
    Key(String),
    #[error("cannot list the bucket `{bucket}`")]
    Listing {
        bucket: String,
        #[source]
        source: InvalidAnswer,
    },
}

/// A store's no, in its own words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the object store does not {doing} `{key}` in the bucket `{bucket}`: {status} {code}, {message}")]
pub struct Refusal {
    pub doing: &'static str,
    pub key: String,
    pub bucket: String,
    pub status: u16,
    pub code: String,
    pub message: String,
}

/// One request, before it is signed.
struct Ask<'a> {
    doing: &'static str,
    method: Method,
    /// Below our prefix; nothing for the bucket itself.
    key: Option<&'a str>,
    query: &'a [(&'a str, &'a str)],
    headers: &'a [(&'static str, String)],
    hash: &'a str,
    body: Option<Body>,
    within: Duration,
    limit: u64,
}

// === impl Bucket ===

impl Bucket {
    /// Trusts what the machine trusts and, if a file is given, the authorities in it instead.
    pub fn open(
        location: Location,
        credentials: PathBuf,
        authority: Option<&Path>,
    ) -> Result<Self, ObjectsError> {
        // A mistake shows now, not with the first object.
        Credentials::read(&credentials).map_err(ObjectsError::Credentials)?;
        let fetcher = Fetcher::new(authority).map_err(ObjectsError::Client)?;
        Ok(Self { location, credentials, fetcher, ahead: AtomicI64::new(0) })
    }

    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Where an object is, for whoever may read it.
    pub fn url(&self, key: &str) -> String {
        format!("{}{}", self.location.origin, self.path(Some(key)))
    }

    /// Stores an object; one that is there under this key is replaced.
    pub async fn put(&self, key: &str, kind: &str, source: Source<'_>) -> Result<(), ObjectsError> {
        let (hash, body, length) = match source {
            Source::Bytes(bytes) => {
                (Digest::of(Algorithm::Sha256, bytes), Body::Bytes(bytes.to_vec()), bytes.len() as u64)
            }
            Source::File(path, digest) => {
                let failed = |source| ObjectsError::Read { path: path.to_owned(), source };
                let length = std::fs::metadata(path).map_err(failed)?.len();
                (digest.clone(), Body::File { path: path.to_owned(), length }, length)
            }
        };
        let ask = Ask {
            headers: &[("content-type", kind.to_owned())],
            hash: hash.hex(),
            body: Some(body),
            within: PATIENCE + Duration::from_secs(length / THINNEST_LINE),
            ..Ask::new("put", Method::Put, key)
        };
        let answer = self.ask(&ask).await?;
        self.judged(&ask, answer).map(drop)
    }

    /// The object, if there is one and it has no more bytes than this.
    pub async fn get(&self, key: &str, limit: u64) -> Result<Option<Vec<u8>>, ObjectsError> {
        let ask = Ask { limit: limit.max(MAX_WORDS), ..Ask::new("get", Method::Get, key) };
        let answer = self.ask(&ask).await?;
        if is_missing(&answer) {
            return Ok(None);
        }
        let body = self.judged(&ask, answer)?.body;
        if body.len() as u64 > limit {
            let source = FetchError::TooLong { url: self.url(key), limit };
            return Err(self.failed(&ask, source));
        }
        Ok(Some(body))
    }

    /// The object in a file, which is on the disk when this returns; its hash and length, if there is one. The caller gives
    /// the file its final name.
    pub async fn get_to_file(
        &self,
        key: &str,
        limit: u64,
        path: &Path,
    ) -> Result<Option<(Digest, u64)>, ObjectsError> {
        let ask = Ask { limit: limit.max(MAX_WORDS), ..Ask::new("get", Method::Get, key) };
        let exchange = self.sign(&ask)?;
        let saved = self.fetcher.exchange_to_file(&exchange, path).await;
        let mut saved = saved.map_err(|source| self.failed(&ask, source))?;
        if self.was_late(&saved.answer) {
            let exchange = self.sign(&ask)?;
            let again = self.fetcher.exchange_to_file(&exchange, path).await;
            saved = again.map_err(|source| self.failed(&ask, source))?;
        }
        let Saved { answer, file } = saved;
        if is_missing(&answer) {
            return Ok(None);
        }
        self.judged(&ask, answer)?;
        Ok(file)
    }

    /// What the store says of an object, if there is one.
    pub async fn head(&self, key: &str) -> Result<Option<Found>, ObjectsError> {
        let ask = Ask::new("look at", Method::Head, key);
        let answer = self.ask(&ask).await?;
        if answer.status == 404 {
            return Ok(None);
        }
        let answer = self.judged(&ask, answer)?;
        let bytes = answer.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        Ok(Some(Found { bytes, kind: answer.header("content-type").map(str::to_owned) }))
    }

    /// What is gone already is success.
    pub async fn delete(&self, key: &str) -> Result<(), ObjectsError> {
        let ask = Ask::new("delete", Method::Delete, key);
        let answer = self.ask(&ask).await?;
        if is_missing(&answer) { Ok(()) } else { self.judged(&ask, answer).map(drop) }
    }

    /// The objects whose keys begin with this, in order, at most so many. Keys are below our prefix.
    pub async fn list(&self, beginning: &str, at_most: usize) -> Result<Vec<Listed>, ObjectsError> {
        let prefix = format!("{}{beginning}", self.location.prefix);
        let mut objects: Vec<Listed> = Vec::new();
        let mut next: Option<String> = None;
        loop {
            let mut query = vec![("list-type", "2"), ("encoding-type", "url"), ("prefix", prefix.as_str())];
            if let Some(next) = &next {
                query.push(("continuation-token", next));
            }
            let ask = Ask { key: None, query: &query, ..Ask::new("list", Method::Get, beginning) };
            let answer = self.ask(&ask).await?;
            let answer = self.judged(&ask, answer)?;
            let failed = |source| ObjectsError::Listing { bucket: self.location.bucket.clone(), source };
            let page = answer::page(&answer.body).map_err(failed)?;
            if page.objects.is_empty() && page.next.is_some() {
                // A store that gives nothing and always promises more.
                return Err(failed(InvalidAnswer));
            }
            for object in page.objects {
                let key = object.key.strip_prefix(&self.location.prefix);
                let key = key.ok_or_else(|| failed(InvalidAnswer))?.to_owned();
                objects.push(Listed { key, ..object });
                if objects.len() >= at_most {
                    return Ok(objects);
                }
            }
            match page.next {
                Some(token) => next = Some(token),
                None => return Ok(objects),
            }
        }
    }

    async fn ask(&self, ask: &Ask<'_>) -> Result<Answer, ObjectsError> {
        let exchange = self.sign(ask)?;
        let answer = self.fetcher.exchange(&exchange).await.map_err(|source| self.failed(ask, source))?;
        if !self.was_late(&answer) {
            return Ok(answer);
        }
        let exchange = self.sign(ask)?;
        self.fetcher.exchange(&exchange).await.map_err(|source| self.failed(ask, source))
    }

    fn sign(&self, ask: &Ask<'_>) -> Result<Exchange, ObjectsError> {
        if ask.key.is_some_and(|key| !is_key(key) || self.location.prefix.len() + key.len() > MAX_KEY) {
            return Err(ObjectsError::Key(ask.key.unwrap_or_default().to_owned()));
        }
        let credentials = Credentials::read(&self.credentials).map_err(ObjectsError::Credentials)?;
        let path = self.path(ask.key);
        let request = Request {
            method: match ask.method {
                Method::Get => "GET",
                Method::Head => "HEAD",
                Method::Post => "POST",
                Method::Put => "PUT",
                Method::Delete => "DELETE",
            },
            host: self.location.host(),
            path: &path,
            query: ask.query,
            headers: ask.headers,
            hash: ask.hash,
        };
        let ahead = SignedDuration::from_secs(self.ahead.load(Ordering::Relaxed));
        let now = Timestamp::now().saturating_add(ahead).unwrap_or_else(|_| Timestamp::now());
        let signed = request.sign(&credentials, &self.location.region, now);
        let mut url = format!("{}{path}", self.location.origin);
        if !ask.query.is_empty() {
            url.push_str(&format!("?{}", query(ask.query)));
        }
        let mut exchange = Exchange {
            method: ask.method,
            headers: vec![("authorization", signed.authorization)],
            body: ask.body.clone(),
            ..Exchange::get(url, ask.within, ask.limit)
        };
        exchange = exchange.header("x-amz-date", signed.time).header("x-amz-content-sha256", ask.hash);
        for (name, value) in ask.headers {
            exchange = exchange.header(name, value.clone());
        }
        if let Some(session) = credentials.session {
            exchange.headers.push(("x-amz-security-token", session));
        }
        Ok(exchange)
    }

    /// The store did not believe the time; from now on its own is used.
    fn was_late(&self, answer: &Answer) -> bool {
        if answer.status != 403 || answer::refusal(&answer.body).0 != "RequestTimeTooSkewed" {
            return false;
        }
        let date = answer.header("date").and_then(|date| jiff::fmt::rfc2822::parse(date).ok());
        let Some(date) = date else { return false };
        let ahead = date.timestamp().duration_since(Timestamp::now());
        if ahead.abs() > MAX_SKEW {
            return false;
        }
        tracing::info!(seconds = ahead.as_secs(), "The object store's clock is not ours; its own is used.");
        self.ahead.store(ahead.as_secs(), Ordering::Relaxed);
        true
    }

    fn judged(&self, ask: &Ask<'_>, answer: Answer) -> Result<Answer, ObjectsError> {
        if answer.is_success() {
            return Ok(answer);
        }
        let (code, message) = answer::refusal(&answer.body);
        let (key, bucket) = (ask.key.unwrap_or_default().to_owned(), self.location.bucket.clone());
        let status = answer.status;
        let refusal = Refusal { doing: ask.doing, key, bucket, status, code, message };
        Err(ObjectsError::Refused(Box::new(refusal)))
    }

    fn failed(&self, ask: &Ask<'_>, source: FetchError) -> ObjectsError {
        let key = ask.key.unwrap_or_default().to_owned();
        ObjectsError::Exchange {
            doing: ask.doing,
            key,
            bucket: self.location.bucket.clone(),
            source: Box::new(source),
        }
    }

    fn path(&self, key: Option<&str>) -> String {
        let Location { path, prefix, .. } = &self.location;
        let key = key.map(|key| format!("{prefix}{key}")).unwrap_or_default();
        format!("{path}/{}", escape(&key, Slash::Kept))
    }
}

// === impl Ask ===

impl<'a> Ask<'a> {
    /// Without content.
    fn new(doing: &'static str, method: Method, key: &'a str) -> Self {
        /// SHA-256 of nothing.
        const NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        Self {
            doing,
            method,
            key: Some(key),
            query: &[],
            headers: &[],
            hash: NOTHING,
            body: None,
            within: PATIENCE,
            limit: MAX_WORDS,
        }
    }
}

// === impl ObjectsError ===

impl ObjectsError {
    /// Asking again, the same way, is of no use. A missing right may be given, and a busy store has time again.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Refused(refusal) => {
                matches!(refusal.status, 400 | 405 | 411 | 413 | 414) && refusal.code != "RequestTimeout"
            }
            Self::Key(_) => true,
            _ => false,
        }
    }
}

/// A bucket that is missing is not an object that is.
fn is_missing(answer: &Answer) -> bool {
    answer.status == 404 && answer::refusal(&answer.body).0 != "NoSuchBucket"
}

/// One that every store takes, and that a URL says as it is: no step back, nothing empty.
fn is_key(key: &str) -> bool {
    let odd = |part: &str| part.is_empty() || part == "." || part == "..";
    !key.split('/').any(odd) && !key.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use landfall_testkit::{ObjectStore, have};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_store_with_another_clock_is_believed() {
        if !have(ObjectStore::NEEDS) {
            return;
        }
        let store = ObjectStore::start().unwrap();
        let location = store.location("").parse().unwrap();
        let bucket = Bucket::open(location, store.credentials(), Some(&store.authority())).unwrap();
        // As if our own clock were a day behind.
        bucket.ahead.store(-24 * 3600, Ordering::Relaxed);
        bucket.put("a", "text/plain", Source::Bytes(b"x")).await.unwrap();
        assert!(bucket.ahead.load(Ordering::Relaxed).abs() < 3600);
        assert_eq!(bucket.get("a", 10).await.unwrap().unwrap(), b"x");
    }
}
