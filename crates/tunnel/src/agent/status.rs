//! What the agent can be asked: readiness, its servers, its metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::servers::Servers;
use crate::health::Health;
use crate::metrics::{AGENT, AGENT_DIAL_BUCKETS, Counter, Histogram, Packets, Page};

/// What an agent can be asked while it runs.
#[derive(Clone, Debug)]
pub struct AgentView(pub(super) Arc<Servers>);

#[derive(Debug)]
pub(super) struct Metrics {
    pub(super) packets: Arc<Packets>,
    pub(super) tunnels: AtomicUsize,
    pub(super) dial_duration: Histogram,
    pub(super) dial_timeouts: Counter,
    pub(super) dial_failures: Counter,
    pub(super) servers_lost: Counter,
}

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Self {
        Self {
            packets: Arc::default(),
            tunnels: AtomicUsize::new(0),
            dial_duration: Histogram::new(AGENT_DIAL_BUCKETS),
            dial_timeouts: Counter::default(),
            dial_failures: Counter::default(),
            servers_lost: Counter::default(),
        }
    }
}

// === impl AgentView ===

impl AgentView {
    pub fn connected_servers(&self) -> usize {
        self.0.connected()
    }

    /// How many servers there are, as far as they say.
    pub fn expected_servers(&self) -> usize {
        self.0.expected()
    }

    pub fn tunnels(&self) -> usize {
        self.0.metrics.tunnels.load(Ordering::Relaxed)
    }
}

impl Health for AgentView {
    fn ready(&self, verbose: bool) -> (u16, String) {
        let connected = self.connected_servers() > 0;
        match (connected, verbose) {
            (true, false) => (200, "ok".to_owned()),
            (true, true) => (200, "[+]ping ok\n[+]server-connected ok\ncheck passed\n".to_owned()),
            (false, _) => (503, "[+]ping ok\n[-]server-connected failed: no servers connected\n".to_owned()),
        }
    }

    fn metrics(&self) -> String {
        let metrics = &self.0.metrics;
        let name = |rest: &str| format!("{AGENT}{rest}");
        let mut page = Page::default();
        metrics.dial_duration.write(
            &mut page,
            &name("dial_duration_seconds"),
            "Time to connect to endpoints",
        );
        let lost = name("server_connection_failure_count");
        page.head(&lost, "counter", "Streams to servers that broke");
        page.line(&format!("{lost}{{direction=\"from_server\"}}"), metrics.servers_lost.get());
        let failures = name("endpoint_dial_failure_total");
        page.head(&failures, "counter", "Endpoints that could not be reached");
        page.line(&format!("{failures}{{reason=\"timeout\"}}"), metrics.dial_timeouts.get());
        page.line(&format!("{failures}{{reason=\"unknown\"}}"), metrics.dial_failures.get());
        page.single(&name("open_server_connections"), "gauge", "Connected servers", self.connected_servers());
        page.single(&name("known_server_count"), "gauge", "Servers there are", self.expected_servers());
        page.single(&name("open_endpoint_connections"), "gauge", "Open tunnels", self.tunnels());
        metrics.packets.write(&mut page, AGENT);
        page.finish()
    }
}
