//! Receiver of the sources' evidence.
//!
//! It redacts everything, omits the middle of long files, and writes to the bundle in parts of bounded size.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use landfall_diagnose::{Fact, Observation};
use landfall_model::bundle::{BundleItem, ItemOutcome};
use landfall_redact::{Counts, Entry, EntryStream, Format, Options, Redactor, Stream};

use super::piece::{Piece, Purpose, Record, Trouble};

/// Size of a part: a file in a bundle stays in memory until its size is known, so longer files become several
/// parts.
const PART: usize = 2 << 20;

/// Bytes by which a part may exceed [`PART`] before it is split.
const STEP: usize = 128 << 10;

/// Maximum size of the kept end of a long file, buffered in memory. The end usually shows why the machine
/// stopped.
const TAIL_MAX: u64 = 2 << 20;

/// Maximum path length in a bundle; longer paths are truncated.
const PATH_MAX: usize = 240;

/// Limits of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) time: Duration,
    /// Bytes of each file before compression.
    pub(super) bytes: u64,
    /// Evidence written before this time is omitted if its age is known.
    pub(super) since: Option<Timestamp>,
}

/// Receives the evidence of one item's source.
pub(super) struct Sink {
    redactor: Redactor,
    pieces: SyncSender<Piece>,
    limits: Limits,
    deadline: Instant,
    purpose: Purpose,
}

/// The framing of a file's content, for the redactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Lines,
    /// Container logs in the runtimes' format.
    Cri,
    /// Entries, written by [`FileSink::entry`].
    Entries,
}

/// Whether the next entry of a unit may continue the last line of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    Line,
    Unknown,
}

/// A file being written to the bundle.
pub(super) struct FileSink<'s> {
    sink: &'s mut Sink,
    path: String,
    source: String,
    started: Instant,
    framing: Framing,
    redaction: Redaction,
    redacted: Vec<u8>,
    counts: Counts,
    shape: Shape,
    body: Body,
    parts: u64,
}

enum Redaction {
    Bytes(Stream),
    Entries(EntryStream),
}

/// Head, and tail if the file is too long.
struct Shape {
    head_left: u64,
    tail_max: usize,
    tail: Vec<u8>,
    left_out: u64,
}

enum Body {
    Plain(Vec<u8>),
    Gzip(Box<GzEncoder<Vec<u8>>>),
}

// === impl Limits ===

impl Limits {
    /// Returns how many bytes from the end of a long file are kept.
    pub(super) fn tail(self) -> u64 {
        (self.bytes / 2).min(TAIL_MAX)
    }

    pub(super) fn head(self) -> u64 {
        self.bytes - self.tail()
    }
}

// === impl Sink ===

impl Sink {
    pub(super) fn new(
        redactor: Redactor,
        pieces: SyncSender<Piece>,
        limits: Limits,
        purpose: Purpose,
    ) -> Self {
        Self { redactor, pieces, limits, deadline: Instant::now() + limits.time, purpose }
    }

    /// Returns whether files and journal entries are passed on unmodified with [`Sink::pass`].
    pub(super) fn is_for_diagnosis(&self) -> bool {
        self.purpose == Purpose::Diagnosis
    }

    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// Passes on a piece for a diagnosis only.
    pub(super) fn pass(&mut self, piece: Piece) {
        if self.is_for_diagnosis() {
            self.send(piece);
        }
    }

    /// Passes on a fact for a diagnosis.
    pub(super) fn observe(&mut self, fact: Option<Fact>) {
        if let Some(kind) = fact {
            self.pass(Piece::Observed(Observation { kind, time: Timestamp::now() }));
        }
    }

