//! Workload of `cargo xtask bench gateway`: a backend, and clients that load the proxy in front of it.
//!
//! A connection whose TLS hello requests the name `raw.bench` stops using TLS after its hello. Both ends then exchange
//! plain bytes, so that the benchmark measures the proxy and not the cipher.

#![expect(clippy::print_stdout, clippy::cast_precision_loss, reason = "a tool for measurements")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use landfall_net::{
    CertificateFiles, ClientAuth, Prefixed, Protocol, Reloading, ServerTlsOptions, TlsPolicy, classify,
    read_first, server_config,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsConnector};

const RAW: &str = "raw.bench";
const NAME: &str = "localhost";
const LIMIT: Duration = Duration::from_secs(10);
const PIECE: usize = 256 * 1024;
const ECHO: usize = 64;

#[tokio::main]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["backend", address, certificate, key] => backend(address.parse()?, certificate, key).await,
        ["bulk", address, mebibytes, connections] => {
            bulk(address.parse()?, mebibytes.parse()?, connections.parse()?).await
        }
        ["echo", address, connections, rounds] => {
            echo(address.parse()?, connections.parse()?, rounds.parse()?).await
        }
        ["idle", address, connections, kind, authority] => {
            idle(address.parse()?, connections.parse()?, kind, authority).await
        }
        ["handshakes", address, connections, seconds, authority] => {
            let clients = Clients::new(address.parse()?, authority, b"http/1.1")?;
            clients.handshakes(connections.parse()?, seconds.parse()?).await
        }
        ["requests", version, address, connections, seconds, authority] => {
            let protocol: &[u8] = if version == "h2" { b"h2" } else { b"http/1.1" };
            let clients = Clients::new(address.parse()?, authority, protocol)?;
            clients.requests(version == "h2", connections.parse()?, seconds.parse()?).await
        }
        _ => bail!("see the source for what to ask for"),
    }
}

async fn backend(address: SocketAddr, certificate: &str, key: &str) -> Result<()> {
    let pair = CertificateFiles { certificate: PathBuf::from(certificate), key: PathBuf::from(key) };
    let live = Reloading::load(pair.paths().to_vec(), move |files| {
        let options = ServerTlsOptions {
            certificates: std::slice::from_ref(&pair),
            clients: ClientAuth::Request,
            protocols: &[b"h2", b"http/1.1"],
            policy: &TlsPolicy::default(),
        };
        server_config(files, &options)
    })?;
    let listener = TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let acceptor = TlsAcceptor::from(live.get());
        tokio::spawn(async move {
            // A client may disconnect in the middle of a request.
            let _ = serve(stream, acceptor).await;
        });
    }
}

async fn serve(mut stream: TcpStream, acceptor: TlsAcceptor) -> Result<()> {
    let mut first = BytesMut::new();
    let protocol = read_first(&mut stream, &mut first, LIMIT, classify).await?;
    if matches!(&protocol, Protocol::Tls(hello) if hello.server_name.as_deref() == Some(RAW)) {
        return serve_raw(stream).await;
    }
    let stream = acceptor.accept(Prefixed::new(first, stream)).await?;
    let http_2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let body = Bytes::from(vec![b'x'; 1024]);
    let service = service_fn(move |_: Request<hyper::body::Incoming>| {
        let body = body.clone();
        async move { Ok::<_, Infallible>(Response::new(Full::new(body))) }
    });
    let stream = TokioIo::new(stream);
    if http_2 {
        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .serve_connection(stream, service)
            .await?;
    } else {
        hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await?;
    }
    Ok(())
}

/// Serves a raw connection. It acknowledges the hello with one byte, then reads the number of bytes to send; zero
/// requests an echo.
async fn serve_raw(mut stream: TcpStream) -> Result<()> {
    stream.write_u8(1).await?;
    let mut wanted = stream.read_u64().await?;
    if wanted == 0 {
        let mut piece = [0; ECHO];
        loop {
            stream.read_exact(&mut piece).await?;
            stream.write_all(&piece).await?;
        }
    }
    let piece = vec![0; PIECE];
    while wanted > 0 {
        let count = usize::try_from(wanted)?.min(PIECE);
        stream.write_all(&piece[..count]).await?;
        wanted -= count as u64;
    }
    Ok(())
}

async fn raw(address: SocketAddr) -> Result<TcpStream> {
    let config = client_config(RootCertStore::empty(), b"h2")?;
    let mut hello = Vec::new();
    ClientConnection::new(Arc::new(config), ServerName::try_from(RAW)?)?.write_tls(&mut hello)?;
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    stream.write_all(&hello).await?;
    stream.read_u8().await.context("the backend did not say that it is there")?;
    Ok(stream)
}

