//! `journalctl -o export`: fields as `NAME=value` lines, or as a name, a length and bytes; an empty line ends
//! an entry.
//!
//! All values are searched. The messages of one unit are searched as one stream, because journald splits long
//! lines and programs print keys and configurations line by line. All replacements keep their length, so that
//! the framing stays valid.

use std::ops::Range;
use std::sync::Arc;

use memchr::memchr;

use crate::block::{Certificates, Context};
use crate::entries::{Ending, Entry, EntryStream, same_length};
use crate::frames::FrameField;
use crate::hit::{Counts, Hit, What};
use crate::scan::{Engine, Scan};
use crate::stream::{HOLD_MAX, Options};

/// A larger entry is released in parts.
const ENTRY_MAX: usize = 1 << 20;

/// Maximum length of a field name in journald.
const NAME_MAX: usize = 64;

/// Number of digits in the longest address part: a 128-bit ID.
const ADDRESS_MAX: usize = 32;

/// Size of the length before a binary value.
const LENGTH_LEN: usize = 8;

/// Table of characters allowed in field names: one lookup per byte, because each field starts with them.
const IN_NAME: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        table[byte as usize] = byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        byte += 1;
    }
    table
};

pub(crate) struct JournalStream {
    engine: Arc<Engine>,
    options: Options,
    entries: EntryStream,
    /// The entry so far: complete fields, then a part of a field.
    entry: Vec<u8>,
    fields: Vec<Field>,
    /// Reused buffer for the single-line fields of an entry.
    lines: Vec<FrameField>,
    /// Offset in `entry` of the incomplete field.
    whole: usize,
    skipping: Option<Skipping>,
    counts: Counts,
}

struct Field {
    name: Range<usize>,
    value: Range<usize>,
    is_text: bool,
}

/// The rest of a value that is too long to buffer.
#[derive(Clone, Copy)]
enum Skipping {
    Line,
    Bytes(u64),
}

enum Next {
    Field { field: Field, end: usize },
    EndOfEntry { end: usize },
    TooLong { start: usize, skipping: Skipping },
    Incomplete,
}

// === impl JournalStream ===

impl JournalStream {
    pub(crate) fn new(engine: Arc<Engine>, options: Options) -> Self {
        let options = same_length(options);
        Self {
            entries: EntryStream::new(Arc::clone(&engine), options),
            engine,
            options,
            entry: Vec::new(),
            fields: Vec::new(),
            lines: Vec::new(),
            whole: 0,
            skipping: None,
            counts: Counts::default(),
        }
    }

    pub(crate) fn counts(&mut self) -> &mut Counts {
        &mut self.counts
    }

