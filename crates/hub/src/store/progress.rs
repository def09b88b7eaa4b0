//! Progress of in-place bootstraps.
//!
//! It is stored by node name, because a machine may send progress before its first report.

use jiff::Timestamp;
use landfall_model::in_place::Progress;
use serde::Serialize;

/// Maximum number of stored events per attempt: a complete attempt has about 30, and a retried one repeats them.
pub const MAX_EVENTS: u32 = 256;
/// Maximum number of stored attempts per node.
pub const MAX_ATTEMPTS: u32 = 8;

/// A progress event with its time of receipt.
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

/// The newest progress event of a node's newest attempt at an in-place bootstrap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProgressLine {
    pub node: String,
    #[serde(flatten)]
    pub event: ProgressEvent,
}

/// Outcome of a progress event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Heard {
    Stored,
    /// The event is already stored, or was removed in favor of newer events.
    Duplicate,
    /// Another event has the same attempt and sequence.
    Taken,
}
