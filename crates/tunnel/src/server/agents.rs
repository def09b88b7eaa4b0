//! The agents connected to this server, and the selection of one for a dial.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::clock;
use crate::config::{AgentLimits, Strategy};
use crate::identifiers::{Identifiers, host_of};
use crate::metrics::Traffic;
use crate::mux::Queue;
use crate::number::random;

/// Time for which an agent that did not respond is only used when there is no other.
const DOUBT: Duration = Duration::from_secs(30);

/// The stream of one agent. Tunnels belong to a stream rather than an agent ID, which two agents may share.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) id: String,
    pub(crate) identifiers: Identifiers,
    pub(crate) queue: Arc<Queue>,
    /// Credit that the agent grants each tunnel; `None` for upstream agents.
    pub(crate) credit: Option<u64>,
    pub(crate) draining: AtomicBool,
    pub(crate) tunnels: AtomicUsize,
    pub(crate) pending: AtomicUsize,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) since: Instant,
    doubted: Mutex<Option<Instant>>,
}

#[derive(Debug)]
pub(crate) struct Agents {
    strategies: Vec<Strategy>,
    limits: AgentLimits,
    connected: Mutex<Vec<Arc<Agent>>>,
}

/// Counts a dial as pending until dropped.
#[derive(Debug)]
pub(crate) struct Pending(Arc<Agent>);

// === impl Agent ===

impl Agent {
    pub(crate) fn new(id: String, identifiers: Identifiers, credit: Option<u64>) -> Self {
        Self {
            id,
            identifiers,
            queue: Arc::default(),
            credit,
            draining: AtomicBool::new(false),
            tunnels: AtomicUsize::new(0),
            pending: AtomicUsize::new(0),
            traffic: Arc::default(),
            since: clock::now(),
            doubted: Mutex::new(None),
        }
    }

    /// Marks the agent as suspect, because it did not respond or is stalled; others precede it for a while.
    pub(crate) fn doubt(&self) {
        *self.doubts() = Some(clock::now());
    }

    pub(crate) fn trust(&self) {
        *self.doubts() = None;
    }

    pub(crate) fn is_doubted(&self) -> bool {
        self.doubts().is_some_and(|since| clock::now().saturating_duration_since(since) < DOUBT)
    }

    pub(crate) fn pending(self: &Arc<Self>) -> Pending {
        self.pending.fetch_add(1, Ordering::Relaxed);
        Pending(Arc::clone(self))
    }

    fn is_full(&self, limits: AgentLimits) -> bool {
        let (pending, tunnels) = (self.pending.load(Ordering::Relaxed), self.tunnels.load(Ordering::Relaxed));
        // A pending dial is likely to become a tunnel.
        pending >= limits.dials || limits.tunnels.is_some_and(|limit| tunnels + pending >= limit)
    }

    /// Returns the load for comparison; lower is better. A dial weighs more than a tunnel, which may be idle.
    fn load(&self) -> usize {
        self.pending.load(Ordering::Relaxed) * 16 + self.tunnels.load(Ordering::Relaxed)
    }

    fn doubts(&self) -> MutexGuard<'_, Option<Instant>> {
        self.doubted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Pending ===

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Agents ===

impl Agents {
    pub(crate) fn new(strategies: Vec<Strategy>, limits: AgentLimits) -> Self {
        Self { strategies, limits, connected: Mutex::default() }
    }

    pub(crate) fn add(&self, agent: Arc<Agent>) {
        self.lock().push(agent);
    }

