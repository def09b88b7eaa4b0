//! Entries: pieces of text in frames.
//!
//! The text of one unit is searched as one stream across frames, because journal and container runtime split
//! a writer's lines at arbitrary points.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use crate::block::{Certificates, Context};
use crate::decode;
use crate::frame;
use crate::frames::{FrameField, Frames};
use crate::gap::{self, Gap};
use crate::hit::{self, Counts, Hit, Length, Style, What};
use crate::scan::{Engine, Scan};
use crate::stream::{HOLD_MAX, Options};
use crate::views::BETWEEN;

/// Limits for bytes and entries buffered until the next entry of the same unit. The halves of a line are
/// close together, even with entries of other units in between.
const HELD_BYTES_MAX: usize = 1 << 20;
const HELD_ENTRIES_MAX: usize = 4096;

/// Maximum number of units with separate state. All others share one, so that a stream of invented names
/// cannot exhaust memory.
const UNITS_MAX: usize = 4096;

/// Units cached for lookup. On a node a handful of units write almost all entries.
const RECENT_MAX: usize = 8;

/// Bytes of text on each side of a seam that are searched together: the longest word that may be split there,
/// and enough context for the name of a secret.
const SEAM_WORD_MAX: usize = 4096;
const SEAM_CONTEXT: usize = 48;

/// Bytes of text searched together: each search has fixed costs.
const SEARCHED_TOGETHER: usize = 64 << 10;

/// Longer Base64 of one unit is withheld: its end may be too far away to buffer.
const WRAPPED_WAIT_MAX: usize = 4 * SEARCHED_TOGETHER;

/// Start of a PEM header, and its maximum length.
const PEM_BEGIN: &[u8] = b"-----BEGIN";
const PEM_HEADER_MAX: usize = 64;

/// A piece of text with its frame.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Writer of the text. Entries of one unit continue each other.
    pub unit: &'a [u8],
    /// Frame before the text, written unchanged: it must not contain foreign text.
    pub before: &'a [u8],
    pub text: &'a [u8],
    pub after: &'a [u8],
}

/// The end of an entry's text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// At a line end or inside a line.
    Unknown,
    /// At a line end: the next entry does not continue it.
    Line,
    /// Inside a line that the next entry continues.
    Partial,
}

/// Treatment of incomplete Base64 at the end of the entries.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    /// It is buffered until the following entries arrive.
    Waits,
    /// The buffer is full: it is searched as is, and its continuation is withheld.
    IsCut,
    /// No entries follow.
    Ends,
}

/// Buffered entries, in input order.
pub struct EntryStream {
    engine: Arc<Engine>,
    options: Options,
    /// Index of each unit by name.
    numbers: HashMap<Vec<u8>, usize>,
    units: Vec<Unit>,
    /// Units of the last entries: the next entry often belongs to one of them.
    recent: Vec<(Vec<u8>, usize)>,
    held: VecDeque<Held>,
    /// Concatenated bytes of all buffered entries; those before `released` are already written.
    bytes: Vec<u8>,
    released: usize,
    /// Number of the first buffered entry.
    first: u64,
    /// Units with unsearched entries, in input order, and the bytes of text in these entries.
    waiting: Vec<usize>,
    waiting_bytes: usize,
    frames: Frames,
    /// Whether entries were omitted, including those of units not seen yet.
    has_gap: bool,
    counts: Counts,
}

struct Unit {
    context: Context,
    /// Number of its last searched entry.
    last: Option<u64>,
    /// Numbers of its unsearched entries.
    waiting: Vec<u64>,
    /// Whether Base64 that is too long to be searched as one piece continues across entries.
    withholding: bool,
    /// State after omitted entries.
    gap: Option<Gap>,
}

struct Held {
    /// Offset of its bytes, and the lengths of its parts.
    start: usize,
    before: usize,
    text: usize,
    after: usize,
    /// Hits in its text. Sorted and merged on release.
    hits: Vec<Hit>,
    /// Hits in its frame, relative to the start of the entry.
    frame_hits: Vec<Hit>,
    ending: Ending,
    /// Whether its hits are final: the next entry of its unit is known or irrelevant.
    settled: bool,
}

// === impl EntryStream ===

