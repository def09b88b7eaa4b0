//! What to write, decided from one look. Each write may be the last one before a crash: the next look goes on from there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::condition::{Condition, Shown, Status, Words, is_over, node_ready, shown};
use super::heard::Heard;
use super::machine::{Machine, MachineName};

/// Writes of one look: a management cluster is not to be flooded when forty thousand Machines fail at once.
pub const MAX_WRITES: usize = 100;
/// Of these, kept for Machines of which the last write failed: they get their turn, and nobody waits for them.
const MAX_AGAIN: usize = 10;
/// One Machine's condition is not written more often than this, and its words alone not more often than that.
const TURN_PAUSE: SignedDuration = SignedDuration::from_secs(10);
const WORDS_PAUSE: SignedDuration = SignedDuration::from_secs(60);

/// What the operator decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// How long the end of a failed Machine may be held up for its evidence; not at all when there is none.
    pub hold: Option<Duration>,
}

/// The management cluster at one look.
#[derive(Clone, Debug)]
pub struct World {
    pub now: Timestamp,
    pub machines: Vec<Seen>,
    /// Clusters that nobody may touch, by namespace and name.
    pub paused: BTreeSet<(String, String)>,
    pub hearing: Hearing,
    /// When this process last wrote a Machine's condition, by uid: only for its pace.
    pub written: BTreeMap<String, Timestamp>,
    /// When this process last failed to write a Machine, by uid, until it succeeds.
    pub failed: BTreeMap<String, Timestamp>,
    /// Machines, by uid, that nobody lets this process hold: what they are to show does not wait for a hook.
    pub unheld: BTreeSet<String>,
    /// Reports that do not know their Machine as owner yet.
    pub orphans: Vec<Orphan>,
}

/// A Machine, and what was heard of it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub machine: Machine,
    pub heard: Option<Heard>,
    pub evidence: Evidence,
}

/// Where the evidence of a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// On the machine alone, as far as is known.
    OnMachine,
    Stored,
}

/// Whether everybody who tells could be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hearing {
    Whole,
    /// Some nodes could not be told of: about those who were, everything is decided; about the others what time decides.
    Partial,
    /// The hub did not answer: what it would have said is not known, so nothing is decided but what time decides.
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
    /// Holds back the end of a Machine.
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
    /// Takes our condition away.
    Clear {
        machine: MachineName,
    },
    /// So that the report goes with its Machine.
    Adopt {
        orphan: Orphan,
    },
}

/// What is new in a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Its status, or it is the first.
    Status,
    Words,
}

/// Decides. The most urgent come first, and the rest waits for the next look.
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

/// What there is to take away when the controller is taken away: every trace of it.
pub fn teardown<'a>(machines: impl IntoIterator<Item = &'a Machine>) -> Vec<Action> {
    let each = |machine: &Machine| {
        let unhook = machine.has_hook.then(|| Action::Unhook { machine: machine.id.clone() });
        let clear = machine.condition.as_ref().map(|_| Action::Clear { machine: machine.id.clone() });
        unhook.into_iter().chain(clear)
    };
    machines.into_iter().flat_map(each).collect()
}

/// Whether the hub should be asked for a Machine's evidence.
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
        // Evidence comes to those that the hub knows.
        let may_come =
            *evidence == Evidence::OnMachine && heard.as_ref().is_some_and(|heard| heard.is_in_hub);
        is_trouble && may_come && policy.hold.is_some()
    } else {
        // What the hub has is not known: whoever is held is held on, until time is up.
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
            // Alone: whoever acts on the condition must find the hook in place.
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

/// Whether the cluster reports the Node as ready although the condition says otherwise. That needs no report, and the timeout of a
/// MachineHealthCheck runs meanwhile. Times are not compared: those of the two conditions come from different clocks.
fn is_ready_in_spite(machine: &Machine) -> bool {
    machine.ready_since.is_some()
        && machine.condition.as_ref().is_some_and(|shown| shown.status != Status::True)
}

fn condition(world: &World, machine: &Machine, shown: Option<Shown>) -> Option<Action> {
    let Some(shown) = shown else {
        // Nobody stands behind it any more. Good news may stay.
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

    /// Nobody is to be held up; then nothing is to be lost; then the news, the bad first.
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
