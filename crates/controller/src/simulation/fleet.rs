//! The simulated cluster and its machines.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use landfall_cluster::{Condition, FleetNode, NodeFacts, PodFacts};
use landfall_model::in_place::{LABEL, SEED_LABEL, STATE_ANNOTATION, State};
use serde_json::json;

use crate::plan::{Action, Recordon};
use crate::policy::Policy;
use crate::record::{Phase, Record};
use crate::world::{CONDITION, CORDONED_BY, CORDONER, Node, Refused, Runner, SecretState, World};

/// UID of a machine's Node object before the bootstrap.
const FIRST: &str = "first";

/// The simulated course of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Well,
    /// Its Node object is deleted and registered again, without labels, annotations and taints.
    RegistersAnew,
    RollsBack,
    /// Fails before any change.
    FailsEarly,
    /// Fails after the point where a rollback is possible.
    FailsLate,
    /// Its pod never reports a state.
    Silent,
    /// Goes down and does not return.
    Lost,
    /// Has already completed with the same Secret.
    AnswersFromLedger,
}

/// A small pseudorandom generator with a seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

#[derive(Clone, Debug)]
struct Machine {
    fate: Fate,
    /// Progress of its attempt; `None` before the pod has started it.
    step: Option<usize>,
    boot: u32,
    applied: u32,
    secret: SecretState,
    /// The version of the Secret, in tests that need it.
    source: String,
    runner: Runner,
    pods: Vec<PodFacts>,
    /// `None` while its Node object is deleted.
    node: Option<FleetNode>,
    cordoned_by_hand: bool,
    was_down: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Fleet {
    now: Timestamp,
    random: Random,
    machines: BTreeMap<String, Machine>,
    records: BTreeMap<String, Record>,
    version: u64,
    most_away: usize,
}

// === impl Random ===

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit).unwrap()).unwrap()
    }
}

// === impl Fleet ===

impl Fleet {
    /// Creates a fleet in which all nodes are requested.
    pub(super) fn new(count: usize, random: Random) -> Self {
        let mut fleet = Self {
            now: "2026-01-01T00:00:00Z".parse().unwrap(),
            random,
            machines: BTreeMap::new(),
            records: BTreeMap::new(),
            version: 1,
            most_away: 0,
        };
        for number in 0..count {
            let name = format!("n{number:02}");
            let pod = |kind: &str, controller: Option<&str>| PodFacts {
                namespace: "default".to_owned(),
                name: format!("{kind}-{name}"),
                uid: kind.to_owned(),
                node: name.clone(),
                controller: controller.map(str::to_owned),
                ..PodFacts::default()
            };
            let mirror = PodFacts { is_mirror: true, ..pod("static", None) };
            let finished = PodFacts { has_finished: true, ..pod("job", Some("Job")) };
            let pods = vec![
                pod("web", Some("ReplicaSet")),
                pod("db", Some("StatefulSet")),
                pod("net", Some("DaemonSet")),
                mirror,
                finished,
            ];
            let machine = Machine {
                fate: Fate::Well,
                step: None,
                boot: 0,
                applied: 0,
                secret: SecretState::Missing,
                source: String::new(),
                runner: Runner::None,
                pods,
                node: Some(registered(&name, true)),
                cordoned_by_hand: false,
                was_down: false,
            };
            fleet.machines.insert(name.clone(), machine);
            fleet.label(&name, if number % 2 == 0 { LABEL } else { SEED_LABEL });
        }
        fleet
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.machines.keys().cloned().collect()
    }

    pub(super) fn fate(&mut self, name: &str, fate: Fate) {
        self.machines.get_mut(name).unwrap().fate = fate;
    }

    pub(super) fn label(&mut self, name: &str, label: &str) {
        let value = if label == SEED_LABEL { "true" } else { "requested" };
        self.facts(name).labels.insert(label.to_owned(), value.to_owned());
    }

    pub(super) fn unlabel(&mut self, name: &str) {
        for label in [LABEL, SEED_LABEL] {
            self.facts(name).labels.remove(label);
        }
    }

    pub(super) fn cordon_by_hand(&mut self, name: &str) {
        self.facts(name).cordoned = true;
        self.machines.get_mut(name).unwrap().cordoned_by_hand = true;
    }

    pub(super) fn give_secret(&mut self, name: &str) {
        let secret = SecretState::Given { name: format!("ibm-ipb-{name}") };
        self.machines.get_mut(name).unwrap().secret = secret;
    }

    /// An administrator repairs the machine and requests it again.
    pub(super) fn mend(&mut self, name: &str) {
        let machine = self.machines.get_mut(name).unwrap();
        machine.applied = 0;
        machine.step = None;
        self.facts(name).ready = true;
        self.label(name, LABEL);
    }

