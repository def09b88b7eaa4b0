//! One observation of the management cluster and of the hub's reports.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use landfall_cluster::{Cluster, Error};
use landfall_model::chain;

use super::condition::Words;
use super::heard::{Heard, Hub, NotAHub, read_node, read_nodes};
use super::machine::{Machine, paused_cluster};
use super::pair::pair;
use super::plan::{Evidence, Hearing, Policy, Seen, World, wants_evidence};
use super::report;
use super::shape::{DEFINITION, Shape, Unknown};

/// Nodes per response of the hub, its maximum.
const PAGE: u64 = 1000;
/// Limit of 100,000 nodes. Machines of further nodes count as unknown, and their conditions stay.
const MAX_PAGES: usize = 100;
/// Nodes queried one by one per pass.
const MAX_ASKED: usize = 50;
/// Cache lifetime of the Machine definition, which changes with an upgrade of Cluster API.
const SHAPE_BELIEVED: Duration = Duration::from_secs(600);

/// Caches that reduce queries and writes. Decisions are the same without them.
#[derive(Debug, Default)]
pub struct Memory {
    shape: Option<(Shape, Instant)>,
    /// The position at which the one-by-one queries continue.
    cursor: usize,
    /// By UID, as in [`World`].
    pub written: BTreeMap<String, Timestamp>,
    pub failed: BTreeMap<String, Timestamp>,
    pub unheld: BTreeSet<String>,
}

/// Result of one observation.
#[derive(Clone, Debug)]
pub struct Look {
    pub shape: Shape,
    pub world: World,
    pub ambiguous: Vec<String>,
}

/// Reason why the management cluster could not be observed.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error(transparent)]
    Cluster(#[from] Error),
    #[error("this cluster has no Machines: is it a management cluster of Cluster API?")]
    NoMachines,
    #[error(transparent)]
    Shape(#[from] Unknown),
}

/// Reason why the hub could not be queried.
#[derive(Debug, thiserror::Error)]
enum HubError {
    #[error("ask the hub for {path}")]
    Asking { path: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error(transparent)]
    Answer(#[from] NotAHub),
}

/// The sources of an observation.
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub struct Sources<'a> {
    pub cluster: &'a Cluster,
    pub hub: Option<&'a dyn Hub>,
}

pub async fn shape(cluster: &Cluster) -> Result<Shape, LookError> {
    let definition = cluster.definition(DEFINITION).await?.ok_or(LookError::NoMachines)?;
    Ok(Shape::read(&definition)?)
}

pub async fn machines(cluster: &Cluster, shape: Shape) -> Result<Vec<Machine>, LookError> {
    Ok(cluster.objects_as(&shape.machine(), |object| Machine::read(&object)).await?)
}

/// Returns the reports that nodes wrote into the cluster itself; empty if the kind is not installed.
pub async fn reports(cluster: &Cluster) -> Result<Vec<report::Found>, LookError> {
    match cluster.objects_as(&report::KIND, |object| report::read(&object)).await {
        Err(error) if error.is_gone() => Ok(Vec::new()),
        found => Ok(found?),
    }
}

/// Observes the cluster and the hub. Without the hub, time-based decisions are still possible.
pub async fn observe(
    sources: &Sources<'_>,
    policy: &Policy,
    words: &Words,
    memory: &mut Memory,
) -> Result<Look, LookError> {
    let cluster = sources.cluster;
    let shape = match memory.shape {
        Some((shape, since)) if since.elapsed() < SHAPE_BELIEVED => shape,
        _ => {
            let shape = shape(cluster).await?;
            memory.shape = Some((shape, Instant::now()));
            shape
        }
    };
    let machines = machines(cluster, shape).await.inspect_err(|_| memory.shape = None)?;
    let paused: BTreeSet<(String, String)> =
        cluster.objects_as(&shape.cluster(), |object| paused_cluster(&object)).await?.into_iter().collect();
    let found = reports(cluster).await?;
    let orphans = report::orphans(&found, &machines);
    let now = Timestamp::now();
    let own = found.into_iter().filter_map(|found| found.heard);
    // A report's time must not be in the future.
    let mut heard: Vec<Heard> =
        own.map(|heard| Heard { last_seen: heard.last_seen.min(now), ..heard }).collect();
    let mut hearing = Hearing::Whole;
    if let Some(hub) = sources.hub {
        match nodes(hub, PAGE, MAX_PAGES).await {
            Ok((said, whole)) => {
                heard.extend(said);
                hearing = whole;
            }
            Err(error) => {
                tracing::warn!(
                    error = %chain(&error),
                    "hub query failed; conditions are kept, except for ready Nodes"
                );
                hearing = Hearing::Deaf;
            }
        }
    }
    // Pair by provider ID only if all reports are known: a missing one might have a stronger claim to the
    // Machine.
    if hearing != Hearing::Whole {
        for heard in &mut heard {
            heard.provider_id = None;
        }
    }
    let mut pairs = pair(&machines, heard);
    memory.forget_all_but(&machines);
    let seen = machines.into_iter().enumerate().map(|(place, machine)| Seen {
        machine,
        heard: pairs.heard.remove(&place),
        evidence: Evidence::OnMachine,
    });
    let mut seen: Vec<Seen> = seen.collect();
    if let Some(hub) = sources.hub {
        memory.cursor = evidence(hub, policy, words, now, &mut seen, memory.cursor).await;
    }
    let (written, failed, unheld) = (memory.written.clone(), memory.failed.clone(), memory.unheld.clone());
    let world = World { now, machines: seen, paused, hearing, written, failed, unheld, orphans };
    Ok(Look { shape, world, ambiguous: pairs.ambiguous })
}

/// Returns all nodes of the hub, by name. A node's verdict may change between two pages, its name does not.
async fn nodes(hub: &dyn Hub, limit: u64, max_pages: usize) -> Result<(Vec<Heard>, Hearing), HubError> {
    let (mut all, mut unread, mut after) = (Vec::new(), 0, String::new());
    for _ in 0..max_pages {
        let page = read_nodes(&ask(hub, format!("/api/v1/nodes?limit={limit}&after={after}")).await?)?;
        all.extend(page.heard);
        unread += page.unread;
        match page.next {
            None if unread == 0 => return Ok((all, Hearing::Whole)),
            Some(next) if is_name(&next) && next > after => after = next,
            // The last page, or a hub whose pages do not advance and would be queried without limit.
            _ => break,
        }
    }
    tracing::warn!(heard = all.len(), unread, "hub data incomplete; conditions of other nodes are kept");
    Ok((all, Hearing::Partial))
}

/// Whether the name needs no escaping in a URL.
fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
}

