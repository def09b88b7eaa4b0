//! Limits for the metadata before the entries of an untrusted archive.
//!
//! Names, link targets and pax records may claim any size, and the reader loads them into memory before any check.
//! They have their own limit here.

use std::cell::Cell;
use std::io::{self, Read};
use std::path::Path;
use std::rc::Rc;

/// The longest path that Linux accepts; no longer one can be created.
pub(crate) const MAX_NAME: usize = 4096;
/// Limit for everything before one entry: its header, two names, and the extended attributes of pax with at most 64
/// KiB each.
pub(crate) const MAX_ABOUT: u64 = 256 * 1024;

/// A reader that fails when the metadata before an entry exceeds its limit.
pub(crate) struct Bounded<R> {
    inner: R,
    left: Rc<Cell<u64>>,
}

/// Number of bytes the reader may still return.
pub(crate) struct Allowance(Rc<Cell<u64>>);

pub(crate) fn bounded<R: Read>(inner: R) -> (Bounded<R>, Allowance) {
    let left = Rc::new(Cell::new(MAX_ABOUT));
    (Bounded { inner, left: left.clone() }, Allowance(left))
}

/// Checks that a name is short enough for a file.
pub(crate) fn is_short(name: &Path) -> bool {
    name.as_os_str().len() <= MAX_NAME
}

/// Shortens a name for messages.
pub(crate) fn shown(name: &Path) -> String {
    name.display().to_string().chars().take(128).collect()
}

// === impl Allowance ===

impl Allowance {
    /// Sets the limit for the metadata of the next entry. The content of the previous entry must be read to its end
    /// before.
    pub(crate) fn for_names(&self) {
        self.0.set(MAX_ABOUT);
    }

    /// Removes the limit while the content of an entry is read.
    pub(crate) fn for_content(&self) {
        self.0.set(u64::MAX);
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.0.get() == 0
    }
}

// === impl Bounded ===

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 {
            return Err(io::Error::other("what stands before an entry is too long"));
        }
        let room = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let count = self.inner.read(&mut buffer[..room])?;
        if left < u64::MAX {
            self.left.set(left - count as u64);
        }
        Ok(count)
    }
}
