//! A bucket and the operations on its objects.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Answer, Body, Digest, Exchange, FetchError, Fetcher, Method, Saved};
use jiff::Timestamp;

use super::answer::{self, InvalidAnswer, Listed};
use super::clock::{Clock, Said};
use super::content::Source;
use super::credentials::Credentials;
use super::dialect::Signer;
use super::error::{ObjectsError, Refusal};
use super::identity::Identity;
use super::location::Location;
use super::request::{Content, Request, query};

/// Timeout for the start of an answer, and between two chunks of it.
const PATIENCE: Duration = Duration::from_secs(30);
/// Minimum rate for uploads, in bytes per second.
const THINNEST_LINE: u64 = 64 << 10;
/// Size limit of answers: an error is one page, and a listing of a thousand long keys has less than 2 MB.
const MAX_WORDS: u64 = 4 << 20;
/// The limit of Amazon and Azure.
const MAX_KEY: usize = 1024;
/// Limit for pages of a listing that contain only a continuation token: a store that skips many deleted objects may
/// send some.
const MAX_EMPTY_PAGES: usize = 100;

/// A bucket, with the credentials for it.
#[expect(missing_debug_implementations, reason = "leads to credentials")]
pub struct Bucket {
    location: Location,
    who: Who,
    fetcher: Fetcher,
    clock: Clock,
}

/// Source of the credentials.
enum Who {
    File(PathBuf),
    Cloud(Identity),
}

/// A request before it is signed.
struct Ask<'a> {
    doing: &'static str,
    method: Method,
    /// Below our prefix; `None` for the bucket itself.
    key: Option<&'a str>,
    query: &'a [(&'a str, &'a str)],
    headers: &'a [(&'static str, String)],
    content: Option<(Body, Content)>,
    within: Duration,
    limit: u64,
}

// === impl Bucket ===

impl Bucket {
    /// Opens a bucket. It trusts the CAs of the machine or, if a file is given, the CAs in it instead.
    pub fn open(
        location: Location,
        credentials: impl Into<Credentials>,
        authority: Option<&Path>,
    ) -> Result<Self, ObjectsError> {
        Self::open_in(location, credentials.into(), authority, |name| std::env::var(name).ok())
    }

