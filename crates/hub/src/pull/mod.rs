//! Polling of agents that serve their reports (`landfall agent --serve`).
//!
//! The connection is TLS with certificates on both sides. Polling is for networks in which the management side can
//! reach the nodes but the nodes cannot reach the management side.
//!
//! At most [`AT_ONCE`] agents are polled concurrently, each about every [`Pull::every`]. Failing agents are polled
//! at increasing intervals. A report counts only for a node that the agent is known to be: the configured node name,
//! or a name in the agent's certificate.
//!
//! ```text
//!  --pull, --pull-list ─┬─▶ directly ───────────────────────────────┐
//!                       └─▶ --pull-proxy: CONNECT, a tunnel's server ┼─▶ TLS to the agent ─▶ /report, /bundle
//!  --pull-cluster ────────▶ API server ─▶ kubelet ─▶ node's loopback ┘
//! ```

mod agent;
mod cluster;
#[cfg(test)]
mod patience_tests;
mod talk;
mod way;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use landfall_model::chain;
use landfall_net::{Backoff, CertificateFiles, ClientTls, ConnectProxy, ProxyPlace, TlsError, varied};
use rustls::ClientConfig;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

pub use self::agent::PulledAgent;
use self::agent::read_list;
pub(crate) use self::cluster::MAX_CLUSTERS;
pub use self::cluster::PulledCluster;
use self::cluster::{Found, follow};
use self::talk::{Line, MAX_NEIGHBOURS, TalkError};
use self::way::{Gate, Way};
use crate::access::Caller;
use crate::config::ConfigError;
use crate::hub::Hub;
use crate::name::NodeName;
use crate::problem::Problem;

/// Maximum number of polled agents; larger fleets should push.
pub(crate) const MAX_AGENTS: usize = 10_000;
/// Maximum number of concurrent polls. A handshake takes about 1 ms of a core, and an agent that does not respond
/// occupies its slot until the timeout.
const AT_ONCE: usize = 32;
/// Maximum number of concurrent polls of agents whose last poll failed. A network that drops packets to hundreds of
/// nodes must not block the polls of the other agents.
const FAILED_AT_ONCE: usize = AT_ONCE / 4;
/// Maximum number of concurrent bundle downloads within these polls; a bundle takes long to arrive.
const BUNDLES_AT_ONCE: usize = 2;
/// Timeout for all reports that neighbors stored on an agent. An agent that answers each request just in time would
/// otherwise occupy its slot for 15 minutes.
const NEIGHBOURS_PATIENCE: Duration = Duration::from_secs(60);
/// Interval between checks for agents that are due.
const LOOK: Duration = Duration::from_millis(250);
/// Interval between reloads of the agent list and the certificates.
const READ_AGAIN: Duration = Duration::from_secs(15);
/// Maximum interval between polls after failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Variation of the interval in percent, which prevents synchronized polls.
const VARIATION: u32 = 20;

/// Key of an agent's own report in [`Said`]; not a valid node name.
const OWN: &str = "";

/// Configuration of the polled agents and of the hub's identity towards them.
#[derive(Clone, Debug)]
pub struct Pull {
    pub agents: Vec<PulledAgent>,
    /// File with more agents, one per line; reloaded when it changes.
    pub list: Option<PathBuf>,
    /// Proxy to the agents of `agents` and `list`; without it, the hub connects directly.
    pub proxy: Option<PullProxy>,
    /// Clusters whose nodes are polled through their API servers.
    pub clusters: Vec<PulledCluster>,
    /// CA of the agents' certificates.
    pub authority: PathBuf,
    /// Client certificate of the hub.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Pauses between polls of an agent; see [`Pull::backoff`].
    pub backoff: Backoff,
    pub neighbours: Neighbours,
    pub bundles: Bundles,
}

