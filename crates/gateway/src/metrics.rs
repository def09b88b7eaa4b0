//! Counters, and the page Prometheus reads.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hyper::StatusCode;

use crate::phase::Phase;

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

/// How many of something there are now.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicU64);

/// Counts for as long as it lives.
#[derive(Debug)]
pub(crate) struct Held(Arc<Gauge>);

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) connections: Arc<Gauge>,
    pub(crate) spliced: Counter,
    pub(crate) terminated: Counter,
    pub(crate) ssh: Counter,
    pub(crate) refused: Counter,
    pub(crate) failed_handshakes: Counter,
    /// By the first digit of the code.
    answers: [Counter; 6],
    pub(crate) upgrades: Arc<Gauge>,
    pub(crate) tunnels: Arc<Gauge>,
    pub(crate) gathers: Counter,
    pub(crate) denied: Counter,
    pub(crate) spliced_bytes: Counter,
    pub(crate) tunnelled_bytes: Counter,
}

/// What `/metrics` says when nothing has happened yet: all there is to be read.
#[cfg(feature = "schema")]
pub fn page_at_start() -> String {
    Metrics::default().page(Phase::NoApi)
}

// === impl Counter ===

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

// === impl Gauge ===

impl Gauge {
    pub(crate) fn hold(self: &Arc<Self>) -> Held {
        self.0.fetch_add(1, Ordering::Relaxed);
        Held(Arc::clone(self))
    }

    /// The same, unless so many are held already.
    pub(crate) fn hold_one_of(self: &Arc<Self>, most: u64) -> Option<Held> {
        let more = |held: u64| (held < most).then_some(held + 1);
        let held = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        held.is_ok().then(|| Held(Arc::clone(self)))
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

// === impl Held ===

impl Drop for Held {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Metrics ===

impl Metrics {
    pub(crate) fn answered(&self, code: StatusCode) {
        if let Some(counter) = self.answers.get(usize::from(code.as_u16() / 100)) {
            counter.add(1);
        }
    }

    pub(crate) fn page(&self, phase: Phase) -> String {
        let mut page = String::new();
        let mut write = |name: &str, kind: &str, help: &str, series: &[(String, u64)]| {
            // Writing to a string cannot fail.
            let _ = writeln!(
                page,
                "# HELP landfall_gateway_{name} {help}\n# TYPE landfall_gateway_{name} {kind}"
            );
            for (labels, value) in series {
                let _ = writeln!(page, "landfall_gateway_{name}{labels} {value}");
            }
        };
        let one = |value: u64| vec![(String::new(), value)];
        let ways = [
            ("spliced", &self.spliced),
            ("terminated", &self.terminated),
            ("ssh", &self.ssh),
            ("refused", &self.refused),
        ];
        let ways: Vec<_> =
            ways.iter().map(|(way, count)| (format!("{{way=\"{way}\"}}"), count.get())).collect();
        let answers = self.answers.iter().enumerate().skip(1);
        let answers: Vec<_> =
            answers.map(|(digit, count)| (format!("{{code=\"{digit}xx\"}}"), count.get())).collect();
        write("connections", "gauge", "Connections open now", &one(self.connections.get()));
        write("connections_total", "counter", "Connections by what became of them", &ways);
        write(
            "failed_handshakes_total",
            "counter",
            "TLS handshakes that failed",
            &one(self.failed_handshakes.get()),
        );
        write("answers_total", "counter", "Answers by the class of their code", &answers);
        write("upgrades", "gauge", "Upgraded connections open now", &one(self.upgrades.get()));
        write("tunnels", "gauge", "Tunnels open now", &one(self.tunnels.get()));
        write("tunnelled_bytes_total", "counter", "Bytes through tunnels", &one(self.tunnelled_bytes.get()));
        write("spliced_bytes_total", "counter", "Bytes spliced", &one(self.spliced_bytes.get()));
        write("gathers_total", "counter", "Bundles begun", &one(self.gathers.get()));
        write("denied_total", "counter", "Requests for own paths that were denied", &one(self.denied.get()));
        // Every phase is there from the beginning, so that an alert on one of them is no question of whether it was ever seen.
        let phases = Phase::ALL.map(|other| (format!("{{phase=\"{other}\"}}"), u64::from(other == phase)));
        write("phase", "gauge", "1 for the phase of the control plane, 0 for the others", &phases);
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_counts() {
        let metrics = Metrics::default();
        metrics.answered(StatusCode::OK);
        metrics.answered(StatusCode::NOT_FOUND);
        metrics.spliced.add(3);
        let held = metrics.connections.hold();
        let page = metrics.page(Phase::Local);
        for line in [
            "landfall_gateway_connections 1",
            "landfall_gateway_connections_total{way=\"spliced\"} 3",
            "landfall_gateway_answers_total{code=\"2xx\"} 1",
            "landfall_gateway_answers_total{code=\"4xx\"} 1",
            "landfall_gateway_phase{phase=\"local\"} 1",
            "landfall_gateway_phase{phase=\"failed\"} 0",
        ] {
            assert!(page.lines().any(|written| written == line), "{line} in {page}");
        }
        drop(held);
        assert_eq!(metrics.connections.get(), 0);
    }

    #[test]
    fn no_more_are_held_than_may_be() {
        let gauge = Arc::new(Gauge::default());
        let held: Vec<_> = (0..5).filter_map(|_| gauge.hold_one_of(2)).collect();
        assert_eq!((held.len(), gauge.get()), (2, 2));
        drop(held);
        assert!(gauge.hold_one_of(2).is_some());
        assert!(gauge.hold_one_of(0).is_none());
    }
}
