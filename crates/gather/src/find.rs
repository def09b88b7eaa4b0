//! Finds the bootstrap machine behind a load balancer: the balancer chooses per connection, so connections are opened
//! until one of them says that it is the bootstrap machine, and that one is kept.

use std::collections::BTreeMap;
use std::time::Duration;

use hyper::{HeaderMap, Method};
use landfall_model::identity::NodeIdentity;
use serde::Deserialize;
use tokio::time::Instant;

use crate::connection::{Connection, Dialer, Speaks, small_body};
use crate::{Access, Endpoint, Error};

/// Between two tries; grows to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// How long to look for the bootstrap machine.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    pub within: Duration,
    /// Told once why nobody has answered yet, when it is tried on.
    pub tell: fn(&Error),
}

/// What `/bootstrap/identity` tells. Fields that a newer gateway adds are passed over.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct IdentityAnswer {
    pub node: NodeIdentity,
    /// Where the bootstrap stands: `no-api`, `local`, `both`, `handover`, `permanent`, `failed`.
    pub phase: String,
    /// The gateway's own.
    pub version: String,
}

/// A connection to the bootstrap machine.
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub struct Found {
    pub identity: IdentityAnswer,
    /// How many connections it took.
    pub tries: usize,
    pub(crate) connection: Connection,
}

/// Opens connections until the bootstrap machine answers.
pub async fn find(endpoint: &Endpoint, access: &Access, patience: Patience) -> Result<Found, Error> {
    let dialer = Dialer::new(endpoint, access, Speaks::Gateway)?;
    let started = Instant::now();
    let mut pause = FIRST_PAUSE;
    let mut reached: BTreeMap<String, usize> = BTreeMap::new();
    let mut denied = None;
    let mut not_now = None;
    let mut last_error = None;
    for tries in 1.. {
        match try_one(&dialer).await {
            Ok(Answer::Bootstrap(identity, connection)) => {
                return Ok(Found { identity: *identity, tries, connection });
            }
            Ok(Answer::Denied(status, said)) => {
                *reached.entry("the bootstrap machine, which refuses us".to_owned()).or_default() += 1;
                denied = Some((status, said));
            }
            // It is the right machine; it may be able to say more when there is an API server to ask.
            Ok(Answer::NotNow(status, said)) => not_now = Some((status, said)),
            Ok(Answer::Other(status)) => {
                *reached.entry(format!("somebody else (HTTP {status})")).or_default() += 1;
            }
            // A mistake in what we were given does not go away.
            Err(error @ (Error::Credentials { .. } | Error::Url { .. } | Error::Proxy { .. })) => {
                return Err(error);
            }
            Err(error) => {
                tracing::debug!(error = %landfall_model::chain(&error), "No answer on this connection.");
                // Who mistyped a name should not have to wait to learn it.
                if last_error.is_none() && started.elapsed() + pause < patience.within {
                    (patience.tell)(&error);
                }
                last_error = Some(error);
            }
        }
        // Nobody's rights change by waiting: the machine was reached and has said no.
        if let Some((status, said)) = denied {
            return Err(Error::Refused { path: "/bootstrap/identity", status, said });
        }
        if started.elapsed() + pause >= patience.within {
            break;
        }
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    if let Some((status, said)) = not_now {
        return Err(Error::Refused { path: "/bootstrap/identity", status, said });
    }
    // Nobody answered at all: why is better than how often.
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
    /// It is the bootstrap machine, and it does not want us.
    Denied(u16, String),
    /// It is the bootstrap machine, and it cannot tell yet whether it wants us.
    NotNow(u16, String),
    /// Another API server, or one that does not know the path.
    Other(u16),
}

async fn try_one(dialer: &Dialer<'_>) -> Result<Answer, Error> {
    let mut connection = dialer.dial().await?;
    let response = connection.ask(Method::GET, "/bootstrap/identity", HeaderMap::new()).await?;
    let status = response.status().as_u16();
    let is_gateway = response.headers().contains_key("landfall-gateway");
    if status == 200 {
        let body = small_body(response).await;
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

/// Between half and the whole of a pause, so that many clients do not come at once.
fn jittered(pause: Duration) -> Duration {
    let mut byte = [0];
    // Without randomness the pause is merely longer.
    let share = getrandom::fill(&mut byte).map_or(1.0, |()| 0.5 + f64::from(byte[0]) / 512.0);
    pause.mul_f64(share)
}
