//! What is wrong with a file, and where. Damage is skipped and told, never fatal once the header is readable.

use std::fmt;
use std::io;

/// How many single damages are kept for the report. A torn file can have one per entry; the count tells the rest.
const MAX_KEPT: usize = 32;

/// One unreadable spot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Where in the file.
    pub offset: u64,
    pub kind: DamageKind,
}

/// What kind of damage, and thereby what was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DamageKind {
    #[error("the file is shorter than its header says")]
    Truncated,
    #[error("an object lies outside the file")]
    OutsideFile,
    #[error("an object's header is invalid")]
    BadObject,
    #[error("an entry is invalid; it is skipped")]
    BadEntry,
    #[error("an entry is listed out of order; it is skipped")]
    OutOfOrder,
    #[error("the list of entries is broken; the rest is found by searching")]
    BrokenList,
    #[error("a list of entries with one value is broken; the rest of it is skipped")]
    BrokenIndex,
    #[error("a field cannot be unpacked; it is skipped")]
    BadCompression,
    #[error("a field is larger than a reader can hold; it is skipped")]
    TooLarge,
    #[error("a field is not `NAME=value`; it is skipped")]
    BadField,
}

/// Everything found wrong so far, bounded.
#[derive(Clone, Debug, Default)]
pub struct DamageLog {
    count: u64,
    first: Vec<Damage>,
}

/// Why an object could not be had.
#[derive(Debug)]
pub(crate) enum Fault {
    Damaged(Damage),
    Read(io::Error),
}

// === impl Damage ===

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at byte {}: {}", self.offset, self.kind)
    }
}

// === impl DamageLog ===

impl DamageLog {
    /// How many spots were unreadable.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The first of them.
    pub fn first(&self) -> &[Damage] {
        &self.first
    }

    pub(crate) fn add(&mut self, damage: Damage) {
        self.count += 1;
        if self.first.len() < MAX_KEPT {
            self.first.push(damage);
        }
    }

    /// Notes damage and lets the caller go on; a failing read is passed up.
    pub(crate) fn absorb(&mut self, fault: Fault) -> io::Result<()> {
        match fault {
            Fault::Damaged(damage) => {
                self.add(damage);
                Ok(())
            }
            Fault::Read(error) => Err(error),
        }
    }
}

// === impl Fault ===

impl Fault {
    pub(crate) fn at(offset: u64, kind: DamageKind) -> Self {
        Self::Damaged(Damage { offset, kind })
    }
}