/// A CONNECT proxy, and the hub's client certificate for a proxy that requires TLS.
#[derive(Clone, Debug)]
pub struct PullProxy {
    pub proxy: ConnectProxy,
    pub authority: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// Whether the hub fetches reports that other nodes stored on an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbours {
    /// Only the agent's own report is fetched.
    LeftAlone,
    /// Stored reports are fetched too. The hub trusts the agent to accept a report only from the node that it names;
    /// such reports must be signed.
    Asked,
}

/// Whether the hub fetches the bundle of a failed node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bundles {
    LeftThere,
    /// Once per failure.
    FetchedFromFailed,
}

/// The polled agents with the time of their next poll.
#[derive(Debug, Default)]
struct Book {
    pages: HashMap<PulledAgent, Page>,
    /// More than [`MAX_AGENTS`] agents are configured, and the warning was logged.
    overfull: bool,
}

#[derive(Debug)]
struct Page {
    due: Instant,
    asked_now: bool,
    failed: u32,
    said: Said,
}

/// The last reports received from an agent, by the name of the node that they describe.
type Said = HashMap<String, Saying>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Saying {
    hash: [u8; 32],
    /// Whether the report was stored. A rejected report would be rejected again.
    taken: bool,
}

/// Everything that one poll of an agent needs.
struct Question {
    agent: PulledAgent,
    way: Way,
    tls: Arc<ClientConfig>,
    said: Said,
    neighbours: Neighbours,
    bundles: Bundles,
}

/// Outcome of one poll.
struct Told {
    agent: PulledAgent,
    said: Said,
    result: Result<(), PullError>,
}

/// Reasons for a failed poll or a rejected report.
#[derive(Debug, thiserror::Error)]
enum PullError {
    #[error("cannot ask the agent")]
    Talk(#[source] TalkError),
    #[error("it did not list the reports of its peers within {} s", NEIGHBOURS_PATIENCE.as_secs())]
    Long,
    #[error("its report was not taken: {0}")]
    Refused(String),
    #[error("its report is the one that was not taken before")]
    RefusedBefore,
    #[error("its bundle was not taken: {0}")]
    Bundle(String),
    /// The next bundle would be rejected as well and may be large. Polling for reports continues.
    #[error("its bundle was not taken, and is not asked for again until it has something new to say: {0}")]
    Unfit(String),
}

/// Polls the agents forever.
pub(crate) async fn pull(hub: &Arc<Hub>, pull: Pull) {
    let mut book = Book::default();
    let mut loaded = None;
    let mut read = None;
    // Dropping the set aborts these tasks when this future ends.
    let mut followers = JoinSet::new();
    let clusters = pull.clusters.iter().map(|place| {
        let (told, found) = watch::channel(None);
        followers.spawn(follow(place.clone(), told));
        found
    });
    let mut clusters: Vec<Found> = clusters.collect();
    let mut talks = JoinSet::new();
    let bundling = Arc::new(tokio::sync::Semaphore::new(BUNDLES_AT_ONCE));
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            Some(told) = talks.join_next(), if !talks.is_empty() => {
                // A panicked poll is a defect. Its agent stays marked as polled; the other agents continue.
                if let Ok(told) = told {
                    book.learn(hub, told, &pull.backoff);
                }
            }
            _ = look.tick() => {
                if read.is_none_or(|read: Instant| read.elapsed() >= READ_AGAIN) {
                    read = Some(Instant::now());
                    book.write(agents(&pull, &clusters));
                    match load(&pull) {
                        Ok(files) => loaded = Some(files),
                        Err(error) => tracing::warn!(error = %chain(&error), "Agents' certificates not read."),
                    }
                } else if clusters.iter().any(|found| found.has_changed().unwrap_or(false)) {
                    book.write(agents(&pull, &clusters));
                }
                clusters.iter_mut().for_each(Found::mark_unchanged);
                let Some(loaded) = &loaded else { continue };
                for (agent, said) in book.due(AT_ONCE.saturating_sub(talks.len())) {
                    let way = loaded.way(&agent, &clusters);
                    let question = Question {
                        agent,
                        way,
                        tls: Arc::clone(&loaded.tls),
                        said,
                        neighbours: pull.neighbours,
                        bundles: pull.bundles,
                    };
                    let (hub, bundling) = (Arc::clone(hub), Arc::clone(&bundling));
                    talks.spawn(async move { question.ask(&hub, &bundling).await });
                }
            }
        }
    }
}

