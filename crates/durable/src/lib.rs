//! Crash-safe file writes: after a power failure a file has its old or its new content, complete.
//!
//! Every file that must survive is written with [`write()`] or [`Draft`]: content into a hidden file beside the
//! target, fsync, rename over the target, fsync of the directory. When they return, the new content is on the disk.
//! When they fail or the machine loses power, the target is unchanged or complete.
//!
//! The operations use the small [`Disk`] trait, so that tests can simulate a power failure before and after each.

mod host;
#[cfg(any(test, feature = "simulation"))]
pub mod simulated;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

pub use host::HostDisk;

/// Suffix of the hidden file beside a target, named `.NAME` and this suffix.
///
/// There is one name per target, so that a crash leaves at most one file, and the next write of the same target
/// reuses it.
const DRAFT_SUFFIX: &str = ".landfall-draft";
/// The suffix for links: a file is never drafted under the name of a leftover link.
const LINK_SUFFIX: &str = ".landfall-link";

/// Permissions of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub mode: u32,
    /// `None`: the user of this process.
    pub owner: Option<Owner>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub user: u32,
    pub group: u32,
}

/// The operations of durable writing; the power may fail at each of them.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Reads a complete file; fails with `FileTooLarge` when it is longer than `limit`.
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>>;
    /// Returns the names in a directory, unordered.
    fn names(&self, dir: &Path) -> io::Result<Vec<OsString>>;
    /// Opens an empty file for writing. The leftover of a dead writer is truncated; a living writer causes
    /// `WouldBlock`.
    fn open_draft(&self, path: &Path, access: Access) -> io::Result<Box<dyn DraftFile>>;
    fn sync_file(&self, path: &Path) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Syncs everything that any process has written so far, on every file system.
    fn sync_all(&self) -> io::Result<()>;
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    fn create_dir(&self, path: &Path, access: Access) -> io::Result<()>;
    /// Locks a file until the value is dropped or the process dies; fails with `WouldBlock` while another process
    /// holds the lock.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>>;
}

/// A file being written.
pub trait DraftFile: fmt::Debug + Send {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
    fn sync(&mut self) -> io::Result<()>;
}

/// A lock, released by dropping it.
pub trait Lock: fmt::Debug + Send {}

/// A file that is written in pieces and appears complete under its name at [`Draft::commit`]. Dropped before that, it
/// leaves nothing.
#[derive(Debug)]
pub struct Draft<'a> {
    disk: &'a dyn Disk,
    target: PathBuf,
    hidden: PathBuf,
    file: Option<Box<dyn DraftFile>>,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} `{path}`")]
pub struct Error {
    pub doing: Doing,
    pub path: PathBuf,
    #[source]
    pub source: io::Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    Name,
    Open,
    Write,
    Sync,
    Rename,
    Remove,
    CreateDir,
    SyncDir,
}

/// Replaces `path` with a file of this content.
pub fn write(disk: &dyn Disk, path: &Path, bytes: &[u8], access: Access) -> Result<(), Error> {
    let mut draft = Draft::create(disk, path, access)?;
    draft.append(bytes)?;
    draft.commit()
}

/// Renames a file that was written under another name of the same directory, durably.
///
/// For resumable downloads, which keep their unfinished file.
pub fn publish(disk: &dyn Disk, from: &Path, to: &Path) -> Result<(), Error> {
    if parent(from)? != parent(to)? {
        let source = io::Error::new(io::ErrorKind::CrossesDevices, "both names must be in one directory");
        return Err(Doing::Rename.failed(to, source));
    }
    disk.sync_file(from).map_err(|source| Doing::Sync.failed(from, source))?;
    rename(disk, from, to)
}

/// Renames a file, a link or a directory durably. Its content must already be on the disk.
pub fn rename(disk: &dyn Disk, from: &Path, to: &Path) -> Result<(), Error> {
    disk.rename(from, to).map_err(|source| Doing::Rename.failed(to, source))?;
    sync_parent(disk, to)
}

/// Replaces `path` with a symbolic link to `to`. Only on the real disk: a [`Disk`] has no links.
pub fn write_link(path: &Path, to: &Path) -> Result<(), Error> {
    let hidden = hidden(path, LINK_SUFFIX)?;
    match std::fs::remove_file(&hidden) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            return Err(Doing::Remove.failed(&hidden, source));
        }
        _ => {}
    }
    std::os::unix::fs::symlink(to, &hidden).map_err(|source| Doing::Open.failed(&hidden, source))?;
    rename(&HostDisk, &hidden, path)
}

