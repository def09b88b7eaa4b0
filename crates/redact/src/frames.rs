//! The fields of frames: short lines that have nothing to do with each other, searched many at a time.
//!
//! A journal says the same of itself with every entry: the machine, the unit, the command line. A line that was searched
//! and is clean needs no second search, so for each unit and name of a field the last clean one is remembered.

use std::ops::Range;

use crate::block::{Certificates, Context};
use crate::hit::Hit;
use crate::scan::{Engine, Extent, Scan};

/// Clean lines that are remembered, and how long one may be: half a mebibyte at most.
const CLEAN_MAX: usize = 1024;
const CLEAN_LINE_MAX: usize = 512;

/// A field that is one line, counted from the start of its entry.
pub(crate) struct FrameField {
    pub(crate) name: Range<usize>,
    pub(crate) value: Range<usize>,
}

#[derive(Default)]
pub(crate) struct Frames {
    /// The lines that wait to be searched.
    text: Vec<u8>,
    lines: Vec<Line>,
    clean: Vec<Vec<u8>>,
}

struct Line {
    /// Where it begins in the text.
    start: usize,
    len: usize,
    entry: u64,
    /// Where it begins in its entry, and how far behind that its value.
    at: usize,
    value: usize,
    /// Where it is remembered when it is clean.
    slot: usize,
    has_hit: bool,
}

// === impl Frames ===

impl Frames {
    /// Takes in a field of `entry`, and returns how much more there is to search.
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

    /// Searches what waits. Hits are in the values of fields, each with the number of its entry.
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
        // What may be larger than a value is understood only in a text of its own.
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
    /// Takes the part of a hit that is in the value of this line. Names are never touched.
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

/// The place of a name of a unit among the clean lines. Those that share it only make each other forgotten.
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
