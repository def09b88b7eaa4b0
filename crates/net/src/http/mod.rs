//! The HTTP/1.1 client of every role.
//!
//! A connection carries one request at a time, over TCP, TLS or a stream that is open already: a Unix socket, a
//! forwarded port, a connection through a proxy. Every wait has a deadline and every answer in memory a maximum size.
//!
//! ```text
//! exchange: open ─▶ send ─▶ success ─▶ bytes     one small answer, one deadline for everything
//! open, send, piece, piece, …                    a stream, with a deadline for each piece
//! ```

use std::error::Error as _;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty, Full, Limited, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, HeaderMap, HeaderValue};
use hyper::{Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc::Receiver;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::ConnectError;

pub use hyper::{Method, Request, StatusCode};

/// Maximum size of a rejection's body, and characters of it in an error.
const MAX_REJECTION: usize = 64 << 10;
const MAX_REASON: usize = 2000;
/// Bytes of a file that are read at once, and chunks that are read before they are sent.
const CHUNK: u64 = 128 << 10;
const CHUNKS_AHEAD: usize = 2;

/// The body of a request.
pub type Body = BoxBody<Bytes, io::Error>;

/// A bidirectional byte stream. Boxed, so that the TLS and HTTP code is compiled once.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> ByteStream for T {}
pub type BoxStream = Box<dyn ByteStream>;

/// The address of a server: `http://HOST[:PORT]` or `https://HOST[:PORT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub encrypted: bool,
    /// Without the brackets of an IPv6 address.
    pub host: String,
    pub port: u16,
}

/// An HTTP/1.1 connection.
#[derive(Debug)]
pub struct Connection {
    sender: SendRequest<Body>,
    to: String,
    certificate: Vec<u8>,
}

/// The head of an answer, and its body as far as it was not read yet.
#[derive(Debug)]
pub struct Answer {
    to: String,
    response: Response<Incoming>,
}

/// Limits of one exchange.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time from the start of the connection to the end of the answer.
    pub within: Duration,
    /// Maximum size of the answer.
    pub answer: usize,
}

/// Reason for a missing or incomplete answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("cannot connect to {to}")]
    Unreachable { to: String, source: io::Error },
    #[error("cannot connect through the proxy {proxy}")]
    Proxy { proxy: String, source: ConnectError },
    #[error("cannot agree on TLS with {to}")]
    Tls { to: String, source: io::Error },
    #[error("{to} does not accept our certificate ({alert:?})")]
    CertificateRejected { to: String, alert: AlertDescription },
    #[error("{to} does not answer in HTTP, or requires TLS (`https://`)")]
    NotHttp { to: String, source: hyper::Error },
    #[error("cannot complete the HTTP exchange with {to}")]
    Broken { to: String, source: hyper::Error },
    #[error("cannot build the HTTP request")]
    Request(#[from] hyper::http::Error),
    #[error("no answer from {to} within {} s", within.as_secs_f32())]
    Late { to: String, within: Duration },
    #[error("the answer of {to} is longer than {limit} bytes")]
    TooLarge { to: String, limit: usize },
    #[error("{to} answered {status}: {reason}")]
    Status { to: String, status: StatusCode, reason: String },
}

/// Sends one request over its own connection and returns the body of a successful answer.
pub async fn exchange(
    server: &Server,
    tls: Option<Arc<ClientConfig>>,
    request: Request<Body>,
    limits: Limits,
) -> Result<Bytes, HttpError> {
    in_time(&server.to_string(), limits.within, async {
        Connection::open(server, tls, limits.within).await?.exchange(request, limits).await
    })
    .await
}

/// Limits the duration of `work`.
pub async fn in_time<T, E: From<HttpError>>(
    to: &str,
    within: Duration,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let done = tokio::time::timeout(within, work).await;
    done.unwrap_or_else(|_| Err(HttpError::Late { to: to.to_owned(), within }.into()))
}

/// Opens a TCP connection to the server, which is named `to` in errors. The caller limits the time.
pub async fn connect(host: &str, port: u16, to: &str) -> Result<BoxStream, HttpError> {
    let stream = TcpStream::connect((host, port)).await;
    let stream = stream.map_err(|source| HttpError::Unreachable { to: to.to_owned(), source })?;
    crate::prepare(&stream);
    Ok(Box::new(stream))
}

