//! TCP tunnels through the gateway to nodes without a public address, for end-to-end SSH whose keys stay on the client.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use landfall_net::carry;
use landfall_net::metrics::GaugeGuard;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::Gateway;
use crate::access::{Admitted, Need, admit};
use crate::answer::{Answer, Refusal, failure};
use crate::audit::Event;
use crate::body::Body;
use crate::connection::{Connection, dial};
use crate::headers::asks_for_upgrade;
use crate::own::{TUNNEL, parameter};
use crate::websocket;

/// Maximum lifetime of a tunnel.
const TOTAL_LIMIT: Duration = Duration::from_secs(12 * 3600);
const RESOLVE_LIMIT: Duration = Duration::from_secs(5);
const BUFFER: usize = 16 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Destination {
    host: String,
    port: u16,
}

/// An authorized tunnel with a connection to its node.
struct Opened {
    admitted: Admitted,
    node: TcpStream,
    /// The slot of this tunnel, acquired before the node is dialed.
    held: GaugeGuard,
}

/// Framing of the bytes on the client's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    None,
    WebSocket,
}

/// Serves `CONNECT host:port`.
pub(crate) async fn connect(connection: &Connection, mut request: Request<Incoming>) -> Answer {
    let Some(destination) =
        request.uri().authority().and_then(|authority| Destination::parse(authority.as_str()))
    else {
        return failure(StatusCode::BAD_REQUEST, "CONNECT takes a host and a port");
    };
    let upgrade = hyper::upgrade::on(&mut request);
    match open(connection, "CONNECT", request.headers(), &destination).await {
        Ok(opened) => {
            join(connection, opened, &destination, upgrade, Framing::None);
            Response::new(Body::empty())
        }
        Err(refusal) => refusal.into(),
    }
}

/// Serves `GET /bootstrap/tunnel?host=…&port=…` as a WebSocket; the payload of binary messages is the byte stream.
pub(crate) async fn websocket(connection: &Connection, mut request: Request<Incoming>) -> Answer {
    let destination = request.uri().query().and_then(Destination::of_query);
    let key = request
        .headers()
        .get(header::SEC_WEBSOCKET_KEY)
        .and_then(|key| key.to_str().ok())
        .map(websocket::accept);
    let wished = request
        .headers()
        .get(header::UPGRADE)
        .is_some_and(|to| to.as_bytes().eq_ignore_ascii_case(b"websocket"));
    let (Some(destination), Some(accept), true) =
        (destination, key, wished && asks_for_upgrade(request.headers()))
    else {
        let usage = "a tunnel is `CONNECT host:port`, or a WebSocket at `/bootstrap/tunnel?host=…&port=…`";
        return failure(StatusCode::BAD_REQUEST, usage);
    };
    let upgrade = hyper::upgrade::on(&mut request);
    let opened = match open(connection, "GET", request.headers(), &destination).await {
        Ok(opened) => opened,
        Err(refusal) => return refusal.into(),
    };
    join(connection, opened, &destination, upgrade, Framing::WebSocket);
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accept) = HeaderValue::from_str(&accept) {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    answer
}

/// Forwards raw SSH on the API port to one configured server, which authenticates the client.
pub(crate) async fn ssh(
    gateway: &Gateway,
    mut client: TcpStream,
    first: BytesMut,
    from: SocketAddr,
    target: SocketAddr,
) {
    let Some(mut server) = dial(target).await else { return };
    if server.write_all(&first).await.is_err() {
        return;
    }
    let event = Event::new(from, "SSH", &target.to_string());
    // Both ends see for themselves how the connection ended.
    if let Ok(carried) = carry(&gateway.pipes, &mut client, &mut server).await {
        gateway.audit.ended(&event, "ssh", carried.up, carried.down);
    }
}

