//! Derives a decision from facts. Pure: no disk, no network, no clock.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::choice::{self, Choice, NothingSuitable, Offer};
use super::decision::{
    Action, Artefact, Backend, Content, Decision, FORMAT, Index, Inputs, PlannedFile, Reboot, Resolved,
    Runtime, ServerAnswer, Wanted,
};
use super::kubelet_env;
use super::manifest::{Location, Manifest};
use super::mappings::{Mappings, MappingsError};
use super::os_release::OsRelease;
use super::profile::{self, ProfileError};
use super::request::Request;
use super::skew::{self, Skew, SkewError};
use super::sysext::{self, ExtensionFacts};
use super::version::{KubeVersion, OsVersion};

/// The runtime that torcx provides.
pub const DOCKER: &str = "docker";
/// Directory of addon images per version of the operating system.
pub const STORE: &str = "/var/lib/torcx/store";

const CLEANUP: &str = "torcx-docker-cleanup.service";
/// Directory of units that exist in this boot only.
const UNITS: &str = "/run/systemd/system";
const CLEANUP_UNIT: &str = include_str!("../../../units/torcx-docker-cleanup.service");

/// All collected facts.
#[derive(Clone, Debug)]
pub struct Facts {
    pub cluster_version: Resolved<KubeVersion>,
    pub api_servers: Vec<ServerAnswer>,
    pub current_os: Resolved<OsRelease>,
    pub next_os: Resolved<Option<OsVersion>>,
    /// The installer's `kubelet.env`, if it exists.
    pub installer_env: Option<String>,
    pub runtime: RuntimeFacts,
}

/// Facts for the back end.
#[derive(Clone, Debug)]
pub enum RuntimeFacts {
    None,
    /// The system contains the only possible runtime.
    TooOld,
    Torcx(Box<TorcxFacts>),
    Sysext(Box<ExtensionFacts>),
}

#[derive(Clone, Debug)]
pub struct TorcxFacts {
    pub mappings: Resolved<Mappings>,
    /// For the next system, then for the current one if it differs.
    pub manifests: Vec<ManifestFact>,
    /// Images anywhere on this machine whose content matches their manifest.
    pub stored: BTreeSet<Stored>,
    pub selector: Option<String>,
    /// Current content of the profile that will be changed.
    pub profile: Option<String>,
    /// The profile that this boot loaded, if torcx ran.
    pub running: Option<String>,
}

