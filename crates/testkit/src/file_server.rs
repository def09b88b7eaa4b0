use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use landfall_pki::{Authority, Leaf, Purpose};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Maximum size of a request head; our clients send a few hundred bytes.
const MAX_HEAD: usize = 16 * 1024;
/// Maximum size of a request body; a report has a few kilobytes.
const MAX_POST: usize = 1024 * 1024;
/// Interval between two bytes of a slow response.
const DRIP: Duration = Duration::from_millis(50);

/// Behavior of a path.
#[derive(Clone, Debug)]
pub enum Serve {
    /// Serves the complete file, or the requested range.
    File(Vec<u8>),
    Status(u16),
    /// Announces the full length but closes the connection after this many bytes, this many times; then
    /// serves the complete file.
    Cut {
        bytes: Vec<u8>,
        after: usize,
        times: u32,
    },
    /// Announces this length and sends single bytes slowly without end.
    Drip {
        claimed: u64,
    },
    /// Serves the complete file without its length.
    Unmeasured(Vec<u8>),
    /// Announces this length and sends nothing.
    Claim {
        claimed: u64,
    },
    Redirect(String),
    /// Serves the file to requests with this header; others get 401.
    Guarded {
        header: &'static str,
        value: String,
        bytes: Vec<u8>,
    },
    /// Serves the file once to a request with this header, truncated after this many bytes.
    ///
    /// Later requests get the rest if they specify the entity tag and `resumes` is set. Other requests get 401,
    /// because the credential was used.
    Once {
        header: &'static str,
        value: String,
        bytes: Vec<u8>,
        after: usize,
        resumes: bool,
        spent: bool,
    },
    /// Accepts bodies posted with this header, after rejecting this many requests with 503.
    Post {
        header: &'static str,
        value: String,
        refuse: u32,
    },
}

