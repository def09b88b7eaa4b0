//! Connection of a simulated node to the hub: a persistent one, or a new one per report like that of agents.

use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Timeout of a response, after which the node sends again.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(crate) enum Way {
    /// Without TLS and login, over one connection.
    Kept,
    /// With TLS and a token, over one connection per request.
    Anew { tls: Arc<rustls::ClientConfig>, token: Rc<str> },
}

pub(crate) struct Line {
    address: SocketAddr,
    way: Way,
    stream: Option<Box<dyn Stream>>,
    answer: Vec<u8>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin {}
impl<S: AsyncRead + AsyncWrite + Unpin> Stream for S {}

// === impl Way ===

impl Way {
    pub(crate) fn anew(authority: &Path, token: &Path) -> Result<Self> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority).context("read the authority")?)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Every agent is a separate machine and cannot resume a session of another one.
        tls.resumption = rustls::client::Resumption::disabled();
        let token = std::fs::read_to_string(token).context("read the token")?;
        Ok(Self::Anew { tls: Arc::new(tls), token: token.trim().into() })
    }
}

// === impl Line ===

impl Line {
    pub(crate) fn new(address: SocketAddr, way: Way) -> Self {
        Self { address, way, stream: None, answer: Vec::new() }
    }

    /// Establishes the persistent connection.
    pub(crate) async fn prepare(&mut self) -> Result<()> {
        if matches!(self.way, Way::Kept) { self.connect().await } else { Ok(()) }
    }

    /// Returns a request with this request line, such as `GET /`.
    pub(crate) fn request(&self, line: &str, body: &[u8]) -> Vec<u8> {
        let mut head = format!("{line} HTTP/1.1\r\nhost: localhost\r\n");
        if let Way::Anew { token, .. } = &self.way {
            head += &format!("authorization: Bearer {token}\r\n");
        }
        if !body.is_empty() {
            head += &format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len());
        }
        [head.as_bytes(), b"\r\n", body].concat()
    }

    async fn connect(&mut self) -> Result<()> {
        if self.stream.is_some() {
            return Ok(());
        }
        let made = tokio::time::timeout(PATIENCE, async {
            let stream = TcpStream::connect(self.address).await.context("connect")?;
            stream.set_nodelay(true)?;
            let stream: Box<dyn Stream> = match &self.way {
                Way::Kept => Box::new(stream),
                Way::Anew { tls, .. } => {
                    let name = ServerName::from(self.address.ip());
                    Box::new(TlsConnector::from(Arc::clone(tls)).connect(name, stream).await?)
                }
            };
            Ok::<_, anyhow::Error>(stream)
        });
        self.stream = Some(made.await.context("connect in time").flatten()?);
        Ok(())
    }

    /// Sends a request and returns the status of the complete response.
    pub(crate) async fn exchange(&mut self, request: &[u8]) -> Result<u16> {
        self.connect().await?;
        let Some(stream) = self.stream.as_mut() else { bail!("no connection") };
        self.answer.clear();
        let answered = tokio::time::timeout(PATIENCE, async {
            stream.write_all(request).await?;
            loop {
                if let Some(status) = whole(&self.answer) {
                    return Ok(status);
                }
                ensure!(stream.read_buf(&mut self.answer).await? > 0, "the hub hung up");
            }
        })
        .await;
        let answered = answered.context("wait for an answer").flatten();
        if answered.is_err() || matches!(self.way, Way::Anew { .. }) {
            self.stream = None;
        }
        answered
    }
}

/// Returns the status if the response is complete; a hub always sends its length.
fn whole(answer: &[u8]) -> Option<u16> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&answer[..end]).ok()?;
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length: "))?.parse::<usize>().ok()?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    (answer.len() >= end + 4 + length).then_some(status)
}
