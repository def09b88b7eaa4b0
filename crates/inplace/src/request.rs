//! What was asked for. It is in the ledger, so that the next boot knows it; the Secret is not.

use serde::{Deserialize, Serialize};

use crate::flavour::Flavour;

/// The label of the seed, and what it is set to.
pub const SEED_LABEL: &str = "ibm-cloud.kubernetes.io/ipb-schedule";
pub const LABEL: &str = "landfall.dev/in-place";
pub const NAMESPACE: &str = "kube-system";
/// The key of the Secret that holds everything.
pub const SECRET_KEY: &str = "bootstrap";
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

/// The names of the Secret of a node, the native one first.
pub fn secret_names(node: &str) -> [String; 2] {
    [format!("landfall-in-place-{node}"), format!("ibm-ipb-{node}")]
}
