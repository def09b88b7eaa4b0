//! What the controller remembers of a node: its `NodeBootstrap`, named after it. It outlives the Node object, which the
//! new life of a machine may delete and register again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use landfall_cluster::Kind;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub const KIND: Kind =
    Kind { group: "landfall.dev", version: "v1alpha1", kind: "NodeBootstrap", plural: "nodebootstraps" };

/// Why a node waits that was asked for again with the Secret it has used.
pub const SECRET_USED: &str = "SecretUsed";
/// Clocks of two machines that lead by turns may be this far apart.
const MAX_SKEW: Duration = Duration::from_mins(2);

/// Where a node is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// Asked for; its turn has not come.
    Waiting,
    Cordoning,
    Draining,
    /// Empty: the pod that does it is put on the node.
    HandedOver,
    /// The node has said its first word.
    Running,
    /// It is back.
    Restoring,
    Done,
    Failed,
    /// The label was taken off before anything happened.
    Cancelled,
}

/// What must be on the node again afterwards.
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
    /// In one word, why it waits or failed.
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub message: String,
    /// When this phase began.
    pub since: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handed_over: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Timestamp>,
    /// What the node last said of itself, and under which attempt.
    #[serde(default)]
    pub state: String,
    #[serde(default)]
    pub attempt: String,
    /// The boot the node was in before.
    #[serde(default)]
    pub boot_before: String,
    /// Which Node object it was, and whether somebody else had cordoned it: of a new one nobody knows.
    #[serde(default)]
    pub node_before: String,
    #[serde(default)]
    pub cordoned_before: bool,
    /// Which version of its Secret, or of the template, it was begun with.
    #[serde(default)]
    pub source: String,
    #[serde(default)]
    pub saved: Notes,
    /// Requests for certificates that were found to be this node's.
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

    /// The node is ours to look after: it is away, or about to be.
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

    /// Whether the node has come to an end of its own with this Secret: it would only answer from its ledger. One that was
    /// given up before its end would go on.
    pub fn has_used(&self, source: &str) -> bool {
        let is_over = match self.phase {
            Phase::Done => true,
            Phase::Failed => ["Failed", "RolledBack", "AlreadyDone", SECRET_USED].contains(&&*self.reason),
            Phase::Waiting => self.reason == SECRET_USED,
            _ => false,
        };
        is_over && !self.attempt.is_empty() && !source.is_empty() && self.source == source
    }

    /// The same with no moment later than now; nothing where there is none. A clock was wrong when it was written, and no
    /// deadline that is counted from it would ever pass.
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

    /// The same node, one phase on.
    #[must_use]
    pub fn enter(&self, phase: Phase, now: Timestamp, reason: &str, message: &str) -> Self {
        let since = if phase == self.phase { self.since } else { now };
        Self { phase, since, reason: reason.to_owned(), message: message.to_owned(), ..self.clone() }
    }

    /// The name and the record of an object; nothing when nobody wrote its status yet.
    pub fn read(object: &Value) -> Option<(String, Self)> {
        let name = object.pointer("/metadata/name")?.as_str()?.to_owned();
        let record = serde_json::from_value(object.get("status")?.clone()).ok()?;
        Some((name, record))
    }

    /// The object without its status.
    pub fn object(node: &str) -> Value {
        json!({"spec": {"nodeName": node}})
    }

    pub fn status(&self) -> Result<Value, serde_json::Error> {
        Ok(json!({"status": serde_json::to_value(self)?}))
    }
}

// === impl Notes ===

impl Notes {
    /// What of this is not in the other. Values that are there but differ are the new life's own.
    #[must_use]
    pub fn missing_in(&self, other: &Self) -> Self {
        let absent = |own: &BTreeMap<String, String>, there: &BTreeMap<String, String>| {
            let own = own.iter().filter(|(key, _)| !there.contains_key(*key));
            own.map(|(key, value)| (key.clone(), value.clone())).collect()
        };
        // A taint is its key and its effect.
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