    /// Another client edits a record.
    pub(super) fn forge(&mut self, name: &str, forge: impl FnOnce(&mut Record)) {
        if let Some(record) = self.records.get_mut(name) {
            forge(record);
        }
    }

    /// Another client deletes the pod: the machine continues only if it is armed.
    pub(super) fn kill_runner(&mut self, name: &str) {
        let machine = self.machines.get_mut(name).unwrap();
        if machine.runner == Runner::There && !machine.was_down {
            machine.runner = Runner::None;
        }
    }

    /// Moves the leader's clock forward or back.
    pub(super) fn jump(&mut self, by: SignedDuration) {
        self.now = self.now.checked_add(by).unwrap();
    }

    pub(super) fn source(&mut self, name: &str, source: &str) {
        source.clone_into(&mut self.machines.get_mut(name).unwrap().source);
    }

    pub(super) fn is_here(&self, name: &str) -> bool {
        self.machines[name].node.is_some()
    }

    pub(super) fn record(&self, name: &str) -> Option<&Record> {
        self.records.get(name)
    }

    pub(super) fn applied(&self, name: &str) -> u32 {
        self.machines[name].applied
    }

    pub(super) fn has_told(&self, name: &str) -> bool {
        self.machines[name].step.is_some()
    }

    pub(super) fn phase(&self, name: &str) -> Option<Phase> {
        self.records.get(name).map(|record| record.phase)
    }

    pub(super) fn phases(&self) -> BTreeMap<String, Phase> {
        self.records.iter().map(|(name, record)| (name.clone(), record.phase)).collect()
    }

    pub(super) fn most_away(&self) -> usize {
        self.most_away
    }

    /// Whether the controller has left no object on the node.
    pub(super) fn is_free(&self, name: &str) -> bool {
        let machine = &self.machines[name];
        let facts = &machine.node.as_ref().unwrap().facts;
        facts.cordoned == machine.cordoned_by_hand
            && !facts.annotations.contains_key(CORDONED_BY)
            && machine.runner == Runner::None
            && !matches!(machine.secret, SecretState::Own { .. })
    }

    pub(super) fn look(&self) -> World {
        let nodes = self.machines.iter().filter_map(|(name, machine)| {
            let mut node = Node::new(machine.node.clone()?);
            node.secret = machine.secret.clone();
            node.source.clone_from(&machine.source);
            node.runner = machine.runner;
            node.pods = machine.pods.clone();
            Some((name.clone(), node))
        });
        World {
            now: self.now,
            nodes: nodes.collect(),
            records: self.records.clone(),
            requests: Vec::new(),
            refused: Refused::default(),
        }
    }

    /// Executes one write, which fails if it is for an outdated version.
    pub(super) fn carry_out(&mut self, action: &Action) {
        match action {
            Action::Write { node, record } => drop(self.records.insert(node.clone(), (**record).clone())),
            Action::Forget { node } => drop(self.records.remove(node)),
            Action::Cordon { node, version } => self.change(node, Some(version), |facts| {
                facts.cordoned = true;
                facts.annotations.insert(CORDONED_BY.to_owned(), CORDONER.to_owned());
                facts.annotations.remove(STATE_ANNOTATION);
            }),
            Action::ClearTold { node, version } => self.change(node, Some(version), |facts| {
                facts.annotations.remove(STATE_ANNOTATION);
            }),
            Action::Uncordon { node, version } => self.change(node, Some(version), |facts| {
                facts.cordoned = false;
                facts.annotations.remove(CORDONED_BY);
            }),
            Action::TakeLabelsOff { node } => self.change(node, None, |facts| {
                facts.labels.remove(LABEL);
                facts.labels.remove(SEED_LABEL);
            }),
            Action::Evict { node, pod } => {
                assert!(
                    !pod.is_mirror && !pod.has_finished && pod.controller.as_deref() != Some("DaemonSet")
                );
                // Some budgets reject evictions temporarily.
                if self.random.below(3) > 0 {
                    let pods = &mut self.machines.get_mut(node).unwrap().pods;
                    pods.iter_mut().filter(|own| own.name == pod.name).for_each(|own| own.is_going = true);
                }
            }
            Action::MakeSecret { node } => {
                let machine = self.machines.get_mut(node).unwrap();
                if machine.secret == SecretState::Missing {
                    machine.secret = SecretState::Own { name: format!("landfall-in-place-{node}") };
                }
            }
            Action::DropSecret { node, .. } => {
                let machine = self.machines.get_mut(node).unwrap();
                assert!(!matches!(machine.secret, SecretState::Given { .. }), "only our own");
                machine.secret = SecretState::Missing;
            }
            Action::StartRunner { node, .. } => {
                let machine = self.machines.get_mut(node).unwrap();
                let left = machine
                    .pods
                    .iter()
                    .filter(|pod| pod.name.starts_with("web") || pod.name.starts_with("db"));
                assert_eq!(left.count(), 0, "nothing runs that was to be moved");
                let is_cordoned = machine.node.as_ref().unwrap().facts.cordoned;
                assert!(is_cordoned || !machine.is_labelled(), "nothing is begun on a node that is in use");
                machine.runner = Runner::There;
            }
            Action::StopRunner { node } => {
                let machine = self.machines.get_mut(node).unwrap();
                machine.runner = if machine.was_down { Runner::Going } else { Runner::None };
            }
            Action::Restore { node, version, missing, taints, cordon } => {
                self.change(node, Some(version), |facts| {
                    facts.cordoned |= *cordon == Recordon::Theirs;
                    facts.labels.extend(missing.labels.clone());
                    facts.annotations.extend(missing.annotations.clone());
                    if let Some(taints) = taints {
                        facts.taints.clone_from(taints);
                    }
                });
            }
            Action::Approve { .. } => panic!("nobody asked for that"),
            Action::Show { node, condition } => {
                let shown: Condition = condition.clone();
                if let Some(node) = &mut self.machines.get_mut(node).unwrap().node {
                    node.conditions.insert(CONDITION.to_owned(), shown);
                }
            }
        }
    }

