//! Comparison of a bundle's files with their records while they are read.
//!
//! Changed, removed and added files are reported.

use std::io::{self, Read};

use sha2::{Digest as _, Sha256};

use crate::bundle::{MANIFEST, Record};

/// Bytes of a path that are compared: entry names are truncated.
const MAX_PATH: usize = 512;

/// The files of an archive so far. An archive without records is not a bundle and is not checked.
#[derive(Debug, Default)]
pub(super) struct Records {
    files: u64,
    is_bundle: bool,
    has_manifest: bool,
    missing: u64,
}

/// A reader that hashes the content of an entry.
pub(super) struct Hashed<R> {
    reader: R,
    hasher: Sha256,
    bytes: u64,
}

// === impl Records ===

impl Records {
    /// Parses the record in the comment of an entry.
    pub(super) fn parse(comment: Option<&[u8]>) -> Option<Record> {
        serde_json::from_slice(comment?).ok()
    }

    /// Compares a file with its record and returns the difference.
    pub(super) fn check(
        &mut self,
        name: &[u8],
        record: Option<&Record>,
        content: Option<(String, u64)>,
    ) -> Option<&'static str> {
        let expected = self.files;
        self.files += 1;
        let Some(record) = record else {
            return self.is_bundle.then_some("the bundle has no record of it: it was added later");
        };
        self.is_bundle = true;
        self.has_manifest |= record.item.path == MANIFEST;
        self.missing += record.sequence.saturating_sub(expected);
        self.files = record.sequence.saturating_add(1);
        let is_whole = content.is_some_and(|(hash, bytes)| {
            bytes == record.item.bytes && record.item.sha256.as_ref() == Some(&hash)
        });
        let path = record.item.path.as_bytes();
        if !is_whole {
            Some("modified: its content is not what was collected")
        } else if path.len() <= MAX_PATH && !name.ends_with(path) {
            Some("modified: it has the record of another file")
        } else if record.sequence < expected {
            Some("modified: it is not in the order of collection")
        } else {
            None
        }
    }

    /// Returns the errors of the bundle as a whole.
    pub(super) fn end(&self) -> Option<String> {
        let mut wrong = Vec::new();
        if self.missing > 0 {
            wrong.push(format!("{} file(s) of the bundle are missing", self.missing));
        }
        if self.is_bundle && !self.has_manifest {
            wrong.push("the bundle ends before its manifest".to_owned());
        }
        (!wrong.is_empty()).then(|| wrong.join("; "))
    }
}

// === impl Hashed ===

impl<R: Read> Hashed<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, hasher: Sha256::new(), bytes: 0 }
    }

    /// Reads the rest and returns hash and length of the content.
    pub(super) fn finish(mut self) -> io::Result<(String, u64)> {
        io::copy(&mut self, &mut io::sink())?;
        let hash = self.hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((hash, self.bytes))
    }
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.bytes += count as u64;
        Ok(count)
    }
}
