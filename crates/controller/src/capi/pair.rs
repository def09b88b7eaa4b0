//! Which Machine a report is about. A wrong answer could end a healthy Machine, so two candidates are none.

use std::collections::BTreeMap;

use landfall_model::report::Trust;

use super::heard::Heard;
use super::machine::Machine;

/// By what a report belongs to a Machine, the surest first. What the cloud calls a machine comes last: a report says it of
/// itself, while its name is one that the hub lets nobody else use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tie {
    /// By an object that only this Machine's node may write.
    Bound,
    Node,
    Address,
    Infrastructure,
    Name,
    Provider,
}

/// Whether the name by which a Machine is found has its Cluster's before it, as where one hub hears of several clusters. Such
/// a one is surer: the bare name may be another cluster's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Spelling {
    WithCluster,
    Bare,
}

/// What was told of one Machine.
#[derive(Clone, Debug, Default)]
struct Told {
    by_hub: Option<((Tie, Spelling), Heard)>,
    /// In an object of the Machine's own.
    by_object: Option<Heard>,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs {
    /// By the Machine's place in the list.
    pub heard: BTreeMap<usize, Heard>,
    /// Names of reports that several Machines answer to.
    pub ambiguous: Vec<String>,
}

// === impl Tie ===

impl Tie {
    const ALL: [Self; 6] =
        [Self::Bound, Self::Node, Self::Address, Self::Infrastructure, Self::Name, Self::Provider];

    /// What Machines are found by.
    fn of_machine(self, machine: &Machine) -> Vec<(Spelling, String)> {
        let bare = |text: String| vec![(Spelling::Bare, text)];
        match self {
            Self::Bound => bare(format!("{}/{}", machine.id.namespace, machine.id.name)),
            Self::Node => spelt(machine, &machine.node),
            Self::Address => spelt(machine, &machine.addresses),
            Self::Infrastructure => spelt(machine, &machine.infrastructure),
            Self::Name => spelt(machine, [&machine.id.name]),
            // A Machine whose Node is known is spoken for by that Node only.
            Self::Provider if machine.node.is_some() => Vec::new(),
            Self::Provider => machine.provider_id.iter().cloned().flat_map(bare).collect(),
        }
    }

    fn of_report(self, heard: &Heard) -> Option<String> {
        match self {
            Self::Bound => heard.bound.as_ref().map(|(namespace, name)| format!("{namespace}/{name}")),
            // Who speaks for one Machine only speaks for no other.
            _ if heard.bound.is_some() => None,
            Self::Provider => heard.provider_id.clone(),
            _ => Some(heard.name.to_ascii_lowercase()),
        }
    }
}

/// Names of a Machine as reports may spell them.
fn spelt<'a>(machine: &Machine, names: impl IntoIterator<Item = &'a String>) -> Vec<(Spelling, String)> {
    let both = |name: &String| {
        let name = name.to_ascii_lowercase();
        let cluster = machine.cluster.to_ascii_lowercase();
        let whole = (!cluster.is_empty()).then(|| (Spelling::WithCluster, format!("{cluster}.{name}")));
        whole.into_iter().chain([(Spelling::Bare, name)])
    };
    names.into_iter().flat_map(both).collect()
}

// === impl Told ===

impl Told {
    fn add(&mut self, tie: Tie, spelling: Spelling, report: Heard) {
        if tie == Tie::Bound {
            if self.by_object.as_ref().is_none_or(|known| report.last_seen > known.last_seen) {
                self.by_object = Some(report);
            }
            return;
        }
        let is_better = self.by_hub.as_ref().is_none_or(|(before, known)| {
            // The surer first, then the newer.
            (*before, report.last_seen) > ((tie, spelling), known.last_seen)
        });
        if is_better {
            self.by_hub = Some(((tie, spelling), report));
        }
    }

    /// Both may know. The newer word counts; but the hub is told the same more often, and has more to show.
    fn word(self) -> Option<Heard> {
        let (hub, object) = match (self.by_hub, self.by_object) {
            // A Machine's own object is as sure as any name, and surer than what a report says of itself.
            (Some(((Tie::Provider, _), _)), Some(object)) => return Some(object),
            (Some((_, hub)), Some(object)) => (hub, object),
            (hub, object) => return hub.map(|(_, hub)| hub).or(object),
        };
        if (hub.state, &hub.cause) == (object.state, &object.cause) {
            return Some(Heard { last_seen: hub.last_seen.max(object.last_seen), ..hub });
        }
        Some(if object.last_seen > hub.last_seen { object } else { hub })
    }
}

/// Pairs reports with Machines.
pub fn pair(machines: &[Machine], heard: Vec<Heard>) -> Pairs {
    let mut candidates: BTreeMap<(Tie, String), Vec<(usize, Spelling)>> = BTreeMap::new();
    for (place, machine) in machines.iter().enumerate() {
        for tie in Tie::ALL {
            for (spelling, key) in tie.of_machine(machine) {
                let all = candidates.entry((tie, key)).or_default();
                // One that two of its names spell the same is still one.
                if all.last().is_none_or(|(last, _)| *last != place) {
                    all.push((place, spelling));
                }
            }
        }
    }
    let mut pairs = Pairs::default();
    let mut told: BTreeMap<usize, Told> = BTreeMap::new();
    for report in heard {
        let found = Tie::ALL.into_iter().find_map(|tie| {
            let all = candidates.get(&(tie, tie.of_report(&report)?))?;
            // What was last heard before a Machine was made is of another one, of the same name.
            let of_this_life = |(place, _): &&(usize, Spelling)| {
                machines.get(*place).is_some_and(|machine| machine.created <= report.last_seen)
            };
            let living: Vec<(usize, Spelling)> = all.iter().filter(of_this_life).copied().collect();
            (!living.is_empty()).then_some((tie, living))
        });
        let Some((tie, places)) = found else { continue };
        match places.as_slice() {
            [(place, spelling)] => {
                // Any node can name the provider id of another machine, so such a verdict is a claim about this one.
                let trust = if tie == Tie::Provider { Trust::Claimed } else { report.trust };
                told.entry(*place).or_default().add(tie, *spelling, Heard { trust, ..report });
            }
            _ => pairs.ambiguous.push(report.name),
        }
    }
    pairs.heard = told.into_iter().filter_map(|(place, told)| Some((place, told.word()?))).collect();
    pairs
}

#[cfg(test)]
mod tests;
