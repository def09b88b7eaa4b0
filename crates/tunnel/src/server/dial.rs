//! One dial from either frontend: limited in time, and retried with another agent if the first one fails.

use std::future::poll_fn;
use std::mem::discriminant;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::Shared;
use super::agents::Agent;
use crate::clock;
use crate::mux::{DialFailure, Tunnel};
use crate::number::random;

/// Timeout of an agent if another could be used instead; an agent's own timeout for an endpoint is 5 s.
const PATIENCE: Duration = Duration::from_secs(8);
/// Maximum number of agents per dial.
const MAX_ATTEMPTS: usize = 3;

/// Reason for a failed dial. The texts are upstream's where it has one, because kube-apiserver's users know them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DialError {
    #[error("No agent available")]
    NoAgent,
    #[error("every agent has as much to do as it may")]
    Busy,
    #[error("{0}")]
    Refused(String),
    #[error("the agent was lost while dialing")]
    AgentLost,
    #[error("timed out waiting for backend dial")]
    Timeout,
}

pub(super) async fn dial(shared: &Shared, address: &str) -> Result<Tunnel, DialError> {
    let started = Instant::now();
    let dialed = dial_somewhere(shared, address).await;
    match &dialed {
        Ok(_) => shared.metrics.dial_duration.observe(started.elapsed()),
        Err(error) => {
            shared.metrics.dial_failed(error);
            if let Some(untold) = shared.failed_dials.count(discriminant(error), clock::now()) {
                tracing::warn!(address, %error, untold, "dial failed");
            }
        }
    }
    dialed
}

async fn dial_somewhere(shared: &Shared, address: &str) -> Result<Tunnel, DialError> {
    let deadline = Instant::now() + shared.dial_timeout;
    let mut tried: Vec<Arc<Agent>> = Vec::new();
    let mut failure = DialError::NoAgent;
    while tried.len() < MAX_ATTEMPTS {
        let Some(agent) = shared.agents.choose(address, &tried) else {
            if tried.is_empty() && shared.agents.is_any_full() {
                failure = DialError::Busy;
            }
            break;
        };
        tried.push(Arc::clone(&agent));
        let last = tried.len() == MAX_ATTEMPTS || shared.agents.count() <= tried.len();
        let until = if last { deadline } else { deadline.min(Instant::now() + PATIENCE) };
        let tunnel = {
            let _pending = agent.pending();
            let tunnel = Tunnel::dialing(&agent.queue, random(), address.to_owned(), agent.credit);
            match timeout_at(until, poll_fn(|cx| tunnel.poll_open(cx))).await {
                Ok(Ok(())) => Ok(tunnel),
                Ok(Err(DialFailure::Refused(error))) => Err(DialError::Refused(error)),
                Ok(Err(DialFailure::LinkLost)) => Err(DialError::AgentLost),
                Err(_) => Err(DialError::Timeout),
            }
        };
        match tunnel {
            Ok(tunnel) => {
                agent.trust();
                return Ok(tunnel);
            }
            // The endpoint refused; another agent would get the same result.
            Err(refused @ DialError::Refused(_)) => return Err(refused),
            Err(lost) => {
                if lost == DialError::Timeout {
                    tracing::warn!(agent = agent.id, address, "agent does not answer a dial");
                    agent.doubt();
                }
                failure = lost;
            }
        }
        if Instant::now() >= deadline {
            break;
        }
    }
    Err(failure)
}

// === impl DialError ===

impl DialError {
    /// Returns the response to an HTTP CONNECT. Upstream parses the text of the agent, so landfall agents use Go's
    /// wording.
    pub(super) fn http_status(&self) -> (u16, &'static str) {
        match self {
            Self::NoAgent => (500, "Internal Server Error"),
            Self::Timeout => (504, "Gateway Timeout"),
            Self::Refused(text) if text.contains("timeout") || text.contains("deadline exceeded") => {
                (504, "Gateway Timeout")
            }
            Self::Busy => (503, "Service Unavailable"),
            Self::Refused(text) if text.contains("too many open files") => (503, "Service Unavailable"),
            Self::Refused(_) | Self::AgentLost => (502, "Bad Gateway"),
        }
    }
}
