//! Searches text as its readers see it: without frames around its lines, and with its notations resolved.

use memchr::{memchr, memchr_iter, memrchr};

use crate::arguments;
use crate::block::{Certificates, Context};
use crate::frame::{Frame, LineFrames, Prefixes};
use crate::hit::{self, Hit, What};
use crate::mapped::Mapped;
use crate::scan::{Engine, Entropy, Lines, Scan, line_around};
use crate::views::{self, OnTerminal};

/// Maximum depth of nested frames: a logger's inside a driver's inside a reader's.
const FRAMES_MAX: u32 = 4;

/// Texts in different frames that may be open at the same time.
const OPEN_FRAMES_MAX: usize = 16;

/// Number of NUL bytes that are checked to detect UTF-16.
const NULS_MAX: usize = 4096;

/// A notation of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// A flag in an argument vector.
    Arguments,
    /// Backslash escapes.
    Escapes,
    /// Control characters in syslog's octal notation.
    Octal,
    /// The strings of a single-line array, as lines.
    Elements,
    /// Terminal escapes in the printable form of syslog or `cat -v`.
    Terminal,
    /// HTML and XML.
    Entities,
    QuotedPrintable,
    /// Doubled quotes, as in CSV.
    DoubledQuotes,
    /// Bytes as an array of numbers.
    Numbers,
}

/// The notations in which each line of a text is searched.
#[derive(Default)]
pub(crate) struct Views {
    wanted: Vec<(View, usize)>,
    joined: Vec<usize>,
    /// The last line that was examined for escapes, and whether it contains any.
    escaped: Option<(usize, bool)>,
}

/// Frames that hide the start of a construct, with the line of that start.
#[derive(Default)]
pub(crate) struct Framed {
    pub(crate) starts: Vec<(Frame, usize)>,
    /// The frames of the last line.
    line: Option<LineFrames>,
}

// === impl Views ===

impl Views {
    pub(crate) fn want(&mut self, view: View, line: usize) {
        if !self
            .wanted
            .iter()
            .rev()
            .take_while(|(_, start)| *start == line)
            .any(|(wanted, _)| *wanted == view)
        {
            self.wanted.push((view, line));
        }
    }

    pub(crate) fn want_joined(&mut self, line: usize) {
        self.joined.push(line);
    }

    /// Returns whether a line contains escaped line ends or quotes.
    pub(crate) fn has_escapes(&mut self, text: &[u8], line: (usize, usize)) -> bool {
        if let Some((start, has)) = self.escaped
            && start == line.0
        {
            return has;
        }
        let has = memchr_iter(b'\\', &text[line.0..line.1])
            .any(|at| matches!(text.get(line.0 + at + 1), Some(b'n' | b't' | b'"')));
        self.escaped = Some((line.0, has));
        has
    }
}

// === impl Framed ===

impl Framed {
    /// Records a construct that starts at `at` in a line.
    ///
    /// Returns whether both this line and the next have a frame.
    pub(crate) fn add(&mut self, text: &[u8], line: (usize, usize), at: usize, prefixes: &Prefixes) -> bool {
        let next = text.get(line.1 + 1..).filter(|rest| !rest.is_empty()).map(first_line);
        let frames = self.frames_of(line);
        let Some((frame, is_shared)) = frames.frame(&text[line.0..line.1], at - line.0, next, prefixes)
        else {
            return false;
        };
        self.begin(frame, line.0);
        is_shared
    }

    /// Returns the length of the known prefix of a line before `at`.
    pub(crate) fn prefix_before(
        &mut self,
        text: &[u8],
        line: (usize, usize),
        at: usize,
        prefixes: &Prefixes,
    ) -> usize {
        self.frames_of(line).prefix_before(&text[line.0..line.1], at - line.0, prefixes)
    }

    fn frames_of(&mut self, line: (usize, usize)) -> &mut LineFrames {
        let known = self.line.take().filter(|known| known.start == line.0);
        self.line.insert(known.unwrap_or_else(|| LineFrames::new(line.0)))
    }

    /// Records that the text in a frame is searched from this line.
    pub(crate) fn begin(&mut self, frame: Frame, line: usize) {
        if let Some((_, start)) = self.starts.iter_mut().find(|(known, _)| *known == frame) {
            *start = line.min(*start);
        } else if self.starts.len() < OPEN_FRAMES_MAX {
            self.starts.push((frame, line));
        }
    }

    /// Searches all frames from the start: a secret may precede the line that identifies it.
    pub(crate) fn widen(&mut self) {
        self.starts.iter_mut().for_each(|(_, start)| *start = 0);
    }
}

// === impl View ===

impl View {
    /// Resolves the notation from `start`. Offsets refer to the complete text.
    pub(crate) fn resolve(self, text: &[u8], start: usize) -> Option<Mapped> {
        let mapped = match self {
            Self::Arguments => arguments::arguments(&text[start..]),
            Self::Escapes => views::escapes(&text[start..]),
            Self::Octal => views::octal(&text[start..]),
            Self::Elements => views::elements(&text[start..]),
            // The array of numbers itself contains no text.
            Self::Terminal => views::on_terminal(&text[start..]).map(|view| view.shown),
            Self::Entities => views::entities(&text[start..]),
            Self::QuotedPrintable => views::quoted_printable(&text[start..]),
            Self::DoubledQuotes => views::doubled_quotes(&text[start..]),
            Self::Numbers => views::numbers(&text[start..]),
        };
        mapped.map(|mapped| mapped.shifted(start))
    }

