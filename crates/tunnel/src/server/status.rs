//! Queries of a running server: readiness, agents, metrics.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use landfall_net::metrics::{Counter, Gauge, Histogram, MetricType, MetricsText};
use serde::{Deserialize, Serialize};

use super::Shared;
use super::agents::Agent;
use super::dial::DialError;
use crate::health::Health;
use crate::metrics::{CONNECTION_BUCKETS, Calls, Packets, SERVER, SERVER_DIAL_BUCKETS};

/// A view of a running server.
#[derive(Clone, Debug)]
pub struct ServerView(pub(super) Arc<Shared>);

/// The status of a server on the admin port, which `landfall tunnel status` prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    pub server_id: String,
    pub version: String,
    pub ready: bool,
    pub draining: bool,
    pub server_count: u32,
    pub agents: Vec<AgentStatus>,
}

/// One connected agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    pub id: String,
    /// Whether this is a landfall agent, which grants credit per tunnel.
    pub ours: bool,
    pub draining: bool,
    /// Whether the agent failed to respond recently.
    pub doubted: bool,
    pub connected_seconds: u64,
    pub tunnels: usize,
    /// Pending dials.
    pub pending: usize,
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
    pub(super) dial_duration: Arc<Histogram>,
    pub(super) connection_duration: Arc<Histogram>,
    pub(super) proxy_streams: Arc<Gauge>,
    pub(super) agent_streams: Arc<Gauge>,
    pub(super) http_connections: Arc<Gauge>,
    pub(super) frontend_write: Arc<Histogram>,
    /// gRPC clients that are paused because their tunnel has no capacity.
    pub(super) full_frontends: Arc<Gauge>,
    pub(super) leases: LeaseMetrics,
    failures: [Counter; FAILURES.len()],
}

#[derive(Debug, Default)]
pub(super) struct LeaseMetrics {
    pub(super) listed: Calls,
    pub(super) deleted: Calls,
    pub(super) culled: Counter,
}

/// Reasons for failed dials, with upstream's names.
const FAILURES: [&str; 7] = [
    "no_agent",
    "error_response",
    "backend_close",
    "backend_dial_timeout",
    "frontend_close",
    "unrecognized_response",
    "send_rsp",
];

/// Returns a `/metrics` page with every metric and label value of a server.
#[cfg(feature = "reference")]
pub fn metrics_of_everything() -> String {
    use crate::config::{Frontend, ServerConfig, Strategy};
    use std::time::Duration;

    let frontend = Frontend::Unix { path: "socket".into(), delete_existing: false, permissions: 0o600 };
    let config = ServerConfig {
        proxy_strategies: vec![Strategy::Default, Strategy::DestHost, Strategy::DefaultRoute],
        ..ServerConfig::new(frontend, "server".to_owned())
    };
    let shared = Shared::new(&config, None);
    shared.metrics.packets.one_of_each();
    for calls in [&shared.metrics.leases.listed, &shared.metrics.leases.deleted] {
        calls.observe(&Ok(()), Duration::ZERO);
    }
    ServerView(Arc::new(shared)).metrics()
}

// === impl Metrics ===

impl Metrics {
    pub(super) fn new() -> Self {
        Self {
            packets: Arc::default(),
            dial_duration: Arc::new(Histogram::new(SERVER_DIAL_BUCKETS)),
            connection_duration: Arc::new(Histogram::new(CONNECTION_BUCKETS)),
            proxy_streams: Arc::default(),
            agent_streams: Arc::default(),
            http_connections: Arc::default(),
            frontend_write: Arc::new(Histogram::new(SERVER_DIAL_BUCKETS)),
            full_frontends: Arc::default(),
            leases: LeaseMetrics::default(),
            failures: Default::default(),
        }
    }

    pub(super) fn dial_failed(&self, error: &DialError) {
        let reason = match error {
            DialError::NoAgent | DialError::Busy => 0,
            DialError::Refused(_) => 1,
            DialError::AgentLost => 2,
            DialError::Timeout => 3,
        };
        self.failures[reason].increment();
    }

    pub(super) fn client_left(&self) {
        self.failures[4].increment();
    }

    /// Counts an agent's response to a dial that is no longer pending.
    pub(super) fn answer_unasked(&self) {
        self.failures[5].increment();
    }

    /// Counts a client that disconnected before the response to its dial.
    pub(super) fn answer_unheard(&self) {
        self.failures[6].increment();
    }
}

// === impl ServerView ===

