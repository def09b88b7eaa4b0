//! Fields of frames: short independent lines, searched in batches.
//!
//! Journal entries repeat the same metadata: the machine, the unit, the command line. A searched line without
//! hits need not be searched again, so the last clean line for each unit and field name is cached.

use std::ops::Range;

use crate::block::{Certificates, Context};
use crate::hit::Hit;
use crate::scan::{Engine, Extent, Scan};

/// Maximum number and length of cached clean lines: at most 512 KiB.
const CLEAN_MAX: usize = 1024;
const CLEAN_LINE_MAX: usize = 512;

/// A single-line field, relative to the start of its entry.
pub(crate) struct FrameField {
    pub(crate) name: Range<usize>,
    pub(crate) value: Range<usize>,
}

#[derive(Default)]
pub(crate) struct Frames {
    /// Lines to be searched.
    text: Vec<u8>,
    lines: Vec<Line>,
    clean: Vec<Vec<u8>>,
}

struct Line {
    /// Offset in the text.
    start: usize,
    len: usize,
    entry: u64,
    /// Offset in its entry, and the offset of its value from there.
    at: usize,
    value: usize,
    /// Cache slot for a clean line.
    slot: usize,
    has_hit: bool,
}

// === impl Frames ===

impl Frames {
    /// Adds a field of `entry`, and returns the number of unsearched bytes.
    pub(crate) fn add(&mut self, number: u64, unit: usize, entry: &[u8], field: &FrameField) -> usize {
        let line = &entry[field.name.start..field.value.end];
        let slot = slot(unit, &entry[field.name.clone()]);
        if self.clean.get(slot).is_some_and(|clean| clean == line) {
            return 0;
        }
        self.lines.push(Line {
            start: self.text.len(),
            len: line.len(),
            entry: number,
            at: field.name.start,
            value: field.value.start - field.name.start,
            slot,
            has_hit: false,
        });
        self.text.extend_from_slice(line);
        self.text.push(b'\n');
        line.len() + 1
    }

    /// Searches the waiting lines. Hits are in field values, each with the number of its entry.
    pub(crate) fn search(&mut self, engine: &Engine, extent: Extent) -> Vec<(u64, Hit)> {
        let mut found = Vec::new();
        if self.lines.is_empty() {
            return found;
        }
        let mut scan = Scan::over_lines(extent);
        let hits = engine.find(&self.text, &mut Context::new(Certificates::Keep), &mut scan);
        for hit in &hits {
            let first = line_at(&self.lines, hit.start);
            for line in self.lines[first..].iter_mut().take_while(|line| line.start < hit.end) {
                line.take(hit.start, hit.end, hit, &mut found);
            }
        }
        // A possible start of a multi-line construct is searched as a separate text.
        scan.opens.sort_unstable();
        scan.opens.dedup_by_key(|at| line_at(&self.lines, *at));
        for at in scan.opens {
            let number = line_at(&self.lines, at);
            let line = &mut self.lines[number];
            let text = &self.text[line.start..line.start + line.len];
            let mut context = Context::new(Certificates::Keep);
            for hit in engine.find(text, &mut context, &mut Scan::new(extent)) {
                line.take(line.start + hit.start, line.start + hit.end, &hit, &mut found);
            }
        }
        self.clean.resize(CLEAN_MAX, Vec::new());
        for line in self.lines.drain(..).filter(|line| !line.has_hit && line.len <= CLEAN_LINE_MAX) {
            let clean = &mut self.clean[line.slot];
            clean.clear();
            clean.extend_from_slice(&self.text[line.start..line.start + line.len]);
        }
        self.text.clear();
        found
    }
}

// === impl Line ===

impl Line {
    /// Records the part of a hit inside this line's value. Names are never changed.
    fn take(&mut self, start: usize, end: usize, hit: &Hit, found: &mut Vec<(u64, Hit)>) {
        self.has_hit = true;
        let start = start.max(self.start + self.value);
        let end = end.min(self.start + self.len);
        if start < end {
            let place = |at: usize| at - self.start + self.at;
            found.push((self.entry, Hit { start: place(start), end: place(end), what: hit.what.clone() }));
        }
    }
}

fn line_at(lines: &[Line], at: usize) -> usize {
    lines.partition_point(|line| line.start <= at).saturating_sub(1)
}

/// Returns the cache slot for a field name of a unit. A collision only evicts an entry.
fn slot(unit: usize, name: &[u8]) -> usize {
    let (first, last) = if let (Some(first), Some(last)) = (name.first_chunk(), name.last_chunk()) {
        (u64::from_le_bytes(*first), u64::from_le_bytes(*last))
    } else {
        let short = name.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
        (short, short)
    };
    let mixed = first.rotate_left(23) ^ last ^ ((unit as u64) << 32) ^ name.len() as u64;
    let spread = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    usize::try_from(spread).unwrap_or_default() % CLEAN_MAX
}