/// A TLS file server with configurable faults that records its requests.
#[derive(Debug)]
pub struct FileServer {
    address: SocketAddr,
    authority: String,
    state: Arc<Mutex<State>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct State {
    paths: BTreeMap<String, Serve>,
    asked: Vec<String>,
    posted: Vec<String>,
}

// === impl FileServer ===

impl FileServer {
    /// Serves on the loopback interface until dropped.
    pub fn start() -> Result<Self> {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), &[])
    }

    /// Serves at an address with additional names.
    pub fn start_at(address: SocketAddr, names: &[&str]) -> Result<Self> {
        let authority = Authority::new("files", 7)?;
        let names = names.iter().map(|name| (*name).to_owned());
        let names = names.chain([address.ip().to_string(), "localhost".to_owned()]);
        let pair = authority.issue(&Leaf::new("file server", Purpose::Serve).names(names))?;
        let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes())?;
        let key = PrivateKeyDer::from_pem_slice(pair.key.expose().as_bytes())?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Without tokio's bind: the caller may run in its own runtime.
        let listener = std::net::TcpListener::bind(address).context("listen for downloads")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let state: Arc<Mutex<State>> = Arc::default();
        let (stop, mut stopped) = oneshot::channel();
        let shared = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                loop {
                    let accepted = tokio::select! {
                        accepted = listener.accept() => accepted,
                        _ = &mut stopped => break,
                    };
                    // A failed accept affects only one connection.
                    let Ok((stream, _)) = accepted else { continue };
                    let (acceptor, state) = (acceptor.clone(), Arc::clone(&shared));
                    tokio::spawn(async move {
                        if let Ok(mut stream) = acceptor.accept(stream).await {
                            // The client sees a broken connection; the error needs no other report.
                            let _ = respond(&mut stream, &state).await;
                            let _ = stream.shutdown().await;
                        }
                    });
                }
            });
        });
        let authority = authority.certificate().to_owned();
        Ok(Self { address, authority, state, stop: Some(stop), thread: Some(thread) })
    }

    /// Sets the behavior of a path, which starts with `/`.
    pub fn serve(&self, path: &str, how: Serve) {
        self.lock().paths.insert(path.to_owned(), how);
    }

    /// Returns the current behavior of a path.
    pub fn served(&self, path: &str) -> Option<Serve> {
        self.lock().paths.get(path).cloned()
    }

    pub fn file(&self, path: &str, bytes: impl Into<Vec<u8>>) {
        self.serve(path, Serve::File(bytes.into()));
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the CA certificate that clients must trust.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Returns the requests so far: `GET /path`, with ` from N` for a range after the start.
    pub fn asked(&self) -> Vec<String> {
        self.lock().asked.clone()
    }

    /// Returns the accepted bodies in order.
    pub fn posted(&self) -> Vec<String> {
        self.lock().posted.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for FileServer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Handles one request on one connection.
async fn respond(stream: &mut TlsStream<TcpStream>, state: &Mutex<State>) -> Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < MAX_HEAD {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut words = head.split_whitespace();
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let header = |name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(':'));
        lines
            .into_iter()
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim().to_owned())
    };
    let from =
        header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let behaviour = {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let tail = from.map(|from: usize| format!(" from {from}")).unwrap_or_default();
        state.asked.push(format!("{method} {path}{tail}"));
        let behaviour = state.paths.get_mut(path);
        let now = behaviour.as_deref().cloned();
        match behaviour {
            Some(Serve::Once { header: name, value, spent, .. }) => {
                *spent |= header(name).as_ref() == Some(value);
            }
            Some(Serve::Cut { times, .. } | Serve::Post { refuse: times, .. }) => {
                *times = times.saturating_sub(1);
            }
            _ => {}
        }
        now
    };
    match behaviour {
        None => status(stream, 404).await,
        Some(Serve::Status(code)) => status(stream, code).await,
        Some(Serve::Guarded { header: name, value, bytes }) => {
            if header(name) != Some(value) {
                return status(stream, 401).await;
            }
            body(stream, &bytes, None, None, usize::MAX).await
        }
        Some(Serve::Once { header: name, value, bytes, after, resumes, spent }) => {
            let goes_on = resumes && from.is_some() && header("if-range").is_some();
            if header(name) != Some(value) || (spent && !goes_on) {
                return status(stream, 401).await;
            }
            let cut = if spent { usize::MAX } else { after };
            body(stream, &bytes, from, header("if-range").as_deref(), cut).await
        }
        Some(Serve::Post { header: name, value, refuse }) => {
            let length = header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
            let mut text = vec![0; usize::min(length, MAX_POST)];
            stream.read_exact(&mut text).await?;
            let code = match (method, header(name) == Some(value), refuse) {
                ("POST", true, 0) => 200,
                ("POST", true, _) => 503,
                ("POST", false, _) => 401,
                _ => 405,
            };
            if code == 200 {
                let text = String::from_utf8_lossy(&text).into_owned();
                state.lock().unwrap_or_else(PoisonError::into_inner).posted.push(text);
            }
            status(stream, code).await
        }
        Some(Serve::Redirect(to)) => {
            let answer =
                format!("HTTP/1.1 302 x\r\nlocation: {to}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            Ok(stream.write_all(answer.as_bytes()).await?)
        }
        Some(Serve::File(bytes) | Serve::Cut { bytes, times: 0, .. }) => {
            body(stream, &bytes, from, header("if-range").as_deref(), usize::MAX).await
        }
        Some(Serve::Cut { bytes, after, .. }) => {
            body(stream, &bytes, from, header("if-range").as_deref(), after).await
        }
        Some(Serve::Unmeasured(bytes)) => {
            stream.write_all(b"HTTP/1.1 200 x\r\nconnection: close\r\n\r\n").await?;
            stream.write_all(&bytes).await?;
            Ok(stream.flush().await?)
        }
        Some(Serve::Claim { claimed }) => {
            let answer = format!("HTTP/1.1 200 x\r\ncontent-length: {claimed}\r\n\r\n");
            stream.write_all(answer.as_bytes()).await?;
            stream.flush().await?;
            // Waits until the client closes the connection.
            let _ = stream.read_u8().await;
            Ok(())
        }
        Some(Serve::Drip { claimed }) => {
            let answer = format!("HTTP/1.1 200 x\r\ncontent-length: {claimed}\r\n\r\n");
            stream.write_all(answer.as_bytes()).await?;
            loop {
                stream.write_all(b".").await?;
                stream.flush().await?;
                tokio::time::sleep(DRIP).await;
            }
        }
    }
}

async fn status(stream: &mut TlsStream<TcpStream>, code: u16) -> Result<()> {
    let answer = format!("HTTP/1.1 {code} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    Ok(stream.write_all(answer.as_bytes()).await?)
}

/// Sends the bytes from the requested offset, if the client's partial file is of the same version.
async fn body(
    stream: &mut TlsStream<TcpStream>,
    bytes: &[u8],
    from: Option<usize>,
    if_range: Option<&str>,
    cut: usize,
) -> Result<()> {
    let mixed = bytes.iter().fold(7_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    let tag = format!("\"{}-{mixed:x}\"", bytes.len());
    if from == Some(bytes.len()) && if_range == Some(&tag) {
        let answer = format!(
            "HTTP/1.1 416 x\r\ncontent-length: 0\r\ncontent-range: bytes */{}\r\nconnection: close\r\n\r\n",
            bytes.len()
        );
        return Ok(stream.write_all(answer.as_bytes()).await?);
    }
    let from = from.filter(|from| *from < bytes.len() && if_range.is_none_or(|given| given == tag));
    let rest = &bytes[from.unwrap_or(0)..];
    let (code, range) = match from {
        Some(from) => (206, format!("content-range: bytes {from}-{}/{}\r\n", bytes.len() - 1, bytes.len())),
        None => (200, String::new()),
    };
    let answer = format!(
        "HTTP/1.1 {code} x\r\ncontent-length: {}\r\netag: {tag}\r\n{range}connection: close\r\n\r\n",
        rest.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.write_all(&rest[..cut.min(rest.len())]).await?;
    Ok(stream.flush().await?)
}
