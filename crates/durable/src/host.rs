//! The disk of the machine that runs this process.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use rustix::fs::{CWD, FlockOperation, Gid, Mode, OFlags, Uid};

use super::{Access, Disk, DraftFile, Lock};

/// Number of attempts to open a draft. Another is needed if its previous writer renames it between our open and our
/// lock.
///
/// Each attempt needs another writer of the same file to finish in that moment.
const OPEN_TRIES: u32 = 16;

/// The real disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostDisk;

#[derive(Debug)]
struct HostDraft(File);

#[derive(Debug)]
struct HostLock(File);

// === impl HostDisk ===

impl Disk for HostDisk {
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(bytes)
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        std::fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    fn open_draft(&self, path: &Path, access: Access) -> io::Result<Box<dyn DraftFile>> {
        for _ in 0..OPEN_TRIES {
            let file = open(path, OFlags::WRONLY)?;
            lock(&file)?;
            // A faster writer has renamed this file into place, so it must not be truncated.
            if !is_still_at(&file, path)? {
                continue;
            }
            file.set_len(0)?;
            grant(&file, access)?;
            return Ok(Box::new(HostDraft(file)));
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn sync_file(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn sync_all(&self) -> io::Result<()> {
        rustix::fs::sync();
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn create_dir(&self, path: &Path, access: Access) -> io::Result<()> {
        match std::fs::DirBuilder::new().mode(access.mode).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !path.is_dir() => {
                Err(io::ErrorKind::NotADirectory.into())
            }
            Err(error) => Err(error),
            // Set again by handle: the umask of the process applies to the mode at creation.
            Ok(()) => grant(&File::open(path)?, access),
        }
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Lock>> {
        let file = open(path, OFlags::RDWR)?;
        lock(&file)?;
        Ok(Box::new(HostLock(file)))
    }
}

/// Opens or creates a file for the owner only. Does not follow a link at the last name; child processes do not
/// inherit it.
fn open(path: &Path, access: OFlags) -> io::Result<File> {
    let flags = access | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(CWD, path, flags, Mode::RUSR | Mode::WUSR)?))
}

fn lock(file: &File) -> io::Result<()> {
    Ok(rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)?)
}

fn is_still_at(file: &File, path: &Path) -> io::Result<bool> {
    let held = file.metadata()?;
    match std::fs::symlink_metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (held.dev(), held.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Sets the permissions before any content, so that no byte is ever readable by others; owner first, because a change
/// of owner clears mode bits.
fn grant(file: &File, access: Access) -> io::Result<()> {
    if let Some(owner) = access.owner {
        rustix::fs::fchown(file, Some(Uid::from_raw(owner.user)), Some(Gid::from_raw(owner.group)))?;
    }
    Ok(rustix::fs::fchmod(file, Mode::from_raw_mode(access.mode))?)
}

// === impl HostDraft ===

impl DraftFile for HostDraft {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_all()
    }
}

// === impl HostLock ===

impl Lock for HostLock {}

impl Drop for HostLock {
    fn drop(&mut self) {
        // Closing is not enough: a child that another thread has just forked also has the file open until its exec,
        // and would keep the lock.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_given_back_is_free_even_while_a_forked_child_has_its_file_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let file = open(&path, OFlags::RDWR).unwrap();
        lock(&file).unwrap();
        let childs_copy = file.try_clone().unwrap();
        let held = HostLock(file);
        assert_eq!(HostDisk.lock(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(held);
        HostDisk.lock(&path).unwrap();
        drop(childs_copy);
    }
}
