//! What stands before the entries of a foreign archive: names, names of links and pax records may claim any size, and a
//! reader takes them into memory before anybody has seen them. They have a bound of their own here.

use std::cell::Cell;
use std::io::{self, Read};
use std::path::Path;
use std::rc::Rc;

/// The longest path Linux takes; nothing could be put under a longer one.
pub(crate) const MAX_NAME: usize = 4096;
/// Everything before one entry: its header, two names, and the extended attributes of pax, 64 KiB each at most.
pub(crate) const MAX_ABOUT: u64 = 256 * 1024;

/// A reader that stops where what stands before an entry grows too long.
pub(crate) struct Bounded<R> {
    inner: R,
    left: Rc<Cell<u64>>,
}

/// What the reader may still give.
pub(crate) struct Allowance(Rc<Cell<u64>>);

pub(crate) fn bounded<R: Read>(inner: R) -> (Bounded<R>, Allowance) {
    let left = Rc::new(Cell::new(MAX_ABOUT));
    (Bounded { inner, left: left.clone() }, Allowance(left))
}

/// Whether a name could be that of a file.
pub(crate) fn is_short(name: &Path) -> bool {
    name.as_os_str().len() <= MAX_NAME
}

/// For people, who do not read thousands of letters.
pub(crate) fn shown(name: &Path) -> String {
    name.display().to_string().chars().take(128).collect()
}

// === impl Allowance ===

impl Allowance {
    /// The next entry is looked for. What the last one holds must have been read to its end.
    pub(crate) fn for_names(&self) {
        self.0.set(MAX_ABOUT);
    }

    /// What an entry holds is read.
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
