//! Search for the bootstrap host behind a load balancer. The balancer chooses per connection, so this opens connections
//! until one reaches the bootstrap host, and keeps that connection.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::{HeaderMap, Method};
use landfall_model::identity::NodeIdentity;
use landfall_net::Backoff;
use landfall_net::http::HttpError;
use serde::Deserialize;
use tokio::time::Instant;

use crate::connection::{ANSWER_LIMIT, Connection, Dialer, MAX_SMALL_BODY, Speaks};
use crate::{Access, Endpoint, Error};

/// Pauses between attempts.
const BACKOFF: Backoff = Backoff::millis::<50, 3000>();

/// Time limit of the search for the bootstrap host.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub within: Duration,
    /// Called once with the first error, if the search continues after it.
    pub tell: fn(&Error),
}

/// The response of `/bootstrap/identity`. Unknown fields of newer gateways are ignored.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct IdentityAnswer {
    pub node: NodeIdentity,
    /// Phase of the bootstrap: `no-api`, `local`, `both`, `handover`, `permanent`, `failed`.
    pub phase: String,
    /// Version of the gateway.
    pub version: String,
}

/// A connection to the bootstrap host.
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub struct Found {
    pub identity: IdentityAnswer,
    /// Number of connections until the host was found.
    pub tries: usize,
    pub(crate) connection: Connection,
}

/// Opens connections until the bootstrap host responds.
pub async fn find(endpoint: &Endpoint, access: &Access, patience: Patience) -> Result<Found, Error> {
    let dialer = Dialer::new(endpoint, access, Speaks::Gateway)?;
    let started = Instant::now();
    let mut backoff = BACKOFF;
    let mut reached: BTreeMap<String, usize> = BTreeMap::new();
    let mut denied = None;
    let mut not_now = None;
    let mut last_error = None;
    for tries in 1.. {
        let pause = backoff.pause();
        match try_one(&dialer).await {
            Ok(Answer::Bootstrap(identity, connection)) => {
                return Ok(Found { identity: *identity, tries, connection });
            }
            Ok(Answer::Denied(status, said)) => {
                *reached.entry("the bootstrap machine, which refuses us".to_owned()).or_default() += 1;
                denied = Some((status, said));
            }
            // This is the bootstrap host; the result may change once an API server can review the credentials.
            Ok(Answer::NotNow(status, said)) => not_now = Some((status, said)),
            Ok(Answer::Other(status)) => {
                *reached.entry(format!("another server (HTTP {status})")).or_default() += 1;
            }
            // An invalid configuration stays invalid, so a retry cannot succeed.
            Err(
                error @ (Error::Credentials { .. }
                | Error::Url { .. }
                | Error::Proxy { .. }
                | Error::Http(HttpError::Proxy { .. })),
            ) => {
                return Err(error);
            }
            Err(error) => {
                tracing::debug!(error = %landfall_model::chain(&error), "No answer on this connection.");
                // Report the error immediately: a mistyped host name should be visible before the timeout.
                if last_error.is_none() && started.elapsed() + pause < patience.within {
                    (patience.tell)(&error);
                }
                last_error = Some(error);
            }
        }
        // The bootstrap host denied access, which a retry does not change.
        if let Some((status, said)) = denied {
            return Err(Error::Refused { path: "/bootstrap/identity", status, said });
        }
        if started.elapsed() + pause >= patience.within {
            break;
        }
        tokio::time::sleep(pause).await;
    }
    if let Some((status, said)) = not_now {
        return Err(Error::Refused { path: "/bootstrap/identity", status, said });
    }
    // Without any response, the error is more useful than the number of attempts.
    if let Some(error) = last_error.filter(|_| reached.is_empty()) {
        return Err(error);
    }
    let tries = reached.values().sum();
    let reached = reached.iter().map(|(who, times)| format!("{who} {times}×")).collect::<Vec<_>>().join(", ");
    Err(Error::NotFound {
        endpoint: endpoint.to_string(),
        tries,
        seconds: started.elapsed().as_secs(),
        reached,
    })
}

enum Answer {
    Bootstrap(Box<IdentityAnswer>, Connection),
    /// The bootstrap host denied access.
    Denied(u16, String),
    /// The bootstrap host cannot decide about access yet.
    NotNow(u16, String),
    /// Another API server, or one without this path.
    Other(u16),
}

async fn try_one(dialer: &Dialer<'_>) -> Result<Answer, Error> {
    let mut connection = dialer.dial().await?;
    let response = connection.ask(Method::GET, "/bootstrap/identity", HeaderMap::new()).await?;
    let status = response.status().as_u16();
    let is_gateway = response.headers().contains_key("landfall-gateway");
    if status == 200 {
        let body = response.bytes(MAX_SMALL_BODY, ANSWER_LIMIT).await.ok();
        let identity = body.and_then(|body| serde_json::from_slice(&body).ok()).map(Box::new);
        return Ok(identity.map_or(Answer::Other(status), |identity| Answer::Bootstrap(identity, connection)));
    }
    if is_gateway && matches!(status, 401 | 403) {
        let (status, said) = crate::connection::said(response).await;
        return Ok(Answer::Denied(status, said));
    }
    if is_gateway && status == 503 {
        let (status, said) = crate::connection::said(response).await;
        return Ok(Answer::NotNow(status, said));
    }
    Ok(Answer::Other(status))
}
