//! Collects the facts: each value from its best origin, with the reason whenever that is not the first.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use landfall_fetch::{FetchError, Source};
use landfall_model::chain;
use landfall_model::step::Retry;

use super::choice;
use super::decision::{Backend, Index, Origin, PassedOver, Resolved, ServerAnswer, Signature};
use super::manifest::{self, Manifest, ManifestError, NotForThis, Unbound};
use super::mappings::{Mappings, MappingsError};
use super::next_os;
use super::os_release::{self, Architecture, OsRelease, OsReleaseError};
use super::planner::{self, DOCKER, Facts, ManifestFact, RuntimeFacts, Stored, TorcxFacts};
use super::profile::{self, ProfileError};
use super::request::Request;
use super::sysext::{self, ExtensionFacts, ExtensionIndex, Merging, Sums, SumsError};
use super::template::{self, TemplateError};
use super::update_engine::{Pending, UpdateError};
use super::verify::openpgp::{self, OpenPgp};
use super::verify::{ManifestVerifier as _, Policy, VerifyError};
use super::version::{InvalidVersion, KubeVersion, OsVersion};
use super::{kubelet_env, skew};
use crate::environment::{ClusterUnavailable, read_text as read};
use crate::prepare::environment::PrepareEnvironment;

const CONFIG_MAP: &str = "tectonic-torcx-runtime-mappings";
const CONFIG_MAP_KEY: &str = "runtime-mappings.yaml";
/// The first Flatcar without torcx.
const FIRST_WITHOUT_TORCX: &str = "3794.0.0";
/// Directories that may already contain an image of the right name.
const OTHER_STORES: [&str; 3] =
    ["/usr/share/torcx/store", "/usr/share/oem/torcx/store", "/var/lib/torcx/store"];
/// The checksum lists of the bakery are larger than torcx manifests.
const MAX_SUMS_BYTES: u64 = 4 * 1024 * 1024;

