//! A node's slot on this machine: a number that determines all its names and addresses, and a directory.
//!
//! The owner holds a lock on the directory while it runs. A directory without a lock was left by a killed
//! test; the next process that claims a slot removes it.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::cgroup;
use super::disk::Disk;
use super::network::Network;

/// One directory for the machine, independent of the users' caches: the names of namespaces and interfaces
/// are also machine-wide. Not below `/run`, which may be a small in-memory file system.
const HOME: &str = "/var/tmp/landfall-testbed";
/// More nodes than a machine can run; keeps the addresses within one byte.
const MAX_NODES: u16 = 250;
/// File with the node's cgroups, one per line, for the cleanup.
const GROUPS: &str = "control-groups";

#[derive(Debug)]
pub(super) struct Slot {
    number: u16,
    directory: PathBuf,
    groups: Vec<PathBuf>,
    _lock: File,
}

// === impl Slot ===

impl Slot {
    pub(super) fn claim() -> Result<Self> {
        let home = Path::new(HOME);
        match DirBuilder::new().mode(0o700).create(home) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let owner = std::fs::symlink_metadata(home).context("look at the nodes' folder")?;
                // The parent directory is world-writable.
                ensure!(owner.is_dir() && owner.uid() == 0, "`{HOME}` is not root's folder");
            }
            other => other.with_context(|| format!("create `{HOME}`"))?,
        }
        let mut all = hold_all()?;
        let mut last = String::new();
        all.read_to_string(&mut last).context("read the number of the last node")?;
        // Numbers are assigned round-robin, so that a new node is not mistaken for a recently removed one.
        let first = last.trim().parse::<u16>().map_or(0, |last| last % MAX_NODES + 1);
        let mut free = None;
        for number in (first..MAX_NODES).chain(0..first) {
            let directory = home.join(number.to_string());
            if directory.exists() {
                if hold(&directory)?.is_none() {
                    continue;
                }
                // If a slot cannot be cleaned up, it stays in use, and this test claims another.
                if let Err(error) = dismantle(number, &directory).and_then(|()| remove(&directory)) {
                    let mut stderr = std::io::stderr().lock();
                    let _ = writeln!(stderr, "warning: node {number} of a killed test is left: {error:#}");
                    continue;
                }
            }
            free = free.or(Some((number, directory)));
        }
        let Some((number, directory)) = free else { bail!("{MAX_NODES} nodes run already") };
        all.set_len(0).and_then(|()| all.rewind()).context("replace the number of the last node")?;
        write!(all, "{number}").context("write the number of the last node")?;
        std::fs::create_dir(&directory).with_context(|| format!("create `{}`", directory.display()))?;
        let lock = hold(&directory)?.context("a new folder has no other holder")?;
        let mut slot = Self { number, directory, groups: Vec::new(), _lock: lock };
        slot.groups = cgroup::create(&slot.name())?;
        let lines: Vec<_> = slot.groups.iter().map(|group| group.to_string_lossy()).collect();
        std::fs::write(slot.directory.join(GROUPS), lines.join("\n"))
            .context("record a node's control groups")?;
        Ok(slot)
    }

    /// Returns a name that is unique on this machine while the node exists.
    pub(super) fn name(&self) -> String {
        name(self.number)
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn groups(&self) -> &[PathBuf] {
        &self.groups
    }

    pub(super) fn network(&self) -> Network {
        Network::of(self.number)
    }

    pub(super) fn disk(&self) -> Disk {
        Disk::of(&self.directory)
    }

    /// Removes the node's processes, cgroups, network, mounts and files.
    pub(super) fn clear(&self) -> Result<()> {
        dismantle(self.number, &self.directory)?;
        // The lock prevents another process from treating a half-removed directory as abandoned.
        let _all = hold_all()?;
        remove(&self.directory)
    }
}

fn name(number: u16) -> String {
    format!("landfall-node-{number}")
}

/// Waits for the lock for claiming and releasing slots. The file contains the last assigned number.
fn hold_all() -> Result<File> {
    let path = Path::new(HOME).join("lock");
    let all = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
    let all = all.context("create the lock of the nodes' folder")?;
    all.lock().context("wait for the lock of the nodes' folder")?;
    Ok(all)
}

/// Acquires the lock of a node's directory; `None` while its owner runs.
fn hold(directory: &Path) -> Result<Option<File>> {
    let path = directory.join("lock");
    let lock = OpenOptions::new().create(true).append(true).open(&path);
    let lock = lock.with_context(|| format!("open `{}`", path.display()))?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error).with_context(|| format!("lock `{}`", path.display())),
    }
}

/// Stops and removes everything except files; idempotent.
fn dismantle(number: u16, directory: &Path) -> Result<()> {
    let groups = std::fs::read_to_string(directory.join(GROUPS)).unwrap_or_default();
    let groups: Vec<PathBuf> = groups.lines().map(PathBuf::from).collect();
    cgroup::kill(&groups)?;
    cgroup::remove(&groups)?;
    Network::of(number).remove()?;
    // systemd-nspawn removes this directory on an orderly exit; an empty leftover is harmless.
    let _ = std::fs::remove_dir(Path::new("/run/systemd/nspawn/propagate").join(name(number)));
    Disk::of(directory).unmount()
}

/// Removes the files. Call it only after [`dismantle`], when no file system is mounted below.
fn remove(directory: &Path) -> Result<()> {
    std::fs::remove_dir_all(directory).with_context(|| format!("remove `{}`", directory.display()))
}
