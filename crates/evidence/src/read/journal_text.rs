//! Journal entries for the engine: the text that `journalctl` prints, with the origin proven by journald's
//! own fields. The origin is not part of the text, so no message can fake it.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use landfall_diagnose::{EntryOrigin, JournalFields, Origin, Origins};
use landfall_journal::{Entry, ExportReader, JournalFile, JsonReader, Record};

use super::kmsg;
use super::lines::{CHUNK, Chunk, Chunks};

/// Length of a boot ID in hexadecimal.
const BOOT_ID: usize = 32;
/// Maximum number of cached origins: a machine has some dozens of writers; a hostile journal may have any
/// number.
const MAX_REMEMBERED: usize = 1024;

/// The fields of an entry that determine its lines and origin.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    time: Option<u64>,
    host: Vec<u8>,
    identifier: Vec<u8>,
    comm: Vec<u8>,
    exe: Vec<u8>,
    cgroup: Vec<u8>,
    unit: Vec<u8>,
    uid: Vec<u8>,
    pid: Vec<u8>,
    transport: Vec<u8>,
    facility: Vec<u8>,
    line_break: Vec<u8>,
    container: bool,
    message: Vec<u8>,
    boot: Vec<u8>,
}

/// A source of journal entries.
pub(super) trait Entries {
    fn next_parts(&mut self) -> io::Result<Option<Parts>>;
}

/// Lines of journal entries with their origins.
#[derive(Debug)]
pub struct JournalLines<'e> {
    origins: &'e Origins,
    text: Vec<u8>,
    entries: Vec<EntryOrigin>,
    remembered: HashMap<Vec<u8>, Writer>,
    /// Writers inside a multi-line value, by unit and process.
    quoting: HashSet<Vec<u8>>,
}

/// The origin of an entry, and its journal stream for citations.
#[derive(Clone, Debug)]
struct Writer {
    origin: Origin,
    stream: Option<Arc<str>>,
    /// It used the name of a component that it is not.
    is_impersonator: bool,
}

/// The lines of all entries, in chunks.
pub(super) struct JournalChunks<'e, E> {
    entries: E,
    lines: JournalLines<'e>,
    /// Boot ID of the last entry that has one.
    boot: Vec<u8>,
    ended: bool,
    /// The error that ended the entries, returned after all data read before it.
    failure: Option<io::Error>,
}

// === impl JournalLines ===

impl<'e> JournalLines<'e> {
    pub fn new(origins: &'e Origins) -> Self {
        Self {
            origins,
            text: Vec::new(),
            entries: Vec::new(),
            remembered: HashMap::new(),
            quoting: HashSet::new(),
        }
    }

    /// Appends the lines of an entry. A damaged entry adds nothing.
    pub fn push(&mut self, entry: Entry<'_, File>) -> io::Result<()> {
        let parts = parts_of_entry(entry)?;
        self.push_parts(&parts);
        Ok(())
    }

    /// Appends a record of the kernel's ring buffer. `started` is the kernel's start time.
    pub(super) fn push_record(&mut self, record: kmsg::Record, started: Timestamp) {
        self.push_parts(&record.parts(started));
    }

    /// Returns the lines and their origins for the engine.
    pub fn lines(&self) -> (&[u8], &[EntryOrigin]) {
        (&self.text, &self.entries)
    }

    pub fn clear(&mut self) {
        self.text.clear();
        self.entries.clear();
    }

    fn push_parts(&mut self, parts: &Parts) {
        let Writer { origin, stream, is_impersonator } = self.writer(parts);
        let head = parts.head(parts.host(), parts.name(), is_impersonator);
        let mut last = None;
        for line in parts.message.split(|byte| *byte == b'\n') {
            let origin = if self.is_quoted(parts, line) { Origin::FOREIGN } else { origin };
            if last.replace(origin) != Some(origin) {
                self.entries.push(EntryOrigin { start: self.text.len(), origin, stream: stream.clone() });
            }
            self.text.extend_from_slice(&head);
            self.text.extend_from_slice(&line[..line.len().min(CHUNK)]);
            self.text.push(b'\n');
        }
    }

    /// Returns whether a line belongs to a multi-line klog value: after `output=<`, up to ` >`.
    ///
    /// A container controls its content and length. klog indents its lines with a tab; lines of other threads
    /// may be in between.
    fn is_quoted(&mut self, parts: &Parts, line: &[u8]) -> bool {
        let opens = line.trim_ascii_end().ends_with(b"=<");
        if self.quoting.is_empty() && !opens {
            return false;
        }
        let writer = [&parts.unit[..], &parts.pid[..]].join(&b'\0');
        let is_within = self.quoting.contains(&writer);
        if is_within && line.starts_with(b" >") {
            self.quoting.remove(&writer);
            return true;
        }
        if is_within && line.starts_with(b"\t") {
            return true;
        }
        if opens && self.quoting.len() < MAX_REMEMBERED {
            self.quoting.insert(writer);
        }
        false
    }

