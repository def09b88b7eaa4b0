//! The controller's state of a node: a `NodeBootstrap` named after it.
//!
//! It outlives the Node object, which an in-place bootstrap may delete and register again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use landfall_cluster::Kind;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub const KIND: Kind =
    Kind { group: "landfall.dev", version: "v1alpha1", kind: "NodeBootstrap", plural: "nodebootstraps" };

/// The reason of a node that was requested again with a Secret it has already used.
pub const SECRET_USED: &str = "SecretUsed";
/// Tolerated clock difference between the hosts of two replicas.
const MAX_SKEW: Duration = Duration::from_mins(2);

/// The phase of a node's bootstrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// Requested, but not started.
    Waiting,
    Cordoning,
    Draining,
    /// Drained: the pod that runs the bootstrap is being started.
    HandedOver,
    /// The node has reported its first state.
    Running,
    /// The node has returned; its labels and taints are being restored.
    Restoring,
    Done,
    Failed,
    /// The label was removed before the node was changed.
    Cancelled,
}

/// Properties of the node to restore afterwards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Notes {
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    /// `key=value:Effect`.
    pub taints: BTreeSet<String>,
}

/// The `status` of a `NodeBootstrap`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub phase: Phase,
    /// The reason why the node waits or failed, as a single word.
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub message: String,
    /// Start of this phase.
    pub since: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handed_over: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Timestamp>,
    /// The last state that the node reported, and the attempt it belongs to.
    #[serde(default)]
    pub state: String,
    #[serde(default)]
    pub attempt: String,
    /// The node's boot ID before the bootstrap.
    #[serde(default)]
    pub boot_before: String,
    /// UID of the Node object, and whether another client had cordoned it. A new object would not show that.
    #[serde(default)]
    pub node_before: String,
    #[serde(default)]
    pub cordoned_before: bool,
    /// Version of the Secret or template with which the node started.
    #[serde(default)]
    pub source: String,
    #[serde(default)]
    pub saved: Notes,
    /// Certificate requests that were verified to be this node's.
    #[serde(default)]
    pub approved: BTreeSet<String>,
}

// === impl Phase ===

impl Phase {
    pub const ALL: [Self; 9] = [
        Self::Waiting,
        Self::Cordoning,
        Self::Draining,
        Self::HandedOver,
        Self::Running,
        Self::Restoring,
        Self::Done,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Whether the controller is handling the node: it is unavailable, or about to be.
    pub fn is_active(self) -> bool {
        matches!(self, Self::Cordoning | Self::Draining | Self::HandedOver | Self::Running | Self::Restoring)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Cordoning => "Cordoning",
            Self::Draining => "Draining",
            Self::HandedOver => "HandedOver",
            Self::Running => "Running",
            Self::Restoring => "Restoring",
            Self::Done => "Done",
            Self::Failed => "Failed",
            Self::Cancelled => "Cancelled",
        }
    }
}

// === impl Record ===

impl Record {
    pub fn new(phase: Phase, since: Timestamp) -> Self {
        Self {
            phase,
            reason: String::new(),
            message: String::new(),
            since,
            started: None,
            handed_over: None,
            finished: None,
            state: String::new(),
            attempt: String::new(),
            boot_before: String::new(),
            node_before: String::new(),
            cordoned_before: false,
            source: String::new(),
            saved: Notes::default(),
            approved: BTreeSet::new(),
        }
    }

    /// Whether the node's attempt with this Secret has ended. The node would only repeat the result from its
    /// ledger. An attempt that the controller abandoned before its end would continue.
    pub fn has_used(&self, source: &str) -> bool {
        let is_over = match self.phase {
            Phase::Done => true,
            Phase::Failed => ["Failed", "RolledBack", "AlreadyDone", SECRET_USED].contains(&&*self.reason),
            Phase::Waiting => self.reason == SECRET_USED,
            _ => false,
        };
        is_over && !self.attempt.is_empty() && !source.is_empty() && self.source == source
    }