async fn latest_bundle(hub: &dyn Hub, name: &str) -> Result<Option<Timestamp>, HubError> {
    Ok(read_node(&ask(hub, format!("/api/v1/nodes/{name}")).await?)?)
}

async fn ask(hub: &dyn Hub, path: String) -> Result<Vec<u8>, HubError> {
    hub.get(path.clone()).await.map_err(|source| HubError::Asking { path, source })
}

/// Queries the bundles of failed Machines, a limited number per pass. Returns the position for the next pass.
async fn evidence(
    hub: &dyn Hub,
    policy: &Policy,
    words: &Words,
    now: Timestamp,
    seen: &mut [Seen],
    cursor: usize,
) -> usize {
    let wants = |seen: &Seen| {
        let heard = seen.heard.as_ref();
        seen.evidence == Evidence::OnMachine
            && heard.is_some_and(|heard| wants_evidence(policy, words, now, &seen.machine, heard))
    };
    let mut places: Vec<usize> = (0..seen.len()).filter(|place| wants(&seen[*place])).collect();
    if places.is_empty() {
        return 0;
    }
    let start = cursor % places.len();
    places.rotate_left(start);
    for place in places.iter().take(MAX_ASKED) {
        let Some(Seen { machine, heard: Some(heard), evidence }) = seen.get_mut(*place) else { continue };
        match latest_bundle(hub, &heard.name).await {
            // An older bundle belongs to another machine of this name.
            Ok(Some(received)) if received >= machine.created => *evidence = Evidence::Stored,
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(error = %chain(&error), node = heard.name, "The hub did not tell of a node.");
            }
        }
    }
    start + MAX_ASKED.min(places.len())
}

// === impl Memory ===