    /// Returns the remaining time for an external request.
    ///
    /// It is never zero, which many system calls interpret as no timeout.
    pub(super) fn time_left(&self) -> Result<Duration, Trouble> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(Trouble::TimedOut) } else { Ok(left) }
    }

    pub(super) fn since(&self) -> Option<Timestamp> {
        self.limits.since
    }

    /// Returns the item's deadline.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Collects one file.
    ///
    /// `fill` writes it; on failure, the content written so far is kept unless it is withheld.
    pub(super) fn file(
        &mut self,
        path: &str,
        source: &str,
        framing: Framing,
        fill: impl FnOnce(&mut FileSink<'_>) -> Result<(), Trouble>,
    ) {
        let path = bundle_path(&self.redactor, path);
        let redaction = Redaction::new(&self.redactor, framing);
        let limits = self.limits;
        // The name decides about compression, so that the layout matches what readers expect.
        let body = if Path::new(&path).extension().is_some_and(|extension| extension == "gz") {
            Body::Gzip(Box::new(GzEncoder::new(Vec::new(), Compression::default())))
        } else {
            Body::Plain(Vec::new())
        };
        let mut file = FileSink {
            sink: self,
            path,
            source: source.to_owned(),
            started: Instant::now(),
            framing,
            redaction,
            redacted: Vec::new(),
            counts: Counts::default(),
            shape: Shape {
                head_left: limits.head(),
                tail_max: usize::try_from(limits.tail()).unwrap_or(usize::MAX),
                tail: Vec::new(),
                left_out: 0,
            },
            body,
            parts: 0,
        };
        let result = fill(&mut file);
        file.end(result);
    }

    /// Collects a text generated here. Control characters in foreign parts are escaped.
    pub(super) fn text(&mut self, path: &str, source: &str, text: &str) {
        self.file(path, source, Framing::Lines, |file| file.text(text));
    }

    /// Records an item that is not collected.
    pub(super) fn note(&mut self, path: &str, source: &str, trouble: &Trouble) {
        let item = record(&self.redactor, path, source, trouble);
        self.send(Piece::Record(Record { item, content: None }));
    }

    /// Redacts a text, such as a name chosen by a program.
    pub(super) fn clean(&self, text: &str) -> String {
        clean(&self.redactor, text)
    }

    fn send(&mut self, piece: Piece) {
        let before = Instant::now();
        // The send fails only if the item was aborted; no receiver is left then.
        let _ = self.pieces.send(piece);
        // Blocking in the queue does not count against the source's time.
        self.deadline += before.elapsed();
    }
}

/// Builds the record of an item without a file, with secrets and control characters of foreign texts removed.
pub(super) fn record(redactor: &Redactor, path: &str, source: &str, trouble: &Trouble) -> BundleItem {
    let outcome = clean_outcome(redactor, trouble.outcome());
    BundleItem::without_file(bundle_path(redactor, path), shown(&clean(redactor, source)), outcome)
}

fn clean(redactor: &Redactor, text: &str) -> String {
    let (bytes, counts) = redactor.redact(text.as_bytes(), Options::default());
    if counts.redacted.is_empty() && counts.withheld == 0 {
        return text.to_owned();
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Cleans error texts, because they may quote foreign text.
fn clean_outcome(redactor: &Redactor, outcome: ItemOutcome) -> ItemOutcome {
    match outcome {
        ItemOutcome::Failed { error } => ItemOutcome::Failed { error: shown(&clean(redactor, &error)) },
        other => other,
    }
}

/// Builds a path from a name of the machine, which may contain anything: the result is relative, printable
/// and redacted.
fn bundle_path(redactor: &Redactor, path: &str) -> String {
    let plain = |c: char| if is_hidden(c) || c == '\\' || c == '\u{fffd}' { '_' } else { c };
    let path: String = clean(redactor, path).chars().map(plain).collect();
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "." | ".."));
    let mut path = parts.collect::<Vec<_>>().join("/");
    path.truncate(path.floor_char_boundary(PATH_MAX));
    path
}

// === impl FileSink ===

