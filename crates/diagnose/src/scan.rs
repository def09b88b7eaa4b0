//! One pass over a chunk of lines: finds the literals of all rules, then confirms only the lines that contain
//! one.

mod candidates;

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use landfall_model::Cause;
use memchr::{memchr, memchr_iter, memrchr};

use self::candidates::Candidates;
use crate::case::Case;
use crate::colours;
use crate::foreign;
use crate::hits::{Hit, Hits};
use crate::klog;
use crate::line;
use crate::listings;
use crate::literals::Literals;
use crate::message;
use crate::moment::Time;
use crate::origin::Origin;
use crate::pattern::{self, COMM, Gaps, Pattern};
use crate::records;
use crate::rules::{Milestone, Rule, RuleError, RuleSet, Trigger};
use crate::scope;
use crate::sections::Sections;
use crate::stream::{Stream, StreamKind};

/// Maximum bytes of an evidence line.
const MAX_TEXT: usize = 1024;

/// Bytes of a line that are scanned.
const MAX_LINE: usize = 64 * 1024;

/// Maximum bytes of a neighboring line.
const MAX_NEIGHBOUR: usize = 256;

/// Maximum bytes of the marked part.
const MAX_FOCUS: usize = 200;

/// Lines at either end of a chunk that are searched for a time, and lines after which a time no longer
/// applies.
pub(crate) const TIME_LINES: usize = 32;

/// Commands that print container output, and the prefixes of their own messages.
const RELAYS: [&str; 5] = ["conmon", "docker", "env", "nerdctl", "podman"];
const RELAY_STARTS: [&[u8]; 4] = [b"Error", b"docker: ", b"level=", b"time="];

/// kubeadm's prefix of each item in a list of errors.
const ITEM_MARK: &[u8] = b"[ERROR ";

/// Index of a rule or milestone: rules first.
pub(crate) type PatternId = u16;

/// Rules compiled for scanning. Shared by all threads.
#[derive(Debug)]
pub struct Engine {
    pub(crate) rules: RuleSet,
    literals: Literals,
    /// Patterns by literal.
    wanted: Vec<Vec<PatternId>>,
    /// Patterns for klog's fatal lines.
    fatal: Vec<PatternId>,
}

/// The result of scanning one chunk.
#[derive(Debug, Default)]
pub struct Scan {
    pub(crate) hits: BTreeMap<PatternId, Hits>,
    /// Lines that match a rule but have an origin that it does not accept.
    pub(crate) foreign: BTreeMap<PatternId, Hits>,
    pub(crate) bytes: u64,
    pub(crate) lines: u64,
    pub(crate) first: Option<Time>,
    pub(crate) last: Option<Time>,
    /// Number of the line with the last time.
    pub(crate) last_line: u64,
    /// The year in which the log ends, if its first line contains it.
    pub(crate) year: Option<i16>,
    pub(crate) sections: Sections,
}

/// A chunk being scanned.
struct Chunk<'c> {
    stream: &'c Stream,
    bytes: &'c [u8],
    /// The journal reader's data about the lines, in order.
    entries: Option<&'c [EntryOrigin]>,
    sections: Sections,
    /// The origin of each name seen so far: few programs write all lines.
    names: RefCell<HashMap<&'c str, Option<Origin>>>,
    /// The start of the last candidate line, and the line without quoted text: many lines have the words of
    /// several patterns.
    last_blanked: RefCell<Option<(usize, Blanked<'c>)>>,
    /// The start and the writer of the last matching line.
    last_writer: Cell<Option<(usize, Writer)>>,
}

/// A line without quoted text.
type Blanked<'c> = Rc<Cow<'c, [u8]>>;

/// Properties of a line that do not depend on the matching pattern.
#[derive(Clone, Copy)]
struct Writer {
    origin: Origin,
    place: Place,
}

/// Location of the writer's own text in a line.
#[derive(Clone, Copy)]
enum Place {
    Anywhere,
    /// At the start of the message, or after its subject. Later words quote foreign names.
    Leading {
        gaps: Gaps,
    },
    /// A row printed by a script: only for rules that describe such rows from their start.
    Row,
}

/// The origin of lines from this byte of a chunk.
#[derive(Clone, Debug)]
pub struct EntryOrigin {
    pub start: usize,
    pub origin: Origin,
    /// The stream within the journal for citations, such as `kubelet.service`.
    pub stream: Option<Arc<str>>,
}

/// A forward-only iteration over lines.
struct Walk<'c> {
    chunk: &'c [u8],
    start: usize,
    end: usize,
    number: u64,
    counted: usize,
}

