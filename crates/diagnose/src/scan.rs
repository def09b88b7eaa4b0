//! One pass over a chunk of lines: find the literals of all rules at once, confirm only the lines that hold one.

use std::collections::{BTreeMap, VecDeque};

use memchr::{memchr, memchr_iter, memrchr};

use crate::case::Case;
use crate::colours;
use crate::klog;
use crate::line;
use crate::literals::Literals;
use crate::message;
use crate::moment::Time;
use crate::pattern::{self, Captures, Pattern};
use crate::records;
use crate::rules::{Milestone, Rule, RuleError, RuleSet};
use crate::sections::Sections;
use crate::stream::{Stream, StreamKind};

/// Lines kept from the start and from the end of a run of the same kind of line. A finding shows a handful; the
/// middle of a retry loop says nothing new.
pub(crate) const KEPT: usize = 6;

/// Candidates remembered to find the last [`KEPT`] lines among: some of them may not be confirmed.
const TAIL_CANDIDATES: usize = 64;

/// Bytes of a line shown as evidence.
const MAX_TEXT: usize = 1024;

/// Bytes of a line that are looked at.
const MAX_LINE: usize = 64 * 1024;

/// Bytes of a neighbouring line shown with the evidence.
const MAX_NEIGHBOUR: usize = 256;

/// Bytes of the recognised part that are marked.
const MAX_FOCUS: usize = 200;

/// Lines at either end of a chunk in which a time is looked for, and lines after which a time no longer holds for what
/// is written below it.
pub(crate) const TIME_LINES: usize = 32;

/// What kubeadm writes before each item of a list of errors.
const ITEM_MARK: &[u8] = b"[ERROR ";

/// The index of a rule or milestone: rules first.
pub(crate) type PatternId = u16;

/// Rules made ready for scanning. Shared by all threads.
#[derive(Debug)]
pub struct Engine {
    pub(crate) rules: RuleSet,
    literals: Literals,
    /// The patterns that wait for each literal.
    wanted: Vec<Vec<PatternId>>,
    /// The patterns that wait for lines that klog calls fatal.
    fatal: Vec<PatternId>,
}

/// What one chunk of lines holds.
#[derive(Debug, Default)]
pub struct Scan {
    pub(crate) hits: BTreeMap<PatternId, Hits>,
    pub(crate) bytes: u64,
    pub(crate) lines: u64,
    pub(crate) first: Option<Time>,
    pub(crate) last: Option<Time>,
    /// The number of the line that told the last time.
    pub(crate) last_line: u64,
    /// The year in which the log ends, where its first line says so.
    pub(crate) year: Option<i16>,
    pub(crate) sections: Sections,
}

/// The lines of one kind: the first ones, the last ones, and how many there are.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Hits {
    pub(crate) first: Vec<Hit>,
    pub(crate) last: VecDeque<Hit>,
    pub(crate) count: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hit {
    pub(crate) line: u64,
    pub(crate) time: Option<Time>,
    pub(crate) process: Option<String>,
    pub(crate) informational: bool,
    /// An item of a list in which kubeadm names all that is wrong at once.
    pub(crate) itemised: bool,
    pub(crate) text: String,
    pub(crate) focus: String,
    pub(crate) before: Vec<String>,
    pub(crate) after: Vec<String>,
    pub(crate) captures: Captures,
}

/// A chunk while it is scanned.
struct Chunk<'c> {
    stream: &'c Stream,
    bytes: &'c [u8],
    sections: Sections,
}

/// A walk from line to line, forwards only.
struct Walk<'c> {
    chunk: &'c [u8],
    start: usize,
    end: usize,
    number: u64,
    counted: usize,
}

/// Lines of a chunk that may be of one kind.
#[derive(Default)]
struct Candidates {
    last_start: Option<usize>,
    hits: Hits,
    /// Line number, start and end of lines seen after the first [`KEPT`] were confirmed; not yet confirmed.
    tail: VecDeque<(u64, usize, usize)>,
    skipped: u64,
}

// === impl Engine ===

