//! Connections through an HTTP CONNECT proxy: a corporate proxy, or the frontend of a tunnel server.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use landfall_model::Secret;
use percent_encoding::percent_decode_str;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::http::{self, BoxStream, HttpError};

/// Default port of an HTTP proxy.
const PORT: u16 = 3128;
const TLS_PORT: u16 = 443;
/// Maximum size of the response head, which is normally a few lines.
const MAX_ANSWER: usize = 16 << 10;
/// Maximum length of a rejection's body in the error.
const MAX_REASON: usize = 300;

/// A proxy: `http://[USER:PASSWORD@]HOST[:PORT]`, the same with `https://`, or `unix:///PATH`.
#[derive(Clone)]
pub struct ConnectProxy {
    pub place: ProxyPlace,
    /// Value of the `Proxy-Authorization` header.
    pub authorization: Option<Arc<Secret<String>>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyPlace {
    Tcp { host: String, port: u16 },
    Tls { host: String, port: u16 },
    Unix(PathBuf),
}

/// An invalid proxy URL, without the part that may contain a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid proxy `{shown}`: {why}")]
pub struct InvalidProxy {
    pub shown: String,
    pub why: &'static str,
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("speak to the proxy")]
    Speak(#[source] io::Error),
    #[error("the proxy's answer does not end")]
    Endless,
    #[error("the proxy answers `{0}`")]
    Refused(String),
}

/// Requests a connection to `target` (`host:port`) from a proxy. After success, the stream is that connection.
async fn ask_connect(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    authorization: Option<&Secret<String>>,
    target: &str,
) -> Result<(), ConnectError> {
    let mut ask = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
    if let Some(authorization) = authorization {
        ask += &format!("Proxy-Authorization: {}\r\n", authorization.expose());
    }
    ask += "\r\n";
    stream.write_all(ask.as_bytes()).await.map_err(ConnectError::Speak)?;
    stream.flush().await.map_err(ConnectError::Speak)?;
    let mut head = Vec::new();
    // Byte by byte: data after the head belongs to the target's protocol.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= MAX_ANSWER {
            return Err(ConnectError::Endless);
        }
        head.push(stream.read_u8().await.map_err(ConnectError::Speak)?);
    }
    let head = String::from_utf8_lossy(&head);
    let status = head.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) == Some("200") {
        return Ok(());
    }
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok()).flatten()
    });
    let mut reason = vec![0; length.unwrap_or(0).min(MAX_REASON)];
    // The rejection is reported even if its body cannot be read.
    if stream.read_exact(&mut reason).await.is_err() {
        reason.clear();
    }
    let told = format!("{status} {}", String::from_utf8_lossy(&reason));
    Err(ConnectError::Refused(told.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()))
}

// === impl ConnectProxy ===

impl ConnectProxy {
    /// Opens a connection to `target` (`host:port`) through the proxy. `tls` is for proxies that require it.
    pub async fn open(
        &self,
        target: &str,
        tls: Option<Arc<ClientConfig>>,
        within: Duration,
    ) -> Result<BoxStream, HttpError> {
        let to = format!("the proxy {self}");
        http::in_time(&to, within, async {
            let mut stream: BoxStream = match &self.place {
                ProxyPlace::Unix(path) => {
                    let stream = UnixStream::connect(path).await;
                    Box::new(stream.map_err(|source| HttpError::Unreachable { to: to.clone(), source })?)
                }
                ProxyPlace::Tcp { host, port } => http::connect(host, *port, &to).await?,
                ProxyPlace::Tls { host, port } => {
                    let no_tls =
                        || HttpError::Tls { to: to.clone(), source: io::ErrorKind::Unsupported.into() };
                    let tls = tls.ok_or_else(no_tls)?;
                    Box::new(http::secure(http::connect(host, *port, &to).await?, tls, host, &to).await?)
                }
            };
            ask_connect(&mut stream, self.authorization.as_deref(), target)
                .await
                .map_err(|source| HttpError::Proxy { proxy: self.to_string(), source })?;
            Ok(stream)
        })
        .await
    }

