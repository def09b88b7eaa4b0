//! The phases of one node, from its cordon to the end of its bootstrap.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use landfall_model::in_place::{State, Told};

use super::queue::has_passed;
use super::{Action, Recordon, drain, unseen};
use crate::certificates::{Expected, claimed_node, prove};
use crate::policy::{Approvals, Policy, Secrets};
use crate::record::{Phase, Record};
use crate::world::{Cordon, Node, Runner, SecretState, World};

/// Certificate requests approved per attempt: a client and a serving certificate, and one repetition of each.
const MAX_APPROVALS: usize = 4;

/// One node in one pass.
struct Turn<'a> {
    policy: &'a Policy,
    world: &'a World,
    name: &'a str,
    record: &'a Record,
}

/// An unsuccessful end of a node's attempt.
struct End<'a> {
    phase: Phase,
    reason: &'a str,
    message: &'a str,
    /// Kept for states without a rollback: an administrator must check the node before it gets pods.
    cordon: Keep,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Kept,
    GivenBack,
}

pub(super) fn next(policy: &Policy, world: &World, name: &str, record: &Record) -> Vec<Action> {
    let turn = Turn { policy, world, name, record };
    let Some(node) = world.nodes.get(name) else { return turn.without_node() };
    match record.phase {
        Phase::Waiting | Phase::Done | Phase::Cancelled => Vec::new(),
        Phase::Cordoning => turn.cordoning(node),
        Phase::Draining => turn.draining(node),
        Phase::HandedOver => turn.handed_over(node),
        Phase::Running => turn.running(node),
        Phase::Restoring => turn.restoring(node),
        Phase::Failed => turn.failed(node),
    }
}

/// Whether the state is final without further action.
pub(super) fn is_end(state: &State) -> bool {
    matches!(state, State::Done | State::RolledBack { .. } | State::Failed { retryable: false, .. })
}

// === impl Turn ===

