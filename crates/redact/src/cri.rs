//! Container logs as runtimes write them: `2026-01-02T03:04:05.678901234Z stdout F text`, where the tag `P` says that
//! the line goes on in the next one of the same stream.

use std::sync::Arc;

use memchr::memchr;

use crate::entries::{Ending, Entry, EntryStream};
use crate::hit::{Counts, Length, What, write_withheld};
use crate::scan::Engine;
use crate::stream::{HOLD_MAX, Options};

pub(crate) struct CriStream {
    entries: EntryStream,
    length: Length,
    line: Vec<u8>,
    /// The line is too long and is being left out.
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
            for piece in now.chunks(HOLD_MAX) {
                self.take(piece, out);
            }
            if feed.is_some() {
                self.end_line(out);
            }
        }
    }

    pub(crate) fn finish(mut self, out: &mut Vec<u8>) -> Counts {
        self.end_line(out);
        self.entries.finish(out)
    }

    /// Adds to the line, or leaves out the rest of one that is too long.
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
    let mut words = text.splitn(4, |byte| *byte == b' ');
    match (words.next(), words.next(), words.next(), words.next()) {
        (Some(time), Some(stream @ (b"stdout" | b"stderr")), Some(tag), Some(rest))
            if is_time(time) && is_tag(tag) =>
        {
            let (before, text) = text.split_at(text.len() - rest.len());
            let ending = if tag.starts_with(b"P") { Ending::Unknown } else { Ending::Line };
            (Entry { unit: stream, before, text, after }, ending)
        }
        // Not a line of this format: all of it is text.
        _ => (Entry { unit: b"", before: b"", text, after }, Ending::Unknown),
    }
}

fn is_time(word: &[u8]) -> bool {
    (20..=35).contains(&word.len())
        && word.iter().all(|byte| byte.is_ascii_digit() || b"-+:.TZ".contains(byte))
}

fn is_tag(word: &[u8]) -> bool {
    matches!(word, [b'F' | b'P'] | [b'F' | b'P', b':', ..]) && word.len() <= 8
}
