//! State of the known API servers, kept current by polling them.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::{Method, Request, StatusCode};
use landfall_cluster::Cluster;
use landfall_model::chain;
use landfall_net::Reloading;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::body::Body;
use crate::config::{Config, Mode, Readiness};
use crate::credentials::Credentials;
use crate::phase::{Phase, Phases, Seen, Steady};
use crate::review::Reviewer;
use crate::upstream::As;

const LOOK_EVERY: Duration = Duration::from_secs(1);
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// Polls between two queries for control plane nodes, which change rarely.
const ASK_FOR_NODES_EVERY: u32 = 10;
/// One answer is enough to use a server; three consecutive failures end its use.
const RISE: u32 = 1;
const FALL: u32 = 3;
/// Time for which watches on a stopping server continue before they end normally.
const WATCH_GRACE: Duration = Duration::from_secs(5);
/// More control plane nodes than any cluster has.
const MAX_PERMANENT: usize = 32;

/// The API servers at one time.
#[derive(Clone, Debug)]
pub(crate) struct Situation {
    pub(crate) phase: Phase,
    pub(crate) local: bool,
    /// Permanent API servers that answer.
    pub(crate) permanent: Vec<SocketAddr>,
    /// Whether a permanent API server has ever answered.
    pub(crate) seen_permanent: bool,
    /// Control plane nodes from the configuration and from the cluster.
    pub(crate) nodes: Vec<IpAddr>,
    /// Canceled when watches on the local server should end.
    pub(crate) retire: CancellationToken,
}

/// The current situation, shared with all readers.
#[derive(Debug)]
pub(crate) struct Outlook {
    sender: watch::Sender<Arc<Situation>>,
    turn: AtomicUsize,
}

/// Polls the API servers.
pub(crate) struct Lookout {
    config: Config,
    credentials: Arc<Reloading<Credentials>>,
    reviewer: Arc<Reviewer>,
    outlook: Arc<Outlook>,
    phases: Phases,
    local: Steady,
    permanent: Vec<(SocketAddr, Steady)>,
    seen_permanent: bool,
    nodes: Vec<IpAddr>,
    rounds: u32,
    retire: CancellationToken,
    found: Arc<Mutex<Option<Vec<IpAddr>>>>,
}

// === impl Situation ===

impl Situation {
    fn new() -> Self {
        Self {
            phase: Phase::NoApi,
            local: false,
            permanent: Vec::new(),
            seen_permanent: false,
            nodes: Vec::new(),
            retire: CancellationToken::new(),
        }
    }

    /// Returns whether any API server can serve requests.
    pub(crate) fn has_route(&self) -> bool {
        self.local || !self.permanent.is_empty()
    }

    /// Returns the result of the readiness probe.
    pub(crate) fn is_ready(&self, policy: Readiness) -> bool {
        match policy {
            // While no permanent API server is known, a load balancer has no better target.
            Readiness::Hold => self.has_route() || !self.seen_permanent,
            Readiness::Leave => self.local && self.phase != Phase::Handover,
        }
    }

    /// Returns whether clients should reconnect to another API server.
    pub(crate) fn sends_clients_away(&self, policy: Readiness) -> bool {
        policy == Readiness::Leave && matches!(self.phase, Phase::Handover | Phase::Permanent)
    }
}

// === impl Outlook ===

impl Outlook {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { sender: watch::Sender::new(Arc::new(Situation::new())), turn: AtomicUsize::new(0) })
    }

    pub(crate) fn now(&self) -> Arc<Situation> {
        Arc::clone(&self.sender.borrow())
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<Situation>> {
        self.sender.subscribe()
    }

    /// Returns the API servers to try, best first.
    pub(crate) fn targets(&self, situation: &Situation, local: SocketAddr) -> Vec<SocketAddr> {
        let mut targets = situation.permanent.clone();
        if !targets.is_empty() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % targets.len();
            targets.rotate_left(turn);
        }
        match situation.phase {
            Phase::Handover | Phase::Permanent => {
                if situation.local {
                    targets.push(local);
                }
                targets
            }
            _ if situation.local => vec![local],
            _ => targets,
        }
    }
}

