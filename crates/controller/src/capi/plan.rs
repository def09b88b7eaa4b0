//! The decision on writes, from one observation.
//!
//! Each write may be the last before a crash; the next pass continues from there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::condition::{Condition, Shown, Status, Words, is_over, node_ready, shown};
use super::heard::Heard;
use super::machine::{Machine, MachineName};

/// Writes per pass: forty thousand simultaneous failures must not flood the management cluster.
pub const MAX_WRITES: usize = 100;
/// Writes of these reserved for Machines whose last write failed. They are retried in turn without blocking
/// others.
const MAX_AGAIN: usize = 10;
/// Minimum time between two writes of a Machine's condition. `WORDS_PAUSE` applies if only the message
/// changes.
const TURN_PAUSE: SignedDuration = SignedDuration::from_secs(10);
const WORDS_PAUSE: SignedDuration = SignedDuration::from_secs(60);

/// The operator's settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Longest delay of a failed Machine's deletion for its evidence; `None` for no delay.
    pub hold: Option<Duration>,
}

/// The management cluster at one observation.
#[derive(Clone, Debug)]
pub struct World {
    pub now: Timestamp,
    pub machines: Vec<Seen>,
    /// Paused Clusters, by namespace and name. No controller may change their Machines.
    pub paused: BTreeSet<(String, String)>,
    pub hearing: Hearing,
    /// Time of this process's last write of a Machine's condition, by UID; limits the write rate only.
    pub written: BTreeMap<String, Timestamp>,
    /// Time of this process's last failed write of a Machine, by UID, until a write succeeds.
    pub failed: BTreeMap<String, Timestamp>,
    /// UIDs of Machines whose hook was denied. Their condition is written without waiting for a hook.
    pub unheld: BTreeSet<String>,
    /// Reports without their Machine as owner.
    pub orphans: Vec<Orphan>,
}

/// A Machine with its report.
#[derive(Clone, Debug)]
pub struct Seen {
    pub machine: Machine,
    pub heard: Option<Heard>,
    pub evidence: Evidence,
}

/// Location of a node's evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Only on the machine, as far as known.
    OnMachine,
    Stored,
}

/// How much of the fleet the hub reported on in this pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hearing {
    Whole,
    /// Some nodes are missing. Machines with a report are decided as usual; for the others only time-based
    /// decisions are made.
    Partial,
    /// The hub did not answer. Its reports are unknown, so only time-based decisions are made.
    Deaf,
}

/// A `BootstrapReport` and the Machine it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    pub report: String,
    pub machine: MachineName,
    pub cluster: String,
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Delays the deletion of a Machine.
    Hook {
        machine: MachineName,
    },
    Unhook {
        machine: MachineName,
    },
    Show {
        machine: MachineName,
        condition: Condition,
        turn: Turn,
    },
    /// Removes the controller's condition.
    Clear {
        machine: MachineName,
    },
    /// Makes the Machine own its report, so that both are deleted together.
    Adopt {
        orphan: Orphan,
    },
}

/// The kind of change of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Its status changes, or it is new.
    Status,
    Words,
}

/// Returns the writes of one pass, most urgent first. The rest is left to the next pass.
pub fn plan(policy: &Policy, words: &Words, world: &World) -> Vec<Action> {
    let mut actions: Vec<Action> =
        world.machines.iter().flat_map(|seen| one(policy, words, world, seen)).collect();
    actions.extend(world.orphans.iter().map(|orphan| Action::Adopt { orphan: orphan.clone() }));
    let last_failed = |action: &Action| world.failed.get(&action.machine().uid).copied();
    let (mut again, mut actions): (Vec<Action>, Vec<Action>) =
        actions.into_iter().partition(|action| last_failed(action).is_some());
    actions.sort_by_key(Action::urgency);
    actions.truncate(MAX_WRITES - again.len().min(MAX_AGAIN));
    again.sort_by_key(|action| (last_failed(action), action.urgency()));
    again.truncate(MAX_WRITES - actions.len());
    actions.extend(again);
    actions
}

/// Returns the writes that remove every trace of the controller.
pub fn teardown<'a>(machines: impl IntoIterator<Item = &'a Machine>) -> Vec<Action> {
    let each = |machine: &Machine| {
        let unhook = machine.has_hook.then(|| Action::Unhook { machine: machine.id.clone() });
        let clear = machine.condition.as_ref().map(|_| Action::Clear { machine: machine.id.clone() });
        unhook.into_iter().chain(clear)
    };
    machines.into_iter().flat_map(each).collect()
}

