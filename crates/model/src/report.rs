//! The report: the output of `landfall diagnose --output json`, which carriers deliver.
//!
//! The format is stable (`docs/reference/report.schema.json`). Fields are added, never changed; readers ignore unknown
//! ones.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Cause, Confidence, Phase};

/// The version of the report format.
pub const FORMAT: u32 = 1;

/// A diagnosis with its evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Report {
    pub format: u32,
    pub verdict: Verdict,
    /// Root causes first, then the findings they explain, then the rest by confidence.
    pub findings: Vec<Finding>,
    pub timeline: Vec<TimelineEntry>,
    pub sources: Vec<Source>,
    /// The last evidence, if the evidence does not support a verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen: Option<Evidence>,
    /// Suggested checks and collections, if the evidence does not support a verdict.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub next_steps: Vec<String>,
    /// Explanation of the verdict, only on request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<Reasoning>,
}

/// The conclusion of a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Verdict {
    pub state: State,
    /// `null` when there is no problem or no known cause; `state` distinguishes the two.
    pub cause: Option<Cause>,
    pub title: String,
    pub component: Option<String>,
    pub phase: Option<Phase>,
    pub confidence: Confidence,
    /// Whether the decisive evidence has a proven origin. A verdict from claimed evidence never causes the deletion of
    /// a machine.
    #[serde(default)]
    pub trust: Trust,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum State {
    /// The bootstrap failed, or cannot succeed without a change.
    Failed,
    /// A stage started and has not ended.
    Hung,
    /// In progress, without a detected problem.
    Running,
    /// Working, with a problem that is not fatal.
    Degraded,
    Succeeded,
    /// The evidence does not support a verdict.
    Unknown,
}

/// A cause recognized in the evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Finding {
    pub cause: Cause,
    pub title: String,
    /// Whether no other finding explains this one.
    pub root: bool,
    pub confidence: Confidence,
    pub class: Class,
    /// Other findings of this report that follow from this one.
    pub explains: Vec<Cause>,
    pub evidence: Vec<Evidence>,
    /// The hosts with this finding, if the evidence is from several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    pub fix: String,
    /// Reason for excluding the finding, if it no longer counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ruled_out: Option<String>,
    /// The catalog page of the cause.
    pub reference: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Class {
    /// A retry on the same host cannot succeed.
    Terminal,
    /// May resolve by itself.
    Retryable,
    /// A consequence of another cause, reported or not.
    Symptom,
}

/// How reliably the origin of evidence is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Trust {
    /// Only the text itself states its origin: any process that can write to that log could have written it.
    #[default]
    Claimed,
    /// The kernel, the service manager or journald's own fields state the origin, or only root can write the file.
    Proven,
}

/// A line that supports a finding, with its location.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Evidence {
    /// The name of the source, with the stream if a source has several: `journal:kubelet.service`.
    pub source: String,
    /// Line number, from 1.
    pub line: u64,
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub time: Option<Timestamp>,
    pub text: String,
    /// Whether the origin of the line is proven. Reports of older versions omit it, which means claimed.
    #[serde(default)]
    pub trust: Trust,
    /// The part of the text that was recognized.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub focus: String,
    /// Preceding lines of the same message, such as a traceback.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
    /// Following lines of the same message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// Number of lines of this kind in the source, including this one.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub count: u64,
}

/// A phase, as far as the evidence shows it.
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
    /// The boot of the host, from 1, if the evidence covers several.
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

/// An input. If reading it failed, `error` is set, and the counts cover the part before the error.
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

/// Explanation of the verdict.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Reasoning {
    /// Steps of the selection of the verdict, in order.
    pub verdict: Vec<String>,
    /// Every finding, in the order of the report.
    pub findings: Vec<FindingReason>,
    /// Every observed stage, in order.
    pub stages: Vec<StageReason>,
    /// Versions found in the logs, as `component version`.
    pub versions: Vec<String>,
}

/// Explanation of a finding's confidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FindingReason {
    pub cause: Cause,
    /// Each kind of line that supports the finding, strongest first.
    pub lines: Vec<LineReason>,
    /// Combination of the line weights.
    pub arithmetic: String,
    /// The findings that explain this one, and the rule for it.
    pub explained_by: Vec<String>,
}

/// The weight of all lines of one rule in one source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LineReason {
    pub rule: String,
    pub source: String,
    pub line: u64,
    pub count: u64,
    /// The confidence from one such line alone.
    pub strength: f64,
    /// Whether the origin of the newest of these lines is proven.
    #[serde(default)]
    pub trust: Trust,
    /// The confidence after all reductions.
    pub weight: f64,
    /// The reductions, in order.
    pub because: Vec<String>,
}

/// A stage and its last observed state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StageReason {
    pub stage: String,
    pub phase: Phase,
    pub outcome: PhaseOutcome,
    /// Location of its last line: `source:line`.
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
    /// Returns the name used in every format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Claimed => "claimed",
            Self::Proven => "proven",
        }
    }
}

// === impl State ===

impl State {
    /// All states, the most urgent first.
    pub const ALL: [Self; 6] =
        [Self::Failed, Self::Hung, Self::Degraded, Self::Unknown, Self::Running, Self::Succeeded];

    /// Returns the name used in every format and on the command line.
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
