//! A simulation of Machines under [`plan`].
//!
//! Nodes fail, recover and fall silent. A health check deletes failed Machines. The hub has outages, and the
//! controller crashes between any two writes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use landfall_model::Cause;
use landfall_model::report::{State, Trust};

use super::condition::{Condition, Status, Words};
use super::heard::Heard;
use super::machine::Machine;
use super::plan::{Action, Evidence, Hearing, Policy, Seen, World, plan};
use crate::simulation::fleet::Random;

const HOLD: Duration = Duration::from_secs(300);
/// Interval between two passes.
const STEP: SignedDuration = SignedDuration::from_secs(10);
/// Time from a failure to its remediation by the health check.
const REMEDIATION: SignedDuration = SignedDuration::from_secs(60);
/// Limit of passes, above what any case takes.
const LOOKS: usize = 400;

/// The simulated course of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Joins,
    /// Fails, and its bundle arrives.
    Fails,
    /// Fails, and its bundle never arrives.
    FailsMute,
    Recovers,
    /// A log claims that it failed.
    FailureClaimed,
    /// A log claims that it succeeded.
    SuccessClaimed,
    /// Fails with proof, but its newer reports only claim the failure.
    ProofIsGone,
    /// Reports a failure repeatedly, while its Node becomes ready.
    FailsAndIsReady,
    /// Always reports that it is running, while its Node becomes ready.
    NeverDone,
    /// An administrator deletes the Machine during its bootstrap.
    Deleted,
    Unheard,
}

const FATES: [Fate; 11] = [
    Fate::Joins,
    Fate::Fails,
    Fate::FailsMute,
    Fate::Recovers,
    Fate::FailureClaimed,
    Fate::SuccessClaimed,
    Fate::ProofIsGone,
    Fate::FailsAndIsReady,
    Fate::NeverDone,
    Fate::Deleted,
    Fate::Unheard,
];

#[derive(Clone, Debug)]
struct Node {
    fate: Fate,
    machine: Machine,
    age: usize,
    bundle: bool,
    /// How its Machine was deleted.
    ended: Option<Ended>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    WithEvidence,
    /// The time limit passed before the evidence arrived.
    WithoutEvidence,
}

/// A node's course, how its Machine was deleted, whether it has the hook, and its condition.
type End = (Fate, Option<Ended>, bool, Option<(Status, String)>);

struct Fleet {
    now: Timestamp,
    nodes: BTreeMap<String, Node>,
    written: BTreeMap<String, Timestamp>,
    deaf: BTreeSet<usize>,
    looks: usize,
}

impl Fleet {
    fn new(fates: &[Fate], deaf: BTreeSet<usize>) -> Self {
        let now = Timestamp::from_second(1_767_225_600).unwrap();
        let node = |(number, fate): (usize, &Fate)| {
            let name = format!("m{number}");
            let machine = Machine::fresh(&name, now);
            (name, Node { fate: *fate, machine, age: 0, bundle: false, ended: None })
        };
        let nodes = fates.iter().enumerate().map(node).collect();
        Self { now, nodes, written: BTreeMap::new(), deaf, looks: 0 }
    }

    fn look(&self) -> World {
        let is_deaf = self.deaf.contains(&self.looks);
        let living = self.nodes.values().filter(|node| node.ended.is_none());
        let seen = living.map(|node| Seen {
            machine: node.machine.clone(),
            heard: node.said(self.now).filter(|_| !is_deaf),
            evidence: if node.bundle && !is_deaf { Evidence::Stored } else { Evidence::OnMachine },
        });
        World {
            now: self.now,
            machines: seen.collect(),
            paused: BTreeSet::new(),
            hearing: if is_deaf { Hearing::Deaf } else { Hearing::Whole },
            written: self.written.clone(),
            failed: BTreeMap::new(),
            unheld: BTreeSet::new(),
            orphans: Vec::new(),
        }
    }

    fn carry_out(&mut self, action: &Action) {
        let (Action::Hook { machine }
        | Action::Unhook { machine }
        | Action::Show { machine, .. }
        | Action::Clear { machine }) = action
        else {
            panic!("{action:?}")
        };
        let node = self.nodes.get_mut(&machine.name).unwrap();
        match action {
            Action::Hook { .. } => node.machine.has_hook = true,
            Action::Unhook { .. } => node.machine.has_hook = false,
            Action::Show { condition, .. } => {
                node.machine.condition = Some(condition.clone());
                self.written.insert(machine.uid.clone(), self.now);
            }
            _ => node.machine.condition = None,
        }
    }

