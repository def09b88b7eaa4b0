use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use landfall_pki::{Authority, Leaf, Purpose};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

/// The API server's largest review contains an object (at most 3 MiB) twice.
const MAX_REVIEW: usize = 8 * 1024 * 1024;

/// The webhook's response to all reviews.
#[derive(Clone, Debug)]
pub enum Answer {
    Allow,
    Deny(String),
}

/// A validating admission webhook over TLS that records its requests.
#[derive(Debug)]
pub struct Webhook {
    address: SocketAddr,
    authority: String,
    reviews: Arc<Mutex<Vec<Value>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

// === impl Webhook ===

impl Webhook {
    /// Serves on `address` (port 0: a free port) until dropped.
    pub fn start(address: SocketAddr, answer: Answer) -> Result<Self> {
        Self::start_as(address, "localhost", answer)
    }

    /// Like [`Self::start`], with another server name: an API server calls `SERVICE.NAMESPACE.svc`.
    pub fn start_as(address: SocketAddr, name: &str, answer: Answer) -> Result<Self> {
        let authority = Authority::new("webhook", 7)?;
        let names = [address.ip().to_string(), name.to_owned()];
        let pair = authority.issue(&Leaf::new("webhook", Purpose::Serve).names(names))?;
        let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes())?;
        let key = PrivateKeyDer::from_pem_slice(pair.key.expose().as_bytes())?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        let acceptor = TlsAcceptor::from(Arc::new(tls));

        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener =
            runtime.block_on(TcpListener::bind(address)).context("listen for admission reviews")?;
        let address = listener.local_addr()?;
        let reviews = Arc::new(Mutex::new(Vec::new()));
        let (stop, mut stopped) = oneshot::channel();
        let thread = std::thread::spawn({
            let reviews = Arc::clone(&reviews);
            move || {
                runtime.block_on(async {
                    loop {
                        let accepted = tokio::select! {
                            accepted = listener.accept() => accepted,
                            _ = &mut stopped => break,
                        };
                        // A failed accept affects only one connection.
                        let Ok((stream, _)) = accepted else { continue };
                        let (acceptor, reviews, answer) =
                            (acceptor.clone(), Arc::clone(&reviews), answer.clone());
                        tokio::spawn(async move {
                            let Ok(stream) = acceptor.accept(stream).await else { return };
                            let service = service_fn(move |request| {
                                respond(request, Arc::clone(&reviews), answer.clone())
                            });
                            let connection = hyper::server::conn::http1::Builder::new();
                            // The client sees a broken connection; the error needs no other report.
                            let _ = connection.serve_connection(TokioIo::new(stream), service).await;
                        });
                    }
                });
            }
        });
        let authority = authority.certificate().to_owned();
        Ok(Self { address, authority, reviews, stop: Some(stop), thread: Some(thread) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the CA certificate that the API server must trust.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Returns the reviews received so far.
    pub fn reviews(&self) -> Vec<Value> {
        self.reviews.lock().map(|reviews| reviews.clone()).unwrap_or_default()
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn respond(
    request: Request<Incoming>,
    reviews: Arc<Mutex<Vec<Value>>>,
    answer: Answer,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = Limited::new(request.into_body(), MAX_REVIEW).collect().await;
    let review = body.ok().and_then(|body| serde_json::from_slice::<Value>(&body.to_bytes()).ok());
    let Some(review) = review else {
        let mut refusal = Response::new(Full::from("an AdmissionReview is expected"));
        *refusal.status_mut() = StatusCode::BAD_REQUEST;
        return Ok(refusal);
    };
    let mut response = json!({"uid": review["request"]["uid"], "allowed": matches!(answer, Answer::Allow)});
    if let Answer::Deny(message) = answer {
        response["status"] = json!({"code": 403, "message": message});
    }
    let answer =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    if let Ok(mut reviews) = reviews.lock() {
        reviews.push(review);
    }
    Ok(Response::new(Full::from(answer.to_string())))
}
