//! The labels and annotations of in-place bootstraps, and the states that a node reports: the contract between node and
//! controller.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The label of the IBM implementation, requested by the value `true`.
pub const SEED_LABEL: &str = "ibm-cloud.kubernetes.io/ipb-schedule";
/// Landfall's label, requested by the value `requested`.
pub const LABEL: &str = "landfall.dev/in-place";
/// The namespace of the Secrets in the IBM implementation.
pub const NAMESPACE: &str = "kube-system";
/// The key of the Secret's data.
pub const SECRET_KEY: &str = "bootstrap";
/// The annotation in which a node reports its progress.
pub const STATE_ANNOTATION: &str = "landfall.dev/in-place-state";
/// Maximum size of a reported state, which has one state and a reason.
const MAX_TOLD: usize = 64 * 1024;

/// The states of an attempt in order, followed by its final states.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "InPlaceState"))]
pub enum State {
    /// Requested; no record of the attempt exists yet.
    Requested,
    Claimed,
    Preflight,
    Staged,
    Armed,
    Applying,
    Rebooting,
    Verifying,
    Done,
    Failed {
        reason: String,
        step: String,
        retryable: bool,
    },
    /// All changes were rolled back: the host has its previous state.
    RolledBack {
        reason: String,
        step: String,
    },
}

/// Progress of an attempt, as reported by a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    pub attempt: String,
    pub detail: State,
    #[serde(default)]
    pub step: String,
    pub time: Timestamp,
}

/// One event of an attempt, as reported to a hub. `(attempt, sequence)` identifies it, so duplicates have no effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Progress {
    pub attempt: String,
    /// Position among the events of the attempt, from 1.
    pub sequence: u64,
    /// Time by the node's clock.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub time: Timestamp,
    pub boot_id: String,
    /// State after the event.
    pub state: State,
    /// The step of the event, if it concerns one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// Returns the names of a node's Secret, landfall's own first.
pub fn secret_names(node: &str) -> [String; 2] {
    [format!("landfall-in-place-{node}"), format!("ibm-ipb-{node}")]
}

// === impl State ===

impl State {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Requested => "Requested",
            Self::Claimed => "Claimed",
            Self::Preflight => "Preflight",
            Self::Staged => "Staged",
            Self::Armed => "Armed",
            Self::Applying => "Applying",
            Self::Rebooting => "Rebooting",
            Self::Verifying => "Verifying",
            Self::Done => "Done",
            Self::Failed { .. } => "Failed",
            Self::RolledBack { .. } => "RolledBack",
        }
    }
}

// === impl Told ===

impl Told {
    /// Parses an annotation; returns `None` if landfall did not write it.
    pub fn parse(annotation: &str) -> Option<Self> {
        if annotation.len() > MAX_TOLD {
            return None;
        }
        serde_json::from_str(annotation).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_tells_is_read_and_nonsense_is_not() {
        let text = r#"{"attempt":"a1","state":"Failed","detail":{"is":"failed","reason":"no room","step":"preflight",
            "retryable":false},"step":"preflight","time":"2026-01-02T03:04:05Z"}"#;
        let told = Told::parse(text).unwrap();
        assert_eq!((told.attempt.as_str(), told.detail.name()), ("a1", "Failed"));
        for nonsense in ["", "{}", "[]", r#"{"attempt":1}"#, &"x".repeat(MAX_TOLD + 1)] {
            assert_eq!(Told::parse(nonsense), None);
        }
    }
}
