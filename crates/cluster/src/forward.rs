//! A forwarded port of a pod, through the API server and the kubelet.
//!
//! With a pod on the host network, it is a port of the node's loopback interface. A service there is
//! reachable without opening the node's network to other hosts.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use bytes::{Buf as _, BufMut as _, BytesMut};
use http_body_util::{BodyExt as _, Limited};
use hyper::upgrade::Upgraded;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::ListParams;
use kube::client::Body;
use landfall_net::websocket::{self, Receiver, Sender};
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, ReadHalf, WriteHalf,
};
use tokio::task::JoinHandle;

use crate::{Cluster, Error};

/// The subprotocol of a forwarded port; the kubelet's runtimes support it since Kubernetes 1.7.
const PROTOCOL: &str = "v4.channel.k8s.io";
/// The channel of the bytes; the other one has the error.
const DATA: u8 = 0;
/// Each channel begins with the number of its port.
const PORT_BYTES: usize = 2;
/// Buffer size per direction.
const CARRY: usize = 16 << 10;
/// Bytes of an error message that are kept.
const MAX_FAILURE: usize = 1000;
const MAX_REFUSAL: usize = 8 << 10;

/// Nodes or pods per response.
const PAGE: u32 = 500;
/// Limit, above the size of any cluster.
const MAX_NODES: usize = 20_000;
/// Limit of several pods per node.
const MAX_PODS: usize = 200_000;

/// The namespace and name of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodPlace {
    pub namespace: String,
    pub name: String,
}

/// The byte stream of a forwarded port.
#[derive(Debug)]
pub struct Forward {
    pipe: DuplexStream,
    /// The error message of the kubelet.
    failure: Arc<Mutex<Option<String>>>,
    carrier: JoinHandle<()>,
}

impl Cluster {
    /// Returns the names of all nodes.
    pub async fn node_names(&self) -> Result<Vec<String>, Error> {
        let nodes: Api<Node> = Api::all(self.client());
        let mut parameters = ListParams::default().limit(PAGE);
        let mut names = Vec::new();
        loop {
            let page = self.ask(|| "list nodes".to_owned(), nodes.list_metadata(&parameters)).await?;
            names.extend(page.items.into_iter().filter_map(|node| node.metadata.name));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) if names.len() < MAX_NODES => parameters = parameters.continue_token(&token),
                _ => return Ok(names),
            }
        }
    }

    /// Returns a running pod on the host network for every node. It is of the first of these namespaces that
    /// has one. A namespace without list permission counts as empty; if all of them do, that is an error.
    pub async fn host_pods(&self, namespaces: &[&str]) -> Result<BTreeMap<String, PodPlace>, Error> {
        let mut found = BTreeMap::new();
        let mut denied = None;
        let mut is_answered = false;
        for namespace in namespaces {
            match self.host_pods_of(namespace).await {
                Ok(pods) => {
                    is_answered = true;
                    for (node, place) in pods {
                        found.entry(node).or_insert(place);
                    }
                }
                Err(error) if error.is_denied() => denied = Some(error),
                Err(error) => return Err(error),
            }
        }
        match denied {
            Some(error) if !is_answered => Err(error),
            _ => Ok(found),
        }
    }

    /// Selects the first pod by name on each node, so that the result is stable.
    async fn host_pods_of(&self, namespace: &str) -> Result<BTreeMap<String, PodPlace>, Error> {
        let pods: Api<Pod> = Api::namespaced(self.client(), namespace);
        // Servers before Kubernetes 1.28 reject a field selector for the host network.
        let mut parameters = ListParams::default().fields("status.phase=Running").limit(PAGE);
        let mut found: BTreeMap<String, PodPlace> = BTreeMap::new();
        let mut count = 0;
        loop {
            let asked = || format!("list the pods of {namespace} that share their node's network");
            let page = self.ask(asked, pods.list(&parameters)).await?;
            count += page.items.len();
            for (node, place) in page.items.into_iter().filter_map(placed) {
                let entry = found.entry(node).or_insert_with(|| place.clone());
                if place < *entry {
                    *entry = place;
                }
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) if count < MAX_PODS => parameters = parameters.continue_token(&token),
                _ => return Ok(found),
            }
        }
    }

    /// Opens a connection to a port of a pod.
    pub async fn forward(&self, pod: &PodPlace, port: u16) -> Result<Forward, Error> {
        let PodPlace { namespace, name } = pod;
        let asked = || format!("forward port {port} of pod {namespace}/{name}");
        let unusable =
            |source: Box<dyn std::error::Error + Send + Sync>| Error::Forward { asked: asked(), source };
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(|error| unusable(Box::new(error)))?;
        let request =
            Request::get(format!("/api/v1/namespaces/{namespace}/pods/{name}/portforward?ports={port}"))
                .header("connection", "Upgrade")
                .header("upgrade", "websocket")
                .header("sec-websocket-version", "13")
                .header("sec-websocket-key", BASE64.encode(key))
                .header("sec-websocket-protocol", PROTOCOL)
                .body(Body::empty())
                .map_err(|error| unusable(Box::new(error)))?;
        // A rejection is a final response and must not be retried here.
        let client = self.client_once()?;
        let answer = self.ask(asked, client.send(request)).await?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            let status = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), MAX_REFUSAL).collect();
            let body = tokio::time::timeout(self.patience(), body).await.ok().and_then(Result::ok);
            let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            return Err(Error::NotForwarded { asked: asked(), status, said: said(&body) });
        }
        // TLS has verified the server; only the subprotocol is left to check.
        let protocol = answer.headers().get("sec-websocket-protocol");
        if protocol.is_none_or(|protocol| protocol != PROTOCOL) {
            return Err(unusable(format!("the API server does not speak {PROTOCOL}").into()));
        }
        let upgraded = hyper::upgrade::on(answer).await.map_err(|error| unusable(Box::new(error)))?;
        Ok(Forward::over(upgraded))
    }
}

