//! What was asked for. It is in the ledger, so that the next boot knows it; the Secret is not.

use serde::{Deserialize, Serialize};

use crate::flavour::Flavour;

pub use landfall_model::in_place::{LABEL, NAMESPACE, SECRET_KEY, SEED_LABEL, secret_names};

/// Room for the new system beside the old one, after its image was fetched.
pub const FREE_BYTES: u64 = 16 * 1024 * 1024 * 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Request {
    pub node: String,
    pub flavour: Flavour,
    /// Whether there is a cluster to ask at all.
    pub cluster: ClusterUse,
    pub free_bytes: u64,
    /// Counts runs with the same Secret: a person insisted.
    pub number: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClusterUse {
    /// Labels are taken off and states are shown; without an answer the machine is not touched.
    Needed,
    /// Nobody but this machine is concerned.
    None,
}
