//! Reports the progress of an attempt.
//!
//! A webhook and a hub receive every event once and in order; the annotation of the node holds only the newest state.
//!
//! The ledger itself is the queue: an event is recorded in it before it is sent, and it stays there. A file beside
//! the ledger holds the sequence number of the last event that each listener accepted. The next process continues
//! from there, even when it finds the attempt ended. Events that could not be delivered at the end are delivered when
//! the same Secret is applied again. Reporting never blocks the work. The message for an event is always the same,
//! and `(attempt, sequence)` identifies it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use landfall_durable::Access;
use landfall_fetch::{Begin, Exchange, Method};
use landfall_model::chain;
use landfall_model::in_place::Progress;
use landfall_model::step::{Event, Happening};
use landfall_net::Backoff;
use landfall_steps::RunRecord;
use landfall_steps::events::Sink;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::environment::{read, write};
use crate::in_place::credentials::{Credentials, HubEndpoint, ProgressEndpoint};
use crate::in_place::environment::{InPlaceEnvironment, TrustRoots};
use crate::in_place::oci;
use crate::in_place::places::{Folder, RUN};
use crate::in_place::request::{ClusterUse, Request};
use crate::in_place::steps::Given;
use crate::in_place::story::{self, State};
use crate::run::records;

pub use landfall_model::in_place::STATE_ANNOTATION as ANNOTATION;

const WITHIN: Duration = Duration::from_secs(20);
const MAX_ANSWER: u64 = 1024 * 1024;
/// Delays between retries of an endpoint that does not answer.
const BACKOFF: Backoff = Backoff::millis::<2000, 120_000>();
/// Time limit for the remaining events when the process is about to end.
const LAST_WORDS: Duration = Duration::from_secs(30);

/// Length limit, in characters, of a reason sent to a hub: enough for the end of a program's output.
const MAX_REASON: usize = 8000;

/// A receiver of every event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listener {
    Webhook,
    Hub,
}

/// Wakes the [`Teller`] after a new event.
#[derive(Clone, Debug, Default)]
pub struct Wake(Arc<Notify>);

/// Reports the progress of one attempt.
#[expect(missing_debug_implementations, reason = "holds a password")]
pub struct Teller<W> {
    env: Arc<W>,
    request: Request,
    attempt: String,
    given: Option<Arc<Given>>,
    wake: Wake,
    /// Sequence number of the last event that each listener accepted.
    told: [(Listener, u64); 2],
    shown: Option<State>,
}

/// Builds the webhook message for an event that led to this state.
pub fn message(event: &Event, state: &State, request: &Request, endpoint: &ProgressEndpoint) -> Value {
    let step = match &event.what {
        Happening::Step { step, .. } => Some(step.as_str()),
        _ => None,
    };
    json!({
        "worker_id": endpoint.worker,
        "clusterid": endpoint.cluster,
        "hostname": request.node,
        "attempt": event.attempt,
        "sequence": event.sequence,
        "time": event.time,
        "boot_id": event.boot_id,
        "state": state.name(),
        "detail": state,
        "step": step,
    })
}

/// Builds the hub's progress record for an event.
fn progress(event: &Event, mut state: State) -> Progress {
    if let State::Failed { reason, .. } | State::RolledBack { reason, .. } = &mut state {
        *reason = reason.chars().take(MAX_REASON).collect();
    }
    let step = match &event.what {
        Happening::Step { step, .. } => Some(step.clone()),
        _ => None,
    };
    Progress {
        attempt: event.attempt.clone(),
        sequence: event.sequence,
        time: event.time,
        boot_id: event.boot_id.clone(),
        state,
        step,
    }
}

// === impl Listener ===

impl Listener {
    /// Returns the file that holds the sequence number of the last accepted event.
    fn told(self, attempt: &str) -> PathBuf {
        match self {
            Self::Webhook => Folder::of(attempt).told(),
            Self::Hub => Folder::of(attempt).told_hub(),
        }
    }

    /// Builds the request for an event, or `None` when the Secret names no such listener.
    fn question(
        self,
        credentials: &Credentials,
        request: &Request,
        event: &Event,
        state: State,
    ) -> Option<(TrustRoots, Exchange)> {
        let post = |url: String, body: String| Exchange {
            method: Method::Post,
            body: Some(body.into()),
            begin: Begin::Anew,
            ..Exchange::get(url, WITHIN, MAX_ANSWER)
        };
        let (trust, question) = match self {
            Self::Webhook => {
                let endpoint = credentials.progress.as_ref()?;
                let body = message(event, &state, request, endpoint).to_string();
                let question = post(endpoint.url.clone(), body)
                    .header("x-one-time-password", endpoint.password.expose().clone())
                    .header("idempotency-key", format!("{}-{}", event.attempt, event.sequence));
                (endpoint.authorities.clone(), question)
            }
            Self::Hub => {
                let HubEndpoint { url, token, authorities } = credentials.hub.as_ref()?;
                let url = format!(
                    "{}/api/v1/nodes/{}/progress",
                    url.trim_end_matches('/'),
                    oci::escape(&request.node)
                );
                let body = serde_json::to_string(&progress(event, state)).ok()?;
                let question = post(url, body).header("authorization", format!("Bearer {}", token.expose()));
                (authorities.clone(), question)
            }
        };
        let question = question.header("content-type", "application/json");
        Some((trust.map_or(TrustRoots::System, TrustRoots::Only), question))
    }
}

