//! What can be asked of a running controller: `/livez`, `/readyz` and `/metrics`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;

use crate::plan::Action;
use crate::record::Phase;
use crate::world::World;

/// Numbers of one controller.
#[derive(Debug, Default)]
pub struct Metrics {
    leads: AtomicBool,
    /// It has been answered by the cluster at least once.
    connected: AtomicBool,
    phases: Mutex<[usize; Phase::ALL.len()]>,
    looks_failed: AtomicU64,
    writes_failed: AtomicU64,
    evictions: AtomicU64,
    evictions_refused: AtomicU64,
    runners_refused: AtomicU64,
    approvals: AtomicU64,
}

// === impl Metrics ===

impl Metrics {
    pub(crate) fn leads(&self, leads: bool) {
        self.connected.store(true, Ordering::Relaxed);
        self.leads.store(leads, Ordering::Relaxed);
    }

    pub(crate) fn seen(&self, world: &World) {
        let mut counts = [0; Phase::ALL.len()];
        for (count, phase) in counts.iter_mut().zip(Phase::ALL) {
            *count = world.records.values().filter(|record| record.phase == phase).count();
        }
        *self.phases.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }

    pub(crate) fn look_failed(&self) {
        self.looks_failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn write_failed(&self) {
        self.writes_failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refused(&self) {
        self.evictions_refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn runner_refused(&self) {
        self.runners_refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn done(&self, action: &Action) {
        match action {
            Action::Evict { .. } => self.evictions.fetch_add(1, Ordering::Relaxed),
            Action::Approve { .. } => self.approvals.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        head(&mut text, "leader_info", "gauge", "Whether this one leads");
        let _ = writeln!(
            text,
            "landfall_controller_leader_info {}",
            u8::from(self.leads.load(Ordering::Relaxed))
        );
        head(&mut text, "nodes_count", "gauge", "Nodes by phase");
        let counts = *self.phases.lock().unwrap_or_else(PoisonError::into_inner);
        for (count, phase) in counts.iter().zip(Phase::ALL) {
            let _ = writeln!(text, "landfall_controller_nodes_count{{phase=\"{}\"}} {count}", phase.name());
        }
        for (name, help, counter) in [
            ("looks_failed_total", "Looks at the cluster that were not answered", &self.looks_failed),
            ("writes_failed_total", "Writes to the cluster that were not made", &self.writes_failed),
            ("evictions_total", "Evictions that were accepted", &self.evictions),
            (
                "evictions_refused_total",
                "Evictions that a disruption budget forbade",
                &self.evictions_refused,
            ),
            (
                "pods_refused_total",
                "Pods for nodes, or their Secrets, that the cluster refused",
                &self.runners_refused,
            ),
            ("approvals_total", "Certificates approved", &self.approvals),
        ] {
            head(&mut text, name, "counter", help);
            let _ = writeln!(text, "landfall_controller_{name} {}", counter.load(Ordering::Relaxed));
        }
        text
    }
}

/// Numbers that can be shown.
pub trait Numbers: Send + Sync + 'static {
    fn text(&self) -> String;
    /// The cluster has answered.
    fn is_connected(&self) -> bool;
}

pub(crate) fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string cannot fail.
    let _ =
        writeln!(text, "# HELP landfall_controller_{name} {help}\n# TYPE landfall_controller_{name} {kind}");
}

impl Numbers for Metrics {
    fn text(&self) -> String {
        self.text()
    }

    fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }
}

/// A bound port.
#[derive(Debug)]
pub struct Port(TcpListener);

// === impl Port ===

impl Port {
    pub async fn bind(address: SocketAddr) -> std::io::Result<Self> {
        TcpListener::bind(address).await.map(Self)
    }

    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Answers until it is dropped.
    pub async fn serve(self, numbers: Arc<dyn Numbers>) -> std::io::Result<()> {
        let routes = Router::new()
            .route("/livez", get(async || "ok"))
            .route("/healthz", get(async || "ok"))
            .route("/readyz", get(ready))
            .route("/metrics", get(async |State(numbers): State<Arc<dyn Numbers>>| numbers.text()))
            .with_state(numbers);
        axum::serve(self.0, routes).await
    }
}

/// One that follows is as ready as one that leads.
async fn ready(State(numbers): State<Arc<dyn Numbers>>) -> (StatusCode, &'static str) {
    if numbers.is_connected() {
        (StatusCode::OK, "ok")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the cluster has not answered yet")
    }
}