#[derive(Clone, Debug)]
pub struct ManifestFact {
    pub system: OsVersion,
    pub manifest: Manifest,
    pub index: Index,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stored {
    pub system: OsVersion,
    pub version: String,
    pub path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("the kubelet would break the version-skew policy")]
    Skew(#[source] SkewError),
    #[error("cannot choose a runtime")]
    Mappings(#[source] MappingsError),
    #[error("cannot choose a runtime")]
    Nothing(#[source] NothingSuitable),
    #[error("cannot change the torcx profile `{name}`")]
    Profile { name: String, source: ProfileError },
    #[error("cannot choose a system extension")]
    Sysext(#[source] sysext::SysextError),
    #[error("there is no manifest for {system}")]
    NoManifest { system: OsVersion },
}

/// The back end's part of a decision.
#[derive(Default)]
pub(crate) struct RuntimePart {
    pub(crate) wanted: Option<Resolved<Vec<Wanted>>>,
    pub(crate) indexes: Vec<Index>,
    pub(crate) runtimes: Vec<Runtime>,
    pub(crate) artefacts: Vec<Artefact>,
    pub(crate) files: Vec<PlannedFile>,
    pub(crate) reboot: Vec<String>,
    /// Files that only a shutdown needs.
    pub(crate) on_the_way_down: Vec<PlannedFile>,
    pub(crate) notes: Vec<String>,
}

/// Returns the profile that will be changed: the one selected before, else our own.
pub fn profile_name(request: &Request, selector: Option<&str>) -> Result<String, ProfileError> {
    let chosen = selector.map(profile::selected).transpose()?.flatten();
    Ok(chosen.unwrap_or_else(|| request.profile.clone()))
}

/// Returns the path of an addon image for a version of the operating system.
pub fn store_path(system: &OsVersion, name: &str, version: &str) -> PathBuf {
    Path::new(STORE).join(system.as_str()).join(image_name(name, version))
}

pub fn image_name(name: &str, version: &str) -> String {
    format!("{name}:{version}.torcx.tgz")
}

pub fn plan(request: &Request, facts: Facts) -> Result<Decision, PlanError> {
    let kubelet = facts.cluster_version.value.clone();
    let skew = judge_skew(request, &kubelet, &facts.api_servers)?;
    let (backend, part) = match &facts.runtime {
        RuntimeFacts::None => (Backend::None, RuntimePart::default()),
        RuntimeFacts::TooOld => (Backend::Torcx, too_old(&facts)),
        RuntimeFacts::Torcx(torcx) => (Backend::Torcx, torcx_part(request, &facts, torcx)?),
        RuntimeFacts::Sysext(extensions) => {
            (Backend::Sysext, sysext::plan(&kubelet, &facts, extensions).map_err(PlanError::Sysext)?)
        }
    };
    let mut because = part.reboot;
    if let Some(next) = &facts.next_os.value {
        because.insert(0, format!("the operating system {next} is waiting to be booted"));
    }
    let mut notes = part.notes;
    if facts.installer_env.is_none() {
        notes.push(format!("there is no `{}`: only the tag is written", kubelet_env::INSTALLER_PATH));
    }
    let env = kubelet_env::render(facts.installer_env.as_deref().unwrap_or_default(), &kubelet);
    Ok(Decision {
        format: FORMAT,
        backend,
        inputs: Inputs {
            cluster_version: facts.cluster_version,
            api_servers: facts.api_servers,
            runtime_mappings: part.wanted,
            current_os: facts.current_os,
            next_os: facts.next_os,
            indexes: part.indexes,
        },
        kubelet,
        skew,
        runtimes: part.runtimes,
        artefacts: part.artefacts,
        files: part.files,
        kubelet_env: request.kubelet_env.as_ref().map(|path| PlannedFile {
            path: path.clone(),
            why: "lets the kubelet start".to_owned(),
            content: Content::Text { text: env },
        }),
        reboot: Reboot {
            needed: !because.is_empty(),
            files: if because.is_empty() { Vec::new() } else { part.on_the_way_down },
            because,
        },
        notes,
    })
}

fn judge_skew(request: &Request, kubelet: &KubeVersion, servers: &[ServerAnswer]) -> Result<Skew, PlanError> {
    let versions: Vec<KubeVersion> = servers.iter().filter_map(|server| server.version.clone()).collect();
    if versions.is_empty() {
        return Ok(Skew::Unknown);
    }
    match skew::judge(kubelet, &versions) {
        Ok(()) => Ok(Skew::Within),
        Err(error) if request.allow_skew => Ok(Skew::Allowed { reason: error.to_string() }),
        Err(error) => Err(PlanError::Skew(error)),
    }
}

fn too_old(facts: &Facts) -> RuntimePart {
    let current = &facts.current_os.value.version;
    let system = facts.next_os.value.as_ref().unwrap_or(current);
    let runtime = Runtime {
        name: DOCKER.to_owned(),
        chosen: None,
        systems: Vec::new(),
        reason: format!("{system} carries the only runtime it can have"),
    };
    RuntimePart { runtimes: vec![runtime], ..RuntimePart::default() }
}

fn torcx_part(request: &Request, facts: &Facts, torcx: &TorcxFacts) -> Result<RuntimePart, PlanError> {
    let version = &facts.cluster_version.value;
    let preferences = torcx.mappings.value.preferences(version, DOCKER).map_err(PlanError::Mappings)?;
    let current = &facts.current_os.value.version;
    let primary = facts.next_os.value.as_ref().unwrap_or(current);
    let offer = |system: &OsVersion| torcx.manifests.iter().find(|fact| fact.system == *system);
    let first = offer(primary).ok_or_else(|| PlanError::NoManifest { system: primary.clone() })?;
    let second = if primary == current {
        None
    } else {
        Some(offer(current).ok_or_else(|| PlanError::NoManifest { system: current.clone() })?)
    };
    let chosen = choice::choose(DOCKER, &preferences, first.offer(), second.map(ManifestFact::offer));
    let (chosen, systems) = match chosen.map_err(PlanError::Nothing)? {
        Choice::TooOld => return Ok(too_old(facts)),
        Choice::Version { version, systems } => (version, systems),
    };
    let mut part = RuntimePart {
        indexes: torcx.manifests.iter().map(|fact| fact.index.clone()).collect(),
        ..RuntimePart::default()
    };
    for system in &systems {
        let manifest = offer(system).map(|fact| &fact.manifest);
        if let Some(entry) = manifest.and_then(|manifest| manifest.find(DOCKER, &chosen)) {
            part.artefacts.push(artefact(system, entry, &torcx.stored));
        }
    }
    if let Some(system) = second.map(|fact| &fact.system).filter(|system| !systems.contains(system)) {
        part.notes.push(format!("{system}, which runs until the reboot, has no {DOCKER} {chosen}"));
    }
    let name = profile_name(request, torcx.selector.as_deref());
    let failed = |source| PlanError::Profile { name: request.profile.clone(), source };
    let name = name.map_err(failed)?;
    let failed = |source| PlanError::Profile { name: name.clone(), source };
    let text = profile::with_image(torcx.profile.as_deref(), DOCKER, &chosen).map_err(failed)?;
    part.files.push(PlannedFile {
        path: Path::new(profile::USER_PROFILES).join(format!("{name}.json")),
        why: format!("makes torcx unpack {DOCKER} {chosen} at the next boot"),
        content: Content::Text { text },
    });
    part.files.push(PlannedFile {
        path: profile::SELECTOR.into(),
        why: format!("makes the next boot take the profile `{name}`"),
        content: Content::Text { text: format!("{name}\n") },
    });
    let running = torcx.running.as_deref().map(|text| profile::reference(text, DOCKER));
    let running = running.transpose().map_err(failed)?.flatten();
    if running.as_deref() != Some(&chosen) {
        let now = running.unwrap_or_else(|| "none from torcx".to_owned());
        part.reboot.push(format!("{DOCKER} {chosen} is unpacked at boot, and this boot has {now}"));
    }
    part.on_the_way_down = cleanup();
    part.runtimes.push(Runtime {
        name: DOCKER.to_owned(),
        reason: format!("the best of {} that {} has", preferences.join(", "), first.system),
        chosen: Some(chosen),
        systems,
    });
    let wanted = Wanted { name: DOCKER.to_owned(), versions: preferences };
    part.wanted = Some(torcx.mappings.clone().map(|_| vec![wanted]));
    Ok(part)
}

/// Docker cannot use data of a newer version after a downgrade, so a unit deletes it during the shutdown.
fn cleanup() -> Vec<PlannedFile> {
    let unit = Path::new(UNITS).join(CLEANUP);
    vec![
        PlannedFile {
            path: unit.clone(),
            why: "clears `/var/lib/docker`, which another version of docker could not use".to_owned(),
            content: Content::Text { text: CLEANUP_UNIT.to_owned() },
        },
        PlannedFile {
            path: Path::new(UNITS).join("umount.target.requires").join(CLEANUP),
            why: "does so during the shutdown".to_owned(),
            content: Content::Link { to: unit },
        },
    ]
}

// === impl Facts ===

impl Facts {
    /// Returns the inputs, before any conclusion.
    pub fn inputs(&self) -> Inputs {
        let indexes = match &self.runtime {
            RuntimeFacts::None | RuntimeFacts::TooOld => Vec::new(),
            RuntimeFacts::Torcx(torcx) => torcx.manifests.iter().map(|fact| fact.index.clone()).collect(),
            RuntimeFacts::Sysext(facts) => facts.indexes.iter().map(|entry| entry.index.clone()).collect(),
        };
        Inputs {
            cluster_version: self.cluster_version.clone(),
            api_servers: self.api_servers.clone(),
            runtime_mappings: None,
            current_os: self.current_os.clone(),
            next_os: self.next_os.clone(),
            indexes,
        }
    }
}

// === impl ManifestFact ===

impl ManifestFact {
    fn offer(&self) -> Offer<'_> {
        Offer { system: &self.system, manifest: &self.manifest }
    }
}

fn artefact(system: &OsVersion, entry: &super::manifest::Version, stored: &BTreeSet<Stored>) -> Artefact {
    let path = store_path(system, DOCKER, &entry.version);
    let mut copies = stored.iter().filter(|copy| copy.system == *system && copy.version == entry.version);
    let (path, action) = match &entry.location {
        Location::Vendor { path } => (PathBuf::from(path), Action::ShipsWithSystem),
        Location::Remote { .. } if copies.clone().any(|copy| copy.path == path) => (path, Action::Present),
        Location::Remote { urls } => match copies.next() {
            Some(copy) => (path, Action::Copy { from: copy.path.clone() }),
            None => (path, Action::Fetch { urls: urls.clone() }),
        },
    };
    Artefact {
        name: DOCKER.to_owned(),
        version: entry.version.clone(),
        system: Some(system.clone()),
        digest: entry.digest.clone(),
        path,
        action,
    }
}

#[cfg(test)]
mod tests;