/// Performs the TLS handshake with the server of this name.
pub(crate) async fn secure(
    stream: BoxStream,
    tls: Arc<ClientConfig>,
    name: &str,
    to: &str,
) -> Result<TlsStream<BoxStream>, HttpError> {
    let failed = |source| HttpError::Tls { to: to.to_owned(), source };
    let name = ServerName::try_from(name.to_owned()).map_err(|error| failed(io::Error::other(error)))?;
    TlsConnector::from(tls).connect(name, stream).await.map_err(failed)
}

pub fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed()
}

pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

/// Streams the first `length` bytes of a file. The request fails if the file is shorter.
pub fn file(file: File, length: u64) -> Body {
    // Started when the body is needed: name resolution may need the only thread that may block.
    let chunks = stream::once(async move {
        let receiver = read_ahead(file, length);
        stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)))
    });
    Body::new(StreamBody::new(chunks.flatten()))
}

/// Reads a file on a thread that may block on the disk.
fn read_ahead(file: File, length: u64) -> Receiver<io::Result<Frame<Bytes>>> {
    let (sender, receiver) = tokio::sync::mpsc::channel(CHUNKS_AHEAD);
    tokio::task::spawn_blocking(move || {
        let mut rest = file.take(length);
        loop {
            let mut chunk = Vec::new();
            let read = rest.by_ref().take(CHUNK).read_to_end(&mut chunk);
            let chunk = match read {
                Ok(0) if rest.limit() == 0 => return,
                Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => Ok(Frame::data(Bytes::from(chunk))),
                Err(error) => Err(error),
            };
            let failed = chunk.is_err();
            // The receiver is dropped when the request is over.
            if sender.blocking_send(chunk).is_err() || failed {
                return;
            }
        }
    });
    receiver
}

fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Returns the reason in the body of a rejection, on one line: the text of a problem document or of a
/// `metav1.Status`, or plain text.
fn reason(status: StatusCode, body: &[u8]) -> String {
    let problem: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    // A web page of a proxy says nothing in its first lines.
    let plain = std::str::from_utf8(body).ok().filter(|text| !text.contains('<'));
    let text = problem["detail"].as_str().or(problem["message"].as_str()).or(plain).unwrap_or_default();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match lines.as_slice() {
        [] => status.canonical_reason().unwrap_or("unknown status").to_owned(),
        lines => lines.join("; ").chars().filter(|c| !c.is_control()).take(MAX_REASON).collect(),
    }
}

// === impl Server ===