impl Turn<'_> {
    fn cordoning(&self, node: &Node) -> Vec<Action> {
        // The record was deleted during the attempt: the earlier pod is running, and the state is of this
        // attempt.
        if node.runner == Runner::There && node.told.as_ref().is_some_and(|told| !is_end(&told.detail)) {
            return self.told(node);
        }
        if !node.is_requested {
            return self.cancel(node);
        }
        match (node.cordon, node.has_told) {
            (Cordon::None, _) => self.cordon(node),
            (_, true) => {
                vec![Action::ClearTold { node: self.name.to_owned(), version: node.version.clone() }]
            }
            (_, false) => vec![self.enter(Phase::Draining, "", "its pods are asked to go")],
        }
    }

    fn draining(&self, node: &Node) -> Vec<Action> {
        if node.told.is_some() {
            return self.told(node);
        }
        let left = drain::look(&node.pods, &self.policy.drain);
        let text = left.text(&self.world.refused.evictions);
        if self.is_late(self.record.since, self.policy.drain.within) && !left.is_empty() {
            return self.give_up(node, &failure("DrainTimeout", &text, Keep::GivenBack));
        }
        if !node.is_requested {
            return self.cancel(node);
        }
        // Another client removed the cordon: new pods would be scheduled while others are evicted.
        if node.cordon == Cordon::None {
            return self.cordon(node);
        }
        if left.is_empty() {
            let record = Record {
                handed_over: Some(self.world.now),
                ..self.record.enter(Phase::HandedOver, self.world.now, "", "the node is empty")
            };
            return vec![self.write(record)];
        }
        let mut actions: Vec<Action> = left
            .to_evict
            .iter()
            .map(|pod| Action::Evict { node: self.name.to_owned(), pod: (*pod).clone() })
            .collect();
        if self.record.message != text {
            actions.push(self.enter(Phase::Draining, "", &text));
        }
        actions
    }

    fn handed_over(&self, node: &Node) -> Vec<Action> {
        if node.told.is_some() {
            return self.told(node);
        }
        if self.is_late(self.record.since, self.policy.claim_within) {
            let message = match self.record.reason.as_str() {
                "" => "the pod on the node did not say a word: see `kubectl describe pod`",
                _ => self.record.message.as_str(),
            };
            return self.give_up(node, &failure("NotClaimed", message, Keep::GivenBack));
        }
        if !node.is_requested {
            return match node.runner {
                Runner::None => self.cancel(node),
                Runner::There | Runner::Rejected => {
                    vec![Action::StopRunner { node: self.name.to_owned() }]
                }
                // A terminating pod may still claim the node.
                Runner::Going => Vec::new(),
            };
        }
        if node.runner != Runner::None {
            return self.with_pod(node);
        }
        // Last check that the node is still cordoned and drained.
        if node.cordon == Cordon::None || !drain::look(&node.pods, &self.policy.drain).is_empty() {
            return vec![self.enter(Phase::Draining, "", "its pods are evicted again")];
        }
        if !self.has_room(node) {
            return self.hindered("MaxUnavailable", "as many others are away as may be");
        }
        let begin = match &node.secret {
            SecretState::Missing if self.policy.secrets == Secrets::Template => {
                Action::MakeSecret { node: self.name.to_owned() }
            }
            SecretState::Missing => {
                return self.hindered("SecretMissing", "the Secret of the node is gone");
            }
            SecretState::Given { name } | SecretState::Own { name } => {
                Action::StartRunner { node: self.name.to_owned(), secret: name.clone() }
            }
        };
        let refused = self.world.refused.runners.get(self.name);
        let told = refused.map(|why| self.hindered("PodRefused", &format!("the cluster refused it: {why}")));
        [begin].into_iter().chain(told.into_iter().flatten()).collect()
    }

    /// Handles a node with a running or terminating pod. A blocked pod is reported immediately. A pod that
    /// will never run is deleted, so that another one can start.
    fn with_pod(&self, node: &Node) -> Vec<Action> {
        let mut actions = match &node.hindrance {
            Some(why) => self.hindered("PodHindered", &format!("the pod on the node does not run: {why}")),
            None if self.record.reason.is_empty() => Vec::new(),
            None => vec![self.enter(Phase::HandedOver, "", "the pod is on the node")],
        };
        if node.runner == Runner::Rejected {
            actions.push(Action::StopRunner { node: self.name.to_owned() });
        }
        actions
    }

    fn hindered(&self, reason: &str, message: &str) -> Vec<Action> {
        if self.record.reason == reason && self.record.message == message {
            return Vec::new();
        }
        vec![self.enter(Phase::HandedOver, reason, message)]
    }

    /// Records that the node has reported its first state.
    fn told(&self, node: &Node) -> Vec<Action> {
        let now = self.world.now;
        let record = self.record.enter(Phase::Running, now, "", "the node has begun");
        let handed_over = Some(self.record.handed_over.unwrap_or(now));
        vec![self.write(Record { handed_over, ..with_told(record, node.told.as_ref()) })]
    }

    fn running(&self, node: &Node) -> Vec<Action> {
        let is_new_boot = node.boot_id != self.record.boot_before;
        match node.told.as_ref().map(|told| &told.detail) {
            Some(State::Done) if !is_new_boot => {
                let message = "the node says it is done already with this Secret: hand in a new one";
                return self.give_up(node, &failure("AlreadyDone", message, Keep::GivenBack));
            }
            Some(State::Done) if node.is_ready => {
                let record = self.record.enter(Phase::Restoring, self.world.now, "", "the node is back");
                return vec![self.write(with_told(record, node.told.as_ref()))];
            }
            Some(State::RolledBack { reason, step }) => {
                let message = format!("`{step}` failed and was taken back: {reason}");
                let keep = if node.is_ready { Keep::GivenBack } else { Keep::Kept };
                return self.give_up(node, &failure("RolledBack", &message, keep));
            }
            Some(State::Failed { reason, step, retryable: false }) => {
                let message = format!("`{step}` failed: {reason}");
                let keep = if node.is_ready && !is_new_boot { Keep::GivenBack } else { Keep::Kept };
                return self.give_up(node, &failure("Failed", &message, keep));
            }
            _ => {}
        }
        if self.has_not_returned() {
            return self.lost(node);
        }
        if let Some(again) = self.runner_again(node, is_new_boot) {
            return vec![again];
        }
        let mut actions = self.approvals(Some(node));
        if actions.is_empty() {
            let record = with_told(self.record.clone(), node.told.as_ref());
            if record != *self.record {
                actions.push(self.write(record));
            }
        }
        actions
    }

    /// Starts another pod if the first was deleted before the node was armed. An armed node needs no pod.
    fn runner_again(&self, node: &Node, is_new_boot: bool) -> Option<Action> {
        let told = node.told.as_ref()?;
        let is_under_way = matches!(
            told.detail,
            State::Requested | State::Claimed | State::Preflight | State::Staged | State::Failed { .. }
        );
        let is_left = node.runner == Runner::None && node.is_requested && node.is_ready && !is_new_boot;
        match &node.secret {
            SecretState::Given { name } | SecretState::Own { name } if is_left && is_under_way => {
                Some(Action::StartRunner { node: self.name.to_owned(), secret: name.clone() })
            }
            _ => None,
        }
    }

    fn restoring(&self, node: &Node) -> Vec<Action> {
        let missing = self.record.saved.missing_in(&node.notes);
        let (name, version) = (self.name.to_owned(), node.version.clone());
        let mut actions = self.approvals(Some(node));
        if !node.is_ready {
            if self.has_not_returned() {
                return self.lost(node);
            }
            return actions;
        }
        let is_another = node.uid != self.record.node_before;
        let cordon = match node.cordon {
            Cordon::None if self.record.cordoned_before && is_another => Recordon::Theirs,
            _ => Recordon::No,
        };
        if !missing.is_empty() || cordon == Recordon::Theirs {
            let taints =
                (!missing.taints.is_empty()).then(|| node.taints.union(&missing.taints).cloned().collect());
            actions.push(Action::Restore { node: name, version, missing, taints, cordon });
            return actions;
        }
        if let SecretState::Own { name: secret } = &node.secret {
            actions.push(Action::DropSecret { node: name.clone(), name: secret.clone() });
        }
        if matches!(node.runner, Runner::There | Runner::Rejected) {
            actions.push(Action::StopRunner { node: name.clone() });
        }
        if node.cordon == Cordon::Own {
            actions.push(Action::Uncordon { node: name, version });
        }
        if actions.is_empty() {
            let message = match node.cordon {
                Cordon::Foreign => "it runs its new configuration; it stays cordoned, as before",
                _ => "it runs its new configuration",
            };
            actions.push(self.ended(Phase::Done, "", message));
        }
        actions
    }

    /// Handles a failed node that completed its bootstrap late.
    fn failed(&self, node: &Node) -> Vec<Action> {
        let is_done = node.told.as_ref().is_some_and(|told| told.detail == State::Done);
        if is_done && node.is_ready && node.boot_id != self.record.boot_before && !node.is_requested {
            let record = self.record.enter(Phase::Restoring, self.world.now, "", "the node is back, late");
            return vec![self.write(with_told(record, node.told.as_ref()))];
        }
        Vec::new()
    }

    /// Handles a deleted Node object, which is expected during the bootstrap but not before it.
    fn without_node(&self) -> Vec<Action> {
        match self.record.phase {
            Phase::Cordoning | Phase::Draining | Phase::HandedOver => {
                vec![self.ended(Phase::Failed, "NodeGone", "the Node was deleted before its turn")]
            }
            Phase::Running | Phase::Restoring if self.has_not_returned() => {
                vec![self.ended(Phase::Failed, "NotReturned", "the Node is gone and did not come back")]
            }
            Phase::Running => self.approvals(None),
            _ => Vec::new(),
        }
    }

    fn lost(&self, node: &Node) -> Vec<Action> {
        let said = if self.record.state.is_empty() { "nothing" } else { &self.record.state };
        let message = format!("the node did not come back in time; the last it said was {said}");
        self.give_up(node, &failure("NotReturned", &message, Keep::Kept))
    }

    fn cancel(&self, node: &Node) -> Vec<Action> {
        let message = "the label was removed before anything happened";
        let end = End { phase: Phase::Cancelled, reason: "", message, cordon: Keep::GivenBack };
        self.give_up(node, &end)
    }

    /// Cleans up, and records the end only afterwards. The label is removed first, so that a later label is a
    /// new request.
    fn give_up(&self, node: &Node, end: &End<'_>) -> Vec<Action> {
        let name = || self.name.to_owned();
        let mut actions = Vec::new();
        if matches!(node.runner, Runner::There | Runner::Rejected) {
            actions.push(Action::StopRunner { node: name() });
        }
        if let SecretState::Own { name: secret } = &node.secret {
            actions.push(Action::DropSecret { node: name(), name: secret.clone() });
        }
        if node.cordon == Cordon::Own && end.cordon == Keep::GivenBack {
            actions.push(Action::Uncordon { node: name(), version: node.version.clone() });
        }
        if node.is_requested {
            actions.push(Action::TakeLabelsOff { node: name() });
        }
        if actions.is_empty() {
            actions.push(self.ended(end.phase, end.reason, end.message));
        }
        actions
    }

    /// Returns the approvals of the node's certificate requests. A verified request is recorded before it is
    /// approved.
    ///
    /// A node whose object was deleted requests a certificate before it can register again. In that case its
    /// last recorded state counts, and none of its addresses is known.
    fn approvals(&self, node: Option<&Node>) -> Vec<Action> {
        let Approvals::Proven { bootstrap_users } = &self.policy.approvals else { return Vec::new() };
        let told = node.and_then(|node| node.told.as_ref()).map(|told| told.detail.name());
        // The next state may have been written to an object that was deleted before it was observed.
        let staged = node.is_none() && self.record.state == "Staged";
        let armed = ["Armed", "Applying", "Rebooting", "Verifying", "Done"];
        // If the Node object is unchanged, only its own state counts. The record counts only for a new or
        // missing object.
        let before = &self.record.node_before;
        let is_same = node.is_some_and(|node| before.is_empty() || node.uid == *before);
        let said = told.unwrap_or(if is_same { "" } else { &self.record.state });
        let armed = staged || armed.contains(&said);
        let unknown = BTreeSet::new();
        let Some(from) = self.record.handed_over.filter(|_| armed) else { return Vec::new() };
        let limit = SignedDuration::try_from(self.policy.return_within).unwrap_or(SignedDuration::MAX);
        let expected = Expected {
            node: self.name,
            from,
            until: from.checked_add(limit).unwrap_or(Timestamp::MAX),
            addresses: node.map_or(&unknown, |node| &node.addresses),
            bootstrap_users,
        };
        let mut record = self.record.clone();
        let mut granted = Vec::new();
        for request in &self.world.requests {
            if claimed_node(request).as_deref() != Some(self.name) || prove(request, &expected).is_err() {
                continue;
            }
            if record.approved.len() < MAX_APPROVALS {
                record.approved.insert(request.name.clone());
            }
            if record.approved.contains(&request.name) {
                granted.push(Action::Approve { node: self.name.to_owned(), request: request.name.clone() });
            }
        }
        if record != *self.record {
            granted.insert(0, self.write(record));
        }
        granted
    }

    fn has_not_returned(&self) -> bool {
        let since = self.record.handed_over.unwrap_or(self.record.since);
        self.is_late(since, self.policy.return_within)
    }

    fn is_late(&self, since: Timestamp, limit: std::time::Duration) -> bool {
        has_passed(since, limit, self.world.now)
    }

    fn cordon(&self, node: &Node) -> Vec<Action> {
        if !self.has_room(node) {
            return Vec::new();
        }
        vec![Action::Cordon { node: self.name.to_owned(), version: node.version.clone() }]
    }

    /// Whether the limit permits this node to be unavailable. The limit is checked before each disruptive
    /// step, whatever the record contains: other nodes may have become unavailable, and records can be
    /// edited. Of several candidates, the first by name continues.
    fn has_room(&self, node: &Node) -> bool {
        let is_away = |name: &String, node: &Node| {
            let is_before = name.as_str() < self.name
                && self.world.records.get(name).is_some_and(|record| record.phase.is_active());
            node.cordon == Cordon::Own || !node.is_ready || is_before
        };
        let others = self.world.nodes.iter().filter(|(name, _)| *name != self.name);
        let away = others.filter(|(name, node)| is_away(name, node)).count() + unseen(self.world).count();
        !node.is_ready || away < self.policy.max_unavailable.of(self.world.nodes.len())
    }

    fn ended(&self, phase: Phase, reason: &str, message: &str) -> Action {
        let node = self.world.nodes.get(self.name);
        let record = self.record.enter(phase, self.world.now, reason, message);
        let record = with_told(record, node.and_then(|node| node.told.as_ref()));
        self.write(Record { finished: Some(self.world.now), ..record })
    }

    fn enter(&self, phase: Phase, reason: &str, message: &str) -> Action {
        self.write(self.record.enter(phase, self.world.now, reason, message))
    }

    fn write(&self, record: Record) -> Action {
        Action::Write { node: self.name.to_owned(), record: Box::new(record) }
    }
}

fn failure<'a>(reason: &'a str, message: &'a str, cordon: Keep) -> End<'a> {
    End { phase: Phase::Failed, reason, message, cordon }
}

/// Adds the state that the node reported. While the bootstrap runs, it is also the message.
fn with_told(record: Record, told: Option<&Told>) -> Record {
    let Some(told) = told else { return record };
    let message = match &told.detail {
        _ if record.phase != Phase::Running => record.message.clone(),
        State::Failed { reason, step, retryable: true } => {
            format!("`{step}` failed and is retried: {reason}")
        }
        state => format!("the node says it is {}", state.name()),
    };
    Record { state: told.detail.name().to_owned(), attempt: told.attempt.clone(), message, ..record }
}