// === impl Lookout ===

impl Lookout {
    pub(crate) fn new(
        config: Config,
        credentials: Arc<Reloading<Credentials>>,
        reviewer: Arc<Reviewer>,
        outlook: Arc<Outlook>,
    ) -> Self {
        let permanent =
            config.upstream.permanent.iter().map(|target| (*target, Steady::new(RISE, FALL))).collect();
        let nodes = config.upstream.permanent.iter().map(SocketAddr::ip).collect();
        Self {
            config,
            credentials,
            reviewer,
            outlook,
            phases: Phases::new(),
            local: Steady::new(RISE, FALL),
            permanent,
            seen_permanent: false,
            nodes,
            rounds: 0,
            retire: CancellationToken::new(),
            found: Arc::default(),
        }
    }

    /// Polls without end.
    pub(crate) async fn run(mut self) {
        loop {
            self.look().await;
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&mut self) {
        let credentials = self.credentials.get();
        let mut asked = tokio::task::JoinSet::new();
        let targets = std::iter::once(self.config.upstream.local)
            .chain(self.permanent.iter().map(|(target, _)| *target));
        for (number, target) in targets.enumerate() {
            let credentials = Arc::clone(&credentials);
            asked.spawn(async move { (number, answers(&credentials, target).await) });
        }
        while let Some(answer) = asked.join_next().await {
            match answer {
                Ok((0, answers)) => {
                    self.local.observe(answers);
                }
                Ok((number, answers)) => {
                    if let Some((_, steady)) = self.permanent.get_mut(number - 1) {
                        steady.observe(answers);
                    }
                }
                Err(error) => tracing::warn!(%error, "looking at an API server was cut short"),
            }
        }
        self.ask_for_nodes();
        let finished = self.config.finished_markers.iter().any(|marker| marker.exists());
        self.publish(finished);
    }

    /// Queries the cluster for its control plane nodes, in the background.
    fn ask_for_nodes(&mut self) {
        if let Some(nodes) = self.found.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let port = self.config.upstream.local.port();
            for node in nodes.into_iter().take(MAX_PERMANENT) {
                if is_own(node) {
                    continue;
                }
                if !self.nodes.contains(&node) {
                    self.nodes.push(node);
                }
                let target = SocketAddr::new(node, port);
                if self.permanent.len() < MAX_PERMANENT
                    && !self.permanent.iter().any(|(known, _)| *known == target)
                {
                    tracing::info!(%target, "found a permanent API server");
                    self.permanent.push((target, Steady::new(RISE, FALL)));
                }
            }
        }
        let due = self.rounds.is_multiple_of(ASK_FOR_NODES_EVERY);
        self.rounds = self.rounds.wrapping_add(1);
        if !due || !(self.local.is_up() || self.permanent.iter().any(|(_, steady)| steady.is_up())) {
            return;
        }
        let (reviewer, found) = (Arc::clone(&self.reviewer), Arc::clone(&self.found));
        tokio::spawn(async move {
            let Some(cluster) = reviewer.cluster().await else { return };
            match Cluster::control_plane_addresses(&cluster).await {
                Ok(nodes) => *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(nodes),
                Err(error) => {
                    tracing::debug!(error = %chain(&error), "the nodes of the control plane are not known");
                }
            }
        });
    }

