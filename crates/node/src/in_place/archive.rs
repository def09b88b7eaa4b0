//! The entries of an untrusted archive, with limits for the metadata before each of them.
//!
//! Names, link targets and pax records may claim any size, and the reader loads them into memory before any check.
//! They have their own limit here.

use std::cell::Cell;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tar::Entry;

/// The longest path that Linux accepts; no longer one can be created.
pub(crate) const MAX_NAME: usize = 4096;
/// Limit for everything before one entry: its header, two names, and the extended attributes of pax with at most 64
/// KiB each.
pub(crate) const MAX_ABOUT: u64 = 256 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    #[error("it is damaged")]
    Damaged(#[source] io::Error),
    #[error("it has a name longer than {MAX_NAME} bytes: `{path}`…")]
    LongName { path: String },
    #[error("it has an entry with more than {MAX_ABOUT} bytes of names and attributes")]
    LongNames,
}

/// A reader that fails when the metadata before an entry exceeds its limit.
pub(crate) struct Bounded<R> {
    inner: R,
    /// Number of bytes that it may still return.
    left: Rc<Cell<u64>>,
}

/// Passes each entry with its path on, until one yields a value. Unread content is skipped.
pub(crate) fn find<R: Read, T, E: From<ArchiveError>>(
    reader: R,
    mut take: impl FnMut(PathBuf, &mut Entry<'_, Bounded<R>>) -> Result<Option<T>, E>,
) -> Result<Option<T>, E> {
    let left = Rc::new(Cell::new(MAX_ABOUT));
    let mut archive = tar::Archive::new(Bounded { inner: reader, left: Rc::clone(&left) });
    let mut entries = archive.entries().map_err(ArchiveError::Damaged)?;
    loop {
        left.set(MAX_ABOUT);
        let Some(entry) = entries.next() else { return Ok(None) };
        let mut entry = entry.map_err(|error| {
            if left.get() == 0 { ArchiveError::LongNames } else { ArchiveError::Damaged(error) }
        })?;
        // The content of an entry is limited by those who read it.
        left.set(u64::MAX);
        let path = entry.path().map_err(ArchiveError::Damaged)?.into_owned();
        check_name(&path)?;
        if let Some(found) = take(path, &mut entry)? {
            return Ok(Some(found));
        }
        io::copy(&mut entry, &mut io::sink()).map_err(ArchiveError::Damaged)?;
    }
}

/// Checks that a name is short enough for a file.
pub(crate) fn check_name(name: &Path) -> Result<(), ArchiveError> {
    if name.as_os_str().len() <= MAX_NAME {
        Ok(())
    } else {
        Err(ArchiveError::LongName { path: shown(name) })
    }
}

/// Shortens a name for messages.
pub(crate) fn shown(name: &Path) -> String {
    name.display().to_string().chars().take(128).collect()
}

// === impl Bounded ===

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 {
            return Err(io::Error::other("the metadata before an entry is too long"));
        }
        let room = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let count = self.inner.read(&mut buffer[..room])?;
        if left < u64::MAX {
            self.left.set(left - count as u64);
        }
        Ok(count)
    }
}
