//! A bounded queue towards a slow consumer.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use landfall_model::step::Event;
use tokio::sync::Notify;

use super::Sink;

/// Room for a whole run of fifty steps; who is further behind reads the ledger.
const MAX_QUEUED: usize = 256;

/// The engine's end.
#[derive(Debug)]
pub struct Queue(Arc<Shared>);

/// The consumer's end.
#[derive(Debug)]
pub struct Receiver(Arc<Shared>);

/// What the consumer gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    Event(Event),
    /// State events behind this sequence number did not fit: they are in the ledger
    /// ([`RunRecord::events_after`](crate::RunRecord::events_after)). Some may be delivered here, too.
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
    /// The last state event that was taken in.
    last: u64,
    /// State events behind it were turned away.
    behind: bool,
    dropped_progress: u64,
    closed: bool,
}

/// Both ends of a new queue.
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
    /// The next delivery, or nothing when the run is over and all was delivered. Safe to cancel.
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

    /// Progress that was overtaken or did not fit.
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
            // Only the newest progress says something, and none while states are missing.
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