impl EntryStream {
    pub(crate) fn new(engine: Arc<Engine>, options: Options) -> Self {
        Self {
            engine,
            options,
            numbers: HashMap::new(),
            units: Vec::new(),
            recent: Vec::new(),
            held: VecDeque::new(),
            bytes: Vec::new(),
            released: 0,
            first: 0,
            waiting: Vec::new(),
            waiting_bytes: 0,
            frames: Frames::default(),
            has_gap: false,
            counts: Counts::default(),
        }
    }

    pub(crate) fn counts(&mut self) -> &mut Counts {
        &mut self.counts
    }

    /// Adds an entry and appends the entries that are decided to `out`.
    pub fn push(&mut self, entry: &Entry<'_>, out: &mut Vec<u8>) {
        self.push_with(entry, Ending::Unknown, out);
    }

    /// Like [`Self::push`], for a text that ends at a line end: the next entry does not continue its last line.
    pub fn push_line(&mut self, entry: &Entry<'_>, out: &mut Vec<u8>) {
        self.push_with(entry, Ending::Line, out);
    }

    /// Like [`Self::push`], with the known ending of the text.
    pub(crate) fn push_with(&mut self, entry: &Entry<'_>, ending: Ending, out: &mut Vec<u8>) {
        self.push_framed(entry, ending, &[], Vec::new(), out);
    }

    /// Like [`Self::push_with`], for a frame with foreign text.
    ///
    /// `fields` are searched, and `hits` are those found in the rest. Both are relative to the start of the
    /// entry.
    pub(crate) fn push_framed(
        &mut self,
        entry: &Entry<'_>,
        ending: Ending,
        fields: &[FrameField],
        hits: Vec<Hit>,
        out: &mut Vec<u8>,
    ) {
        let unit = self.unit(entry.unit);
        if self.units[unit].waiting.is_empty() {
            self.waiting.push(unit);
        }
        let number = self.first + self.held.len() as u64;
        self.units[unit].waiting.push(number);
        let start = self.bytes.len();
        self.bytes.extend_from_slice(entry.before);
        self.bytes.extend_from_slice(entry.text);
        self.bytes.extend_from_slice(entry.after);
        for field in fields {
            self.waiting_bytes += self.frames.add(number, unit, &self.bytes[start..], field);
        }
        self.waiting_bytes += entry.text.len() + 1;
        self.held.push_back(Held {
            start,
            before: entry.before.len(),
            text: entry.text.len(),
            after: entry.after.len(),
            hits: Vec::new(),
            frame_hits: hits,
            ending,
            settled: false,
        });
        if self.waiting_bytes >= SEARCHED_TOGETHER || self.is_full() {
            let was_full = self.is_full();
            self.search(if was_full { Open::IsCut } else { Open::Waits });
            // Frees space for several entries: otherwise each following one would be searched alone.
            let is_too_much = |stream: &Self| {
                stream.held.len() > HELD_ENTRIES_MAX / 4 * 3
                    || stream.bytes.len() - stream.released > HELD_BYTES_MAX / 4 * 3
            };
            while self.held.front().is_some_and(|held| held.settled) || was_full && is_too_much(self) {
                if !self.release(out) {
                    break;
                }
            }
            // Moving the rest is cheaper than keeping the released bytes.
            if self.released > self.bytes.len() / 2 {
                self.bytes.drain(..self.released);
                for held in &mut self.held {
                    held.start -= self.released;
                }
                self.released = 0;
            }
        }
    }

    fn is_full(&self) -> bool {
        self.bytes.len() - self.released > HELD_BYTES_MAX || self.held.len() > HELD_ENTRIES_MAX
    }

    /// Returns the index of the unit with this name.
    fn unit(&mut self, name: &[u8]) -> usize {
        if let Some((_, number)) = self.recent.iter().find(|(recent, _)| recent == name) {
            return *number;
        }
        let key = if self.numbers.contains_key(name) || self.units.len() < UNITS_MAX { name } else { b"" };
        let number = if let Some(number) = self.numbers.get(key) {
            *number
        } else {
            self.units.push(Unit {
                context: Context::new(self.options.certificates()),
                last: None,
                waiting: Vec::new(),
                withholding: false,
                gap: self.has_gap.then(|| Gap::new(&self.engine.rules.prefixes)),
            });
            self.numbers.insert(key.to_vec(), self.units.len() - 1);
            self.units.len() - 1
        };
        if self.recent.len() == RECENT_MAX {
            self.recent.remove(0);
        }
        self.recent.push((name.to_vec(), number));
        number
    }