impl Server {
    /// Parses a URL without path, query and credentials.
    pub fn parse(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let encrypted = match uri.scheme_str()? {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let host = uri.host()?.trim_matches(['[', ']']).to_owned();
        Some(Self { encrypted, host, port: uri.port_u16().unwrap_or(if encrypted { 443 } else { 80 }) })
    }

    /// Returns whether requests do not leave this machine, so that they may contain a token without TLS.
    pub fn is_loopback(&self) -> bool {
        self.host.eq_ignore_ascii_case("localhost")
            || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Server {
    /// Writes the authority: `HOST:PORT`, with the brackets of an IPv6 address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&authority(&self.host, self.port))
    }
}

// === impl Connection ===

impl Connection {
    /// Connects over TCP, and with TLS if there is a configuration for it.
    pub async fn open(
        server: &Server,
        tls: Option<Arc<ClientConfig>>,
        within: Duration,
    ) -> Result<Self, HttpError> {
        in_time(&server.to_string(), within, async {
            let to = server.to_string();
            let stream = connect(&server.host, server.port, &to).await?;
            match tls {
                None => Self::over(stream, to).await,
                Some(tls) => Self::over_tls(stream, tls, &server.host, to, within).await,
            }
        })
        .await
    }

    /// Performs the TLS handshake over an open stream to `to` with the server of this name.
    pub async fn over_tls(
        stream: BoxStream,
        tls: Arc<ClientConfig>,
        name: &str,
        to: String,
        within: Duration,
    ) -> Result<Self, HttpError> {
        let stream = in_time(&to, within, secure(stream, tls, name, &to)).await?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let certificate = certificate.map(|certificate| certificate.to_vec()).unwrap_or_default();
        let connection = Self::over(Box::new(stream), to).await?;
        Ok(Self { certificate, ..connection })
    }

    /// Uses an open stream to `to`, which is the name in errors and in the `Host` header.
    pub async fn over(stream: BoxStream, to: String) -> Result<Self, HttpError> {
        // This does not wait for the peer.
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|source| failed(&to, source))?;
        // The task ends with the sender, which also returns its errors.
        tokio::spawn(connection.with_upgrades());
        Ok(Self { sender, to, certificate: Vec::new() })
    }

    /// Returns the peer's verified certificate (DER); empty without TLS.
    pub fn certificate(&self) -> &[u8] {
        &self.certificate
    }

    /// Sends a request and returns the body of a successful answer.
    pub async fn exchange(&mut self, request: Request<Body>, limits: Limits) -> Result<Bytes, HttpError> {
        let Limits { within, answer } = limits;
        let to = self.to.clone();
        in_time(&to, within, async {
            self.send(request, within).await?.success(within).await?.bytes(answer, within).await
        })
        .await
    }

    /// Sends a request and waits for the head of the answer. Adds the `Host` header if there is none.
    pub async fn send(&mut self, mut request: Request<Body>, within: Duration) -> Result<Answer, HttpError> {
        if !request.headers().contains_key(HOST)
            && let Ok(host) = HeaderValue::from_str(&self.to)
        {
            request.headers_mut().insert(HOST, host);
        }
        let (sender, to) = (&mut self.sender, &self.to);
        let answer = async {
            sender.ready().await.map_err(|source| failed(to, source))?;
            sender.send_request(request).await.map_err(|source| failed(to, source))
        };
        Ok(Answer { response: in_time(to, within, answer).await?, to: to.clone() })
    }
}

/// Converts an error of a connection. With TLS 1.3 a rejected client certificate is reported with the first answer.
fn failed(to: &str, source: hyper::Error) -> HttpError {
    let to = to.to_owned();
    match alert(&source) {
        Some(alert) => HttpError::CertificateRejected { to, alert },
        None if source.is_parse() => HttpError::NotHttp { to, source },
        None => HttpError::Broken { to, source },
    }
}

/// Returns the TLS alert that ended the connection. If the task of the connection saw it first, the error of the
/// request contains the error of the connection.
fn alert(error: &hyper::Error) -> Option<AlertDescription> {
    let mut causes = std::iter::successors(error.source(), |&error| error.source());
    causes.find_map(|cause| match cause.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref()? {
        rustls::Error::AlertReceived(alert) => Some(*alert),
        _ => None,
    })
}

// === impl Answer ===

impl Answer {
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// Returns the answer if it is a success, and otherwise the reason of the rejection as an error.
    pub async fn success(self, within: Duration) -> Result<Self, HttpError> {
        if self.status().is_success() { Ok(self) } else { Err(self.rejection(within).await) }
    }

    /// Reads the reason of a rejection. The status is reported even if the body cannot be read.
    pub async fn rejection(self, within: Duration) -> HttpError {
        let (to, status) = (self.to.clone(), self.status());
        let body = self.bytes(MAX_REJECTION, within).await.unwrap_or_default();
        HttpError::Status { to, status, reason: reason(status, &body) }
    }

    /// Reads the body, up to a maximum size.
    pub async fn bytes(self, limit: usize, within: Duration) -> Result<Bytes, HttpError> {
        let Self { to, response } = self;
        if response.body().size_hint().lower() > limit as u64 {
            return Err(HttpError::TooLarge { to, limit });
        }
        in_time(&to, within, async {
            let body = Limited::new(response.into_body(), limit).collect().await;
            let body = body.map_err(|error| match error.downcast::<hyper::Error>() {
                Ok(source) => failed(&to, *source),
                Err(_) => HttpError::TooLarge { to: to.clone(), limit },
            });
            Ok(body?.to_bytes())
        })
        .await
    }

    /// Returns the next piece of the body, or `None` after the last.
    pub async fn piece(&mut self, idle: Duration) -> Result<Option<Bytes>, HttpError> {
        let Self { to, response } = self;
        in_time(to, idle, async {
            while let Some(frame) = response.frame().await {
                // Trailers are ignored.
                if let Ok(data) = frame.map_err(|source| failed(to, source))?.into_data() {
                    return Ok(Some(data));
                }
            }
            Ok(None)
        })
        .await
    }

    /// Returns the connection, of which the server made a tunnel.
    pub async fn upgrade(self) -> Result<BoxStream, HttpError> {
        let Self { to, response } = self;
        let upgraded = hyper::upgrade::on(response).await.map_err(|source| failed(&to, source))?;
        Ok(Box::new(TokioIo::new(upgraded)))
    }
}

#[cfg(test)]
mod tests;