// === impl Wake ===

impl Sink for Wake {
    fn take(&mut self, event: &Event) {
        if event.part == 0 {
            self.0.notify_one();
        }
    }
}

// === impl Teller ===

impl<W: InPlaceEnvironment> Teller<W> {
    pub fn new(
        env: &Arc<W>,
        request: &Request,
        attempt: &str,
        given: Option<&Arc<Given>>,
        wake: &Wake,
    ) -> Self {
        let told = |listener: Listener| {
            let bytes = read(&**env, &listener.told(attempt), 32).ok().flatten();
            let told = bytes.and_then(|bytes| String::from_utf8(bytes).ok()?.trim().parse().ok());
            (listener, told.unwrap_or(0))
        };
        Self {
            env: env.clone(),
            request: request.clone(),
            attempt: attempt.to_owned(),
            given: given.cloned(),
            wake: wake.clone(),
            told: [Listener::Webhook, Listener::Hub].map(told),
            shown: None,
        }
    }

    /// Reports events until the work is over, then the remaining ones for at most 30 s.
    ///
    /// A request in flight when the work ends is awaited: if it were aborted and sent again, the listener would
    /// receive the event twice.
    pub async fn run(&mut self, over: &CancellationToken) {
        let too_long = async {
            over.cancelled().await;
            tokio::time::sleep(LAST_WORDS).await;
        };
        tokio::select! {
            () = self.tell_all(over) => {}
            () = too_long => tracing::warn!("progress report timed out"),
        }
    }

    async fn tell_all(&mut self, over: &CancellationToken) {
        let mut backoff = BACKOFF;
        loop {
            let was_over = over.is_cancelled();
            let heard = self.tell().await;
            if heard && was_over {
                return;
            }
            if heard {
                backoff.reset();
                tokio::select! {
                    () = self.wake.0.notified() => {}
                    () = over.cancelled() => {}
                }
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(backoff.pause()) => {}
                // Delays may have grown long, and little time is left now.
                () = over.cancelled(), if !was_over => backoff.reset(),
            }
        }
    }

    /// Sends new events; returns false when a listener did not accept them.
    async fn tell(&mut self) -> bool {
        let records = records(&*self.env, RUN);
        let record = records.unwrap_or_default().into_iter().find(|record| record.attempt() == self.attempt);
        let Some(record) = record else { return true };
        let shown = self.show(&record).await;
        // A failing listener does not delay the other one.
        let mut heard = true;
        for place in 0..self.told.len() {
            heard &= self.post(&record, place).await;
        }
        heard && shown
    }

    /// Sends the events that one listener has not accepted yet.
    async fn post(&mut self, record: &RunRecord, place: usize) -> bool {
        let given = self.given.clone();
        let credentials = given.as_ref().and_then(|given| given.credentials.as_ref().ok());
        let Some(credentials) = credentials else { return true };
        let (listener, told) = self.told[place];
        let events = record.events_after(0);
        for (number, event) in events.iter().enumerate().filter(|(_, event)| event.sequence > told) {
            let state = story::after(&events[..=number]);
            let question = listener.question(credentials, &self.request, event, state);
            let Some((trust, question)) = question else { return true };
            match self.env.exchange(&trust, &question).await {
                // An event that the listener will never accept must not block the following ones.
                Ok(answer) if answer.is_success() || matches!(answer.status, 400 | 409 | 413 | 422) => {}
                Ok(answer) => {
                    tracing::info!(?listener, status = answer.status, "Progress is not taken.");
                    return false;
                }
                Err(error) => {
                    tracing::info!(?listener, error = %chain(&error), "progress report failed");
                    return false;
                }
            }
            self.told[place].1 = event.sequence;
            self.remember(place);
        }
        true
    }

    /// Losing this file only causes some events to be sent twice, which is harmless.
    fn remember(&self, place: usize) {
        let (listener, told) = self.told[place];
        let (path, text) = (listener.told(&self.attempt), told.to_string());
        if let Err(error) = write(&*self.env, &path, text.as_bytes(), Access::PRIVATE) {
            tracing::debug!(error = %chain(&error), "cannot store the reported progress");
        }
    }

    async fn show(&mut self, record: &RunRecord) -> bool {
        let state = story::state(record);
        if self.request.cluster == ClusterUse::None || self.shown.as_ref() == Some(&state) {
            return true;
        }
        let text = json!({
            "attempt": self.attempt,
            "state": state.name(),
            "detail": state,
            "step": story::current(record),
            "time": self.env.now(),
        });
        match self.env.annotate(&self.request.node, ANNOTATION, &text.to_string()).await {
            Ok(()) => {
                self.shown = Some(state);
                true
            }
            Err(error) => {
                tracing::debug!(error = error.reason, "progress report to the cluster failed");
                false
            }
        }
    }
}
