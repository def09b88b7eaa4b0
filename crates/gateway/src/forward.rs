//! Requests forwarded to the API server. Forwarding neither grants nor removes an identity.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, StatusCode, Version};
use hyper_util::rt::TokioIo;
use landfall_model::chain;

use crate::answer::{Answer, Refusal, failure};
use crate::body::Body;
use crate::config::Mode;
use crate::connection::Connection;
use crate::credentials::{Credentials, Peer};
use crate::headers::{
    asks_for_upgrade, carries_token, clean_answer, clean_request, forwarded_for, speaks_for_others,
};
use crate::situation::Situation;
use crate::upstream::{As, Unsent};

/// Bytes copied per read in each direction of an upgraded connection.
const UPGRADE_BUFFER: usize = 16 * 1024;

/// Forwards a request with exactly the identity of its client.
pub(crate) async fn forward(connection: &Connection, mut request: Request<Incoming>) -> Answer {
    let gateway = &connection.gateway;
    let situation = gateway.outlook.now();
    if gateway.config.mode == Mode::Splice {
        // This connection was terminated while there was no API server; the next one is spliced.
        return away("this connection ends here: connect again to reach the API server");
    }
    let credentials = gateway.credentials.get();
    let peer = connection.peer(&credentials);
    let who = match decide(&peer, request.headers(), gateway) {
        Ok(who) => who,
        Err(refusal) => return refusal.into(),
    };
    let targets = gateway.outlook.targets(&situation, gateway.config.upstream.local);
    if targets.is_empty() {
        return failure(StatusCode::SERVICE_UNAVAILABLE, "no API server answers yet");
    }
    // Read before `clean_request` removes these headers: both belong to this hop.
    let upgrade =
        (request.version() != Version::HTTP_2 && asks_for_upgrade(request.headers())).then(|| Upgrade {
            protocol: request.headers().get(header::UPGRADE).cloned(),
            client: hyper::upgrade::on(&mut request),
        });
    let (mut parts, body) = request.into_parts();
    parts.extensions.clear();
    if let Err(error) = clean_request(&mut parts.headers, &gateway.believed) {
        return failure(StatusCode::BAD_REQUEST, &error.to_string());
    }
    forwarded_for(&mut parts.headers, connection.client.ip());
    if let (As::FrontProxy, Peer::Known(known)) = (who, &peer) {
        for (name, value) in &known.headers {
            parts.headers.append(name.clone(), value.clone());
        }
    }
    let request = Request::from_parts(parts, Body::forwarded(body, None, None));
    match upgrade {
        Some(upgrade) => Box::pin(upgrade.run(connection, &credentials, who, &targets, request)).await,
        None => plainly(connection, &credentials, who, &targets, &situation, request).await,
    }
}

/// Returns the identity of the upstream connection for a request, or rejects the request.
fn decide(peer: &Peer, headers: &HeaderMap, gateway: &crate::Gateway) -> Result<As, Refusal> {
    let unauthorized = |reason: &str| {
        tracing::debug!(reason, "a client certificate is worth nothing");
        Refusal::new(StatusCode::UNAUTHORIZED, "Unauthorized")
    };
    match peer {
        Peer::Nobody => Ok(As::Plain),
        Peer::Known(known)
            if known.could_speak_for_others && speaks_for_others(headers, &gateway.believed) =>
        {
            Err(front_proxies_go_elsewhere())
        }
        Peer::Known(_) => Ok(As::FrontProxy),
        // kube-apiserver rejects such a certificate unless the request also has a valid token.
        Peer::Unknown { .. } if carries_token(headers) => Ok(As::Plain),
        Peer::Unknown { reason } | Peer::Unfit { reason } => Err(unauthorized(reason)),
        Peer::FrontProxy => Err(front_proxies_go_elsewhere()),
    }
}

fn front_proxies_go_elsewhere() -> Refusal {
    Refusal::new(
        StatusCode::FORBIDDEN,
        "a front proxy speaks for others only to the API server itself, not through this gateway",
    )
}

/// Returns a failure and closes the connection, so that the client reconnects.
fn away(message: &str) -> Answer {
    let mut answer = failure(StatusCode::SERVICE_UNAVAILABLE, message);
    answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    answer
}