// === impl Engine ===

impl Engine {
    pub fn new(rules: RuleSet) -> Result<Self, RuleError> {
        let mut index: BTreeMap<&str, Vec<PatternId>> = BTreeMap::new();
        let mut fatal = Vec::new();
        for (id, trigger) in rules.triggers().enumerate() {
            let id = PatternId::try_from(id).map_err(|_| RuleError::TooMany)?;
            let Some(pattern) = trigger.pattern() else { continue };
            for literal in &pattern.any {
                index.entry(literal).or_default().push(id);
            }
            if pattern.klog_fatal {
                fatal.push(id);
            }
        }
        let literals = Literals::new(index.keys().copied());
        let wanted = index.into_values().collect();
        Ok(Self { rules, literals, wanted, fatal })
    }

    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// Starts a new diagnosis.
    pub fn open(&self) -> Case<'_> {
        Case::new(self)
    }

    /// Scans a chunk of complete lines, starting with line number `first_line` (counted from 1).
    ///
    /// The result depends only on the arguments; chunks of one source may be scanned in parallel and in any
    /// order.
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
            return self.scan_lines(stream, first_line, &lines, None);
        }
        self.scan_lines(stream, first_line, chunk, None)
    }

    /// Scans journal lines, whose origin the reader knows from journald's own fields.
    pub fn scan_journal(
        &self,
        stream: &Stream,
        first_line: u64,
        chunk: &[u8],
        entries: &[EntryOrigin],
    ) -> Scan {
        self.scan_lines(stream, first_line, chunk, Some(entries))
    }

    fn scan_lines(
        &self,
        stream: &Stream,
        first_line: u64,
        chunk: &[u8],
        entries: Option<&[EntryOrigin]>,
    ) -> Scan {
        let patterns = self.rules.rules.len() + self.rules.milestones.len();
        let sections = match stream.kind {
            StreamKind::Sections => Sections::of(chunk, first_line),
            _ => Sections::default(),
        };
        let whole = Chunk {
            stream,
            bytes: chunk,
            entries,
            sections,
            names: RefCell::default(),
            last_blanked: RefCell::default(),
            last_writer: Cell::default(),
        };
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
            let (hits, foreign) = candidate.finish(self, id, &whole);
            if hits.count > 0 {
                scan.hits.insert(id, hits);
            }
            if foreign.count > 0 {
                scan.foreign.insert(id, foreign);
            }
        }
        // Only times in the log's own heads count: a message may contain any time.
        let is_of_users = self.is_of_users(stream) || stream.is_of_anyone();
        let is_own = |line: &[u8]| stream.heads.is_none_or(|form| form.is_of(line));
        let time = |line: &[u8]| {
            let head = line::head(line);
            head.outer_time
                .filter(|_| is_own(line))
                .filter(|time| !is_of_users && !matches!(time, Time::Uptime(_)))
        };
        scan.first = chunk.split(|byte| *byte == b'\n').take(TIME_LINES).find_map(time);
        scan.year = chunk
            .split(|byte| *byte == b'\n')
            .take(TIME_LINES)
            .find_map(|line| line::journal_end(line).and_then(Time::year));
        // Text after the last line break is a line only if it is not empty.
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

    /// Returns whether the fix of a cause destroys data.
    pub(crate) fn is_destructive(&self, cause: &Cause) -> bool {
        self.rules.catalogue().get(cause).is_some_and(|entry| entry.destructive)
    }

    pub(crate) fn milestone(&self, id: PatternId) -> Option<&Milestone> {
        self.rules.milestones.get(usize::from(id).checked_sub(self.rules.rules.len())?)
    }

    fn trigger(&self, id: PatternId) -> Option<&Trigger> {
        self.rule(id)
            .map(|rule| &rule.trigger)
            .or_else(|| self.milestone(id).map(|milestone| &milestone.trigger))
    }

    fn pattern(&self, id: PatternId) -> Option<&Pattern> {
        self.trigger(id)?.pattern()
    }

    /// Returns whether a rule or milestone accepts this origin.
    pub(crate) fn accepts(&self, id: PatternId, origin: Origin) -> bool {
        self.trigger(id).is_some_and(|trigger| trigger.accepts(origin.components))
    }

    fn confirm(&self, id: PatternId, chunk: &Chunk<'_>, place: (u64, usize, usize)) -> Option<Hit> {
        let (number, start, end) = place;
        let line = chunk.line(start, end);
        let pattern = self.pattern(id)?;
        let whole = pattern::unescaped(line);
        if !pattern.fits(&whole) {
            return None;
        }
        let blanked = chunk.blanked(start, line);
        let is_whole = matches!(*blanked, Cow::Borrowed(_));
        let plain = if is_whole { whole } else { pattern::unescaped(&blanked) };
        let is_own = is_whole || pattern.is_in(&blanked) && pattern.fits(&plain);
        if !is_own || pattern.excludes(&plain) {
            return None;
        }
        let head = line::head(line);
        let section = chunk.sections.at(start);
        let focus = pattern.place(line, &plain);
        let message = message::around(chunk.bytes, start, end);
        let neighbours = |lines: Vec<&[u8]>| lines.into_iter().map(neighbour).collect();
        let own_time = head.time.or_else(|| line::spoken_time(head.message));
        let process = head.process.or(section).map(str::to_owned).or_else(|| chunk.stream.unit.clone());
        let stream = match chunk.entries {
            // The writer of an entry chooses the name in its text, so a citation does not use it.
            Some(_) => chunk.entry(start).and_then(|entry| entry.stream.as_deref()).map(str::to_owned),
            None => process.clone(),
        };
        Some(Hit {
            line: number,
            time: own_time.or_else(|| time_above(chunk.bytes, start)),
            process,
            stream,
            origin: self.origin_of_match(pattern, chunk, start, (line, &plain)),
            informational: head.informational,
            itemised: memchr::memmem::find(line, ITEM_MARK).is_some(),
            text: shown(line, focus.start),
            focus: clean(&line[focus.start..focus.end.min(focus.start + MAX_FOCUS)]).trim().to_owned(),
            before: neighbours(message.before),
            after: neighbours(message.after),
            captures: pattern.captures(&plain),
        })
    }

    /// Returns whether workloads or users of the cluster wrote all lines.
    fn is_of_users(&self, stream: &Stream) -> bool {
        let is_workload = |pod: &scope::Pod| !self.rules.origins.namespaces().contains(&pod.namespace);
        stream.user_objects || stream.pod.as_ref().is_some_and(is_workload)
    }

    /// Returns the origin of the matched words: later words of some messages quote foreign text.
    fn origin_of_match<'c>(
        &self,
        pattern: &Pattern,
        chunk: &Chunk<'c>,
        start: usize,
        (line, plain): (&'c [u8], &[u8]),
    ) -> Origin {
        let Writer { origin, place } = self.writer(chunk, start, line);
        let whole = line::behind_head(plain);
        let is_own = match place {
            Place::Anywhere => true,
            Place::Row => pattern.begins(whole.trim_ascii()),
            Place::Leading { gaps } => {
                let leads = || {
                    // A colon may follow the name of an interface or a process.
                    let is_kernel = origin.components == self.rules.origins.kernel();
                    let longer_than = if is_kernel { COMM + 1 } else { 0 };
                    let Some(start) = self.subject(whole) else { return false };
                    match gaps {
                        Gaps::Forbidden => pattern.leads(whole, start, gaps, longer_than),
                        Gaps::Allowed => pattern.leads(&whole[start..], 0, gaps, longer_than),
                    }
                };
                foreign::denial_kind(whole).map_or_else(leads, |kind| pattern.is_within(whole, kind))
            }
        };
        if is_own { origin } else { Origin::FOREIGN }
    }

    /// Returns the offset after the name of a message's subject. `None` if that is a service of no component.
    fn subject(&self, message: &[u8]) -> Option<usize> {
        let Some(unit) = line::unit(message) else { return Some(line::subject(message)) };
        let text = message[unit.len() + 1..].trim_ascii_start();
        let is_known =
            |name| std::str::from_utf8(name).is_ok_and(|name| self.rules.origins.of_name(name).is_some());
        let is_own = unit.strip_suffix(b".service").is_none_or(is_known);
        is_own.then_some(message.len() - text.len())
    }

    fn writer<'c>(&self, chunk: &Chunk<'c>, start: usize, line: &'c [u8]) -> Writer {
        if let Some((last, writer)) = chunk.last_writer.get()
            && last == start
        {
            return writer;
        }
        let head = line::head(line);
        let origin = self.origin(chunk, start, line, &head);
        let is_of_script = || origin.components.intersects(self.rules.origins.scripts());
        let place = if self.rules.origins.counts_at_start(origin.components) {
            Place::Leading { gaps: Gaps::Forbidden }
        } else if let Some(gaps) = line::report_of_cloud_init(line::message(line)) {
            Place::Leading { gaps }
        } else if is_of_script()
            && chunk.sections.at(start).is_none()
            && foreign::denial_kind(line::behind_head(line)).is_none()
            && listings::is_row(head.message)
        {
            Place::Row
        } else {
            Place::Anywhere
        };
        let writer = Writer { origin, place };
        chunk.last_writer.set(Some((start, writer)));
        writer
    }

    /// Returns the origin of a line, from journald's fields or from the claims of the text.
    fn origin<'c>(&self, chunk: &Chunk<'c>, start: usize, line: &'c [u8], head: &line::Head<'c>) -> Origin {
        if foreign::is_record(head.message)
            || foreign::is_table_of_cloud_init(line)
            || chunk.entries.is_none() && klog::is_in_value(chunk.bytes, start, line)
        {
            return Origin::FOREIGN;
        }
        // A file of a workload may look like a journal.
        if self.is_of_users(chunk.stream) {
            return Origin::FOREIGN;
        }
        let origin = match chunk.entries {
            Some(_) => chunk.entry(start).map_or(Origin::FOREIGN, |entry| entry.origin),
            None => self.claimed_origin(chunk, start, line, head),
        };
        // Kubelet messages about a workload's pod may quote that workload.
        let system = |namespace: &[u8]| {
            self.rules.origins.namespaces().iter().any(|system| system.as_bytes() == namespace)
        };
        if scope::is_about_workload(line, system) { Origin::FOREIGN } else { origin }
    }

    fn claimed_origin<'c>(
        &self,
        chunk: &Chunk<'c>,
        start: usize,
        line: &'c [u8],
        head: &line::Head<'c>,
    ) -> Origin {
        let section = chunk.sections.at(start);
        let pod = section.and_then(scope::pod);
        if let Some(pod) = pod.as_ref().or(chunk.stream.pod.as_ref()) {
            let known = self.rules.origins.namespaces().contains(&pod.namespace);
            if !known {
                return Origin::FOREIGN;
            }
            let origin = self.rules.origins.of_container(&pod.container);
            let is_named = !origin.components.is_empty();
            return if is_named { Origin { trust: chunk.stream.trust, ..origin } } else { origin };
        }
        if chunk.stream.is_of_anyone() {
            return Origin::FOREIGN;
        }
        let is_named = chunk.stream.unit.is_some() || section.is_some();
        if !is_named
            && !is_mark(line)
            && !is_indented(line)
            && chunk.stream.heads.is_some_and(|form| !form.is_of(line))
        {
            return Origin::FOREIGN;
        }
        // `journalctl` indents the continuation lines of a message.
        let above = if is_indented(line) { first_above(chunk.bytes, start) } else { Above::Other };
        let is_cut =
            matches!(above, Above::Missing) && start > 0 && chunk.stream.kind == StreamKind::JournalText;
        if is_cut && (head.process.is_none() || !is_indented(chunk.bytes)) {
            // The entry starts too far above to be found.
            return Origin::FOREIGN;
        }
        let above = if let Above::Program(head) = above { Some(head) } else { None };
        let prefix = self.origin_of_prefix(chunk, above.as_ref().unwrap_or(head));
        prefix.unwrap_or_else(|| {
            let unit = chunk.stream.unit.as_deref();
            let named = section.map(|name| self.rules.origins.of_section(name));
            let named = named.or_else(|| self.rules.origins.of_name(unit?));
            // Programs that write to the kernel's log start with their name.
            let is_kernels = matches!(head.outer_time, Some(Time::Uptime(_)));
            let kernel = if head.message.starts_with(b"[talos]") { "talos" } else { "kernel" };
            let is_kernels = is_kernels && chunk.stream.heads.is_none();
            let named = named.or_else(|| self.rules.origins.of_name(kernel).filter(|_| is_kernels));
            let named =
                named.or_else(|| (chunk.stream.heads.is_some() && !is_mark(line)).then_some(Origin::FOREIGN));
            Origin { trust: chunk.stream.trust, ..named.unwrap_or(Origin::UNNAMED) }
        })
    }

    /// Returns the origin claimed by the name in a line's prefix.
    fn origin_of_prefix<'c>(&self, chunk: &Chunk<'c>, head: &line::Head<'c>) -> Option<Origin> {
        let Some(process) = head.process else {
            return head.is_unreadable.then_some(Origin::FOREIGN);
        };
        // Another process ID belongs to a unit that failed to start, or to a user's service manager, which
        // quotes that user's descriptions.
        if process == "systemd" && head.pid.is_some_and(|pid| pid != "1") && !names_unit(head.message) {
            return Some(Origin::FOREIGN);
        }
        if RELAYS.contains(&process) && !RELAY_STARTS.iter().any(|start| head.message.starts_with(start)) {
            return Some(Origin::FOREIGN);
        }
        // Docker's tag of an image and a container.
        if head.is_program && process.contains('/') && !process.starts_with('/') {
            return Some(Origin::FOREIGN);
        }
        let mut names = chunk.names.borrow_mut();
        let known = *names.entry(process).or_insert_with(|| self.rules.origins.of_prefix(process));
        known.or(head.is_program.then_some(Origin::FOREIGN))
    }
}

