//! `manifest.json`, the table of contents of a bundle: what was asked for, what came of it, and how to verify it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::identity::NodeIdentity;

/// The version of the manifest format.
pub const FORMAT: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BundleManifest {
    pub format: u32,
    /// The `<id>` of the folder `log-bundle-<id>/` that holds everything.
    pub id: String,
    pub node: NodeIdentity,
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub started: Timestamp,
    /// Missing when the stream was cut: what stands before the cut is still whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub ended: Option<Timestamp>,
    pub items: Vec<BundleItem>,
}

/// One thing that was collected, or could not be. A collector that fails is itself evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BundleItem {
    /// Path inside the bundle, below `log-bundle-<id>/`.
    pub path: String,
    /// What it was read from: a host path, a unit, a probe.
    pub source: String,
    pub outcome: ItemOutcome,
    pub duration_ms: u64,
    pub bytes: u64,
    /// Bytes left out because of a limit.
    #[serde(default)]
    pub truncated: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// How many secrets of each kind were replaced.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub redactions: BTreeMap<String, u64>,
}

// === impl BundleItem ===

impl BundleItem {
    /// A record of something that left no file in the bundle.
    pub fn without_file(path: String, source: String, outcome: ItemOutcome) -> Self {
        Self {
            path,
            source,
            outcome,
            duration_ms: 0,
            bytes: 0,
            truncated: 0,
            sha256: None,
            redactions: BTreeMap::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ItemOutcome {
    Collected,
    /// Not on this machine.
    Absent,
    /// Not tried, since it is not for this machine or this way of looking at it.
    Skipped {
        reason: String,
    },
    Failed {
        error: String,
    },
    TimedOut,
    /// Held back because it could not be made safe.
    Withheld {
        reason: String,
    },
}