async fn plainly(
    connection: &Connection,
    credentials: &Credentials,
    who: As,
    targets: &[std::net::SocketAddr],
    situation: &Situation,
    mut request: Request<Body>,
) -> Answer {
    let Some(pool) = credentials.pools.of_lane(connection.lane, who) else { return nobody_speaks() };
    let watches = is_watch(&request);
    let local = connection.gateway.config.upstream.local;
    let version = request.version();
    for target in targets {
        match pool.send(*target, request).await {
            Ok((answer, returning)) => {
                let (mut parts, incoming) = answer.into_parts();
                clean_answer(&mut parts.headers);
                parts.extensions.clear();
                parts.version = version;
                // Only the local server stops during a handover; its watches end normally before.
                let end = (watches && *target == local).then(|| situation.retire.clone().cancelled_owned());
                return Answer::from_parts(parts, Body::forwarded(incoming, end, Some(returning)));
            }
            Err(Unsent { error, request: unsent }) => {
                tracing::debug!(%target, error = %chain(&error), "not forwarded");
                match unsent {
                    Some(again) => request = *again,
                    None => return failure(StatusCode::SERVICE_UNAVAILABLE, "the API server broke off"),
                }
            }
        }
    }
    failure(StatusCode::SERVICE_UNAVAILABLE, "no API server can be reached")
}

fn nobody_speaks() -> Answer {
    failure(StatusCode::SERVICE_UNAVAILABLE, "this gateway cannot speak for clients with certificates")
}

/// Returns whether the response continues until client or server ends it.
fn is_watch(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    request.method() == Method::GET
        && (query.split('&').any(|part| matches!(part, "watch=true" | "watch=1" | "watch"))
            || request.uri().path().contains("/watch/"))
}

/// A request to upgrade the connection to another protocol, such as SPDY or WebSocket.
struct Upgrade {
    protocol: Option<HeaderValue>,
    client: OnUpgrade,
}

// === impl Upgrade ===

impl Upgrade {
    async fn run(
        self,
        connection: &Connection,
        credentials: &Arc<Credentials>,
        who: As,
        targets: &[std::net::SocketAddr],
        mut request: Request<Body>,
    ) -> Answer {
        let Some(pool) = credentials.pools.of_lane(connection.lane, who) else { return nobody_speaks() };
        request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        if let Some(protocol) = self.protocol.clone() {
            request.headers_mut().insert(header::UPGRADE, protocol);
        }
        *request.version_mut() = Version::HTTP_11;
        for target in targets {
            let mut sender = match pool.dedicated(*target).await {
                Ok(sender) => sender,
                Err(error) => {
                    tracing::debug!(%target, error = %chain(&error), "not forwarded");
                    continue;
                }
            };
            return match sender.send_request(request).await {
                Ok(mut answer) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
                    let server = hyper::upgrade::on(&mut answer);
                    self.join(connection, server);
                    let (mut parts, _) = answer.into_parts();
                    parts.extensions.clear();
                    Answer::from_parts(parts, Body::empty())
                }
                Ok(answer) => {
                    let (mut parts, incoming) = answer.into_parts();
                    clean_answer(&mut parts.headers);
                    parts.extensions.clear();
                    // The upstream connection served this request only, and the client's connection may be in an
                    // unclear state after its upgrade request.
                    parts.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
                    tokio::spawn(async move {
                        // Keeps the connection open until the response is read.
                        let _ = sender.ready().await;
                    });
                    Answer::from_parts(parts, Body::forwarded(incoming, None, None))
                }
                Err(error) => {
                    tracing::debug!(%target, error = %chain(&error), "not forwarded");
                    failure(StatusCode::SERVICE_UNAVAILABLE, "the API server broke off")
                }
            };
        }
        failure(StatusCode::SERVICE_UNAVAILABLE, "no API server can be reached")
    }

    /// Copies bytes in both directions after both sides have upgraded, until either ends.
    fn join(self, connection: &Connection, server: OnUpgrade) {
        let held = connection.gateway.metrics.upgrades.guard();
        connection.gateway.drain.spawn(async move {
            let _held = held;
            let (Ok(client), Ok(server)) = tokio::join!(self.client, server) else { return };
            let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
            // Both ends see for themselves how the connection ended.
            let _ = tokio::io::copy_bidirectional_with_sizes(
                &mut client,
                &mut server,
                UPGRADE_BUFFER,
                UPGRADE_BUFFER,
            )
            .await;
        });
    }
}
