//! What the server can be asked: readiness, its agents, its metrics.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::Shared;
use super::agents::Agent;
use super::dial::DialError;
use crate::health::Health;
use crate::metrics::{
    CONNECTION_BUCKETS, Calls, Counter, Gauge, Histogram, Packets, Page, SERVER, SERVER_DIAL_BUCKETS,
};

/// What a server can be asked while it runs.
#[derive(Clone, Debug)]
pub struct ServerView(pub(super) Arc<Shared>);

/// What the admin port tells, and `landfall tunnel status` shows.
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
    /// It grants credit per tunnel: an agent of ours.
    pub ours: bool,
    pub draining: bool,
    /// It did not answer lately.
    pub doubted: bool,
    pub connected_seconds: u64,
    pub tunnels: usize,
    /// Dials without an answer yet.
    pub pending: usize,
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
    pub(super) dial_duration: Arc<Histogram>,
    pub(super) connection_duration: Arc<Histogram>,
    pub(super) proxy_streams: Arc<Gauge>,
    pub(super) agent_streams: Arc<Gauge>,
    pub(super) http_connections: Arc<Gauge>,
    pub(super) frontend_write: Arc<Histogram>,
    /// gRPC clients that are held back because their tunnel has no room.
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

/// Why dials fail, in upstream's words.
const FAILURES: [&str; 7] = [
    "no_agent",
    "error_response",
    "backend_close",
    "backend_dial_timeout",
    "frontend_close",
    "unrecognized_response",
    "send_rsp",
];

/// What `/metrics` says of a server to which everything has happened: all there is to be read.
#[cfg(feature = "reference")]
pub fn metrics_of_everything() -> String {
    use crate::config::{AgentLimits, Frontend, Mode, Strategy, TlsPolicy};
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    let config = crate::config::ServerConfig {
        mode: Mode::Grpc,
        frontend: Frontend::Unix { path: "socket".into(), delete_existing: false, permissions: 0o600 },
        agent_bind_address: IpAddr::V4(Ipv4Addr::LOCALHOST),
        agent_port: 0,
        agent_tls: None,
        tls_policy: TlsPolicy::default(),
        health: None,
        admin: None,
        keepalive_time: Duration::ZERO,
        frontend_keepalive_time: Duration::ZERO,
        server_id: "server".to_owned(),
        server_count: 1,
        proxy_strategies: vec![Strategy::Default, Strategy::DestHost, Strategy::DefaultRoute],
        backend_dial_timeout: Duration::ZERO,
        graceful_shutdown_timeout: Duration::ZERO,
        limits: AgentLimits::default(),
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
        self.failures[reason].add();
    }

    pub(super) fn client_left(&self) {
        self.failures[4].add();
    }

    /// An agent answered a dial that nobody waits for.
    pub(super) fn answer_unasked(&self) {
        self.failures[5].add();
    }

    /// The client was gone when it was to be told of its tunnel.
    pub(super) fn answer_unheard(&self) {
        self.failures[6].add();
    }
}

// === impl ServerView ===

impl ServerView {
    /// Whether an agent could be chosen for a dial.
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
        // Strings and numbers cannot fail to be written.
        serde_json::to_string(&crate::Status::Server(self.status())).unwrap_or_default()
    }

    fn metrics(&self) -> String {
        let (metrics, agents) = (&self.0.metrics, self.agents());
        let name = |rest: &str| format!("{SERVER}{rest}");
        let mut page = Page::default();
        metrics.dial_duration.write(&mut page, &name("dial_duration_seconds"), "Time to a tunnel");
        let help = "Time that bytes waited for a frontend to take them";
        metrics.frontend_write.write(&mut page, &name("frontend_write_duration_seconds"), help);
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
        let full = name("full_receive_channels");
        page.head(&full, "gauge", "Tunnels that wait for a slow reader");
        let stalled: usize = agents.iter().map(|agent| agent.stalled).sum();
        page.line(&format!("{full}{{service_method=\"Connect\"}}"), stalled);
        page.line(&format!("{full}{{service_method=\"Proxy\"}}"), metrics.full_frontends.get());
        let failures = name("dial_failure_count");
        page.head(&failures, "counter", "Dials that failed");
        for (reason, count) in FAILURES.iter().zip(&metrics.failures) {
            page.line(&format!("{failures}{{reason=\"{reason}\"}}"), count.get());
        }
        metrics.packets.write(&mut page, SERVER);
        let leases = &metrics.leases;
        let help = "Leases of lost servers cleared away";
        page.single(&name("culled_leases_count"), "counter", help, leases.culled.get());
        for (calls, what) in [(&leases.listed, "list"), (&leases.deleted, "delete")] {
            let (total, latency) =
                (name(&format!("lease_{what}_total")), name(&format!("lease_{what}_latency_seconds")));
            calls.write(&mut page, &total, &latency, "http_status_code");
        }
        page.finish()
    }
}