    /// Advances one minute and returns whether any work was in progress.
    pub(super) fn live(&mut self) -> bool {
        self.now = self.now.checked_add(SignedDuration::from_mins(1)).unwrap();
        let mut lively = false;
        for name in self.names() {
            let is_slow = self.random.below(3) == 0;
            let (now, version) = (self.now, &mut self.version);
            let machine = self.machines.get_mut(&name).unwrap();
            machine.pods.retain(|pod| !pod.is_going);
            let works = machine.runner == Runner::There
                || machine.was_down
                || machine.step.is_some_and(|step| step < 7);
            // A late pod starts nothing after the request was withdrawn.
            let may_begin = machine.step.is_some() || machine.is_labelled();
            if works && may_begin && machine.fate != Fate::Silent && !machine.has_ended() {
                lively = true;
                if !is_slow {
                    *version += 1;
                    machine.go_on(&name, now, *version);
                }
            }
        }
        // Every state with a deadline must be able to reach it.
        lively || self.records.values().any(|record| record.phase.is_active() || record.reason == "Pause")
    }

    /// Asserts the invariants.
    pub(super) fn check(&mut self, policy: &Policy) {
        let is_away = |machine: &Machine| {
            machine
                .node
                .as_ref()
                .is_none_or(|node| !node.facts.ready || (node.facts.cordoned && !machine.cordoned_by_hand))
        };
        let away = self.machines.values().filter(|machine| is_away(machine)).count();
        let limit = policy.max_unavailable.of(self.machines.len());
        assert!(away <= limit, "{away} are away: {:#?}", self.phases());
        self.most_away = self.most_away.max(away);
        for (name, machine) in &self.machines {
            assert!(machine.applied <= 1, "{name} was made anew twice");
            let Some(node) = &machine.node else { continue };
            // A deleted Node object loses its cordon until it is restored.
            if machine.cordoned_by_hand && node.uid == FIRST {
                assert!(node.facts.cordoned, "{name}: the cordon is not ours to take");
            }
        }
    }

    /// Asserts the state when no work is left.
    pub(super) fn check_end(&self) {
        for (name, machine) in &self.machines {
            let phase = self.phase(name);
            // Nodes may wait without limit while failed ones are unavailable.
            if phase == Some(Phase::Waiting) {
                continue;
            }
            let expected = match machine.fate {
                Fate::Well | Fate::RegistersAnew => Phase::Done,
                _ => Phase::Failed,
            };
            assert_eq!(phase, Some(expected), "{name} ({:?})", machine.fate);
            let node = machine.node.as_ref().unwrap();
            for label in [LABEL, SEED_LABEL] {
                assert!(!node.facts.labels.contains_key(label), "{name} is still labelled");
            }
            assert!(!matches!(machine.secret, SecretState::Own { .. }), "{name}: a Secret is left");
            assert_eq!(node.facts.labels.get("zone").map(String::as_str), Some("a"), "{name}");
            assert_eq!(node.facts.annotations.get("team").map(String::as_str), Some("x"), "{name}");
            assert!(node.facts.taints.contains(&"gpu=yes:NoSchedule".to_owned()), "{name}");
            match machine.fate {
                Fate::FailsLate | Fate::Lost => assert!(node.facts.cordoned, "{name} is not trusted"),
                _ => assert!(self.is_free(name), "{name} has its place again: {machine:#?}"),
            }
        }
    }