/// Whether to query the hub for a Machine's evidence.
pub fn wants_evidence(
    policy: &Policy,
    words: &Words,
    now: Timestamp,
    machine: &Machine,
    heard: &Heard,
) -> bool {
    policy.hold.is_some() && heard.is_in_hub && shown(machine, heard, now, words).trouble
}

fn one(policy: &Policy, words: &Words, world: &World, seen: &Seen) -> Vec<Action> {
    let Seen { machine, heard, evidence } = seen;
    let cluster = (machine.id.namespace.clone(), machine.cluster.clone());
    if machine.is_paused || world.paused.contains(&cluster) {
        return Vec::new();
    }
    let is_known = match world.hearing {
        Hearing::Whole => true,
        Hearing::Partial => heard.is_some(),
        Hearing::Deaf => false,
    };
    let shown = heard.as_ref().map(|heard| shown(machine, heard, world.now, words));
    let should_hold = if is_known {
        let is_trouble = shown.as_ref().is_some_and(|shown| shown.trouble);
        // Only nodes known to the hub can upload evidence.
        let may_come =
            *evidence == Evidence::OnMachine && heard.as_ref().is_some_and(|heard| heard.is_in_hub);
        is_trouble && may_come && policy.hold.is_some()
    } else {
        // The hub's content is unknown: existing hooks stay until the time limit.
        machine.has_hook && policy.hold.is_some()
    };
    let is_up = match (machine.deleted, policy.hold) {
        (Some(deleted), Some(hold)) => is_over(deleted, hold, world.now),
        _ => false,
    };
    let mut actions = Vec::new();
    match (machine.has_hook, should_hold && !is_up) {
        (true, false) => actions.push(Action::Unhook { machine: machine.id.clone() }),
        (false, true) if machine.deleted.is_none() && !world.unheld.contains(&machine.id.uid) => {
            // The only action: the hook must be in place before other controllers act on the condition.
            return vec![Action::Hook { machine: machine.id.clone() }];
        }
        _ => {}
    }
    if machine.deleted.is_some() {
        return actions;
    }
    if is_known {
        actions.extend(condition(world, machine, shown));
    } else if is_ready_in_spite(machine) {
        actions.extend(condition(world, machine, Some(node_ready(None))));
    }
    actions
}

/// Whether the cluster reports the Node as ready although the condition shows otherwise. This needs no
/// report, and the timeout of a MachineHealthCheck runs meanwhile. The times of the two conditions are not
/// compared, because they come from different clocks.
fn is_ready_in_spite(machine: &Machine) -> bool {
    machine.ready_since.is_some()
        && machine.condition.as_ref().is_some_and(|shown| shown.status != Status::True)
}

fn condition(world: &World, machine: &Machine, shown: Option<Shown>) -> Option<Action> {
    let Some(shown) = shown else {
        // No report supports the condition any more. A `True` condition may stay.
        let is_bad = machine.condition.as_ref().is_some_and(|condition| condition.status != Status::True);
        return is_bad.then(|| Action::Clear { machine: machine.id.clone() });
    };
    let before = machine.condition.as_ref();
    if before.is_some_and(|before| before.says(&shown)) {
        return None;
    }
    let kept = before.filter(|before| before.status == shown.status);
    let (turn, pause) = match kept {
        Some(_) => (Turn::Words, WORDS_PAUSE),
        None => (Turn::Status, TURN_PAUSE),
    };
    let written = world.written.get(&machine.id.uid);
    if written.is_some_and(|written| world.now.duration_since(*written) < pause) {
        return None;
    }
    let condition = Condition {
        status: shown.status,
        reason: shown.reason,
        message: shown.message,
        since: kept.map_or(world.now, |kept| kept.since),
    };
    Some(Action::Show { machine: machine.id.clone(), condition, turn })
}

// === impl Action ===

impl Action {
    pub fn machine(&self) -> &MachineName {
        match self {
            Self::Hook { machine }
            | Self::Unhook { machine }
            | Self::Show { machine, .. }
            | Self::Clear { machine }
            | Self::Adopt { orphan: Orphan { machine, .. } } => machine,
        }
    }

    /// Returns the order of actions. Hooks are removed first, so that no deletion is blocked, then set, so
    /// that no evidence is lost. Conditions follow, failures first.
    fn urgency(&self) -> u8 {
        match self {
            Self::Unhook { .. } => 0,
            Self::Hook { .. } => 1,
            Self::Show { condition, turn: Turn::Status, .. } if condition.status == Status::False => 2,
            Self::Clear { .. } => 3,
            Self::Show { turn: Turn::Status, .. } => 4,
            Self::Show { turn: Turn::Words, .. } => 5,
            Self::Adopt { .. } => 6,
        }
    }
}

#[cfg(test)]
mod tests;
