//! A node's place on this machine: a number, from which all its names and addresses follow, and a folder.
//!
//! The owner holds a lock on the folder for as long as it lives. A folder without a holder was left behind by a test that
//! was killed; whoever claims a place next clears it away first.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::cgroup;
use super::disk::Disk;
use super::network::Network;

/// One place for the whole machine, whatever cache its users have: the names of namespaces and interfaces are the
/// machine's, too. Not below `/run`, which may be a small file system in memory.
const HOME: &str = "/var/tmp/landfall-testbed";
/// Far more nodes than a machine carries; keeps the addresses within one byte.
const MAX_NODES: u16 = 250;
/// The node's control groups, one a line, for whoever must clear up.
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
                // The parent is open to everybody.
                ensure!(owner.is_dir() && owner.uid() == 0, "`{HOME}` is not root's folder");
            }
            other => other.with_context(|| format!("create `{HOME}`"))?,
        }
        let mut all = hold_all()?;
        let mut last = String::new();
        all.read_to_string(&mut last).context("read the number of the last node")?;
        // Numbers go round, so that no new node is soon taken for one that has just gone.
        let first = last.trim().parse::<u16>().map_or(0, |last| last % MAX_NODES + 1);
        let mut free = None;
        for number in (first..MAX_NODES).chain(0..first) {
            let directory = home.join(number.to_string());
            if directory.exists() {
                if hold(&directory)?.is_none() {
                    continue;
                }
                // What cannot be cleared away keeps its place; this test takes another.
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

    /// Unique on this machine while the node exists.
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

    /// Removes the node's processes, groups, network, mounts and files.
    pub(super) fn clear(&self) -> Result<()> {
        dismantle(self.number, &self.directory)?;
        // Nobody may take a half-removed folder for one that was left behind.
        let _all = hold_all()?;
        remove(&self.directory)
    }
}

fn name(number: u16) -> String {
    format!("landfall-node-{number}")
}

/// Waits for the lock under which places are claimed and given back. The file holds the number given out last.
fn hold_all() -> Result<File> {
    let path = Path::new(HOME).join("lock");
    let all = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path);
    let all = all.context("create the lock of the nodes' folder")?;
    all.lock().context("wait for the lock of the nodes' folder")?;
    Ok(all)
}

/// Takes the lock of a node's folder; `None` when its owner lives.
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

/// Ends and undoes all that is not files; safe to repeat.
fn dismantle(number: u16, directory: &Path) -> Result<()> {
    let groups = std::fs::read_to_string(directory.join(GROUPS)).unwrap_or_default();
    let groups: Vec<PathBuf> = groups.lines().map(PathBuf::from).collect();
    cgroup::kill(&groups)?;
    cgroup::remove(&groups)?;
    Network::of(number).remove()?;
    // A folder systemd-nspawn removes when it ends in good order; an empty one left over harms nobody.
    let _ = std::fs::remove_dir(Path::new("/run/systemd/nspawn/propagate").join(name(number)));
    Disk::of(directory).unmount()
}

/// Only after [`dismantle`], when nothing is mounted among the files.
fn remove(directory: &Path) -> Result<()> {
    std::fs::remove_dir_all(directory).with_context(|| format!("remove `{}`", directory.display()))
}
