//! Resource limits of one diagnosis, for any input.

use std::cell::Cell;
use std::io::{self, Read};

use super::lines::{Chunk, Chunks};

/// An archive that decompresses to more is a bomb, or should be read in parts.
const MAX_BYTES: u64 = 64 << 30;
/// Any input may decompress to this much.
const FREE_BYTES: u64 = 1 << 30;
/// Decompressed bytes allowed per input byte beyond that. The most repetitive logs in practice stay below
/// half of it; bombs start at five times as much.
const MAX_RATIO: u64 = 200;
/// Maximum number of files per diagnosis. Each costs memory; real bundles have less than a tenth of this.
const MAX_FILES: u32 = 20_000;
/// Maximum number of archive entries inspected, whether read or not.
pub(super) const MAX_ENTRIES: u32 = 1_000_000;
/// Maximum nesting of archives.
pub(super) const MAX_NESTING: u32 = 6;

/// The remaining budget.
#[derive(Debug)]
pub(super) struct Budget {
    /// Remaining bytes of the total limit.
    bytes: Cell<u64>,
    /// Remaining bytes allowed by the input read so far.
    earned: Cell<u64>,
    files: Cell<u32>,
    entries: Cell<u32>,
}

/// A reader of the input: increases the decompression allowance.
pub(super) struct Given<'b, R> {
    reader: R,
    budget: &'b Budget,
}

/// A reader of decompressed data: fails when the budget is exhausted.
pub(super) struct Metered<'b, R> {
    reader: R,
    budget: &'b Budget,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Exhausted {
    #[error("it unpacks to more than {} GiB; the rest is not read", MAX_BYTES >> 30)]
    Bytes,
    #[error("it unpacks to more than {MAX_RATIO} times its size; the rest is not read")]
    Ratio,
    #[error("there are more than {MAX_FILES} files; the rest is not read")]
    Files,
    #[error("there are more than {MAX_ENTRIES} entries; the rest is not read")]
    Entries,
}

// === impl Budget ===

impl Default for Budget {
    fn default() -> Self {
        Self::of(MAX_BYTES, FREE_BYTES, MAX_FILES, MAX_ENTRIES)
    }
}

impl Budget {
    fn of(bytes: u64, free: u64, files: u32, entries: u32) -> Self {
        Self {
            bytes: Cell::new(bytes),
            earned: Cell::new(free),
            files: Cell::new(files),
            entries: Cell::new(entries),
        }
    }

    pub(super) fn given<R>(&self, reader: R) -> Given<'_, R> {
        Given { reader, budget: self }
    }

    /// Increases the allowance for input that is not read as a stream.
    pub(super) fn earn(&self, bytes: u64) {
        self.earned.set(self.earned.get().saturating_add(bytes.saturating_mul(MAX_RATIO)));
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

    fn spend_bytes(&self, count: u64) -> Result<(), Exhausted> {
        self.bytes.set(self.bytes.get().checked_sub(count).ok_or(Exhausted::Bytes)?);
        self.earned.set(self.earned.get().checked_sub(count).ok_or(Exhausted::Ratio)?);
        Ok(())
    }
}

fn spend(counter: &Cell<u32>) -> Option<()> {
    counter.set(counter.get().checked_sub(1)?);
    Some(())
}

// === impl Given ===

impl<R: Read> Read for Given<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.budget.earn(count as u64);
        Ok(count)
    }
}

// === impl Metered ===

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.budget.spend_bytes(count as u64).map_err(io::Error::other)?;
        Ok(count)
    }
}

impl<C: Chunks> Chunks for Metered<'_, C> {
    fn next(&mut self) -> io::Result<Option<(Chunk, u64)>> {
        let next = self.reader.next()?;
        let count = next.as_ref().map_or(0, |(_, count)| *count);
        self.budget.spend_bytes(count).map_err(io::Error::other)?;
        Ok(next)
    }

    fn cut(&self) -> u64 {
        self.reader.cut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpack(budget: &Budget, count: u64) -> io::Result<usize> {
        budget.meter(io::repeat(b'x').take(count)).read_to_end(&mut Vec::new())
    }

    #[test]
    fn bytes_run_out_in_the_middle_of_a_stream() {
        let budget = Budget::of(1000, 2000, 1, 1);
        assert_eq!(unpack(&budget, 600).unwrap(), 600);
        let refused = unpack(&budget, 600).unwrap_err();
        assert_eq!(refused.to_string(), "it unpacks to more than 64 GiB; the rest is not read");
    }

    #[test]
    fn what_is_given_earns_what_may_be_unpacked() {
        let budget = Budget::of(100_000, 100, 1, 1);
        let refused = unpack(&budget, 600).unwrap_err();
        assert_eq!(refused.to_string(), "it unpacks to more than 200 times its size; the rest is not read");
        io::copy(&mut budget.given(&b"given"[..]), &mut io::sink()).unwrap();
        assert_eq!(unpack(&budget, 600).unwrap(), 600);
        assert!(unpack(&budget, 600).is_err());
    }

    #[test]
    fn files_and_entries_are_counted() {
        let budget = Budget::of(0, 0, 1, 2);
        assert!(budget.spend_file().is_ok());
        assert!(matches!(budget.spend_file(), Err(Exhausted::Files)));
        assert!(budget.spend_entry().is_ok() && budget.spend_entry().is_ok());
        assert!(matches!(budget.spend_entry(), Err(Exhausted::Entries)));
    }
}
