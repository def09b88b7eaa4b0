//! Ledger records of the steps of node work, and the events that report them.
//!
//! An event has a position in its run: `(attempt, sequence, part)`. State events have part 0 and are in the ledger
//! before they are reported. Progress between two of them has increasing parts and may be lost. A consumer that
//! remembers the last position can therefore request the rest, and duplicate events are harmless.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The version of the record format. Readers reject newer versions.
pub const FORMAT: u32 = 1;

/// The stored record of one step of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StepRecord {
    /// Unique name within the run: words joined by hyphens.
    pub name: String,
    pub state: StepState,
    /// Number of attempts, across restarts and boots. Zero means that the step changed nothing.
    pub attempts: u32,
    /// Number of reboots that the step requested.
    pub reboots: u32,
    /// The boot of the last state change.
    pub boot_id: String,
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub started: Option<Timestamp>,
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub ended: Option<Timestamp>,
}

/// State of a step. `Applying` at startup means that the process ended during the step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum StepState {
    Pending,
    Applying,
    Done,
    /// No change was necessary: the step's check found its work done.
    Skipped {
        reason: String,
    },
    /// Waiting for a condition outside this host.
    Waiting {
        on: String,
    },
    /// Done as far as possible in this boot; the next boot confirms the step.
    RebootNeeded,
    Failed {
        reason: String,
        retry: Retry,
    },
    /// Rollback has started. At startup, this means that the process ended during the rollback.
    RollingBack,
    RolledBack,
    /// The changes could not be rolled back; an operator must intervene.
    RollbackFailed {
        reason: String,
    },
}

/// Whether and when a retry of the same attempt may succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Retry {
    Never,
    Now,
    Later,
}

/// An event of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    pub format: u32,
    /// Hash of the request: the same request has the same attempt.
    pub attempt: String,
    /// Position among the state events of the attempt, from 1. A gap means that a damaged ledger lost events.
    pub sequence: u64,
    /// 0 for a state event; progress after it counts from 1.
    pub part: u32,
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub time: Timestamp,
    pub boot_id: String,
    pub what: Happening,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "camelCase", tag = "kind")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Happening {
    /// A process started or resumed the run.
    Opened { run: String, steps: Vec<StepTitle>, start: Start },
    /// A step changed its state.
    Step { step: String, state: StepState, attempts: u32 },
    /// An operator permitted a failed step to be retried.
    Reopened { step: String },
    /// The run ended; only a reopening can follow.
    Ended { outcome: Outcome },
    /// Progress of the current step.
    Progress { step: String, done: u64, total: Option<u64>, unit: Unit },
}

/// A step's name and its title for users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StepTitle {
    pub name: String,
    pub title: String,
}

/// State of the run when a process started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Start {
    /// Not started before.
    Fresh,
    /// Started by another process of the same boot.
    Restarted,
    /// Started in an earlier boot.
    Rebooted,
    /// The newest record was damaged; the previous one is used.
    Recovered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Unit {
    Bytes,
    Items,
}

/// Outcome of a run, or of one process's part in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Outcome {
    Done,
    /// The host must reboot before the run can continue.
    RebootNeeded {
        step: String,
    },
    Waiting {
        step: String,
        on: String,
    },
    Failed {
        step: String,
        reason: String,
        retry: Retry,
    },
    /// The run failed, and all its changes were rolled back.
    RolledBack {
        step: String,
        reason: String,
    },
    /// The run failed, and some of its changes remain.
    RollbackFailed {
        step: String,
        reason: String,
        stuck: Vec<String>,
    },
    /// The process was stopped; the run can be resumed.
    Cancelled,
    /// An operator abandoned the run.
    Abandoned {
        reason: String,
    },
}

// === impl StepState ===

impl StepState {
    /// Returns whether the run can continue after this step.
    pub fn is_behind(&self) -> bool {
        matches!(self, Self::Done | Self::Skipped { .. })
    }

    /// Returns the name used in every format.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Applying => "applying",
            Self::Done => "done",
            Self::Skipped { .. } => "skipped",
            Self::Waiting { .. } => "waiting",
            Self::RebootNeeded => "reboot-needed",
            Self::Failed { .. } => "failed",
            Self::RollingBack => "rolling-back",
            Self::RolledBack => "rolled-back",
            Self::RollbackFailed { .. } => "rollback-failed",
        }
    }
}

// === impl Event ===

impl Event {
    /// Returns the position of the event in its attempt.
    pub fn place(&self) -> (u64, u32) {
        (self.sequence, self.part)
    }
}

// === impl Outcome ===

impl Outcome {
    /// Returns whether this ends the attempt, unless an operator reopens it.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Done | Self::RolledBack { .. } | Self::RollbackFailed { .. } | Self::Abandoned { .. } => {
                true
            }
            Self::Failed { retry, .. } => *retry == Retry::Never,
            Self::RebootNeeded { .. } | Self::Waiting { .. } | Self::Cancelled => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_written_with_the_names_they_have() {
        let states = [
            StepState::Pending,
            StepState::Applying,
            StepState::Done,
            StepState::Skipped { reason: "r".into() },
            StepState::Waiting { on: "o".into() },
            StepState::RebootNeeded,
            StepState::Failed { reason: "r".into(), retry: Retry::Later },
            StepState::RollingBack,
            StepState::RolledBack,
            StepState::RollbackFailed { reason: "r".into() },
        ];
        for state in states {
            let written = serde_json::to_value(&state).unwrap();
            assert_eq!(written["is"], state.name());
            assert_eq!(serde_json::from_value::<StepState>(written).unwrap(), state);
        }
    }

    #[test]
    fn an_event_reads_back_as_it_was_written() {
        let event = Event {
            format: FORMAT,
            attempt: "a1".into(),
            sequence: 7,
            part: 0,
            time: "2026-01-02T03:04:05Z".parse().unwrap(),
            boot_id: "b".into(),
            what: Happening::Ended { outcome: Outcome::Waiting { step: "s".into(), on: "o".into() } },
        };
        let written = serde_json::to_string(&event).unwrap();
        assert!(
            written.contains(r#""what":{"kind":"ended","outcome":{"is":"waiting","step":"s","on":"o"}}"#),
            "{written}"
        );
        assert_eq!(serde_json::from_str::<Event>(&written).unwrap(), event);
    }
}
