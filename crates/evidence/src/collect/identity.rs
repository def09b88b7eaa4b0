//! Identities (device and inode) of files that are never collected.
//!
//! A hard link, bind mount or renamed file has a path that is not in the table of secret files, but the same
//! identity.

use std::collections::HashSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, StatxFlags};
use rustix::io::Errno;

use super::forbidden;
use super::host::Host;
use super::secrets::named_files;
use super::secrets::places::{PLACES, Scope, Use};

/// Limit for all directories that contain little but secrets.
const MAX_ENTRIES: usize = 20_000;
/// Limit for each directory with container or user data.
const MAX_LARGE: usize = 2_000;
/// Limit for `/etc`, where key files are recognized by their names.
const MAX_CONFIGURATION: usize = 20_000;
const MAX_DEPTH: usize = 24;

/// These directories are on local disks; a longer read means a damaged disk.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A snapshot younger than this is not refreshed.
const MIN_AGE: Duration = Duration::from_secs(1);

/// Directory in which private keys and credentials are recognized by file name.
const CONFIGURATION: &str = "/etc";

type Identity = (u64, u64);

/// A snapshot of the identities.
#[derive(Debug)]
pub(super) struct Identities {
    files: HashSet<Identity>,
    directories: HashSet<Identity>,
    /// Devices with directories that were not read completely.
    partial: HashSet<u64>,
    is_complete: bool,
    /// The snapshot is not refreshed before this time.
    recent_until: Option<Instant>,
    deadline: Instant,
}

/// A directory to read, with the limits for its subtree.
struct Walk<'i> {
    identities: &'i mut Identities,
    left: usize,
    /// Whether to stay on one mount: directories with container data contain mounts of other directories.
    same_mount: bool,
    is_secret: fn(&Path) -> bool,
}

/// One entry of a directory.
struct Entry {
    identity: Identity,
    mount: Option<u64>,
    kind: FileType,
}

// === impl Identities ===

impl Identities {
    /// Reads the directories in the table of secret files.
    pub(super) fn gather(host: &Host) -> Self {
        let now = Instant::now();
        let mut identities = Self {
            files: HashSet::new(),
            directories: HashSet::new(),
            partial: HashSet::new(),
            is_complete: true,
            recent_until: Some(now + MIN_AGE),
            deadline: now + TIMEOUT,
        };
        let mut left = MAX_ENTRIES;
        for place in PLACES.iter().filter(|place| place.usage == Use::Withheld) {
            match place.scope {
                Scope::Files => identities.add_files(host, place.path),
                Scope::Tree => {
                    let is_secret = |path: &Path| forbidden::reason(path).is_some();
                    let walk = Walk { identities: &mut identities, left, same_mount: false, is_secret };
                    left = walk.run(host, place.path).unwrap_or_else(|| {
                        identities.is_complete = false;
                        0
                    });
                }
                Scope::Large => {
                    let left = MAX_LARGE;
                    let walk =
                        Walk { identities: &mut identities, left, same_mount: true, is_secret: |_| true };
                    walk.run(host, place.path);
                }
            }
        }
        let named = named_files::find(host, identities.deadline);
        for file in named.iter().filter(|file| file.usage == Use::Withheld) {
            identities.add_files(host, &file.path);
        }
        let left = MAX_CONFIGURATION;
        let is_secret = |path: &Path| forbidden::reason_by_name(path).is_some();
        let walk = Walk { identities: &mut identities, left, same_mount: true, is_secret };
        if walk.run(host, CONFIGURATION).is_none() {
            identities.is_complete = false;
        }
        identities
    }

