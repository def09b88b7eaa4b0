//! The unfinished file beside its target, with the validator that the server sent for it.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use landfall_durable::{self as durable, HostDisk};

use crate::FetchError;
use crate::digest::{Algorithm, Digest, Hasher};

const SUFFIX: &str = ".landfall-part";
const BLOCK: usize = 256 * 1024;
/// A URL and a validator.
const MAX_NOTE_BYTES: u64 = 16 * 1024;
/// Free space left for other programs on the file system.
const RESERVE_BYTES: u64 = 16 * 1024 * 1024;

/// A file that is being downloaded.
pub(crate) struct Part {
    path: PathBuf,
    note: PathBuf,
    target: PathBuf,
    file: File,
    hasher: Hasher,
    length: u64,
}

// === impl Part ===

impl Part {
    /// Opens the existing part of `target` from this URL, or an empty file.
    pub(crate) fn open(target: &Path, algorithm: Algorithm) -> Result<Self, FetchError> {
        let beside = |suffix: &str| {
            let mut name = OsString::from(".");
            name.push(target.file_name().unwrap_or_default());
            name.push(suffix);
            target.with_file_name(name)
        };
        let path = beside(SUFFIX);
        let failed = |source| FetchError::Write { path: path.clone(), source };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        // A link created in place of this file must not redirect the data.
        options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
        let mut file = options.open(&path).map_err(failed)?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(|error| failed(error.into()))?;
        let mut hasher = Hasher::new(algorithm);
        let mut length = 0;
        let mut block = vec![0; BLOCK];
        loop {
            match file.read(&mut block).map_err(failed)? {
                0 => break,
                count => {
                    hasher.add(&block[..count]);
                    length += count as u64;
                }
            }
        }
        let note = beside(&format!("{SUFFIX}-note"));
        Ok(Self { note, target: target.to_owned(), file, hasher, length, path })
    }

    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Returns the validator with which the server resumes only an unchanged file.
    pub(crate) fn validator(&self, url: &str) -> Option<String> {
        let mut text = String::new();
        File::open(&self.note).ok()?.take(MAX_NOTE_BYTES).read_to_string(&mut text).ok()?;
        let (noted, validator) = text.trim_end().split_once('\n')?;
        (self.length > 0 && noted == url && !validator.is_empty()).then(|| validator.to_owned())
    }

    /// Starts from scratch.
    pub(crate) fn restart(&mut self, url: &str, validator: Option<&str>) -> Result<(), FetchError> {
        let failed = |source| FetchError::Write { path: self.path.clone(), source };
        self.file.set_len(0).map_err(failed)?;
        self.file.seek(SeekFrom::Start(0)).map_err(failed)?;
        self.length = 0;
        self.hasher = Hasher::new(self.hasher.algorithm());
        match validator {
            // Only a hint for the next attempt, and the hash is verified at the end, so it need not be durable.
            Some(validator) => write_note(&self.note, &format!("{url}\n{validator}\n")),
            None => remove(&self.note),
        }
        .map_err(failed)
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), FetchError> {
        self.file.write_all(bytes).map_err(|source| FetchError::Write { path: self.path.clone(), source })?;
        self.hasher.add(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Checks that the disk has enough space for the rest.
    pub(crate) fn make_sure_of_room(&self, rest: u64) -> Result<(), FetchError> {
        let failed =
            |error: rustix::io::Errno| FetchError::Write { path: self.path.clone(), source: error.into() };
        let status = rustix::fs::fstatvfs(&self.file).map_err(failed)?;
        let free = status.f_bavail.saturating_mul(status.f_frsize);
        let needed = rest.saturating_add(RESERVE_BYTES);
        if needed > free {
            return Err(FetchError::NoSpace { path: self.target.clone(), needed, free });
        }
        Ok(())
    }

    pub(crate) fn digest(&self) -> Digest {
        self.hasher.clone().finish()
    }

    /// Renames the file to the target after it is on the disk.
    pub(crate) fn publish(self, mode: u32) -> Result<(), FetchError> {
        let failed = |source| FetchError::Write { path: self.path.clone(), source };
        self.file.set_permissions(Permissions::from_mode(mode)).map_err(failed)?;
        durable::publish(&HostDisk, &self.path, &self.target)
            .map_err(|source| FetchError::Publish { path: self.target.clone(), source })?;
        remove(&self.note).map_err(failed)
    }

    pub(crate) fn discard(self) {
        // Best effort: a leftover is hidden, and the next attempt truncates it.
        let _ = remove(&self.path);
        let _ = remove(&self.note);
    }
}

/// Like the file itself, it is never written through a link that another user created.
fn write_note(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    options.open(path)?.write_all(text.as_bytes())
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
