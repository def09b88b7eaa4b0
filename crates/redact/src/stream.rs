use std::fmt;
use std::sync::Arc;

use memchr::{memchr, memchr_iter, memmem, memrchr};

use crate::block::{Certificates, Context};
use crate::cri::CriStream;
use crate::decode;
use crate::frame;
use crate::gap::{self, Gap};
use crate::hit::{self, Counts, Hit, Length, Style, What};
use crate::journal::JournalStream;
use crate::scan::{Engine, Extent, Scan};

/// Maximum number of buffered bytes. A longer line or wrapped Base64 cannot be searched completely and is
/// withheld. Twice the line limit of journald and container runtimes, and small enough for the second-level
/// cache.
pub const HOLD_MAX: usize = 128 << 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub format: Format,
    pub length: Length,
    pub names: Names,
}

/// Framing of the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Lines of text, or similar data.
    #[default]
    Lines,
    /// Container logs in the runtimes' format: `time stream tag text`, with long lines in parts.
    Cri,
    /// `journalctl -o export`. Replacements always have the [same length](Length::Same).
    JournalExport,
}

/// Treatment of addresses and host names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    #[default]
    Keep,
    /// Consistent pseudonyms for IP and hardware addresses and the given host names.
    Pseudonyms,
}

/// A byte stream being redacted. The output does not depend on how the input is split.
pub struct Stream {
    inner: Inner,
}

enum Inner {
    Lines(LineStream),
    Cri(CriStream),
    Journal(JournalStream),
}

pub(crate) struct LineStream {
    engine: Arc<Engine>,
    options: Options,
    held: Vec<u8>,
    context: Context,
    skipping: Option<Skipping>,
    /// The gap before this text, and the incomplete first line after it.
    gap: Option<Behind>,
    lines: u64,
    counts: Counts,
}

/// State after a gap.
struct Behind {
    gap: Gap,
    line: Vec<u8>,
    /// Whether the start of the line is missing, before the gap.
    is_cut: bool,
    /// Whether the last line was withheld and has its marker.
    is_marked: bool,
}

/// Data that is omitted because it is too long.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Skipping {
    Line,
    /// Wrapped Base64.
    Wrapped,
}

/// Bytes of an object that are buffered until the text after its data is known.
const OBJECT_MAX: usize = 16 << 10;

/// Bytes of wrapped Base64 that are searched again with the following lines.
const OVERLAP: usize = 32 << 10;

/// Maximum lines and bytes of a list that are buffered: commands are shorter.
const LIST_LINES_MAX: usize = 32;
const LIST_MAX: usize = 8 << 10;

enum More {
    May,
    No,
}

// === impl Stream ===

impl Stream {
    pub(crate) fn new(engine: Arc<Engine>, options: Options) -> Self {
        let inner = match options.format {
            Format::Lines => Inner::Lines(LineStream::new(engine, options)),
            Format::Cri => Inner::Cri(CriStream::new(engine, options)),
            Format::JournalExport => Inner::Journal(JournalStream::new(engine, options)),
        };
        Self { inner }
    }

    /// Adds bytes and appends the decided output to `out`.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let before = out.len();
        let counts = match &mut self.inner {
            Inner::Lines(stream) => {
                stream.push(bytes, out);
                &mut stream.counts
            }
            Inner::Cri(stream) => {
                stream.push(bytes, out);
                stream.counts()
            }
            Inner::Journal(stream) => {
                stream.push(bytes, out);
                stream.counts()
            }
        };
        counts.bytes_in += bytes.len() as u64;
        counts.bytes_out += (out.len() - before) as u64;
    }

    /// Records that unsearched text is omitted here.
    ///
    /// The following text may belong to a secret that started in the gap, so it is withheld up to a line that
    /// cannot.
    pub fn pass_over(&mut self, out: &mut Vec<u8>) {
        let before = out.len();
        let counts = match &mut self.inner {
            Inner::Lines(stream) => {
                stream.pass_over(out);
                &mut stream.counts
            }
            Inner::Cri(stream) => {
                stream.pass_over(out);
                stream.counts()
            }
            Inner::Journal(stream) => {
                stream.pass_over(out);
                stream.counts()
            }
        };
        counts.bytes_out += (out.len() - before) as u64;
    }

    /// Appends the remaining output and returns the counts.
    pub fn finish(self, out: &mut Vec<u8>) -> Counts {
        let before = out.len();
        let mut counts = match self.inner {
            Inner::Lines(stream) => stream.finish(out),
            Inner::Cri(stream) => stream.finish(out),
            Inner::Journal(stream) => stream.finish(out),
        };
        counts.bytes_out += (out.len() - before) as u64;
        counts
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}

