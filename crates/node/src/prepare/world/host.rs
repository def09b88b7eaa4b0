//! The real machine, at its root or below another.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use landfall_cluster::{Cluster, Error, ServerProbe};
use landfall_fetch::{FetchError, Fetcher, Order, Patience, Source};
use landfall_model::chain;
use landfall_steps::durable::{Disk, HostDisk};
use landfall_steps::{Backoff, BootId};

use super::{ApiPatience, LockAnswer, LockAsk, NoAnswer, Progress, World};
use crate::prepare::decision::ServerAnswer;
use crate::prepare::digest::Digest;
use crate::prepare::request::FleetLock;
use crate::prepare::sysext::image::{self, ImageError};
use crate::prepare::sysext::release::ExtensionRelease;
use crate::prepare::systemd;
use crate::prepare::update_engine::{Engine, Pending, SYSTEM_BUS, Status, UpdateError};

/// How long systemd may take to merge extensions.
const MERGE_LIMIT: Duration = Duration::from_secs(120);
/// A lock server answers from memory.
const LOCK_LIMIT: Duration = Duration::from_secs(30);
/// A sentence for a person.
const MAX_REFUSAL_CHARS: usize = 200;
/// What `systemd-sysext` prints about a few extensions.
const MAX_OUTPUT: usize = 1024 * 1024;

/// Where systemd notes which extensions it merged.
const MERGED_NOTES: [&str; 2] = ["/usr/.systemd-sysext/extensions", "/opt/.systemd-sysext/extensions"];

/// This machine.
#[derive(Clone, Debug)]
pub struct HostWorld {
    root: PathBuf,
    fetcher: Fetcher,
    engine: Engine,
    patience: ApiPatience,
    documents: Patience,
    images: Option<Patience>,
}

#[derive(Debug, thiserror::Error)]
pub enum HostWorldError {
    #[error("cannot prepare to download")]
    Fetch(#[source] FetchError),
}

// === impl HostWorld ===

impl HostWorld {
    /// The machine below `root`. `authority` replaces the machine's own authorities for downloads.
    pub fn new(root: &Path, authority: Option<&Path>) -> Result<Self, HostWorldError> {
        let fetcher = Fetcher::new(authority).map_err(HostWorldError::Fetch)?;
        Ok(Self {
            root: root.to_owned(),
            fetcher,
            engine: Engine::at(bus_address(root)),
            patience: ApiPatience { tries: 3, pause: Duration::from_secs(5) },
            documents: Patience::DOCUMENT,
            images: None,
        })
    }

    /// For documents and images, when the usual limits are not wanted.
    #[must_use]
    pub fn download_patience(mut self, documents: Patience, images: Patience) -> Self {
        (self.documents, self.images) = (documents, Some(images));
        self
    }