    /// Opens a bucket with this environment.
    pub(crate) fn open_in(
        location: Location,
        credentials: Credentials,
        authority: Option<&Path>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ObjectsError> {
        let fetcher = Fetcher::new(authority).map_err(ObjectsError::Client)?;
        let who = match credentials {
            Credentials::File(path) => {
                // Reports a mistake in the file now rather than with the first object.
                let signer = location.dialect.signer(&path).map_err(ObjectsError::Credentials)?;
                protected(&location, signer)?;
                Who::File(path)
            }
            Credentials::Cloud => {
                let identity = Identity::new(&location, environment);
                Who::Cloud(identity.map_err(ObjectsError::Credentials)?)
            }
        };
        Ok(Self { location, who, fetcher, clock: Clock::default() })
    }

    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Returns the URL of an object, for readers with access.
    pub fn url(&self, key: &str) -> String {
        format!("{}{}", self.location.origin, self.location.path(Some(key)))
    }

    /// Stores an object; an existing one with this key is replaced.
    pub async fn put(&self, key: &str, kind: &str, source: Source<'_>) -> Result<(), ObjectsError> {
        let (body, content) = source.content(self.signer().await?.checked()).await?;
        let ask = Ask {
            headers: &[("content-type", kind.to_owned())],
            within: PATIENCE + Duration::from_secs(content.length / THINNEST_LINE),
            content: Some((body, content)),
            ..Ask::new("put", Method::Put, key)
        };
        let answer = self.ask(&ask).await?;
        self.judged(&ask, answer).map(drop)
    }

    /// Returns the object, if it exists and is not longer than the limit.
    pub async fn get(&self, key: &str, limit: u64) -> Result<Option<Vec<u8>>, ObjectsError> {
        let ask = Ask { limit: limit.max(MAX_WORDS), ..Ask::new("get", Method::Get, key) };
        let answer = self.ask(&ask).await?;
        if self.is_missing(&answer) {
            return Ok(None);
        }
        let body = self.judged(&ask, answer)?.body;
        if body.len() as u64 > limit {
            let source = FetchError::TooLong { url: self.url(key), limit };
            return Err(self.failed(&ask, source));
        }
        Ok(Some(body))
    }

    /// Downloads the object to a file and returns its hash and length, if it exists.
    ///
    /// The file is on the disk when this returns. The caller gives it its final name.
    pub async fn get_to_file(
        &self,
        key: &str,
        limit: u64,
        path: &Path,
    ) -> Result<Option<(Digest, u64)>, ObjectsError> {
        let ask = Ask { limit: limit.max(MAX_WORDS), ..Ask::new("get", Method::Get, key) };
        let (exchange, signed) = self.sign(&ask).await?;
        let saved = self.fetcher.exchange_to_file(&exchange, path).await;
        let mut saved = saved.map_err(|source| self.failed(&ask, source))?;
        if self.was_late(&saved.answer, signed) {
            let (exchange, _) = self.sign(&ask).await?;
            let again = self.fetcher.exchange_to_file(&exchange, path).await;
            saved = again.map_err(|source| self.failed(&ask, source))?;
        }
        let Saved { answer, file } = saved;
        if self.is_missing(&answer) {
            return Ok(None);
        }
        self.judged(&ask, answer)?;
        Ok(file)
    }

    /// Deletes an object. A missing one is success.
    pub async fn delete(&self, key: &str) -> Result<(), ObjectsError> {
        let ask = Ask::new("delete", Method::Delete, key);
        let answer = self.ask(&ask).await?;
        if self.is_missing(&answer) { Ok(()) } else { self.judged(&ask, answer).map(drop) }
    }

    /// Returns at most `at_most` objects whose keys start with this text, in order. Keys are below our prefix.
    pub async fn list(&self, beginning: &str, at_most: usize) -> Result<Vec<Listed>, ObjectsError> {
        let prefix = format!("{}{beginning}", self.location.prefix);
        let mut objects: Vec<Listed> = Vec::new();
        let (mut next, mut empty_pages): (Option<String>, _) = (None, 0);
        loop {
            let query = self.location.dialect.listing(&prefix, next.as_deref());
            let ask = Ask { key: None, query: &query, ..Ask::new("list", Method::Get, beginning) };
            let answer = self.ask(&ask).await?;
            let answer = self.judged(&ask, answer)?;
            let failed = |source| ObjectsError::Listing { bucket: self.location.bucket.clone(), source };
            let page = answer::page(&answer.body).map_err(failed)?;
            empty_pages += usize::from(page.objects.is_empty());
            if empty_pages > MAX_EMPTY_PAGES {
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
        let (exchange, signed) = self.sign(ask).await?;
        let answer = self.fetcher.exchange(&exchange).await.map_err(|source| self.failed(ask, source))?;
        if !self.was_late(&answer, signed) {
            return Ok(answer);
        }
        let (exchange, _) = self.sign(ask).await?;
        self.fetcher.exchange(&exchange).await.map_err(|source| self.failed(ask, source))
    }

    /// Returns the signed request, and the time of its signature.
    async fn sign(&self, ask: &Ask<'_>) -> Result<(Exchange, Option<Timestamp>), ObjectsError> {
        if ask.key.is_some_and(|key| !is_key(key) || self.location.prefix.len() + key.len() > MAX_KEY) {
            return Err(ObjectsError::Key(ask.key.unwrap_or_default().to_owned()));
        }
        let path = self.location.path(ask.key);
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
            content: ask.content.as_ref().map(|(_, content)| content),
        };
        let signed = self.signer().await?.sign(&request, self.clock.now());
        let mut url = format!("{}{path}", self.location.origin);
        if !ask.query.is_empty() {
            url.push_str(&format!("?{}", query(ask.query)));
        }
        let mut exchange = Exchange {
            method: ask.method,
            secret_query: signed.query,
            headers: signed.headers,
            body: ask.content.as_ref().map(|(body, _)| body.clone()),
            ..Exchange::get(url, ask.within, ask.limit)
        };
        for (name, value) in ask.headers {
            exchange = exchange.header(name, value.clone());
        }
        Ok((exchange, signed.time))
    }

    pub(crate) async fn signer(&self) -> Result<Signer, ObjectsError> {
        let dialect = &self.location.dialect;
        let signer = match &self.who {
            Who::File(path) => dialect.signer(path),
            Who::Cloud(identity) => identity.signer().await,
        };
        protected(&self.location, signer.map_err(ObjectsError::Credentials)?)
    }

    /// Returns whether the store rejected the time of the signature; if so, the store's time is used from now on.
    fn was_late(&self, answer: &Answer, signed: Option<Timestamp>) -> bool {
        let Some(signed) = signed.filter(|_| !answer.is_success()) else { return false };
        let (code, date) = (refusal(answer).0, answer.header("date"));
        self.clock.is_set_by(Said { status: answer.status, code: &code, date }, signed)
    }

    fn is_missing(&self, answer: &Answer) -> bool {
        answer.status == 404 && self.location.dialect.is_about_the_object(&refusal(answer).0)
    }

    fn judged(&self, ask: &Ask<'_>, answer: Answer) -> Result<Answer, ObjectsError> {
        if answer.is_success() {
            return Ok(answer);
        }
        let (code, message) = refusal(&answer);
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
}

// === impl Ask ===

impl<'a> Ask<'a> {
    /// Creates a request without content.
    fn new(doing: &'static str, method: Method, key: &'a str) -> Self {
        Self {
            doing,
            method,
            key: Some(key),
            query: &[],
            headers: &[],
            content: None,
            within: PATIENCE,
            limit: MAX_WORDS,
        }
    }
}

/// Accepts a signer that reveals its secret only over HTTPS.
fn protected(location: &Location, signer: Signer) -> Result<Signer, ObjectsError> {
    if signer.shows_its_secret() && !location.origin.starts_with("https://") {
        return Err(ObjectsError::InTheClear { origin: location.origin.clone() });
    }
    Ok(signer)
}

/// Returns code and message of an error response. Azure also sends the code in a header, for answers without a body.
fn refusal(answer: &Answer) -> (String, String) {
    let (mut code, message) = answer::refusal(&answer.body);
    if code.is_empty() {
        code = answer.header("x-ms-error-code").map(answer::shown).unwrap_or_default();
    }
    (code, message)
}

/// Checks that every store accepts the key, and that a URL does not change it: no `..`, no empty segment.
fn is_key(key: &str) -> bool {
    let odd = |part: &str| part.is_empty() || part == "." || part == "..";
    !key.split('/').any(odd) && !key.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use landfall_testkit::{ObjectServer, have};

    use super::*;

    fn open(store: &landfall_testkit::ObjectStore) -> Bucket {
        let location = store.location("").parse().unwrap();
        Bucket::open(location, store.credentials(), Some(&store.authority())).unwrap()
    }

    /// Azurite does not check the time.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_store_with_another_clock_is_believed() {
        if !have(ObjectServer::Versitygw.needs()) {
            return;
        }
        let store = ObjectServer::Versitygw.start().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("copy");
        open(&store).put("a", "text/plain", Source::Bytes(b"x")).await.unwrap();
        // Simulates a local clock that is one day behind.
        let late = || {
            let bucket = open(&store);
            bucket.clock.set(-24 * 3600);
            bucket
        };
        let bucket = late();
        bucket.put("b", "text/plain", Source::Bytes(b"y")).await.unwrap();
        assert!(bucket.clock.now().duration_since(Timestamp::now()).abs().as_secs() < 3600);
        assert_eq!(bucket.get("b", 10).await.unwrap().unwrap(), b"y");
        // The same for each kind of first request.
        assert_eq!(late().get("a", 10).await.unwrap().unwrap(), b"x");
        assert_eq!(late().get_to_file("a", 10, &copy).await.unwrap().unwrap().1, 1);
        assert_eq!(late().list("", 10).await.unwrap().len(), 2);
    }

    /// The content of a file changes between the hash and the upload.
    #[tokio::test(flavor = "multi_thread")]
    async fn azure_refuses_what_does_not_arrive_as_it_was_seen() {
        if !have(ObjectServer::Azurite.needs()) {
            return;
        }
        let store = ObjectServer::Azurite.start().unwrap();
        let bucket = open(&store);
        let (_, content) =
            Source::Bytes(b"meant").content(bucket.signer().await.unwrap().checked()).await.unwrap();
        let other = Body::Bytes(b"other".to_vec());
        let ask = Ask { content: Some((other, content)), ..Ask::new("put", Method::Put, "a") };
        let answer = bucket.ask(&ask).await.unwrap();
        let refused = bucket.judged(&ask, answer).unwrap_err();
        assert!(refused.is_lasting(), "{refused}");
        assert_eq!(bucket.get("a", 10).await.unwrap(), None);
    }

    #[test]
    fn a_signature_in_the_query_takes_a_protected_line() {
        let folder = tempfile::tempdir().unwrap();
        let (key, signature) = (folder.path().join("key"), folder.path().join("signature"));
        std::fs::write(&key, "azure_storage_account_key = YQ==").unwrap();
        std::fs::write(&signature, "azure_storage_sas_token = sig=canary").unwrap();
        let open = |scheme: &str, credentials: &Path| {
            let location = format!("az://logs?account=fleet&endpoint={scheme}://store.corp");
            Bucket::open(location.parse().unwrap(), credentials.to_owned(), None).err()
        };
        assert!(open("http", &key).is_none() && open("https", &signature).is_none());
        let refused = open("http", &signature).unwrap();
        assert!(matches!(refused, ObjectsError::InTheClear { .. }), "{refused:?}");
    }
}
