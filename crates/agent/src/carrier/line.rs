//! An HTTP client for one server.
//!
//! It uses TLS with files that are reloaded when they change, and authenticates with a token or a
//! certificate.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, Request};
use landfall_net::http::{self, Body, HttpError, Limits, Server};
use landfall_net::{CertificateFiles, ClientTls, Reloading, TlsError};
use rustls::ClientConfig;

use super::{CarryError, NetworkError};

/// Response body limit: a receipt has one line.
const MAX_ANSWER: usize = 64 << 10;

/// A server, with the agent's credentials.
pub(super) struct Line {
    server: Server,
    /// `None` for an unencrypted connection, which is allowed to the local host only.
    tls: Option<Tls>,
    /// Read for each request, because the file may be renewed.
    token: Option<PathBuf>,
}

/// TLS files that may appear after the agent has started: cloud-init and kubeadm write them during the boot.
pub(super) struct Tls {
    files: ClientTls,
    config: OnceLock<Arc<Reloading<ClientConfig>>>,
}

/// A request to the server.
pub(super) struct Errand<'a> {
    pub(super) method: Method,
    pub(super) path: &'a str,
    /// The media type of the body.
    pub(super) kind: &'static str,
    pub(super) header: Option<(&'static str, String)>,
    pub(super) body: Sent<'a>,
    /// Time from the dial to the end of the response.
    pub(super) patience: Duration,
}

#[derive(Clone, Copy)]
pub(super) enum Sent<'a> {
    Bytes(&'a [u8]),
    /// A file of this length, read in chunks.
    File(&'a Path, u64),
}

#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("invalid object `{0}`: must be `NAMESPACE/NAME`")]
    Object(String),
    #[error("invalid hub URL `{0}`: must be `https://HOST[:PORT]`, or `http://` to this machine")]
    Address(String),
    #[error("no neighbour is named")]
    NoNeighbour,
    #[error("cannot prepare the network")]
    Network(#[source] NetworkError),
}

/// Reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum PushError {
    #[error("cannot read the token in `{}`", path.display())]
    Token {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot read `{}` to send it", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot use the TLS files")]
    Tls(#[source] TlsError),
    #[error(transparent)]
    Http(#[from] HttpError),
}

// === impl Line ===

impl Line {
    /// Creates a client. `authority` is a CA file, by default the machine's trust store. A token, or a client
    /// certificate with its key, authenticates the agent.
    pub(super) fn new(
        address: &str,
        authority: Option<&Path>,
        token: Option<PathBuf>,
        certificate: Option<(&Path, &Path)>,
    ) -> Result<Self, HubError> {
        let server = Server::parse(address);
        // Over plain HTTP, any observer could read the token.
        let server = server.filter(|server| server.encrypted || server.is_loopback());
        let server = server.ok_or_else(|| HubError::Address(address.to_owned()))?;
        let tls = server.encrypted.then(|| Tls::new(authority, certificate));
        Ok(Self { server, tls, token })
    }

    /// Sends the request; returns once the server has acknowledged it.
    pub(super) async fn run(&self, errand: &Errand<'_>) -> Result<(), PushError> {
        let tls = self.tls.as_ref().map(Tls::current).transpose().map_err(PushError::Tls)?;
        let limits = Limits { within: errand.patience, answer: MAX_ANSWER };
        http::exchange(&self.server, tls, self.request(errand)?, limits).await?;
        Ok(())
    }

    fn request(&self, errand: &Errand<'_>) -> Result<Request<Body>, PushError> {
        let (body, length) = errand.body.open()?;
        let mut request = Request::builder()
            .method(errand.method.clone())
            .uri(errand.path)
            .header("content-type", errand.kind)
            .header("content-length", length);
        if let Some((name, value)) = &errand.header {
            request = request.header(*name, value);
        }
        if let Some(path) = &self.token {
            let failed = |source| PushError::Token { path: path.clone(), source };
            let token = std::fs::read_to_string(path).map_err(failed)?;
            request = request.header("authorization", format!("Bearer {}", token.trim()));
        }
        Ok(request.body(body).map_err(HttpError::Request)?)
    }
}

// === impl Tls ===

impl Tls {
    pub(super) fn new(ca: Option<&Path>, certificate: Option<(&Path, &Path)>) -> Self {
        let certificate = certificate.map(|(certificate, key)| CertificateFiles {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
        });
        let files = ClientTls { ca: ca.map(Path::to_owned), certificate, protocols: Vec::new() };
        Self { files, config: OnceLock::new() }
    }

    /// Returns the configuration from the current files; unreadable files stay in use as last read.
    pub(super) fn current(&self) -> Result<Arc<ClientConfig>, TlsError> {
        if let Some(config) = self.config.get() {
            config.reload();
            return Ok(config.get());
        }
        let config = self.files.clone().load()?;
        Ok(self.config.get_or_init(|| config).get())
    }
}

// === impl Errand ===

impl Errand<'_> {
    /// Returns a request that delivers a report.
    pub(super) fn report<'a>(path: &'a str, envelope: &'a [u8], patience: Duration) -> Errand<'a> {
        let body = Sent::Bytes(envelope);
        Errand { method: Method::POST, path, kind: "application/json", header: None, body, patience }
    }
}

// === impl Sent ===

impl Sent<'_> {
    /// Returns the body and its length.
    fn open(self) -> Result<(Body, u64), PushError> {
        match self {
            Self::Bytes(bytes) => Ok((http::full(Bytes::copy_from_slice(bytes)), bytes.len() as u64)),
            Self::File(path, length) => {
                let failed = |source| PushError::File { path: path.to_owned(), source };
                Ok((http::file(File::open(path).map_err(failed)?, length), length))
            }
        }
    }
}

// === impl PushError ===

impl PushError {
    /// Decides whether a retry can succeed. A report that was read and rejected is final; a missing
    /// permission or a busy hub may be resolved.
    pub(super) fn judged(self) -> CarryError {
        let status = match &self {
            Self::Http(HttpError::Status { status, .. }) => status.as_u16(),
            _ => 0,
        };
        match status {
            400 | 409 | 413 | 422 => CarryError::Never(Box::new(self)),
            403 => CarryError::NotPermitted(Box::new(self)),
            _ => CarryError::Later(Box::new(self)),
        }
    }
}
