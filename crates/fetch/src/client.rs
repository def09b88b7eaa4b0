use std::path::Path;
use std::time::Duration;

use landfall_model::chain;
use landfall_net::{ServerTrust, client_config, parse_roots, system_roots};
use reqwest::header::{ACCEPT_ENCODING, HeaderMap};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Client, ClientBuilder, Response};
use rustls::{ClientConfig, RootCertStore};
use tokio::time::Instant;

use crate::FetchError;
use crate::patience::Patience;

/// A name redirects to a region and then to a bucket; more redirects are a loop.
const MAX_REDIRECTS: usize = 5;
/// A server that does not answer must not hold a connection beyond any idle timeout of a caller.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// Connect timeout for hosts on this machine or beside it.
const NEAR_LIMIT: Duration = Duration::from_secs(2);

/// Size limit of an answer to a posted document: one or two sentences.
const MAX_ANSWER_BYTES: usize = 16 * 1024;

/// HTTP client for downloads. Proxies come from the environment (`https_proxy`, `no_proxy` and so on), CAs from the
/// machine.
#[derive(Clone, Debug)]
pub struct Fetcher {
    client: Client,
    /// Follows no redirect: its requests are meant for one host only.
    pub(crate) direct: Client,
}

// === impl Fetcher ===

impl Fetcher {
    /// Creates a client that trusts the CAs of the machine or, if a file is given, the CAs in it instead.
    pub fn new(authority: Option<&Path>) -> Result<Self, FetchError> {
        Self::with_roots(roots(authority)?)
    }

    /// Creates a client that trusts only these CAs (PEM).
    pub fn trusting(authorities: &[u8]) -> Result<Self, FetchError> {
        let given = Path::new("the given authorities");
        let roots = parse_roots(given, authorities)
            .map_err(|_| FetchError::NoAuthority { path: given.to_owned() })?;
        Self::with_roots(roots)
    }

    fn with_roots(roots: RootCertStore) -> Result<Self, FetchError> {
        let config = tls(roots)?;
        let client = |redirects| built(builder(&config, CONNECT_LIMIT, redirects));
        Ok(Self { client: client(Policy::custom(follow))?, direct: client(Policy::none())? })
    }

    /// Sends a GET request and returns the response, if it is a success. The body is not decoded: hashes are of the
    /// transferred bytes.
    pub(crate) async fn get(
        &self,
        url: &str,
        headers: HeaderMap,
        idle: Duration,
    ) -> Result<Response, FetchError> {
        let request = self.client.get(url).headers(headers).header(ACCEPT_ENCODING, "identity");
        let response = tokio::time::timeout(idle, request.send()).await;
        let response =
            response.map_err(|_| FetchError::Idle { url: url.to_owned(), seconds: idle.as_secs() })?;
        let response = response.map_err(|source| transport(url, source))?;
        let status = response.status();
        if status.is_success() {
            Ok(response)
        } else {
            Err(FetchError::Status { url: url.to_owned(), status: status.as_u16() })
        }
    }

    /// Posts a document and returns the status.
    pub async fn post_json(
        &self,
        url: &str,
        headers: &[(&'static str, &'static str)],
        body: String,
        within: Duration,
    ) -> Result<u16, FetchError> {
        self.ask_json(url, headers, body, within).await.map(|(status, _)| status)
    }

    /// Posts a document and returns the status and the body, up to its size limit.
    pub async fn ask_json(
        &self,
        url: &str,
        headers: &[(&'static str, &'static str)],
        body: String,
        within: Duration,
    ) -> Result<(u16, Vec<u8>), FetchError> {
        let mut request = self.client.post(url).header("content-type", "application/json").body(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answered = async {
            let mut response = request.send().await?;
            let status = response.status().as_u16();
            let mut words = Vec::new();
            while let Some(chunk) = response.chunk().await? {
                let room = MAX_ANSWER_BYTES.saturating_sub(words.len());
                words.extend_from_slice(&chunk[..chunk.len().min(room)]);
                if room <= chunk.len() {
                    break;
                }
            }
            Ok((status, words))
        };
        let answered = tokio::time::timeout(within, answered).await;
        let answered =
            answered.map_err(|_| FetchError::Idle { url: url.to_owned(), seconds: within.as_secs() })?;
        answered.map_err(|source| transport(url, source))
    }
}

/// Clients for identity endpoints. They follow no redirect.
#[derive(Clone, Debug)]
pub(crate) struct Lenders {
    /// Uses the proxies of the environment.
    pub(crate) abroad: Client,
    /// For this machine, or an address that its cloud reserves for it, which no proxy can reach.
    pub(crate) near: Client,
}

// === impl Lenders ===

impl Lenders {
    pub(crate) fn new() -> Result<Self, FetchError> {
        let config = tls(system_roots())?;
        let builder = |limit| builder(&config, limit, Policy::none());
        Ok(Self { abroad: built(builder(CONNECT_LIMIT))?, near: built(builder(NEAR_LIMIT).no_proxy())? })
    }
}

fn tls(roots: RootCertStore) -> Result<ClientConfig, FetchError> {
    client_config(ServerTrust::Roots(roots), None, &[]).map_err(|source| FetchError::Tls { source })
}

fn builder(config: &ClientConfig, limit: Duration, redirects: Policy) -> ClientBuilder {
    Client::builder()
        .tls_backend_preconfigured(config.clone())
        .connect_timeout(limit)
        .redirect(redirects)
        .user_agent(concat!("landfall/", env!("CARGO_PKG_VERSION")))
}

fn built(builder: ClientBuilder) -> Result<Client, FetchError> {
    builder.build().map_err(|source| FetchError::Client { source })
}

/// The final source of a download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The requested URL that delivered it, before redirects.
    pub url: String,
    /// The URLs that did not deliver it, each with its last error.
    pub passed_over: Vec<Refusal>,
}