impl Memory {
    fn forget_all_but(&mut self, machines: &[Machine]) {
        let uids: HashSet<&str> = machines.iter().map(|machine| machine.id.uid.as_str()).collect();
        self.written.retain(|uid, _| uids.contains(uid.as_str()));
        self.failed.retain(|uid, _| uids.contains(uid.as_str()));
        self.unheld.retain(|uid| uids.contains(uid.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::{Value, json};

    use super::super::heard::Answer;
    use super::*;

    /// A hub whose nodes, by name, change their state after each page.
    #[derive(Debug)]
    struct Moving {
        nodes: Mutex<BTreeMap<String, &'static str>>,
        asked: Mutex<Vec<String>>,
    }

    impl Moving {
        fn new(count: usize) -> Self {
            let nodes = (0..count).map(|number| (format!("n{number:03}"), "failed"));
            Self { nodes: Mutex::new(nodes.collect()), asked: Mutex::default() }
        }

        fn answer(&self, path: &str) -> Value {
            self.asked.lock().unwrap().push(path.to_owned());
            let (_, query) = path.split_once('?').unwrap();
            let value = |key: &str| query.split('&').find_map(|pair| pair.strip_prefix(key)).unwrap();
            let (limit, after): (usize, &str) = (value("limit=").parse().unwrap(), value("after="));
            let mut nodes = self.nodes.lock().unwrap();
            let rest: Vec<(String, &str)> = nodes
                .iter()
                .filter(|(name, _)| name.as_str() > after)
                .map(|(name, state)| (name.clone(), *state))
                .collect();
            // All nodes change their state before the next page: pages sorted by state would miss some.
            for state in nodes.values_mut() {
                *state = if *state == "failed" { "running" } else { "failed" };
            }
            let page = &rest[..limit.min(rest.len())];
            let next = (page.len() < rest.len()).then(|| page.last().map(|(name, _)| name)).flatten();
            let line = |(name, state): &(String, &str)| json!({"name": name, "state": state, "lastSeen": "2026-01-02T03:04:05Z"});
            json!({"nodes": page.iter().map(line).collect::<Vec<_>>(), "next": next})
        }
    }

    impl Hub for Moving {
        fn get(&self, path: String) -> Answer<'_> {
            Box::pin(async move { Ok(self.answer(&path).to_string().into_bytes()) })
        }
    }

    #[tokio::test]
    async fn whoever_changes_between_two_pages_is_heard_all_the_same() {
        let hub = Moving::new(10);
        let (heard, hearing) = nodes(&hub, 3, 9).await.unwrap();
        let names: Vec<String> = heard.into_iter().map(|heard| heard.name).collect();
        let all: Vec<String> = (0..10).map(|number| format!("n{number:03}")).collect();
        assert_eq!((names, hearing), (all, Hearing::Whole));
        assert_eq!(hub.asked.lock().unwrap().len(), 4);
    }

    #[tokio::test]
    async fn more_nodes_than_are_asked_for_are_not_taken_for_all() {
        let (heard, hearing) = nodes(&Moving::new(10), 3, 2).await.unwrap();
        assert_eq!((heard.len(), hearing), (6, Hearing::Partial));
        let (heard, hearing) = nodes(&Moving::new(6), 3, 2).await.unwrap();
        assert_eq!((heard.len(), hearing), (6, Hearing::Whole), "exactly as many is all");
    }

    /// A hub that repeats the same page, or returns names that are invalid in a URL.
    #[tokio::test]
    async fn a_hub_that_does_not_get_on_is_not_asked_for_ever() {
        #[derive(Debug)]
        struct Odd(&'static str, Mutex<usize>);
        impl Hub for Odd {
            fn get(&self, _path: String) -> Answer<'_> {
                *self.1.lock().unwrap() += 1;
                let page = json!({"nodes": [{"name": "n1", "state": "odd"}], "next": self.0}).to_string();
                Box::pin(async move { Ok(page.into_bytes()) })
            }
        }
        for (next, asked) in [("", 1), ("a&limit=1", 1), ("a", 2)] {
            let hub = Odd(next, Mutex::new(0));
            assert_eq!(nodes(&hub, 3, 9).await.unwrap(), (Vec::new(), Hearing::Partial));
            assert_eq!(*hub.1.lock().unwrap(), asked, "{next}");
        }
    }
}