    fn publish(&mut self, finished: bool) {
        let permanent: Vec<SocketAddr> =
            self.permanent.iter().filter(|(_, steady)| steady.is_up()).map(|(target, _)| *target).collect();
        self.seen_permanent |= !permanent.is_empty();
        let seen = Seen { local: self.local.is_up(), permanent: permanent.len(), finished };
        let before = self.outlook.now();
        let phase = self.phases.observe(seen);
        if before.phase != phase {
            tracing::info!(from = %before.phase, to = %phase, "phase");
            if phase == Phase::Handover {
                let retire = std::mem::take(&mut self.retire);
                tokio::spawn(async move {
                    tokio::time::sleep(WATCH_GRACE).await;
                    retire.cancel();
                });
            }
        }
        let unchanged = before.phase == phase
            && before.local == seen.local
            && before.permanent == permanent
            && before.nodes == self.nodes;
        if !unchanged {
            // Readers keep the situation that they hold.
            let _ = self.outlook.sender.send_replace(Arc::new(Situation {
                phase,
                local: seen.local,
                permanent,
                seen_permanent: self.seen_permanent,
                nodes: self.nodes.clone(),
                retire: self.retire.clone(),
            }));
        }
    }
}

/// Returns whether an API server is ready. A 401 or 403 for the anonymous request counts as ready, too.
pub(crate) async fn answers(credentials: &Credentials, target: SocketAddr) -> bool {
    let Some(pool) = credentials.pools.own(As::Plain) else { return false };
    let mut request = Request::new(Body::empty());
    *request.method_mut() = Method::GET;
    *request.uri_mut() = hyper::Uri::from_static("/readyz");
    let asking = pool.send(target, request);
    match tokio::time::timeout(ANSWER_LIMIT, asking).await {
        Ok(Ok((answer, _))) => {
            matches!(answer.status(), StatusCode::OK | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        }
        Ok(Err(unsent)) => {
            tracing::debug!(error = %chain(&unsent.error), "the API server does not answer");
            false
        }
        Err(_) => false,
    }
}

/// Returns whether an address is local: only local addresses can be bound.
fn is_own(address: IpAddr) -> bool {
    std::net::UdpSocket::bind((address, 0)).is_ok()
}

pub(crate) fn splices(mode: Mode, situation: &Situation) -> bool {
    mode == Mode::Splice && situation.has_route()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: &str = "127.0.0.1:6443";

    fn situation(phase: Phase, local: bool, permanent: usize, seen_permanent: bool) -> Situation {
        let permanent =
            (1..=permanent).map(|number| format!("192.0.2.{number}:6443").parse().unwrap()).collect();
        Situation { phase, local, permanent, seen_permanent, ..Situation::new() }
    }

    #[test]
    fn each_phase_has_its_targets() {
        let outlook = Outlook::new();
        let local: SocketAddr = LOCAL.parse().unwrap();
        for (situation, first_is_local, count) in [
            (situation(Phase::NoApi, false, 0, false), None, 0),
            (situation(Phase::Local, true, 0, false), Some(true), 1),
            (situation(Phase::Both, true, 2, true), Some(true), 1),
            (situation(Phase::Handover, true, 2, true), Some(false), 3),
            (situation(Phase::Permanent, false, 2, true), Some(false), 2),
            (situation(Phase::Failed, false, 0, true), None, 0),
        ] {
            let targets = outlook.targets(&situation, local);
            assert_eq!(targets.first().map(|target| *target == local), first_is_local, "{situation:?}");
            assert_eq!(targets.len(), count, "{situation:?}");
        }
        let permanent = situation(Phase::Permanent, false, 2, true);
        let turns: Vec<_> = (0..2).map(|_| outlook.targets(&permanent, local)[0]).collect();
        assert_ne!(turns[0], turns[1], "permanent servers take turns");
    }

    #[test]
    fn balancers_are_told_by_policy() {
        for (situation, hold, leave) in [
            (situation(Phase::NoApi, false, 0, false), true, false),
            (situation(Phase::Local, true, 0, false), true, true),
            (situation(Phase::Both, true, 2, true), true, true),
            (situation(Phase::Handover, true, 2, true), true, false),
            (situation(Phase::Permanent, false, 2, true), true, false),
            (situation(Phase::Failed, false, 0, false), true, false),
            (situation(Phase::Failed, false, 0, true), false, false),
        ] {
            assert_eq!(situation.is_ready(Readiness::Hold), hold, "{situation:?}");
            assert_eq!(situation.is_ready(Readiness::Leave), leave, "{situation:?}");
        }
    }
}
