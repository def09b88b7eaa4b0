//! What to do next, decided from one look at the cluster. Pure: the same world, the same answer.
//!
//! An [`Action`] is one write. A node that needs several before its next phase gets them together, and its record goes on
//! only when a later look has seen them all done; so a crash between any two leaves a world from which the same way is
//! found again.

mod drain;
mod queue;
mod turn;

use landfall_cluster::{Condition, PodFacts};

use crate::policy::Policy;
use crate::record::{Notes, Phase, Record};
use crate::world::{Cordon, Node, Runner, SecretState, World};

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Writes the node's `NodeBootstrap`.
    Write {
        node: String,
        record: Box<Record>,
    },
    /// Deletes it.
    Forget {
        node: String,
    },
    /// Cordons as ours, and takes away what an earlier attempt told: all or nothing, of this version of the node.
    Cordon {
        node: String,
        version: String,
    },
    /// Takes away what an earlier attempt told.
    ClearTold {
        node: String,
        version: String,
    },
    Uncordon {
        node: String,
        version: String,
    },
    TakeLabelsOff {
        node: String,
    },
    Evict {
        node: String,
        pod: PodFacts,
    },
    MakeSecret {
        node: String,
    },
    DropSecret {
        node: String,
        name: String,
    },
    /// Puts the pod on the node that does the work there, with this Secret.
    StartRunner {
        node: String,
        secret: String,
    },
    StopRunner {
        node: String,
    },
    /// Adds what is missing; `taints` are all that must be there afterwards, if any are missing.
    Restore {
        node: String,
        version: String,
        missing: Notes,
        taints: Option<Vec<String>>,
        cordon: Recordon,
    },
    Approve {
        node: String,
        request: String,
    },
    /// Shows the state as a condition of the node.
    Show {
        node: String,
        condition: Condition,
    },
}

// === impl Action ===

impl Action {
    /// The node it is about.
    pub fn node(&self) -> &str {
        match self {
            Self::Write { node, .. }
            | Self::Forget { node }
            | Self::Cordon { node, .. }
            | Self::ClearTold { node, .. }
            | Self::Uncordon { node, .. }
            | Self::TakeLabelsOff { node }
            | Self::Evict { node, .. }
            | Self::MakeSecret { node }
            | Self::DropSecret { node, .. }
            | Self::StartRunner { node, .. }
            | Self::StopRunner { node }
            | Self::Restore { node, .. }
            | Self::Approve { node, .. }
            | Self::Show { node, .. } => node,
        }
    }
}

/// Whether somebody else's cordon went with their Node object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recordon {
    No,
    /// In their name: it is theirs to take away.
    Theirs,
}

/// Everything to be done now, in this order.
pub fn plan(policy: &Policy, world: &World) -> Vec<Action> {
    let mut actions = Vec::new();
    for (name, record) in &world.records {
        match record.without_future(world.now) {
            // Written down first: what is counted from a moment that is put right at every look never passes.
            Some(record) => actions.push(Action::Write { node: name.clone(), record: Box::new(record) }),
            None => actions.extend(turn::next(policy, world, name, record)),
        }
    }
    actions.extend(queue::next(policy, world));
    actions.extend(forgotten(world));
    actions.extend(shown(world));
    actions
}

/// Nodes whose record somebody deleted, or called done: what is ours there is taken away, and they get their place back, once
/// nothing goes on there.
fn forgotten(world: &World) -> Vec<Action> {
    let mut actions = Vec::new();
    for (name, node) in &world.nodes {
        let is_over = node.is_ready && node.told.as_ref().is_none_or(|told| turn::is_end(&told.detail));
        // We write these two only when nothing of ours is left.
        let record = world.records.get(name).map(|record| record.phase);
        let is_let_go = matches!(record, None | Some(Phase::Done | Phase::Cancelled));
        if !is_let_go || node.is_requested || !is_over {
            continue;
        }
        match (node.runner, &node.secret, node.cordon) {
            (Runner::There | Runner::Rejected, _, _) => {
                actions.push(Action::StopRunner { node: name.clone() });
            }
            (Runner::None, SecretState::Own { name: secret }, _) => {
                actions.push(Action::DropSecret { node: name.clone(), name: secret.clone() });
            }
            (Runner::None, _, Cordon::Own) => {
                actions.push(Action::Uncordon { node: name.clone(), version: node.version.clone() });
            }
            // One that is going may still say its first word.
            (Runner::Going | Runner::None, _, _) => {}
        }
    }
    actions
}

fn shown(world: &World) -> Vec<Action> {
    let mut actions = Vec::new();
    for (name, record) in &world.records {
        let Some(node) = world.nodes.get(name) else { continue };
        let reason = if record.reason.is_empty() { record.phase.name() } else { &record.reason };
        let condition = Condition {
            status: record.phase.is_active(),
            reason: reason.to_owned(),
            message: record.message.clone(),
        };
        if node.condition.as_ref() != Some(&condition) {
            actions.push(Action::Show { node: name.clone(), condition });
        }
    }
    actions
}

/// Whether a node is away, or so near to it that nobody should count on it.
fn is_unavailable(node: &Node, record: Option<&Record>) -> bool {
    record.is_some_and(|record| record.phase.is_active()) || node.cordon == Cordon::Own || !node.is_ready
}

/// Those whose Node object is gone: for a while in the middle, or for good.
fn unseen(world: &World) -> impl Iterator<Item = &String> {
    let is_away = |record: &Record| record.phase.is_active() || record.phase == Phase::Failed;
    let away = world.records.iter().filter(move |(_, record)| is_away(record));
    away.map(|(name, _)| name).filter(|name| !world.nodes.contains_key(*name))
}

/// Those that failed and that nobody has looked after since.
fn failed(world: &World) -> impl Iterator<Item = &String> {
    world.records.iter().filter(|(_, record)| record.phase == Phase::Failed).map(|(name, _)| name)
}

#[cfg(test)]
mod tests;