async fn bulk(address: SocketAddr, mebibytes: u64, connections: u64) -> Result<()> {
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        tasks.spawn(async move {
            let mut stream = raw(address).await?;
            stream.write_u64((mebibytes << 20) / connections).await?;
            let mut piece = vec![0; PIECE];
            while stream.read(&mut piece).await? > 0 {}
            anyhow::Ok(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    println!("{}", mebibytes as f64 / started.elapsed().as_secs_f64());
    Ok(())
}

async fn echo(address: SocketAddr, connections: usize, rounds: usize) -> Result<()> {
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        tasks.spawn(async move {
            let mut stream = raw(address).await?;
            stream.write_u64(0).await?;
            let (mut piece, mut times) = ([7; ECHO], Vec::with_capacity(rounds));
            for _ in 0..rounds {
                let started = Instant::now();
                stream.write_all(&piece).await?;
                stream.read_exact(&mut piece).await?;
                times.push(started.elapsed());
            }
            anyhow::Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(task) = tasks.join_next().await {
        times.extend(task??);
    }
    print_times(&mut times);
    Ok(())
}

fn print_times(times: &mut [Duration]) {
    times.sort_unstable();
    let at =
        |share: usize| times.get(times.len() * share / 100).map_or(f64::NAN, |time| time.as_secs_f64() * 1e6);
    println!("{} {}", at(50), at(99));
}

/// Opens connections, prints their number, and holds them until standard input ends.
async fn idle(address: SocketAddr, connections: usize, kind: &str, authority: &str) -> Result<()> {
    let clients = Clients::new(address, authority, b"http/1.1")?;
    let (mut plain, mut secured) = (Vec::new(), Vec::new());
    for _ in 0..connections {
        if kind == "raw" {
            plain.push(raw(address).await?);
        } else {
            let mut stream = clients.connect().await?;
            stream.write_all(b"GET /api HTTP/1.1\r\nHost: x\r\n\r\n").await?;
            let mut head = vec![0; 2048];
            let _ = stream.read(&mut head).await?;
            secured.push(stream);
        }
    }
    println!("{}", plain.len() + secured.len());
    tokio::task::spawn_blocking(|| std::io::Read::read(&mut std::io::stdin(), &mut [0])).await??;
    Ok(())
}

fn client_config(roots: RootCertStore, protocol: &[u8]) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    // Every handshake is a full one.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

struct Clients {
    address: SocketAddr,
    tls: TlsConnector,
}

impl Clients {
    fn new(address: SocketAddr, authority: &str, protocol: &[u8]) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(Path::new(authority))?)?;
        Ok(Self { address, tls: TlsConnector::from(Arc::new(client_config(roots, protocol)?)) })
    }

    async fn connect(&self) -> Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(self.tls.connect(ServerName::try_from(NAME)?, stream).await?)
    }

    async fn handshakes(self, connections: usize, seconds: u64) -> Result<()> {
        let (clients, count) = (Arc::new(self), Arc::new(AtomicU64::new(0)));
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut tasks = JoinSet::new();
        for _ in 0..connections {
            let (clients, count) = (Arc::clone(&clients), Arc::clone(&count));
            tasks.spawn(async move {
                while Instant::now() < end {
                    // The response proves that the server has finished the handshake, too.
                    let mut stream = clients.connect().await?;
                    stream.write_all(b"GET /api HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await?;
                    let mut answer = [0; 12];
                    stream.read_exact(&mut answer).await?;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                anyhow::Ok(())
            });
        }
        while let Some(task) = tasks.join_next().await {
            task??;
        }
        println!("{}", count.load(Ordering::Relaxed) as f64 / seconds as f64);
        Ok(())
    }

    async fn requests(self, http_2: bool, connections: usize, seconds: u64) -> Result<()> {
        let clients = Arc::new(self);
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut tasks = JoinSet::new();
        for _ in 0..connections {
            let clients = Arc::clone(&clients);
            tasks.spawn(async move {
                let stream = TokioIo::new(clients.connect().await?);
                let mut times = Vec::new();
                let request = || {
                    // In HTTP/2 the URI contains the host; some servers reject an additional `Host` header.
                    let request = if http_2 {
                        Request::get("https://localhost/api")
                    } else {
                        Request::get("/api").header("host", NAME)
                    };
                    request.body(Empty::<Bytes>::new())
                };
                if http_2 {
                    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
                    tokio::spawn(connection);
                    while Instant::now() < end {
                        let started = Instant::now();
                        let answer = sender.send_request(request()?).await?;
                        anyhow::ensure!(answer.status() == 200, "answered {}", answer.status());
                        answer.into_body().collect().await?;
                        times.push(started.elapsed());
                    }
                } else {
                    let (mut sender, connection) = http1::handshake(stream).await?;
                    tokio::spawn(connection);
                    while Instant::now() < end {
                        let started = Instant::now();
                        sender.ready().await?;
                        let answer = sender.send_request(request()?).await?;
                        anyhow::ensure!(answer.status() == 200, "answered {}", answer.status());
                        answer.into_body().collect().await?;
                        times.push(started.elapsed());
                    }
                }
                anyhow::Ok(times)
            });
        }
        let mut times = Vec::new();
        while let Some(task) = tasks.join_next().await {
            times.extend(task??);
        }
        print!("{} ", times.len() as f64 / seconds as f64);
        print_times(&mut times);
        Ok(())
    }
}
