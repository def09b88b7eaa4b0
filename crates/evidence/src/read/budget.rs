//! What one diagnosis may cost, whatever it is given.

use std::cell::Cell;
use std::io::{self, Read};

/// Logs larger than this are read in parts; an archive that unpacks to more is a bomb.
const MAX_BYTES: u64 = 64 << 30;
/// Files read in one diagnosis. Each costs memory; no bundle of the field has a tenth of this.
const MAX_FILES: u32 = 20_000;
/// Entries looked at in archives, whether read or not.
const MAX_ENTRIES: u32 = 1_000_000;
/// Archives inside archives.
pub(super) const MAX_NESTING: u32 = 6;

/// What is left to spend.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: Cell<u64>,
    files: Cell<u32>,
    entries: Cell<u32>,
}

/// A reader that spends the budget and fails when it is used up.
pub(super) struct Metered<'b, R> {
    reader: R,
    budget: &'b Budget,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Exhausted {
    #[error("it unpacks to more than {} GiB; the rest is not read", MAX_BYTES >> 30)]
    Bytes,
    #[error("there are more than {MAX_FILES} files; the rest is not read")]
    Files,
    #[error("there are more than {MAX_ENTRIES} entries; the rest is not read")]
    Entries,
}

// === impl Budget ===

impl Default for Budget {
    fn default() -> Self {
        Self { bytes: Cell::new(MAX_BYTES), files: Cell::new(MAX_FILES), entries: Cell::new(MAX_ENTRIES) }
    }
}

impl Budget {
    #[cfg(test)]
    pub(super) fn of(bytes: u64, files: u32, entries: u32) -> Self {
        Self { bytes: Cell::new(bytes), files: Cell::new(files), entries: Cell::new(entries) }
    }

    pub(super) fn meter<R>(&self, reader: R) -> Metered<'_, R> {
        Metered { reader, budget: self }
    }

    pub(super) fn spend_file(&self) -> Result<(), Exhausted> {
        spend(&self.files).ok_or(Exhausted::Files)
    }

    pub(super) fn spend_entry(&self) -> Result<(), Exhausted> {
        spend(&self.entries).ok_or(Exhausted::Entries)
    }
}

fn spend(counter: &Cell<u32>) -> Option<()> {
    counter.set(counter.get().checked_sub(1)?);
    Some(())
}

// === impl Metered ===

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        match self.budget.bytes.get().checked_sub(count as u64) {
            Some(left) => self.budget.bytes.set(left),
            None => return Err(io::Error::other(Exhausted::Bytes)),
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_run_out_in_the_middle_of_a_stream() {
        let budget = Budget::of(1000, 1, 1);
        let mut first = Vec::new();
        budget.meter(io::repeat(b'x').take(600)).read_to_end(&mut first).unwrap();
        assert_eq!(first.len(), 600);
        let refused = budget.meter(io::repeat(b'x').take(600)).read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(refused.to_string(), "it unpacks to more than 64 GiB; the rest is not read");
    }

    #[test]
    fn files_and_entries_are_counted() {
        let budget = Budget::of(0, 1, 2);
        assert!(budget.spend_file().is_ok());
        assert!(matches!(budget.spend_file(), Err(Exhausted::Files)));
        assert!(budget.spend_entry().is_ok() && budget.spend_entry().is_ok());
        assert!(matches!(budget.spend_entry(), Err(Exhausted::Entries)));
    }
}