    /// Appends a separator line at the start of another boot, like `journalctl`.
    fn push_boot(&mut self, boot: &[u8]) {
        self.entries.push(EntryOrigin { start: self.text.len(), origin: Origin::READER, stream: None });
        self.text.extend_from_slice(b"-- Boot ");
        self.text.extend_from_slice(boot);
        self.text.extend_from_slice(b" --\n");
    }

    fn writer(&mut self, parts: &Parts) -> Writer {
        let fields = parts.fields();
        // The origin of an audit record depends on the record itself.
        if fields.transport == b"audit" {
            return Writer::of(parts, self.origins);
        }
        let key = parts.writer_key();
        if let Some(writer) = self.remembered.get(&key) {
            return writer.clone();
        }
        let writer = Writer::of(parts, self.origins);
        if self.remembered.len() < MAX_REMEMBERED {
            self.remembered.insert(key, writer.clone());
        }
        writer
    }
}

// === impl JournalChunks ===

impl<'e, E: Entries> JournalChunks<'e, E> {
    pub(super) fn new(entries: E, origins: &'e Origins) -> Self {
        Self { entries, lines: JournalLines::new(origins), boot: Vec::new(), ended: false, failure: None }
    }

    fn mark_boot(&mut self, parts: &Parts) {
        if parts.boot.len() != BOOT_ID || parts.boot == self.boot {
            return;
        }
        if !self.boot.is_empty() && parts.boot.iter().all(u8::is_ascii_hexdigit) {
            self.lines.push_boot(&parts.boot);
        }
        self.boot.clone_from(&parts.boot);
    }
}

impl<E: Entries> Chunks for JournalChunks<'_, E> {
    fn next(&mut self) -> io::Result<Option<(Chunk, u64)>> {
        while !self.ended && self.lines.text.len() < CHUNK {
            match self.entries.next_parts() {
                Ok(Some(parts)) => {
                    self.mark_boot(&parts);
                    self.lines.push_parts(&parts);
                }
                Ok(None) => self.ended = true,
                Err(error) => {
                    self.ended = true;
                    self.failure = Some(error);
                }
            }
        }
        let bytes = std::mem::take(&mut self.lines.text);
        let origins = std::mem::take(&mut self.lines.entries);
        if bytes.is_empty() {
            return self.failure.take().map_or(Ok(None), Err);
        }
        let read = bytes.len() as u64;
        Ok(Some((Chunk { bytes, origins: Some(origins) }, read)))
    }
}

// === impl Writer ===

