//! The parts of evidence that the thread of an item hands over, and the reasons for missing ones.

use std::fs::Metadata;
use std::io;

use landfall_diagnose::Observation;
use landfall_model::bundle::{BundleItem, ItemOutcome};

use super::host;
use crate::read::Parts;

/// The receiver of the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A bundle: every file without its secrets.
    Bundle,
    /// A diagnosis on this machine: files and journal entries as they are, because only the report leaves it.
    Diagnosis,
}

/// A part of the evidence, in the order it is read.
#[derive(Debug)]
pub(crate) enum Piece {
    Record(Record),
    /// A state of the machine. Only a diagnosis gets this and the following pieces.
    Observed(Observation),
    /// A file of the machine begins; `Bytes` and an `End` follow.
    File {
        path: String,
        metadata: Metadata,
    },
    Bytes(Vec<u8>),
    /// A journal begins; `Entries` and an `End` follow.
    Journal {
        name: String,
    },
    Entries(Vec<Parts>),
    End(Result<(), Trouble>),
}

/// A record of the manifest and the file it is about, without secrets.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) item: BundleItem,
    pub(crate) content: Option<Vec<u8>>,
}

/// Why something is not collected, or not whole.
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
    /// Not tried, and why.
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
