//! The next writes, decided from one observation of the cluster.
//!
//! The decision is pure: equal worlds give equal actions.
//!
//! An [`Action`] is one write. A node that needs several writes before its next phase gets them together. Its
//! record advances only after a later pass has observed all of them. A crash between any two writes thus
//! leaves a world from which the next pass continues.

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
    /// Deletes the node's `NodeBootstrap`.
    Forget {
        node: String,
    },
    /// Sets the controller's cordon and removes the state of an earlier attempt. Both are one write to this
    /// version of the Node.
    Cordon {
        node: String,
        version: String,
    },
    /// Removes the state that an earlier attempt reported.
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
    /// Starts the pod that runs the bootstrap on the node, with this Secret.
    StartRunner {
        node: String,
        secret: String,
    },
    StopRunner {
        node: String,
    },
    /// Restores missing labels, annotations and taints. `taints` is the complete list to set, if any are
    /// missing.
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
    /// Publishes the state as a condition of the node.
    Show {
        node: String,
        condition: Condition,
    },
}

// === impl Action ===

impl Action {
    /// Returns the node that the action is about.
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

/// Whether to restore a foreign cordon that was lost with its Node object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recordon {
    No,
    /// Restored without the controller's mark: its owner removes it.
    Theirs,
}

/// Returns all writes of this pass, in their order.
pub fn plan(policy: &Policy, world: &World) -> Vec<Action> {
    let mut actions = Vec::new();
    for (name, record) in &world.records {
        match record.without_future(world.now) {
            // The correction is stored first: a deadline that counts from a time corrected in every pass
            // would never be reached.
            Some(record) => actions.push(Action::Write { node: name.clone(), record: Box::new(record) }),
            None => actions.extend(turn::next(policy, world, name, record)),
        }
    }
    actions.extend(queue::next(policy, world));
    actions.extend(forgotten(world));
    actions.extend(shown(world));
    actions
}

/// Cleans up nodes whose record was deleted or set to done by another client. Once no bootstrap runs there,
/// the controller's objects are removed and the node is released.
fn forgotten(world: &World) -> Vec<Action> {
    let mut actions = Vec::new();
    for (name, node) in &world.nodes {
        let is_over = node.is_ready && node.told.as_ref().is_none_or(|told| turn::is_end(&told.detail));
        // The controller writes these two phases only after its cleanup.
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
            // A terminating pod may still claim the node.
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

/// Whether a node is unavailable, or about to be.
fn is_unavailable(node: &Node, record: Option<&Record>) -> bool {
    record.is_some_and(|record| record.phase.is_active()) || node.cordon == Cordon::Own || !node.is_ready
}

/// Returns the nodes without a Node object, temporarily during a bootstrap or permanently.
fn unseen(world: &World) -> impl Iterator<Item = &String> {
    let is_away = |record: &Record| record.phase.is_active() || record.phase == Phase::Failed;
    let away = world.records.iter().filter(move |(_, record)| is_away(record));
    away.map(|(name, _)| name).filter(|name| !world.nodes.contains_key(*name))
}

/// Returns the failed nodes that were neither requested again nor deleted since.
fn failed(world: &World) -> impl Iterator<Item = &String> {
    world.records.iter().filter(|(_, record)| record.phase == Phase::Failed).map(|(name, _)| name)
}

#[cfg(test)]
mod tests;
