//! Counters, and the page that Prometheus scrapes.

use std::sync::Arc;

use hyper::StatusCode;
use landfall_net::metrics::{Counter, Gauge, MetricType, MetricsText};

use crate::phase::Phase;

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) connections: Arc<Gauge>,
    pub(crate) spliced: Counter,
    pub(crate) terminated: Counter,
    pub(crate) ssh: Counter,
    pub(crate) refused: Counter,
    pub(crate) failed_handshakes: Counter,
    /// By the first digit of the status code.
    answers: [Counter; 6],
    pub(crate) upgrades: Arc<Gauge>,
    pub(crate) tunnels: Arc<Gauge>,
    pub(crate) gathers: Counter,
    pub(crate) denied: Counter,
    pub(crate) spliced_bytes: Counter,
    pub(crate) tunnelled_bytes: Counter,
}

/// Returns the `/metrics` page before any event, with every metric.
#[cfg(feature = "schema")]
pub fn page_at_start() -> String {
    Metrics::default().page(Phase::NoApi)
}

// === impl Metrics ===

impl Metrics {
    pub(crate) fn answered(&self, code: StatusCode) {
        if let Some(counter) = self.answers.get(usize::from(code.as_u16() / 100)) {
            counter.add(1);
        }
    }

    pub(crate) fn page(&self, phase: Phase) -> String {
        let mut text = MetricsText::new("landfall_gateway_");
        text.gauge("connections", "Number of open connections.", self.connections.get());
        let help = "Total number of connections, by handling.";
        text.family("connections_total", MetricType::Counter, help)
            .value(&[("way", "spliced")], self.spliced.get())
            .value(&[("way", "terminated")], self.terminated.get())
            .value(&[("way", "ssh")], self.ssh.get())
            .value(&[("way", "refused")], self.refused.get());
        let help = "Total number of failed TLS handshakes.";
        text.counter("failed_handshakes_total", help, &self.failed_handshakes);
        let help = "Total number of responses, by class of their status code.";
        let mut family = text.family("answers_total", MetricType::Counter, help);
        for (digit, count) in self.answers.iter().enumerate().skip(1) {
            family.value(&[("code", &format!("{digit}xx"))], count.get());
        }
        text.gauge("upgrades", "Number of open upgraded connections.", self.upgrades.get());
        text.gauge("tunnels", "Number of open tunnels.", self.tunnels.get());
        text.counter(
            "tunnelled_bytes_total",
            "Total number of bytes through tunnels.",
            &self.tunnelled_bytes,
        );
        text.counter("spliced_bytes_total", "Total number of bytes spliced.", &self.spliced_bytes);
        text.counter("gathers_total", "Total number of bundles started.", &self.gathers);
        let help = "Total number of requests for the gateway's own paths that were denied.";
        text.counter("denied_total", help, &self.denied);
        // All phases exist from the start: an alert on one must not depend on whether it was ever reached.
        let help = "Whether the control plane is in this phase.";
        let mut family = text.family("phase", MetricType::Gauge, help);
        for other in Phase::ALL {
            family.value(&[("phase", &other.to_string())], u64::from(other == phase));
        }
        text.finish()
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
        let held = metrics.connections.guard();
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
}
