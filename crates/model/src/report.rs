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
    pub fix: String,
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
