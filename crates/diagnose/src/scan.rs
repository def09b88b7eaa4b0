//! One pass over a chunk of lines: find the literals of all rules at once, confirm only the lines that hold one.

use std::collections::{BTreeMap, VecDeque};

use memchr::{memchr, memchr_iter, memrchr};

use crate::case::Case;
use crate::line::{self, Head};
use crate::literals::Literals;
use crate::moment::Time;
use crate::pattern::{self, Captures, Pattern};
use crate::records;
use crate::rules::{Milestone, Rule, RuleError, RuleSet};
use crate::stream::{Stream, StreamKind};

/// Lines kept from the start and from the end of a run of the same kind of line. A finding shows a handful; the
/// middle of a retry loop says nothing new.
pub(crate) const KEPT: usize = 6;

/// Candidates remembered to find the last [`KEPT`] lines among: some of them may not be confirmed.
const TAIL_CANDIDATES: usize = 64;

/// Bytes of a line shown as evidence.
const MAX_TEXT: usize = 1024;

/// Bytes of a line that are looked at. Readers cut lines at the same length.
const MAX_LINE: usize = 64 * 1024;

/// Lines at either end of a chunk in which a time is looked for.
const TIME_LINES: usize = 32;

/// The index of a rule or milestone: rules first.
pub(crate) type PatternId = u16;

/// Rules made ready for scanning. Shared by all threads.
#[derive(Debug)]
pub struct Engine {
    pub(crate) rules: RuleSet,
    literals: Literals,
    /// The patterns that wait for each literal.
    wanted: Vec<Vec<PatternId>>,
}

/// What one chunk of lines holds.
#[derive(Debug, Default)]
pub struct Scan {
    pub(crate) hits: BTreeMap<PatternId, Hits>,
    pub(crate) bytes: u64,
    pub(crate) lines: u64,
    pub(crate) first: Option<Time>,
    pub(crate) last: Option<Time>,
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
    pub(crate) text: String,
    pub(crate) captures: Captures,
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
        Ok(Self { rules, literals, wanted })
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
        if stream.kind == StreamKind::ServiceRecords
            && let Some(lines) = records::lines(stream.unit.as_deref().unwrap_or("service"), chunk)
        {
            let mut scan = self.scan_lines(stream, first_line, &lines);
            scan.bytes = chunk.len() as u64;
            return scan;
        }
        self.scan_lines(stream, first_line, chunk)
    }

    fn scan_lines(&self, stream: &Stream, first_line: u64, chunk: &[u8]) -> Scan {
        let patterns = self.rules.rules.len() + self.rules.milestones.len();
        let mut candidates: Vec<Option<Box<Candidates>>> = (0..patterns).map(|_| None).collect();
        let (mut start, mut end, mut number, mut counted) = (0, 0, first_line, 0);
        self.literals.find(chunk, |found| {
            if found.start >= end {
                // Searching back only to the end of the line before keeps this linear on any input.
                start = memrchr(b'\n', &chunk[end..found.start]).map_or(end, |at| end + at + 1);
                number += count_lines(&chunk[counted..start]);
                counted = start;
                end = memchr(b'\n', &chunk[found.end..]).map_or(chunk.len(), |at| found.end + at);
            }
            for id in &self.wanted[found.literal] {
                let candidate = candidates[usize::from(*id)].get_or_insert_default();
                if candidate.last_start.replace(start) != Some(start) {
                    candidate.see(self, *id, stream, chunk, (number, start, end));
                }
            }
        });

        let mut scan = Scan { bytes: chunk.len() as u64, ..Scan::default() };
        scan.lines = count_lines(&chunk[counted..])
            + (number - first_line)
            + u64::from(!chunk.ends_with(b"\n") && !chunk.is_empty());
        for (id, candidate) in (0..).zip(candidates) {
            let Some(candidate) = candidate else { continue };
            let hits = candidate.finish(self, id, stream, chunk);
            if hits.count > 0 {
                scan.hits.insert(id, hits);
            }
        }
        let time = |line: &[u8]| line::head(line).time.filter(|time| !matches!(time, Time::Uptime(_)));
        scan.first = chunk.split(|byte| *byte == b'\n').take(TIME_LINES).find_map(time);
        scan.last = chunk.rsplit(|byte| *byte == b'\n').take(TIME_LINES).find_map(time);
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

    fn confirm(&self, id: PatternId, stream: &Stream, number: u64, line: &[u8]) -> Option<Hit> {
        let line = line[..line.len().min(MAX_LINE)].strip_suffix(b"\r").unwrap_or(line);
        let line = &line[..line.len().min(MAX_LINE)];
        let pattern = self.pattern(id)?;
        let plain = pattern::unescaped(line);
        if !pattern.confirms(&plain) {
            return None;
        }
        let head = line::head(line);
        if self.rule(id).is_some_and(|rule| !comes_from(&rule.sources, &head, stream)) {
            return None;
        }
        Some(Hit {
            line: number,
            time: head.time,
            process: head.process.map(str::to_owned).or_else(|| stream.unit.clone()),
            informational: head.informational,
            text: shown(line),
            captures: pattern.captures(&plain),
        })
    }
}

fn count_lines(bytes: &[u8]) -> u64 {
    memchr_iter(b'\n', bytes).count() as u64
}

/// A rule that names sources does not apply to lines known to come from elsewhere.
fn comes_from(sources: &[String], head: &Head<'_>, stream: &Stream) -> bool {
    let known: Vec<&str> = head.process.into_iter().chain(stream.unit.as_deref()).collect();
    sources.is_empty()
        || known.is_empty()
        || known.iter().any(|name| sources.iter().any(|source| name.contains(source.as_str())))
}

/// The line as evidence: valid text, no control characters, bounded.
fn shown(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(&line[..line.len().min(MAX_TEXT)]);
    let mut clean: String = text
        .chars()
        .map(|c| if c == '\t' || c.is_control() { ' ' } else { c })
        .collect::<String>()
        .trim()
        .to_owned();
    if line.len() > MAX_TEXT {
        clean.push('…');
    }
    clean
}

// === impl Candidates ===

impl Candidates {
    fn see(
        &mut self,
        engine: &Engine,
        id: PatternId,
        stream: &Stream,
        chunk: &[u8],
        (number, start, end): (u64, usize, usize),
    ) {
        if self.hits.first.len() < KEPT {
            if let Some(hit) = engine.confirm(id, stream, number, &chunk[start..end]) {
                self.hits.first.push(hit);
                self.hits.count += 1;
            }
            return;
        }
        if self.tail.len() == TAIL_CANDIDATES {
            self.tail.pop_front();
            self.skipped += 1;
        }
        self.tail.push_back((number, start, end));
    }

    fn finish(mut self, engine: &Engine, id: PatternId, stream: &Stream, chunk: &[u8]) -> Hits {
        for (number, start, end) in std::mem::take(&mut self.tail).into_iter().rev() {
            if self.hits.last.len() < KEPT {
                if let Some(hit) = engine.confirm(id, stream, number, &chunk[start..end]) {
                    self.hits.last.push_front(hit);
                    self.hits.count += 1;
                }
            } else if engine.pattern(id).is_some_and(|pattern| {
                pattern.confirms(&pattern::unescaped(&chunk[start..end.min(start + MAX_LINE)]))
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

    pub(crate) fn newest(&self) -> Option<&Hit> {
        self.last.back().or(self.first.last())
    }
}