// === impl Options ===

impl Options {
    pub(crate) fn certificates(self) -> Certificates {
        match self.length {
            Length::Free => Certificates::Facts,
            Length::Same => Certificates::Keep,
        }
    }

    pub(crate) fn extent(self) -> Extent {
        match self.names {
            Names::Keep => Extent::Secrets,
            Names::Pseudonyms => Extent::SecretsAndIdentities,
        }
    }
}

// === impl LineStream ===

impl LineStream {
    fn new(engine: Arc<Engine>, options: Options) -> Self {
        Self {
            engine,
            options,
            held: Vec::with_capacity(HOLD_MAX),
            context: Context::new(options.certificates()),
            skipping: None,
            gap: None,
            lines: 0,
            counts: Counts::default(),
        }
    }

    fn push(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        let Some(mut behind) = self.gap.take() else { return self.take(bytes, out) };
        let mut rest = bytes;
        while !rest.is_empty() {
            let feed = memchr(b'\n', rest);
            let (now, later) = rest.split_at(feed.map_or(rest.len(), |feed| feed + 1));
            rest = later;
            behind.line.extend_from_slice(now);
            if feed.is_some() || behind.line.len() > HOLD_MAX {
                self.admit(&mut behind, out);
            }
        }
        self.gap = Some(behind);
    }

    /// Releases a line after a gap, or replaces it with a marker.
    fn admit(&mut self, behind: &mut Behind, out: &mut Vec<u8>) {
        let line = std::mem::take(&mut behind.line);
        let is_cut = std::mem::replace(&mut behind.is_cut, !line.ends_with(b"\n"));
        if !is_cut && behind.gap.admits(line.strip_suffix(b"\n").unwrap_or(&line)) {
            behind.is_marked = false;
            self.take(&line, out);
        } else if self.options.length == Length::Same {
            let stars: Vec<u8> = line.iter().map(|byte| if *byte == b'\n' { b'\n' } else { b'*' }).collect();
            self.take(&stars, out);
            self.counts.note(&What::Withheld(gap::MARKER));
        } else if !std::mem::replace(&mut behind.is_marked, true) {
            let mut marker = Vec::new();
            hit::write_withheld(gap::MARKER, &mut marker);
            marker.push(b'\n');
            self.take(&marker, out);
            self.counts.note(&What::Withheld(gap::MARKER));
        }
    }

    fn pass_over(&mut self, out: &mut Vec<u8>) {
        self.end(out);
        self.context = Context::new(self.options.certificates());
        let gap = Gap::new(&self.engine.rules.prefixes);
        self.gap = Some(Behind { gap, line: Vec::new(), is_cut: true, is_marked: false });
    }

