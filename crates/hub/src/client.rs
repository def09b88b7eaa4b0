//! Client of a hub for `landfall status` and `landfall hub forget`: one request and one response, both bounded.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use landfall_model::Secret;
use landfall_net::{CertificateFiles, ClientTls, TlsError};
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use crate::access::is_loopback_name;

/// Timeout of a request.
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum size of a response; a page of 1,000 nodes is below 1 MB.
const MAX_ANSWER: usize = 32 << 20;
/// Maximum length of the reported reason of a rejection.
const MAX_DETAIL: usize = 2000;

/// Client of a hub at one address.
#[expect(missing_debug_implementations, reason = "holds a token")]
pub struct Client {
    encrypted: bool,
    host: String,
    port: u16,
    authority: Option<PathBuf>,
    token: Option<Secret<String>>,
    /// The client certificate and its key.
    certificate: Option<(PathBuf, PathBuf)>,
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("`{0}` is no address of a hub: `http://HOST:PORT` or `https://HOST[:PORT]`")]
    Address(String),
    #[error("a token is not sent to `{0}` in the clear: `https://HOST[:PORT]`, or this machine")]
    Clear(String),
    #[error("cannot use the TLS files")]
    Tls(#[source] TlsError),
    #[error("cannot reach the hub at {host}:{port}")]
    Reach { host: String, port: u16, source: io::Error },
    #[error("the hub at {host}:{port} does not speak HTTP")]
    Http { host: String, port: u16, source: hyper::Error },
    #[error("the hub's answer is too long or was cut off")]
    Answer(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the hub at {host}:{port} does not take our certificate ({alert:?})")]
    TurnedAway { host: String, port: u16, alert: AlertDescription },
    #[error("the hub refused: {detail}")]
    Refused { status: u16, detail: String },
    #[error("the hub did not answer within {} s", PATIENCE.as_secs())]
    Late,
}

// === impl Client ===

impl Client {
    pub fn new(
        address: &str,
        authority: Option<PathBuf>,
        token: Option<Secret<String>>,
    ) -> Result<Self, ClientError> {
        let invalid = || ClientError::Address(address.to_owned());
        let uri: hyper::Uri = address.parse().map_err(|_| invalid())?;
        let encrypted = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(invalid()),
        };
        let host = uri.host().ok_or_else(invalid)?.to_owned();
        let port = uri.port_u16().unwrap_or(if encrypted { 443 } else { 80 });
        if token.is_some() && !encrypted && !is_loopback_name(&host) {
            return Err(ClientError::Clear(address.to_owned()));
        }
        Ok(Self { encrypted, host, port, authority, token, certificate: None })
    }

    /// Sets the client certificate and its key (PEM). It is only used with TLS.
    #[must_use]
    pub fn with_certificate(self, certificate: Option<(PathBuf, PathBuf)>) -> Self {
        Self { certificate, ..self }
    }

    /// Returns the body of a successful GET of this path.
    pub async fn get(&self, path: &str) -> Result<Bytes, ClientError> {
        self.in_time(Method::GET, path).await
    }

    /// Sends a DELETE of this path.
    pub async fn delete(&self, path: &str) -> Result<(), ClientError> {
        self.in_time(Method::DELETE, path).await.map(drop)
    }

    async fn in_time(&self, method: Method, path: &str) -> Result<Bytes, ClientError> {
        tokio::time::timeout(PATIENCE, self.ask(method, path)).await.map_err(|_| ClientError::Late)?
    }

    async fn ask(&self, method: Method, path: &str) -> Result<Bytes, ClientError> {
        let bare = self.host.trim_start_matches('[').trim_end_matches(']');
        let stream =
            TcpStream::connect((bare, self.port)).await.map_err(|source| self.unreachable(source))?;
        if !self.encrypted {
            return self.converse(Either::Left(stream), method, path).await;
        }
        let invalid = |_| self.unreachable(io::Error::other("the name cannot be in a certificate"));
        let name = ServerName::try_from(bare.to_owned()).map_err(invalid)?;
        let connector = TlsConnector::from(Arc::new(self.tls()?));
        let stream = connector.connect(name, stream).await.map_err(|source| self.unreachable(source))?;
        self.converse(Either::Right(Box::new(stream)), method, path).await
    }

    /// Generic over a boxed stream, so that the HTTP code is compiled once.
    async fn converse(
        &self,
        stream: Either<TcpStream, Box<TlsStream<TcpStream>>>,
        method: Method,
        path: &str,
    ) -> Result<Bytes, ClientError> {
        let broken = |source| self.broken(source);
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // The task ends with the sender, which returns its errors.
        tokio::spawn(connection);
        let host = format!("{}:{}", self.host, self.port);
        let mut request = Request::builder().method(method).uri(path).header("host", host);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {}", token.expose().trim()));
        }
        let request =
            request.body(Empty::<Bytes>::new()).map_err(|source| ClientError::Answer(Box::new(source)))?;
        let answer = sender.send_request(request).await.map_err(broken)?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER)
            .collect()
            .await
            .map_err(ClientError::Answer)?
            .to_bytes();
        if status.is_success() {
            return Ok(body);
        }
        let problem: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        let plain =
            std::str::from_utf8(&body).ok().filter(|text| !text.trim().is_empty() && !text.contains('<'));
        let detail = problem["detail"].as_str().or(plain);
        let detail = detail.unwrap_or_else(|| status.canonical_reason().unwrap_or("unknown"));
        Err(ClientError::Refused {
            status: status.as_u16(),
            detail: detail.chars().take(MAX_DETAIL).collect(),
        })
    }

    fn tls(&self) -> Result<ClientConfig, ClientError> {
        let certificate = self.certificate.clone();
        let certificate = certificate.map(|(certificate, key)| CertificateFiles { certificate, key });
        let tls = ClientTls { ca: self.authority.clone(), certificate, protocols: Vec::new() };
        tls.read().map_err(ClientError::Tls)
    }

    /// Converts an HTTP error. With TLS 1.3 a rejected client certificate is only reported with the first response.
    fn broken(&self, source: hyper::Error) -> ClientError {
        let (host, port) = (self.host.clone(), self.port);
        let cause = std::error::Error::source(&source).and_then(|cause| cause.downcast_ref::<io::Error>());
        let cause = cause.and_then(io::Error::get_ref).and_then(|cause| cause.downcast_ref());
        match cause {
            Some(rustls::Error::AlertReceived(alert)) => {
                ClientError::TurnedAway { host, port, alert: *alert }
            }
            _ => ClientError::Http { host, port, source },
        }
    }

    fn unreachable(&self, source: io::Error) -> ClientError {
        ClientError::Reach { host: self.host.clone(), port: self.port, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_in_the_clear_to_this_machine_only() {
        let client = |address| Client::new(address, None, Some(Secret::new("token".to_owned())));
        for good in ["https://hub.corp", "http://127.0.0.1:8700", "http://[::1]:8700", "http://localhost"] {
            assert!(client(good).is_ok(), "{good}");
        }
        assert!(matches!(client("http://hub.corp:8700"), Err(ClientError::Clear(_))));
        assert!(Client::new("http://hub.corp:8700", None, None).is_ok(), "nothing to lose");
    }
}
