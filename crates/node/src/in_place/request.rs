//! The request of an attempt. It is in the ledger, so that the next boot can read it; the Secret is not.

use serde::{Deserialize, Serialize};

use crate::in_place::flavour::Flavour;

pub use landfall_model::in_place::{LABEL, NAMESPACE, SECRET_KEY, SEED_LABEL, secret_names};

/// Free space required for the new system beside the old one, after its image was fetched.
pub const FREE_BYTES: u64 = 16 * 1024 * 1024 * 1024;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Request {
    pub node: String,
    pub flavour: Flavour,
    /// Whether the bootstrap uses a cluster.
    pub cluster: ClusterUse,
    pub free_bytes: u64,
    /// Counts runs with the same Secret, when an administrator repeats one.
    pub number: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClusterUse {
    /// Labels are removed and states are shown. While the API server does not answer, the machine is not changed.
    Needed,
    /// Only this machine is affected.
    None,
}