    /// Returns whether all directories that contain little but secrets were read completely.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    pub(super) fn is_recent(&self) -> bool {
        self.recent_until.is_some_and(|until| Instant::now() < until)
    }

    #[cfg(test)]
    pub(super) fn expired(self) -> Self {
        Self { recent_until: None, ..self }
    }

    pub(super) fn has_file(&self, stat: &Stat) -> bool {
        self.files.contains(&(stat.st_dev, stat.st_ino))
    }

    pub(super) fn has_directory(&self, stat: &Stat) -> bool {
        self.directories.contains(&(stat.st_dev, stat.st_ino))
    }

    /// Returns whether another link to this file may be in a directory that was not read completely.
    pub(super) fn may_lack(&self, stat: &Stat) -> bool {
        stat.st_nlink > 1 && self.partial.contains(&stat.st_dev)
    }

    fn add_files(&mut self, host: &Host, pattern: &str) {
        match host.find(pattern, self.deadline) {
            Ok(paths) => {
                let stats = paths.into_iter().filter_map(|path| host.stat(path).ok());
                self.files.extend(stats.map(|stat| (stat.st_dev, stat.st_ino)));
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                self.is_complete = false;
                self.partial.extend(host.stat("/").map(|stat| stat.st_dev));
            }
            Err(_) => {}
        }
    }
}

// === impl Walk ===

impl Walk<'_> {
    /// Reads a directory tree. Returns the number of entries left, or `None` if the limit was reached.
    fn run(mut self, host: &Host, path: &str) -> Option<usize> {
        let Ok(directory) = host.directory(path) else { return Some(self.left) };
        let Ok(entry) = Entry::of(directory.as_fd(), c"") else { return Some(self.left) };
        if (self.is_secret)(Path::new(path)) {
            self.identities.directories.insert(entry.identity);
        }
        let is_whole = self.directory(&directory, Path::new(path), entry.mount, 0);
        if !is_whole {
            self.identities.partial.insert(entry.identity.0);
        }
        is_whole.then_some(self.left)
    }

    /// Returns `false` if a limit was reached.
    fn directory(&mut self, directory: &OwnedFd, path: &Path, mount: Option<u64>, depth: usize) -> bool {
        if depth == MAX_DEPTH {
            return false;
        }
        let Ok(entries) = Dir::read_from(directory) else { return true };
        for entry in entries {
            let Ok(entry) = entry else { return false };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if self.left == 0 || Instant::now() >= self.identities.deadline {
                return false;
            }
            self.left -= 1;
            let Ok(entry) = Entry::of(directory.as_fd(), name) else { continue };
            if self.same_mount && entry.mount != mount {
                continue;
            }
            let path = path.join(std::ffi::OsStr::from_bytes(name.to_bytes()));
            let is_secret = (self.is_secret)(&path);
            match entry.kind {
                FileType::RegularFile if is_secret => {
                    self.identities.files.insert(entry.identity);
                }
                FileType::Directory => {
                    if is_secret {
                        self.identities.directories.insert(entry.identity);
                    }
                    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let inner = rustix::fs::openat(directory, name, flags, Mode::empty());
                    if inner.is_ok_and(|inner| !self.directory(&inner, &path, entry.mount, depth + 1)) {
                        return false;
                    }
                }
                _ => {}
            }
        }
        true
    }
}

// === impl Entry ===

impl Entry {
    fn of(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<Self> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
        match rustix::fs::statx(directory, name, flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID) {
            Ok(stat) => {
                let has_mount = stat.stx_mask & StatxFlags::MNT_ID.bits() != 0;
                let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
                Ok(Self {
                    identity: (device, stat.stx_ino),
                    mount: has_mount.then_some(stat.stx_mnt_id),
                    kind: FileType::from_raw_mode(stat.stx_mode.into()),
                })
            }
            // Kernels before 4.11 and old sandboxes lack the system call.
            Err(Errno::NOSYS | Errno::PERM) => {
                let stat = rustix::fs::statat(directory, name, flags)?;
                let kind = FileType::from_raw_mode(stat.st_mode);
                Ok(Self { identity: (stat.st_dev, stat.st_ino), mount: Some(stat.st_dev), kind })
            }
            Err(error) => Err(error.into()),
        }
    }
}