/// The TLS configuration read from the certificate files.
pub(crate) struct Loaded {
    tls: Arc<ClientConfig>,
    gate: Option<Arc<Gate>>,
}

/// Reads the certificate files; called once before the first poll and then for every reload.
pub(crate) fn load(pull: &Pull) -> Result<Loaded, TlsError> {
    let client = |ca: &Path, identity: Option<(&Path, &Path)>| {
        let certificate = identity.map(|(certificate, key)| CertificateFiles {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
        });
        ClientTls { ca: Some(ca.to_owned()), certificate, protocols: Vec::new() }.read()
    };
    let tls = Arc::new(client(&pull.authority, Some((&pull.certificate, &pull.key)))?);
    let gate = pull.proxy.as_ref().map(|through| {
        let is_tls = matches!(through.proxy.place, ProxyPlace::Tls { .. });
        let authority = through.authority.as_ref().filter(|_| is_tls);
        let identity = through.certificate.as_deref().zip(through.key.as_deref());
        let tls = authority.map(|authority| client(authority, identity)).transpose()?;
        Ok(Arc::new(Gate { proxy: through.proxy.clone(), tls: tls.map(Arc::new) }))
    });
    Ok(Loaded { tls, gate: gate.transpose()? })
}

/// Returns the agents of the command line, of the list and of the clusters, in this order. The order matters above
/// [`MAX_AGENTS`]: individually configured agents precede those of clusters.
fn agents(pull: &Pull, clusters: &[Found]) -> Option<Vec<PulledAgent>> {
    let mut agents = pull.agents.clone();
    if let Some(list) = &pull.list {
        match listed(list) {
            Ok(more) => agents.extend(more),
            Err(error) => {
                tracing::warn!(list = %list.display(), error, "The list of agents was not read; the old one stays.");
                return None;
            }
        }
    }
    for reach in clusters.iter().filter_map(|found| found.borrow().clone()) {
        agents.extend(reach.agents());
    }
    Some(agents)
}

fn listed(path: &Path) -> Result<Vec<PulledAgent>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    read_list(&text).map_err(|error| chain(&error).to_string())
}

// === impl Pull ===

impl Pull {
    /// Returns the pauses between polls for this interval.
    pub fn backoff(every: Duration) -> Result<Backoff, ConfigError> {
        Backoff::new(every, LONGEST_PAUSE.max(every)).map_err(ConfigError::Every)
    }

    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        if self.agents.len() > MAX_AGENTS {
            return Err(ConfigError::TooManyAgents);
        }
        if self.clusters.len() > MAX_CLUSTERS {
            return Err(ConfigError::TooManyClusters);
        }
        for (place, cluster) in self.clusters.iter().enumerate() {
            if self.clusters[..place].iter().any(|other| other.name == cluster.name) {
                return Err(ConfigError::SameCluster(cluster.name.clone()));
            }
        }
        let proxy = self.proxy.as_ref();
        let is_blind = |proxy: &PullProxy| {
            matches!(proxy.proxy.place, ProxyPlace::Tls { .. }) && proxy.authority.is_none()
        };
        if proxy.is_some_and(is_blind) { Err(ConfigError::ProxyAuthority) } else { Ok(()) }
    }
}

// === impl Loaded ===

impl Loaded {
    fn way(&self, agent: &PulledAgent, clusters: &[Found]) -> Way {
        let Some(name) = &agent.cluster else {
            return self.gate.as_ref().map_or(Way::Direct, |gate| Way::Proxy(Arc::clone(gate)));
        };
        let mut found = clusters.iter().filter_map(|found| found.borrow().clone());
        Way::Forward(found.find(|reach| reach.name == *name))
    }
}

