//! Container logs in the runtimes' format: `2026-01-02T03:04:05.678901234Z stdout F text`.
//!
//! The tag `P` marks a line that continues in the next entry of the same stream.

use std::ops::RangeInclusive;
use std::sync::Arc;

use memchr::memchr;

use crate::entries::{Ending, Entry, EntryStream};
use crate::hit::{Counts, Length, What, write_withheld};
use crate::runs::leading;
use crate::scan::Engine;
use crate::stream::{HOLD_MAX, Options};

/// Length of a time, from seconds without a fraction to nanoseconds with an offset.
const TIME_LEN: RangeInclusive<usize> = 20..=35;

/// `P:` and a reserve for future tags.
const TAG_MAX: usize = 8;

pub(crate) struct CriStream {
    entries: EntryStream,
    length: Length,
    line: Vec<u8>,
    /// Whether the rest of a line is skipped because the line is too long.
    skipping: bool,
}

// === impl CriStream ===

impl CriStream {
    pub(crate) fn new(engine: Arc<Engine>, options: Options) -> Self {
        Self {
            entries: EntryStream::new(engine, options),
            length: options.length,
            line: Vec::new(),
            skipping: false,
        }
    }

    pub(crate) fn counts(&mut self) -> &mut Counts {
        self.entries.counts()
    }

    pub(crate) fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            let feed = memchr(b'\n', bytes);
            let (now, later) = bytes.split_at(feed.map_or(bytes.len(), |feed| feed + 1));
            bytes = later;
            if feed.is_some() && self.line.is_empty() && !self.skipping && now.len() <= HOLD_MAX {
                // A complete line, the usual case.
                let (entry, ending) = parse(now);
                self.entries.push_with(&entry, ending, out);
                continue;
            }
            for piece in now.chunks(HOLD_MAX) {
                self.take(piece, out);
            }
            if feed.is_some() {
                self.end_line(out);
            }
        }
    }

    pub(crate) fn pass_over(&mut self, out: &mut Vec<u8>) {
        self.end_line(out);
        self.entries.pass_over(out);
        // The next bytes may be the rest of a line.
        self.skipping = true;
    }

    pub(crate) fn finish(mut self, out: &mut Vec<u8>) -> Counts {
        self.end_line(out);
        self.entries.finish(out)
    }

    /// Appends to the line, or skips the rest of a line that is too long.
    fn take(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        if !self.skipping && self.line.len() + piece.len() <= HOLD_MAX {
            self.line.extend_from_slice(piece);
            return;
        }
        if !self.skipping {
            self.skipping = true;
            self.entries.flush(out);
            self.entries.counts().note(&What::Withheld("line"));
            let held = std::mem::take(&mut self.line);
            match self.length {
                Length::Free => write_withheld("line", out),
                Length::Same => out.resize(out.len() + held.len(), b'*'),
            }
        }
        let content = piece.strip_suffix(b"\n").unwrap_or(piece);
        if self.length == Length::Same {
            out.resize(out.len() + content.len(), b'*');
        }
        out.extend_from_slice(&piece[content.len()..]);
    }

    fn end_line(&mut self, out: &mut Vec<u8>) {
        if !std::mem::take(&mut self.skipping) && !self.line.is_empty() {
            let line = std::mem::take(&mut self.line);
            let (entry, ending) = parse(&line);
            self.entries.push_with(&entry, ending, out);
            self.line = line;
        }
        self.line.clear();
    }
}

fn parse(line: &[u8]) -> (Entry<'_>, Ending) {
    let text = line.strip_suffix(b"\n").unwrap_or(line);
    let after = &line[text.len()..];
    match frame(text) {
        Some(frame) => {
            let (before, text) = text.split_at(frame.len);
            let ending = if frame.tag.starts_with(b"P") { Ending::Partial } else { Ending::Line };
            (Entry { unit: frame.stream, before, text, after }, ending)
        }
        // Not a line of this format: treated as text.
        None => (Entry { unit: b"", before: b"", text, after }, Ending::Unknown),
    }
}

/// The prefix before the text of a line.
struct Frame<'l> {
    stream: &'l [u8],
    tag: &'l [u8],
    /// Length up to the text.
    len: usize,
}

fn frame(line: &[u8]) -> Option<Frame<'_>> {
    let time = leading(line, is_in_time);
    let stream = line.get(time + 1..time + 7)?;
    let behind = &line[time + 7..];
    let is_frame = line[time] == b' ' && TIME_LEN.contains(&time) && matches!(stream, b"stdout" | b"stderr");
    let tag = behind.strip_prefix(b" ").filter(|_| is_frame)?;
    let tag = &tag[..tag.iter().take(TAG_MAX + 1).position(|byte| *byte == b' ')?];
    is_tag(tag).then(|| Frame { stream, tag, len: time + 7 + 1 + tag.len() + 1 })
}

#[expect(
    clippy::needless_bitwise_bool,
    reason = "without branches the compiler can look at sixteen bytes at once"
)]
fn is_in_time(byte: u8) -> bool {
    // From plus to colon: all characters except comma and slash.
    (byte.wrapping_sub(b'+') < 16) & (byte != b',') & (byte != b'/') | (byte == b'T') | (byte == b'Z')
}

fn is_tag(word: &[u8]) -> bool {
    matches!(word, [b'F' | b'P'] | [b'F' | b'P', b':', ..]) && word.len() <= TAG_MAX
}