    /// Records that entries were omitted unsearched here.
    ///
    /// Later entries may belong to a secret that started there. The text of each unit is therefore withheld
    /// up to an entry that cannot.
    pub fn pass_over(&mut self, out: &mut Vec<u8>) {
        self.flush(out);
        for unit in &mut self.units {
            if let Some(what) = unit.context.finish() {
                self.counts.note(&what);
            }
            unit.withholding = false;
            unit.gap = Some(Gap::new(&self.engine.rules.prefixes));
        }
        self.has_gap = true;
    }

    /// Records that the entries since the gap are sufficient: a unit without entries has no open construct.
    pub fn end_gap(&mut self) {
        self.has_gap = false;
    }

    /// Appends all buffered entries, decided or not.
    pub fn flush(&mut self, out: &mut Vec<u8>) {
        self.search(Open::Ends);
        while self.release(out) {}
    }

    /// Appends the remaining entries and returns the counts.
    pub fn finish(mut self, out: &mut Vec<u8>) -> Counts {
        self.flush(out);
        for unit in &mut self.units {
            if let Some(what) = unit.context.finish() {
                self.counts.note(&what);
            }
        }
        self.counts
    }

    /// Searches the waiting entries: those of one unit as one text, and the seams between them.
    fn search(&mut self, open: Open) {
        self.waiting_bytes = 0;
        for (number, hit) in self.frames.search(&self.engine, self.options.extent()) {
            self.held[index(number, self.first)].frame_hits.push(hit);
        }
        let mut seams = Seams::default();
        for at in std::mem::take(&mut self.waiting) {
            let mut numbers = std::mem::take(&mut self.units[at].waiting);
            let (goes_on, bytes) = self.start_of_open(&numbers);
            let is_cut = goes_on < numbers.len()
                && match open {
                    Open::Waits => bytes > WRAPPED_WAIT_MAX,
                    Open::IsCut => true,
                    Open::Ends => false,
                };
            if open == Open::Waits && goes_on < numbers.len() && !is_cut {
                self.units[at].waiting = numbers.split_off(goes_on);
                self.waiting.push(at);
            }
            let unit = &mut self.units[at];
            let mut text = Vec::with_capacity(SEARCHED_TOGETHER / 2);
            // Offset of each entry in the text of its unit, and its number.
            let mut starts: Vec<(usize, u64)> = Vec::with_capacity(numbers.len());
            let mut previous = unit.last.filter(|last| *last >= self.first);
            for number in numbers {
                let held_text = self.held[index(number, self.first)].text_in(&self.bytes);
                let is_too_long = held_text.len() > HOLD_MAX;
                unit.withholding = unit.withholding && is_wrapped(held_text);
                let is_behind_gap = unit.gap.as_mut().is_some_and(|gap| !gap.admits_entry(held_text));
                if !is_behind_gap {
                    unit.gap = None;
                }
                let withheld = if is_too_long {
                    Some("entry")
                } else if is_behind_gap {
                    Some(gap::MARKER)
                } else {
                    unit.withholding.then_some("encoded")
                };
                if let Some(previous) = previous
                    && self.held[index(previous, self.first)].goes_on_in(held_text)
                {
                    let before = self.held[index(previous, self.first)].text_in(&self.bytes);
                    let goes_on = self.held[index(previous, self.first)].ending == Ending::Partial;
                    if !is_too_long
                        && (goes_on || header_across(before, held_text).is_some())
                        && text.last() == Some(&b'\n')
                    {
                        // A split header opens a construct like a complete one.
                        text.pop();
                    }
                    seams.add((previous, before), (number, held_text), self.engine.known.longest_phrase());
                }
                starts.push((text.len(), number));
                if let Some(name) = withheld {
                    let what = What::Withheld(name);
                    let end = held_text.len();
                    self.held[index(number, self.first)].hits.push(Hit { start: 0, end, what });
                } else {
                    text.extend_from_slice(held_text);
                }
                text.push(b'\n');
                let held = &mut self.held[index(number, self.first)];
                held.settled = held.ending == Ending::Line;
                if let Some(previous) = previous.replace(number) {
                    self.held[index(previous, self.first)].settled = true;
                }
            }
            unit.last = previous;
            unit.withholding |= is_cut;
            let found = self.engine.find(&text, &mut unit.context, &mut Scan::new(self.options.extent()));
            for hit in found {
                let first = starts.partition_point(|(start, _)| *start <= hit.start).saturating_sub(1);
                for (i, &(start, number)) in starts[first..].iter().enumerate() {
                    if start >= hit.end && i > 0 {
                        break;
                    }
                    let held = &mut self.held[index(number, self.first)];
                    let mut part = hit.behind(start);
                    part.start = part.start.min(held.text);
                    part.end = part.end.min(held.text);
                    held.hits.push(part);
                }
            }
        }
        self.search_seams(&seams);
    }