impl Engine {
    pub fn new(rules: RuleSet) -> Result<Self, RuleError> {
        let mut index: BTreeMap<&str, Vec<PatternId>> = BTreeMap::new();
        let patterns = rules.rules.iter().map(|rule| &rule.pattern);
        for (id, pattern) in
            patterns.chain(rules.milestones.iter().map(|milestone| &milestone.pattern)).enumerate()
        {
            let id = PatternId::try_from(id).map_err(|_| RuleError::TooMany)?;
            for literal in &pattern.any {
                index.entry(literal).or_default().push(id);
            }
        }
        let literals = Literals::new(index.keys().copied());
        let wanted = index.into_values().collect();
        let patterns = rules.rules.iter().map(|rule| &rule.pattern);
        let patterns = patterns.chain(rules.milestones.iter().map(|milestone| &milestone.pattern));
        let fatal = (0..).zip(patterns).filter(|(_, pattern)| pattern.klog_fatal).map(|(id, _)| id).collect();
        Ok(Self { rules, literals, wanted, fatal })
    }

    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// Starts a new diagnosis.
    pub fn open(&self) -> Case<'_> {
        Case::new(self)
    }

    /// Looks at a chunk of whole lines, the first of which has the number `first_line` (counted from 1).
    ///
    /// Depends on nothing but its arguments; chunks of one source may be scanned in parallel and in any order.
    pub fn scan(&self, stream: &Stream, first_line: u64, chunk: &[u8]) -> Scan {
        let plain = colours::removed(chunk);
        let mut scan = self.scan_plain(stream, first_line, plain.as_deref().unwrap_or(chunk));
        scan.bytes = chunk.len() as u64;
        scan
    }

    fn scan_plain(&self, stream: &Stream, first_line: u64, chunk: &[u8]) -> Scan {
        if stream.kind == StreamKind::ServiceRecords
            && let Some(lines) = records::lines(stream.unit.as_deref().unwrap_or("service"), chunk)
        {
            return self.scan_lines(stream, first_line, &lines);
        }
        self.scan_lines(stream, first_line, chunk)
    }

    fn scan_lines(&self, stream: &Stream, first_line: u64, chunk: &[u8]) -> Scan {
        let patterns = self.rules.rules.len() + self.rules.milestones.len();
        let sections = match stream.kind {
            StreamKind::Sections => Sections::of(chunk, first_line),
            _ => Sections::default(),
        };
        let whole = Chunk { stream, bytes: chunk, sections };
        let mut candidates: Vec<Option<Box<Candidates>>> = (0..patterns).map(|_| None).collect();
        let mut walk = Walk { chunk, start: 0, end: 0, number: first_line, counted: 0 };
        let mut see = |start: usize, end: usize, wanted: &[PatternId]| {
            let line = walk.line_of(start, end);
            for id in wanted {
                let candidate = candidates[usize::from(*id)].get_or_insert_default();
                if candidate.last_start.replace(line.1) != Some(line.1) {
                    candidate.see(self, *id, &whole, line);
                }
            }
        };
        let fatal = if self.fatal.is_empty() { Vec::new() } else { klog::fatal(chunk) };
        let mut fatal = fatal.into_iter().peekable();
        self.literals.find(chunk, |found| {
            while let Some(at) = fatal.next_if(|at| *at < found.start) {
                see(at, at + klog::LEN, &self.fatal);
            }
            see(found.start, found.end, &self.wanted[found.literal]);
        });
        for at in fatal {
            see(at, at + klog::LEN, &self.fatal);
        }

        let mut scan = Scan { bytes: chunk.len() as u64, ..Scan::default() };
        scan.lines = count_lines(&chunk[walk.counted..])
            + (walk.number - first_line)
            + u64::from(!chunk.ends_with(b"\n") && !chunk.is_empty());
        for (id, candidate) in (0..).zip(candidates) {
            let Some(candidate) = candidate else { continue };
            let hits = candidate.finish(self, id, &whole);
            if hits.count > 0 {
                scan.hits.insert(id, hits);
            }
        }
        let time = |line: &[u8]| line::head(line).time.filter(|time| !matches!(time, Time::Uptime(_)));
        scan.first = chunk.split(|byte| *byte == b'\n').take(TIME_LINES).find_map(time);
        scan.year = chunk
            .split(|byte| *byte == b'\n')
            .take(TIME_LINES)
            .find_map(|line| line::journal_end(line).and_then(Time::year));
        // What follows the last line break is a line only if it holds something.
        let whole_lines = chunk.strip_suffix(b"\n").unwrap_or(chunk);
        let end = (first_line + scan.lines).saturating_sub(1);
        let last = whole_lines
            .rsplit(|byte| *byte == b'\n')
            .take(TIME_LINES)
            .zip(0u64..)
            .find_map(|(line, above)| Some((time(line)?, end.saturating_sub(above))));
        if let Some((time, line)) = last {
            (scan.last, scan.last_line) = (Some(time), line);
        }
        scan.sections = whole.sections;
        scan
    }

    pub(crate) fn rule(&self, id: PatternId) -> Option<&Rule> {
        self.rules.rules.get(usize::from(id))
    }

    pub(crate) fn milestone(&self, id: PatternId) -> Option<&Milestone> {
        self.rules.milestones.get(usize::from(id).checked_sub(self.rules.rules.len())?)
    }

    fn pattern(&self, id: PatternId) -> Option<&Pattern> {
        self.rule(id)
            .map(|rule| &rule.pattern)
            .or_else(|| self.milestone(id).map(|milestone| &milestone.pattern))
    }

    fn confirm(
        &self,
        id: PatternId,
        chunk: &Chunk<'_>,
        (number, start, end): (u64, usize, usize),
    ) -> Option<Hit> {
        let line = &chunk.bytes[start..end];
        let line = line[..line.len().min(MAX_LINE)].strip_suffix(b"\r").unwrap_or(line);
        let line = &line[..line.len().min(MAX_LINE)];
        let pattern = self.pattern(id)?;
        let plain = pattern::unescaped(line);
        if !pattern.confirms(&plain) {
            return None;
        }
        let head = line::head(line);
        let section = chunk.sections.at(start);
        let known = head.process.into_iter().chain(section).chain(chunk.stream.unit.as_deref());
        if self.rule(id).is_some_and(|rule| !comes_from(&rule.sources, known)) {
            return None;
        }
        let focus = pattern.place(line, &plain);
        let message = message::around(chunk.bytes, start, end);
        let neighbours = |lines: Vec<&[u8]>| lines.into_iter().map(neighbour).collect();
        let own_time = head.time.or_else(|| line::spoken_time(head.message));
        Some(Hit {
            line: number,
            time: own_time.or_else(|| time_above(chunk.bytes, start)),
            process: head.process.or(section).map(str::to_owned).or_else(|| chunk.stream.unit.clone()),
            informational: head.informational,
            itemised: memchr::memmem::find(line, ITEM_MARK).is_some(),
            text: shown(line, focus.start),
            focus: clean(&line[focus.start..focus.end.min(focus.start + MAX_FOCUS)]).trim().to_owned(),
            before: neighbours(message.before),
            after: neighbours(message.after),
            captures: pattern.captures(&plain),
        })
    }
}

