//! Writing files so that a power cut leaves the old content or the new, whole, and never anything between.
//!
//! Every file that must survive goes through [`write()`] or [`Draft`]: content into a hidden file beside the target,
//! fsync, rename over the target, fsync of the directory. When they return, the new content is on the disk; when they
//! fail or the machine dies, the target is what it was, or complete.
//!
//! The operations go through the small [`Disk`] trait, so that tests can take the power away before and after each.

mod host;
#[cfg(any(test, feature = "simulation"))]
pub mod simulated;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

pub use host::HostDisk;

/// What the hidden file beside a target is called: `.NAME` and this. One name per target, so that a crash leaves at
/// most one behind, and the next write of the same target uses it up.
const DRAFT_SUFFIX: &str = ".landfall-draft";

/// Who may touch a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub mode: u32,
    /// Nothing given: whoever runs this process.
    pub owner: Option<Owner>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub user: u32,
    pub group: u32,
}

/// The operations durable writing is made of, each of them a moment at which the power may go.
pub trait Disk: fmt::Debug + Send + Sync {
    /// The whole file, or an error of kind `FileTooLarge` when it is longer than `limit`.
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>>;
    /// Names in a directory, without order.
    fn names(&self, dir: &Path) -> io::Result<Vec<OsString>>;
    /// An empty file open for writing. A leftover of a dead writer is emptied; a living writer makes it `WouldBlock`.
    fn open_draft(&self, path: &Path, access: Access) -> io::Result<Box<dyn DraftFile>>;
    fn sync_file(&self, path: &Path) -> io::Result<()>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    fn create_dir(&self, path: &Path, access: Access) -> io::Result<()>;
    /// Held until the value is dropped or the process dies; `WouldBlock` while someone else holds it.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>>;
}

/// A file being written.
pub trait DraftFile: fmt::Debug + Send {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;
    fn sync(&mut self) -> io::Result<()>;
}

/// A lock, released by dropping it.
pub trait Lock: fmt::Debug + Send {}

/// A file that is written piece by piece and appears, whole, under its name at [`Draft::commit`]. Dropped before that,
/// it leaves nothing.
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

/// Replaces `path` by a file with this content.
pub fn write(disk: &dyn Disk, path: &Path, bytes: &[u8], access: Access) -> Result<(), Error> {
    let mut draft = Draft::create(disk, path, access)?;
    draft.append(bytes)?;
    draft.commit()
}

/// Makes a file that was written under another name of the same directory appear under its own: for downloads that
/// are taken up again and therefore keep their unfinished file.
pub fn publish(disk: &dyn Disk, from: &Path, to: &Path) -> Result<(), Error> {
    if parent(from)? != parent(to)? {
        let source = io::Error::new(io::ErrorKind::CrossesDevices, "both names must be in one directory");
        return Err(Doing::Rename.failed(to, source));
    }
    disk.sync_file(from).map_err(|source| Doing::Sync.failed(from, source))?;
    rename(disk, from, to)
}

/// Removes a file for good. One that is not there is success: an earlier removal may have been cut short.
pub fn remove(disk: &dyn Disk, path: &Path) -> Result<(), Error> {
    match disk.remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            return Err(Doing::Remove.failed(path, source));
        }
        _ => {}
    }
    sync_parent(disk, path)
}

/// Makes a directory in one that exists. One that is there already is success; its name is made to last all the same,
/// because whoever created it may have died before that.
pub fn create_dir(disk: &dyn Disk, path: &Path, access: Access) -> Result<(), Error> {
    match disk.create_dir(path, access) {
        Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
            return Err(Doing::CreateDir.failed(path, source));
        }
        _ => {}
    }
    sync_parent(disk, path)
}

fn rename(disk: &dyn Disk, from: &Path, to: &Path) -> Result<(), Error> {
    disk.rename(from, to).map_err(|source| Doing::Rename.failed(to, source))?;
    sync_parent(disk, to)
}

fn sync_parent(disk: &dyn Disk, path: &Path) -> Result<(), Error> {
    let dir = parent(path)?;
    disk.sync_dir(dir).map_err(|source| Doing::SyncDir.failed(dir, source))
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
    /// For the owner alone.
    pub const PRIVATE: Self = Self { mode: 0o600, owner: None };
    pub const PRIVATE_DIR: Self = Self { mode: 0o700, owner: None };
    /// Everyone may read it.
    pub const PUBLIC: Self = Self { mode: 0o644, owner: None };
}

// === impl Draft ===

impl<'a> Draft<'a> {
    pub fn create(disk: &'a dyn Disk, target: &Path, access: Access) -> Result<Self, Error> {
        let Some(name) = target.file_name() else {
            let source = io::Error::new(io::ErrorKind::InvalidInput, "the path names no file");
            return Err(Doing::Name.failed(target, source));
        };
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(DRAFT_SUFFIX);
        let hidden = parent(target)?.join(hidden);
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
            // Not renamed: hand the file back to `drop`, which removes it.
            self.file = Some(file);
        }
        committed
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if self.file.is_some() {
            // Best effort: what stays behind is hidden, and the next write of the same target uses it up.
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