impl FileSink<'_> {
    pub(super) fn limits(&self) -> Limits {
        self.sink.limits
    }

    pub(super) fn time_left(&self) -> Result<Duration, Trouble> {
        self.sink.time_left()
    }

    pub(super) fn deadline(&self) -> Instant {
        self.sink.deadline
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        self.sink.time_left()?;
        if let Redaction::Bytes(stream) = &mut self.redaction {
            stream.push(bytes, &mut self.redacted);
        }
        self.pass_on();
        Ok(())
    }

    /// Writes a text generated here, with control characters escaped.
    pub(super) fn text(&mut self, text: &str) -> Result<(), Trouble> {
        self.write(shown_lines(text).as_bytes())
    }

    /// Writes `head text` as one line.
    ///
    /// `head` must not contain foreign text; lines of the same `unit` may belong to one secret.
    pub(super) fn entry(&mut self, unit: &[u8], head: &[u8], text: &[u8], ends: Ends) -> Result<(), Trouble> {
        self.sink.time_left()?;
        self.search(unit, head, text, ends);
        self.pass_on();
        Ok(())
    }

    /// Redacts a name chosen by a program.
    pub(super) fn clean(&self, text: &str) -> String {
        self.sink.clean(text)
    }

    /// Records that `bytes` of the file are omitted unsearched.
    ///
    /// Following lines are withheld if they may belong to a secret that started there.
    pub(super) fn pass_over(&mut self, bytes: u64) {
        if let Redaction::Bytes(stream) = &mut self.redaction {
            stream.pass_over(&mut self.redacted);
        }
        self.pass_on();
        self.shape.head_left = 0;
        self.shape.left_out += bytes;
    }

    /// Like [`Self::pass_over`], for the entries before the first one.
    pub(super) fn pass_over_entries(&mut self) {
        if let Redaction::Entries(stream) = &mut self.redaction {
            stream.pass_over(&mut self.redacted);
        }
        self.redacted.clear();
    }

    /// Searches an entry that is not kept, so that a secret that starts in it is recognized in later entries.
    pub(super) fn search_entry(&mut self, unit: &[u8], text: &[u8], ends: Ends) {
        self.search(unit, b"", text, ends);
        self.redacted.clear();
    }

    fn search(&mut self, unit: &[u8], before: &[u8], text: &[u8], ends: Ends) {
        let Redaction::Entries(stream) = &mut self.redaction else { return };
        let entry = Entry { unit, before, text, after: b"\n" };
        match ends {
            Ends::Line => stream.push_line(&entry, &mut self.redacted),
            Ends::Unknown => stream.push(&entry, &mut self.redacted),
        }
    }

    /// Ends the search of entries that are not kept. A unit without entries has no open secret.
    pub(super) fn end_search(&mut self) {
        if let Redaction::Entries(stream) = &mut self.redaction {
            stream.flush(&mut self.redacted);
            stream.end_gap();
        }
        self.redacted.clear();
    }

    /// Ends the current redaction and starts a new one of the same kind.
    fn finish_redaction(&mut self) {
        let next = Redaction::new(&self.sink.redactor, self.framing);
        let counts = match std::mem::replace(&mut self.redaction, next) {
            Redaction::Bytes(stream) => stream.finish(&mut self.redacted),
            Redaction::Entries(stream) => stream.finish(&mut self.redacted),
        };
        for (kind, count) in counts.redacted {
            *self.counts.redacted.entry(kind).or_default() += count;
        }
        self.counts.withheld += counts.withheld;
    }

    /// Moves redacted data into head or tail.
    fn pass_on(&mut self) {
        let redacted = std::mem::take(&mut self.redacted);
        let head = self.shape.take_head(&redacted);
        self.keep(&redacted[..head]);
        self.shape.push_tail(&redacted[head..]);
        self.redacted = redacted;
        self.redacted.clear();
    }

    fn keep(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(STEP));
            self.body.write(now);
            bytes = later;
            if self.body.len() >= PART {
                self.send_part(ItemOutcome::Collected, Last::No);
            }
        }
    }

    fn end(mut self, result: Result<(), Trouble>) {
        let outcome = result.map_or_else(|trouble| trouble.outcome(), |()| ItemOutcome::Collected);
        if matches!(outcome, ItemOutcome::Withheld { .. }) {
            // Discards everything, including parts that looked harmless.
            self.body = Body::Plain(Vec::new());
            self.shape.tail.clear();
        } else {
            self.finish_redaction();
            self.pass_on();
            let tail = self.shape.finish();
            self.keep(&tail);
        }
        self.send_part(outcome, Last::Yes);
    }

    fn send_part(&mut self, outcome: ItemOutcome, last: Last) {
        let (rest, body) = self.body.take(last);
        self.body = rest;
        self.parts += 1;
        let nothing = body.is_empty() && (self.parts > 1 || outcome != ItemOutcome::Collected);
        let mut item = BundleItem {
            path: part_path(&self.path, self.parts),
            source: shown(&self.sink.clean(&self.source)),
            outcome: clean_outcome(&self.sink.redactor, outcome),
            duration_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            bytes: body.len() as u64,
            truncated: 0,
            sha256: None,
            redactions: BTreeMap::new(),
        };
        if last == Last::Yes {
            item.truncated = self.shape.left_out;
            item.redactions =
                self.counts.redacted.iter().map(|(kind, count)| (kind.to_string(), *count)).collect();
            if self.counts.withheld > 0 {
                item.redactions.insert("WITHHELD".to_owned(), self.counts.withheld);
            }
        }
        self.sink.send(Piece::Record(Record { item, content: (!nothing).then_some(body) }));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Yes,
    No,
}