    /// Returns whether the lines of a text in this notation remain lines.
    pub(crate) fn keeps_lines(self) -> bool {
        matches!(self, Self::Terminal | Self::Entities | Self::DoubledQuotes | Self::QuotedPrintable)
    }
}

// === impl Engine ===

impl Engine {
    /// Searches a text as a terminal would display it, and the contents of its escapes separately.
    #[cold]
    pub(crate) fn find_behind_escapes(
        &self,
        text: &[u8],
        context: &mut Context,
        scan: &mut Scan,
    ) -> Vec<Hit> {
        let Some(OnTerminal { shown, hidden }) = views::on_terminal(text) else {
            return self.find_plain(text, context, scan);
        };
        let mut hits = self.find_in(&shown, context, scan);
        if !hidden.text.is_empty() {
            let lines = std::mem::replace(&mut scan.lines, Lines::Apart);
            let found = self.find_in(&hidden, &mut Context::new(context.certificates), scan);
            scan.lines = lines;
            hits.extend(found.into_iter().filter(|hit| hit.start < hit.end));
            hit::merge(&mut hits);
        }
        hits
    }

    /// Searches a text as UTF-16, even if only a part of it is UTF-16.
    #[cold]
    pub(crate) fn find_wide(&self, text: &[u8], context: &mut Context, scan: &mut Scan, hits: &mut Vec<Hit>) {
        let first = memchr_iter(0, text).take(NULS_MAX).find(|nul| views::is_wide(text, *nul));
        let is_open = context.wide.is_some();
        if first.is_none() && !is_open {
            // In `/proc`, NUL bytes separate the words of a command line and of an environment.
            let words: Vec<u8> = text.iter().map(|byte| if *byte == 0 { b' ' } else { *byte }).collect();
            hits.extend(quietly(scan, |scan| {
                self.find_plain(&words, &mut Context::new(context.certificates), scan)
            }));
            hit::merge(hits);
            return;
        }
        let Some(first) = first.or_else(|| memchr(0, text).filter(|_| is_open)) else { return };
        let mapped = views::wide(text, first);
        let mut inner =
            context.wide.take().map_or_else(|| Context::new(context.certificates), |inner| *inner);
        let found = quietly(scan, |scan| self.find_in(&mapped, &mut inner, scan));
        hits.extend(found);
        context.wide = inner.is_open_anywhere().then(|| Box::new(inner));
        hit::merge(hits);
    }

    /// Searches a decoded text and maps the hits back to the original.
    fn find_in(&self, mapped: &Mapped, context: &mut Context, scan: &mut Scan) -> Vec<Hit> {
        let (suspicious, opens) = (scan.suspicious.len(), scan.opens.len());
        let mut hits = self.find_plain(&mapped.text, context, scan);
        for hit in &mut hits {
            (hit.start, hit.end) = mapped.range(hit.start, hit.end);
        }
        for at in scan.suspicious[suspicious..].iter_mut().chain(&mut scan.opens[opens..]) {
            *at = mapped.origin(*at);
        }
        hits
    }

    /// Searches the texts of lines without their common frame.
    pub(crate) fn find_in_frames(
        &self,
        text: &[u8],
        framed: &Framed,
        context: &mut Context,
        scan: &mut Scan,
        hits: &mut Vec<Hit>,
    ) {
        if scan.frames >= FRAMES_MAX {
            return;
        }
        let open = std::mem::take(&mut context.framed);
        let is_open = |frame: &Frame| open.iter().any(|(known, _)| known == frame);
        let new = framed.starts.iter().filter(|(frame, _)| !is_open(frame));
        let certificates = context.certificates;
        let new: Vec<_> =
            new.map(|(frame, start)| (frame.clone(), Context::new(certificates), *start)).collect();
        let open = open.into_iter().map(|(frame, inner)| (frame, inner, 0));
        for (frame, mut inner, start) in open.chain(new) {
            if scan.depth > 0 && scan.nested.is_exhausted() {
                return;
            }
            let mapped = frame.view(text, start);
            scan.frames += 1;
            let found = quietly(scan, |scan| self.find_in_frame(&mapped.text, &mut inner, scan));
            scan.frames -= 1;
            match found {
                Some(found) => place_in_frames(text, &mapped, &found, hits),
                None if scan.depth == 0 => withhold_changed(text, &mapped, hits),
                None => {}
            }
            if inner.is_open_anywhere() && context.framed.len() < OPEN_FRAMES_MAX {
                context.framed.push((frame, inner));
            }
        }
    }