    pub(crate) fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) {
        while !bytes.is_empty() {
            if let Some(skipping) = self.skipping {
                bytes = self.skip(skipping, bytes, out);
                continue;
            }
            // Small steps: an incomplete field is parsed again in each step, and must not exceed its limit in
            // between.
            let (now, later) = bytes.split_at(bytes.len().min(HOLD_MAX / 2));
            bytes = later;
            self.entry.extend_from_slice(now);
            self.work(out);
        }
    }

    /// Records a gap that ends between two entries.
    pub(crate) fn pass_over(&mut self, out: &mut Vec<u8>) {
        self.release_rest(out);
        self.skipping = None;
        self.entries.pass_over(out);
    }

    pub(crate) fn finish(mut self, out: &mut Vec<u8>) -> Counts {
        self.release_rest(out);
        let messages = self.entries.finish(out);
        for (kind, count) in messages.redacted {
            *self.counts.redacted.entry(kind).or_default() += count;
        }
        self.counts.withheld += messages.withheld;
        self.counts
    }

    /// Passes on the buffered part of the last entry.
    fn release_rest(&mut self, out: &mut Vec<u8>) {
        let rest = self.entry.len() - self.whole;
        if rest > 0 {
            // The stream ends inside a field. A line can still be searched; bytes without their length
            // cannot.
            let line = self.whole..self.entry.len();
            if memchr(b'\n', &self.entry[line.clone()]).is_none() {
                self.fields.push(Field { name: line.start..line.start, value: line, is_text: true });
                self.whole = self.entry.len();
                self.release(out);
            } else {
                let part = self.entry.split_off(self.whole);
                self.release(out);
                self.entries.flush(out);
                self.counts.note(&What::Withheld("field"));
                out.extend(part.iter().map(|byte| if *byte == b'\n' { b'\n' } else { b'*' }));
            }
        } else {
            self.release(out);
        }
    }

    fn work(&mut self, out: &mut Vec<u8>) {
        // Entries are consumed from the front; moving the rest once per step is sufficient.
        let mut taken = 0;
        loop {
            match next(&self.entry[self.whole..]) {
                Next::Incomplete => break,
                Next::Field { field, end } => {
                    let shift = |range: Range<usize>| range.start + self.whole..range.end + self.whole;
                    let field =
                        Field { name: shift(field.name), value: shift(field.value), is_text: field.is_text };
                    self.fields.push(field);
                    self.whole += end;
                }
                Next::EndOfEntry { end } => {
                    self.whole += end;
                    self.release_range(taken, out);
                    taken = self.whole;
                    continue;
                }
                Next::TooLong { start, skipping } => {
                    let part_start = self.whole + start;
                    self.whole = part_start;
                    self.release_range(taken, out);
                    self.entries.flush(out);
                    self.counts.note(&What::Withheld("field"));
                    let rest = self.entry.split_off(part_start);
                    self.entry.clear();
                    self.whole = 0;
                    self.skipping = Some(skipping);
                    let left = self.skip(skipping, &rest, out).to_vec();
                    self.entry = left;
                    taken = 0;
                    if self.skipping.is_some() {
                        break;
                    }
                }
            }
            if self.whole - taken > ENTRY_MAX {
                self.release_range(taken, out);
                taken = self.whole;
            }
        }
        self.entry.drain(..taken);
        self.whole -= taken;
        for field in &mut self.fields {
            field.name = field.name.start - taken..field.name.end - taken;
            field.value = field.value.start - taken..field.value.end - taken;
        }
    }

    /// Writes stars for skipped bytes, keeps the final line feed, and returns the bytes after it.
    fn skip<'b>(&mut self, skipping: Skipping, bytes: &'b [u8], out: &mut Vec<u8>) -> &'b [u8] {
        let feed = match skipping {
            Skipping::Line => memchr(b'\n', bytes),
            Skipping::Bytes(left) => usize::try_from(left).ok().filter(|left| *left < bytes.len()),
        };
        let len = feed.unwrap_or(bytes.len());
        out.resize(out.len() + len, b'*');
        self.skipping = match (feed, skipping) {
            (Some(_), _) => None,
            (None, Skipping::Line) => Some(Skipping::Line),
            (None, Skipping::Bytes(left)) => Some(Skipping::Bytes(left - len as u64)),
        };
        if feed.is_none() {
            return b"";
        }
        out.push(b'\n');
        &bytes[len + 1..]
    }

    fn release(&mut self, out: &mut Vec<u8>) {
        self.release_range(0, out);
        self.entry.drain(..self.whole);
        self.whole = 0;
    }

    /// Passes on the entry that starts at `start` and ends with the last complete field.
    fn release_range(&mut self, start: usize, out: &mut Vec<u8>) {
        let fields = std::mem::take(&mut self.fields);
        let raw = &self.entry[start..self.whole];
        if raw.is_empty() {
            return;
        }
        let (mut unit, mut identifier, mut transport, mut message) = (None, None, None, None);
        let (mut lines, mut hits) = (std::mem::take(&mut self.lines), Vec::new());
        for field in &fields {
            let name = &self.entry[field.name.clone()];
            let said = match name {
                b"_SYSTEMD_UNIT" => &mut unit,
                b"SYSLOG_IDENTIFIER" => &mut identifier,
                b"_TRANSPORT" => &mut transport,
                b"MESSAGE" if message.is_none() => {
                    message = Some(field.value.clone());
                    continue;
                }
                _ => &mut None,
            };
            if said.is_none() {
                *said = Some(field.value.clone());
            }
            let value = field.value.start - start..field.value.end - start;
            if field.is_text {
                if !is_address(name, &self.entry[field.value.clone()]) {
                    lines.push(FrameField { name: field.name.start - start..field.name.end - start, value });
                }
                continue;
            }
            let mut context = Context::new(Certificates::Keep);
            let mut scan = Scan::new(self.options.extent());
            let found = self.engine.find(&self.entry[field.value.clone()], &mut context, &mut scan);
            hits.extend(found.into_iter().map(|hit| Hit {
                start: value.start + hit.start,
                end: value.start + hit.end,
                what: hit.what,
            }));
        }
        let message = message.unwrap_or(self.whole..self.whole);
        let unit = unit.or(identifier).or(transport).unwrap_or(0..0);
        let entry = Entry {
            unit: &self.entry[unit],
            before: &self.entry[start..message.start],
            text: &self.entry[message.clone()],
            after: &self.entry[message.end..self.whole],
        };
        hits.retain(|hit: &Hit| hit.start < hit.end);
        self.entries.push_framed(&entry, Ending::Unknown, &lines, hits, out);
        lines.clear();
        self.lines = lines;
        self.fields = fields;
        self.fields.clear();
    }
}

