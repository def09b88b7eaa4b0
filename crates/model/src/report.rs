//! The report: what `landfall diagnose --output json` prints and every carrier carries.
//!
//! The format is a promise to users (`docs/reference/report.schema.json`). Fields are added, never changed; readers
//! ignore what they do not know.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Cause, Confidence, Phase};

/// The version of the report format.
pub const FORMAT: u32 = 1;

/// A diagnosis with its reasons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Report {
    pub format: u32,
    pub verdict: Verdict,
    /// Root causes first, then what they explain, then the rest by confidence.
    pub findings: Vec<Finding>,
    pub timeline: Vec<TimelineEntry>,
    pub sources: Vec<Source>,
    /// Where the evidence does not decide: the last thing it shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<Evidence>,
    /// Where the evidence does not decide: what to look at and collect next.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub next_steps: Vec<String>,
    /// Why the verdict is what it is; only when it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<Reasoning>,
}

/// The one answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Verdict {
    pub state: State,
    /// `null` when nothing is wrong or nothing is known; `state` tells which.
    pub cause: Option<Cause>,
    pub title: String,
    pub component: Option<String>,
    pub phase: Option<Phase>,
    pub confidence: Confidence,
    /// Whether the evidence that decided has a proven origin. A verdict that is only claimed deletes no machine.
    #[serde(default)]
    pub trust: Trust,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum State {
    /// It ended badly, or cannot end well without a change.
    Failed,
    /// A stage opened and nothing closes it.
    Hung,
    /// Still going, nothing wrong seen.
    Running,
    /// It works, with something broken that does not stop it.
    Degraded,
    Succeeded,
    /// The evidence does not decide.
    Unknown,
}

/// Something recognised in the evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Finding {
    pub cause: Cause,
    pub title: String,
    /// Nothing else found explains it.
    pub root: bool,
    pub confidence: Confidence,
    pub class: Class,
    /// The other findings of this report that follow from this one.
    pub explains: Vec<Cause>,
    pub evidence: Vec<Evidence>,
    /// The machines it was seen on, where the evidence comes from several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    pub fix: String,
    /// Why it no longer counts, when it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ruled_out: Option<String>,
    /// The page of the catalogue.
    pub reference: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Class {
    /// Trying again on the same machine cannot help.
    Terminal,
    /// May pass by itself.
    Retryable,
    /// Follows from something else, named or not.
    Symptom,
}

/// How far the origin of evidence is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Trust {
    /// The text itself names its origin: anyone who can write to that log could have written it.
    #[default]
    Claimed,
    /// The kernel, the service manager or journald's own fields state the origin, or only root can write the file.
    Proven,
}

/// A line that proves something, and where to find it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Evidence {
    /// The name of the source, and where one source holds several streams, the stream: `journal:kubelet.service`.
    pub source: String,
    /// Counted from 1.
    pub line: u64,
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub time: Option<Timestamp>,
    pub text: String,
    /// Whether the origin of the line is proven. Reports of older versions do not say, so it is not.
    #[serde(default)]
    pub trust: Trust,
    /// The part of the text that was recognised.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub focus: String,
    /// The lines before it that belong to the same message: a traceback.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
    /// The lines after it that belong to the same message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// How many lines of this kind the source holds; this is one of them.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u64,
}

/// A phase as far as the evidence shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TimelineEntry {
    pub phase: Phase,
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub started: Option<Timestamp>,
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub ended: Option<Timestamp>,
    pub outcome: PhaseOutcome,
    /// Which boot of the machine, counted from 1, where several are seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum PhaseOutcome {
    Ok,
    Failed,
    Open,
}

/// What was read. An input that could not be read has `error` and counts of what was read before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Source {
    pub name: String,
    pub kind: String,
    pub bytes: u64,
    pub lines: u64,
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub first: Option<Timestamp>,
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub last: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How the verdict came about.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reasoning {
    /// How the verdict was chosen, in order.
    pub verdict: Vec<String>,
    /// Every finding, in the order of the report.
    pub findings: Vec<FindingReason>,
    /// Every stage that was seen, in order.
    pub stages: Vec<StageReason>,
    /// Versions the logs tell, as `component version`.
    pub versions: Vec<String>,
}

/// Why a finding counts for as much as it does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FindingReason {
    pub cause: Cause,
    /// Each kind of line that speaks for it, strongest first.
    pub lines: Vec<LineReason>,
    /// How the kinds of lines add up.
    pub arithmetic: String,
    /// The findings that explain it, and by what.
    pub explained_by: Vec<String>,
}

/// What the lines of one rule in one source prove.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LineReason {
    pub rule: String,
    pub source: String,
    pub line: u64,
    pub count: u64,
    /// What such a line proves by itself.
    pub strength: f64,
    /// Whether the origin of the newest of these lines is proven.
    #[serde(default)]
    pub trust: Trust,
    /// What is left of it.
    pub weight: f64,
    /// What took from it, in order.
    pub because: Vec<String>,
}

/// A stage, and how it was last seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StageReason {
    pub stage: String,
    pub phase: Phase,
    pub outcome: PhaseOutcome,
    /// Where its last word stands: `source:line`.
    pub place: String,
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub time: Option<Timestamp>,
}

fn one() -> u64 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_one(count: &u64) -> bool {
    *count == 1
}

// === impl Trust ===

impl Trust {
    /// The name used in every format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Claimed => "claimed",
            Self::Proven => "proven",
        }
    }
}

// === impl State ===

impl State {
    /// What needs a person first comes first.
    pub const ALL: [Self; 6] =
        [Self::Failed, Self::Hung, Self::Degraded, Self::Unknown, Self::Running, Self::Succeeded];

    /// The name used in every format and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Hung => "hung",
            Self::Running => "running",
            Self::Degraded => "degraded",
            Self::Succeeded => "succeeded",
            Self::Unknown => "unknown",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::State;

    #[test]
    fn names_and_formats_agree() {
        for state in State::ALL {
            assert_eq!(serde_json::to_value(state).unwrap(), state.name());
        }
    }
}
