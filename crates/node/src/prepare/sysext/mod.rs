//! System extensions of systemd: the maintained successor of torcx, behind the same planner.
//!
//! An image is stored in `/opt/extensions/NAME/`, outside every directory that systemd searches. A link in
//! `/etc/extensions` makes it part of the system. Before the link changes, the image is opened and its
//! `extension-release` is compared with the current and the next operating system. systemd itself skips an
//! incompatible extension without a message, and merges no extension at all if it cannot open one of them.

pub mod image;
pub mod release;
pub mod squashfs;
mod sums;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

pub use sums::{Sums, SumsError};

use super::decision::{Action, Artefact, Content, Index, PlannedFile, Resolved, Runtime, Wanted};
use super::mappings::Mappings;
use super::os_release::Architecture;
use super::planner::{Facts, RuntimePart};
use super::version::{KubeVersion, is_tame};

/// The extension that contains kubelet, kubeadm and kubectl.
pub const KUBERNETES: &str = "kubernetes";
pub const STORE: &str = "/opt/extensions";
pub const LINKS: &str = "/etc/extensions";
/// All directories that systemd searches for extensions.
pub const SEARCHED: [&str; 5] =
    [LINKS, "/run/extensions", "/var/lib/extensions", "/usr/local/lib/extensions", "/usr/lib/extensions"];

/// Facts about the extensions of the node.
#[derive(Clone, Debug)]
pub struct ExtensionFacts {
    pub architecture: Architecture,
    pub mappings: Resolved<Mappings>,
    pub indexes: Vec<ExtensionIndex>,
    /// Stored images whose content matches their index.
    pub stored: BTreeSet<PathBuf>,
    /// Current targets of the links.
    pub links: BTreeMap<String, PathBuf>,
    pub merging: Merging,
}

/// The time at which linked extensions become part of the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Merging {
    /// The system is running: as soon as they are linked.
    Now,
    /// The root of another system: at its next boot. These are merged already.
    AtBoot { merged: Vec<String> },
}

/// The available versions of one extension.
#[derive(Clone, Debug)]
pub struct ExtensionIndex {
    pub name: String,
    pub sums: Sums,
    pub index: Index,
    /// The directories that contain the images, each with a trailing `/`.
    pub folders: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SysextError {
    #[error("no image of `{name}` fits: wanted {wanted} for {architecture}, there is {available}")]
    Nothing { name: String, wanted: String, architecture: &'static str, available: String },
    #[error("there is no list of images of `{name}`")]
    NoIndex { name: String },
}

/// Returns the extensions for this cluster: that of the kubelet, then those of the mappings.
pub fn wanted(kubelet: &KubeVersion, mappings: &Mappings) -> Vec<Wanted> {
    let kubernetes = Wanted { name: KUBERNETES.to_owned(), versions: vec![kubelet.release()] };
    let mapped = mappings.wanted(kubelet).into_iter();
    let mapped = mapped
        .filter(|(name, versions)| is_tame(name) && name != KUBERNETES && !versions.is_empty())
        .map(|(name, versions)| Wanted { name, versions });
    std::iter::once(kubernetes).chain(mapped).collect()
}

pub fn image_path(name: &str, file: &str) -> PathBuf {
    Path::new(STORE).join(name).join(file)
}

pub fn link_path(name: &str) -> PathBuf {
    Path::new(LINKS).join(format!("{name}.raw"))
}

pub(crate) fn plan(
    kubelet: &KubeVersion,
    facts: &Facts,
    extensions: &ExtensionFacts,
) -> Result<RuntimePart, SysextError> {
    let mut part = RuntimePart {
        indexes: extensions.indexes.iter().map(|entry| entry.index.clone()).collect(),
        ..RuntimePart::default()
    };
    let current = &facts.current_os.value.version;
    let systems: Vec<_> = facts.next_os.value.iter().chain([current]).cloned().collect();
    let list = wanted(kubelet, &extensions.mappings.value);
    let mut fresh: Vec<&str> = Vec::new();
    for Wanted { name, versions } in &list {
        let index = extensions.indexes.iter().find(|entry| entry.name == *name);
        let index = index.ok_or_else(|| SysextError::NoIndex { name: name.clone() })?;
        let architecture = extensions.architecture.name();
        let available = index.sums.versions(name, architecture);
        let exact = versions.iter().find(|version| available.contains(&version.as_str()));
        let chosen = match exact {
            Some(version) => version.clone(),
            None if name == KUBERNETES => {
                let patch = best_patch(kubelet, &available)
                    .ok_or_else(|| nothing(name, versions, architecture, &available))?;
                part.notes.push(format!(
                    "there is no {KUBERNETES} {}; {patch} is of the same minor version",
                    kubelet.release()
                ));
                patch
            }
            None => return Err(nothing(name, versions, architecture, &available)),
        };
        let file = format!("{name}-{chosen}-{architecture}.raw");
        let Some(digest) = index.sums.find(&file).cloned() else {
            return Err(nothing(name, versions, architecture, &available));
        };
        let path = image_path(name, &file);
        let action = if extensions.stored.contains(&path) {
            Action::Present
        } else {
            Action::Fetch { urls: index.folders.iter().map(|folder| format!("{folder}{file}")).collect() }
        };
        part.artefacts.push(Artefact {
            name: name.clone(),
            version: chosen.clone(),
            system: None,
            digest,
            path: path.clone(),
            action,
        });
        if let Merging::AtBoot { merged } = &extensions.merging
            && (extensions.links.get(name) != Some(&path) || !merged.contains(name))
        {
            fresh.push(name);
        }
        part.files.push(PlannedFile {
            path: link_path(name),
            why: format!("makes {name} {chosen} part of the system"),
            content: Content::Link { to: path },
        });
        part.runtimes.push(Runtime {
            name: name.clone(),
            reason: format!("the best of {} that there is for {architecture}", versions.join(", ")),
            chosen: Some(chosen),
            systems: systems.clone(),
        });
    }
    if !fresh.is_empty() {
        let fresh = fresh.join(", ");
        part.reboot
            .push(format!("this root is not the system that runs here: its next boot takes up {fresh}"));
    }
    part.wanted = Some(extensions.mappings.clone().map(|_| list));
    Ok(part)
}

/// Returns the newest patch of the same minor version: the skew policy does not restrict patches.
fn best_patch(kubelet: &KubeVersion, available: &[&str]) -> Option<String> {
    let versions = available.iter().filter_map(|text| text.parse::<KubeVersion>().ok());
    let same = versions.filter(|version| (version.major, version.minor) == (kubelet.major, kubelet.minor));
    same.max_by(KubeVersion::compare).map(|version| version.as_str().to_owned())
}

fn nothing(name: &str, wanted: &[String], architecture: &'static str, available: &[&str]) -> SysextError {
    SysextError::Nothing {
        name: name.to_owned(),
        wanted: wanted.join(", "),
        architecture,
        available: if available.is_empty() { "none".to_owned() } else { available.join(", ") },
    }
}
