//! A small cache of blocks over a [`Source`], so that memory does not depend on the size of a file.

use std::io;

use crate::damage::{DamageKind, Fault};
use crate::source::Source;

/// Size of a block. System calls then do not dominate sequential reads, and reading a single entry loads little else.
const BLOCK: usize = 32 * 1024;

/// Number of sets with two blocks each, so that the current block and one other never evict each other.
const SETS: usize = 8;
const WAYS: usize = 2;

/// Maximum size of a buffer that is kept after a large object.
const KEPT_SPAN: usize = 1024 * 1024;

const NO_BLOCK: u64 = u64::MAX;

pub(crate) struct Window<S> {
    source: S,
    size: u64,
    blocks: Vec<Block>,
    /// Allocated at first use: a journal directory may have many files of which few are read at one time.
    bytes: Vec<u8>,
    /// Objects that span several blocks.
    span: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Block {
    number: u64,
    /// Number of valid bytes; less than a block at the end of the file.
    len: usize,
    /// Whether the other block of the set is older.
    recent: bool,
}

const EMPTY: Block = Block { number: NO_BLOCK, len: 0, recent: false };

// === impl Window ===

impl<S: Source> Window<S> {
    pub(crate) fn new(source: S) -> io::Result<Self> {
        let size = source.size()?;
        Ok(Self { source, size, blocks: vec![EMPTY; SETS * WAYS], bytes: Vec::new(), span: Vec::new() })
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Clears the cache, for a file that another process writes.
    pub(crate) fn reset(&mut self) -> io::Result<()> {
        self.blocks.fill(EMPTY);
        self.size = self.source.size()?;
        Ok(())
    }

    /// Frees the memory; the next read allocates it again.
    pub(crate) fn release(&mut self) {
        self.blocks.fill(EMPTY);
        self.bytes = Vec::new();
        self.span = Vec::new();
    }

    /// Returns the `len` bytes at `offset`. The caller limits `len`.
    pub(crate) fn get(&mut self, offset: u64, len: usize) -> Result<&[u8], Fault> {
        // This check also rejects values that the system does not accept as offsets.
        if offset >= self.size {
            return Err(Fault::at(offset, DamageKind::OutsideFile));
        }
        let (number, within) = split(offset);
        if within + len > BLOCK {
            return self.get_span(offset, len);
        }
        let set = set_of(number);
        let slot = if self.blocks[set].number == number {
            set
        } else if self.blocks[set + 1].number == number {
            set + 1
        } else {
            self.fill(set, number).map_err(Fault::Read)?
        };
        self.blocks[slot].recent = true;
        self.blocks[slot ^ 1].recent = false;
        if within + len > self.blocks[slot].len {
            return Err(Fault::at(offset, DamageKind::OutsideFile));
        }
        let start = slot * BLOCK + within;
        Ok(&self.bytes[start..start + len])
    }

    /// Reads without the cache, for callers that read a range once and keep it themselves.
    pub(crate) fn read_exact(&self, offset: u64, buffer: &mut [u8]) -> Result<(), Fault> {
        if offset >= self.size {
            return Err(Fault::at(offset, DamageKind::OutsideFile));
        }
        let n = read_up_to(&self.source, buffer, offset).map_err(Fault::Read)?;
        if n < buffer.len() { Err(Fault::at(offset, DamageKind::OutsideFile)) } else { Ok(()) }
    }

    fn get_span(&mut self, offset: u64, len: usize) -> Result<&[u8], Fault> {
        // Checked before the buffer grows, so that a wrong size allocates no memory.
        if offset.checked_add(len as u64).is_none_or(|end| end > self.size) {
            return Err(Fault::at(offset, DamageKind::OutsideFile));
        }
        if self.span.capacity() > KEPT_SPAN && len <= KEPT_SPAN {
            self.span = Vec::new();
        }
        self.span.resize(len, 0);
        let n = read_up_to(&self.source, &mut self.span, offset).map_err(Fault::Read)?;
        if n < len { Err(Fault::at(offset, DamageKind::OutsideFile)) } else { Ok(&self.span) }
    }

    #[cold]
    fn fill(&mut self, set: usize, number: u64) -> io::Result<usize> {
        if self.bytes.is_empty() {
            self.bytes = vec![0; SETS * WAYS * BLOCK];
        }
        let slot = if self.blocks[set].recent { set + 1 } else { set };
        self.blocks[slot] = EMPTY;
        let buffer = &mut self.bytes[slot * BLOCK..(slot + 1) * BLOCK];
        let len = read_up_to(&self.source, buffer, number * BLOCK as u64)?;
        self.blocks[slot] = Block { number, len, recent: false };
        Ok(slot)
    }
}

/// Returns the block of a byte, and the position in it.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "less than BLOCK")]
fn split(offset: u64) -> (u64, usize) {
    (offset / BLOCK as u64, (offset % BLOCK as u64) as usize)
}

#[expect(clippy::cast_possible_truncation, reason = "less than SETS")]
#[inline]
fn set_of(number: u64) -> usize {
    (number % SETS as u64) as usize * WAYS
}

/// Fills `buffer` unless the source ends first.
fn read_up_to(source: &impl Source, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read_at(&mut buffer[filled..], offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_range_reads_as_the_source_has_it() {
        let bytes: Vec<u8> = (0..5 * BLOCK + 100).map(|i| (i * 31).to_le_bytes()[1]).collect();
        let mut window = Window::new(bytes.as_slice()).unwrap();
        let last = bytes.len();
        for (start, len) in [
            (0, 16),
            (BLOCK - 8, 8),
            (BLOCK - 8, 16),
            (2 * BLOCK, BLOCK),
            (1, 3 * BLOCK),
            (last - 4, 4),
            (3, 5),
        ] {
            assert_eq!(window.get(start as u64, len).unwrap(), &bytes[start..start + len], "{start}+{len}");
        }
    }

    #[test]
    fn a_range_outside_the_source_is_damage() {
        let bytes = vec![7; BLOCK + 10];
        let mut window = Window::new(bytes.as_slice()).unwrap();
        for (start, len) in [
            (BLOCK as u64 + 4, 7),
            (BLOCK as u64 - 4, 15),
            (u64::MAX - 8, 16),
            (u64::MAX / 2, 1),
            (0, 1 << 40),
        ] {
            let fault = window.get(start, len).unwrap_err();
            assert!(matches!(fault, Fault::Damaged(d) if d.kind == DamageKind::OutsideFile), "{start}+{len}");
        }
    }
}
