//! How far in-place bootstraps are. It is kept by the node's name: a machine may tell of its new life before it has ever
//! reported.

use jiff::Timestamp;
use landfall_model::in_place::Progress;
use serde::Serialize;

/// Events kept of one attempt: a whole one has about thirty, and one that is tried again and again repeats itself.
pub const MAX_EVENTS: u32 = 256;
/// Attempts kept of one node.
pub const MAX_ATTEMPTS: u32 = 8;

/// An event and when it came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProgressEvent {
    #[serde(flatten)]
    pub progress: Progress,
    /// By the hub's clock.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub received: Timestamp,
}

/// A node on its way through an in-place bootstrap: the newest event of its newest attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProgressLine {
    pub node: String,
    #[serde(flatten)]
    pub event: ProgressEvent,
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Heard {
    Stored,
    /// It is here already, or was and made room for newer ones.
    Duplicate,
    /// Another event has its attempt and sequence.
    Taken,
}