// === impl Book ===

impl Book {
    /// Adds new agents and removes those that are no longer listed.
    fn write(&mut self, agents: Option<Vec<PulledAgent>>) {
        let Some(agents) = agents else { return };
        let left_out = agents.len().saturating_sub(MAX_AGENTS);
        if left_out > 0 && !self.overfull {
            tracing::warn!(
                left_out,
                "There are more agents than the {MAX_AGENTS} one hub asks; the last are not asked. Let some nodes push, or give \
                 some clusters a hub of their own."
            );
        }
        self.overfull = left_out > 0;
        let now = Instant::now();
        let mut pages: HashMap<PulledAgent, Page> = HashMap::with_capacity(agents.len().min(MAX_AGENTS));
        for agent in agents.into_iter().take(MAX_AGENTS) {
            let known = self.pages.remove(&agent);
            let page =
                known.unwrap_or_else(|| Page { due: now, asked_now: false, failed: 0, said: HashMap::new() });
            pages.entry(agent).or_insert(page);
        }
        self.pages = pages;
    }

    /// Returns the agents to poll now, longest overdue first. Failing agents have their own limit, so that they only
    /// delay each other.
    fn due(&mut self, places: usize) -> Vec<(PulledAgent, Said)> {
        let now = Instant::now();
        let failing = self.pages.values().filter(|page| page.asked_now && page.failed > 0).count();
        let mut again = FAILED_AT_ONCE.saturating_sub(failing);
        let mut due: Vec<(&PulledAgent, &mut Page)> =
            self.pages.iter_mut().filter(|(_, page)| !page.asked_now && page.due <= now).collect();
        due.sort_unstable_by_key(|(_, page)| page.due);
        due.retain(|(_, page)| {
            let is_asked = page.failed == 0 || again > 0;
            again -= usize::from(is_asked && page.failed > 0);
            is_asked
        });
        let asked = due.into_iter().take(places).map(|(agent, page)| {
            page.asked_now = true;
            (agent.clone(), page.said.clone())
        });
        asked.collect()
    }

    fn learn(&mut self, hub: &Hub, told: Told, backoff: &Backoff) {
        hub.count_pull(told.result.is_ok());
        let Some(page) = self.pages.get_mut(&told.agent) else { return };
        (page.asked_now, page.said) = (false, told.said);
        match told.result {
            Ok(()) => {
                if page.failed > 0 {
                    tracing::info!(agent = %told.agent, "An agent answers again.");
                }
                page.failed = 0;
            }
            Err(error) => {
                if page.failed == 0 {
                    let (error, hint) = (chain(&error), error.hint());
                    tracing::warn!(agent = %told.agent, %error, hint, "agent poll failed");
                }
                page.failed = page.failed.saturating_add(1);
            }
        }
        page.due = Instant::now() + pause(backoff, page.failed);
    }
}

/// Returns the time until the next poll: about the interval, longer after each failure.
fn pause(backoff: &Backoff, failed: u32) -> Duration {
    varied(backoff.full_after(failed.saturating_add(1)), VARIATION)
}

// === impl Question ===

impl Question {
    async fn ask(mut self, hub: &Hub, bundling: &tokio::sync::Semaphore) -> Told {
        let result = self.converse(hub, bundling).await;
        Told { agent: self.agent, said: self.said, result }
    }

    async fn open(&self) -> Result<Line, TalkError> {
        Line::open(&self.agent, &self.way, Arc::clone(&self.tls)).await
    }

    async fn converse(&mut self, hub: &Hub, bundling: &tokio::sync::Semaphore) -> Result<(), PullError> {
        let mut line = self.open().await.map_err(PullError::Talk)?;
        self.hear(hub, &mut line, bundling).await
    }