impl Writer {
    fn of(parts: &Parts, origins: &Origins) -> Self {
        let fields = parts.fields();
        Self {
            origin: origins.of_journal(&fields),
            stream: parts.stream(),
            is_impersonator: origins.is_impersonated(&fields),
        }
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

pub(crate) fn parts_of_entry(mut entry: Entry<'_, File>) -> io::Result<Parts> {
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
    /// Creates a kernel message.
    pub(super) fn of_kernel(time: Option<u64>, message: Vec<u8>) -> Self {
        let (identifier, transport) = (b"kernel".to_vec(), b"kernel".to_vec());
        Self { time, identifier, transport, message, ..Self::default() }
    }

    /// Creates a message with an unverified writer name.
    pub(super) fn of_claim(time: Option<u64>, name: &[u8], message: &[u8]) -> Self {
        Self { time, identifier: name.to_vec(), message: message.to_vec(), ..Self::default() }
    }

    pub(crate) fn time(&self) -> Option<u64> {
        self.time
    }

    fn take(&mut self, name: &str, value: &[u8]) {
        let part = match name {
            "MESSAGE" => &mut self.message,
            "_HOSTNAME" => &mut self.host,
            "SYSLOG_IDENTIFIER" => &mut self.identifier,
            "_COMM" => &mut self.comm,
            "_EXE" => &mut self.exe,
            "_SYSTEMD_CGROUP" => &mut self.cgroup,
            "_SYSTEMD_UNIT" => &mut self.unit,
            "_UID" => &mut self.uid,
            "_PID" => &mut self.pid,
            "_TRANSPORT" => &mut self.transport,
            "SYSLOG_FACILITY" => &mut self.facility,
            "_LINE_BREAK" => &mut self.line_break,
            "_BOOT_ID" => &mut self.boot,
            "CONTAINER_NAME" | "CONTAINER_ID" => {
                self.container = true;
                return;
            }
            _ => return,
        };
        part.clear();
        part.extend_from_slice(value);
    }

    /// Returns the unit recorded by journald. The kernel has none.
    fn stream(&self) -> Option<Arc<str>> {
        let name: &[u8] = match (&self.unit[..], &self.transport[..]) {
            (b"", b"kernel") => b"kernel",
            (unit, _) => unit,
        };
        (!name.is_empty()).then(|| String::from_utf8_lossy(name).into())
    }

    /// Returns whether the writer's next entry may continue the message: journald divided it, or it is long
    /// enough to be a part that a program divided.
    pub(crate) fn may_continue(&self) -> bool {
        /// `logger` and the kernel divide at 1 KiB and below; journald before 235 divides at 2 KiB, unmarked.
        const DIVIDED_MIN: usize = 512;
        self.line_break == b"line-max" || self.line_break.is_empty() && self.message.len() >= DIVIDED_MIN
    }

    /// Returns the approximate size of the entry's lines in bytes.
    pub(crate) fn size(&self) -> u64 {
        const HEAD: u64 = 64;
        HEAD + self.message.len() as u64
    }

    pub(crate) fn boot(&self) -> &[u8] {
        &self.boot
    }

    pub(crate) fn message(&self) -> &[u8] {
        &self.message
    }

    pub(crate) fn host(&self) -> &[u8] {
        &self.host
    }

    pub(crate) fn unit(&self) -> &[u8] {
        &self.unit
    }

    /// The name that the writer chose, or else the name of its process or unit. May be empty.
    pub(crate) fn name(&self) -> &[u8] {
        let names = [&self.identifier, &self.comm, &self.unit];
        names.into_iter().find(|name| !name.is_empty()).map_or(b"", |name| name)
    }

    /// Returns the fields that determine the origin of an entry, except for audit records.
    pub(crate) fn writer_key(&self) -> Vec<u8> {
        let container: &[u8] = if self.container { b"1" } else { b"" };
        let key: [&[u8]; 9] = [
            &self.transport,
            // Each pod has its own cgroup.
            if self.unit.is_empty() { &self.cgroup } else { b"" },
            &self.unit,
            &self.comm,
            &self.exe,
            &self.uid,
            &self.identifier,
            &self.facility,
            container,
        ];
        // Of the process ID, only 1 is significant.
        let first: &[u8] = if self.pid == b"1" { b"\0\x011" } else { b"" };
        [&key.join(&b'\0')[..], first].concat()
    }

    pub(crate) fn fields(&self) -> JournalFields<'_> {
        JournalFields {
            transport: &self.transport,
            cgroup: &self.cgroup,
            unit: &self.unit,
            comm: &self.comm,
            exe: &self.exe,
            uid: &self.uid,
            pid: &self.pid,
            facility: &self.facility,
            identifier: &self.identifier,
            message: &self.message,
            container: self.container,
        }
    }

    /// The head that `journalctl -o short-iso-precise` writes before the message. It precedes each line of the message, so that a
    /// line in the middle has a writer, too. `host` and `name` are given as they are to be written; empty ones get a substitute.
    ///
    /// In text, a name is all that identifies a component. So an impersonator is written as its user, with the name as part of the
    /// message, and so is a name whose end a reader of the text could not find.
    pub(crate) fn head(&self, host: &[u8], name: &[u8], is_impersonator: bool) -> Vec<u8> {
        let time = self.time.and_then(|time| Timestamp::from_microsecond(i64::try_from(time).ok()?).ok());
        let mut head = format!("{:.6} ", time.unwrap_or_default()).into_bytes();
        let name = if name.is_empty() { b"unknown" } else { name };
        let hides_name = is_impersonator || !is_plain(name);
        head.extend_from_slice(if host.is_empty() { b"localhost" } else { host });
        head.push(b' ');
        if hides_name {
            head.extend_from_slice(b"uid-");
            head.extend(self.uid.iter().filter(|byte| byte.is_ascii_digit()));
        } else {
            head.extend_from_slice(name);
        }
        if !self.pid.is_empty() && self.pid.iter().all(u8::is_ascii_digit) {
            head.push(b'[');
            head.extend_from_slice(&self.pid);
            head.push(b']');
        }
        head.extend_from_slice(b": ");
        if hides_name {
            head.extend_from_slice(name);
            head.extend_from_slice(b": ");
        }
        // A line break would start a line of its own.
        for byte in head.iter_mut().filter(|byte| byte.is_ascii_control()) {
            *byte = b'?';
        }
        head
    }
}

/// Whether a name cannot be mistaken for a part of a message.
fn is_plain(name: &[u8]) -> bool {
    let name = name.strip_prefix(b"(").and_then(|name| name.strip_suffix(b")")).unwrap_or(name);
    name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.@/+".contains(byte))
}

#[cfg(test)]
mod tests {
    use landfall_diagnose::RuleSet;

    use super::*;

    /// A probe may print thousands of lines, with lines of other threads in between.
    #[test]
    fn quoted_value_ends_at_its_mark_only() {
        let rules = RuleSet::embedded().unwrap();
        let mut lines = JournalLines::new(rules.origins());
        let mut push = |message: &str| {
            lines.push_parts(&Parts {
                unit: b"kubelet.service".to_vec(),
                uid: b"0".to_vec(),
                pid: b"812".to_vec(),
                transport: b"stdout".to_vec(),
                message: message.as_bytes().to_vec(),
                ..Parts::default()
            });
            lines.entries.last().map(|entry| entry.origin) == Some(Origin::FOREIGN)
        };
        assert!(!push("\"Probe failed\" output=<"));
        for _ in 0..5000 {
            assert!(push("\tx"));
        }
        assert!(!push("I0102 03:04:05.678901 7 a.go:1] \"Started kubelet\""));
        assert!(push("\tx"));
        assert!(push(" >"));
        assert!(!push("\tx"));
    }
}