/// The reason why the facts could not be collected.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    #[error("cannot read `{path}`")]
    Read { path: PathBuf, source: io::Error },
    #[error("there is no `{path}`")]
    Missing { path: PathBuf },
    #[error("cannot tell which operating system this is")]
    OsRelease(#[source] OsReleaseError),
    #[error("`--force-kube-version` cannot be used")]
    Forced(#[source] InvalidVersion),
    #[error("cannot tell the version of the cluster: {reasons}")]
    NoClusterVersion { reasons: String },
    #[error("cannot use the runtime mappings from {origin}")]
    Mappings { origin: Origin, source: MappingsError },
    #[error("cannot ask for the next version of the operating system")]
    NextOs(#[source] UpdateError),
    #[error(
        "an update of the operating system is pending, and neither update_engine nor `{}` knows its version",
        next_os::FULL_RESPONSE
    )]
    PendingUnknown,
    #[error("cannot make a URL")]
    Template(#[source] TemplateError),
    #[error("cannot fetch {what}")]
    Fetch { what: String, source: Box<FetchError> },
    #[error("cannot trust {what}")]
    Verify { what: String, source: VerifyError },
    #[error("cannot use the manifest for {system}")]
    Manifest { system: OsVersion, source: Box<ManifestError> },
    #[error("the manifest for {system} is not for this machine now")]
    NotForThis { system: OsVersion, source: NotForThis },
    #[error("cannot use the list of images of `{name}`")]
    Sums { name: String, source: SumsError },
    #[error("cannot use the torcx profile")]
    Profile(#[source] ProfileError),
    #[error("this processor has no extension images")]
    Architecture,
    #[error("cannot tell which extensions are part of the system: {reason}")]
    Merged { reason: String },
}

/// Collects everything the planner needs.
pub async fn gather<W: PrepareEnvironment>(env: &W, request: &Request) -> Result<Facts, GatherError> {
    let current_os = current_os(env)?;
    let (cluster_version, api_servers) = cluster_version(env, request).await?;
    let next_os = next_os(env, request, &current_os.value).await?;
    let installer_env = text(env, Path::new(kubelet_env::INSTALLER_PATH), kubelet_env::MAX_BYTES)?;
    let backend = request.backend.unwrap_or_else(|| backend_of(&current_os.value));
    let runtime = match backend {
        _ if request.skip_setup => RuntimeFacts::None,
        Backend::None => RuntimeFacts::None,
        Backend::Torcx => {
            torcx(env, request, &cluster_version.value, &current_os.value, next_os.value.as_ref()).await?
        }
        Backend::Sysext => sysext(env, request, &cluster_version.value).await?,
    };
    Ok(Facts { cluster_version, api_servers, current_os, next_os, installer_env, runtime })
}

/// Returns the mechanism that installs the runtime on this operating system.
fn backend_of(system: &OsRelease) -> Backend {
    let without_torcx = FIRST_WITHOUT_TORCX.parse::<OsVersion>().is_ok_and(|first| system.version >= first);
    match system.id.as_str() {
        "coreos" => Backend::Torcx,
        "flatcar" if !without_torcx => Backend::Torcx,
        _ => Backend::Sysext,
    }
}

pub(crate) fn current_os(env: &impl PrepareEnvironment) -> Result<Resolved<OsRelease>, GatherError> {
    let path = Path::new(os_release::PATH);
    let found = text(env, path, os_release::MAX_BYTES)?;
    let found = found.ok_or_else(|| GatherError::Missing { path: path.to_owned() })?;
    let release = OsRelease::parse(&found, Architecture::here()).map_err(GatherError::OsRelease)?;
    Ok(Resolved::from(Origin::File { path: path.to_owned() }, release))
}

async fn cluster_version(
    env: &impl PrepareEnvironment,
    request: &Request,
) -> Result<(Resolved<KubeVersion>, Vec<ServerAnswer>), GatherError> {
    if request.local_only {
        return Ok((local_version(env, request)?, Vec::new()));
    }
    let asked = env.api_servers(&request.kubeconfig).await;
    let servers = asked.clone().unwrap_or_default();
    if let Some(forced) = &request.force_kube_version {
        let version = forced.parse().map_err(GatherError::Forced)?;
        return Ok((Resolved::from(Origin::Forced, version), servers));
    }
    let mut passed_over = Vec::new();
    let versions: Vec<KubeVersion> = servers.iter().filter_map(|server| server.version.clone()).collect();
    // Behind a load balancer the newest server may answer first; the oldest decides.
    if let Some(version) = skew::oldest(&versions) {
        return Ok((Resolved::from(Origin::ApiServer, version.clone()), servers));
    }
    let reason = match asked {
        Err(error) => error.reason,
        Ok(answers) => answers.into_iter().find_map(|answer| answer.error).unwrap_or_default(),
    };
    passed_over.push(PassedOver { origin: Origin::ApiServer, reason });
    let path = PathBuf::from(kubelet_env::INSTALLER_PATH);
    let origin = Origin::File { path: path.clone() };
    let reason = match text(env, &path, kubelet_env::MAX_BYTES)? {
        None => "it does not exist".to_owned(),
        Some(found) => match kubelet_env::version(&found).map(|tag| KubeVersion::from_image_tag(&tag)) {
            Some(Ok(value)) => return Ok((Resolved { value, origin, passed_over }, servers)),
            Some(Err(error)) => error.to_string(),
            None => "it has no `KUBELET_IMAGE_TAG`".to_owned(),
        },
    };
    passed_over.push(PassedOver { origin, reason });
    Err(GatherError::NoClusterVersion { reasons: reasons(&passed_over) })
}

/// Returns the version that the node itself runs.
///
/// It is used when the cluster must not be queried, because only the next boot matters.
fn local_version(
    env: &impl PrepareEnvironment,
    request: &Request,
) -> Result<Resolved<KubeVersion>, GatherError> {
    let path = request.kubelet_env.clone().unwrap_or_else(|| kubelet_env::PATH.into());
    let mut passed_over = Vec::new();
    // A node that is not prepared yet will run the version of its installer.
    for path in [path, PathBuf::from(kubelet_env::INSTALLER_PATH)] {
        let Some(found) = text(env, &path, kubelet_env::MAX_BYTES)? else {
            let reason = "it does not exist".to_owned();
            passed_over.push(PassedOver { origin: Origin::File { path }, reason });
            continue;
        };
        let reason = match kubelet_env::version(&found).map(|tag| KubeVersion::from_image_tag(&tag)) {
            Some(Ok(value)) => return Ok(Resolved { value, origin: Origin::File { path }, passed_over }),
            Some(Err(error)) => error.to_string(),
            None => "it has no `KUBELET_IMAGE_TAG`".to_owned(),
        };
        return Err(GatherError::NoClusterVersion { reasons: format!("`{}`: {reason}", path.display()) });
    }
    Err(GatherError::NoClusterVersion { reasons: reasons(&passed_over) })
}

fn reasons(passed_over: &[PassedOver]) -> String {
    let reasons = passed_over.iter().map(|entry| format!("{}: {}", entry.origin, entry.reason));
    reasons.collect::<Vec<String>>().join("; ")
}

/// ConfigMap, else file, else the built-in table.
///
/// An unreadable source is an error rather than a fallback: the administrator wanted different values from those of
/// the next source.
async fn mappings(
    env: &impl PrepareEnvironment,
    request: &Request,
) -> Result<Resolved<Mappings>, GatherError> {
    let parse = |text: &str, origin: &Origin| {
        Mappings::parse(text).map_err(|source| GatherError::Mappings { origin: origin.clone(), source })
    };
    let namespace = &request.cluster_namespace;
    let origin = Origin::ConfigMap { name: format!("{namespace}/{CONFIG_MAP}") };
    let mut passed_over = Vec::new();
    let asked = if request.local_only {
        Err(ClusterUnavailable { reason: "only this node is queried".to_owned() })
    } else {
        env.config_map(&request.kubeconfig, namespace, CONFIG_MAP, CONFIG_MAP_KEY).await
    };
    match asked {
        Ok(text) => return Ok(Resolved::from(origin.clone(), parse(&text, &origin)?)),
        Err(error) => passed_over.push(PassedOver { origin, reason: error.reason }),
    }
    let origin = Origin::File { path: request.mappings_file.clone() };
    if let Some(text) = text(env, &request.mappings_file, super::mappings::MAX_BYTES as u64)? {
        let value = parse(&text, &origin)?;
        return Ok(Resolved { value, origin, passed_over });
    }
    passed_over.push(PassedOver { origin, reason: "it does not exist".to_owned() });
    let origin = Origin::Embedded;
    let value =
        Mappings::embedded().map_err(|source| GatherError::Mappings { origin: origin.clone(), source })?;
    Ok(Resolved { value, origin, passed_over })
}

async fn next_os(
    env: &impl PrepareEnvironment,
    request: &Request,
    current: &OsRelease,
) -> Result<Resolved<Option<OsVersion>>, GatherError> {
    let pending = match env.update_status().await {
        Ok(status) => status.pending(),
        // Only these two systems require an updater.
        Err(error @ (UpdateError::Absent | UpdateError::Bus { .. }))
            if !request.upgrade_os || !matches!(current.id.as_str(), "coreos" | "flatcar") =>
        {
            let reason = chain(&error).to_string();
            let passed_over = vec![PassedOver { origin: Origin::UpdateEngine, reason }];
            return Ok(Resolved { value: None, origin: Origin::Assumed, passed_over });
        }
        Err(error) => return Err(GatherError::NextOs(error)),
    };
    match pending {
        Pending::Nothing => Ok(Resolved::from(Origin::UpdateEngine, None)),
        Pending::Version(version) => Ok(Resolved::from(Origin::UpdateEngine, Some(version))),
        Pending::Unknown => {
            let path = PathBuf::from(next_os::FULL_RESPONSE);
            let found = text(env, &path, next_os::MAX_BYTES)?;
            let version = found.as_deref().and_then(next_os::version_in_response);
            let version = version.ok_or(GatherError::PendingUnknown)?;
            let reason = "it has forgotten the version since it restarted".to_owned();
            Ok(Resolved {
                value: Some(version),
                origin: Origin::File { path },
                passed_over: vec![PassedOver { origin: Origin::UpdateEngine, reason }],
            })
        }
    }
}

async fn torcx(
    env: &impl PrepareEnvironment,
    request: &Request,
    cluster: &KubeVersion,
    current: &OsRelease,
    next: Option<&OsVersion>,
) -> Result<RuntimeFacts, GatherError> {
    let primary = next.unwrap_or(&current.version);
    if choice::is_too_old(primary) {
        return Ok(RuntimeFacts::TooOld);
    }
    let mappings = mappings(env, request).await?;
    let verifier = verifier(env, request)?;
    let mut manifests = Vec::new();
    for system in std::iter::once(primary).chain(next.map(|_| &current.version)) {
        manifests.push(manifest(env, request, verifier.as_ref(), &current.board, system).await?);
    }
    let preferences = mappings.value.preferences(cluster, DOCKER).unwrap_or_default();
    let mut stored = BTreeSet::new();
    for fact in &manifests {
        for version in &preferences {
            let Some(entry) = fact.manifest.find(DOCKER, version) else { continue };
            let name = planner::image_name(DOCKER, version);
            let own = planner::store_path(&fact.system, DOCKER, version);
            let others = OTHER_STORES.iter().map(|dir| Path::new(dir).join(&name));
            for path in std::iter::once(own).chain(others) {
                let is_it = env.is_file(&path, &entry.digest).await;
                if is_it.map_err(|source| GatherError::Read { path: path.clone(), source })? {
                    stored.insert(Stored { system: fact.system.clone(), version: version.clone(), path });
                }
            }
        }
    }
    let selector = text(env, Path::new(profile::SELECTOR), profile::MAX_BYTES)?;
    let name = planner::profile_name(request, selector.as_deref()).map_err(GatherError::Profile)?;
    let mut profile = None;
    for dir in profile::PROFILE_DIRS {
        if profile.is_none() {
            profile = text(env, &Path::new(dir).join(format!("{name}.json")), profile::MAX_BYTES)?;
        }
    }
    let running = text(env, Path::new(profile::RUNNING), profile::MAX_BYTES)?;
    let facts = TorcxFacts { mappings, manifests, stored, selector, profile, running };
    Ok(RuntimeFacts::Torcx(Box::new(facts)))
}

async fn manifest(
    env: &impl PrepareEnvironment,
    request: &Request,
    verifier: Option<&OpenPgp>,
    board: &str,
    system: &OsVersion,
) -> Result<ManifestFact, GatherError> {
    let values = [("Board", board), ("OSVersion", system.as_str())];
    let urls: Result<Vec<String>, TemplateError> =
        request.manifest_urls.iter().map(|url| template::fill(url, &values)).collect();
    let urls = urls.map_err(GatherError::Template)?;
    let what = format!("the manifest for {system}");
    let list = signed(env, verifier, &urls, ".asc", manifest::MAX_BYTES, &what).await?;
    let manifest = Manifest::parse(&list.bytes)
        .map_err(|error| GatherError::Manifest { system: system.clone(), source: Box::new(error) })?;
    let unbound = if request.trust.require_fresh { Unbound::Refused } else { Unbound::Taken };
    manifest
        .check_binding(board, system, now(env), unbound)
        .map_err(|source| GatherError::NotForThis { system: system.clone(), source })?;
    Ok(ManifestFact { system: system.clone(), manifest, index: list.index(Some(system.clone())) })
}

async fn sysext(
    env: &impl PrepareEnvironment,
    request: &Request,
    cluster: &KubeVersion,
) -> Result<RuntimeFacts, GatherError> {
    let architecture = Architecture::here().ok_or(GatherError::Architecture)?;
    let mappings = mappings(env, request).await?;
    let verifier = verifier(env, request)?;
    let merging = if env.is_live_system() {
        Merging::Now
    } else {
        let merged = env.merged().await.map_err(|reason| GatherError::Merged { reason })?;
        Merging::AtBoot { merged }
    };
    let mut facts = ExtensionFacts {
        architecture,
        merging,
        indexes: Vec::new(),
        stored: BTreeSet::new(),
        links: BTreeMap::new(),
        mappings,
    };
    for wanted in sysext::wanted(cluster, &facts.mappings.value) {
        let name = wanted.name;
        let folders: Result<Vec<String>, TemplateError> =
            request.extension_urls.iter().map(|url| template::fill(url, &[("Extension", &name)])).collect();
        let folders = folders.map_err(GatherError::Template)?;
        let mut folders: Vec<String> =
            folders.into_iter().map(|url| format!("{}/", url.trim_end_matches('/'))).collect();
        let urls: Vec<String> = folders.iter().map(|folder| format!("{folder}SHA256SUMS")).collect();
        let what = format!("the list of images of `{name}`");
        let list = signed(env, verifier.as_ref(), &urls, ".gpg", MAX_SUMS_BYTES, &what).await?;
        // The location that served the list also has the images; others may be outdated.
        folders.sort_by_key(|folder| !list.source.url.starts_with(folder.as_str()));
        let sums = Sums::parse(&String::from_utf8_lossy(&list.bytes))
            .map_err(|source| GatherError::Sums { name: name.clone(), source })?;
        for version in sums.versions(&name, architecture.name()) {
            let file = format!("{name}-{version}-{}.raw", architecture.name());
            let (path, digest) = (sysext::image_path(&name, &file), sums.find(&file));
            let Some(digest) = digest else { continue };
            let is_it = env.is_file(&path, digest).await;
            if is_it.map_err(|source| GatherError::Read { path: path.clone(), source })? {
                facts.stored.insert(path);
            }
        }
        let link = sysext::link_path(&name);
        let to = env.link(&link).map_err(|source| GatherError::Read { path: link, source })?;
        facts.links.extend(to.map(|to| (name.clone(), to)));
        facts.indexes.push(ExtensionIndex { name, sums, index: list.index(None), folders });
    }
    Ok(RuntimeFacts::Sysext(Box::new(facts)))
}

fn verifier(env: &impl PrepareEnvironment, request: &Request) -> Result<Option<OpenPgp>, GatherError> {
    let trust = &request.trust;
    if !trust.verify {
        return Ok(None);
    }
    let path = &trust.keyring;
    let failed = |source| GatherError::Verify { what: format!("the keyring `{}`", path.display()), source };
    let keyring = env.disk().read(&env.host_path(path), openpgp::MAX_KEYRING_BYTES);
    let keyring = keyring.map_err(|source| GatherError::Read { path: path.clone(), source })?;
    let policy = Policy::new(trust, now(env)).map_err(failed)?;
    OpenPgp::new(&keyring, policy).map(Some).map_err(failed)
}

/// A list of images, its source, and its signers.
struct Signed {
    bytes: Vec<u8>,
    source: Source,
    signature: Signature,
}

// === impl Signed ===

impl Signed {
    fn index(self, system: Option<OsVersion>) -> Index {
        let Source { url, passed_over } = self.source;
        let passed_over = passed_over.into_iter().map(PassedOver::from).collect();
        Index { url, passed_over, system, signature: self.signature }
    }
}

/// Fetches a document and verifies its signatures.
async fn signed(
    env: &impl PrepareEnvironment,
    verifier: Option<&OpenPgp>,
    urls: &[String],
    suffix: &str,
    limit: u64,
    what: &str,
) -> Result<Signed, GatherError> {
    let document = env.document(urls, limit).await;
    let (bytes, source) =
        document.map_err(|error| GatherError::Fetch { what: what.to_owned(), source: Box::new(error) })?;
    let Some(verifier) = verifier else {
        return Ok(Signed { bytes, source, signature: Signature::NotVerified });
    };
    // The source of the document comes first: an outdated mirror has another signature.
    let others = urls.iter().filter(|url| **url != source.url);
    let urls = std::iter::once(&source.url).chain(others);
    let urls: Vec<String> = urls.map(|url| format!("{url}{suffix}")).collect();
    let (signature, _) = env.document(&urls, openpgp::MAX_SIGNATURE_BYTES).await.map_err(|error| {
        GatherError::Fetch { what: format!("the signature of {what}"), source: Box::new(error) }
    })?;
    let fingerprints = verifier
        .verify(&bytes, &signature)
        .map_err(|source| GatherError::Verify { what: what.to_owned(), source })?;
    Ok(Signed { bytes, source, signature: Signature::Verified { fingerprints } })
}

/// Returns seconds since 1970, the unit of signatures.
fn now(env: &impl PrepareEnvironment) -> u64 {
    u64::try_from(env.now().as_second()).unwrap_or(0)
}

fn text(env: &impl PrepareEnvironment, path: &Path, limit: u64) -> Result<Option<String>, GatherError> {
    read(env, path, limit).map_err(|source| GatherError::Read { path: path.to_owned(), source })
}

// === impl GatherError ===

impl GatherError {
    /// Returns whether a retry may help.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Fetch { source, .. } if source.is_lasting() => Retry::Later,
            Self::Fetch { .. } | Self::NextOs(_) => Retry::Now,
            _ => Retry::Later,
        }
    }
}