    /// Fetches the agent's own report and those of its neighbors. A rejected own report does not prevent the others
    /// from being fetched.
    async fn hear(
        &mut self,
        hub: &Hub,
        line: &mut Line,
        bundling: &tokio::sync::Semaphore,
    ) -> Result<(), PullError> {
        let names = self.agent.names(line.certificate());
        let own = match line.report("/report").await.map_err(PullError::Talk)? {
            Some(report) => self.itself(hub, &names, &report, bundling).await,
            // The agent has no report yet.
            None => Ok(()),
        };
        if self.neighbours == Neighbours::LeftAlone {
            return own;
        }
        own.and(self.neighbours(hub, line).await)
    }

    async fn itself(
        &mut self,
        hub: &Hub,
        names: &[NodeName],
        report: &[u8],
        bundling: &tokio::sync::Semaphore,
    ) -> Result<(), PullError> {
        let node = self.take(hub, Speaker::Itself(names), report).await?;
        if let Some(node) = node.filter(|_| self.bundles == Bundles::FetchedFromFailed)
            && hub.wants_bundle(&node).await
        {
            let got = match bundling.try_acquire() {
                Ok(_turn) => self.bundle(hub, node).await.map(|()| true),
                Err(_) => Ok(false),
            };
            if !matches!(got, Ok(true) | Err(PullError::Unfit(_))) {
                // The next poll then treats the same report as new and requests the bundle again.
                self.said.remove(OWN);
            }
            got?;
        }
        Ok(())
    }

    /// Fetches the reports that other nodes stored on the agent, until the timeout.
    async fn neighbours(&mut self, hub: &Hub, line: &mut Line) -> Result<(), PullError> {
        let told = tokio::time::timeout(NEIGHBOURS_PATIENCE, self.each_neighbour(hub, line)).await;
        told.unwrap_or(Err(PullError::Long))
    }

    async fn each_neighbour(&mut self, hub: &Hub, line: &mut Line) -> Result<(), PullError> {
        let mut all = Ok(());
        for name in line.neighbours().await.map_err(PullError::Talk)? {
            let report = line.report(&format!("/neighbours/{name}/report")).await.map_err(PullError::Talk)?;
            if let Some(report) = report {
                // A rejected report does not prevent the remaining ones from being fetched.
                all = all.and(self.take(hub, Speaker::Neighbour(&name), &report).await.map(drop));
            }
        }
        all
    }

    /// Passes a report on unless it equals the previous one. Returns its node if the report was stored.
    async fn take(
        &mut self,
        hub: &Hub,
        speaker: Speaker<'_>,
        report: &[u8],
    ) -> Result<Option<NodeName>, PullError> {
        let key = match speaker {
            Speaker::Itself(_) => OWN.to_owned(),
            Speaker::Neighbour(name) => name.to_string(),
        };
        let hash: [u8; 32] = Sha256::digest(report).into();
        if self.said.len() > MAX_NEIGHBOURS {
            // Bounds the memory for an agent that keeps naming new neighbors.
            self.said.clear();
        }
        if let Some(saying) = self.said.get(&key).filter(|saying| saying.hash == hash) {
            // An agent that only repeats a rejected report is polled less often. A rejected neighbor report is not
            // the agent's fault.
            let in_vain = !saying.taken && matches!(speaker, Speaker::Itself(_));
            return if in_vain { Err(PullError::RefusedBefore) } else { Ok(None) };
        }
        match hub.pulled(speaker, report).await {
            Ok(node) => {
                self.said.insert(key, Saying { hash, taken: true });
                Ok(Some(node))
            }
            Err(problem) => {
                if !problem.retry {
                    // The same report would be rejected again, but the next one may be valid.
                    self.said.insert(key, Saying { hash, taken: false });
                }
                Err(PullError::Refused(problem.detail))
            }
        }
    }

