//! The request of a run.
//!
//! The ledger stores it, so that a resumed run needs no flags. It contains no secret.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::decision::Backend;
use super::{kubelet_env, template};

pub const KUBECONFIG: &str = "/etc/kubernetes/kubeconfig";
pub const MAPPINGS: &str = "/etc/kubernetes/installer/runtime-mappings.yaml";
pub const KEYRING: &str = "/pubring.gpg";
pub const PROFILE: &str = "tectonic";
/// The extensions of the Flatcar sysext bakery.
pub const EXTENSIONS_URL: &str = "https://extensions.flatcar.org/extensions/{{.Extension}}/";

/// All inputs that decide what a run does.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own on the command line")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Request {
    pub kubeconfig: PathBuf,
    pub force_kube_version: Option<String>,
    /// The first is the primary location; the others are its mirrors.
    pub manifest_urls: Vec<String>,
    pub extension_urls: Vec<String>,
    pub trust: Trust,
    pub mappings_file: PathBuf,
    /// `None`: not written.
    pub kubelet_env: Option<PathBuf>,
    pub profile: String,
    pub upgrade_os: bool,
    pub skip_setup: bool,
    /// `None`: chosen by operating system.
    pub backend: Option<Backend>,
    pub allow_skew: bool,
    /// CAs for downloads, instead of those of the machine.
    pub authority: Option<PathBuf>,
    pub fleet_lock: Option<FleetLock>,
    pub cluster_namespace: String,
    /// Queries only this node: for the hook that runs before a reboot.
    pub local_only: bool,
}

/// The signatures that are required.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Trust {
    pub verify: bool,
    pub keyring: PathBuf,
    /// Primary keys that may sign; empty allows every key in the keyring.
    pub fingerprints: Vec<String>,
    /// Number of different keys that must have signed.
    pub threshold: usize,
    /// Requires the index format that states its system and its expiry.
    pub require_fresh: bool,
}

/// The lock server that decides whether this machine may reboot now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FleetLock {
    pub url: String,
    pub group: String,
    pub id: String,
}

// === impl Request ===

impl Default for Request {
    fn default() -> Self {
        Self {
            kubeconfig: KUBECONFIG.into(),
            force_kube_version: None,
            manifest_urls: vec![template::MANIFEST_URL.to_owned()],
            extension_urls: vec![EXTENSIONS_URL.to_owned()],
            trust: Trust::default(),
            mappings_file: MAPPINGS.into(),
            kubelet_env: Some(kubelet_env::PATH.into()),
            profile: PROFILE.to_owned(),
            upgrade_os: true,
            skip_setup: false,
            backend: None,
            allow_skew: false,
            authority: None,
            fleet_lock: None,
            cluster_namespace: "tectonic-system".to_owned(),
            local_only: false,
        }
    }
}

// === impl Trust ===

impl Default for Trust {
    fn default() -> Self {
        Self {
            verify: true,
            keyring: KEYRING.into(),
            fingerprints: Vec::new(),
            threshold: 1,
            require_fresh: false,
        }
    }
}
