//! Environment for preparing the real machine.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use landfall_cluster::{Cluster, Error, ServerProbe};
use landfall_durable::{Disk as _, HostDisk};
use landfall_fetch::{FetchError, Order, Source};
use landfall_model::chain;

use super::{FleetLockRequest, FleetLockResponse, PrepareEnvironment, Progress};
use crate::environment::{ClusterUnavailable, Environment as _, HostEnvironment, blocking};
use crate::prepare::decision::ServerAnswer;
use crate::prepare::digest::Digest;
use crate::prepare::request::FleetLock;
use crate::prepare::sysext::image::{self, ImageError};
use crate::prepare::sysext::release::ExtensionRelease;
use crate::prepare::update_engine::{Pending, Status, UpdateError};

/// Timeout for systemd to merge extensions.
const MERGE_LIMIT: Duration = Duration::from_secs(120);
/// Timeout of a lock server, which answers from memory.
const LOCK_LIMIT: Duration = Duration::from_secs(30);
/// Length limit of a refusal message, enough for one sentence.
const MAX_REFUSAL_CHARS: usize = 200;
/// Limit for the output of `systemd-sysext` about a few extensions.
const MAX_OUTPUT: usize = 1024 * 1024;

/// Files in which systemd records the merged extensions.
const MERGED_NOTES: [&str; 2] = ["/usr/.systemd-sysext/extensions", "/opt/.systemd-sysext/extensions"];

impl HostEnvironment {
    /// Returns the path of the kubeconfig. Usually the file does not exist yet, so the error names the path on the
    /// node.
    fn kubeconfig(&self, path: &Path) -> Result<PathBuf, ClusterUnavailable> {
        let path_here = self.host_path(path);
        match path_here.try_exists() {
            Ok(false) => {
                Err(ClusterUnavailable { reason: format!("there is no kubeconfig `{}`", path.display()) })
            }
            _ => Ok(path_here),
        }
    }

    /// Returns the extensions that systemd recorded in each merged hierarchy, one name per line.
    ///
    /// systemd itself reads the same files, and a container with access to the root of the node can read them as
    /// well.
    fn merged_elsewhere(&self) -> Result<Vec<String>, String> {
        let mut names: Vec<String> = Vec::new();
        for note in MERGED_NOTES {
            match HostDisk.read(&self.host_path(Path::new(note)), MAX_OUTPUT as u64) {
                Ok(bytes) => names.extend(String::from_utf8_lossy(&bytes).lines().map(str::to_owned)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(format!("cannot read `{note}`: {error}")),
            }
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// Retries a request that the API server did not answer. Denied requests and missing local files are not retried.
    async fn retry<T, F: Future<Output = Result<T, Error>>>(
        &self,
        request: impl Fn() -> F,
    ) -> Result<T, ClusterUnavailable> {
        let mut tried = 1;
        loop {
            let error = match request().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let passes = matches!(error, Error::Refused { .. } | Error::Late { .. }) && !error.is_denied();
            let Some(pause) = self.api_retries.pause_after(tried).filter(|_| passes) else {
                return Err(ClusterUnavailable { reason: chain(&error).to_string() });
            };
            tracing::info!(error = %chain(&error), tried, "API request failed");
            tokio::time::sleep(pause).await;
            tried += 1;
        }
    }
}

/// Returns the versions of the endpoint and of the servers behind it. Fails when the endpoint itself does not answer.
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

impl PrepareEnvironment for HostEnvironment {
    async fn api_servers(&self, kubeconfig: &Path) -> Result<Vec<ServerAnswer>, ClusterUnavailable> {
        let path = self.kubeconfig(kubeconfig)?;
        let probes = self.retry(|| probe(&path)).await?;
        Ok(probes.into_iter().map(server_answer).collect())
    }

    async fn config_map(
        &self,
        kubeconfig: &Path,
        namespace: &str,
        name: &str,
        key: &str,
    ) -> Result<String, ClusterUnavailable> {
        let path = self.kubeconfig(kubeconfig)?;
        let missing = |reason: String| ClusterUnavailable { reason };
        let data = self.retry(|| read_config_map(&path, namespace, name)).await?;
        let mut data = data.ok_or_else(|| missing("there is none".to_owned()))?;
        data.remove(key).ok_or_else(|| missing(format!("it has no `{key}`")))
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
        let (path, digest) = (self.host_path(path), digest.expected().clone());
        blocking(move || landfall_fetch::is_file(&path, &digest)).await?
    }

    async fn update_status(&self) -> Result<Status, UpdateError> {
        let engine = self.engine.clone();
        blocking(move || engine.status()).await.map_err(stopped)?
    }

    async fn update(&self, progress: Progress<'_>) -> Result<Pending, UpdateError> {
        let engine = self.engine.clone();
        let (sender, mut receiver) = tokio::sync::mpsc::channel::<Status>(16);
        // Dropping this future closes the channel, which stops the thread.
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
        let (place, name) = (self.host_path(path), name.to_owned());
        let broken =
            |error: io::Error| ImageError::Broken { path: path.to_owned(), reason: error.to_string() };
        blocking(move || image::release(&place, &name)).await.map_err(broken)?
    }

    fn link(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        match std::fs::read_link(self.host_path(path)) {
            Ok(to) => Ok(Some(to)),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn is_live_system(&self) -> bool {
        self.root == Path::new("/")
    }

    async fn merge(&self) -> Result<(), String> {
        if !self.is_live_system() {
            let root = self.root.display();
            return Err(format!("the extensions of `{root}` can only be merged by its own systemd"));
        }
        systemd_sysext(&["refresh"]).await.map(drop)
    }

    async fn merged(&self) -> Result<Vec<String>, String> {
        if !self.is_live_system() {
            return self.merged_elsewhere();
        }
        let text = systemd_sysext(&["status", "--json=short", "--no-pager"]).await?;
        merged_in(&text)
    }

    async fn fleet_lock(
        &self,
        lock: &FleetLock,
        ask: FleetLockRequest,
    ) -> Result<FleetLockResponse, FetchError> {
        let path = match ask {
            FleetLockRequest::PreReboot => "pre-reboot",
            FleetLockRequest::SteadyState => "steady-state",
        };
        let url = format!("{}/v1/{path}", lock.url.trim_end_matches('/'));
        let body = serde_json::json!({"client_params": {"id": lock.id, "group": lock.group}}).to_string();
        let header = [("fleet-lock-protocol", "true")];
        match self.fetcher.ask_json(&url, &header, body, LOCK_LIMIT).await? {
            (200, _) => Ok(FleetLockResponse::Granted),
            (status, words) => Ok(FleetLockResponse::Refused { reason: refusal(status, &words) }),
        }
    }
}

/// Returns the reason of a lock server's refusal: `{"kind": "…", "value": "…"}`, if it follows the protocol.
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

/// Parses the names in `systemd-sysext status --json=short`.
fn merged_in(text: &str) -> Result<Vec<String>, String> {
    let hierarchies: serde_json::Value = serde_json::from_str(text)
        .map_err(|error| format!("`systemd-sysext status` is not JSON: {error}"))?;
    let mut names: Vec<String> = Vec::new();
    for hierarchy in hierarchies.as_array().into_iter().flatten() {
        // A list, or the string `none`.
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
}
