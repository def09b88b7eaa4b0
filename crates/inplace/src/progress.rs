//! Telling how far an attempt is: to a webhook, every event once and in order, and to the node's annotation, the newest
//! state only.
//!
//! The queue is the ledger itself: an event is in it before anybody hears of it, and stays. Beside it lies the number of
//! the last event the webhook took, so that the next process goes on there, even one that finds the attempt ended: what
//! could not be told at the end is told when the same Secret is handed in again. Telling never holds the work up, and what
//! is told of one event is the same however often it is told: `(attempt, sequence)` names it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use landfall_fetch::{Exchange, Method};
use landfall_model::chain;
use landfall_model::step::{Event, Happening};
use landfall_steps::durable::Access;
use landfall_steps::events::Sink;
use landfall_steps::{RunRecord, read_all};
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::credentials::ProgressEndpoint;
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
    told: u64,
    shown: Option<State>,
}

/// What the webhook is told of an event.
pub fn message(event: &Event, request: &Request, endpoint: &ProgressEndpoint) -> Value {
    let state = story::after(event);
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
        let told = read(&**world, &Folder::of(attempt).told(), 32).ok().flatten();
        let told = told.and_then(|bytes| String::from_utf8(bytes).ok()?.trim().parse().ok());
        Self {
            world: world.clone(),
            request: request.clone(),
            attempt: attempt.to_owned(),
            given: given.cloned(),
            wake: wake.clone(),
            told: told.unwrap_or(0),
            shown: None,
        }
    }

    /// Until it is dropped.
    pub async fn run(&mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            if self.tell().await {
                pause = FIRST_PAUSE;
                self.wake.0.notified().await;
            } else {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// What is left to tell, for a short time.
    pub async fn last_words(&mut self) {
        let all = async {
            let mut pause = FIRST_PAUSE;
            while !self.tell().await {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
        };
        if tokio::time::timeout(LAST_WORDS, all).await.is_err() {
            tracing::warn!("Not everybody could be told how far this machine is.");
        }
    }

    /// Tells what is new; false when somebody did not listen.
    async fn tell(&mut self) -> bool {
        let records = read_all(&*self.world.disk(), &self.world.place(Path::new(STATE)), RUN);
        let record = records.unwrap_or_default().into_iter().find(|record| record.attempt() == self.attempt);
        let Some(record) = record else { return true };
        let posted = self.post(&record).await;
        let shown = self.show(&record).await;
        posted && shown
    }

    async fn post(&mut self, record: &RunRecord) -> bool {
        let given = self.given.clone();
        let endpoint = given.as_ref().and_then(|given| given.credentials.as_ref().ok()?.progress.as_ref());
        let Some(endpoint) = endpoint else { return true };
        let trust = endpoint.authorities.clone().map_or(Trust::Machine, Trust::Only);
        for event in record.events_after(self.told) {
            let question = Exchange {
                method: Method::Post,
                url: endpoint.url.clone(),
                headers: Vec::new(),
                body: Some(message(event, &self.request, endpoint).to_string().into()),
                within: WITHIN,
                limit: MAX_ANSWER,
            };
            let question = question
                .header("content-type", "application/json")
                .header("x-one-time-password", endpoint.password.expose().clone())
                .header("idempotency-key", format!("{}-{}", event.attempt, event.sequence));
            match self.world.exchange(&trust, &question).await {
                // What it will never take must not hold up what comes behind it.
                Ok(answer) if answer.is_success() || matches!(answer.status, 400 | 409 | 422) => {}
                Ok(answer) => {
                    tracing::info!(status = answer.status, "The progress endpoint does not take a report.");
                    return false;
                }
                Err(error) => {
                    tracing::info!(error = %chain(&error), "The progress endpoint does not answer.");
                    return false;
                }
            }
            self.told = event.sequence;
            self.remember();
        }
        true
    }

    /// Losing this means telling some events twice, which is harmless.
    fn remember(&self) {
        let (path, text) = (Folder::of(&self.attempt).told(), self.told.to_string());
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