impl ServerView {
    /// Returns whether an agent could be selected for a dial.
    pub fn is_ready(&self) -> bool {
        self.0.agents.is_ready() && !self.is_draining()
    }

    pub fn status(&self) -> ServerStatus {
        ServerStatus {
            server_id: self.0.server_id.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ready: self.is_ready(),
            draining: self.is_draining(),
            server_count: self.0.server_count(),
            agents: self.agents(),
        }
    }

    fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::Relaxed)
    }

    pub fn agents(&self) -> Vec<AgentStatus> {
        let status = |agent: &Arc<Agent>| AgentStatus {
            id: agent.id.clone(),
            ours: agent.credit.is_some(),
            draining: agent.draining.load(Ordering::Relaxed),
            doubted: agent.is_doubted(),
            tunnels: agent.tunnels.load(Ordering::Relaxed),
            pending: agent.pending.load(Ordering::Relaxed),
            connected_seconds: agent.since.elapsed().as_secs(),
            bytes_sent: agent.traffic.sent.load(Ordering::Relaxed),
            bytes_received: agent.traffic.received.load(Ordering::Relaxed),
            stalled: agent.traffic.stalled.load(Ordering::Relaxed),
            broken_off: agent.traffic.broken_off.get(),
        };
        self.0.agents.all().iter().map(status).collect()
    }
}

impl Health for ServerView {
    fn ready(&self, _verbose: bool) -> (u16, String) {
        if self.is_ready() {
            (200, "ok".to_owned())
        } else if self.is_draining() {
            (500, "the server is stopping".to_owned())
        } else {
            let known = self.0.agents.count() > 0;
            let reason =
                if known { "no proxy agent answers dials" } else { "no connection to any proxy agent" };
            (500, reason.to_owned())
        }
    }

    fn status(&self) -> String {
        // Serializing strings and numbers cannot fail.
        serde_json::to_string(&crate::Status::Server(self.status())).unwrap_or_default()
    }

    fn metrics(&self) -> String {
        let (metrics, agents) = (&self.0.metrics, self.agents());
        let mut text = MetricsText::new(SERVER);
        text.histogram("dial_duration_seconds", "Time to establish a tunnel.", &metrics.dial_duration);
        text.histogram(
            "frontend_write_duration_seconds",
            "Time that data waited until the frontend accepted it.",
            &metrics.frontend_write,
        );
        let help = "Lifetime of tunnels.";
        text.histogram("connection_duration_seconds", help, &metrics.connection_duration);
        text.family("grpc_connections", MetricType::Gauge, "Number of open gRPC streams.")
            .value(&[("service_method", "Proxy")], metrics.proxy_streams.get())
            .value(&[("service_method", "Connect")], metrics.agent_streams.get());
        let open = metrics.http_connections.get();
        text.gauge("http_connections", "Number of open HTTP CONNECT clients.", open);
        text.gauge("ready_backend_connections", "Number of connected agents.", agents.len());
        let help = "Number of agents available, by proxy strategy.";
        let mut family = text.family("ready_backends", MetricType::Gauge, help);
        for (strategy, count) in self.0.agents.counts() {
            family.value(&[("proxy_strategy", strategy)], count);
        }
        let pending: usize = agents.iter().map(|agent| agent.pending).sum();
        text.gauge("pending_backend_dials", "Number of dials without a response.", pending);
        let tunnels: usize = agents.iter().map(|agent| agent.tunnels).sum();
        text.gauge("established_connections", "Number of open tunnels.", tunnels);
        let stalled: usize = agents.iter().map(|agent| agent.stalled).sum();
        let help = "Number of tunnels that wait for a slow reader.";
        text.family("full_receive_channels", MetricType::Gauge, help)
            .value(&[("service_method", "Connect")], stalled)
            .value(&[("service_method", "Proxy")], metrics.full_frontends.get());
        let help = "Total number of failed dials, by reason.";
        let mut family = text.family("dial_failure_count", MetricType::Counter, help);
        for (reason, count) in FAILURES.iter().zip(&metrics.failures) {
            family.value(&[("reason", reason)], count.get());
        }
        metrics.packets.write(&mut text);
        let leases = &metrics.leases;
        let help = "Total number of leases of lost servers that were deleted.";
        text.counter("culled_leases_count", help, &leases.culled);
        for (calls, what) in [(&leases.listed, "list"), (&leases.deleted, "delete")] {
            let (total, latency) = (format!("lease_{what}_total"), format!("lease_{what}_latency_seconds"));
            calls.write(&mut text, &total, &latency, "http_status_code");
        }
        text.finish()
    }
}
