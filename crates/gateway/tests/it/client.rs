//! A client with full control over its requests.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::{http1, http2};
use hyper::header::HeaderMap;
use hyper::{Method, Request, StatusCode, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use landfall_net::CertificateFiles;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::bed::LIMIT;

#[derive(Clone, Debug)]
pub(crate) enum Identity {
    None,
    Certificate(CertificateFiles),
}

#[derive(Clone)]
pub(crate) struct Client {
    address: SocketAddr,
    tls: ClientConfig,
    version: Version,
    protocol: Option<Vec<u8>>,
    headers: Vec<(String, String)>,
}

#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

// === impl Client ===

impl Client {
    pub(crate) fn new(address: SocketAddr, authority: &str, identity: Identity) -> Self {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let tls = match identity {
            Identity::None => builder.with_no_client_auth(),
            Identity::Certificate(pair) => {
                let chain = vec![CertificateDer::from_pem_file(pair.certificate).unwrap()];
                builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(pair.key).unwrap()).unwrap()
            }
        };
        Self { address, tls, version: Version::HTTP_11, protocol: None, headers: Vec::new() }
    }

    pub(crate) fn version(mut self, version: Version) -> Self {
        self.version = version;
        self
    }

    /// Offers this ALPN protocol instead of HTTP/1.1's.
    pub(crate) fn protocol(mut self, protocol: &[u8]) -> Self {
        self.protocol = Some(protocol.to_vec());
        self
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn bearer(self, token: &str) -> Self {
        self.header("Authorization", &format!("Bearer {token}"))
    }

    /// Returns the client's TLS configuration.
    pub(crate) fn tls(&self) -> ClientConfig {
        self.tls.clone()
    }

    pub(crate) async fn connect(&self, protocol: &[u8]) -> TlsStream<TcpStream> {
        self.try_connect(protocol).await.unwrap()
    }

    async fn try_connect(&self, protocol: &[u8]) -> std::io::Result<TlsStream<TcpStream>> {
        let mut tls = self.tls.clone();
        tls.alpn_protocols = vec![self.protocol.clone().unwrap_or_else(|| protocol.to_vec())];
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(tls)).connect(name, stream).await
    }

    /// Sends a request to a server that may not be available.
    pub(crate) fn try_get(&self, runtime: &Runtime, path: &str) -> Option<Got> {
        let asking = async { tokio::time::timeout(LIMIT, self.exchange(Method::GET, path, "")).await };
        runtime.block_on(asking).unwrap().ok()
    }

    pub(crate) fn get(&self, runtime: &Runtime, path: &str) -> Got {
        self.send(runtime, Method::GET, path, "")
    }

    pub(crate) fn send(&self, runtime: &Runtime, method: Method, path: &str, body: &str) -> Got {
        let sending = async { tokio::time::timeout(LIMIT, self.exchange(method, path, body)).await };
        runtime.block_on(sending).unwrap().unwrap()
    }

    pub(crate) fn request(&self, method: Method, path: &str, body: &str) -> Request<Full<Bytes>> {
        let mut builder = Request::builder().method(method).version(self.version);
        builder = if self.version == Version::HTTP_2 {
            builder.uri(format!("https://localhost{path}"))
        } else {
            builder.uri(path).header("Host", "localhost")
        };
        for (name, value) in &self.headers {
            builder = builder.header(name, value);
        }
        if !body.is_empty() {
            builder = builder.header("Content-Type", "application/json");
        }
        builder.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).unwrap()
    }

    async fn exchange(&self, method: Method, path: &str, body: &str) -> anyhow::Result<Got> {
        let request = self.request(method, path, body);
        let answer = if self.version == Version::HTTP_2 {
            let stream = TokioIo::new(self.try_connect(b"h2").await?);
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
            tokio::spawn(connection);
            sender.send_request(request).await?
        } else {
            let stream = TokioIo::new(self.try_connect(b"http/1.1").await?);
            let (mut sender, connection) = http1::handshake(stream).await?;
            tokio::spawn(connection);
            sender.send_request(request).await?
        };
        let (parts, body) = answer.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Got { status: parts.status, headers: parts.headers, body })
    }

    /// Sends raw bytes over TLS and returns the response until the server closes.
    pub(crate) fn raw(&self, runtime: &Runtime, bytes: &[u8]) -> String {
        let sending = async {
            let mut stream = self.connect(b"http/1.1").await;
            stream.write_all(bytes).await.unwrap();
            let mut got = Vec::new();
            // A server may close without `close_notify` after its complete response.
            let _ = stream.read_to_end(&mut got).await;
            String::from_utf8_lossy(&got).into_owned()
        };
        runtime.block_on(async { tokio::time::timeout(LIMIT, sending).await.unwrap() })
    }
}

// === impl Got ===

impl Got {
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}
