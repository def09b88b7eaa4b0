//! Pushes reports to a hub over HTTPS: `POST /api/v1/reports`, known by a token or a client certificate.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use landfall_model::envelope::ReportId;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;

use super::{Carrier, CarryError, NetworkError, runtime};

/// From the dial to the end of the answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// A receipt is one line, a problem a few.
const MAX_ANSWER: usize = 64 << 10;
/// Bytes of a hub's reason that are shown.
const MAX_REASON: usize = 400;

/// A hub, and who we are to it.
#[expect(missing_debug_implementations, reason = "holds the way to a token")]
pub struct Hub {
    errand: Errand,
    encrypted: bool,
    host: String,
    port: u16,
    tls: Arc<ClientConfig>,
    /// Read at each use: it may be renewed.
    token: Option<PathBuf>,
    runtime: Runtime,
}

/// What is asked of the other side.
pub(super) struct Errand {
    pub(super) name: &'static str,
    pub(super) method: Method,
    /// The media type of what is sent.
    pub(super) kind: &'static str,
    pub(super) path: String,
}

#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("`{0}` is no object: `NAMESPACE/NAME`")]
    Object(String),
    #[error("`{0}` is no address of a hub: `https://HOST[:PORT]`, or `http://` to this machine itself")]
    Address(String),
    #[error("cannot use `{}`", path.display())]
    Credential {
        path: PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("cannot prepare TLS")]
    Tls(#[source] rustls::Error),
    #[error("cannot prepare the network")]
    Network(#[source] NetworkError),
}

/// What went wrong with one report.
#[derive(Debug, thiserror::Error)]
enum PushError {
    #[error("cannot reach {host}:{port}")]
    Reach {
        host: String,
        port: u16,
        #[source]
        source: io::Error,
    },
    #[error("cannot read the token for the hub in `{}`", path.display())]
    Token {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the other side does not speak HTTP")]
    Http(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the other side answered {status}: {reason}")]
    Refused { status: StatusCode, reason: String },
    #[error("the other side did not answer within {} s", PATIENCE.as_secs())]
    Late,
}

// === impl Hub ===

impl Hub {
    /// `authority` tells whom to trust; a token, or a client certificate with its key, tells who we are.
    pub fn new(
        address: &str,
        authority: Option<&Path>,
        token: Option<PathBuf>,
        certificate: Option<(&Path, &Path)>,
    ) -> Result<Self, HubError> {
        Self::with(address, authority, token, certificate, Errand::report("hub", "/api/v1/reports"))
    }

    pub(super) fn with(
        address: &str,
        authority: Option<&Path>,
        token: Option<PathBuf>,
        certificate: Option<(&Path, &Path)>,
        errand: Errand,
    ) -> Result<Self, HubError> {
        let invalid = || HubError::Address(address.to_owned());
        let uri: Uri = address.parse().map_err(|_| invalid())?;
        let host = uri.host().ok_or_else(invalid)?.trim_matches(['[', ']']).to_owned();
        let encrypted = match uri.scheme_str() {
            Some("https") => true,
            // A token in the clear is anybody's.
            Some("http") if ["localhost", "127.0.0.1", "::1"].contains(&host.as_str()) => false,
            _ => return Err(invalid()),
        };
        let port = uri.port_u16().unwrap_or(if encrypted { 443 } else { 80 });
        let tls = Arc::new(tls(authority, certificate)?);
        let runtime = runtime().map_err(HubError::Network)?;
        Ok(Self { errand, encrypted, host, port, tls, token, runtime })
    }

    /// Another node's agent in the place of a hub: it keeps our last report for whoever asks it.
    pub fn neighbour(place: &str, authority: &Path, certificate: (&Path, &Path)) -> Result<Self, HubError> {
        let errand = Errand::report("neighbour", "/neighbours");
        Self::with(&format!("https://{place}"), Some(authority), None, Some(certificate), errand)
    }

    async fn push(&self, envelope: &[u8]) -> Result<(), PushError> {
        let reach = |source| PushError::Reach { host: self.host.clone(), port: self.port, source };
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(reach)?;
        if !self.encrypted {
            return self.post(stream, envelope).await;
        }
        let name = ServerName::try_from(self.host.clone()).map_err(|error| reach(io::Error::other(error)))?;
        let stream = TlsConnector::from(Arc::clone(&self.tls)).connect(name, stream).await.map_err(reach)?;
        self.post(stream, envelope).await
    }

    async fn post(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        envelope: &[u8],
    ) -> Result<(), PushError> {
        let http = |source: hyper::Error| PushError::Http(Box::new(source));
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(http)?;
        // It ends with the sender; what it has to say, the sender says too.
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(self.errand.method.clone())
            .uri(&self.errand.path)
            .header("host", format!("{}:{}", self.host, self.port))
            .header("content-type", self.errand.kind);
        if let Some(path) = &self.token {
            let failed = |source| PushError::Token { path: path.clone(), source };
            let token = std::fs::read_to_string(path).map_err(failed)?;
            request = request.header("authorization", format!("Bearer {}", token.trim()));
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(envelope)));
        let request = request.map_err(|source| PushError::Http(Box::new(source)))?;
        let answer = sender.send_request(request).await.map_err(http)?;
        let status = answer.status();
        let body =
            Limited::new(answer.into_body(), MAX_ANSWER).collect().await.map_err(PushError::Http)?.to_bytes();
        if status.is_success() {
            return Ok(());
        }
        let problem: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let plain = String::from_utf8_lossy(&body);
        // A hub's problem, or the `Status` of an API server.
        let reason = problem["detail"].as_str().or(problem["message"].as_str()).unwrap_or(&plain);
        let reason = reason.chars().filter(|c| !c.is_control()).take(MAX_REASON).collect();
        Err(PushError::Refused { status, reason })
    }
}

impl Carrier for Hub {
    fn name(&self) -> &'static str {
        self.errand.name
    }

    fn carry(&mut self, _: ReportId, envelope: &[u8]) -> Result<(), CarryError> {
        let pushed = async { tokio::time::timeout(PATIENCE, self.push(envelope)).await };
        let error = match self.runtime.block_on(pushed) {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => PushError::Late,
        };
        Err(if error.is_final() {
            CarryError::Never(Box::new(error))
        } else {
            CarryError::Later(Box::new(error))
        })
    }
}

// === impl Errand ===

impl Errand {
    fn report(name: &'static str, path: &str) -> Self {
        Self { name, method: Method::POST, kind: "application/json", path: path.to_owned() }
    }
}

// === impl PushError ===

impl PushError {
    /// The hub has read the report and will not have it. A missing right or a busy hub may be put right.
    fn is_final(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if matches!(status.as_u16(), 400 | 409 | 413 | 422))
    }
}