    /// Returns the last entries of a unit that are Base64 or an incomplete line, and their size in bytes.
    ///
    /// The text may continue in the next entry and can be decoded only when it is complete.
    fn start_of_open(&self, numbers: &[u64]) -> (usize, usize) {
        let (mut start, mut bytes) = (numbers.len(), 0);
        for (at, number) in numbers.iter().enumerate().rev() {
            let text = self.held[index(*number, self.first)].text_in(&self.bytes);
            let last_line = memchr::memrchr(b'\n', text).map_or(text, |feed| &text[feed + 1..]);
            let is_partial = self.held[index(*number, self.first)].ending == Ending::Partial;
            if is_partial || decode::may_be_wrapped(last_line) {
                (start, bytes) = (at, bytes + text.len());
            }
            if is_partial {
                continue;
            }
            // The first line of Base64 may have a prefix.
            if !is_wrapped(text) {
                break;
            }
        }
        (start, bytes)
    }

    fn search_seams(&mut self, seams: &Seams) {
        let mut context = Context::new(Certificates::Keep);
        let found = self.engine.find(&seams.text, &mut context, &mut Scan::over_lines(self.options.extent()));
        for hit in found.into_iter().filter(|hit| hit.start < hit.end) {
            let at = seams.seams.partition_point(|seam| seam.start <= hit.start).saturating_sub(1);
            let Some(seam) = seams.seams.get(at) else { continue };
            let hit = hit.behind(seam.start);
            let tail = seam.tail;
            // Hits inside one entry are found again here and merged. New are hits that cross the seam, or are
            // recognizable only with the text of the adjacent entry.
            if hit.end > tail {
                let mut part = hit.behind(tail);
                let held = &mut self.held[index(seam.second, self.first)];
                part.end = part.end.min(held.text);
                held.hits.push(part);
            }
            if hit.start < tail {
                let held = &mut self.held[index(seam.first, self.first)];
                let offset = held.text - tail;
                held.hits.push(Hit {
                    start: offset + hit.start,
                    end: offset + hit.end.min(tail),
                    what: hit.what,
                });
            }
        }
    }

    fn release(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(mut held) = self.held.pop_front() else { return false };
        self.first += 1;
        let end = held.start + held.before + held.text + held.after;
        self.released = end;
        let style = Style { length: self.options.length, after_insert: b' ' };
        if held.hits.is_empty() && held.frame_hits.is_empty() {
            out.extend_from_slice(&self.bytes[held.start..end]);
            return true;
        }
        hit::merge(&mut held.hits);
        hit::merge(&mut held.frame_hits);
        let behind = held.before + held.text;
        let split = held.frame_hits.partition_point(|hit| hit.start < behind);
        let before = &self.bytes[held.start..held.start + held.before];
        let after = &self.bytes[held.start + behind..end];
        let after_hits: Vec<Hit> = held.frame_hits[split..].iter().map(|hit| hit.behind(behind)).collect();
        hit::write_without(before, &held.frame_hits[..split], style, &mut self.counts, out);
        hit::write_without(held.text_in(&self.bytes), &held.hits, style, &mut self.counts, out);
        hit::write_without(after, &after_hits, style, &mut self.counts, out);
        true
    }
}

// === impl Held ===

