//! `manifest.json`, the table of contents of a bundle: the requested items, their outcomes, and the checksums to verify
//! them.

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
    /// The `<id>` of the top-level directory `log-bundle-<id>/`.
    pub id: String,
    pub node: NodeIdentity,
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub started: Timestamp,
    /// Absent when the stream was truncated; items before that point are still complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub ended: Option<Timestamp>,
    pub items: Vec<BundleItem>,
}

/// An item that was collected or could not be. A failing collector is evidence, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct BundleItem {
    /// Path inside the bundle, below `log-bundle-<id>/`.
    pub path: String,
    /// Source of the item: a host path, a unit, a probe.
    pub source: String,
    pub outcome: ItemOutcome,
    pub duration_ms: u64,
    pub bytes: u64,
    /// Bytes omitted because of a limit.
    #[serde(default)]
    pub truncated: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Number of replaced secrets, by kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub redactions: BTreeMap<String, u64>,
}

// === impl BundleItem ===

impl BundleItem {
    /// Returns a record of an item without a file in the bundle.
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
    /// Not present on this host.
    Absent,
    /// Not attempted: the item does not apply to this host or this collection method.
    Skipped {
        reason: String,
    },
    Failed {
        error: String,
    },
    TimedOut,
    /// Omitted because it could not be redacted safely.
    Withheld {
        reason: String,
    },
}