/// TLS of a client that trusts one authority.
pub(super) fn tls(
    authority: Option<&Path>,
    certificate: Option<(&Path, &Path)>,
) -> Result<ClientConfig, HubError> {
    let failed = |path: &Path, source: Box<dyn std::error::Error + Send + Sync>| HubError::Credential {
        path: path.to_owned(),
        source,
    };
    // Without an authority nothing is trusted: hubs have certificates of their own, not of the public web.
    let mut roots = RootCertStore::empty();
    if let Some(path) = authority {
        let certificates =
            CertificateDer::pem_file_iter(path).map_err(|error| failed(path, Box::new(error)))?;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| failed(path, Box::new(error)))?;
            roots.add(certificate).map_err(|error| failed(path, Box::new(error)))?;
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(HubError::Tls)?
        .with_root_certificates(roots);
    let Some((chain, key)) = certificate else { return Ok(builder.with_no_client_auth()) };
    let certificates = CertificateDer::pem_file_iter(chain).and_then(Iterator::collect);
    let certificates = certificates.map_err(|error| failed(chain, Box::new(error)))?;
    let key_der = PrivateKeyDer::from_pem_file(key).map_err(|error| failed(key, Box::new(error)))?;
    builder.with_client_auth_cert(certificates, key_der).map_err(HubError::Tls)
}