    /// Advances time for the nodes, the health check, and Cluster API, which removes deleted Machines without
    /// a hook.
    fn live(&mut self) {
        self.now += STEP;
        self.looks += 1;
        for node in self.nodes.values_mut().filter(|node| node.ended.is_none()) {
            node.age += 1;
            node.bundle |= node.fate == Fate::Fails && node.age == 20;
            if matches!(node.fate, Fate::FailsAndIsReady | Fate::NeverDone) && node.age == 6 {
                node.machine.ready_since = Some(self.now);
            }
            // Like the rendered check. Its timeout for Nodes that never start is omitted, since reports do
            // not affect it.
            let is_unhealthy = node.machine.condition.as_ref().is_some_and(|condition| {
                condition.status == Status::False && self.now.duration_since(condition.since) >= REMEDIATION
            });
            let is_asked = node.fate == Fate::Deleted && node.age == 7;
            if node.machine.deleted.is_none() && (is_unhealthy || is_asked) {
                node.machine.deleted = Some(self.now);
            }
            if node.machine.deleted.is_some() && !node.machine.has_hook {
                node.ended = Some(if node.bundle { Ended::WithEvidence } else { Ended::WithoutEvidence });
            }
        }
    }

    /// Asserts the invariants.
    fn check(&self) {
        for node in self.nodes.values() {
            let held_for = node.machine.deleted.map(|deleted| self.now.duration_since(deleted));
            // Hub outages and controller crashes delay the removal by a few passes at most.
            let limit = SignedDuration::try_from(HOLD).unwrap() + STEP * 12;
            assert!(node.ended.is_some() || held_for.is_none_or(|time| time <= limit), "stranded: {node:?}");
        }
    }

    /// Returns the final state without times.
    fn end(&self) -> Vec<End> {
        let shown = |condition: &Condition| (condition.status, condition.reason.clone());
        let end = |node: &Node| {
            // The condition of a removed Machine no longer exists.
            let condition = node.machine.condition.as_ref().filter(|_| node.ended.is_none());
            (node.fate, node.ended, node.machine.has_hook, condition.map(shown))
        };
        self.nodes.values().map(end).collect()
    }
}

impl Node {
    fn said(&self, now: Timestamp) -> Option<Heard> {
        let state = match (self.fate, self.age) {
            (Fate::Unheard, _) | (_, 0) => return None,
            (Fate::Joins | Fate::Recovers | Fate::SuccessClaimed, 8..) => State::Succeeded,
            (
                Fate::Fails
                | Fate::FailsMute
                | Fate::FailsAndIsReady
                | Fate::FailureClaimed
                | Fate::ProofIsGone,
                4..,
            )
            | (Fate::Recovers, 5..=7) => State::Failed,
            _ => State::Running,
        };
        let trust = match (self.fate, self.age) {
            (Fate::FailureClaimed | Fate::SuccessClaimed, _) | (Fate::ProofIsGone, 6..) => Trust::Claimed,
            _ => Trust::Proven,
        };
        let said_for = match state {
            State::Failed => self.age - if self.fate == Fate::Recovers { 5 } else { 4 },
            State::Succeeded => self.age - 8,
            _ => self.age,
        };
        let said_for = STEP * i32::try_from(said_for).unwrap();
        Some(Heard {
            name: self.machine.id.name.clone(),
            provider_id: None,
            bound: None,
            state,
            trust,
            cause: (state == State::Failed).then(|| Cause::new("disk-full").unwrap()),
            title: String::new(),
            component: None,
            phase: None,
            since: Some(now - said_for),
            last_seen: now,
            is_in_hub: true,
        })
    }
}

/// Runs passes until no more writes follow. `lives` returns the number of writes before the next crash, which
/// loses the remaining plan and the memory. Another controller continues with the next pass.
fn lead(fleet: &mut Fleet, words: &Words, mut lives: impl FnMut() -> usize) -> usize {
    let policy = Policy { hold: Some(HOLD) };
    let (mut writes, mut left) = (0, lives());
    for _ in 0..LOOKS {
        for action in plan(&policy, words, &fleet.look()) {
            if left == 0 {
                left = lives();
                fleet.written.clear();
                break;
            }
            left -= 1;
            writes += 1;
            fleet.carry_out(&action);
        }
        fleet.live();
        fleet.check();
    }
    writes
}