/// A URL that did not deliver the requested content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub url: String,
    pub reason: String,
}

/// Tries the URLs in turn, in rounds, until one delivers or the time or number of rounds is exceeded.
pub(crate) struct Rounds<'a> {
    urls: &'a [String],
    failures: Vec<Option<FetchError>>,
    patience: &'a Patience,
    round: u32,
    at: usize,
    end: Instant,
}

impl<'a> Rounds<'a> {
    pub(crate) fn new(urls: &'a [String], patience: &'a Patience) -> Self {
        let failures = urls.iter().map(|_| None).collect();
        Self { urls, failures, patience, round: 1, at: 0, end: Instant::now() + patience.total }
    }

    /// Returns the next URL to try, or the reason why there is none.
    pub(crate) async fn next(&mut self) -> Result<&'a str, FetchError> {
        loop {
            while self.at < self.urls.len() {
                if !self.failures[self.at].as_ref().is_some_and(FetchError::is_lasting) {
                    return Ok(&self.urls[self.at]);
                }
                self.at += 1;
            }
            let hopeless = self.failures.iter().flatten().all(FetchError::is_lasting);
            let pause = self.patience.rounds.pause_after(self.round);
            let Some(pause) = pause.filter(|pause| !hopeless && Instant::now() + *pause < self.end) else {
                return Err(self.conclusion());
            };
            tokio::time::sleep(pause).await;
            self.round += 1;
            self.at = 0;
        }
    }

    /// Waits for one URL within the remaining time, and records a failure. `None` means to try the next one.
    pub(crate) async fn outcome<T>(
        &mut self,
        asked: impl Future<Output = Result<T, FetchError>>,
    ) -> Result<Option<T>, FetchError> {
        let url = &self.urls[self.at];
        let error = match tokio::time::timeout_at(self.end, asked).await {
            Ok(Ok(value)) => return Ok(Some(value)),
            Ok(Err(error)) => error,
            Err(_) => FetchError::Late { url: url.clone(), seconds: self.patience.total.as_secs() },
        };
        // Not a warning: another URL may deliver it, and if none does, the caller reports that.
        tracing::info!(url, round = self.round, error = %chain(&error), "Fetching failed.");
        if error.is_ours() {
            return Err(error);
        }
        self.failures[self.at] = Some(error);
        self.at += 1;
        Ok(None)
    }

    /// Returns the source, once a URL has delivered.
    pub(crate) fn source(&self) -> Source {
        let refused = self.urls.iter().zip(&self.failures);
        let refused = refused.filter_map(|(url, failure)| Some((url, failure.as_ref()?)));
        Source {
            url: self.urls[self.at].clone(),
            passed_over: refused
                .filter(|(url, _)| **url != self.urls[self.at])
                .map(|(url, error)| Refusal { url: url.clone(), reason: chain(error).to_string() })
                .collect(),
        }
    }

    fn conclusion(&mut self) -> FetchError {
        let mut failures: Vec<FetchError> = self.failures.iter_mut().filter_map(Option::take).collect();
        match failures.len() {
            0 => FetchError::NoPlace,
            1 => failures.remove(0),
            count => {
                let reasons: Vec<String> = failures.iter().map(|error| chain(error).to_string()).collect();
                let lasting = failures.iter().all(FetchError::is_lasting);
                let wrong = failures.iter().any(|error| matches!(error, FetchError::WrongHash { .. }));
                FetchError::Everywhere { count, reasons: reasons.join("; "), lasting, wrong }
            }
        }
    }
}

pub(crate) fn transport(url: &str, source: reqwest::Error) -> FetchError {
    // The error contains the URL already.
    FetchError::Transport { url: url.to_owned(), source: source.without_url() }
}

/// Rejects redirect loops, and redirects from HTTPS to HTTP.
fn follow(attempt: Attempt<'_>) -> reqwest::redirect::Action {
    let before = attempt.previous().last().map(|url| url.scheme().to_owned());
    if attempt.previous().len() > MAX_REDIRECTS {
        attempt.error("too many redirects")
    } else if before.as_deref() == Some("https") && attempt.url().scheme() != "https" {
        attempt.error("a redirect from https to an unprotected line")
    } else {
        attempt.follow()
    }
}

fn roots(authority: Option<&Path>) -> Result<RootCertStore, FetchError> {
    let Some(path) = authority else { return Ok(system_roots()) };
    let pem =
        std::fs::read(path).map_err(|source| FetchError::Authority { path: path.to_owned(), source })?;
    parse_roots(path, &pem).map_err(|_| FetchError::NoAuthority { path: path.to_owned() })
}
