//! The plan as data: every input with its origin, the conclusions, and the planned actions.
//!
//! A dry run prints this document, the ledger keeps it, and a failed run reports it.

use std::fmt;
use std::path::PathBuf;

use landfall_fetch::Refusal;
use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::os_release::OsRelease;
use super::skew::Skew;
use super::version::{KubeVersion, OsVersion};

/// The version of the document.
pub const FORMAT: u32 = 1;

/// The mechanism that installs the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// Addon images and profiles of Container Linux and of Flatcar before 3794.
    Torcx,
    /// System extensions of systemd.
    Sysext,
    /// Only `kubelet.env`; another tool manages the runtime.
    None,
}

/// Origin of a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Origin {
    /// Set on the command line.
    Forced,
    ApiServer,
    ConfigMap {
        name: String,
    },
    File {
        path: PathBuf,
    },
    /// The table built into this binary.
    Embedded,
    /// Default value, because no other origin provides one.
    Assumed,
    UpdateEngine,
    Url {
        url: String,
    },
}

/// A value, its origin, and the origins that did not provide it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resolved<T> {
    pub value: T,
    pub origin: Origin,
    /// Preferred origins that did not answer, and why.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub passed_over: Vec<PassedOver>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedOver {
    pub origin: Origin,
    pub reason: String,
}

/// One API server behind the endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerAnswer {
    /// The address of the endpoint, or of the server itself.
    pub address: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub version: Option<KubeVersion>,
    /// Why the server did not report its version.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// The complete decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    pub format: u32,
    pub backend: Backend,
    pub inputs: Inputs,
    /// The version of the kubelet that will be started.
    pub kubelet: KubeVersion,
    pub skew: Skew,
    pub runtimes: Vec<Runtime>,
    pub artefacts: Vec<Artefact>,
    /// Files written before the reboot, in this order.
    pub files: Vec<PlannedFile>,
    /// The file that the kubelet waits for. It is written last.
    pub kubelet_env: Option<PlannedFile>,
    pub reboot: Reboot,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Inputs {
    pub cluster_version: Resolved<KubeVersion>,
    pub api_servers: Vec<ServerAnswer>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub runtime_mappings: Option<Resolved<Vec<Wanted>>>,
    pub current_os: Resolved<OsRelease>,
    pub next_os: Resolved<Option<OsVersion>>,
    pub indexes: Vec<Index>,
}

/// Versions and images that the mappings specify for this cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    pub name: String,
    /// Versions in order of preference.
    pub versions: Vec<String>,
}

/// A list of images that was fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    /// The URL that delivered the list.
    pub url: String,
    /// Preceding locations that did not deliver it.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub passed_over: Vec<PassedOver>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub system: Option<OsVersion>,
    pub signature: Signature,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub enum Signature {
    Verified {
        fingerprints: Vec<String>,
    },
    /// Verification was disabled on request.
    NotVerified,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Runtime {
    pub name: String,
    /// `None` when the system contains the only possible version.
    pub chosen: Option<String>,
    pub systems: Vec<OsVersion>,
    pub reason: String,
}

/// One image for one operating system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Artefact {
    pub name: String,
    pub version: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub system: Option<OsVersion>,
    pub digest: Digest,
    pub path: PathBuf,
    pub action: Action,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub enum Action {
    /// Part of that operating system.
    ShipsWithSystem,
    /// Already installed with the expected content.
    Present,
    /// Available elsewhere on this machine with the expected content.
    Copy {
        from: PathBuf,
    },
    Fetch {
        urls: Vec<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlannedFile {
    pub path: PathBuf,
    pub why: String,
    pub content: Content,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub enum Content {
    Text { text: String },
    Link { to: PathBuf },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reboot {
    pub needed: bool,
    pub because: Vec<String>,
    /// Files written right before the image, visible only in this boot.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub files: Vec<PlannedFile>,
}

/// An image that was fetched, and its final source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fetched {
    pub path: PathBuf,
    pub url: String,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub passed_over: Vec<PassedOver>,
}

// === impl Resolved ===

impl<T> Resolved<T> {
    pub fn from(origin: Origin, value: T) -> Self {
        Self { value, origin, passed_over: Vec::new() }
    }

    /// Converts the value and keeps its origins.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Resolved<U> {
        Resolved { value: change(self.value), origin: self.origin, passed_over: self.passed_over }
    }
}

// === impl PassedOver ===

impl From<Refusal> for PassedOver {
    fn from(refusal: Refusal) -> Self {
        Self { origin: Origin::Url { url: refusal.url }, reason: refusal.reason }
    }
}

// === impl Origin ===

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forced => f.write_str("the command line"),
            Self::ApiServer => f.write_str("the API server"),
            Self::ConfigMap { name } => write!(f, "ConfigMap `{name}`"),
            Self::File { path } => write!(f, "`{}`", path.display()),
            Self::Embedded => f.write_str("the built-in table"),
            Self::Assumed => f.write_str("no other setting"),
            Self::UpdateEngine => f.write_str("update_engine"),
            Self::Url { url } => write!(f, "`{url}`"),
        }
    }
}

// === impl Backend ===

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Torcx => "torcx",
            Self::Sysext => "systemd-sysext",
            Self::None => "none",
        })
    }
}
