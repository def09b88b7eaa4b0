//! One look: at the management cluster, and at what the hub heard.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use landfall_cluster::{Cluster, Error};
use landfall_model::chain;

use super::condition::Words;
use super::heard::{Details, Heard, Hub, NotAHub, read_fleet, read_node};
use super::machine::{Machine, paused_cluster};
use super::pair::pair;
use super::plan::{Evidence, Hearing, Policy, Seen, World, wants_evidence};
use super::report;
use super::shape::{DEFINITION, Shape, Unknown};

/// Nodes of one answer of the hub; as many as it gives.
const PAGE: u64 = 1000;
/// As many nodes as Machines are listed.
const MAX_PAGES: u64 = 20;
/// Nodes that are asked about one by one, of one look.
const MAX_DETAILS: usize = 50;
/// How long it is believed what a node is called by its cloud.
const BELIEVED: Duration = Duration::from_secs(600);
/// A definition changes with an upgrade of Cluster API.
const SHAPE_BELIEVED: Duration = Duration::from_secs(600);

/// What makes asking cheaper. A controller without it decides the same.
#[derive(Debug, Default)]
pub struct Memory {
    shape: Option<(Shape, Instant)>,
    provider_ids: BTreeMap<String, (Option<String>, Instant)>,
    /// Where asking one by one goes on.
    cursor: usize,
    pub written: BTreeMap<String, Timestamp>,
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Look {
    pub shape: Shape,
    pub world: World,
    pub ambiguous: Vec<String>,
}

/// Why there was nothing to see.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error(transparent)]
    Cluster(#[from] Error),
    #[error("this cluster has no Machines: is it a management cluster of Cluster API?")]
    NoMachines,
    #[error(transparent)]
    Shape(#[from] Unknown),
}

/// Why the hub was not heard.
#[derive(Debug, thiserror::Error)]
enum HubError {
    #[error("ask the hub for {path}")]
    Asking { path: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error(transparent)]
    Answer(#[from] NotAHub),
}

/// Where everything is asked.
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

/// What nodes wrote into the cluster itself. Where the kind is not installed nobody wrote.
pub async fn reports(cluster: &Cluster) -> Result<Vec<report::Found>, LookError> {
    match cluster.objects_as(&report::KIND, |object| report::read(&object)).await {
        Err(error) if error.is_gone() => Ok(Vec::new()),
        found => Ok(found?),
    }
}

/// Looks. The flag says whether the hub was heard; without it, what time decides can still be decided.
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
    // Nobody is heard from the future.
    let mut heard: Vec<Heard> =
        own.map(|heard| Heard { last_seen: heard.last_seen.min(now), ..heard }).collect();
    let mut hearing = Hearing::Whole;
    if let Some(hub) = sources.hub {
        match fleet(hub).await {
            Ok(said) => heard.extend(said),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "The hub was not heard: conditions stay as they are.");
                hearing = Hearing::Deaf;
            }
        }
    }
    let mut pairs = pair(&machines, heard.clone());
    if let Some(hub) = sources.hub
        && memory.learn(hub, &machines, &pairs.strangers, &mut heard).await
    {
        pairs = pair(&machines, heard);
    }
    memory.written.retain(|uid, _| machines.iter().any(|machine| machine.id.uid == *uid));
    let seen = machines.into_iter().enumerate().map(|(place, machine)| {
        let heard = pairs.heard.remove(&place);
        let is_stored = heard.as_ref().is_some_and(|heard| heard.has_bundle);
        let evidence = if is_stored { Evidence::Stored } else { Evidence::OnMachine };
        Seen { machine, heard, evidence }
    });
    let mut seen: Vec<Seen> = seen.collect();
    if let Some(hub) = sources.hub {
        memory.cursor = evidence(hub, policy, words, now, &mut seen, memory.cursor).await;
    }
    let written = memory.written.clone();
    let world = World { now, machines: seen, paused, hearing, written, orphans };
    Ok(Look { shape, world, ambiguous: pairs.ambiguous })
}

async fn fleet(hub: &dyn Hub) -> Result<Vec<Heard>, HubError> {
    let mut all = Vec::new();
    for page in 0..MAX_PAGES {
        let offset = page * PAGE;
        let page = read_fleet(&ask(hub, format!("/api/v1/fleet?limit={PAGE}&offset={offset}")).await?)?;
        all.extend(page.heard);
        if page.count == 0 || offset + page.count >= page.found {
            break;
        }
    }
    // Nodes that change their state between two pages may be on both: the newer word counts, as everywhere.
    Ok(all)
}

async fn details(hub: &dyn Hub, name: &str) -> Result<Details, HubError> {
    Ok(read_node(&ask(hub, format!("/api/v1/nodes/{name}")).await?)?)
}

async fn ask(hub: &dyn Hub, path: String) -> Result<Vec<u8>, HubError> {
    hub.get(path.clone()).await.map_err(|source| HubError::Asking { path, source })
}

/// Asks for the bundles of Machines in trouble, some at a look. Gives where to go on.
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
    for place in places.iter().take(MAX_DETAILS) {
        let Some(Seen { machine, heard: Some(heard), evidence }) = seen.get_mut(*place) else { continue };
        match details(hub, &heard.name).await {
            // A bundle from before is of another machine of this name.
            Ok(details) if details.bundle.is_some_and(|received| received >= machine.created) => {
                *evidence = Evidence::Stored;
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(error = %chain(&error), node = heard.name, "The hub did not tell of a node.");
            }
        }
    }
    start + MAX_DETAILS.min(places.len())
}

// === impl Memory ===

impl Memory {
    /// Finds out what the cloud calls nodes that no Machine knows by name, some at a look.
    async fn learn(
        &mut self,
        hub: &dyn Hub,
        machines: &[Machine],
        strangers: &[String],
        heard: &mut [Heard],
    ) -> bool {
        let is_of_use = |machine: &Machine| machine.provider_id.is_some() && machine.node.is_none();
        let strangers: BTreeSet<&String> = strangers.iter().collect();
        self.provider_ids.retain(|name, (_, since)| strangers.contains(name) && since.elapsed() < BELIEVED);
        if !machines.iter().any(is_of_use) {
            return false;
        }
        let new = strangers.iter().filter(|name| !self.provider_ids.contains_key(**name));
        for name in new.take(MAX_DETAILS).map(|name| (*name).clone()).collect::<Vec<_>>() {
            if let Ok(details) = details(hub, &name).await {
                self.provider_ids.insert(name, (details.provider_id, Instant::now()));
            }
        }
        let mut learned = false;
        for heard in heard.iter_mut().filter(|heard| heard.is_in_hub) {
            if let Some((Some(id), _)) = self.provider_ids.get(&heard.name) {
                heard.provider_id = Some(id.clone());
                learned = true;
            }
        }
        learned
    }
}
