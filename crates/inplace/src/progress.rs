//! Telling how far an attempt is: to a webhook and to a hub, every event once and in order, and to the node's annotation, the
//! newest state only.
//!
//! The queue is the ledger itself: an event is in it before anybody hears of it, and stays. Beside it lies the number of
//! the last event each of them took, so that the next process goes on there, even one that finds the attempt ended: what
//! could not be told at the end is told when the same Secret is handed in again. Telling never holds the work up, and what
//! is told of one event is the same however often it is told: `(attempt, sequence)` names it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use landfall_fetch::{Begin, Exchange, Method};
use landfall_model::chain;
use landfall_model::in_place::Progress;
use landfall_model::step::{Event, Happening};
use landfall_steps::durable::Access;
use landfall_steps::events::Sink;
use landfall_steps::{RunRecord, read_all};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::credentials::{Credentials, HubEndpoint, ProgressEndpoint};
use crate::oci;
use crate::places::{Folder, RUN, STATE};
use crate::request::{ClusterUse, Request};
use crate::steps::Given;
use crate::story::{self, State};
use crate::world::{Trust, World, read, write};

pub use landfall_model::in_place::STATE_ANNOTATION as ANNOTATION;

const WITHIN: Duration = Duration::from_secs(20);
const MAX_ANSWER: u64 = 1024 * 1024;
/// Between two tries at an endpoint that does not answer: doubled up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_mins(2);
/// For the last words, when the process is about to end.
const LAST_WORDS: Duration = Duration::from_secs(30);

/// Characters of a reason that a hub is told: the end of what a program said is in there.
const MAX_REASON: usize = 8000;

/// Who is told every event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listener {
    Webhook,
    Hub,
}

/// Wakes the teller when something happened.
#[derive(Clone, Debug, Default)]
pub struct Wake(Arc<Notify>);

/// Tells of one attempt.
#[expect(missing_debug_implementations, reason = "holds a password")]
pub struct Teller<W> {
    world: Arc<W>,
    request: Request,
    attempt: String,
    given: Option<Arc<Given>>,
    wake: Wake,
    /// The last event that each was told.
    told: [(Listener, u64); 2],
    shown: Option<State>,
}

/// What the webhook is told of an event that led to this state.
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

/// What the hub is told of it.
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
    /// Where it is written down what it was told.
    fn told(self, attempt: &str) -> PathBuf {
        match self {
            Self::Webhook => Folder::of(attempt).told(),
            Self::Hub => Folder::of(attempt).told_hub(),
        }
    }

    /// How it is told of an event; nothing when the Secret names no such listener.
    fn question(
        self,
        credentials: &Credentials,
        request: &Request,
        event: &Event,
        state: State,
    ) -> Option<(Trust, Exchange)> {
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
        Some((trust.map_or(Trust::Machine, Trust::Only), question))
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

impl<W: World> Teller<W> {
    pub fn new(
        world: &Arc<W>,
        request: &Request,
        attempt: &str,
        given: Option<&Arc<Given>>,
        wake: &Wake,
    ) -> Self {
        let told = |listener: Listener| {
            let bytes = read(&**world, &listener.told(attempt), 32).ok().flatten();
            let told = bytes.and_then(|bytes| String::from_utf8(bytes).ok()?.trim().parse().ok());
            (listener, told.unwrap_or(0))
        };
        Self {
            world: world.clone(),
            request: request.clone(),
            attempt: attempt.to_owned(),
            given: given.cloned(),
            wake: wake.clone(),
            told: [Listener::Webhook, Listener::Hub].map(told),
            shown: None,
        }
    }

    /// Tells what happens until the work is over, and then what is left to tell, for a short time. What is under way when
    /// the work ends is waited for: told anew, the listener would hear it twice.
    pub async fn run(&mut self, over: &CancellationToken) {
        let too_long = async {
            over.cancelled().await;
            tokio::time::sleep(LAST_WORDS).await;
        };
        tokio::select! {
            () = self.tell_all(over) => {}
            () = too_long => tracing::warn!("Not everybody could be told how far this machine is."),
        }
    }

    async fn tell_all(&mut self, over: &CancellationToken) {
        let mut pause = FIRST_PAUSE;
        loop {
            let was_over = over.is_cancelled();
            let heard = self.tell().await;
            if heard && was_over {
                return;
            }
            if heard {
                pause = FIRST_PAUSE;
                tokio::select! {
                    () = self.wake.0.notified() => {}
                    () = over.cancelled() => {}
                }
                continue;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                // Pauses may have grown long; little time is left now.
                () = over.cancelled(), if !was_over => pause = FIRST_PAUSE,
            }
        }
    }

    /// Tells what is new; false when somebody did not listen.
    async fn tell(&mut self) -> bool {
        let records = read_all(&*self.world.disk(), &self.world.place(Path::new(STATE)), RUN);
        let record = records.unwrap_or_default().into_iter().find(|record| record.attempt() == self.attempt);
        let Some(record) = record else { return true };
        let shown = self.show(&record).await;
        // One that does not listen does not keep the other from hearing.
        let mut heard = true;
        for place in 0..self.told.len() {
            heard &= self.post(&record, place).await;
        }
        heard && shown
    }

    /// Tells one listener what it was not told yet.
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
            match self.world.exchange(&trust, &question).await {
                // What it will never take must not hold up what comes behind it.
                Ok(answer) if answer.is_success() || matches!(answer.status, 400 | 409 | 413 | 422) => {}
                Ok(answer) => {
                    tracing::info!(?listener, status = answer.status, "Progress is not taken.");
                    return false;
                }
                Err(error) => {
                    tracing::info!(?listener, error = %chain(&error), "Nobody takes progress.");
                    return false;
                }
            }
            self.told[place].1 = event.sequence;
            self.remember(place);
        }
        true
    }

    /// Losing this means telling some events twice, which is harmless.
    fn remember(&self, place: usize) {
        let (listener, told) = self.told[place];
        let (path, text) = (listener.told(&self.attempt), told.to_string());
        if let Err(error) = write(&*self.world, &path, text.as_bytes(), Access::PRIVATE) {
            tracing::debug!(error = %chain(&error), "It is not written down what was told.");
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
            "time": self.world.now(),
        });
        match self.world.annotate(&self.request.node, ANNOTATION, &text.to_string()).await {
            Ok(()) => {
                self.shown = Some(state);
                true
            }
            Err(error) => {
                tracing::debug!(error = error.reason, "The cluster is not told how far this machine is.");
                false
            }
        }
    }
}
