//! Which machine speaks.

use serde::{Deserialize, Serialize};

/// What a machine can say about itself before any cluster knows it. Every field but the host name may be missing: a
/// report from a broken machine is worth more than none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NodeIdentity {
    pub hostname: String,
    /// `/etc/machine-id`: stable across reboots, new after re-imaging.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_id: Option<String>,
    /// `/proc/sys/kernel/random/boot_id`: tells a reboot from a restart of the process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// `PRETTY_NAME` of os-release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// The cloud's name for this machine, where one is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<String>,
}
