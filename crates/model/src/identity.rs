//! Identity of a host.

use serde::{Deserialize, Serialize};

/// The identity of a host, before any cluster knows it. Every field except the host name may be missing, so that a
/// broken host can still report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeIdentity {
    pub hostname: String,
    /// `/etc/machine-id`: stable across reboots, new after re-imaging.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_id: Option<String>,
    /// `/proc/sys/kernel/random/boot_id`: distinguishes a reboot from a restart of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// `PRETTY_NAME` of os-release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// The cloud provider's ID of this host, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
}
