//! What the ledger of node work records about one step, and the events that tell of it.
//!
//! An event has a place in its run: `(attempt, sequence, part)`. State events have part 0 and are in the ledger before
//! anyone hears of them; progress between two of them counts parts upward and may be lost. A consumer that remembers
//! the last place it saw can therefore ask for the rest, and hearing an event twice is harmless.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// The version of the record format. Readers refuse a newer one rather than guess.
pub const FORMAT: u32 = 1;

/// One step of a run, as it stands on disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StepRecord {
    /// Unique within its run, plain words joined by hyphens.
    pub name: String,
    pub state: StepState,
    /// How often the step was begun, across restarts and boots. Zero means it changed nothing.
    pub attempts: u32,
    /// How often it asked for a reboot.
    pub reboots: u32,
    /// The boot in which the state was last changed.
    pub boot_id: String,
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub started: Option<Timestamp>,
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub ended: Option<Timestamp>,
}

/// Where a step stands. `Applying` found at start means the process died in the middle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum StepState {
    Pending,
    Applying,
    Done,
    /// Nothing to do: the step's check found its work done.
    Skipped {
        reason: String,
    },
    /// Waits for something outside this machine.
    Waiting {
        on: String,
    },
    /// Done as far as this boot can go; the next boot confirms.
    RebootNeeded,
    Failed {
        reason: String,
        retry: Retry,
    },
    /// Its rollback was begun. Found at start, it means the process died in the middle of it.
    RollingBack,
    RolledBack,
    /// What it changed could not be taken back: a person has to look.
    RollbackFailed {
        reason: String,
    },
}

/// Whether the same attempt may help later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Retry {
    Never,
    Now,
    Later,
}

/// Something that happened in a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    pub format: u32,
    /// What was asked, hashed: the same request has the same attempt.
    pub attempt: String,
    /// Counts state events of the attempt, from 1. A gap means that a damaged ledger lost some.
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
    /// A process took the run up, for the first time or again.
    Opened { run: String, steps: Vec<StepTitle>, start: Start },
    /// A step came into a new state.
    Step { step: String, state: StepState, attempts: u32 },
    /// A step that had given up may be tried again: a person said so.
    Reopened { step: String },
    /// The run came to its end; nothing follows but a reopening.
    Ended { outcome: Outcome },
    /// How far the present step is.
    Progress { step: String, done: u64, total: Option<u64>, unit: Unit },
}

/// A step as people read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StepTitle {
    pub name: String,
    pub title: String,
}

/// How a process found its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Start {
    /// Never begun before.
    Fresh,
    /// Begun by another process of the same boot.
    Restarted,
    /// Begun in an earlier boot.
    Rebooted,
    /// The newest record was damaged; the one before it was taken.
    Recovered,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Unit {
    Bytes,
    Items,
}

/// How a run, or one process's part in it, came out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Outcome {
    Done,
    /// The machine has to boot before the run can go on.
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
    /// It failed, and everything it had changed was taken back.
    RolledBack {
        step: String,
        reason: String,
    },
    /// It failed, and some of what it had changed is still there.
    RollbackFailed {
        step: String,
        reason: String,
        stuck: Vec<String>,
    },
    /// The process was asked to stop; the run can be taken up again.
    Cancelled,
    /// A person gave the run up.
    Abandoned {
        reason: String,
    },
}

// === impl StepState ===

impl StepState {
    /// The step needs nothing more for the run to go on behind it.
    pub fn is_behind(&self) -> bool {
        matches!(self, Self::Done | Self::Skipped { .. })
    }

    /// The word used in every format.
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
    /// Where the event stands in its attempt.
    pub fn place(&self) -> (u64, u32) {
        (self.sequence, self.part)
    }
}

// === impl Outcome ===

impl Outcome {
    /// Nothing is left to do for this attempt, unless a person reopens it.
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
