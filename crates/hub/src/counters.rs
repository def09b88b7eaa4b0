//! What a hub counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::hub::Hub;
use crate::store::Outcome;

/// The upper bounds of the histogram, in microseconds: the bar is 50 ms, and callers give up after some seconds.
const BOUNDS: [u64; 12] = [
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 10_000_000,
];

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) stored: AtomicU64,
    pub(crate) late: AtomicU64,
    pub(crate) duplicate: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) bundles: AtomicU64,
    pub(crate) pulls: AtomicU64,
    pub(crate) failed_pulls: AtomicU64,
    /// How long senders of one report waited for the acknowledgement, once the report was whole.
    pub(crate) accepts: Histogram,
}

/// How often something took how long.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// Up to each bound, and beyond the last.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

// === impl Counters ===

impl Counters {
    /// What became of a report; nothing when it was refused.
    pub(crate) fn count(&self, outcome: Option<Outcome>) {
        let counter = match outcome {
            Some(Outcome::Stored) => &self.stored,
            Some(Outcome::Late) => &self.late,
            Some(Outcome::Duplicate) => &self.duplicate,
            None => &self.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_bundle(&self) {
        self.bundles.fetch_add(1, Ordering::Relaxed);
    }
}

// === impl Hub ===

impl Hub {
    pub(crate) fn count_pull(&self, answered: bool) {
        let counter = if answered { &self.counters.pulls } else { &self.counters.failed_pulls };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

// === impl Histogram ===

impl Histogram {
    pub(crate) fn add(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let place = BOUNDS.iter().position(|bound| micros <= *bound).unwrap_or(BOUNDS.len());
        if let Some(bucket) = self.buckets.get(place) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// As Prometheus reads it.
    pub(crate) fn write(&self, name: &str, help: &str, text: &mut String) {
        *text += &format!("# HELP {name} {help}\n# TYPE {name} histogram\n");
        let mut count = 0;
        for (place, bucket) in self.buckets.iter().enumerate() {
            count += bucket.load(Ordering::Relaxed);
            let bound = BOUNDS.get(place).map_or_else(|| "+Inf".to_owned(), |bound| seconds(*bound));
            *text += &format!("{name}_bucket{{le=\"{bound}\"}} {count}\n");
        }
        let sum = seconds(self.micros.load(Ordering::Relaxed));
        *text += &format!("{name}_sum {sum}\n{name}_count {count}\n");
    }
}

fn seconds(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_up_to_each_bound() {
        let histogram = Histogram::default();
        for millis in [1, 2, 60, 20_000] {
            histogram.add(Duration::from_millis(millis));
        }
        let mut text = String::new();
        histogram.write("x_seconds", "Time.", &mut text);
        for line in [
            "# TYPE x_seconds histogram",
            "x_seconds_bucket{le=\"0.001\"} 1",
            "x_seconds_bucket{le=\"0.05\"} 2",
            "x_seconds_bucket{le=\"0.1\"} 3",
            "x_seconds_bucket{le=\"10\"} 3",
            "x_seconds_bucket{le=\"+Inf\"} 4",
            "x_seconds_sum 20.063",
            "x_seconds_count 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
}
