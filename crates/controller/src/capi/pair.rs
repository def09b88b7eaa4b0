//! Pairing of reports with Machines.
//!
//! A wrong pair could delete a healthy Machine, so a report with two candidates is not paired.

use std::collections::BTreeMap;

use landfall_model::report::Trust;

use super::heard::Heard;
use super::machine::Machine;

/// The property by which a report belongs to a Machine, strongest first. The provider ID is last: the node
/// itself reports it, while the hub lets no other node use its name.
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

/// Whether a matched name has its Cluster's name as a prefix, for a hub with several clusters. Such a match
/// is stronger, because another cluster may use the bare name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Spelling {
    WithCluster,
    Bare,
}

/// The best reports about one Machine.
#[derive(Clone, Debug, Default)]
struct Told {
    by_hub: Option<((Tie, Spelling), Heard)>,
    /// From the Machine's own object.
    by_object: Option<Heard>,
}

/// Result of the pairing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs {
    /// Reports by the Machine's position in the list.
    pub heard: BTreeMap<usize, Heard>,
    /// Names of reports that match several Machines.
    pub ambiguous: Vec<String>,
}

// === impl Tie ===

impl Tie {
    const ALL: [Self; 6] =
        [Self::Bound, Self::Node, Self::Address, Self::Infrastructure, Self::Name, Self::Provider];

    /// Returns the keys under which a Machine is found.
    fn of_machine(self, machine: &Machine) -> Vec<(Spelling, String)> {
        let bare = |text: String| vec![(Spelling::Bare, text)];
        match self {
            Self::Bound => bare(format!("{}/{}", machine.id.namespace, machine.id.name)),
            Self::Node => spelt(machine, &machine.node),
            Self::Address => spelt(machine, &machine.addresses),
            Self::Infrastructure => spelt(machine, &machine.infrastructure),
            Self::Name => spelt(machine, [&machine.id.name]),
            // A Machine with a known Node accepts reports of that Node only.
            Self::Provider if machine.node.is_some() => Vec::new(),
            Self::Provider => machine.provider_id.iter().cloned().flat_map(bare).collect(),
        }
    }

    fn of_report(self, heard: &Heard) -> Option<String> {
        match self {
            Self::Bound => heard.bound.as_ref().map(|(namespace, name)| format!("{namespace}/{name}")),
            // A report that is bound to one Machine matches no other.
            _ if heard.bound.is_some() => None,
            Self::Provider => heard.provider_id.clone(),
            _ => Some(heard.name.to_ascii_lowercase()),
        }
    }
}

/// Returns a Machine's names as reports may spell them.
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
            // The stronger match wins, then the newer report.
            (*before, report.last_seen) > ((tie, spelling), known.last_seen)
        });
        if is_better {
            self.by_hub = Some(((tie, spelling), report));
        }
    }

    /// Selects the newer report. If both have the same verdict, the hub's is used: it is updated more often
    /// and has a page.
    fn word(self) -> Option<Heard> {
        let (hub, object) = match (self.by_hub, self.by_object) {
            // A Machine's own object is as strong as any name, and stronger than a self-reported provider ID.
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
                // Two identical names of one Machine count once.
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
            // A report from before the Machine's creation is about an older machine of the same name.
            let of_this_life = |(place, _): &&(usize, Spelling)| {
                machines.get(*place).is_some_and(|machine| machine.created <= report.last_seen)
            };
            let living: Vec<(usize, Spelling)> = all.iter().filter(of_this_life).copied().collect();
            (!living.is_empty()).then_some((tie, living))
        });
        let Some((tie, places)) = found else { continue };
        match places.as_slice() {
            [(place, spelling)] => {
                // Any node can report the provider ID of another machine, so such a verdict is a claim about
                // this one.
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