    pub fn parse(text: &str) -> Result<Self, InvalidProxy> {
        // The part before the `@` may contain a password and must not appear in errors.
        let shown = text.rsplit_once('@').map_or(text, |(_, rest)| rest);
        let bad = |why| InvalidProxy { shown: shown.to_owned(), why };
        let (is_tls, rest) = match text.split_once("://") {
            Some(("unix", path)) if path.starts_with('/') => {
                return Ok(Self { place: ProxyPlace::Unix(path.into()), authorization: None });
            }
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            Some(_) => return Err(bad("it begins with `http://`, `https://` or `unix:///`")),
            None => (false, text),
        };
        let rest = rest.split_once('/').map_or(rest, |(authority, _)| authority);
        let (user, authority) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && !port.contains(']') => {
                (host, port.parse().map_err(|_| bad("its port is invalid"))?)
            }
            _ => (authority, if is_tls { TLS_PORT } else { PORT }),
        };
        let host = host.trim_matches(['[', ']']).to_owned();
        if host.is_empty() || host.contains(char::is_whitespace) {
            return Err(bad("its host is missing"));
        }
        let place = if is_tls { ProxyPlace::Tls { host, port } } else { ProxyPlace::Tcp { host, port } };
        let authorization = user
            .map(|user| format!("Basic {}", BASE64.encode(percent_decode_str(user).collect::<Vec<u8>>())));
        let authorization = authorization.map(|value| Arc::new(Secret::new(value)));
        Ok(Self { place, authorization })
    }
}

impl fmt::Display for ConnectProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            ProxyPlace::Tcp { host, port } | ProxyPlace::Tls { host, port } if host.contains(':') => {
                write!(f, "[{host}]:{port}")
            }
            ProxyPlace::Tcp { host, port } | ProxyPlace::Tls { host, port } => write!(f, "{host}:{port}"),
            ProxyPlace::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Debug for ConnectProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConnectProxy").field(&self.place).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_may_want_a_password_which_is_never_shown() {
        let proxy = ConnectProxy::parse("http://me:p%40ss@proxy:8080/").unwrap();
        assert_eq!(proxy.place, ProxyPlace::Tcp { host: "proxy".to_owned(), port: 8080 });
        assert_eq!(proxy.authorization.as_ref().unwrap().expose(), "Basic bWU6cEBzcw==");
        assert!(!format!("{proxy} {proxy:?}").contains("bWU6"));
        for bad in ["socks5://me:hush@proxy:1080", "http://me:hush@proxy:port", "http://me:hush@", "unix://x"]
        {
            let error = ConnectProxy::parse(bad).unwrap_err().to_string();
            assert!(!error.contains("hush"), "{error}");
        }
    }

    #[test]
    fn proxies_are_reached_over_tcp_tls_or_a_socket() {
        for (text, shown) in [
            ("proxy", "proxy:3128"),
            ("https://proxy", "proxy:443"),
            ("http://[fd00::1]:99", "[fd00::1]:99"),
            ("unix:///run/tunnel.sock", "/run/tunnel.sock"),
        ] {
            assert_eq!(ConnectProxy::parse(text).unwrap().to_string(), shown);
        }
    }

    /// Returns the result of a response from a proxy that keeps the connection open after it.
    async fn answered(answer: &str) -> Result<(), ConnectError> {
        const ASKED: &[u8] = b"CONNECT n1:8710 HTTP/1.1\r\nHost: n1:8710\r\n\r\n";
        let (mut ours, mut theirs) = tokio::io::duplex(64);
        let answer = answer.to_owned();
        let proxy = tokio::spawn(async move {
            let mut asked = [0; ASKED.len()];
            theirs.read_exact(&mut asked).await.unwrap();
            assert_eq!(asked, ASKED);
            // The client may close before it has read everything.
            let _ = theirs.write_all(answer.as_bytes()).await;
            let _ = theirs.read_u8().await;
        });
        let told = ask_connect(&mut ours, None, "n1:8710").await;
        drop(ours);
        proxy.await.unwrap();
        told
    }

    #[tokio::test]
    async fn a_refusal_comes_with_its_reason() {
        assert!(answered("HTTP/1.1 200 Connection Established\r\n\r\nnot ours").await.is_ok());
        let refused = answered("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 8\r\n\r\nno agent").await;
        let error = refused.unwrap_err().to_string();
        assert_eq!(error, "the proxy answers `HTTP/1.1 503 Service Unavailable no agent`");
        let endless = answered(&format!("HTTP/1.1 200 OK\r\nx: {}", "x".repeat(MAX_ANSWER))).await;
        assert!(matches!(endless, Err(ConnectError::Endless)));
    }
}
