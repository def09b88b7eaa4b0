//! A connection to any server behind the endpoint. A load balancer chooses a server per connection, so knowledge about
//! a server is valid for that connection only.

use std::sync::Arc;
use std::time::Duration;

use hyper::{HeaderMap, Method, Request, Uri, header};
use landfall_net::ConnectProxy;
use landfall_net::http::{self, Answer, BoxStream, HttpError};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::proxy;
use crate::{Access, Endpoint, Error, tls};

/// Timeout for TCP, the proxy's response and the TLS handshake together.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);

/// Timeout for the head of a response.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Maximum size of a small document.
pub(crate) const MAX_SMALL_BODY: usize = 64 << 10;

/// Opens connections to one endpoint.
pub(crate) struct Dialer<'a> {
    endpoint: &'a Endpoint,
    access: &'a Access,
    proxy: Option<ConnectProxy>,
    tls: Arc<ClientConfig>,
    server_name: String,
}

/// The intended server of a connection, where both share one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    Gateway,
    ApiServer,
}

/// An HTTP/1.1 connection.
pub(crate) struct Connection {
    connection: http::Connection,
    authorization: Option<header::HeaderValue>,
}

// === impl Dialer ===

impl<'a> Dialer<'a> {
    pub(crate) fn new(endpoint: &'a Endpoint, access: &'a Access, speaks: Speaks) -> Result<Self, Error> {
        let proxy = proxy::choose(access.proxy.as_deref(), endpoint.host(), |name| std::env::var(name).ok())?;
        let tls = Arc::new(tls::client(access, speaks)?);
        let server_name = access.server_name.as_deref().unwrap_or(endpoint.host()).to_owned();
        ServerName::try_from(server_name.as_str())
            .map_err(|_| Error::Credentials { what: format!("invalid server name `{server_name}`") })?;
        Ok(Self { endpoint, access, proxy, tls, server_name })
    }

    /// Opens a new connection, through the proxy if there is one.
    pub(crate) async fn dial(&self) -> Result<Connection, Error> {
        let to = self.endpoint.authority();
        http::in_time(&to, CONNECT_LIMIT, async {
            let stream = match &self.proxy {
                Some(proxy) => proxy.open(&to, None, CONNECT_LIMIT).await?,
                None => http::connect(self.endpoint.host(), self.endpoint.port(), &to).await?,
            };
            self.over(stream).await
        })
        .await
    }

    /// Opens a connection over an existing stream.
    pub(crate) async fn over(&self, stream: BoxStream) -> Result<Connection, Error> {
        let (tls, to) = (Arc::clone(&self.tls), self.endpoint.authority());
        let connection =
            http::Connection::over_tls(stream, tls, &self.server_name, to, CONNECT_LIMIT).await?;
        let authorization = match &self.access.token {
            None => None,
            Some(token) => {
                let mut value =
                    header::HeaderValue::try_from(format!("Bearer {}", token.expose())).map_err(|_| {
                        Error::Credentials { what: "the token cannot be sent in a header".into() }
                    })?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        Ok(Connection { connection, authorization })
    }
}

// === impl Connection ===

impl Connection {
    /// Sends one request and waits for the head of its response.
    pub(crate) async fn ask(
        &mut self,
        method: Method,
        target: &str,
        headers: HeaderMap,
    ) -> Result<Answer, Error> {
        let mut request = Request::new(http::empty());
        let url = target.parse::<Uri>();
        *request.uri_mut() = url.map_err(|error| HttpError::Request(error.into()))?;
        *request.method_mut() = method;
        *request.headers_mut() = headers;
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(header::AUTHORIZATION, authorization.clone());
        }
        Ok(self.connection.send(request, ANSWER_LIMIT).await?)
    }
}

/// Returns the status of a rejection, and its name and reason.
pub(crate) async fn said(answer: Answer) -> (u16, String) {
    let status = answer.status();
    let name = status.canonical_reason().unwrap_or("unknown status");
    let text = match answer.rejection(ANSWER_LIMIT).await {
        HttpError::Status { reason, .. } if reason != name => format!(" {name}: {reason}"),
        _ => format!(" {name}"),
    };
    (status.as_u16(), text)
}
