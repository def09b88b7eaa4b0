//! The ordered stream of what happens, to everyone who wants to know.
//!
//! The engine tells an event only after the ledger holds it, to each [`Sink`] in turn. A sink returns at once; who is
//! slow takes the events from a [`queue`], which forgets progress first and never loses a state: what does not fit is
//! read again from the ledger.

mod file;
mod journal;
mod notify;
mod queue;
mod storyline;

use std::fmt;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use landfall_model::step::{Event, FORMAT, Happening, Unit};

pub use file::EventFile;
pub use journal::Journal;
pub use notify::{InvalidSocket, Notify};
pub use queue::{Delivery, Queue, Receiver, queue};
pub use storyline::{Renderer, Terminal};

/// Somewhere events go. It must not block: it is called between two steps' writes.
pub trait Sink: Send {
    fn take(&mut self, event: &Event);
}

/// All sinks of a run.
#[derive(Default)]
pub struct EventStream(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    sinks: Vec<Box<dyn Sink>>,
    /// The place the next progress follows.
    last: Option<Place>,
}

struct Place {
    attempt: String,
    boot_id: String,
    sequence: u64,
    part: u32,
}

// === impl EventStream ===

impl EventStream {
    pub fn new(sinks: Vec<Box<dyn Sink>>) -> Self {
        Self(Mutex::new(Inner { sinks, last: None }))
    }

    /// State events, already in the ledger.
    pub(crate) fn tell(&self, events: &[Event]) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            inner.last = Some(Place {
                attempt: event.attempt.clone(),
                boot_id: event.boot_id.clone(),
                sequence: event.sequence,
                part: 0,
            });
            for sink in &mut inner.sinks {
                sink.take(event);
            }
        }
    }

    /// Progress behind the last state event. After a crash its numbers are not used again, because taking a run up is
    /// a state event itself.
    pub(crate) fn progress(&self, step: &str, done: u64, total: Option<u64>, unit: Unit) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { sinks, last: Some(place) } = &mut *inner else { return };
        place.part = place.part.saturating_add(1);
        let event = Event {
            format: FORMAT,
            attempt: place.attempt.clone(),
            sequence: place.sequence,
            part: place.part,
            time: Timestamp::now(),
            boot_id: place.boot_id.clone(),
            what: Happening::Progress { step: step.to_owned(), done, total, unit },
        };
        for sink in sinks {
            sink.take(&event);
        }
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
