use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use landfall_model::chain;
use reqwest::header::{ACCEPT_ENCODING, HeaderMap};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Client, Response};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use tokio::time::Instant;

use crate::FetchError;
use crate::patience::Patience;

/// From a name to a region to a bucket; more is a circle.
const MAX_REDIRECTS: usize = 5;
/// So that a server that says nothing cannot hold a connection for longer than anybody's idle limit.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// What a server has to say about what it was told is a sentence or two.
const MAX_ANSWER_BYTES: usize = 16 * 1024;

/// Gets things. Proxies come from the environment (`https_proxy`, `no_proxy` and their likes), trust from the machine.
#[derive(Clone, Debug)]
pub struct Fetcher {
    client: Client,
    /// Follows nothing: what it sends is meant for one place only.
    pub(crate) direct: Client,
}

// === impl Fetcher ===

impl Fetcher {
    /// Trusts what the machine trusts and, if a file is given, the authorities in it instead.
    pub fn new(authority: Option<&Path>) -> Result<Self, FetchError> {
        Self::with_roots(roots(authority)?)
    }

    /// Trusts these authorities (PEM) and nobody else.
    pub fn trusting(authorities: &[u8]) -> Result<Self, FetchError> {
        let mut roots = RootCertStore::empty();
        let certificates = CertificateDer::pem_slice_iter(authorities).filter_map(Result::ok);
        let (used, _) = roots.add_parsable_certificates(certificates);
        if used == 0 {
            return Err(FetchError::NoAuthority { path: "the given authorities".into() });
        }
        Self::with_roots(roots)
    }

    fn with_roots(roots: RootCertStore) -> Result<Self, FetchError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|source| FetchError::Tls { source })?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let client = |redirects| {
            Client::builder()
                .tls_backend_preconfigured(config.clone())
                .connect_timeout(CONNECT_LIMIT)
                .redirect(redirects)
                .user_agent(concat!("landfall/", env!("CARGO_PKG_VERSION")))
                .build()
                .map_err(|source| FetchError::Client { source })
        };
        Ok(Self { client: client(Policy::custom(follow))?, direct: client(Policy::none())? })
    }

    /// The answer's head, if it is a success. The body is as it is on the wire: hashes are of that.
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

    /// Says something to a server; the answer's code.
    pub async fn post_json(
        &self,
        url: &str,
        headers: &[(&'static str, &'static str)],
        body: String,
        within: Duration,
    ) -> Result<u16, FetchError> {
        self.ask_json(url, headers, body, within).await.map(|(status, _)| status)
    }

    /// Says something to a server; the answer's code and its words, as far as they are short.
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

/// Where something came from in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The place that gave it, as it was asked for; what it redirected to is its own affair.
    pub url: String,
    /// The places that did not, each with its last word.
    pub passed_over: Vec<Refusal>,
}

/// A place that did not give what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub url: String,
    pub reason: String,
}

/// Asks the places in turn, in rounds, until one gives it or the patience is at its end.
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

    /// The place to ask next, or why there is none.
    pub(crate) async fn next(&mut self) -> Result<&'a str, FetchError> {
        loop {
            while self.at < self.urls.len() {
                if !self.failures[self.at].as_ref().is_some_and(FetchError::is_lasting) {
                    return Ok(&self.urls[self.at]);
                }
                self.at += 1;
            }
            let hopeless = self.failures.iter().flatten().all(FetchError::is_lasting);
            let pause = self.patience.pause_after(self.round);
            if hopeless || self.round >= self.patience.rounds || Instant::now() + pause >= self.end {
                return Err(self.conclusion());
            }
            tokio::time::sleep(pause).await;
            self.round += 1;
            self.at = 0;
        }
    }

    /// Waits for one place, as long as there is time at all, and notes a failure. Nothing: ask the next.
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
        // Not a warning: another place may give it, and if none does, the caller says so.
        tracing::info!(url, round = self.round, error = %chain(&error), "Fetching failed.");
        if error.is_ours() {
            return Err(error);
        }
        self.failures[self.at] = Some(error);
        self.at += 1;
        Ok(None)
    }

    /// Where it came from, once a place gave it.
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
    // The URL is in our own words already.
    FetchError::Transport { url: url.to_owned(), source: source.without_url() }
}

/// Not in circles, and never from a protected line to an open one.
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
    if let Some(path) = authority {
        let mut roots = RootCertStore::empty();
        let pem =
            std::fs::read(path).map_err(|source| FetchError::Authority { path: path.to_owned(), source })?;
        let certificates = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
        let (used, _) = roots.add_parsable_certificates(certificates);
        if used == 0 {
            return Err(FetchError::NoAuthority { path: path.to_owned() });
        }
        return Ok(roots);
    }
    Ok(machine_authorities())
}

/// Whom this machine trusts: what its distribution keeps, or what `SSL_CERT_FILE` names.
pub fn machine_authorities() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    for error in &native.errors {
        tracing::debug!(%error, "Some certificate authorities of this machine cannot be read.");
    }
    roots.add_parsable_certificates(native.certs);
    roots
}