    /// Returns the final state without times.
    pub(super) fn end(&self) -> BTreeMap<String, String> {
        let end = self.machines.iter().map(|(name, machine)| {
            let record = self.records.get(name);
            let told = record.map(|record| (record.phase, record.reason.clone(), record.message.clone()));
            let node = machine.node.as_ref().map(|node| {
                (
                    node.facts.cordoned,
                    node.facts.labels.clone(),
                    node.facts.taints.clone(),
                    node.conditions.clone(),
                )
            });
            (
                name.clone(),
                format!("{told:?} {node:?} {:?} {} {:?}", machine.secret, machine.applied, machine.runner),
            )
        });
        end.collect()
    }

    fn change(&mut self, name: &str, version: Option<&str>, change: impl FnOnce(&mut NodeFacts)) {
        self.version += 1;
        if let Some(node) = &mut self.machines.get_mut(name).unwrap().node
            && version.is_none_or(|version| version == node.version)
        {
            node.version = self.version.to_string();
            change(&mut node.facts);
        }
    }

    fn facts(&mut self, name: &str) -> &mut NodeFacts {
        &mut self.machines.get_mut(name).unwrap().node.as_mut().unwrap().facts
    }
}

// === impl Machine ===

impl Machine {
    fn is_labelled(&self) -> bool {
        let labels = self.node.as_ref().map(|node| &node.facts.labels);
        labels.is_some_and(|labels| labels.contains_key(LABEL) || labels.contains_key(SEED_LABEL))
    }

    fn has_ended(&self) -> bool {
        match self.fate {
            Fate::AnswersFromLedger | Fate::FailsEarly => self.step == Some(1),
            Fate::Lost => self.step == Some(4),
            Fate::RollsBack | Fate::FailsLate => self.step == Some(6),
            _ => self.step == Some(7),
        }
    }

    fn go_on(&mut self, name: &str, now: Timestamp, version: u64) {
        let step = self.step.map_or(0, |step| step + 1);
        self.step = Some(step);
        let failed = |step: &str| State::Failed {
            reason: "no room".to_owned(),
            step: step.to_owned(),
            retryable: false,
        };
        let state = match (step, self.fate) {
            (0, _) => State::Claimed,
            (1, Fate::AnswersFromLedger) => State::Done,
            (1, Fate::FailsEarly) => failed("preflight"),
            (1, _) => State::Preflight,
            (2, _) => State::Staged,
            (3, _) => State::Armed,
            // The machine is down: it reports nothing, and its Node object may be deleted.
            (4, fate) => {
                self.was_down = true;
                self.boot += 1;
                match &mut self.node {
                    node if fate == Fate::RegistersAnew => *node = None,
                    Some(node) => node.facts.ready = false,
                    None => {}
                }
                return;
            }
            (5, fate) => {
                if !matches!(fate, Fate::RollsBack) {
                    self.applied += 1;
                }
                return;
            }
            (6, fate) => {
                let node = self.node.get_or_insert_with(|| registered(name, false));
                node.facts.boot_id = format!("boot-{}", self.boot);
                node.facts.ready = true;
                self.was_down = false;
                // The kubelet completes the deletion of terminating pods.
                if self.runner == Runner::Going {
                    self.runner = Runner::None;
                }
                match fate {
                    Fate::RollsBack => State::RolledBack { reason: "x".to_owned(), step: "y".to_owned() },
                    Fate::FailsLate => failed("verify"),
                    _ => State::Verifying,
                }
            }
            _ => State::Done,
        };
        let Some(node) = &mut self.node else { return };
        if step == 3 {
            node.facts.labels.remove(LABEL);
            node.facts.labels.remove(SEED_LABEL);
        }
        let told = json!({"attempt": name, "detail": state, "step": "", "time": now}).to_string();
        node.facts.annotations.insert(STATE_ANNOTATION.to_owned(), told);
        node.version = version.to_string();
    }
}

/// Returns a Node object as registered by a kubelet. It may have the labels and annotations of
/// administrators.
fn registered(name: &str, with_notes: bool) -> FleetNode {
    let mut facts = NodeFacts { ready: true, boot_id: "boot-0".to_owned(), ..NodeFacts::default() };
    facts.labels.insert("kubernetes.io/hostname".to_owned(), name.to_owned());
    if with_notes {
        facts.labels.insert("zone".to_owned(), "a".to_owned());
        facts.annotations.insert("team".to_owned(), "x".to_owned());
        facts.taints.push("gpu=yes:NoSchedule".to_owned());
    }
    let uid = if with_notes { FIRST } else { "another" }.to_owned();
    FleetNode { name: name.to_owned(), uid, version: "1".to_owned(), facts, ..FleetNode::default() }
}
