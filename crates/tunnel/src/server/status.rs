//! What the server can be asked: readiness, its agents, its metrics.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Shared;
use super::agents::Agent;
use super::dial::DialError;
use crate::health::Health;
use crate::metrics::{
    CONNECTION_BUCKETS, Counter, Gauge, Histogram, Packets, Page, SERVER, SERVER_DIAL_BUCKETS,
};

/// What a server can be asked while it runs.
#[derive(Clone, Debug)]
pub struct ServerView(pub(super) Arc<Shared>);

/// One connected agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentStatus {
    pub id: String,
    /// It grants credit per tunnel: an agent of ours.
    pub ours: bool,
    pub draining: bool,
    /// It did not answer lately.
    pub doubted: bool,
    pub tunnels: usize,
    pub pending: usize,
}

#[derive(Debug)]
pub(super) struct Metrics {
    pub(super) packets: Arc<Packets>,
    pub(super) dial_duration: Arc<Histogram>,
    pub(super) connection_duration: Arc<Histogram>,
    pub(super) proxy_streams: Arc<Gauge>,
    pub(super) agent_streams: Arc<Gauge>,
    pub(super) http_connections: Arc<Gauge>,
    failures: [Counter; FAILURES.len()],
}

/// Why dials fail, in upstream's words.
const FAILURES: [&str; 5] =
    ["no_agent", "error_response", "backend_close", "backend_dial_timeout", "frontend_close"];

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
            failures: Default::default(),
        }
    }

    pub(super) fn dial_failed(&self, error: &DialError) {
        let reason = match error {
            DialError::NoAgent => 0,
            DialError::Refused(_) => 1,
            DialError::AgentLost => 2,
            DialError::Timeout => 3,
        };
        self.failures[reason].add();
    }

    pub(super) fn client_left(&self) {
        self.failures[4].add();
    }
}

// === impl ServerView ===

impl ServerView {
    /// Whether an agent could be chosen for a dial.
    pub fn is_ready(&self) -> bool {
        self.0.agents.is_ready()
    }

    pub fn agents(&self) -> Vec<AgentStatus> {
        let status = |agent: &Arc<Agent>| AgentStatus {
            id: agent.id.clone(),
            ours: agent.credit.is_some(),
            draining: agent.draining.load(Ordering::Relaxed),
            doubted: agent.is_doubted(),
            tunnels: agent.tunnels.load(Ordering::Relaxed),
            pending: agent.pending.load(Ordering::Relaxed),
        };
        self.0.agents.all().iter().map(status).collect()
    }
}

impl Health for ServerView {
    fn ready(&self, _verbose: bool) -> (u16, String) {
        if self.is_ready() {
            (200, "ok".to_owned())
        } else {
            (500, "no connection to any proxy agent".to_owned())
        }
    }

    fn metrics(&self) -> String {
        let (metrics, agents) = (&self.0.metrics, self.agents());
        let name = |rest: &str| format!("{SERVER}{rest}");
        let mut page = Page::default();
        metrics.dial_duration.write(&mut page, &name("dial_duration_seconds"), "Time to a tunnel");
        let help = "Life time of tunnels";
        metrics.connection_duration.write(&mut page, &name("connection_duration_seconds"), help);
        let connections = name("grpc_connections");
        page.head(&connections, "gauge", "Open gRPC streams");
        page.line(&format!("{connections}{{service_method=\"Proxy\"}}"), metrics.proxy_streams.get());
        page.line(&format!("{connections}{{service_method=\"Connect\"}}"), metrics.agent_streams.get());
        let open = metrics.http_connections.get();
        page.single(&name("http_connections"), "gauge", "Open HTTP CONNECT clients", open);
        page.single(&name("ready_backend_connections"), "gauge", "Connected agents", agents.len());
        let ready = name("ready_backends");
        page.head(&ready, "gauge", "Agents that a strategy can choose");
        for (strategy, count) in self.0.agents.counts() {
            page.line(&format!("{ready}{{proxy_strategy=\"{strategy}\"}}"), count);
        }
        let pending: usize = agents.iter().map(|agent| agent.pending).sum();
        page.single(&name("pending_backend_dials"), "gauge", "Dials without an answer yet", pending);
        let tunnels: usize = agents.iter().map(|agent| agent.tunnels).sum();
        page.single(&name("established_connections"), "gauge", "Open tunnels", tunnels);
        let failures = name("dial_failure_count");
        page.head(&failures, "counter", "Dials that failed");
        for (reason, count) in FAILURES.iter().zip(&metrics.failures) {
            page.line(&format!("{failures}{{reason=\"{reason}\"}}"), count.get());
        }
        metrics.packets.write(&mut page, SERVER);
        page.finish()
    }
}