    pub(crate) fn remove(&self, agent: &Arc<Agent>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, agent));
    }

    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Agent>> {
        self.lock().clone()
    }

    /// Returns the number of candidates of each strategy.
    pub(crate) fn counts(&self) -> Vec<(&'static str, usize)> {
        let agents = self.lock();
        let count = |strategy: &Strategy| match strategy {
            Strategy::Default | Strategy::DestHost => (strategy.name(), agents.len()),
            Strategy::DefaultRoute => {
                (strategy.name(), agents.iter().filter(|agent| agent.identifiers.is_default_route()).count())
            }
        };
        self.strategies.iter().map(count).collect()
    }

    /// Returns whether any strategy can select an agent that is likely to respond.
    pub(crate) fn is_ready(&self) -> bool {
        let chosen = self.counts().iter().any(|(_, count)| *count > 0);
        chosen && self.lock().iter().any(|agent| !agent.is_doubted())
    }

    /// Returns whether a connected agent has reached its limits.
    pub(crate) fn is_any_full(&self) -> bool {
        self.lock().iter().any(|agent| agent.is_full(self.limits))
    }

    /// Selects an agent for `address` that is not in `tried`.
    pub(crate) fn choose(&self, address: &str, tried: &[Arc<Agent>]) -> Option<Arc<Agent>> {
        let agents = self.lock();
        let open: Vec<&Arc<Agent>> = agents
            .iter()
            .filter(|agent| !agent.is_full(self.limits))
            .filter(|agent| !tried.iter().any(|other| Arc::ptr_eq(other, agent)))
            .collect();
        self.strategies.iter().find_map(|strategy| {
            let candidates: Vec<&Arc<Agent>> = match strategy {
                Strategy::Default => open.clone(),
                Strategy::DefaultRoute => {
                    open.iter().copied().filter(|agent| agent.identifiers.is_default_route()).collect()
                }
                Strategy::DestHost => {
                    let host = host_of(address);
                    let fit = |agent: &&Arc<Agent>| agent.identifiers.fit(host);
                    let best = open.iter().filter_map(fit).max()?;
                    open.iter().copied().filter(|agent| fit(agent) == Some(best)).collect()
                }
            };
            best(&candidates)
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Agent>>> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the less loaded of two random candidates among the healthiest. This balances nearly as well as comparing
/// all, without concentrating concurrent dials on one agent.
fn best(candidates: &[&Arc<Agent>]) -> Option<Arc<Agent>> {
    let rank = |agent: &&&Arc<Agent>| (agent.draining.load(Ordering::Relaxed), agent.is_doubted());
    let healthiest = candidates.iter().map(|agent| rank(&agent)).min()?;
    let choice: Vec<&&Arc<Agent>> = candidates.iter().filter(|agent| rank(agent) == healthiest).collect();
    let pick = || choice[usize::try_from(random()).unwrap_or(0) % choice.len()];
    let (one, other) = (pick(), pick());
    Some(Arc::clone(if other.load() < one.load() { other } else { one }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identifiers::Unknown;

    fn agent(id: &str, identifiers: &str) -> Arc<Agent> {
        Arc::new(Agent::new(id.to_owned(), Identifiers::parse(identifiers, Unknown::Refused).unwrap(), None))
    }

    fn agents(strategies: Vec<Strategy>) -> Agents {
        Agents::new(strategies, AgentLimits::default())
    }

    fn chosen(agents: &Agents, address: &str) -> Option<String> {
        agents.choose(address, &[]).map(|agent| agent.id.clone())
    }

    #[test]
    fn strategies_are_tried_in_order() {
        let agents = agents(vec![Strategy::DestHost, Strategy::DefaultRoute]);
        assert!(!agents.is_ready());
        assert_eq!(chosen(&agents, "10.0.0.1:80"), None);
        agents.add(agent("wide", "cidr=10.0.0.0/8"));
        agents.add(agent("narrow", "cidr=10.0.0.0/24"));
        agents.add(agent("exact", "ipv4=10.0.0.1"));
        agents.add(agent("rest", "default-route=true"));
        for (address, id) in [
            ("10.0.0.1:80", "exact"),
            ("10.0.0.2:80", "narrow"),
            ("10.2.0.2:80", "wide"),
            ("[::1]:80", "rest"),
            ("webhook.svc:443", "rest"),
        ] {
            assert_eq!(chosen(&agents, address).as_deref(), Some(id), "{address}");
        }
    }

    #[test]
    fn draining_and_doubted_agents_are_last() {
        let agents = agents(vec![Strategy::Default]);
        let (draining, doubted, good) = (agent("draining", ""), agent("doubted", ""), agent("good", ""));
        draining.draining.store(true, Ordering::Relaxed);
        doubted.doubt();
        agents.add(Arc::clone(&draining));
        agents.add(Arc::clone(&doubted));
        agents.add(Arc::clone(&good));
        for _ in 0..20 {
            assert_eq!(chosen(&agents, "a:1").as_deref(), Some("good"));
        }
        agents.remove(&good);
        assert_eq!(chosen(&agents, "a:1").as_deref(), Some("doubted"));
        agents.remove(&doubted);
        assert_eq!(chosen(&agents, "a:1").as_deref(), Some("draining"));
        assert!(agents.choose("a:1", &[draining]).is_none());
    }

    #[test]
    fn the_less_loaded_agent_gets_most_dials() {
        let agents = agents(vec![Strategy::Default]);
        let (busy, idle) = (agent("busy", ""), agent("idle", ""));
        busy.tunnels.store(1000, Ordering::Relaxed);
        agents.add(busy);
        agents.add(idle);
        let idle = (0..1000).filter(|_| chosen(&agents, "a:1").as_deref() == Some("idle")).count();
        assert!(idle > 600, "{idle} of 1000");
    }

    #[test]
    fn an_agent_with_too_many_unanswered_dials_or_tunnels_is_not_asked() {
        let limits = AgentLimits { dials: 3, tunnels: Some(5) };
        let agents = Agents::new(vec![Strategy::Default], limits);
        let only = agent("only", "");
        agents.add(Arc::clone(&only));
        let pending: Vec<Pending> = (0..3).map(|_| only.pending()).collect();
        assert_eq!(chosen(&agents, "a:1"), None);
        assert!(agents.is_any_full());
        drop(pending);
        assert_eq!(chosen(&agents, "a:1").as_deref(), Some("only"));
        only.tunnels.store(4, Ordering::Relaxed);
        assert_eq!(chosen(&agents, "a:1").as_deref(), Some("only"));
        let _pending = only.pending();
        assert_eq!(chosen(&agents, "a:1"), None);
    }

    #[test]
    fn agents_that_do_not_answer_make_nobody_ready() {
        let agents = agents(vec![Strategy::Default]);
        let wedged = agent("wedged", "");
        agents.add(Arc::clone(&wedged));
        assert!(agents.is_ready());
        wedged.doubt();
        assert!(!agents.is_ready());
        // The only agent is used nevertheless.
        assert_eq!(chosen(&agents, "a:1").as_deref(), Some("wedged"));
        wedged.trust();
        assert!(agents.is_ready());
    }
}
