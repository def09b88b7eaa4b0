//! Which Machine a report is about. A wrong answer could end a healthy Machine, so two candidates are none.

use std::cmp::Ordering;
use std::collections::BTreeMap;

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

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pairs {
    /// By the Machine's place in the list.
    pub heard: BTreeMap<usize, Heard>,
    /// Names of reports that no Machine answers to.
    pub strangers: Vec<String>,
    /// Names of reports that several Machines answer to.
    pub ambiguous: Vec<String>,
}

// === impl Tie ===

impl Tie {
    const ALL: [Self; 6] =
        [Self::Bound, Self::Node, Self::Address, Self::Infrastructure, Self::Name, Self::Provider];

    /// What Machines are found by.
    fn of_machine(self, machine: &Machine) -> Vec<String> {
        let one = |text: &Option<String>| text.iter().map(|text| text.to_ascii_lowercase()).collect();
        match self {
            Self::Bound => vec![format!("{}/{}", machine.id.namespace, machine.id.name)],
            Self::Node => one(&machine.node),
            Self::Address => machine.addresses.iter().map(|name| name.to_ascii_lowercase()).collect(),
            Self::Infrastructure => one(&machine.infrastructure),
            Self::Name => vec![machine.id.name.to_ascii_lowercase()],
            // A Machine whose Node is known is spoken for by that Node only.
            Self::Provider if machine.node.is_some() => Vec::new(),
            Self::Provider => machine.provider_id.iter().cloned().collect(),
        }
    }

    /// Which one is surer. A Machine's own object is as sure as any name.
    fn cmp_sure(self, other: Self) -> Ordering {
        let is_name = |tie: Self| tie != Self::Provider;
        match (self, other) {
            (Self::Bound, tie) | (tie, Self::Bound) if is_name(tie) => Ordering::Equal,
            _ => self.cmp(&other),
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

/// Pairs reports with Machines.
pub fn pair(machines: &[Machine], heard: Vec<Heard>) -> Pairs {
    let mut candidates: BTreeMap<(Tie, String), Vec<usize>> = BTreeMap::new();
    for (place, machine) in machines.iter().enumerate() {
        for tie in Tie::ALL {
            for key in tie.of_machine(machine) {
                candidates.entry((tie, key)).or_default().push(place);
            }
        }
    }
    let mut pairs = Pairs::default();
    let mut ties: BTreeMap<usize, Tie> = BTreeMap::new();
    for report in heard {
        let found = Tie::ALL.into_iter().find_map(|tie| {
            let all = candidates.get(&(tie, tie.of_report(&report)?))?;
            // What was last heard before a Machine was made is of another one, of the same name.
            let of_this_life =
                |place: &&usize| machines.get(**place).is_some_and(|m| m.created <= report.last_seen);
            let living: Vec<usize> = all.iter().filter(of_this_life).copied().collect();
            (!living.is_empty()).then_some((tie, living))
        });
        match found.as_ref().map(|(tie, places)| (*tie, places.as_slice())) {
            None => pairs.strangers.push(report.name),
            Some((tie, [place])) => {
                let is_better = match (ties.get(place), pairs.heard.get(place)) {
                    // An object of the Machine's own and the hub may both know: the newer word counts.
                    (Some(before), Some(known)) => match tie.cmp_sure(*before) {
                        Ordering::Less => true,
                        Ordering::Greater => false,
                        Ordering::Equal => report.last_seen > known.last_seen,
                    },
                    _ => true,
                };
                if is_better {
                    ties.insert(*place, tie);
                    pairs.heard.insert(*place, report);
                }
            }
            Some(_) => pairs.ambiguous.push(report.name),
        }
    }
    pairs
}

#[cfg(test)]
mod tests;
