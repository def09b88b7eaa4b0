//! What the agent can be asked: readiness, its servers, its metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

use super::servers::Servers;
use crate::health::Health;
use crate::metrics::{AGENT, AGENT_DIAL_BUCKETS, Calls, Counter, Histogram, Packets, Page, Traffic};

/// What an agent can be asked while it runs.
#[derive(Clone, Debug)]
pub struct AgentView(pub(super) Arc<Servers>);

/// What the admin port tells, and `landfall tunnel status` shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentReport {
    pub agent_id: String,
    pub version: String,
    pub servers: Vec<String>,
    pub expected_servers: usize,
    pub tunnels: usize,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Tunnels that wait for a slow reader now.
    pub stalled: usize,
    /// Tunnels closed because their reader was too slow.
    pub broken_off: u64,
}

#[derive(Debug)]
pub(super) struct Metrics {
    pub(super) packets: Arc<Packets>,
    pub(super) traffic: Arc<Traffic>,
    pub(super) tunnels: AtomicUsize,
    pub(super) dial_duration: Histogram,
    pub(super) dial_timeouts: Counter,
    pub(super) dial_failures: Counter,
    pub(super) servers_lost: Counter,
    pub(super) calls_failed: Counter,
    pub(super) lease_lists: Calls,
}

/// What `/metrics` says of an agent to which everything has happened: all there is to be read.
#[cfg(feature = "reference")]
pub fn metrics_of_everything() -> String {
    let servers = Servers::new("agent");
    servers.metrics.packets.one_of_each();
    servers.metrics.lease_lists.observe(&Ok(()), std::time::Duration::ZERO);
    AgentView(Arc::new(servers)).metrics()
}

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Self {
        Self {
            packets: Arc::default(),
            traffic: Arc::default(),
            tunnels: AtomicUsize::new(0),
            dial_duration: Histogram::new(AGENT_DIAL_BUCKETS),
            dial_timeouts: Counter::default(),
            dial_failures: Counter::default(),
            servers_lost: Counter::default(),
            calls_failed: Counter::default(),
            lease_lists: Calls::default(),
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

    pub fn report(&self) -> AgentReport {
        let traffic = &self.0.metrics.traffic;
        AgentReport {
            agent_id: self.0.agent_id.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            servers: self.0.names(),
            expected_servers: self.expected_servers(),
            tunnels: self.tunnels(),
            bytes_sent: traffic.sent.load(Ordering::Relaxed),
            bytes_received: traffic.received.load(Ordering::Relaxed),
            stalled: traffic.stalled.load(Ordering::Relaxed),
            broken_off: traffic.broken_off.get(),
        }
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

    fn status(&self) -> String {
        // Strings and numbers cannot fail to be written.
        serde_json::to_string(&crate::Status::Agent(self.report())).unwrap_or_default()
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
        page.head(&lost, "counter", "Streams to servers that broke, and calls that failed");
        page.line(&format!("{lost}{{direction=\"from_server\"}}"), metrics.servers_lost.get());
        page.line(&format!("{lost}{{direction=\"to_server\"}}"), metrics.calls_failed.get());
        let failures = name("endpoint_dial_failure_total");
        page.head(&failures, "counter", "Endpoints that could not be reached");
        page.line(&format!("{failures}{{reason=\"timeout\"}}"), metrics.dial_timeouts.get());
        page.line(&format!("{failures}{{reason=\"unknown\"}}"), metrics.dial_failures.get());
        page.single(&name("open_server_connections"), "gauge", "Connected servers", self.connected_servers());
        page.single(&name("known_server_count"), "gauge", "Servers there are", self.expected_servers());
        page.single(&name("open_endpoint_connections"), "gauge", "Open tunnels", self.tunnels());
        metrics.packets.write(&mut page, AGENT);
        let (total, latency) = (name("lease_lists_total"), name("lease_list_latency_seconds"));
        metrics.lease_lists.write(&mut page, &total, &latency, "http_response_code");
        // Leases are listed, never watched; upstream serves this name too, and never counts.
        page.single(&name("lease_watches_total"), "counter", "Watches of leases", 0);
        page.finish()
    }
}
