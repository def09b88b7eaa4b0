//! The real machine, at its root or below another.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use landfall_cluster::NodeFacts;
use landfall_fetch::{Answer, Exchange, FetchError, Fetcher, Saved};
use landfall_model::{Secret, chain};
use landfall_redact::{BuildError, Kind, Redactor};
use landfall_steps::durable::{Disk, HostDisk};
use landfall_steps::{BootId, BootIdError};

use super::cluster::{in_the_way, no_answer};
use super::systemd::Systemd;
use super::{Command, Ended, NoAnswer, Tied, Trust, World, command, tree};
use crate::payload::{self, Piece};

pub use super::cluster::ClusterAccess;

/// A certificate authority or a few.
const MAX_AUTHORITIES: u64 = 4 * 1024 * 1024;

/// On one way; as the kernel counts.
const MAX_LINKS: usize = 40;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const MAX_BOOT_ID: u64 = 128;
/// In which `/proc` counts, on every architecture.
const TICKS: u64 = 100;

/// This machine.
#[derive(Debug)]
pub struct HostWorld {
    root: PathBuf,
    fetcher: Fetcher,
    access: ClusterAccess,
    redactor: Redactor,
    systemd: Systemd,
}

#[derive(Debug, thiserror::Error)]
pub enum HostWorldError {
    #[error("cannot prepare to download")]
    Fetch(#[source] FetchError),
    #[error("cannot prepare to redact")]
    Redact(#[source] BuildError),
}

// === impl HostWorld ===

impl HostWorld {
    /// The machine below `root`. Of what programs say, these secrets are never written down.
    pub fn new(
        root: &Path,
        access: ClusterAccess,
        secrets: &[Secret<String>],
    ) -> Result<Self, HostWorldError> {
        let fetcher = Fetcher::new(None).map_err(HostWorldError::Fetch)?;
        let mut builder = Redactor::builder();
        for secret in secrets {
            builder = builder.known_secret(Kind::PASSWORD, secret);
        }
        let redactor = builder.build().map_err(HostWorldError::Redact)?;
        Ok(Self { root: root.to_owned(), fetcher, access, redactor, systemd: Systemd::at(root) })
    }

    /// Boots the machine anew, in good order.
    pub fn reboot(&self) -> Result<(), String> {
        self.systemd.reboot()
    }

    fn fetcher(&self, trust: &Trust) -> Result<Fetcher, FetchError> {
        match trust {
            Trust::Only(authorities) => Fetcher::trusting(authorities.as_bytes()),
            Trust::Machine => Ok(self.fetcher.clone()),
            Trust::Registry { folder } => {
                let path = self.seen(&folder.join("ca.crt"));
                match HostDisk.read(&path, MAX_AUTHORITIES) {
                    Ok(authorities) => Fetcher::trusting(&authorities),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(self.fetcher.clone()),
                    Err(source) => Err(FetchError::Authority { path, source }),
                }
            }
        }
    }

    fn sync_parent(path: &Path) -> io::Result<()> {
        HostDisk.sync_dir(path.parent().ok_or(io::ErrorKind::InvalidInput)?)
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

    fn seen(&self, path: &Path) -> PathBuf {
        let names = |path: &Path| -> Vec<OsString> {
            let parts = path.components().rev();
            let parts = parts.filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
            parts.map(|part| part.as_os_str().to_owned()).collect()
        };
        let (mut left, mut here, mut links) = (names(path), PathBuf::new(), 0);
        while let Some(name) = left.pop() {
            if name == ".." {
                here.pop();
                continue;
            }
            here.push(name);
            if let Ok(to) = std::fs::read_link(self.root.join(&here))
                && links < MAX_LINKS
            {
                links += 1;
                here.pop();
                if to.is_absolute() {
                    here = PathBuf::new();
                }
                left.extend(names(&to));
            }
        }
        self.root.join(here)
    }

    fn boot(&self) -> Result<BootId, BootIdError> {
        // That of the machine below the root: a container's own may be that of a kernel around the machine.
        match HostDisk.read(&self.place(Path::new(BOOT_ID)), MAX_BOOT_ID) {
            Ok(bytes) => BootId::parse(&String::from_utf8_lossy(&bytes)),
            Err(_) => BootId::read(&HostDisk),
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn uptime(&self) -> Duration {
        let text = |path| std::fs::read_to_string(path).unwrap_or_default();
        let up = text("/proc/uptime").split('.').next().and_then(|seconds| seconds.parse::<u64>().ok());
        // In a container the kernel is older than the system.
        let first = started_at(&text("/proc/1/stat")).unwrap_or(0);
        Duration::from_secs(up.unwrap_or(0).saturating_sub(first))
    }

    async fn exchange(&self, trust: &Trust, question: &Exchange) -> Result<Answer, FetchError> {
        self.fetcher(trust)?.exchange(question).await
    }

    async fn download(&self, trust: &Trust, question: &Exchange, file: &Path) -> Result<Saved, FetchError> {
        self.fetcher(trust)?.exchange_to_file(question, file).await
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn io::Read + Send>> {
        Ok(Box::new(File::open(self.place(path))?))
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        let place = self.place(path);
        let there = place.ancestors().find(|path| path.exists()).unwrap_or(&self.root);
        let stat = rustix::fs::statvfs(there)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        match self.place(path).symlink_metadata() {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn tied(&self, path: &Path) -> io::Result<Option<Tied>> {
        if !self.exists(path)? {
            return Ok(None);
        }
        let place = self.place(path);
        if place.is_symlink() {
            return Ok(Some(Tied::Link { to: std::fs::read_link(&place)?.display().to_string() }));
        }
        Ok(tree::is_apart(&place)?.then_some(Tied::Mount))
    }

    fn set_aside(&self, from: &Path, to: &Path) -> io::Result<()> {
        if !self.exists(from)? {
            return Ok(());
        }
        let (from, to) = (self.place(from), self.place(to));
        match std::fs::rename(&from, &to) {
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => tree::move_by_copy(&from, &to)?,
            renamed => renamed?,
        }
        Self::sync_parent(&to)
    }

    fn remove_all(&self, path: &Path) -> io::Result<()> {
        if !self.exists(path)? {
            return Ok(());
        }
        let place = self.place(path);
        tree::remove(&place)?;
        Self::sync_parent(&place)
    }

    fn set_link(&self, path: &Path, to: &Path) -> io::Result<()> {
        let place = self.place(path);
        match std::fs::remove_file(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::os::unix::fs::symlink(to, &place)?;
        Self::sync_parent(&place)
    }

    async fn unpack(&self, payload: &Path, folder: &Path) -> Result<(), String> {
        let (payload, folder) = (self.place(payload), self.place(folder));
        let unpacked = tokio::task::spawn_blocking(move || unpack(&payload, &folder)).await;
        unpacked.map_err(|error| error.to_string())?
    }

    fn program(&self) -> io::Result<Vec<u8>> {
        std::fs::read("/proc/self/exe")
    }

    async fn reload_units(&self) -> Result<(), String> {
        // A folder or a mounted disk has no systemd; what is written there is read at its next boot.
        if !self.systemd.is_there() {
            return Ok(());
        }
        let systemd = self.systemd.clone();
        let done = tokio::task::spawn_blocking(move || systemd.reload()).await;
        done.map_err(|error| error.to_string())?
    }

    async fn unit_state(&self, unit: &str) -> Result<String, String> {
        let (systemd, unit) = (self.systemd.clone(), unit.to_owned());
        let state = tokio::task::spawn_blocking(move || systemd.unit_state(&unit)).await;
        state.map_err(|error| error.to_string())?
    }

    async fn start_unit(&self, unit: &str) -> Result<(), String> {
        if !self.systemd.is_there() {
            return Ok(());
        }
        let (systemd, unit) = (self.systemd.clone(), unit.to_owned());
        let started = tokio::task::spawn_blocking(move || systemd.start(&unit)).await;
        started.map_err(|error| error.to_string())?
    }

    async fn run(&self, command: &Command) -> Result<Ended, String> {
        if self.root != Path::new("/") {
            return Err("programs of the node are run on the node itself, not below another root".to_owned());
        }
        command::run(command, &self.place(&command.log), &self.redactor).await
    }

    async fn node(&self, name: &str) -> Result<Option<NodeFacts>, NoAnswer> {
        let cluster = self.access.connect(|path| self.place(path)).await?;
        cluster.node_facts(name).await.map_err(|error| no_answer(&error))
    }

    async fn in_the_way(&self, node: &str) -> Result<Vec<String>, NoAnswer> {
        let cluster = self.access.connect(|path| self.place(path)).await?;
        in_the_way(&cluster, node).await.map_err(|error| no_answer(&error))
    }

    async fn remove_label(&self, node: &str, label: &str) -> Result<(), NoAnswer> {
        let cluster = self.access.connect(|path| self.place(path)).await?;
        cluster.label_node(node, label, None).await.map_err(|error| no_answer(&error))
    }

    async fn annotate(&self, node: &str, key: &str, value: &str) -> Result<(), NoAnswer> {
        let cluster = self.access.connect(|path| self.place(path)).await?;
        cluster.annotate_node(node, key, Some(value)).await.map_err(|error| no_answer(&error))
    }
}

/// When a process was started, in seconds since the kernel was.
fn started_at(stat: &str) -> Option<u64> {
    // The name in parentheses may hold anything; the 22nd field is the 20th behind it.
    let ticks: u64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    Some(ticks / TICKS)
}

/// Into a folder beside the final one, which is then renamed.
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
        // Not through a link an earlier piece has put there.
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
    std::fs::rename(&draft, folder).map_err(failed)?;
    HostWorld::sync_parent(folder).map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::world::read;

    /// In a pod the machine is at `/host`, and its links do not say so.
    #[test]
    fn links_of_a_machine_lead_to_places_of_the_machine() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("host");
        std::fs::create_dir_all(root.join("etc/pki/anchors")).unwrap();
        std::fs::create_dir_all(root.join("usr/lib")).unwrap();
        std::fs::write(root.join("etc/pki/anchors/ca.crt"), "of the machine").unwrap();
        std::fs::write(folder.path().join("outside"), "of the pod").unwrap();
        for (link, to) in [
            ("etc/certs", "/etc/pki"),
            ("etc/ca.crt", "certs/anchors/ca.crt"),
            ("usr/lib/ca.crt", "../../../../etc/certs/anchors/ca.crt"),
            ("etc/outside", "../../outside"),
            ("etc/circle", "/etc/circle"),
        ] {
            symlink(to, root.join(link)).unwrap();
        }
        let world = HostWorld::new(&root, ClusterAccess::Kubelet, &[]).unwrap();
        for path in ["/etc/pki/anchors/ca.crt", "/etc/certs/anchors/ca.crt", "/etc/ca.crt", "/usr/lib/ca.crt"]
        {
            let found = read(&world, Path::new(path), 64).unwrap();
            assert_eq!(found.as_deref(), Some(&b"of the machine"[..]), "{path}");
        }
        assert_eq!(read(&world, Path::new("/etc/outside"), 64).unwrap(), None, "nothing of the pod's");
        assert_eq!(read(&world, Path::new("/etc/circle"), 64).unwrap(), None, "and a circle has an end");
    }
}
