//! The plan as data: every input with its origin, what follows from them, and what will be done. The same document is
//! printed by a dry run, kept in the ledger, and told when the work fails.

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

/// What lays the runtime down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// Addon images and profiles of Container Linux and of Flatcar before 3794.
    Torcx,
    /// System extensions of systemd.
    Sysext,
    /// Only `kubelet.env`; the runtime is somebody else's.
    None,
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Origin {
    /// Said on the command line.
    Forced,
    ApiServer,
    ConfigMap {
        name: String,
    },
    File {
        path: PathBuf,
    },
    /// The table this program carries.
    Embedded,
    /// Nobody says anything else.
    Assumed,
    UpdateEngine,
    Url {
        url: String,
    },
}

/// A value, where it came from, and where it did not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resolved<T> {
    pub value: T,
    pub origin: Origin,
    /// Better origins that did not answer, and why.
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
    /// The endpoint, or the server's own address.
    pub address: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub version: Option<KubeVersion>,
    /// Why it did not say its version.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// The whole decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    pub format: u32,
    pub backend: Backend,
    pub inputs: Inputs,
    /// The kubelet that will be started.
    pub kubelet: KubeVersion,
    pub skew: Skew,
    pub runtimes: Vec<Runtime>,
    pub artefacts: Vec<Artefact>,
    /// Files written before the reboot, in this order.
    pub files: Vec<PlannedFile>,
    /// The file the kubelet waits for; written last.
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

/// What the mappings want for this cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    pub name: String,
    /// Best first.
    pub versions: Vec<String>,
}

/// A list of images that was fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    /// The place that gave it.
    pub url: String,
    /// Places before it that did not.
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
    /// Nobody looked, because somebody said so.
    NotVerified,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Runtime {
    pub name: String,
    /// Nothing when the system carries the only one it can have.
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
    /// There already, with the right content.
    Present,
    /// Lies elsewhere on this machine with the right content.
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
    /// Written right before it, where only this boot sees them.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub files: Vec<PlannedFile>,
}

/// An image that was fetched, and where it came from in the end.
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

    /// The value after it has been looked at.
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
            Self::Assumed => f.write_str("nobody says anything else"),
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
