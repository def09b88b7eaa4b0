//! Entries: pieces of text in frames. The text of one unit is searched as one stream, across the frames, because a
//! writer does not know where the journal or the container runtime cuts its lines.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use crate::block::{Certificates, Context};
use crate::decode;
use crate::frames::{FrameField, Frames};
use crate::gap::{self, Gap};
use crate::hit::{self, Counts, Hit, Length, Style, What};
use crate::scan::{Engine, Scan};
use crate::stream::{HOLD_MAX, Options};
use crate::views::BETWEEN;

/// Bytes and entries held back, waiting for the next entry of the same unit. The halves of one line follow each other
/// closely, whatever other units say in between.
const HELD_BYTES_MAX: usize = 1 << 20;
const HELD_ENTRIES_MAX: usize = 4096;

/// Units whose state is kept apart. All others share one, so that a stream of invented names cannot take all memory.
const UNITS_MAX: usize = 4096;

/// Units that are found again without looking them up. A node has a handful that say nearly everything.
const RECENT_MAX: usize = 8;

/// Bytes of text to each side of a seam that are searched together: the word that may be cut there, up to the longest
/// one, and enough beside it to hold the name that gives it away.
const SEAM_WORD_MAX: usize = 4096;
const SEAM_CONTEXT: usize = 48;

/// Bytes of text that are searched together: a search has its cost, whatever the size of the text.
const SEARCHED_TOGETHER: usize = 64 << 10;

/// Base64 of one unit that goes on for more than this is withheld: its end may be too far away to wait for.
const WRAPPED_WAIT_MAX: usize = 4 * SEARCHED_TOGETHER;

/// How a header of PEM begins, and how long it is at most.
const PEM_BEGIN: &[u8] = b"-----BEGIN";
const PEM_HEADER_MAX: usize = 64;

/// One piece of text in its frame.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Whose text it is. Entries of one unit continue each other.
    pub unit: &'a [u8],
    /// The frame around the text, written as it is: it must hold no foreign text.
    pub before: &'a [u8],
    pub text: &'a [u8],
    pub after: &'a [u8],
}

/// How the text of an entry ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With its line, or in the middle of it.
    Unknown,
    /// With its line: the next entry does not go on where it stops.
    Line,
    /// In the middle of its line, which the next entry continues.
    Partial,
}

/// What is done with Base64 that goes on over entries and has not come to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    /// It waits for the entries that follow.
    Waits,
    /// There is no room to wait: it is searched as it is, and what goes on with it is withheld.
    IsCut,
    /// Nothing follows.
    Ends,
}

/// Entries on their way out, in the order they came.
pub struct EntryStream {
    engine: Arc<Engine>,
    options: Options,
    /// The number of each unit by its name.
    numbers: HashMap<Vec<u8>, usize>,
    units: Vec<Unit>,
    /// Units of the last entries: the next one is often of one of them.
    recent: Vec<(Vec<u8>, usize)>,
    held: VecDeque<Held>,
    /// The bytes of all held entries, one behind the other; those before `released` are gone already.
    bytes: Vec<u8>,
    released: usize,
    /// The number of the first held entry.
    first: u64,
    /// Units with entries that wait to be searched, in the order they came, and how many bytes of text those have.
    waiting: Vec<usize>,
    waiting_bytes: usize,
    frames: Frames,
    /// Entries were left out, those of units that have not come yet too.
    has_gap: bool,
    counts: Counts,
}

struct Unit {
    context: Context,
    /// The number of its last entry that was searched.
    last: Option<u64>,
    /// The numbers of its entries that were not.
    waiting: Vec<u64>,
    /// Base64 over entries goes on that is too long to be searched in one piece.
    withholding: bool,
    /// Entries were left out before those that come.
    gap: Option<Gap>,
}

struct Held {
    /// Where its bytes begin, and the lengths of its parts.
    start: usize,
    before: usize,
    text: usize,
    after: usize,
    /// In its text. Sorted and merged when it is released.
    hits: Vec<Hit>,
    /// In its frame, counted from the start of the entry.
    frame_hits: Vec<Hit>,
    ending: Ending,
    /// The next entry of its unit is known or does not matter, so nothing can be added to its hits.
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

    /// Takes an entry in and appends to `out` the entries that are decided.
    pub fn push(&mut self, entry: &Entry<'_>, out: &mut Vec<u8>) {
        self.push_with(entry, Ending::Unknown, out);
    }

    /// The same for those who know how the text ends.
    pub(crate) fn push_with(&mut self, entry: &Entry<'_>, ending: Ending, out: &mut Vec<u8>) {
        self.push_framed(entry, ending, &[], Vec::new(), out);
    }

