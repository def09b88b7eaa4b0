//! The names by which an in-place bootstrap is asked for, and the words in which a node tells how far it is: what the
//! machine's side and the controller's side agree on.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The label of the original, asked for by `true`.
pub const SEED_LABEL: &str = "ibm-cloud.kubernetes.io/ipb-schedule";
/// Our own label, asked for by `requested`.
pub const LABEL: &str = "landfall.dev/in-place";
/// The namespace the original keeps its Secrets in.
pub const NAMESPACE: &str = "kube-system";
/// The key of the Secret that holds everything.
pub const SECRET_KEY: &str = "bootstrap";
/// The annotation in which a node tells how far it is.
pub const STATE_ANNOTATION: &str = "landfall.dev/in-place-state";
/// What a node tells is one state and a reason.
const MAX_TOLD: usize = 64 * 1024;

/// The states of an attempt, in their order, and the ways it ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "InPlaceState"))]
pub enum State {
    /// Asked for; nothing is written down yet.
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
    /// What was begun was taken back: the machine is as it was.
    RolledBack {
        reason: String,
        step: String,
    },
}

/// What a node says of its attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    pub attempt: String,
    pub detail: State,
    #[serde(default)]
    pub step: String,
    pub time: Timestamp,
}

/// One event of an attempt, as a hub is told it. `(attempt, sequence)` names it: told twice, it is the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Progress {
    pub attempt: String,
    /// Counts the events of the attempt from 1.
    pub sequence: u64,
    /// By the node's clock.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub time: Timestamp,
    pub boot_id: String,
    /// What the event led to.
    pub state: State,
    /// The step it is about, where it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// The names of the Secret of a node, the native one first.
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
    /// What an annotation says; nothing when it was not written by a node of ours.
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