/// The time of the nearest line above that tells one: output of programs that write none stands between lines that do.
fn time_above(chunk: &[u8], start: usize) -> Option<Time> {
    // The bytes bound the work on lines of any length.
    let from = start.saturating_sub(TIME_LINES * MAX_NEIGHBOUR);
    chunk[from..start]
        .rsplit(|byte| *byte == b'\n')
        .take(TIME_LINES + 1)
        .find_map(|line| line::head(line).time.filter(|time| !matches!(time, Time::Uptime(_))))
}

fn count_lines(bytes: &[u8]) -> u64 {
    memchr_iter(b'\n', bytes).count() as u64
}

/// A rule that names sources does not apply to lines known to come from elsewhere.
pub(crate) fn comes_from<'a>(sources: &[String], known: impl Iterator<Item = &'a str>) -> bool {
    let mut known = known.peekable();
    sources.is_empty()
        || known.peek().is_none()
        || known.any(|name| sources.iter().any(|source| name.contains(source.as_str())))
}

/// The line as evidence: valid text, no control characters, bounded, with what was recognised inside.
fn shown(line: &[u8], focus: usize) -> String {
    if line.len() <= MAX_TEXT {
        return clean(line).trim().to_owned();
    }
    let is_boundary = |at: usize| line.get(at).is_none_or(|byte| byte & 0b1100_0000 != 0b1000_0000);
    let mut start = focus.saturating_sub(MAX_TEXT / 2).min(line.len() - MAX_TEXT);
    let mut end = start + MAX_TEXT;
    while !is_boundary(start) && start < end {
        start += 1;
    }
    while !is_boundary(end) && end > start {
        end -= 1;
    }
    let (before, after) = (if start > 0 { "…" } else { "" }, if end < line.len() { "…" } else { "" });
    format!("{before}{}{after}", clean(&line[start..end]).trim())
}