    fn take(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        // Processes only when exactly `HOLD_MAX` bytes are buffered, so that the result does not depend on
        // the input's splits.
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(HOLD_MAX - self.held.len()));
            self.held.extend_from_slice(now);
            bytes = later;
            if self.held.len() == HOLD_MAX {
                self.work(&More::May, out);
            }
        }
    }

    fn finish(mut self, out: &mut Vec<u8>) -> Counts {
        self.end(out);
        self.counts
    }

    /// Decides all buffered bytes.
    fn end(&mut self, out: &mut Vec<u8>) {
        if let Some(mut behind) = self.gap.take()
            && !behind.line.is_empty()
        {
            self.admit(&mut behind, out);
        }
        self.work(&More::No, out);
        self.skipping = None;
        if let Some(what) = self.context.finish() {
            let end = [Hit { start: 0, end: 0, what }];
            hit::write_without(b"", &end, self.style(), &mut self.counts, out);
        }
    }

    fn style(&self) -> Style {
        Style { length: self.options.length, after_insert: b'\n' }
    }

    fn work(&mut self, more: &More, out: &mut Vec<u8>) {
        let mut start = 0;
        if let Some(skipping) = self.skipping {
            start = self.skip(skipping, out);
        }
        let held = &self.held[start..];
        let end = match more {
            More::No => held.len(),
            More::May => {
                let lines = memrchr(b'\n', held).map_or(0, |feed| feed + 1);
                match start_of_open(&held[..lines]) {
                    0 => start_of_continued(&held[..lines]),
                    start => start,
                }
            }
        };
        if end > 0 {
            let text = &held[..end];
            let mut scan = Scan::with_entropy(self.options.extent());
            let hits = self.engine.find(text, &mut self.context, &mut scan);
            let style = Style { length: self.options.length, after_insert: b'\n' };
            hit::write_without(text, &hits, style, &mut self.counts, out);
            for at in scan
                .suspicious
                .iter()
                .copied()
                .filter(|at| !hits.iter().any(|hit| hit.start <= *at && *at < hit.end))
            {
                let line = self.lines + memchr_iter(b'\n', &text[..at]).count() as u64 + 1;
                self.counts.note_suspicious(line);
            }
            self.lines += memchr_iter(b'\n', text).count() as u64;
        } else if let Some(end) = self.end_of_harmless(held) {
            // Continuing Base64 lines: the following text is searched together with their end.
            out.extend_from_slice(&held[..end]);
            self.lines += memchr_iter(b'\n', &held[..end]).count() as u64;
            self.held.drain(..start + end);
            return;
        } else if start == 0 && held.len() == HOLD_MAX {
            // A single construct fills the buffer.
            let skipping = if memchr(b'\n', held).is_some() { Skipping::Wrapped } else { Skipping::Line };
            self.skipping = Some(skipping);
            let what = What::Withheld(if skipping == Skipping::Line { "line" } else { "encoded" });
            self.counts.note(&what);
            if self.options.length == Length::Free {
                hit::write_withheld(if skipping == Skipping::Line { "line" } else { "encoded" }, out);
            }
            start = self.skip(skipping, out);
            if start == 0 {
                // A construct that fills the buffer may still end now, seen from its start. One line is
                // omitted to guarantee progress for any input.
                start = memchr(b'\n', &self.held).map_or(self.held.len(), |feed| feed + 1);
                self.leave_out(start, out);
            }
            self.held.drain(..start);
            return;
        }
        self.held.drain(..start + end);
    }

    /// Returns how many bytes of wrapped Base64 that fills the buffer can be released.
    ///
    /// They contain no secret, and a secret that continues later starts in the remaining part.
    fn end_of_harmless(&self, held: &[u8]) -> Option<usize> {
        if held.len() < HOLD_MAX || self.context.is_open_anywhere() {
            return None;
        }
        let lines = memrchr(b'\n', held).map_or(0, |feed| feed + 1);
        let text = &held[..lines];
        let end = decode::end_of_text(text, lines.checked_sub(OVERLAP)?)?;
        let mut context = Context::new(self.options.certificates());
        let hits = self.engine.find(text, &mut context, &mut Scan::new(self.options.extent()));
        (hits.is_empty() && !context.is_open_anywhere()).then_some(end)
    }

    /// Omits buffered bytes up to the end of the skipped data, and returns its offset.
    fn skip(&mut self, skipping: Skipping, out: &mut Vec<u8>) -> usize {
        let end = match skipping {
            Skipping::Line => memchr(b'\n', &self.held),
            Skipping::Wrapped => end_of_wrapped(&self.held),
        };
        let skipped = end.unwrap_or(self.held.len());
        self.leave_out(skipped, out);
        if end.is_some() {
            self.skipping = None;
        }
        skipped
    }

    /// Counts buffered bytes that are omitted.
    fn leave_out(&mut self, count: usize, out: &mut Vec<u8>) {
        if self.options.length == Length::Same {
            out.extend(self.held[..count].iter().map(|byte| if *byte == b'\n' { b'\n' } else { b'*' }));
        }
        self.lines += memchr_iter(b'\n', &self.held[..count]).count() as u64;
    }
}