/// Parses one field at the start of `bytes`.
fn next(bytes: &[u8]) -> Next {
    let Some(line_end) = memchr(b'\n', bytes) else {
        return if bytes.len() > HOLD_MAX {
            Next::TooLong { start: value_of(bytes), skipping: Skipping::Line }
        } else {
            Next::Incomplete
        };
    };
    if line_end == 0 {
        return Next::EndOfEntry { end: 1 };
    }
    let line = &bytes[..line_end];
    let name = name_len(line);
    if name < line_end || name > NAME_MAX {
        let is_named = (1..=NAME_MAX).contains(&name) && line.get(name) == Some(&b'=');
        let value = if is_named { name + 1 } else { 0 };
        if line.len() > HOLD_MAX {
            return Next::TooLong { start: value, skipping: Skipping::Line };
        }
        let field = Field { name: 0..value.saturating_sub(1), value: value..line_end, is_text: true };
        return Next::Field { field, end: line_end + 1 };
    }
    let value_start = line_end + 1 + LENGTH_LEN;
    let Some(length) = bytes.get(line_end + 1..value_start).and_then(|length| length.try_into().ok()) else {
        return Next::Incomplete;
    };
    let length = u64::from_le_bytes(length);
    match usize::try_from(length) {
        Ok(length) if length <= HOLD_MAX => {
            let end = value_start + length + 1;
            if bytes.len() < end {
                return Next::Incomplete;
            }
            let field = Field { name: 0..line_end, value: value_start..value_start + length, is_text: false };
            Next::Field { field, end }
        }
        _ => Next::TooLong { start: value_start, skipping: Skipping::Bytes(length) },
    }
}

/// Returns the offset of a line's value: after its name, or 0 without a name.
fn value_of(line: &[u8]) -> usize {
    let equals = memchr(b'=', &line[..line.len().min(NAME_MAX + 1)]);
    equals.filter(|equals| is_name(&line[..*equals])).map_or(0, |equals| equals + 1)
}

/// Returns whether this is a field that addresses the entry: a time, a number or a cursor.
///
/// Clients cannot write these fields, they differ in each entry, and a value in the form of an address has no
/// space for a secret.
fn is_address(name: &[u8], mut value: &[u8]) -> bool {
    if !name.starts_with(b"__") {
        return false;
    }
    loop {
        let end = memchr(b';', value);
        let part = &value[..end.unwrap_or(value.len())];
        let digits = if let [_, b'=', digits @ ..] = part { digits } else { part };
        if digits.len() > ADDRESS_MAX || !are_digits(digits) {
            return false;
        }
        let Some(end) = end else { return true };
        value = &value[end + 1..];
    }
}

/// Returns whether all bytes are digits of an address.
///
/// Tests them without a branch, so that the compiler can vectorize it.
fn are_digits(digits: &[u8]) -> bool {
    digits.iter().fold(true, |all, byte| all & (byte.is_ascii_digit() | matches!(byte, b'a'..=b'f')))
}

fn is_name(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && name.iter().all(|byte| is_in_name(*byte))
}

/// Returns how many bytes at the start of a line can belong to a name.
///
/// Reads four at a time: names are short and would mispredict branches.
fn name_len(line: &[u8]) -> usize {
    let mut len = 0;
    while let Some(&[a, b, c, d]) = line[len..].first_chunk()
        && is_in_name(a) & is_in_name(b) & is_in_name(c) & is_in_name(d)
    {
        len += 4;
    }
    len + line[len..].iter().take(4).take_while(|byte| is_in_name(**byte)).count()
}

fn is_in_name(byte: u8) -> bool {
    IN_NAME[usize::from(byte)]
}