    /// The same with a frame that holds foreign text: `fields` are searched, and `hits` are what was found in the rest.
    /// Both are counted from the start of the entry.
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
            // Room for more than the next entry: otherwise each of them would be searched alone.
            let is_too_much = |stream: &Self| {
                stream.held.len() > HELD_ENTRIES_MAX / 4 * 3
                    || stream.bytes.len() - stream.released > HELD_BYTES_MAX / 4 * 3
            };
            while self.held.front().is_some_and(|held| held.settled) || was_full && is_too_much(self) {
                if !self.release(out) {
                    break;
                }
            }
            // Moving the rest down costs less than what was released.
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

    /// The number of the unit with this name.
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

    /// Says that entries were left out here unseen. Those that come next may belong to a secret that began there, so the text of each unit is
    /// withheld up to an entry of which that can be excluded.
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

    /// Says that the entries since the gap go back far enough: a unit of which none came has nothing open.
    pub fn end_gap(&mut self) {
        self.has_gap = false;
    }

    /// Appends all entries that are held, decided or not.
    pub fn flush(&mut self, out: &mut Vec<u8>) {
        self.search(Open::Ends);
        while self.release(out) {}
    }

    /// Appends what is still held.
    pub fn finish(mut self, out: &mut Vec<u8>) -> Counts {
        self.flush(out);
        for unit in &mut self.units {
            if let Some(what) = unit.context.finish() {
                self.counts.note(&what);
            }
        }
        self.counts
    }

    /// Searches the entries that wait: those of one unit as one text, and the seams between them.
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
            // Where each entry begins in the text of its unit, and its number.
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
                    && self.held[index(previous, self.first)].ending != Ending::Line
                {
                    let before = self.held[index(previous, self.first)].text_in(&self.bytes);
                    let goes_on = self.held[index(previous, self.first)].ending == Ending::Partial;
                    if !is_too_long
                        && (goes_on || header_across(before, held_text).is_some())
                        && text.last() == Some(&b'\n')
                    {
                        // A header that is cut opens what follows, as it would in one piece.
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

    /// The final entries of a unit that are Base64 or an incomplete line, and their size in bytes. The text may continue in the next entry
    /// and can be decoded only when it is complete.
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
            // The first line of Base64 may have something before it.
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
            // What either side shows alone is found a second time here, and merged. What matters is what crosses the
            // seam, and what is recognised only by what stands on the other side of it.
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
    fn text_in<'b>(&self, bytes: &'b [u8]) -> &'b [u8] {
        let start = self.start + self.before;
        &bytes[start..start + self.text]
    }
}

/// The ends and beginnings of entries that follow each other, joined, one pair a line.
#[derive(Default)]
struct Seams {
    text: Vec<u8>,
    seams: Vec<Seam>,
}

struct Seam {
    /// Where in the text the pair begins.
    start: usize,
    /// How much of it belongs to the first entry.
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

/// Whether a text is nothing but lines of Base64.
fn is_wrapped(text: &[u8]) -> bool {
    text.split(|byte| *byte == b'\n').all(decode::is_wrapped_line)
}

fn index(number: u64, first: u64) -> usize {
    usize::try_from(number - first).expect("as many entries are held as fit into memory")
}

/// Where in `previous` a header of PEM begins that ends in `text`.
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

/// Whether a header of PEM, or the beginning of one, stands in the end of a text. Nearly always not, and then nothing
/// need be joined.
fn may_begin_header(tail: &[u8]) -> bool {
    memchr::memchr(PEM_BEGIN[0], tail).is_some()
        && ((1..PEM_BEGIN.len()).any(|len| tail.ends_with(&PEM_BEGIN[..len]))
            || memchr::memmem::find(tail, PEM_BEGIN).is_some())
}

/// Where the words begin that may be cut at the end of `text`, if secrets of several words have up to `phrase` bytes.
fn before_seam(text: &[u8], phrase: usize) -> usize {
    let word = text.iter().rev().take(SEAM_WORD_MAX).take_while(|byte| !byte.is_ascii_whitespace()).count();
    let near = (word.max(phrase) + SEAM_CONTEXT).min(text.len());
    // No word is cut by the limit.
    let more = text[..text.len() - near].iter().rev().take(SEAM_WORD_MAX);
    text.len() - near - more.take_while(|byte| !byte.is_ascii_whitespace()).count()
}

/// The same at the start of `text`: where they end.
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

/// Whether replacements keep their length, for those who frame entries.
pub(crate) fn same_length(options: Options) -> Options {
    Options { length: Length::Same, ..options }
}
