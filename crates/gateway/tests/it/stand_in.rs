//! A fake API server whose paths select its behavior, for cases that are hard to trigger in a real one.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use landfall_gateway::config::Config;
use landfall_net::{ClientAuth, Reloading, ServerTlsOptions, TlsPolicy, server_config};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

const PIECE: usize = 64 * 1024;
/// Above the gateway's limit.
const MAX_HEAD: u32 = 4 << 20;

/// A server that runs until it is dropped.
pub(crate) struct StandIn {
    runtime: Runtime,
    listener: std::net::TcpListener,
    pub(crate) state: Arc<State>,
}

#[derive(Default)]
pub(crate) struct State {
    /// Number of open `/silent` responses.
    pub(crate) silent: AtomicUsize,
    pub(crate) begun: AtomicUsize,
    /// Lets `/silent` responses finish.
    pub(crate) speak: Notify,
}

/// The body of a response.
enum Said {
    /// A number of filler bytes, and trailers.
    Bytes(usize, Option<HeaderMap>),
    Text(Option<Bytes>, Option<HeaderMap>),
    /// A chunk, a pause, a chunk.
    Silent {
        first: bool,
        said: bool,
        waiting: Pin<Box<dyn Future<Output = ()> + Send>>,
        state: Arc<State>,
    },
}

// === impl StandIn ===

impl StandIn {
    pub(crate) fn new() -> Self {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { runtime: Runtime::new().unwrap(), listener, state: Arc::default() }
    }

    /// Replaces the local API server of a gateway, with its certificate.
    pub(crate) fn stand_in_for(&self, config: &mut Config) {
        config.upstream.local = self.listener.local_addr().unwrap();
        let pair = config.serving[0].clone();
        let live = Reloading::load(pair.paths().to_vec(), move |files| {
            let options = ServerTlsOptions {
                certificates: std::slice::from_ref(&pair),
                clients: ClientAuth::Request,
                protocols: &[b"h2", b"http/1.1"],
                policy: &TlsPolicy::default(),
            };
            server_config(files, &options)
        })
        .unwrap();
        let (listener, state) = (self.listener.try_clone().unwrap(), Arc::clone(&self.state));
        self.runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, state) = (TlsAcceptor::from(live.get()), Arc::clone(&state));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let http_2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                    let service = service_fn(move |request| answer(Arc::clone(&state), request));
                    // A client may disconnect at any time.
                    if http_2 {
                        let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        builder.max_header_list_size(MAX_HEAD);
                        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                    } else {
                        let mut builder = hyper::server::conn::http1::Builder::new();
                        builder.max_buf_size(MAX_HEAD as usize);
                        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                    }
                });
            }
        });
    }
}

async fn answer(state: Arc<State>, request: Request<Incoming>) -> Result<Response<Said>, Infallible> {
    let path = request.uri().path().to_owned();
    let said = match path.as_str() {
        "/echo" => {
            let (head, body) = request.into_parts();
            let collected = body.collect().await.unwrap();
            let mut trailers = collected.trailers().cloned().unwrap_or_default();
            trailers.insert("x-check", HeaderValue::from_static("sum"));
            let names: Vec<String> = head.headers.keys().map(|name| format!("{name};")).collect();
            let mut response = Response::new(Said::Text(Some(collected.to_bytes()), Some(trailers)));
            response.headers_mut().insert("trailer", HeaderValue::from_static("x-check, x-sum"));
            response.headers_mut().insert("x-names", HeaderValue::from_str(&names.concat()).unwrap());
            return Ok(response);
        }
        "/silent" => {
            state.begun.fetch_add(1, Ordering::SeqCst);
            state.silent.fetch_add(1, Ordering::SeqCst);
            let waiting = Box::pin({
                let state = Arc::clone(&state);
                async move { state.speak.notified().await }
            });
            Said::Silent { first: true, said: false, waiting, state }
        }
        "/refuse" => {
            let mut response = Response::new(Said::Text(Some(Bytes::from_static(b"no")), None));
            *response.status_mut() = hyper::StatusCode::FORBIDDEN;
            return Ok(response);
        }
        path => match path.strip_prefix("/bytes/").and_then(|count| count.parse().ok()) {
            Some(count) => Said::Bytes(count, None),
            None => Said::Text(Some(Bytes::from_static(b"ok")), None),
        },
    };
    Ok(Response::new(said))
}

impl Body for Said {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(match &mut *self {
            Self::Bytes(0, trailers) => trailers.take().map(|trailers| Ok(Frame::trailers(trailers))),
            Self::Bytes(count, _) => {
                let now = PIECE.min(*count);
                *count -= now;
                Some(Ok(Frame::data(Bytes::from(vec![b'x'; now]))))
            }
            Self::Text(text, trailers) => match text.take() {
                Some(text) => Some(Ok(Frame::data(text))),
                None => trailers.take().map(|trailers| Ok(Frame::trailers(trailers))),
            },
            Self::Silent { first, said, waiting, .. } => {
                if std::mem::take(first) {
                    return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"first")))));
                }
                if *said {
                    return Poll::Ready(None);
                }
                std::task::ready!(waiting.as_mut().poll(cx));
                *said = true;
                Some(Ok(Frame::data(Bytes::from_static(b"last"))))
            }
        })
    }
}

impl Drop for Said {
    fn drop(&mut self) {
        if let Self::Silent { state, .. } = self {
            state.silent.fetch_sub(1, Ordering::SeqCst);
        }
    }
}