    /// Searches lines in the notations that they use.
    pub(crate) fn find_in_views(
        &self,
        text: &[u8],
        views: &Views,
        certificates: Certificates,
        scan: &mut Scan,
        hits: &mut Vec<Hit>,
    ) {
        for (view, start) in &views.wanted {
            if scan.depth > 0 && scan.nested.is_exhausted() {
                return;
            }
            let line = line_around(text, *start);
            if let Some(mapped) = view.resolve(&text[..line.1], line.0) {
                self.find_mapped(&mapped, certificates, scan, hits);
            }
        }
        let mut joined_until = 0;
        for start in &views.joined {
            if *start < joined_until {
                continue;
            }
            if let Some((mapped, (_, end))) = views::joined(text, line_around(text, *start)) {
                joined_until = end;
                if let Some(found) = self.find_within(*start, &mapped.text, certificates, scan) {
                    place_in_frames(text, &mapped, &found, hits);
                } else {
                    let what = What::Withheld("encoded");
                    hits.push(Hit { start: *start, end, what });
                }
            }
        }
    }

    pub(crate) fn find_percent_encoded(
        &self,
        text: &[u8],
        certificates: Certificates,
        scan: &mut Scan,
        hits: &mut Vec<Hit>,
    ) {
        let mut done = 0;
        for at in memchr_iter(b'%', text) {
            let is_escape = matches!(text[at..], [_, high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit());
            if at < done || !is_escape {
                continue;
            }
            let line = line_around(text, at);
            done = line.1;
            let (start, end) = around_escapes(text, line, at);
            let word = &text[start..end];
            for mapped in [views::percent(word), views::form(word)].into_iter().flatten() {
                self.find_mapped(&mapped.shifted(start), certificates, scan, hits);
            }
        }
    }

    /// Searches a line with its escapes resolved and maps the hits back to the original line.
    fn find_mapped(&self, mapped: &Mapped, certificates: Certificates, scan: &mut Scan, hits: &mut Vec<Hit>) {
        let Some(found) = self.find_within(mapped.origin(0), &mapped.text, certificates, scan) else {
            let (start, end) = mapped.range(0, mapped.text.len());
            hits.push(Hit { start, end, what: What::Withheld("encoded") });
            return;
        };
        hits.extend(found.into_iter().filter(|hit| hit.start < hit.end).map(|hit| {
            let (start, end) = mapped.range(hit.start, hit.end);
            Hit { start, end, what: hit.what }
        }));
    }
}

/// Searches without reporting suspicious values: the same text was already searched in its original form.
fn quietly<T>(scan: &mut Scan, search: impl FnOnce(&mut Scan) -> T) -> T {
    let entropy = std::mem::replace(&mut scan.entropy, Entropy::Unwanted);
    let found = search(scan);
    scan.entropy = entropy;
    found
}

/// Maps hits in the text of frames back to the original lines.
///
/// A hit that spans several lines gets its marker in the first one, and the line ends remain.
fn place_in_frames(text: &[u8], mapped: &Mapped, found: &[Hit], hits: &mut Vec<Hit>) {
    for hit in found {
        // A marker between lines is not possible between frames.
        let mut what = match hit.what.clone() {
            What::Insert(kind, tag) => What::Mark(kind, tag),
            other => other,
        };
        if hit.start == hit.end {
            let at = mapped.origin(hit.start).min(text.len());
            hits.push(Hit { start: at, end: at, what });
            continue;
        }
        for (start, mut end) in mapped.parts(hit.start, hit.end) {
            while let Some(rest) = without_line_end(&text[start..end]) {
                end = start + rest.len();
            }
            if start < end {
                hits.push(Hit { start, end, what: std::mem::replace(&mut what, What::Drop) });
            }
        }
    }
}

/// Withholds the lines changed by a view that was not searched.
fn withhold_changed(text: &[u8], mapped: &Mapped, hits: &mut Vec<Hit>) {
    let mut start = 0;
    while start < text.len() {
        let end = memchr(b'\n', &text[start..]).map_or(text.len(), |len| start + len);
        if start < end && mapped.changes(start, end) {
            hits.push(Hit { start, end, what: What::Withheld("encoded") });
        }
        start = end + 1;
    }
}

/// Returns a text without its final line end, which may be escaped.
fn without_line_end(text: &[u8]) -> Option<&[u8]> {
    [&b"\n"[..], b"\r", b"\\n", b"\\r"].iter().find_map(|end| text.strip_suffix(*end))
}

fn first_line(text: &[u8]) -> &[u8] {
    memchr(b'\n', text).map_or(text, |feed| &text[..feed])
}

/// Returns the range that may belong to a secret with percent-encoded bytes: the words from the first such
/// byte (at `first`) to the last one, and the adjacent words.
fn around_escapes(text: &[u8], line: (usize, usize), first: usize) -> (usize, usize) {
    const REACH: usize = 64;
    let last = memrchr(b'%', &text[first..line.1]).map_or(first, |len| first + len);
    let mut start = first.saturating_sub(REACH).max(line.0);
    while start > line.0 && !text[start - 1].is_ascii_whitespace() {
        start -= 1;
    }
    let mut end = (last + REACH).min(line.1);
    while end < line.1 && !text[end].is_ascii_whitespace() {
        end += 1;
    }
    (start, end)
}
