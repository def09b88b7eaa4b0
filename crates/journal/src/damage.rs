//! Damage in a file, with its location. Damage is skipped and reported, and never fatal once the header is readable.

use std::fmt;
use std::io;

/// Maximum number of recorded locations. A torn file can have one per entry; the count includes the rest.
const MAX_KEPT: usize = 32;

/// One unreadable location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Offset in the file.
    pub offset: u64,
    pub kind: DamageKind,
}

/// The kind of damage, which determines what was lost.
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

/// All damage found so far, with a limited number of locations.
#[derive(Clone, Debug, Default)]
pub struct DamageLog {
    count: u64,
    first: Vec<Damage>,
}

/// Reason for an unavailable object.
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
    /// Returns the number of unreadable locations.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the first of them.
    pub fn first(&self) -> &[Damage] {
        &self.first
    }

    pub(crate) fn add(&mut self, damage: Damage) {
        self.count += 1;
        if self.first.len() < MAX_KEPT {
            self.first.push(damage);
        }
    }

    /// Records damage, so that the caller can continue; returns read errors.
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
