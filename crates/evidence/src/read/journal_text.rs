//! Journal entries as lines, so that the engine reads a journal as it reads what `journalctl` prints of it.

use std::fs::File;
use std::io::{self, Read};

use jiff::Timestamp;
use landfall_journal::{Entry, ExportReader, JournalFile, JsonReader, Record};

/// Length of a boot id in hex.
const BOOT_ID: usize = 32;

/// What a line needs of an entry.
#[derive(Default)]
pub(super) struct Parts {
    time: Option<u64>,
    host: Vec<u8>,
    process: Vec<u8>,
    unit: Vec<u8>,
    pid: Vec<u8>,
    message: Vec<u8>,
    boot: Vec<u8>,
}

/// Where entries come from.
pub(super) trait Entries {
    fn next_parts(&mut self) -> io::Result<Option<Parts>>;
}

/// A reader of the lines of all entries.
pub(super) struct JournalText<E> {
    entries: E,
    /// Of the last entry that named its boot.
    boot: Vec<u8>,
    buffer: Vec<u8>,
    given: usize,
}

// === impl JournalText ===

impl<E: Entries> JournalText<E> {
    pub(super) fn new(entries: E) -> Self {
        Self { entries, boot: Vec::new(), buffer: Vec::new(), given: 0 }
    }

    /// A line of its own where another boot begins, as `journalctl` has it.
    fn mark_boot(&mut self, parts: &Parts) {
        if parts.boot.len() != BOOT_ID || parts.boot == self.boot {
            return;
        }
        if !self.boot.is_empty() && parts.boot.iter().all(u8::is_ascii_hexdigit) {
            self.buffer.extend_from_slice(b"-- Boot ");
            self.buffer.extend_from_slice(&parts.boot);
            self.buffer.extend_from_slice(b" --\n");
        }
        self.boot.clone_from(&parts.boot);
    }
}

impl<E: Entries> Read for JournalText<E> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.given == self.buffer.len() {
            self.buffer.clear();
            self.given = 0;
            let Some(parts) = self.entries.next_parts()? else { return Ok(0) };
            self.mark_boot(&parts);
            parts.write(&mut self.buffer);
        }
        let count = out.len().min(self.buffer.len() - self.given);
        out[..count].copy_from_slice(&self.buffer[self.given..self.given + count]);
        self.given += count;
        Ok(count)
    }
}

// === impl Entries ===

impl Entries for JournalFile<File> {
    fn next_parts(&mut self) -> io::Result<Option<Parts>> {
        let entry = self.next().map_err(io::Error::other)?;
        entry.map(parts_of_entry).transpose()
    }
}

impl<R: io::BufRead> Entries for ExportReader<R> {
    fn next_parts(&mut self) -> io::Result<Option<Parts>> {
        Ok(self.next()?.map(parts_of_record))
    }
}

impl<R: io::BufRead> Entries for JsonReader<R> {
    fn next_parts(&mut self) -> io::Result<Option<Parts>> {
        Ok(self.next()?.map(parts_of_record))
    }
}

/// Appends the lines of one entry, as the engine reads them.
pub fn entry_lines(entry: Entry<'_, File>, out: &mut Vec<u8>) -> io::Result<()> {
    parts_of_entry(entry)?.write(out);
    Ok(())
}

fn parts_of_entry(mut entry: Entry<'_, File>) -> io::Result<Parts> {
    let mut parts = Parts { time: Some(entry.cursor().realtime), ..Parts::default() };
    while let Some(field) = entry.next_field().map_err(io::Error::other)? {
        parts.take(field.name(), field.value());
    }
    Ok(parts)
}

fn parts_of_record(record: &Record) -> Parts {
    let mut parts = Parts { time: record.realtime(), ..Parts::default() };
    for field in record.fields() {
        parts.take(field.name(), field.value());
    }
    parts
}

// === impl Parts ===

impl Parts {
    fn take(&mut self, name: &str, value: &[u8]) {
        let part = match name {
            "MESSAGE" => &mut self.message,
            "_HOSTNAME" => &mut self.host,
            "SYSLOG_IDENTIFIER" => &mut self.process,
            // Only where the program did not name itself.
            "_COMM" if self.process.is_empty() => &mut self.process,
            "_SYSTEMD_UNIT" => &mut self.unit,
            "_PID" => &mut self.pid,
            "_BOOT_ID" => &mut self.boot,
            _ => return,
        };
        part.clear();
        part.extend_from_slice(value);
    }

    /// One line per line of the message, each with the head that `journalctl -o short-iso-precise` gives it, so that a
    /// line in the middle of a message still says whose it is.
    fn write(&self, out: &mut Vec<u8>) {
        let mut head = Vec::new();
        let time = self.time.and_then(|time| Timestamp::from_microsecond(i64::try_from(time).ok()?).ok());
        // As bundles spell it, so that a line of a report is found in one.
        head.extend_from_slice(format!("{:.6}", time.unwrap_or_default()).as_bytes());
        head.push(b' ');
        head.extend_from_slice(if self.host.is_empty() { b"localhost" } else { &self.host });
        head.push(b' ');
        let process = if self.process.is_empty() { &self.unit } else { &self.process };
        head.extend_from_slice(if process.is_empty() { b"unknown" } else { process });
        if !self.pid.is_empty() {
            head.push(b'[');
            head.extend_from_slice(&self.pid);
            head.push(b']');
        }
        head.extend_from_slice(b": ");
        for line in self.message.split(|byte| *byte == b'\n') {
            out.extend_from_slice(&head);
            out.extend_from_slice(line);
            out.push(b'\n');
        }
    }
}
