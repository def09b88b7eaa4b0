//! Counters of the hub.

use landfall_net::metrics::{Counter, Histogram};

use crate::hub::Hub;
use crate::store::Outcome;

/// Bounds in seconds. The target is 50 ms; clients time out after some seconds.
const ACCEPT_BOUNDS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

#[derive(Debug)]
pub(crate) struct Counters {
    pub(crate) stored: Counter,
    pub(crate) late: Counter,
    pub(crate) duplicate: Counter,
    pub(crate) refused: Counter,
    pub(crate) bundles: Counter,
    pub(crate) pulls: Counter,
    pub(crate) failed_pulls: Counter,
    /// Time from the complete arrival of a single report to its acknowledgement.
    pub(crate) accepts: Histogram,
}

// === impl Counters ===

impl Default for Counters {
    fn default() -> Self {
        let new = Counter::default;
        Self {
            stored: new(),
            late: new(),
            duplicate: new(),
            refused: new(),
            bundles: new(),
            pulls: new(),
            failed_pulls: new(),
            accepts: Histogram::new(ACCEPT_BOUNDS),
        }
    }
}

impl Counters {
    /// Counts a report by its outcome; `None` if it was rejected.
    pub(crate) fn count(&self, outcome: Option<Outcome>) {
        let counter = match outcome {
            Some(Outcome::Stored) => &self.stored,
            Some(Outcome::Late) => &self.late,
            Some(Outcome::Duplicate) => &self.duplicate,
            None => &self.refused,
        };
        counter.increment();
    }

    pub(crate) fn count_bundle(&self) {
        self.bundles.increment();
    }
}

// === impl Hub ===

impl Hub {
    pub(crate) fn count_pull(&self, answered: bool) {
        let counter = if answered { &self.counters.pulls } else { &self.counters.failed_pulls };
        counter.increment();
    }
}