    #[must_use]
    pub fn patience(mut self, patience: ApiPatience) -> Self {
        self.patience = patience;
        self
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn fetcher(&self) -> &Fetcher {
        &self.fetcher
    }

    /// Most often there is none yet, which is told in the words of the node.
    fn kubeconfig(&self, path: &Path) -> Result<PathBuf, NoAnswer> {
        let place = self.place(path);
        match place.try_exists() {
            Ok(false) => Err(NoAnswer { reason: format!("there is no kubeconfig `{}`", path.display()) }),
            _ => Ok(place),
        }
    }

    /// What systemd notes in each folder it merged extensions into: their names, one a line. That is what it reads itself
    /// when it is asked, and a container that has the node's root sees it, too.
    fn merged_elsewhere(&self) -> Result<Vec<String>, String> {
        let mut names: Vec<String> = Vec::new();
        for note in MERGED_NOTES {
            match HostDisk.read(&self.place(Path::new(note)), MAX_OUTPUT as u64) {
                Ok(bytes) => names.extend(String::from_utf8_lossy(&bytes).lines().map(str::to_owned)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(format!("cannot read `{note}`: {error}")),
            }
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Whether to ask again, after a pause. What the API server forbids and what this machine lacks is not asked again.
    async fn again(&self, tried: u32, error: &Error) -> Result<(), NoAnswer> {
        let passes = matches!(error, Error::Refused { .. } | Error::Late { .. }) && !error.is_denied();
        // Half of it by chance: a whole fleet asks after a power cut.
        let ApiPatience { tries, pause } = self.patience;
        let pause = Backoff::new(pause, pause, tries).ok().and_then(|backoff| backoff.pause_after(tried));
        let Some(pause) = pause.filter(|_| passes) else {
            return Err(NoAnswer { reason: chain(error).to_string() });
        };
        tracing::info!(error = %chain(error), tried, "The API server gave no answer.");
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

/// What the endpoint and the servers behind it say; an error when the endpoint itself says nothing.
async fn probe(kubeconfig: &Path) -> Result<Vec<ServerProbe>, Error> {
    let mut probes = Cluster::from_kubeconfig(kubeconfig).await?.server_versions().await;
    if probes.first().is_some_and(|first| first.version.is_err())
        && let Err(error) = probes.remove(0).version
    {
        return Err(error);
    }
    Ok(probes)
}

async fn read_config_map(
    kubeconfig: &Path,
    namespace: &str,
    name: &str,
) -> Result<Option<BTreeMap<String, String>>, Error> {
    Cluster::from_kubeconfig(kubeconfig).await?.config_map(namespace, name).await
}

fn server_answer(probe: ServerProbe) -> ServerAnswer {
    let ServerProbe { address, version } = probe;
    let version = match version {
        Ok(version) => version.git_version.parse().map_err(|error| chain(&error).to_string()),
        Err(error) => Err(chain(&error).to_string()),
    };
    match version {
        Ok(version) => ServerAnswer { address, version: Some(version), error: None },
        Err(error) => ServerAnswer { address, version: None, error: Some(error) },
    }
}

impl World for HostWorld {
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(HostDisk)
    }

    fn place(&self, path: &Path) -> PathBuf {
        // Only names: a root is never left by `..`.
        let names = path.components().filter(|component| matches!(component, Component::Normal(_)));
        self.root.join(names.collect::<PathBuf>())
    }

    fn boot(&self) -> Result<BootId, landfall_steps::BootIdError> {
        BootId::read(&HostDisk)
    }

    fn now(&self) -> u64 {
        u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0)
    }

    async fn api_servers(&self, kubeconfig: &Path) -> Result<Vec<ServerAnswer>, NoAnswer> {
        let path = self.kubeconfig(kubeconfig)?;
        let mut tried = 1;
        loop {
            match probe(&path).await {
                Ok(probes) => return Ok(probes.into_iter().map(server_answer).collect()),
                Err(error) => self.again(tried, &error).await?,
            }
            tried += 1;
        }
    }

    async fn config_map(
        &self,
        kubeconfig: &Path,
        namespace: &str,
        name: &str,
        key: &str,
    ) -> Result<String, NoAnswer> {
        let path = self.kubeconfig(kubeconfig)?;
        let mut tried = 1;
        let mut data = loop {
            match read_config_map(&path, namespace, name).await {
                Ok(Some(data)) => break data,
                Ok(None) => return Err(NoAnswer { reason: "there is none".to_owned() }),
                Err(error) => self.again(tried, &error).await?,
            }
            tried += 1;
        };
        data.remove(key).ok_or_else(|| NoAnswer { reason: format!("it has no `{key}`") })
    }

    async fn document(&self, urls: &[String], limit: u64) -> Result<(Vec<u8>, Source), FetchError> {
        self.fetcher.document(urls, limit, &self.documents).await
    }

    async fn fetch(&self, order: &Order, progress: Progress<'_>) -> Result<Source, FetchError> {
        match self.images {
            Some(patience) => self.fetcher.file(&Order { patience, ..order.clone() }, progress).await,
            None => self.fetcher.file(order, progress).await,
        }
    }

    async fn is_file(&self, path: &Path, digest: &Digest) -> io::Result<bool> {
        let (path, digest) = (self.place(path), digest.expected().clone());
        blocking(move || landfall_fetch::is_file(&path, &digest)).await?
    }

    async fn update_status(&self) -> Result<Status, UpdateError> {
        let engine = self.engine.clone();
        blocking(move || engine.status()).await.map_err(stopped)?
    }

    async fn update(&self, progress: Progress<'_>) -> Result<Pending, UpdateError> {
        let engine = self.engine.clone();
        let (sender, mut receiver) = tokio::sync::mpsc::channel::<Status>(16);
        // When this future is dropped, the channel closes, and the thread is told to stop.
        let waiting = tokio::task::spawn_blocking(move || {
            engine.update(&mut |status| match sender.try_send(status.clone()) {
                Err(tokio::sync::mpsc::error::TrySendError::Closed(_)) => false,
                Ok(()) | Err(tokio::sync::mpsc::error::TrySendError::Full(_)) => true,
            })
        });
        while let Some(status) = receiver.recv().await {
            let total = u64::try_from(status.new_size).ok().filter(|size| *size > 0);
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                clippy::cast_precision_loss,
                reason = "a share of a size, for people"
            )]
            let done = total.map_or(0, |total| (status.progress.clamp(0.0, 1.0) * total as f64) as u64);
            progress(done, total);
        }
        waiting.await.map_err(|error| stopped(io::Error::other(error)))?
    }

    async fn extension(&self, path: &Path, name: &str) -> Result<ExtensionRelease, ImageError> {
        let (place, name) = (self.place(path), name.to_owned());
        let broken =
            |error: io::Error| ImageError::Broken { path: path.to_owned(), reason: error.to_string() };
        blocking(move || image::release(&place, &name)).await.map_err(broken)?
    }

    fn link(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        match std::fs::read_link(self.place(path)) {
            Ok(to) => Ok(Some(to)),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn set_link(&self, path: &Path, to: &Path) -> io::Result<()> {
        let place = self.place(path);
        let name = place.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(".landfall-link");
        let hidden = place.with_file_name(hidden);
        match std::fs::remove_file(&hidden) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::os::unix::fs::symlink(to, &hidden)?;
        std::fs::rename(&hidden, &place)?;
        HostDisk.sync_dir(place.parent().ok_or(io::ErrorKind::InvalidInput)?)
    }

    fn is_here(&self) -> bool {
        self.root == Path::new("/")
    }

    async fn merge(&self) -> Result<(), String> {
        if !self.is_here() {
            let root = self.root.display();
            return Err(format!("the extensions of `{root}` can only be merged by its own systemd"));
        }
        systemd_sysext(&["refresh"]).await.map(drop)
    }

    async fn merged(&self) -> Result<Vec<String>, String> {
        if !self.is_here() {
            return self.merged_elsewhere();
        }
        let text = systemd_sysext(&["status", "--json=short", "--no-pager"]).await?;
        merged_in(&text)
    }

    async fn reload_units(&self) -> Result<(), String> {
        if !self.is_here() {
            return Ok(());
        }
        blocking(|| systemd::call("Reload", &[])).await.map_err(|error| error.to_string())?
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_dir_all(self.place(path))
    }

    async fn fleet_lock(&self, lock: &FleetLock, ask: LockAsk) -> Result<LockAnswer, FetchError> {
        let path = match ask {
            LockAsk::PreReboot => "pre-reboot",
            LockAsk::SteadyState => "steady-state",
        };
        let url = format!("{}/v1/{path}", lock.url.trim_end_matches('/'));
        let body = serde_json::json!({"client_params": {"id": lock.id, "group": lock.group}}).to_string();
        let header = [("fleet-lock-protocol", "true")];
        match self.fetcher.ask_json(&url, &header, body, LOCK_LIMIT).await? {
            (200, _) => Ok(LockAnswer::Granted),
            (status, words) => Ok(LockAnswer::Refused { reason: refusal(status, &words) }),
        }
    }
}

/// What a lock server says with its refusal: `{"kind": "…", "value": "…"}`, if it keeps to the protocol.
fn refusal(status: u16, words: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Refusal {
        kind: String,
        value: String,
    }
    match serde_json::from_slice::<Refusal>(words) {
        Ok(Refusal { kind, value }) => {
            let text: String = format!("{kind}: {value}").chars().filter(|c| !c.is_control()).collect();
            text.chars().take(MAX_REFUSAL_CHARS).collect()
        }
        Err(_) => format!("it answered {status}"),
    }
}

/// The bus of the machine; a test's, when the environment names one.
fn bus_address(root: &Path) -> String {
    let named = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").ok();
    let named = named.as_deref().and_then(|address| address.strip_prefix("unix:path="));
    match named {
        Some(path) => path.split([',', ';']).next().unwrap_or(path).to_owned(),
        None => root.join(SYSTEM_BUS.trim_start_matches('/')).display().to_string(),
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}

fn stopped(source: io::Error) -> UpdateError {
    UpdateError::Bus { address: "this process".to_owned(), source }
}

async fn systemd_sysext(arguments: &[&str]) -> Result<String, String> {
    let mut command = tokio::process::Command::new("systemd-sysext");
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(MERGE_LIMIT, command.output()).await;
    let output =
        output.map_err(|_| format!("`systemd-sysext` took longer than {} s", MERGE_LIMIT.as_secs()))?;
    let output = output.map_err(|error| format!("cannot run `systemd-sysext`: {error}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().last().unwrap_or("it said nothing");
        return Err(format!("`systemd-sysext {}` failed: {last}", arguments.join(" ")));
    }
    if output.stdout.len() > MAX_OUTPUT {
        return Err("`systemd-sysext` said too much".to_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The names in `systemd-sysext status --json=short`.
fn merged_in(text: &str) -> Result<Vec<String>, String> {
    let hierarchies: serde_json::Value = serde_json::from_str(text)
        .map_err(|error| format!("`systemd-sysext status` is not JSON: {error}"))?;
    let mut names: Vec<String> = Vec::new();
    for hierarchy in hierarchies.as_array().into_iter().flatten() {
        // A list, or the word `none`.
        let extensions = hierarchy["extensions"].as_array().into_iter().flatten();
        names.extend(extensions.filter_map(|name| name.as_str()).map(str::to_owned));
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_extensions_are_read() {
        let text = r#"[{"hierarchy":"/opt","extensions":"none","since":0},{"hierarchy":"/usr","extensions":["kubernetes","docker"],"since":1}]"#;
        assert_eq!(merged_in(text).unwrap(), ["docker", "kubernetes"]);
        assert!(merged_in("nothing").is_err());
    }

    #[test]
    fn a_root_is_never_left() {
        let world = HostWorld::new(Path::new("/r"), None).unwrap();
        assert_eq!(world.place(Path::new("/etc/x")), Path::new("/r/etc/x"));
        assert_eq!(world.place(Path::new("../../etc/x")), Path::new("/r/etc/x"));
    }
}