/// Authorizes the client and connects to the node.
async fn open(
    connection: &Connection,
    method: &str,
    headers: &hyper::HeaderMap,
    destination: &Destination,
) -> Result<Opened, Refusal> {
    let path = format!("{TUNNEL}?host={}&port={}", destination.host, destination.port);
    let admitted = admit(connection, method, &path, headers, Need::Path(TUNNEL)).await?;
    let gateway = &connection.gateway;
    let Some(held) = gateway.metrics.tunnels.try_guard(gateway.config.tunnel.max_tunnels as u64) else {
        return Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too many tunnels are open"));
    };
    let addresses = destination.resolve().await;
    if addresses.is_empty() {
        return Err(Refusal::new(StatusCode::BAD_GATEWAY, "the node's name is not known here"));
    }
    let nodes = &gateway.outlook.now().nodes;
    // The check applies to the address, because a name may resolve to any address.
    let allowed =
        addresses.iter().filter(|address| gateway.config.tunnel.allows(**address, destination.port, nodes));
    let mut tried = false;
    for address in allowed {
        tried = true;
        if let Some(node) = dial(SocketAddr::new(*address, destination.port)).await {
            return Ok(Opened { admitted, node, held });
        }
    }
    if tried {
        return Err(Refusal::new(StatusCode::BAD_GATEWAY, "the node cannot be reached"));
    }
    let event = Event::new(connection.client, method, &path);
    let reason = "tunnels lead to nodes of the control plane and allowed networks only";
    gateway.audit.denied(&event, Some(&admitted.user), StatusCode::FORBIDDEN, reason);
    Err(Refusal::new(StatusCode::FORBIDDEN, reason))
}

/// Copies bytes once the client's side is a plain stream.
fn join(
    connection: &Connection,
    opened: Opened,
    destination: &Destination,
    client: OnUpgrade,
    framing: Framing,
) {
    let Opened { admitted, mut node, held } = opened;
    let gateway = Arc::clone(&connection.gateway);
    let event =
        Event::new(connection.client, "CONNECT", &format!("{}:{}", destination.host, destination.port));
    let drain = gateway.drain.clone();
    drain.spawn(async move {
        let _held = held;
        let Ok(client) = client.await else { return };
        let mut client = TokioIo::new(client);
        let carrying = async {
            match framing {
                Framing::None => {
                    tokio::io::copy_bidirectional_with_sizes(&mut client, &mut node, BUFFER, BUFFER).await
                }
                Framing::WebSocket => websocket::carry(client, node).await,
            }
        };
        let (up, down) = match tokio::time::timeout(TOTAL_LIMIT, carrying).await {
            Ok(Ok(carried)) => carried,
            // The counts of a failed or interrupted tunnel are unknown.
            _ => (0, 0),
        };
        gateway.metrics.tunnelled_bytes.add(up + down);
        gateway.audit.ended(&event, &admitted.user, up, down);
    });
}

// === impl Destination ===

impl Destination {
    fn parse(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:_".contains(&byte);
        if host.is_empty() || !host.bytes().all(plain) {
            return None;
        }
        Some(Self { host: host.to_owned(), port: port.parse().ok()? })
    }

    /// Parses `host=…&port=…`; the port defaults to SSH.
    fn of_query(query: &str) -> Option<Self> {
        let host = parameter(query, "host")?;
        let port = parameter(query, "port").unwrap_or_else(|| "22".to_owned());
        Self::parse(&format!("{host}:{port}"))
    }

    async fn resolve(&self) -> Vec<IpAddr> {
        if let Ok(address) = self.host.parse() {
            return vec![address];
        }
        let resolving = tokio::net::lookup_host((self.host.as_str(), self.port));
        match tokio::time::timeout(RESOLVE_LIMIT, resolving).await {
            Ok(Ok(found)) => found.map(|address| address.ip()).collect(),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_hosts_with_ports() {
        for (text, expected) in [
            ("10.0.0.5:22", Some(("10.0.0.5", 22))),
            ("[fd00::5]:22", Some(("fd00::5", 22))),
            ("node-1.example.org:2222", Some(("node-1.example.org", 2222))),
            ("node-1", None),
            (":22", None),
            ("a@b:22", None),
            ("node:99999", None),
        ] {
            let parsed = Destination::parse(text);
            assert_eq!(parsed.as_ref().map(|to| (to.host.as_str(), to.port)), expected, "{text}");
        }
        for (query, expected) in [
            ("host=10.0.0.5&port=2222", Some(("10.0.0.5", 2222))),
            ("host=node-1", Some(("node-1", 22))),
            ("host=fd00%3A%3A5&port=22", Some(("fd00::5", 22))),
            ("port=22", None),
        ] {
            let parsed = Destination::of_query(query);
            assert_eq!(parsed.as_ref().map(|to| (to.host.as_str(), to.port)), expected, "{query}");
        }
    }
}
