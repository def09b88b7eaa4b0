//! A bounded queue for a slow consumer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use landfall_model::step::Event;
use tokio::sync::Notify;

use super::Sink;

/// Enough for a complete run of fifty steps; a slower consumer reads the ledger.
const MAX_QUEUED: usize = 256;

/// The sender, for the engine.
#[derive(Debug)]
pub struct Queue(Arc<Shared>);

/// The receiver, for the consumer.
#[derive(Debug)]
pub struct Receiver(Arc<Shared>);

/// An item that the consumer receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    Event(Event),
    /// State events after this sequence number did not fit: they are in the ledger
    /// ([`RunRecord::events_after`](crate::RunRecord::events_after)). Some may also be delivered here.
    Replay {
        after: u64,
    },
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    ready: Notify,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Event>,
    /// The last accepted state event.
    last: u64,
    /// Later state events were rejected.
    behind: bool,
    dropped_progress: u64,
    closed: bool,
}

/// Creates a queue and returns both ends.
pub fn queue() -> (Queue, Receiver) {
    let shared = Arc::new(Shared::default());
    (Queue(shared.clone()), Receiver(shared))
}

// === impl Queue ===

impl Sink for Queue {
    fn take(&mut self, event: &Event) {
        self.0.state().push(event);
        self.0.ready.notify_one();
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.0.state().closed = true;
        self.0.ready.notify_one();
    }
}

// === impl Receiver ===

impl Receiver {
    /// Returns the next delivery, or `None` when the run is over and everything was delivered. Cancel-safe.
    pub async fn receive(&mut self) -> Option<Delivery> {
        loop {
            {
                let mut state = self.0.state();
                if let Some(event) = state.events.pop_front() {
                    return Some(Delivery::Event(event));
                }
                if std::mem::take(&mut state.behind) {
                    return Some(Delivery::Replay { after: state.last });
                }
                if state.closed {
                    return None;
                }
            }
            self.0.ready.notified().await;
        }
    }

    /// Number of progress events that were superseded or did not fit.
    pub fn dropped_progress(&self) -> u64 {
        self.0.state().dropped_progress
    }
}

// === impl Shared ===

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    fn push(&mut self, event: &Event) {
        let is_progress = |event: &Event| event.part > 0;
        if is_progress(event) {
            // Only the newest progress is useful, and none is while states are missing.
            let overtaken = self.events.pop_back_if(|last| is_progress(last)).is_some();
            self.dropped_progress += u64::from(overtaken);
            if self.behind || self.events.len() >= MAX_QUEUED {
                self.dropped_progress += 1;
            } else {
                self.events.push_back(event.clone());
            }
            return;
        }
        if self.behind {
            return;
        }
        if self.events.len() >= MAX_QUEUED {
            if let Some(progress) = self.events.iter().position(is_progress) {
                self.events.remove(progress);
                self.dropped_progress += 1;
            } else {
                self.behind = true;
                return;
            }
        }
        self.last = event.sequence;
        self.events.push_back(event.clone());
    }
}