    /// Downloads the bundle over a separate connection, while the agent collects it.
    async fn bundle(&self, hub: &Hub, node: NodeName) -> Result<(), PullError> {
        let line = self.open().await.map_err(PullError::Talk)?;
        let stream = line.bundle().await.map_err(PullError::Talk)?;
        let agent = Caller::Node(node.clone());
        let taken = talk::in_time(hub.take_bundle(&agent, &agent, node, None, stream)).await;
        match taken {
            Some(Ok(_)) => Ok(()),
            Some(Err(Problem { detail, retry: false, .. })) => Err(PullError::Unfit(detail)),
            Some(Err(Problem { detail, .. })) => Err(PullError::Bundle(detail)),
            None => Err(PullError::Bundle("it did not complete in time".to_owned())),
        }
    }
}

// === impl PullError ===

impl PullError {
    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Talk(TalkError::Way(error)) => error.hint(),
            _ => None,
        }
    }
}

/// The node that vouches for a fetched report.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Speaker<'a> {
    /// The agent's own report; the agent is known by one of these names.
    Itself(&'a [NodeName]),
    /// A report that this node stored on the agent.
    Neighbour(&'a NodeName),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(text: &str) -> PulledAgent {
        PulledAgent::parse(text).unwrap()
    }

    #[test]
    fn pauses_grow_and_end_growing() {
        let backoff = Pull::backoff(Duration::from_secs(10)).unwrap();
        for (failed, least, most) in
            [(0, 8, 12), (1, 16, 24), (3, 64, 96), (9, 240, 360), (u32::MAX, 240, 360)]
        {
            let pause = pause(&backoff, failed);
            assert!(pause >= Duration::from_secs(least) && pause <= Duration::from_secs(most), "{pause:?}");
        }
        assert!(
            pause(&Pull::backoff(Duration::from_secs(3600)).unwrap(), 5) >= Duration::from_secs(2880),
            "never more often than told"
        );
    }

    #[tokio::test]
    async fn who_is_asked_already_is_not_asked_twice_and_who_is_gone_is_forgotten() {
        let mut book = Book::default();
        book.write(Some(vec![agent("a"), agent("b"), agent("a")]));
        assert_eq!(book.due(1).len(), 1);
        assert_eq!(book.due(8).len(), 1);
        assert!(book.due(8).is_empty());
        book.write(Some(vec![agent("b"), agent("c")]));
        assert_eq!(book.due(8), [(agent("c"), HashMap::new())], "`b` is being asked");
        book.write(None);
        assert_eq!(book.pages.len(), 2, "a list that cannot be read changes nothing");
    }

    #[tokio::test]
    async fn those_who_failed_leave_places_for_the_others() {
        let mut book = Book::default();
        let named = |letter: &str| (0..100).map(|n| agent(&format!("{letter}{n}"))).collect::<Vec<_>>();
        book.write(Some([named("dead"), named("good")].concat()));
        for (agent, page) in &mut book.pages {
            if agent.host.starts_with("dead") {
                // These are overdue for longer than the others.
                (page.failed, page.due) = (3, page.due - Duration::from_secs(1));
            }
        }
        let dead = |asked: &[(PulledAgent, Said)]| {
            asked.iter().filter(|(agent, _)| agent.host.starts_with("dead")).count()
        };
        let asked = book.due(AT_ONCE);
        assert_eq!((asked.len(), dead(&asked)), (AT_ONCE, FAILED_AT_ONCE));
        // The successful agents released their slots; the failing ones still occupy theirs.
        let asked = book.due(AT_ONCE - FAILED_AT_ONCE);
        assert_eq!((asked.len(), dead(&asked)), (AT_ONCE - FAILED_AT_ONCE, 0));
    }

    #[tokio::test]
    async fn beyond_the_bound_those_named_last_are_left_out() {
        let mut book = Book::default();
        let many: Vec<PulledAgent> = (0..=MAX_AGENTS).map(|n| agent(&format!("n{n}"))).collect();
        book.write(Some(many.clone()));
        assert!(book.overfull && book.pages.len() == MAX_AGENTS);
        assert!(!book.pages.contains_key(&many[MAX_AGENTS]));
        book.write(Some(many[..10].to_vec()));
        assert!(!book.overfull && book.pages.len() == 10);
    }
}