    /// Returns the record with future times set to now, or `None` if it has none. Such a time comes from a
    /// wrong clock, and a deadline that counts from it would never be reached.
    #[must_use]
    pub fn without_future(&self, now: Timestamp) -> Option<Self> {
        let is_future = |moment: Timestamp| {
            SignedDuration::try_from(MAX_SKEW).is_ok_and(|skew| moment.duration_since(now) > skew)
        };
        let moments = [Some(self.since), self.started, self.handed_over, self.finished];
        if !moments.into_iter().flatten().any(is_future) {
            return None;
        }
        let clamped = |moment: Option<Timestamp>| moment.map(|moment| moment.min(now));
        Some(Self {
            since: self.since.min(now),
            started: clamped(self.started),
            handed_over: clamped(self.handed_over),
            finished: clamped(self.finished),
            ..self.clone()
        })
    }

    /// Returns the record in this phase.
    #[must_use]
    pub fn enter(&self, phase: Phase, now: Timestamp, reason: &str, message: &str) -> Self {
        let since = if phase == self.phase { self.since } else { now };
        Self { phase, since, reason: reason.to_owned(), message: message.to_owned(), ..self.clone() }
    }

    /// Returns the name and record of an object, or `None` if its status was not written yet.
    pub fn read(object: &Value) -> Option<(String, Self)> {
        let name = object.pointer("/metadata/name")?.as_str()?.to_owned();
        let record = serde_json::from_value(object.get("status")?.clone()).ok()?;
        Some((name, record))
    }

    /// Returns the object without its status.
    pub fn object(node: &str) -> Value {
        json!({"spec": {"nodeName": node}})
    }

    pub fn status(&self) -> Result<Value, serde_json::Error> {
        Ok(json!({"status": serde_json::to_value(self)?}))
    }
}

// === impl Notes ===

impl Notes {
    /// Returns the entries missing in the other. A key with another value is not missing: the new bootstrap
    /// has set it.
    #[must_use]
    pub fn missing_in(&self, other: &Self) -> Self {
        let absent = |own: &BTreeMap<String, String>, there: &BTreeMap<String, String>| {
            let own = own.iter().filter(|(key, _)| !there.contains_key(*key));
            own.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        // Taints are identified by key and effect.
        let same = |one: &str, two: &str| taint_identity(one) == taint_identity(two);
        let taints = self.taints.iter().filter(|own| !other.taints.iter().any(|there| same(own, there)));
        Self {
            labels: absent(&self.labels, &other.labels),
            annotations: absent(&self.annotations, &other.annotations),
            taints: taints.cloned().collect(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty() && self.taints.is_empty()
    }
}

fn taint_identity(taint: &str) -> (&str, &str) {
    let (rest, effect) = taint.rsplit_once(':').unwrap_or((taint, ""));
    (rest.split_once('=').map_or(rest, |(key, _)| key), effect)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_as_it_was_written() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let mut record = Record::new(Phase::Running, now);
        record.saved.taints.insert("gpu=yes:NoSchedule".to_owned());
        record.handed_over = Some(now);
        let mut object = record.status().unwrap();
        object["metadata"] = json!({"name": "n1"});
        assert_eq!(Record::read(&object), Some(("n1".to_owned(), record)));
        assert_eq!(Record::read(&json!({"metadata": {"name": "n1"}, "spec": {}})), None);
        assert_eq!(Record::read(&json!({"metadata": {"name": "n1"}, "status": {"phase": "Odd"}})), None);
    }

    #[test]
    fn only_what_is_missing_is_put_back() {
        let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let saved = Notes {
            labels: pairs(&[("zone", "a"), ("os", "8")]),
            annotations: pairs(&[("team", "x")]),
            taints: ["gpu=yes:NoSchedule".to_owned(), "old=1:NoExecute".to_owned()].into(),
        };
        let found = Notes {
            labels: pairs(&[("os", "9")]),
            annotations: BTreeMap::new(),
            taints: ["old=2:NoExecute".to_owned()].into(),
        };
        let missing = saved.missing_in(&found);
        assert_eq!(missing.labels, pairs(&[("zone", "a")]));
        assert_eq!(missing.annotations, pairs(&[("team", "x")]));
        assert_eq!(missing.taints, ["gpu=yes:NoSchedule".to_owned()].into());
        assert!(saved.missing_in(&saved).is_empty());
    }
}
