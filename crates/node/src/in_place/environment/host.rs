//! In-place bootstrap of the real machine.

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use landfall_cluster::{Cluster, NodeFacts};
use landfall_durable::{self as durable, Disk as _, HostDisk};
use landfall_fetch::{Answer, Exchange, FetchError, Fetcher, Saved};
use landfall_model::chain;

use super::cluster::{drain_blockers, no_answer};
use super::{Command, CommandResult, InPlaceEnvironment, PinnedBy, TrustRoots, command};
use crate::environment::{ClusterUnavailable, Environment, HostEnvironment, blocking, tree};
use crate::in_place::payload::{self, Piece};

/// Enough for several CA certificates.
const MAX_AUTHORITIES: u64 = 4 * 1024 * 1024;

/// Clock ticks per second in `/proc`, the same on every architecture.
const TICKS: u64 = 100;

impl HostEnvironment {
    fn fetcher(&self, trust: &TrustRoots) -> Result<Fetcher, FetchError> {
        match trust {
            TrustRoots::Only(authorities) => Fetcher::trusting(authorities.as_bytes()),
            TrustRoots::System => Ok(self.fetcher.clone()),
            TrustRoots::Registry { folder } => {
                let path = self.resolve(&folder.join("ca.crt"));
                match HostDisk.read(&path, MAX_AUTHORITIES) {
                    Ok(authorities) => Fetcher::trusting(&authorities),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(self.fetcher.clone()),
                    Err(source) => Err(FetchError::Authority { path, source }),
                }
            }
        }
    }

    async fn cluster(&self) -> Result<Cluster, ClusterUnavailable> {
        self.access.connect(|path| self.host_path(path)).await
    }
}

impl InPlaceEnvironment for HostEnvironment {
    fn uptime(&self) -> Duration {
        let text = |path| std::fs::read_to_string(path).unwrap_or_default();
        let up = text("/proc/uptime").split('.').next().and_then(|seconds| seconds.parse::<u64>().ok());
        // In a container the kernel has been running for longer than the system.
        let first = started_at(&text("/proc/1/stat")).unwrap_or(0);
        Duration::from_secs(up.unwrap_or(0).saturating_sub(first))
    }

    async fn exchange(&self, trust: &TrustRoots, question: &Exchange) -> Result<Answer, FetchError> {
        self.fetcher(trust)?.exchange(question).await
    }

    async fn download(
        &self,
        trust: &TrustRoots,
        question: &Exchange,
        file: &Path,
    ) -> Result<Saved, FetchError> {
        self.fetcher(trust)?.exchange_to_file(question, file).await
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn io::Read + Send>> {
        Ok(Box::new(File::open(self.host_path(path))?))
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        let place = self.host_path(path);
        let there = place.ancestors().find(|path| path.exists()).unwrap_or(&self.root);
        let stat = rustix::fs::statvfs(there)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn pinned_by(&self, path: &Path) -> io::Result<Option<PinnedBy>> {
        if !self.exists(path)? {
            return Ok(None);
        }
        let place = self.host_path(path);
        if place.is_symlink() {
            return Ok(Some(PinnedBy::Symlink { to: std::fs::read_link(&place)?.display().to_string() }));
        }
        Ok(tree::is_apart(&place)?.then_some(PinnedBy::Mount))
    }

    fn stash(&self, from: &Path, to: &Path) -> io::Result<()> {
        if !self.exists(from)? {
            return Ok(());
        }
        let (from, to) = (self.host_path(from), self.host_path(to));
        match durable::rename(&HostDisk, &from, &to).map_err(|error| error.source) {
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => tree::move_by_copy(&from, &to),
            renamed => renamed,
        }
    }

    async fn unpack(&self, payload: &Path, folder: &Path) -> Result<(), String> {
        let (payload, folder) = (self.host_path(payload), self.host_path(folder));
        blocking(move || unpack(&payload, &folder)).await.map_err(|error| error.to_string())?
    }

    fn program(&self) -> io::Result<Vec<u8>> {
        std::fs::read("/proc/self/exe")
    }

    async fn unit_state(&self, unit: &str) -> Result<String, String> {
        let unit = unit.to_owned();
        self.with_systemd(move |systemd| systemd.unit_state(&unit)).await
    }

    async fn start_unit(&self, unit: &str) -> Result<(), String> {
        if !self.systemd.is_there() {
            return Ok(());
        }
        let unit = unit.to_owned();
        self.with_systemd(move |systemd| systemd.start(&unit)).await
    }

    async fn run(&self, command: &Command) -> Result<CommandResult, String> {
        if self.root != Path::new("/") {
            return Err("programs of the node are run on the node itself, not below another root".to_owned());
        }
        let redactor = self.redactor.as_ref().ok_or("no program is run without redaction")?;
        command::run(command, &self.host_path(&command.log), redactor).await
    }

    async fn node(&self, name: &str) -> Result<Option<NodeFacts>, ClusterUnavailable> {
        self.cluster().await?.node_facts(name).await.map_err(|error| no_answer(&error))
    }

    async fn drain_blockers(&self, node: &str) -> Result<Vec<String>, ClusterUnavailable> {
        let cluster = self.cluster().await?;
        drain_blockers(&cluster, node).await.map_err(|error| no_answer(&error))
    }

    async fn remove_label(&self, node: &str, label: &str) -> Result<(), ClusterUnavailable> {
        self.cluster().await?.label_node(node, label, None).await.map_err(|error| no_answer(&error))
    }

    async fn annotate(&self, node: &str, key: &str, value: &str) -> Result<(), ClusterUnavailable> {
        self.cluster().await?.annotate_node(node, key, Some(value)).await.map_err(|error| no_answer(&error))
    }
}

/// Returns the start time of a process, in seconds since the kernel started.
fn started_at(stat: &str) -> Option<u64> {
    // The name in parentheses may contain anything; the 22nd field is the 20th after it.
    let ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    Some(ticks / TICKS)
}

/// Unpacks into a directory beside the final one, which is then renamed.
fn unpack(payload: &Path, folder: &Path) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot unpack the payload: {error}");
    let draft = folder.with_extension("draft");
    match std::fs::remove_dir_all(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    std::fs::create_dir(&draft).map_err(failed)?;
    std::fs::set_permissions(&draft, PermissionsExt::from_mode(0o700)).map_err(failed)?;
    let source = io::BufReader::new(File::open(payload).map_err(failed)?);
    let read = payload::read(source, |path, piece| {
        let target = draft.join(path);
        // An earlier entry of the archive may have created a link that leads outside.
        let through = path.ancestors().skip(1).map(|folder| draft.join(folder));
        if through.into_iter().any(|folder| folder != draft && folder.is_symlink()) {
            return Err(io::Error::other(format!("`{}` is behind a link", path.display())));
        }
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent)?;
        }
        match piece {
            Piece::Folder => std::fs::create_dir_all(&target),
            Piece::Link { to } => std::os::unix::fs::symlink(to, &target),
            Piece::File { mode, content } => {
                let mut file = File::create_new(&target)?;
                io::copy(content, &mut file)?;
                file.set_permissions(PermissionsExt::from_mode(mode))?;
                file.sync_all()
            }
        }
    });
    read.map_err(|error| chain(&error).to_string())?;
    durable::rename(&HostDisk, &draft, folder).map_err(|error| failed(error.source))
}
