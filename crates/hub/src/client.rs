//! Client of a hub for `landfall status` and `landfall hub forget`: one request and one response, both bounded.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::{Method, Request};
use landfall_model::Secret;
use landfall_net::http::{self, HttpError, Limits, Server};
use landfall_net::{CertificateFiles, ClientTls, TlsError};
use rustls::ClientConfig;

/// Timeout of a request.
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum size of a response; a page of 1,000 nodes is below 1 MB.
const MAX_ANSWER: usize = 32 << 20;
/// Client of a hub at one address.
#[expect(missing_debug_implementations, reason = "holds a token")]
pub struct Client {
    server: Server,
    authority: Option<PathBuf>,
    token: Option<Secret<String>>,
    /// The client certificate and its key.
    certificate: Option<(PathBuf, PathBuf)>,
    within: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("invalid hub URL `{0}`: must be `http://HOST:PORT` or `https://HOST[:PORT]`")]
    Address(String),
    #[error("a token is not sent to `{0}` in the clear: `https://HOST[:PORT]`, or this machine")]
    Clear(String),
    #[error("cannot use the TLS files")]
    Tls(#[source] TlsError),
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("the hub refused: {detail}")]
    Refused { status: u16, detail: String },
}

// === impl Client ===

impl Client {
    pub fn new(
        address: &str,
        authority: Option<PathBuf>,
        token: Option<Secret<String>>,
    ) -> Result<Self, ClientError> {
        let server = Server::parse(address).ok_or_else(|| ClientError::Address(address.to_owned()))?;
        if token.is_some() && !server.encrypted && !server.is_loopback() {
            return Err(ClientError::Clear(address.to_owned()));
        }
        Ok(Self { server, authority, token, certificate: None, within: PATIENCE })
    }

    /// Sets the client certificate and its key (PEM). It is only used with TLS.
    #[must_use]
    pub fn with_certificate(self, certificate: Option<(PathBuf, PathBuf)>) -> Self {
        Self { certificate, ..self }
    }

    /// Sets the timeout of a request.
    #[must_use]
    pub(crate) fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }

    /// Returns the body of a successful GET of this path.
    pub async fn get(&self, path: &str) -> Result<Bytes, ClientError> {
        self.ask(Method::GET, path).await
    }

    /// Sends a DELETE of this path.
    pub async fn delete(&self, path: &str) -> Result<(), ClientError> {
        self.ask(Method::DELETE, path).await.map(drop)
    }

    async fn ask(&self, method: Method, path: &str) -> Result<Bytes, ClientError> {
        let tls = self.server.encrypted.then(|| self.tls()).transpose()?.map(Arc::new);
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {}", token.expose().trim()));
        }
        let request = request.body(http::empty()).map_err(HttpError::Request)?;
        let limits = Limits { within: self.within, answer: MAX_ANSWER };
        http::exchange(&self.server, tls, request, limits).await.map_err(|error| match error {
            HttpError::Status { status, reason, .. } => {
                ClientError::Refused { status: status.as_u16(), detail: reason }
            }
            error => ClientError::Http(error),
        })
    }

    fn tls(&self) -> Result<ClientConfig, ClientError> {
        let certificate = self.certificate.clone();
        let certificate = certificate.map(|(certificate, key)| CertificateFiles { certificate, key });
        let tls = ClientTls { ca: self.authority.clone(), certificate, protocols: Vec::new() };
        tls.read().map_err(ClientError::Tls)
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