fn expected(fate: Fate) -> (Option<Ended>, bool, Option<(Status, &'static str)>) {
    match fate {
        Fate::Joins | Fate::Recovers => (None, false, Some((Status::True, "Succeeded"))),
        Fate::FailsAndIsReady | Fate::NeverDone => (None, false, Some((Status::True, "NodeReady"))),
        // No health check deletes them, and no bundle removes the hook.
        Fate::FailureClaimed | Fate::ProofIsGone => (None, true, Some((Status::Unknown, "FailureClaimed"))),
        Fate::SuccessClaimed => (None, false, Some((Status::Unknown, "SuccessClaimed"))),
        Fate::Fails => (Some(Ended::WithEvidence), false, None),
        Fate::FailsMute | Fate::Deleted => (Some(Ended::WithoutEvidence), false, None),
        Fate::Unheard => (None, false, None),
    }
}

#[track_caller]
fn check_end(fleet: &Fleet, what: &str) {
    for (fate, ended, has_hook, shown) in fleet.end() {
        let shown = shown.as_ref().map(|(status, reason)| (*status, reason.as_str()));
        assert_eq!((ended, has_hook, shown), expected(fate), "{what}: {fate:?}");
    }
}

#[test]
fn every_fate_comes_to_its_end_and_evidence_is_kept() {
    let words = Words::new(None).unwrap();
    let mut fleet = Fleet::new(&FATES, BTreeSet::new());
    lead(&mut fleet, &words, || usize::MAX);
    check_end(&fleet, "calm");
}

/// The hub fails before the Node is ready and does not recover. The cluster's own observation is enough.
#[test]
fn without_a_hub_a_ready_node_outlives_what_is_shown() {
    let words = Words::new(None).unwrap();
    let mut fleet = Fleet::new(&[Fate::FailsAndIsReady, Fate::NeverDone], (5..LOOKS).collect());
    lead(&mut fleet, &words, || usize::MAX);
    for (fate, ended, has_hook, shown) in fleet.end() {
        let (_, _, expected) = expected(fate);
        let shown = shown.as_ref().map(|(status, reason)| (*status, reason.as_str()));
        assert_eq!((ended, shown), (None, expected), "{fate:?}");
        // The hub's content is unknown, so no new hook is set.
        assert_eq!(has_hook, fate == Fate::FailsAndIsReady, "{fate:?}");
    }
}

/// Kills the controller before every single write and starts another one.
#[test]
fn killed_at_every_write_it_reaches_the_same_end() {
    let words = Words::new(None).unwrap();
    let mut calm = Fleet::new(&FATES, BTreeSet::new());
    let writes = lead(&mut calm, &words, || usize::MAX);
    assert!(writes > 12, "{writes}");
    for number in 0..writes {
        let mut fleet = Fleet::new(&FATES, BTreeSet::new());
        let mut lives = [number, usize::MAX].into_iter();
        lead(&mut fleet, &words, || lives.next().unwrap_or(usize::MAX));
        assert_eq!(fleet.end(), calm.end(), "killed before write {number}");
    }
}

/// Each seed has another fleet, repeated controller crashes and temporary hub outages.
#[test]
fn random_fates_deaths_and_silences() {
    let words = Words::new(None).unwrap();
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let fates: Vec<Fate> = (0..12).map(|_| FATES[random.below(FATES.len())]).collect();
        let from = 30 + random.below(20);
        let deaf = (from..from + random.below(10)).collect();
        let mut fleet = Fleet::new(&fates, deaf);
        let mut deaths = 40;
        lead(&mut fleet, &words, || {
            deaths -= 1;
            if deaths > 0 { random.below(9) } else { usize::MAX }
        });
        for (fate, ended, has_hook, _) in fleet.end() {
            let (_, expected_hook, _) = expected(fate);
            assert_eq!(has_hook, expected_hook && ended.is_none(), "seed {seed}: {fate:?}");
            // While no controller runs, a health check may delete a Machine before its recovery is published.
            if !matches!(fate, Fate::Recovers | Fate::FailsAndIsReady | Fate::ProofIsGone) {
                let is_gone = matches!(fate, Fate::Fails | Fate::FailsMute | Fate::Deleted);
                assert_eq!(ended.is_some(), is_gone, "seed {seed}: {fate:?}");
            }
        }
    }
}