/// Syncs everything that any process has written so far.
///
/// A process killed between the rename and the fsync of the directory leaves a visible file that a power failure can
/// still remove.
pub fn sync_all(disk: &dyn Disk) -> Result<(), Error> {
    disk.sync_all().map_err(|source| Doing::Sync.failed(Path::new("/"), source))
}

/// Removes a file durably. A missing file is success: an earlier removal may have been interrupted.
pub fn remove(disk: &dyn Disk, path: &Path) -> Result<(), Error> {
    match disk.remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            return Err(Doing::Remove.failed(path, source));
        }
        _ => {}
    }
    sync_parent(disk, path)
}

/// Creates a directory in an existing one. An existing directory is success.
///
/// Its name is synced in either case, because the process that created it may have died before that.
pub fn create_dir(disk: &dyn Disk, path: &Path, access: Access) -> Result<(), Error> {
    match disk.create_dir(path, access) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Doing::CreateDir.failed(path, source));
        }
        _ => {}
    }
    sync_parent(disk, path)
}

fn sync_parent(disk: &dyn Disk, path: &Path) -> Result<(), Error> {
    let dir = parent(path)?;
    disk.sync_dir(dir).map_err(|source| Doing::SyncDir.failed(dir, source))
}

fn hidden(target: &Path, suffix: &str) -> Result<PathBuf, Error> {
    let Some(name) = target.file_name() else {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "the path does not name a file");
        return Err(Doing::Name.failed(target, source));
    };
    let mut hidden = OsString::from(".");
    hidden.push(name);
    hidden.push(suffix);
    Ok(parent(target)?.join(hidden))
}

fn parent(path: &Path) -> Result<&Path, Error> {
    match path.parent() {
        Some(dir) if dir.as_os_str().is_empty() => Ok(Path::new(".")),
        Some(dir) => Ok(dir),
        None => {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "the path has no directory");
            Err(Doing::Name.failed(path, source))
        }
    }
}

// === impl Access ===

impl Access {
    /// Accessible by the owner only.
    pub const PRIVATE: Self = Self { mode: 0o600, owner: None };
    pub const PRIVATE_DIR: Self = Self { mode: 0o700, owner: None };
    /// Readable by all users.
    pub const PUBLIC: Self = Self { mode: 0o644, owner: None };
}

// === impl Draft ===

impl<'a> Draft<'a> {
    pub fn create(disk: &'a dyn Disk, target: &Path, access: Access) -> Result<Self, Error> {
        let hidden = hidden(target, DRAFT_SUFFIX)?;
        let file = disk.open_draft(&hidden, access).map_err(|source| Doing::Open.failed(&hidden, source))?;
        Ok(Self { disk, target: target.to_owned(), hidden, file: Some(file) })
    }

    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(bytes).map_err(|source| Doing::Write.failed(&self.hidden, source))
    }

    pub fn commit(mut self) -> Result<(), Error> {
        let Some(mut file) = self.file.take() else { return Ok(()) };
        let committed = file
            .sync()
            .map_err(|source| Doing::Sync.failed(&self.hidden, source))
            .and_then(|()| rename(self.disk, &self.hidden, &self.target));
        if committed.as_ref().is_err_and(|error| error.doing != Doing::SyncDir) {
            // After a failed rename the file goes back to `drop`, which removes it.
            self.file = Some(file);
        }
        committed
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if self.file.is_some() {
            // Best effort: a leftover is hidden, and the next write of the same target reuses it.
            let _ = self.disk.remove_file(&self.hidden);
        }
    }
}

// === impl Doing ===

impl Doing {
    fn failed(self, path: &Path, source: io::Error) -> Error {
        Error { doing: self, path: path.to_owned(), source }
    }
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Name => "use the path",
            Self::Open => "open for writing",
            Self::Write => "write",
            Self::Sync => "flush to the disk",
            Self::Rename => "rename into place",
            Self::Remove => "remove",
            Self::CreateDir => "create the directory",
            Self::SyncDir => "flush the directory",
        })
    }
}

#[cfg(test)]
mod tests;
