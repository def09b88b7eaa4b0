//! The order in which requested nodes start.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{Action, failed, is_unavailable, unseen};
use crate::policy::{Policy, Secrets};
use crate::record::{Phase, Record, SECRET_USED};
use crate::world::{Cordon, Node, SecretState, World};

/// The reason why a node waits, as a condition reason and as a message.
struct Why {
    reason: &'static str,
    message: String,
}

/// Starts as many nodes as permitted, in the order of their names, and records the reason for the others.
pub(super) fn next(policy: &Policy, world: &World) -> Vec<Action> {
    let mut actions = Vec::new();
    let away = world.nodes.iter().filter(|(name, node)| is_unavailable(node, world.records.get(*name)));
    let mut away = away.count() + unseen(world).count();
    let active = |name: &str| world.records.get(name).is_some_and(|record| record.phase.is_active());
    let mut control_plane_away = world
        .nodes
        .iter()
        .any(|(name, node)| node.is_control_plane && is_unavailable(node, world.records.get(name)));
    let limit = policy.max_unavailable.of(world.nodes.len());
    for (name, node) in world.nodes.iter().filter(|(name, node)| node.is_requested && !active(name)) {
        let record = world.records.get(name);
        // A node that was left cordoned already counts as unavailable.
        let is_away = is_unavailable(node, record);
        let own = reason_of_node(policy, node, record);
        let why = own.or_else(|| reason_of_wave(policy, world, name)).or_else(|| {
            if away - usize::from(is_away) >= limit {
                let message = format!("{limit} may be away at once, and as many are");
                return Some(Why { reason: "MaxUnavailable", message });
            }
            let message = "another node of the control plane is away".to_owned();
            (node.is_control_plane && control_plane_away && !is_away)
                .then_some(Why { reason: "ControlPlane", message })
        });
        if let Some(why) = why {
            actions.extend(wait(world.now, name, record, &why));
        } else {
            away += usize::from(!is_away);
            control_plane_away |= node.is_control_plane;
            actions.push(begin(world.now, name, node));
        }
    }
    // The request was withdrawn before the node started.
    for (name, _) in world.records.iter().filter(|(_, record)| record.phase == Phase::Waiting) {
        if world.nodes.get(name).is_none_or(|node| !node.is_requested) {
            actions.push(Action::Forget { node: name.clone() });
        }
    }
    actions
}

fn reason_of_node(policy: &Policy, node: &Node, record: Option<&Record>) -> Option<Why> {
    let why = |reason, message: &str| Some(Why { reason, message: message.to_owned() });
    // With a used Secret, the node would only repeat its previous result. Repeated labels must not drain it
    // each time.
    if let Some(record) = record.filter(|record| record.has_used(&node.source)) {
        return match record.reason.as_str() {
            SECRET_USED => why(SECRET_USED, &record.message),
            _ => why(
                SECRET_USED,
                &format!("it is {} with this Secret: hand in a new one", record.phase.name().to_lowercase()),
            ),
        };
    }
    if !node.is_ready {
        return why("NodeNotReady", "the node is not ready: nothing can be started on it");
    }
    if node.secret == SecretState::Missing && policy.secrets == Secrets::Given {
        return why("SecretMissing", "there is no Secret for the node");
    }
    None
}

fn reason_of_wave(policy: &Policy, world: &World, name: &str) -> Option<Why> {
    // A failed node that is requested again does not block the rollout.
    let others: Vec<&String> = failed(world).filter(|failed| *failed != name).collect();
    if others.len() > policy.max_failed {
        let named = others.first().map(|name| name.as_str()).unwrap_or_default();
        let message = format!(
            "`{named}` failed: no other is started until it is requested again or its NodeBootstrap is deleted"
        );
        return Some(Why { reason: "Stopped", message });
    }
    if !policy.windows.is_empty() && !policy.windows.iter().any(|window| window.is_open(world.now)) {
        return Some(Why { reason: "Window", message: "no window of time is open".to_owned() });
    }
    let ended = world.records.values().filter_map(|record| record.finished).max();
    if !policy.pause.is_zero() && ended.is_some_and(|ended| !has_passed(ended, policy.pause, world.now)) {
        let message = format!("{} s lie between two nodes", policy.pause.as_secs());
        return Some(Why { reason: "Pause", message });
    }
    None
}

fn wait(now: Timestamp, name: &str, record: Option<&Record>, why: &Why) -> Option<Action> {
    let before = record.filter(|record| record.phase == Phase::Waiting);
    if before.is_some_and(|before| before.reason == why.reason && before.message == why.message) {
        return None;
    }
    // The last failure stays visible until the node starts again.
    if let Some(failed) = record.filter(|record| record.phase == Phase::Failed) {
        if why.reason != SECRET_USED || failed.reason == SECRET_USED {
            return None;
        }
        let message = format!("{}; {}", failed.message, why.message);
        let record = failed.enter(Phase::Failed, now, SECRET_USED, &message);
        return Some(Action::Write { node: name.to_owned(), record: Box::new(record) });
    }
    let fresh = Record::new(Phase::Waiting, now);
    // The record of the used Secret is kept as long as the node is requested with the same one.
    let before = before.or(record.filter(|_| why.reason == SECRET_USED)).unwrap_or(&fresh);
    let record = before.enter(Phase::Waiting, now, why.reason, &why.message);
    Some(Action::Write { node: name.to_owned(), record: Box::new(record) })
}

fn begin(now: Timestamp, name: &str, node: &Node) -> Action {
    let record = Record {
        started: Some(now),
        boot_before: node.boot_id.clone(),
        node_before: node.uid.clone(),
        cordoned_before: node.cordon == Cordon::Foreign,
        source: node.source.clone(),
        saved: node.notes.clone(),
        message: "its turn has come".to_owned(),
        ..Record::new(Phase::Cordoning, now)
    };
    Action::Write { node: name.to_owned(), record: Box::new(record) }
}

pub(super) fn has_passed(since: Timestamp, limit: Duration, now: Timestamp) -> bool {
    SignedDuration::try_from(limit).is_ok_and(|limit| now.duration_since(since) >= limit)
}
