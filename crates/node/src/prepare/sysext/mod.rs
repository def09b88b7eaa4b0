//! System extensions of systemd: the living successor of torcx, behind the same planner.
//!
//! An image lies in `/opt/extensions/NAME/`, outside every folder systemd searches, and becomes part of the system by a
//! link in `/etc/extensions`. Before the link flips, the image is opened and its `extension-release` held against the
//! operating system that runs and the one that will: systemd itself skips an extension that does not fit without a word,
//! and gives up all of them for one it cannot open.

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

/// The extension that holds kubelet, kubeadm and kubectl.
pub const KUBERNETES: &str = "kubernetes";
pub const STORE: &str = "/opt/extensions";
pub const LINKS: &str = "/etc/extensions";
/// Everywhere systemd looks for extensions.
pub const SEARCHED: [&str; 5] =
    [LINKS, "/run/extensions", "/var/lib/extensions", "/usr/local/lib/extensions", "/usr/lib/extensions"];

/// What is known about extensions.
#[derive(Clone, Debug)]
pub struct ExtensionFacts {
    pub architecture: Architecture,
    pub mappings: Resolved<Mappings>,
    pub indexes: Vec<ExtensionIndex>,
    /// Images that are there with the content their index wants.
    pub stored: BTreeSet<PathBuf>,
    /// Where the links point now.
    pub links: BTreeMap<String, PathBuf>,
    pub merging: Merging,
}

/// When linked extensions become part of the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Merging {
    /// The system runs here: as soon as they are linked.
    Now,
    /// Another system's root: when that system boots. These are part of it already.
    AtBoot { merged: Vec<String> },
}

/// What there is of one extension.
#[derive(Clone, Debug)]
pub struct ExtensionIndex {
    pub name: String,
    pub sums: Sums,
    pub index: Index,
    /// The folders that hold the images, each with `/` at its end.
    pub folders: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SysextError {
    #[error("no image of `{name}` fits: wanted {wanted} for {architecture}, there is {available}")]
    Nothing { name: String, wanted: String, architecture: &'static str, available: String },
    #[error("there is no list of images of `{name}`")]
    NoIndex { name: String },
}

/// The extensions this cluster wants: the kubelet's own, then what the mappings say.
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

/// The newest patch of the same minor version: the skew policy leaves patches free.
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