/// The message that an indented line continues.
enum Above<'c> {
    Program(line::Head<'c>),
    /// A line without a program name.
    Other,
    /// No message starts nearby.
    Missing,
}

/// Finds the message that an indented line continues.
fn first_above(chunk: &[u8], start: usize) -> Above<'_> {
    // Limits the work for lines of any length.
    let from = start.saturating_sub(TIME_LINES * MAX_NEIGHBOUR);
    // The first piece may be the end of a line.
    let is_whole = |line: &[u8]| from == 0 || line.as_ptr() != chunk[from..].as_ptr();
    let mut above = chunk[from..start].rsplit(|byte| *byte == b'\n').take(TIME_LINES + 1);
    let first = above.find(|line| !line.is_empty() && !is_indented(line)).filter(|line| is_whole(line));
    let Some(first) = first else { return Above::Missing };
    let head = line::head(first);
    if head.is_program || head.is_unreadable { Above::Program(head) } else { Above::Other }
}

/// Returns whether a line is indented at least as deep as the shortest journal head.
fn is_indented(line: &[u8]) -> bool {
    line.starts_with(b"        ")
}

/// Returns the time of the nearest preceding line that has one: output without times is interleaved with
/// timed lines.
fn time_above(chunk: &[u8], start: usize) -> Option<Time> {
    // Limits the work for lines of any length.
    let from = start.saturating_sub(TIME_LINES * MAX_NEIGHBOUR);
    chunk[from..start]
        .rsplit(|byte| *byte == b'\n')
        .take(TIME_LINES + 1)
        .find_map(|line| line::head(line).time.filter(|time| !matches!(time, Time::Uptime(_))))
}

