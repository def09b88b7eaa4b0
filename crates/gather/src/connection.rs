//! A connection to any server behind the endpoint. A load balancer chooses a server per connection, so knowledge about
//! a server is valid for that connection only.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{HeaderMap, Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use landfall_model::chain;
use landfall_net::{ConnectProxy, ProxyPlace, ask_connect};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::proxy;
use crate::{Access, Endpoint, Error, tls};

/// Timeout for TCP, the proxy's response and the TLS handshake together.
const CONNECT_LIMIT: Duration = Duration::from_secs(15);

/// Timeout for the head of a response.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Maximum size of an error message or a small document.
pub(crate) const MAX_SMALL_BODY: usize = 64 << 10;

/// Opens connections to one endpoint.
pub(crate) struct Dialer<'a> {
    endpoint: &'a Endpoint,
    access: &'a Access,
    proxy: Option<ConnectProxy>,
    connector: TlsConnector,
    server_name: ServerName<'static>,
}

/// The intended server of a connection, where both share one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    Gateway,
    ApiServer,
}

/// A bidirectional byte stream.
pub(crate) trait Wire: AsyncRead + AsyncWrite + Unpin + Send + 'static {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + 'static> Wire for T {}

/// An HTTP/1.1 connection.
pub(crate) struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    endpoint: String,
    authorization: Option<header::HeaderValue>,
}

// === impl Dialer ===

impl<'a> Dialer<'a> {
    pub(crate) fn new(endpoint: &'a Endpoint, access: &'a Access, speaks: Speaks) -> Result<Self, Error> {
        let proxy = proxy::choose(access.proxy.as_deref(), endpoint.host(), |name| std::env::var(name).ok())?;
        let connector = TlsConnector::from(Arc::new(tls::client(access, speaks)?));
        let name = access.server_name.as_deref().unwrap_or(endpoint.host());
        let server_name = ServerName::try_from(name.to_owned())
            .map_err(|_| Error::Credentials { what: format!("invalid server name `{name}`") })?;
        Ok(Self { endpoint, access, proxy, connector, server_name })
    }

    /// Opens a new connection, through the proxy if there is one.
    pub(crate) async fn dial(&self) -> Result<Connection, Error> {
        let to = self.endpoint.authority();
        match tokio::time::timeout(CONNECT_LIMIT, self.dial_unlimited()).await {
            Ok(connection) => connection,
            Err(_) => Err(Error::Late { to, seconds: CONNECT_LIMIT.as_secs() }),
        }
    }

    async fn dial_unlimited(&self) -> Result<Connection, Error> {
        let to = self.endpoint.authority();
        let (host, port) = match self.proxy.as_ref().map(|proxy| &proxy.place) {
            Some(ProxyPlace::Tcp { host, port }) => (host.as_str(), *port),
            _ => (self.endpoint.host(), self.endpoint.port()),
        };
        let connected = TcpStream::connect((host, port)).await;
        let mut stream =
            connected.map_err(|source| Error::Connect { to: format!("{host}:{port}"), source })?;
        // A failure only reduces speed.
        let _ = stream.set_nodelay(true);
        if let Some(proxy) = &self.proxy {
            let asked = ask_connect(&mut stream, proxy.authorization.as_deref(), &to).await;
            asked
                .map_err(|error| Error::Proxy { proxy: proxy.to_string(), why: chain(&error).to_string() })?;
        }
        self.speak(Box::new(stream)).await
    }

    /// Opens a connection over an existing stream.
    pub(crate) async fn over(&self, stream: impl Wire) -> Result<Connection, Error> {
        match tokio::time::timeout(CONNECT_LIMIT, self.speak(Box::new(stream))).await {
            Ok(connection) => connection,
            Err(_) => Err(Error::Late { to: self.endpoint.authority(), seconds: CONNECT_LIMIT.as_secs() }),
        }
    }

    /// Boxed, so that the TLS and HTTP code is compiled once.
    async fn speak(&self, stream: Box<dyn Wire>) -> Result<Connection, Error> {
        let to = self.endpoint.authority();
        let stream = self.connector.connect(self.server_name.clone(), stream).await;
        let stream = stream.map_err(|source| Error::Tls { to: to.clone(), source })?;
        let (sender, driver) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|source| Error::Http { to: to.clone(), source })?;
        // Ends with the connection; pending requests get its error.
        tokio::spawn(driver.with_upgrades());
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
        Ok(Connection { sender, endpoint: to, authorization })
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
    ) -> Result<Response<Incoming>, Error> {
        let to = self.endpoint.clone();
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = target
            .parse()
            .map_err(|_| Error::Url { url: target.to_owned(), why: "it cannot be asked for" })?;
        *request.method_mut() = method;
        *request.headers_mut() = headers;
        if let Ok(host) = header::HeaderValue::try_from(&to) {
            request.headers_mut().insert(header::HOST, host);
        }
        if let Some(authorization) = &self.authorization {
            request.headers_mut().insert(header::AUTHORIZATION, authorization.clone());
        }
        let answer = async {
            self.sender.ready().await?;
            self.sender.send_request(request).await
        };
        match tokio::time::timeout(ANSWER_LIMIT, answer).await {
            Ok(answer) => answer.map_err(|source| Error::Http { to, source }),
            Err(_) => Err(Error::Late { to, seconds: ANSWER_LIMIT.as_secs() }),
        }
    }
}

/// Returns the body of a small response, or `None` above the limit.
pub(crate) async fn small_body(response: Response<Incoming>) -> Option<Bytes> {
    let body = Limited::new(response.into_body(), MAX_SMALL_BODY);
    let whole = tokio::time::timeout(ANSWER_LIMIT, body.collect()).await.ok()?;
    Some(whole.ok()?.to_bytes())
}

/// Returns the message of an error response: that of a `metav1.Status`, or the first line of the body.
pub(crate) async fn said(response: Response<Incoming>) -> (u16, String) {
    let status: StatusCode = response.status();
    let body = small_body(response).await.unwrap_or_default();
    let message = serde_json::from_slice::<serde_json::Value>(&body)
        .ok()
        .and_then(|value| value.get("message")?.as_str().map(str::to_owned))
        .or_else(|| String::from_utf8_lossy(&body).lines().next().map(str::to_owned))
        .filter(|text| !text.trim().is_empty());
    let name = status.canonical_reason().unwrap_or("unknown status");
    let text = message.map_or_else(|| format!(" {name}"), |message| format!(" {name}: {message}"));
    (status.as_u16(), text)
}