impl Held {
    /// Returns whether its last line may continue in the next entry of the unit, which has this text.
    fn goes_on_in(&self, text: &[u8]) -> bool {
        match self.ending {
            Ending::Line => false,
            Ending::Unknown => !frame::begins_record(text),
            Ending::Partial => true,
        }
    }

    fn text_in<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        let start = self.start + self.before;
        &bytes[start..start + self.text]
    }
}

/// Joined ends and starts of consecutive entries, one pair per line.
#[derive(Default)]
struct Seams {
    text: Vec<u8>,
    seams: Vec<Seam>,
}

struct Seam {
    /// Offset of the pair in the text.
    start: usize,
    /// Number of bytes from the first entry.
    tail: usize,
    first: u64,
    second: u64,
}

// === impl Seams ===

impl Seams {
    fn add(&mut self, (first, before): (u64, &[u8]), (second, after): (u64, &[u8]), phrase: usize) {
        let tail = &before[before_seam(before, phrase)..];
        self.seams.push(Seam { start: self.text.len(), tail: tail.len(), first, second });
        self.text.extend_from_slice(tail);
        self.text.extend_from_slice(&after[..after_seam(after, phrase)]);
        self.text.extend_from_slice(BETWEEN);
    }
}

/// Returns whether a text consists only of Base64 lines.
fn is_wrapped(text: &[u8]) -> bool {
    text.split(|byte| *byte == b'\n').all(decode::is_wrapped_line)
}

fn index(number: u64, first: u64) -> usize {
    usize::try_from(number - first).expect("as many entries are held as fit into memory")
}

/// Returns the offset in `previous` of a PEM header that ends in `text`.
fn header_across(previous: &[u8], text: &[u8]) -> Option<usize> {
    let tail_start = previous.len().saturating_sub(PEM_HEADER_MAX);
    let seam = previous.len() - tail_start;
    if !may_begin_header(&previous[tail_start..]) {
        return None;
    }
    let joined = [&previous[tail_start..], &text[..text.len().min(PEM_HEADER_MAX)]].concat();
    let start = memchr::memmem::rfind(&joined[..(seam + PEM_BEGIN.len()).min(joined.len())], PEM_BEGIN)?;
    let label = start + PEM_BEGIN.len();
    let end = memchr::memmem::find(joined.get(label..)?, b"-----")? + label + 5;
    (start < seam && seam < end).then_some(tail_start + start)
}

/// Returns whether the end of a text contains a PEM header or the start of one.
///
/// This is rare, and otherwise no join is needed.
fn may_begin_header(tail: &[u8]) -> bool {
    memchr::memchr(PEM_BEGIN[0], tail).is_some()
        && ((1..PEM_BEGIN.len()).any(|len| tail.ends_with(&PEM_BEGIN[..len]))
            || memchr::memmem::find(tail, PEM_BEGIN).is_some())
}

/// Returns the offset of the words that may be split at the end of `text`; secrets of several words have up
/// to `phrase` bytes.
fn before_seam(text: &[u8], phrase: usize) -> usize {
    let word = text.iter().rev().take(SEAM_WORD_MAX).take_while(|byte| !byte.is_ascii_whitespace()).count();
    let near = (word.max(phrase) + SEAM_CONTEXT).min(text.len());
    // The limit must not split a word.
    let more = text[..text.len() - near].iter().rev().take(SEAM_WORD_MAX);
    text.len() - near - more.take_while(|byte| !byte.is_ascii_whitespace()).count()
}

/// Like [`before_seam`], for the start of `text`: returns where the words end.
fn after_seam(text: &[u8], phrase: usize) -> usize {
    let word = text.iter().take(SEAM_WORD_MAX).take_while(|byte| !byte.is_ascii_whitespace()).count();
    let near = (word.max(phrase) + SEAM_CONTEXT).min(text.len());
    near + text[near..].iter().take(SEAM_WORD_MAX).take_while(|byte| !byte.is_ascii_whitespace()).count()
}

impl fmt::Debug for EntryStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EntryStream").field("length", &self.options.length).finish_non_exhaustive()
    }
}

/// Changes the options so that replacements keep their length, as framed entries require.
pub(crate) fn same_length(options: Options) -> Options {
    Options { length: Length::Same, ..options }
}