/// Returns whether a line is a separator of `journalctl`, such as the start of a boot.
fn is_mark(line: &[u8]) -> bool {
    line.starts_with(b"-- ")
}

/// `kubelet.service: Failed at step EXEC …`
fn names_unit(message: &[u8]) -> bool {
    let word = message.split(u8::is_ascii_whitespace).next().unwrap_or_default();
    word.ends_with(b".service:")
}

fn count_lines(bytes: &[u8]) -> u64 {
    memchr_iter(b'\n', bytes).count() as u64
}

/// Formats a line as evidence: valid text without control characters, of limited length, with the recognized
/// part included.
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
    /// Returns number, start and end of the line around an offset, which must not precede the last returned
    /// line.
    fn line_of(&mut self, start: usize, end: usize) -> (u64, usize, usize) {
        if start >= self.end {
            // Searching back only to the end of the previous line keeps this linear on any input.
            self.start =
                memrchr(b'\n', &self.chunk[self.end..start]).map_or(self.end, |at| self.end + at + 1);
            self.number += count_lines(&self.chunk[self.counted..self.start]);
            self.counted = self.start;
            self.end = memchr(b'\n', &self.chunk[end..]).map_or(self.chunk.len(), |at| end + at);
        }
        (self.number, self.start, self.end)
    }
}

// === impl Chunk ===

impl<'c> Chunk<'c> {
    /// Returns the line without quoted text.
    fn blanked(&self, start: usize, line: &'c [u8]) -> Blanked<'c> {
        let mut last = self.last_blanked.borrow_mut();
        if let Some((_, blanked)) = last.as_ref().filter(|(last, _)| *last == start) {
            return Rc::clone(blanked);
        }
        let blanked = Rc::new(foreign::blanked(line));
        *last = Some((start, Rc::clone(&blanked)));
        blanked
    }

    /// Returns the journal entry of a line.
    fn entry(&self, start: usize) -> Option<&'c EntryOrigin> {
        let entries = self.entries?;
        let after = entries.partition_point(|entry| entry.start <= start);
        entries.get(after.checked_sub(1)?)
    }

    /// Returns the scanned part of a line, without its line end.
    fn line(&self, start: usize, end: usize) -> &'c [u8] {
        let line = &self.bytes[start..end.min(start + MAX_LINE)];
        line.strip_suffix(b"\r").unwrap_or(line)
    }
}
