//! The ordered stream of events, for all consumers.
//!
//! The engine sends an event only after it is in the ledger, to each [`Sink`] in turn. A sink returns immediately. A
//! slow consumer receives the events from a [`queue`], which drops progress first and never loses a state. States
//! that do not fit are read from the ledger.

mod file;
mod journal;
mod queue;
mod status;
mod storyline;

use std::fmt;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use landfall_model::step::{Event, FORMAT, Happening, Unit};

pub use file::EventFile;
pub use journal::Journal;
pub use queue::{Delivery, Queue, Receiver, queue};
pub use status::StatusLine;
pub use storyline::{Renderer, Terminal};

/// A destination for events. It must not block: it is called between the writes of two steps.
pub trait Sink: Send {
    fn take(&mut self, event: &Event);
}

/// All sinks of a run.
#[derive(Default)]
pub struct EventStream(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    sinks: Vec<Box<dyn Sink>>,
    /// The position that the next progress follows.
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

    /// Sends state events, which are already in the ledger.
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

    /// Sends progress after the last state event.
    ///
    /// After a crash its numbers are not used again, because resuming a run is a state event itself.
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
