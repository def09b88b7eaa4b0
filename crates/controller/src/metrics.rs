//! Endpoints of a running controller: `/livez`, `/readyz` and `/metrics`.

use std::future::{Future, pending, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use hyper::{Request, Response, StatusCode};
use landfall_net::Listener;
use landfall_net::metrics::{Counter, METRICS_MEDIA_TYPE, MetricType, MetricsText};
use landfall_net::serve::{
    Accept, Handler, Limits, Peer, RequestBody, ResponseBody, Session, response, text_response,
};

use crate::plan::Action;
use crate::record::Phase;
use crate::world::World;

/// Metrics of one controller.
#[derive(Debug, Default)]
pub struct Metrics {
    leads: AtomicBool,
    /// Whether the cluster has responded at least once.
    connected: AtomicBool,
    phases: Mutex<[usize; Phase::ALL.len()]>,
    pub(crate) looks_failed: Counter,
    pub(crate) writes_failed: Counter,
    evictions: Counter,
    pub(crate) evictions_refused: Counter,
    pub(crate) runners_refused: Counter,
    approvals: Counter,
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

    pub(crate) fn done(&self, action: &Action) {
        match action {
            Action::Evict { .. } => self.evictions.increment(),
            Action::Approve { .. } => self.approvals.increment(),
            _ => {}
        }
    }

    pub fn text(&self) -> String {
        let mut text = MetricsText::new(PREFIX);
        let leads = u8::from(self.leads.load(Ordering::Relaxed));
        text.gauge("leader_info", "Whether this replica is the leader.", leads);
        let counts = *self.phases.lock().unwrap_or_else(PoisonError::into_inner);
        let mut nodes = text.family("nodes_count", MetricType::Gauge, "Number of nodes, by phase.");
        for (count, phase) in counts.iter().zip(Phase::ALL) {
            nodes.value(&[("phase", phase.name())], count);
        }
        for (name, help, counter) in [
            ("looks_failed_total", "Total number of failed cluster observations.", &self.looks_failed),
            ("writes_failed_total", "Total number of failed writes to the cluster.", &self.writes_failed),
            ("evictions_total", "Total number of accepted evictions.", &self.evictions),
            (
                "evictions_refused_total",
                "Total number of evictions that a disruption budget prevented.",
                &self.evictions_refused,
            ),
            (
                "pods_refused_total",
                "Total number of node pods, or their Secrets, that the cluster rejected.",
                &self.runners_refused,
            ),
            ("approvals_total", "Total number of approved certificates.", &self.approvals),
        ] {
            text.counter(name, help, counter);
        }
        text.finish()
    }
}

/// Metrics that can be exposed.
pub trait Numbers: Send + Sync + 'static {
    fn text(&self) -> String;
    /// Whether the cluster has responded at least once.
    fn is_connected(&self) -> bool;
}

/// Prefix of all metrics of the controller.
pub(crate) const PREFIX: &str = "landfall_controller_";

impl Numbers for Metrics {
    fn text(&self) -> String {
        self.text()
    }

    fn is_connected(&self) -> bool {
        self.connected.load(Ordering::Relaxed)
    }
}

struct HealthHandler(Arc<dyn Numbers>);

/// Serves `/livez`, `/readyz` and `/metrics` until the task is dropped.
pub async fn serve(listener: Listener, numbers: Arc<dyn Numbers>) {
    let handler = Arc::new(HealthHandler(numbers));
    landfall_net::serve::serve(Accept::Tcp(listener), Limits::SMALL, handler, pending()).await;
}

impl Handler for HealthHandler {
    type State = ();

    fn open(&self, _: Peer) -> Option<Session<()>> {
        Some(Session::new(()))
    }

    fn handle<'h>(
        &'h self,
        _: &'h Arc<()>,
        request: Request<RequestBody>,
    ) -> Pin<Box<dyn Future<Output = Response<ResponseBody>> + Send + 'h>> {
        Box::pin(ready(match request.uri().path() {
            "/livez" | "/healthz" => text_response(StatusCode::OK, "ok"),
            // A follower is as ready as the leader.
            "/readyz" if self.0.is_connected() => text_response(StatusCode::OK, "ok"),
            "/readyz" => text_response(StatusCode::SERVICE_UNAVAILABLE, "the cluster has not responded yet"),
            "/metrics" => response(StatusCode::OK, METRICS_MEDIA_TYPE, self.0.text()),
            _ => text_response(StatusCode::NOT_FOUND, "this port has `/metrics`, `/livez` and `/readyz`"),
        }))
    }
}