fn placed(pod: Pod) -> Option<(String, PodPlace)> {
    // A terminating pod would close the connection.
    let spec = pod.spec?;
    if spec.host_network != Some(true) || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    Some((spec.node_name?, PodPlace { namespace: pod.metadata.namespace?, name: pod.metadata.name? }))
}

/// Returns the message of a `metav1.Status`, or the plain text, which comes from the kubelet.
fn said(body: &[u8]) -> String {
    let message = serde_json::from_slice::<serde_json::Value>(body)
        .ok()
        .and_then(|value| value.get("message")?.as_str().map(str::to_owned));
    let text = message.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_FAILURE).collect()
}

// === impl Forward ===

impl Forward {
    fn over(upgraded: Upgraded) -> Self {
        let (pipe, inner) = tokio::io::duplex(CARRY);
        let failure = Arc::new(Mutex::new(None));
        let told = Arc::clone(&failure);
        let carrier = tokio::spawn(async move {
            let (mut from_server, mut to_server) = websocket::client(TokioIo::new(upgraded)).await;
            let (from_us, to_us) = tokio::io::split(inner);
            // The end of one direction closes both: a forwarded port cannot be half-closed.
            let ended = tokio::select! {
                ended = inbound(&mut from_server, to_us, &told) => ended,
                ended = outbound(from_us, &mut to_server) => ended,
            };
            if let Err(error) = ended {
                let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                told.get_or_insert_with(|| error.to_string());
            }
            websocket::close(from_server, to_server).await;
        });
        Self { pipe, failure, carrier }
    }

    fn failure(&self) -> Option<io::Error> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.as_ref().map(|text| io::Error::other(text.clone()))
    }
}

async fn inbound(
    from: &mut Receiver<TokioIo<Upgraded>>,
    mut to: WriteHalf<DuplexStream>,
    told: &Mutex<Option<String>>,
) -> io::Result<()> {
    // Remaining bytes of the port number at the beginning of each channel.
    let mut ahead = [PORT_BYTES; 2];
    let mut failure = Vec::new();
    while let Some(mut bytes) = from.next().await? {
        let Ok(channel) = bytes.try_get_u8() else { continue };
        let Some(ahead) = ahead.get_mut(usize::from(channel)) else {
            return Err(io::Error::other(format!("bytes for channel {channel}, which does not exist")));
        };
        let skipped = (*ahead).min(bytes.len());
        *ahead -= skipped;
        bytes.advance(skipped);
        if channel == DATA {
            to.write_all(&bytes).await?;
        } else {
            failure.extend_from_slice(&bytes[..bytes.len().min(MAX_FAILURE - failure.len())]);
            if !failure.is_empty() {
                *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(said(&failure));
            }
        }
    }
    Ok(())
}

async fn outbound(mut from: ReadHalf<DuplexStream>, to: &mut Sender<TokioIo<Upgraded>>) -> io::Result<()> {
    loop {
        let mut message = BytesMut::with_capacity(1 + CARRY);
        message.put_u8(DATA);
        if from.read_buf(&mut message).await? == 0 {
            return Ok(());
        }
        to.send(message.freeze()).await?;
    }
}

impl AsyncRead for Forward {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.pipe).poll_read(context, buffer);
        match read {
            // End of the stream, with the error if there is one.
            Poll::Ready(Ok(())) if buffer.filled().len() == before && buffer.remaining() > 0 => {
                Poll::Ready(self.failure().map_or(Ok(()), Err))
            }
            read => read,
        }
    }
}

impl AsyncWrite for Forward {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.pipe).poll_write(context, bytes) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(self.failure().unwrap_or(error))),
            written => written,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.pipe).poll_shutdown(context)
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.carrier.abort();
    }
}
