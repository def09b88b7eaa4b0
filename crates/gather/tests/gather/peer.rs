//! Servers behind an endpoint: API servers, the bootstrap host, and faulty servers.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use landfall_evidence::bundle::{BundleWriter, Packing, bundle_id};
use landfall_gather::{Access, Endpoint};
use landfall_model::bundle::{BundleItem, ItemOutcome};
use landfall_model::identity::NodeIdentity;
use landfall_pki::{Authority, Leaf, Purpose};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// Behavior of one backend of the load balancer.
#[derive(Clone)]
pub(crate) enum Behaviour {
    /// An API server that does not know landfall's paths and rejects anonymous requests.
    ApiServer,
    Bootstrap {
        bundle: Vec<u8>,
        cut_at: Option<usize>,
        resumes: Resumes,
    },
    /// The bootstrap host, which denies access.
    Denies,
    /// A server that closes each connection without a response.
    Hangup,
}

/// Whether the rest of a bundle is available.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resumes {
    Always,
    Never,
}

pub(crate) struct Peer {
    port: u16,
    authority: Authority,
    connections: Arc<AtomicUsize>,
    authorizations: Arc<Mutex<Vec<String>>>,
}

// === impl Behaviour ===

impl Behaviour {
    pub(crate) fn bootstrap(bundle: Vec<u8>) -> Self {
        Self::Bootstrap { bundle, cut_at: None, resumes: Resumes::Never }
    }

    /// Returns a bootstrap host whose bundle is truncated in the middle when requested from the beginning.
    pub(crate) fn cut(bundle: &[u8], resumes: Resumes) -> Self {
        Self::Bootstrap { bundle: bundle.to_vec(), cut_at: Some(bundle.len() / 2), resumes }
    }
}

// === impl Peer ===

impl Peer {
    /// Starts the peer. Each connection gets the next behavior, in rotation.
    pub(crate) async fn start(behaviours: Vec<Behaviour>) -> Self {
        let authority = Authority::new("test", 1).unwrap();
        let pair = authority.issue(&Leaf::new("api", Purpose::Serve).names(["127.0.0.1"])).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(pair.key.expose().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicUsize::new(0));
        let authorizations = Arc::new(Mutex::new(Vec::new()));
        let (count, log) = (Arc::clone(&connections), Arc::clone(&authorizations));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let number = count.fetch_add(1, Ordering::SeqCst);
                let behaviour = behaviours[number % behaviours.len()].clone();
                tokio::spawn(serve(acceptor.clone(), stream, behaviour, Arc::clone(&log)));
            }
        });
        Self { port, authority, connections, authorizations }
    }

    pub(crate) fn access(&self) -> (Endpoint, Access) {
        let endpoint = format!("https://127.0.0.1:{}", self.port).parse().unwrap();
        let authority = Some(self.authority.certificate().as_bytes().to_vec());
        (endpoint, Access { authority, ..Access::default() })
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn authorizations(&self) -> Vec<String> {
        self.authorizations.lock().unwrap().clone()
    }
}