fn neighbour(line: &[u8]) -> String {
    let text = clean(&line[..line.len().min(MAX_NEIGHBOUR)]);
    let text = text.trim_end();
    if line.len() > MAX_NEIGHBOUR { format!("{text}…") } else { text.to_owned() }
}

fn clean(line: &[u8]) -> String {
    String::from_utf8_lossy(line).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

// === impl Walk ===

impl Walk<'_> {
    /// The number, the start and the end of the line around a place that is not before the last one's line.
    fn line_of(&mut self, start: usize, end: usize) -> (u64, usize, usize) {
        if start >= self.end {
            // Searching back only to the end of the line before keeps this linear on any input.
            self.start =
                memrchr(b'\n', &self.chunk[self.end..start]).map_or(self.end, |at| self.end + at + 1);
            self.number += count_lines(&self.chunk[self.counted..self.start]);
            self.counted = self.start;
            self.end = memchr(b'\n', &self.chunk[end..]).map_or(self.chunk.len(), |at| end + at);
        }
        (self.number, self.start, self.end)
    }
}

// === impl Candidates ===

impl Candidates {
    fn see(&mut self, engine: &Engine, id: PatternId, chunk: &Chunk<'_>, place: (u64, usize, usize)) {
        if self.hits.first.len() < KEPT {
            if let Some(hit) = engine.confirm(id, chunk, place) {
                self.hits.first.push(hit);
                self.hits.count += 1;
            }
            return;
        }
        if self.tail.len() == TAIL_CANDIDATES {
            self.tail.pop_front();
            self.skipped += 1;
        }
        self.tail.push_back(place);
    }

    fn finish(mut self, engine: &Engine, id: PatternId, chunk: &Chunk<'_>) -> Hits {
        for (number, start, end) in std::mem::take(&mut self.tail).into_iter().rev() {
            if self.hits.last.len() < KEPT {
                if let Some(hit) = engine.confirm(id, chunk, (number, start, end)) {
                    self.hits.last.push_front(hit);
                    self.hits.count += 1;
                }
            } else if engine.pattern(id).is_some_and(|pattern| {
                pattern.confirms(&pattern::unescaped(&chunk.bytes[start..end.min(start + MAX_LINE)]))
            }) {
                self.hits.count += 1;
            }
        }
        // Lines between are counted without being confirmed: the head and the tail of the run were.
        self.hits.count += self.skipped;
        self.hits
    }
}

// === impl Hits ===

impl Hits {
    /// Adds the hits of a later chunk.
    pub(crate) fn append(&mut self, later: Self) {
        self.count += later.count;
        for hit in later.first.into_iter().chain(later.last) {
            if self.first.len() < KEPT {
                self.first.push(hit);
            } else {
                if self.last.len() == KEPT {
                    self.last.pop_front();
                }
                self.last.push_back(hit);
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Hit> {
        self.first.iter().chain(&self.last)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Hit> {
        self.first.iter_mut().chain(&mut self.last)
    }

    /// Keeps the hits that `keep` wants.
    pub(crate) fn retain(&mut self, keep: impl Fn(&Hit) -> bool) {
        let before = self.first.len() + self.last.len();
        self.first.retain(&keep);
        self.last.retain(&keep);
        let kept = self.first.len() + self.last.len();
        self.count = if kept == 0 { 0 } else { self.count.saturating_sub((before - kept) as u64) };
    }

    pub(crate) fn newest(&self) -> Option<&Hit> {
        self.last.back().or(self.first.last())
    }
}
