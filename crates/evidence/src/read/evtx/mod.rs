//! Windows event logs (`.evtx`) as lines, so that the engine reads them like a journal.
//!
//! A log is a header and independent chunks of 64 KiB: records in binary XML, with the names and templates
//! they share. Lines contain the time, provider, event ID, level and message of a record.

mod xml;

use std::io::{self, Read};

use jiff::Timestamp;

use self::xml::Event;
pub use self::xml::Work;

const HEADER: u64 = 4096;
pub const CHUNK: usize = 64 << 10;
/// Offset of the records in a chunk, after the tables of names and templates.
const RECORDS: usize = 512;
/// A record's signature, length, number and time.
const RECORD_HEAD: usize = 24;
const RECORD_MARK: [u8; 4] = *b"**\0\0";
/// Microseconds from 1601, the epoch of Windows, to 1970.
const EPOCH: i64 = 11_644_473_600_000_000;

/// A log as text, with at least one line per record.
#[derive(Debug)]
pub struct EventLog<R> {
    reader: R,
    chunk: Vec<u8>,
    text: Vec<u8>,
    given: usize,
    damaged: u64,
    ended: bool,
}

// === impl EventLog ===

impl<R: Read> EventLog<R> {
    pub fn open(mut reader: R) -> io::Result<Self> {
        io::copy(&mut reader.by_ref().take(HEADER), &mut io::sink())?;
        Ok(Self { reader, chunk: Vec::new(), text: Vec::new(), given: 0, damaged: 0, ended: false })
    }

    fn refill(&mut self) -> io::Result<()> {
        self.text.clear();
        self.given = 0;
        self.chunk.clear();
        self.reader.by_ref().take(CHUNK as u64).read_to_end(&mut self.chunk)?;
        self.ended = self.chunk.is_empty();
        self.damaged += chunk_text(&self.chunk, &mut self.text);
        match self.damaged {
            0 => Ok(()),
            count if self.ended => {
                Err(io::Error::other(format!("{count} records or parts of the log are damaged")))
            }
            _ => Ok(()),
        }
    }
}

impl<R: Read> Read for EventLog<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.given == self.text.len() && !self.ended {
            self.refill()?;
        }
        let rest = &self.text[self.given..];
        let count = out.len().min(rest.len());
        out[..count].copy_from_slice(&rest[..count]);
        self.given += count;
        Ok(count)
    }
}

/// Appends the lines of one chunk and returns the number of unreadable records.
pub fn chunk_text(chunk: &[u8], out: &mut Vec<u8>) -> u64 {
    if !chunk.starts_with(b"ElfChnk\0") {
        // Unused chunks consist of zeros.
        return u64::from(chunk.iter().any(|byte| *byte != 0));
    }
    let mut damaged = 0;
    let mut work = Work::default();
    let mut at = RECORDS;
    while let Some(head) = chunk.get(at..at + RECORD_HEAD)
        && head.starts_with(&RECORD_MARK)
    {
        let length = u32_at(head, 4).map_or(0, |length| length as usize);
        // The length is repeated at the end of the record.
        let body_end =
            (at + length).checked_sub(4).filter(|end| *end >= at + RECORD_HEAD && *end + 4 <= chunk.len());
        let Some(body_end) = body_end else { return damaged + 1 };
        let time = head[16..24].try_into().map_or(0, u64::from_le_bytes);
        match Event::parse(chunk, at + RECORD_HEAD..body_end, &mut work) {
            Some(event) => write_lines(&event, time, out),
            None => damaged += 1,
        }
        at += length;
    }
    damaged
}

fn write_lines(event: &Event, time: u64, out: &mut Vec<u8>) {
    let time = i64::try_from(time / 10).ok().map(|time| time.saturating_sub(EPOCH));
    let time = time.and_then(|time| Timestamp::from_microsecond(time).ok()).unwrap_or_default();
    let computer = word(&event.computer, "localhost");
    let provider = word(&event.provider, "unknown");
    let level = match event.level.trim() {
        "1" => "critical",
        "2" => "error",
        "3" => "warning",
        "5" => "verbose",
        _ => "information",
    };
    let head = format!("{time} {computer} {provider}[{}]: {level}: ", event.id.trim());
    let message = event.data.join("; ");
    for line in message.split(['\n', '\r']).filter(|line| !line.trim().is_empty()).chain(
        // An event without text still counts.
        message.trim().is_empty().then_some("(no text)"),
    ) {
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(line.as_bytes());
        out.push(b'\n');
    }
}

/// Formats one word for the head of a line.
fn word(text: &str, otherwise: &str) -> String {
    let text: String =
        text.trim().chars().map(|c| if c.is_whitespace() || c.is_control() { '-' } else { c }).collect();
    if text.is_empty() { otherwise.to_owned() } else { text }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}
