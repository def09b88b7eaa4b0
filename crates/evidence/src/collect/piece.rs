//! Evidence passed on by an item's thread, and the reasons for missing evidence.

use std::fs::Metadata;
use std::io;

use landfall_diagnose::Observation;
use landfall_model::bundle::{BundleItem, ItemOutcome};

use super::host;
use crate::read::Parts;

/// The receiver of the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A bundle: all files are redacted.
    Bundle,
    /// A diagnosis on this machine: files and journal entries are unmodified, because only the report leaves
    /// the machine.
    Diagnosis,
}

/// A piece of evidence, in read order.
#[derive(Debug)]
pub(crate) enum Piece {
    Record(Record),
    /// A fact about the machine. Only a diagnosis gets this and the following pieces.
    Observed(Observation),
    /// Start of a file; `Bytes` and an `End` follow.
    File {
        path: String,
        metadata: Metadata,
    },
    Bytes(Vec<u8>),
    /// Start of a journal; `Entries` and an `End` follow.
    Journal {
        name: String,
    },
    Entries(Vec<Parts>),
    End(Result<(), Trouble>),
}

/// A manifest record and its redacted file.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) item: BundleItem,
    pub(crate) content: Option<Vec<u8>>,
}

/// Reason why evidence is missing or incomplete.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Trouble {
    #[error("not found")]
    Absent,
    #[error("timed out")]
    TimedOut,
    #[error("{0}")]
    Failed(String),
    #[error("withheld: {0}")]
    Withheld(String),
    /// Not attempted, with the reason.
    #[error("skipped: {0}")]
    Skipped(&'static str),
}

// === impl Piece ===

impl Piece {
    #[cfg(test)]
    pub(super) fn into_record(self) -> Option<Record> {
        match self {
            Self::Record(record) => Some(record),
            _ => None,
        }
    }
}

// === impl Trouble ===

impl Trouble {
    pub(super) fn outcome(&self) -> ItemOutcome {
        match self {
            Self::Absent => ItemOutcome::Absent,
            Self::TimedOut => ItemOutcome::TimedOut,
            Self::Failed(error) => ItemOutcome::Failed { error: error.clone() },
            Self::Withheld(reason) => ItemOutcome::Withheld { reason: reason.clone() },
            Self::Skipped(reason) => ItemOutcome::Skipped { reason: (*reason).to_owned() },
        }
    }
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            _ if host::is_absent(&error) => Self::Absent,
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Self::TimedOut,
            _ => Self::Failed(error.to_string()),
        }
    }
}
