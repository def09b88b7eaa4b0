//! Queries of a running agent: readiness, servers, metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use landfall_net::metrics::{Counter, Histogram, MetricType, MetricsText};
use serde::{Deserialize, Serialize};

use super::servers::Servers;
use crate::health::Health;
use crate::metrics::{AGENT, AGENT_DIAL_BUCKETS, Calls, Packets, Traffic};

/// A view of a running agent.
#[derive(Clone, Debug)]
pub struct AgentView(pub(super) Arc<Servers>);

/// The status of an agent on the admin port, which `landfall tunnel status` prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentReport {
    pub agent_id: String,
    pub version: String,
    pub servers: Vec<String>,
    pub expected_servers: usize,
    pub tunnels: usize,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Tunnels that currently wait for a slow reader.
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

/// Returns a `/metrics` page with every metric and label value of an agent.
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

    /// Returns the number of servers, as far as known.
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
        // Serializing strings and numbers cannot fail.
        serde_json::to_string(&crate::Status::Agent(self.report())).unwrap_or_default()
    }

    fn metrics(&self) -> String {
        let metrics = &self.0.metrics;
        let mut text = MetricsText::new(AGENT);
        text.histogram("dial_duration_seconds", "Time to connect to endpoints.", &metrics.dial_duration);
        let help = "Total number of failed connections to servers, by direction.";
        text.family("server_connection_failure_count", MetricType::Counter, help)
            .value(&[("direction", "from_server")], metrics.servers_lost.get())
            .value(&[("direction", "to_server")], metrics.calls_failed.get());
        let help = "Total number of failed connections to endpoints, by reason.";
        text.family("endpoint_dial_failure_total", MetricType::Counter, help)
            .value(&[("reason", "timeout")], metrics.dial_timeouts.get())
            .value(&[("reason", "unknown")], metrics.dial_failures.get());
        text.gauge("open_server_connections", "Number of connected servers.", self.connected_servers());
        text.gauge("known_server_count", "Number of known servers.", self.expected_servers());
        text.gauge("open_endpoint_connections", "Number of open tunnels.", self.tunnels());
        metrics.packets.write(&mut text);
        let (total, latency) = ("lease_lists_total", "lease_list_latency_seconds");
        metrics.lease_lists.write(&mut text, total, latency, "http_response_code");
        // Upstream exports this name, too, and never increments it: leases are listed, not watched.
        let help = "Total number of lease watches.";
        text.counter("lease_watches_total", help, &Counter::default());
        text.finish()
    }
}