async fn serve(acceptor: TlsAcceptor, stream: TcpStream, behaviour: Behaviour, log: Arc<Mutex<Vec<String>>>) {
    if matches!(behaviour, Behaviour::Hangup) {
        return;
    }
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let service = service_fn(move |request: Request<Incoming>| {
        if let Some(value) = request.headers().get("authorization") {
            log.lock().unwrap().push(value.to_str().unwrap().to_owned());
        }
        let response = answer(&behaviour, request);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    // A deliberate truncation ends the connection with an error.
    let _ = connection.with_upgrades().await;
}

type Body = BoxBody<Bytes, std::io::Error>;

fn answer(behaviour: &Behaviour, request: Request<Incoming>) -> Response<Body> {
    let text = |status: u16, text: &str| {
        let body = Full::new(Bytes::from(text.to_owned())).map_err(|never| match never {}).boxed();
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        response
    };
    match (behaviour, request.uri().path()) {
        (Behaviour::Bootstrap { .. }, "/bootstrap/identity") => text(
            200,
            r#"{"format": 1, "role": "gateway", "node": {"hostname": "boot-0"}, "phase": "no-api", "version": "0.1.0"}"#,
        ),
        (Behaviour::Bootstrap { bundle, cut_at, resumes }, "/bootstrap") => {
            assert_eq!(request.headers()["accept"], "application/gzip");
            let rest = request.headers().get("range").filter(|_| *resumes == Resumes::Always);
            if let Some(range) = rest {
                assert_eq!(request.headers()["if-range"], "\"20260102\"");
                let from = range.to_str().unwrap().strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap();
                let mut response = streamed(&bundle[from.parse().unwrap()..], None);
                *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                return response;
            }
            streamed(bundle, *cut_at)
        }
        (Behaviour::Bootstrap { .. }, _) if request.method() == Method::CONNECT => {
            if *request.uri() != "10.0.0.5:22" {
                return text(403, "this target is not allowed");
            }
            tokio::spawn(async move {
                let stream = TokioIo::new(hyper::upgrade::on(request).await.unwrap());
                let (mut read, mut write) = tokio::io::split(stream);
                let _ = tokio::io::copy_buf(&mut BufReader::new(&mut read), &mut write).await;
                let _ = write.shutdown().await;
            });
            text(200, "")
        }
        (Behaviour::Denies, _) => {
            let mut response = text(403, r#"{"kind": "Status", "message": "sailor may not get /bootstrap"}"#);
            response.headers_mut().insert("landfall-gateway", "1".parse().unwrap());
            response
        }
        _ => text(403, r#"{"kind": "Status", "message": "forbidden"}"#),
    }
}

/// Returns the bundle in pieces, truncated at `cut_at`.
fn streamed(bundle: &[u8], cut_at: Option<usize>) -> Response<Body> {
    let upto = cut_at.unwrap_or(bundle.len());
    let mut pieces: Vec<Result<Frame<Bytes>, std::io::Error>> =
        bundle[..upto].chunks(1000).map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece)))).collect();
    if cut_at.is_some() {
        pieces.push(Err(std::io::Error::other("power cut")));
    }
    let mut response = Response::new(StreamBody::new(futures_util::stream::iter(pieces)).boxed());
    response.headers_mut().insert("etag", "\"20260102\"".parse().unwrap());
    response
}

/// Starts a proxy that supports only CONNECT.
pub(crate) async fn proxy(authorization: Option<&'static str>) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(client.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                let target = head.strip_prefix("CONNECT ").unwrap().split(' ').next().unwrap().to_owned();
                if authorization.is_some_and(|wanted| !head.contains(wanted)) {
                    let _ = client.write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n").await;
                    return;
                }
                let mut server = TcpStream::connect(target).await.unwrap();
                client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    address
}

/// Returns a small bundle with constant content.
pub(crate) fn bundle() -> Vec<u8> {
    let node = NodeIdentity {
        hostname: "boot-0".to_owned(),
        machine_id: None,
        boot_id: None,
        os: None,
        architecture: None,
        provider_id: None,
    };
    let started = Timestamp::from_second(1_767_323_045).unwrap();
    let mut bundle = BundleWriter::new(Vec::new(), Packing::Gzip, &bundle_id(started), node, started);
    let mut state = 1_u64;
    for number in 0..20 {
        let mut content = Vec::new();
        for _ in 0..500 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            writeln!(content, "line {state}").unwrap();
        }
        let item = BundleItem {
            path: format!("bootstrap/journals/{number}.log"),
            source: "test".to_owned(),
            outcome: ItemOutcome::Collected,
            duration_ms: 1,
            bytes: 0,
            truncated: 0,
            sha256: None,
            redactions: BTreeMap::new(),
        };
        bundle.add(item, &content).unwrap();
    }
    bundle.finish(started).unwrap().out
}
