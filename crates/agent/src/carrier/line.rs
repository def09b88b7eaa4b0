//! An HTTP client for one server.
//!
//! It uses TLS with files that are reloaded when they change, and authenticates with a token or a
//! certificate.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::unfold;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use landfall_net::{CertificateFiles, ClientTls, Reloading, TlsError};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::{CarryError, NetworkError};

/// Response body limit: a receipt has one line, an error a few.
const MAX_ANSWER: usize = 64 << 10;
/// Characters of a server's error message that are kept.
const MAX_REASON: usize = 400;
/// Bytes of a file in memory at a time.
const PIECE: usize = 64 << 10;

/// A server, with the agent's credentials.
pub(super) struct Line {
    host: String,
    port: u16,
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
    #[error("`{0}` is no object: `NAMESPACE/NAME`")]
    Object(String),
    #[error("`{0}` is no address of a hub: `https://HOST[:PORT]`, or `http://` to this machine itself")]
    Address(String),
    #[error("no neighbour is named")]
    NoNeighbour,
    #[error("cannot prepare the network")]
    Network(#[source] NetworkError),
}

/// Reason why a request failed.
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
    #[error("cannot agree on TLS with {host}:{port}")]
    Handshake {
        host: String,
        port: u16,
        #[source]
        source: io::Error,
    },
    #[error("the other side does not speak HTTP, or wants TLS (`https://`)")]
    Http(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("cannot use the TLS files")]
    Tls(#[source] TlsError),
    #[error("the other side answered {status}: {reason}")]
    Refused { status: StatusCode, reason: String },
    #[error("the other side did not answer within {} s", .0.as_secs())]
    Late(Duration),
}

type Body = UnsyncBoxBody<Bytes, io::Error>;

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
        let invalid = || HubError::Address(address.to_owned());
        let uri: Uri = address.parse().map_err(|_| invalid())?;
        let host = uri.host().ok_or_else(invalid)?.trim_matches(['[', ']']).to_owned();
        let encrypted = match uri.scheme_str() {
            Some("https") => true,
            // Over plain HTTP, any observer could read the token.
            Some("http") if ["localhost", "127.0.0.1", "::1"].contains(&host.as_str()) => false,
            _ => return Err(invalid()),
        };
        let port = uri.port_u16().unwrap_or(if encrypted { 443 } else { 80 });
        let tls = encrypted.then(|| Tls::new(authority, certificate));
        Ok(Self { host, port, tls, token })
    }

    /// Sends the request; returns once the server has acknowledged it.
    pub(super) async fn run(&self, errand: &Errand<'_>) -> Result<(), PushError> {
        let tls = self.tls.as_ref().map(Tls::current).transpose().map_err(PushError::Tls)?;
        let done = tokio::time::timeout(errand.patience, self.push(tls, errand)).await;
        done.unwrap_or(Err(PushError::Late(errand.patience)))
    }

    async fn push(&self, tls: Option<Arc<ClientConfig>>, errand: &Errand<'_>) -> Result<(), PushError> {
        let reach = |source| PushError::Reach { host: self.host.clone(), port: self.port, source };
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(reach)?;
        let Some(tls) = tls else { return self.converse(Either::Left(stream), errand).await };
        let name = ServerName::try_from(self.host.clone()).map_err(|error| reach(io::Error::other(error)))?;
        let refused = |source| PushError::Handshake { host: self.host.clone(), port: self.port, source };
        let stream = TlsConnector::from(tls).connect(name, stream).await.map_err(refused)?;
        self.converse(Either::Right(Box::new(stream)), errand).await
    }

    /// Returns the `Host` value, with an IPv6 address in brackets.
    fn authority(&self) -> String {
        let (host, port) = (&self.host, self.port);
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Sends the request over either kind of stream. The binary thus contains one instance of the HTTP code.
    async fn converse(
        &self,
        stream: Either<TcpStream, Box<TlsStream<TcpStream>>>,
        errand: &Errand<'_>,
    ) -> Result<(), PushError> {
        let http = |source: hyper::Error| PushError::Http(Box::new(source));
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(http)?;
        // The connection task ends with the sender, which also returns its errors.
        tokio::spawn(connection);
        let (body, length) = errand.body.open()?;
        let mut request = Request::builder()
            .method(errand.method.clone())
            .uri(errand.path)
            .header("host", self.authority())
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
        // A problem document of the hub, or the `Status` of an API server.
        let reason = problem["detail"].as_str().or(problem["message"].as_str()).unwrap_or(&plain);
        let reason = reason.chars().filter(|c| !c.is_control()).take(MAX_REASON).collect();
        Err(PushError::Refused { status, reason })
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
            Self::Bytes(bytes) => {
                let body = Full::new(Bytes::copy_from_slice(bytes)).map_err(|never| match never {});
                Ok((body.boxed_unsync(), bytes.len() as u64))
            }
            Self::File(path, length) => {
                let failed = |source| PushError::File { path: path.to_owned(), source };
                let file = File::open(path).map_err(failed)?.take(length);
                // A blocking read is harmless here: the thread belongs to this carrier.
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
    /// Decides whether a retry can succeed. A report that was read and rejected is final; a missing
    /// permission or a busy hub may be resolved.
    pub(super) fn judged(self) -> CarryError {
        let status = match &self {
            Self::Refused { status, .. } => status.as_u16(),
            _ => 0,
        };
        match status {
            400 | 409 | 413 | 422 => CarryError::Never(Box::new(self)),
            403 => CarryError::NotPermitted(Box::new(self)),
            _ => CarryError::Later(Box::new(self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_ipv6_stands_in_brackets() {
        for (address, host, authority) in [
            ("https://[fd00::5]:8700", "fd00::5", "[fd00::5]:8700"),
            ("https://hub.corp", "hub.corp", "hub.corp:443"),
            ("http://127.0.0.1:8700", "127.0.0.1", "127.0.0.1:8700"),
        ] {
            let line = Line::new(address, None, None, None).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!((line.host.as_str(), line.authority().as_str()), (host, authority));
        }
    }
}