/// Returns `kubelet.log`, `kubelet.part2.log`, …: the extension shows the file type and is kept.
fn part_path(path: &str, part: u64) -> String {
    if part == 1 {
        return path.to_owned();
    }
    let name = path.rfind('/').map_or(0, |slash| slash + 1);
    let dot = path[name..].find('.').map_or(path.len(), |dot| name + dot);
    format!("{}.part{part}{}", &path[..dot], &path[dot..])
}

/// Escapes foreign text for one line: control characters, bidirectional overrides and line feeds become their
/// numbers.
pub(super) fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// Like [`shown`], for a text of several lines.
fn shown_lines(text: &str) -> Cow<'_, str> {
    let is_hidden = |c: char| is_hidden(c) && c != '\n' && c != '\t';
    if !text.contains(is_hidden) {
        return text.into();
    }
    let escaped = |c: char| if is_hidden(c) { c.escape_default().collect() } else { String::from(c) };
    text.chars().map(escaped).collect::<String>().into()
}

fn is_hidden(c: char) -> bool {
    c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

// === impl Redaction ===

impl Redaction {
    fn new(redactor: &Redactor, framing: Framing) -> Self {
        match framing {
            Framing::Lines => Self::Bytes(redactor.stream(Options::default())),
            Framing::Cri => {
                Self::Bytes(redactor.stream(Options { format: Format::Cri, ..Options::default() }))
            }
            Framing::Entries => Self::Entries(redactor.entries(Options::default())),
        }
    }
}

// === impl Shape ===

impl Shape {
    /// Returns how many of these bytes belong to the head.
    fn take_head(&mut self, bytes: &[u8]) -> usize {
        let head = usize::try_from(self.head_left).unwrap_or(usize::MAX).min(bytes.len());
        self.head_left -= head as u64;
        head
    }

    fn push_tail(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        // Halves the number of copies for twice the memory.
        if self.tail.len() > self.tail_max.saturating_mul(2) {
            self.drop_front();
        }
    }

    /// Drops the excess, and the rest of the truncated line.
    fn drop_front(&mut self) {
        let excess = self.tail.len().saturating_sub(self.tail_max);
        if excess == 0 {
            return;
        }
        let line = memchr::memchr(b'\n', &self.tail[excess..]).map_or(excess, |feed| excess + feed + 1);
        self.tail.drain(..line);
        self.left_out += line as u64;
    }

    fn finish(&mut self) -> Vec<u8> {
        self.drop_front();
        let tail = std::mem::take(&mut self.tail);
        if self.left_out == 0 {
            return tail;
        }
        let mut marked = format!("\n[landfall: {} bytes left out here]\n", self.left_out).into_bytes();
        marked.extend_from_slice(&tail);
        marked
    }
}

// === impl Body ===

impl Body {
    fn write(&mut self, bytes: &[u8]) {
        match self {
            Self::Plain(body) => {
                // Reserves exactly the maximum size of a part; doubling would use up to twice as much memory.
                if body.len() + bytes.len() > body.capacity() && body.len() > STEP {
                    body.reserve_exact(PART + STEP - body.len());
                }
                body.extend_from_slice(bytes);
            }
            Self::Gzip(encoder) => {
                // Writing to memory cannot fail.
                let _ = encoder.write_all(bytes);
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Plain(body) => body.len(),
            Self::Gzip(encoder) => encoder.get_ref().len(),
        }
    }

    /// Returns the bytes for the bundle and keeps the rest for the next part. Splits at line ends.
    fn take(&mut self, last: Last) -> (Self, Vec<u8>) {
        match self {
            Self::Plain(body) => {
                let mut now = std::mem::take(body);
                let whole = memchr::memrchr(b'\n', &now).filter(|_| last == Last::No);
                let end = whole.map_or(now.len(), |feed| feed + 1);
                // A long file also fills the next part: reserving its size now avoids growth by doubling.
                let mut rest = Vec::with_capacity(if last == Last::No { PART + STEP } else { 0 });
                rest.extend_from_slice(&now[end..]);
                now.truncate(end);
                (Self::Plain(rest), now)
            }
            Self::Gzip(encoder) => {
                let next = Box::new(GzEncoder::new(Vec::new(), Compression::default()));
                let done = std::mem::replace(encoder, next);
                (std::mem::replace(self, Self::Plain(Vec::new())), done.finish().unwrap_or_default())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn collect(bytes: u64, fill: impl FnOnce(&mut FileSink<'_>) -> Result<(), Trouble>) -> Vec<Record> {
        let redactor = Redactor::builder().build().unwrap();
        let (pieces, received) = mpsc::sync_channel(100);
        let limits = Limits { time: Duration::from_secs(60), bytes, since: None };
        let mut sink = Sink::new(redactor, pieces, limits, Purpose::Bundle);
        sink.file("a/b.log", "test", Framing::Lines, fill);
        drop(sink);
        received.into_iter().filter_map(Piece::into_record).collect()
    }

    fn content(records: &[Record]) -> Vec<u8> {
        records.iter().filter_map(|record| record.content.as_deref()).flatten().copied().collect()
    }

    #[test]
    fn what_is_too_long_loses_its_middle_and_says_so() {
        let text: String = (0..1000).map(|n| format!("line {n}\n")).collect();
        let pieces = collect(1000, |file| file.write(text.as_bytes()));
        let kept = String::from_utf8(content(&pieces)).unwrap();
        assert!(kept.starts_with("line 0\n") && kept.ends_with("line 999\n"), "{kept}");
        let item = &pieces[0].item;
        assert!(kept.contains(&format!("[landfall: {} bytes left out here]\n", item.truncated)), "{kept}");
        let marker = kept.len() - (text.len() - usize::try_from(item.truncated).unwrap());
        assert!(marker < 60, "what is kept and what is left out add up: {marker}");
    }

    #[test]
    fn long_files_come_in_parts_that_add_up() {
        let text = b"I0102 03:04:05.678901 1 kubelet.go:1] a line like any other, one of very many of them\n"
            .repeat(60_000);
        let pieces = collect(100 << 20, |file| text.chunks(7777).try_for_each(|chunk| file.write(chunk)));
        let paths: Vec<&str> = pieces.iter().map(|piece| piece.item.path.as_str()).collect();
        assert_eq!(paths, ["a/b.log", "a/b.part2.log", "a/b.part3.log"]);
        assert_eq!(content(&pieces), text);
        assert!(
            pieces.iter().all(|piece| piece.content.as_ref().unwrap().ends_with(b"\n")),
            "lines are whole"
        );
    }

    #[test]
    fn withheld_means_that_nothing_leaves() {
        let pieces = collect(1000, |file| {
            file.write(b"harmless\n")?;
            Err(Trouble::Withheld("binary".to_owned()))
        });
        assert!(pieces.iter().all(|piece| piece.content.is_none()));
        assert!(matches!(pieces[0].item.outcome, ItemOutcome::Withheld { .. }));
    }

    #[test]
    fn names_become_plain_paths() {
        let redactor = Redactor::builder().build().unwrap();
        assert_eq!(bundle_path(&redactor, "/a/../b/./c\n\x1b[31m.log"), "a/b/c__[31m.log");
        assert!(bundle_path(&redactor, &"ä".repeat(500)).len() <= PATH_MAX);
        assert!(!bundle_path(&redactor, "abcdef.0123456789abcdef.log").contains("0123456789abcdef"));
    }

    #[test]
    fn text_of_ours_shows_what_others_hid_in_it() {
        assert_eq!(shown("a\nb\x1b[2J\u{202e}c ä"), "a\\nb\\u{1b}[2J\\u{202e}c ä");
        assert_eq!(shown_lines("a\tb\nc\r\x07"), "a\tb\nc\\r\\u{7}");
    }
}
