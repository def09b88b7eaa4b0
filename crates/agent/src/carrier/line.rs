//! The way to one HTTP server: over TLS from files that are read again when they change, known by a token or a certificate.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use landfall_fetch::machine_authorities;
use landfall_wire::{Live, Pair, TlsError, calling_whom, roots};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{CarryError, NetworkError};

/// A receipt is one line, a problem a few.
const MAX_ANSWER: usize = 64 << 10;
/// Bytes of a server's reason that are shown.
const MAX_REASON: usize = 400;
/// Bytes of a file in memory at a time.
const PIECE: usize = 64 << 10;

/// A server, and who we are to it.
pub(super) struct Line {
    host: String,
    port: u16,
    /// Nothing where it is not encrypted: on this machine itself.
    tls: Option<Arc<Live<ClientConfig>>>,
    /// Read at each use: it may be renewed.
    token: Option<PathBuf>,
}

/// What is asked of the other side.
pub(super) struct Errand<'a> {
    pub(super) method: Method,
    pub(super) path: &'a str,
    /// The media type of what is sent.
    pub(super) kind: &'static str,
    pub(super) header: Option<(&'static str, String)>,
    pub(super) body: Sent<'a>,
    /// From the dial to the end of the answer.
    pub(super) patience: Duration,
}

#[derive(Clone, Copy)]
pub(super) enum Sent<'a> {
    Bytes(&'a [u8]),
    /// A file of this length, a piece at a time.
    File(&'a Path, u64),
}

#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("`{0}` is no object: `NAMESPACE/NAME`")]
    Object(String),
    #[error("`{0}` is no address of a hub: `https://HOST[:PORT]`, or `http://` to this machine itself")]
    Address(String),
    #[error("no neighbour is named")]
    NoNeighbour,
    #[error("cannot use the TLS files")]
    Tls(#[source] TlsError),
    #[error("cannot prepare the network")]
    Network(#[source] NetworkError),
}

/// What went wrong with one errand.
#[derive(Debug, thiserror::Error)]
pub(super) enum PushError {
    #[error("cannot reach {host}:{port}")]
    Reach {
        host: String,
        port: u16,
        #[source]
        source: io::Error,
    },
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
    #[error("the other side does not speak HTTP")]
    Http(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the other side answered {status}: {reason}")]
    Refused { status: StatusCode, reason: String },
    #[error("the other side did not answer within {} s", .0.as_secs())]
    Late(Duration),
}

type Body = UnsyncBoxBody<Bytes, io::Error>;

// === impl Line ===

impl Line {
    /// `authority` tells whom to trust, else those this machine trusts; a token, or a client certificate with its key, tells
    /// who we are.
    pub(super) fn new(
        address: &str,
        authority: Option<&Path>,
        token: Option<PathBuf>,
        certificate: Option<(&Path, &Path)>,
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
        let tls = encrypted.then(|| tls(authority, certificate)).transpose().map_err(HubError::Tls)?;
        Ok(Self { host, port, tls, token })
    }

    /// Done when the other side has said so.
    pub(super) async fn run(&self, errand: &Errand<'_>) -> Result<(), PushError> {
        if let Some(tls) = &self.tls {
            tls.reload();
        }
        let done = tokio::time::timeout(errand.patience, self.push(errand)).await;
        done.unwrap_or(Err(PushError::Late(errand.patience)))
    }

    async fn push(&self, errand: &Errand<'_>) -> Result<(), PushError> {
        let reach = |source| PushError::Reach { host: self.host.clone(), port: self.port, source };
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(reach)?;
        let Some(tls) = &self.tls else { return self.converse(stream, errand).await };
        let name = ServerName::try_from(self.host.clone()).map_err(|error| reach(io::Error::other(error)))?;
        let stream = TlsConnector::from(tls.get()).connect(name, stream).await.map_err(reach)?;
        self.converse(stream, errand).await
    }

    async fn converse(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        errand: &Errand<'_>,
    ) -> Result<(), PushError> {
        let http = |source: hyper::Error| PushError::Http(Box::new(source));
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(http)?;
        // It ends with the sender; what it has to say, the sender says too.
        tokio::spawn(connection);
        let (body, length) = errand.body.open()?;
        let mut request = Request::builder()
            .method(errand.method.clone())
            .uri(errand.path)
            .header("host", format!("{}:{}", self.host, self.port))
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
        let request = request.body(body).map_err(|source| PushError::Http(Box::new(source)))?;
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

/// TLS of a client, made anew when its files change.
pub(super) fn tls(
    authority: Option<&Path>,
    certificate: Option<(&Path, &Path)>,
) -> Result<Arc<Live<ClientConfig>>, TlsError> {
    let authority = authority.map(Path::to_owned);
    let pair = certificate
        .map(|(certificate, key)| Pair { certificate: certificate.to_owned(), key: key.to_owned() });
    let paths = authority.iter().chain(pair.iter().flat_map(|pair| [&pair.certificate, &pair.key]));
    let paths = paths.cloned().collect();
    Live::load(paths, move |files| {
        let whom = match &authority {
            Some(path) => roots(files, path)?,
            None => machine_authorities(),
        };
        if whom.is_empty() {
            tracing::warn!("This machine trusts no certificate authority, and none is named.");
        }
        calling_whom(files, whom, pair.as_ref(), &[])
    })
}

// === impl Errand ===

impl Errand<'_> {
    /// A report, for one who takes them in.
    pub(super) fn report<'a>(path: &'a str, envelope: &'a [u8], patience: Duration) -> Errand<'a> {
        let body = Sent::Bytes(envelope);
        Errand { method: Method::POST, path, kind: "application/json", header: None, body, patience }
    }
}

// === impl Sent ===

impl Sent<'_> {
    fn open(self) -> Result<(Body, u64), PushError> {
        match self {
            Self::Bytes(bytes) => {
                let body = Full::new(Bytes::copy_from_slice(bytes)).map_err(|never| match never {});
                Ok((body.boxed_unsync(), bytes.len() as u64))
            }
            Self::File(path, length) => {
                let failed = |source| PushError::File { path: path.to_owned(), source };
                let file = File::open(path).map_err(failed)?.take(length);
                // The thread is this carrier's own: nobody else waits while it reads.
                let pieces = unfold(file, |mut file| async move {
                    let mut piece = vec![0; PIECE];
                    match file.read(&mut piece) {
                        Ok(0) => None,
                        Ok(count) => {
                            piece.truncate(count);
                            Some((Ok(Frame::data(Bytes::from(piece))), file))
                        }
                        Err(error) => Some((Err(error), file)),
                    }
                });
                Ok((StreamBody::new(pieces).boxed_unsync(), length))
            }
        }
    }
}

// === impl PushError ===

impl PushError {
    /// Whether it is worth another try. What was read and refused is not; a missing right or a busy hub may be put right.
    pub(super) fn judged(self) -> CarryError {
        let last =
            matches!(&self, Self::Refused { status, .. } if matches!(status.as_u16(), 400 | 409 | 413 | 422));
        if last { CarryError::Never(Box::new(self)) } else { CarryError::Later(Box::new(self)) }
    }
}