/// Returns the offset of the last lines of `text` that must be searched together with the following text: the
/// start of an object, and the last line, because the line below it is not known yet.
fn start_of_open(text: &[u8]) -> usize {
    let last = memrchr(b'\n', text).and_then(|end| memrchr(b'\n', &text[..end])).map_or(0, |feed| feed + 1);
    let start = start_of_continued(&text[..last]);
    start_of_object(&text[..start]).unwrap_or(start)
}

/// Returns the offset of the last lines of `text` that may continue and must be searched with the following
/// text: Base64, commands and other texts.
fn start_of_continued(text: &[u8]) -> usize {
    let mut start = text.len();
    // The last line of Base64 may be short, and the last line of a key follows it.
    let mut last_lines = text.strip_suffix(b"\n").unwrap_or(text).rsplitn(3, |byte| *byte == b'\n');
    if let (Some(last), Some(above)) = (last_lines.next(), last_lines.next())
        && last.rsplit(u8::is_ascii_whitespace).next().is_some_and(decode::is_last_line)
        && goes_on(above)
    {
        start -= last.len() + usize::from(text.ends_with(b"\n"));
    }
    while start > 0 {
        let line_start = memrchr(b'\n', &text[..start - 1]).map_or(0, |feed| feed + 1);
        if !goes_on(&text[line_start..start - 1]) {
            break;
        }
        start = line_start;
    }
    start_of_list(&text[..start])
}

/// Returns the offset of the list at the end of `text`: its items may be the words of a command.
fn start_of_list(text: &[u8]) -> usize {
    let mut start = text.len();
    for _ in 0..LIST_LINES_MAX {
        let Some(feed) = start.checked_sub(1) else { break };
        let line_start = memrchr(b'\n', &text[..feed]).map_or(0, |feed| feed + 1);
        if text.len() - line_start > LIST_MAX || !frame::ends_with_item(&text[line_start..feed]) {
            break;
        }
        start = line_start;
    }
    start
}

/// Returns whether the next line may continue this one.
fn goes_on(line: &[u8]) -> bool {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    matches!(line.last(), Some(b'\\' | b'=')) || decode::may_be_wrapped(line) || frame::is_partial(line)
}

/// Returns the offset of an object whose data precedes its kind: its values are recognizable as secrets only
/// after the kind.
fn start_of_object(text: &[u8]) -> Option<usize> {
    let near = text.len().saturating_sub(OBJECT_MAX);
    let starts = [
        &b"data:\n"[..],
        b"data\": {\n",
        b"Data:\n",
        b"Data\": {\n",
        b"kind: Secret\n",
        b"kind\": \"Secret\"",
        b"apiVersion: v1\n",
    ];
    let first = starts.iter().filter_map(|start| memmem::find(&text[near..], start)).min()?;
    memrchr(b'\n', &text[..near + first]).map(|feed| feed + 1)
}

/// Returns the end of wrapped Base64: the line feed before a different line.
fn end_of_wrapped(text: &[u8]) -> Option<usize> {
    let mut start = 0;
    while let Some(len) = memchr(b'\n', &text[start..]) {
        if !decode::is_wrapped_line(&text[start..start + len]) {
            return Some(start.saturating_sub(1));
        }
        start += len + 1;
    }
    None
}
