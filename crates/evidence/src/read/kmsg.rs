//! The kernel's ring buffer, `/dev/kmsg`: the only kernel log without a journal.
//!
//! Each read returns one record: `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,…];TEXT`, followed by lines
//! ` KEY=VALUE` about the device. Root's programs also write to the buffer. The kernel assigns their records a
//! facility other than its own (0). Only records of facility 0 are therefore proven to be from the kernel;
//! others just claim the name in their prefix.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;

use jiff::{SignedDuration, Timestamp};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::journal_text::{Entries, JournalLines, Parts};
use crate::collect::Host;

pub const PATH: &str = "/dev/kmsg";

/// The kernel's own limit for a record with its device fields is 8 KiB.
const MAX_RECORD: usize = 16 << 10;
/// Records per pass. The largest common buffer, 16 MiB, holds fewer; a program that writes continuously
/// cannot block the reader.
const MAX_RECORDS: usize = 200_000;
/// Number of priority bits below the facility.
const FACILITY_SHIFT: u32 = 3;
/// Maximum length of a program name in a prefix.
const MAX_NAME: usize = 64;

/// A record of the ring buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// 0 for the kernel's own records; the kernel does not let programs set it.
    pub facility: u32,
    /// Microseconds since the kernel started.
    pub microseconds: u64,
    pub text: Vec<u8>,
}

/// The ring buffer, from its first record.
#[derive(Debug)]
pub struct RingBuffer {
    file: File,
    started: Timestamp,
    record: Vec<u8>,
    /// Records that may still be read in this pass.
    left: usize,
}

/// Parses the result of one read of `/dev/kmsg`. Returns `None` if it is not a record.
pub fn parse(bytes: &[u8]) -> Option<Record> {
    let semicolon = memchr::memchr(b';', bytes)?;
    let head = std::str::from_utf8(&bytes[..semicolon]).ok()?;
    let mut fields = head.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    let _sequence: u64 = fields.next()?.parse().ok()?;
    let microseconds = fields.next()?.parse().ok()?;
    let text = bytes[semicolon + 1..].split(|byte| *byte == b'\n').next().unwrap_or_default();
    Some(Record { facility: priority >> FACILITY_SHIFT, microseconds, text: unescaped(text) })
}

/// Decodes the kernel's escapes: `\x` and two digits for bytes that are not printable ASCII.
///
/// Control characters stay escaped.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        let escaped = after.strip_prefix(b"x").and_then(|digits| digits.get(..2));
        let value = escaped
            .filter(|digits| *byte == b'\\' && digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .filter(|value| !value.is_ascii_control());
        if let Some(value) = value {
            plain.push(value);
            rest = &after[3..];
        } else {
            plain.push(*byte);
            rest = after;
        }
    }
    plain
}

// === impl Record ===

impl Record {
    /// Returns equivalent journal fields. `started` is the kernel's start time.
    pub(super) fn parts(self, started: Timestamp) -> Parts {
        let since = SignedDuration::from_micros(i64::try_from(self.microseconds).unwrap_or(i64::MAX));
        let time = started.checked_add(since).ok().and_then(|time| u64::try_from(time.as_microsecond()).ok());
        if self.facility == 0 {
            return Parts::of_kernel(time, self.text);
        }
        let (name, text) = claimed_name(&self.text);
        Parts::of_claim(time, name, text)
    }
}

/// Splits a user-space record, such as `systemd[1]: Started kubelet.`, into program name and message.
fn claimed_name(text: &[u8]) -> (&[u8], &[u8]) {
    let colon = memchr::memmem::find(text, b": ").filter(|colon| *colon <= MAX_NAME);
    let Some(colon) = colon else { return (b"", text) };
    let name = &text[..colon];
    let name = name.split(|byte| *byte == b'[').next().unwrap_or(name);
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(byte);
    if name.iter().all(is_name) { (name, &text[colon + 2..]) } else { (b"", text) }
}

// === impl RingBuffer ===

impl RingBuffer {
    /// Opens the local machine's ring buffer; `None` for another root or if no such device exists.
    pub fn open(host: &Host) -> io::Result<Option<Self>> {
        let Some(started) = host.kernel_started().filter(|_| host.is_this_machine()) else { return Ok(None) };
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(PATH);
        match opened {
            Ok(file) => Ok(Some(Self { file, started, record: vec![0; MAX_RECORD], left: MAX_RECORDS })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Appends new records until the text has this many bytes, and returns whether there may be more.
    ///
    /// `started` is the kernel's start time by the current clock setting.
    pub fn read(
        &mut self,
        lines: &mut JournalLines<'_>,
        started: Timestamp,
        bytes: usize,
    ) -> io::Result<bool> {
        while lines.lines().0.len() < bytes {
            let Some(record) = self.next_record()? else { return Ok(false) };
            lines.push_record(record, started);
        }
        Ok(true)
    }

    /// Returns the next record; `None` if there is none yet.
    fn next_record(&mut self) -> io::Result<Option<Record>> {
        while self.left > 0 {
            self.left -= 1;
            match self.file.read(&mut self.record) {
                Ok(0) => break,
                Ok(count) => {
                    if let Some(record) = parse(&self.record[..count]) {
                        return Ok(Some(record));
                    }
                }
                Err(error) => match Errno::from_io_error(&error) {
                    // Records were overwritten before they were read; the next read continues after them.
                    Some(Errno::PIPE | Errno::INTR) => {}
                    Some(Errno::AGAIN) => break,
                    _ => return Err(error),
                },
            }
        }
        self.left = MAX_RECORDS;
        Ok(None)
    }
}

impl Entries for RingBuffer {
    fn next_parts(&mut self) -> io::Result<Option<Parts>> {
        Ok(self.next_record()?.map(|record| record.parts(self.started)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use landfall_diagnose::RuleSet;
    use landfall_model::report::Trust;

    use super::*;

    fn record(facility: u32, microseconds: u64, text: &str) -> Record {
        Record { facility, microseconds, text: text.into() }
    }

    #[test]
    fn parses_records() {
        for (bytes, expected) in [
            (
                &b"6,339,5140900,-;NET: Registered\n SUBSYSTEM=net\n DEVICE=c1:2\n"[..],
                record(0, 5_140_900, "NET: Registered"),
            ),
            (b"30,1,7,-;systemd[1]: Started\n", record(3, 7, "systemd[1]: Started")),
            (b"4,2,8,-,caller=T1;oops; again", record(0, 8, "oops; again")),
            (b"4,2,8,-;a\\xc3\\xa4\\x5c\\x0a\\xzz\\x1", record(0, 8, "aä\\\\x0a\\xzz\\x1")),
            (b"4,2,8,-;", record(0, 8, "")),
        ] {
            assert_eq!(parse(bytes), Some(expected), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn rejects_other_text() {
        for bytes in
            [&b""[..], b";", b"6;x", b"6,1,-;x", b"x,1,2,-;x", b"6,1,2,-", b"-1,1,2,-;x", b"\xff,1,2;x"]
        {
            assert_eq!(parse(bytes), None, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn kernel_facility_alone_proves_origin() {
        let rules = RuleSet::embedded().unwrap();
        let started = Timestamp::from_second(1_767_323_045).unwrap();
        let origin = |facility, text: &str| {
            let mut lines = JournalLines::new(rules.origins());
            lines.push_record(record(facility, 1_500_000, text), started);
            let (text, entries) = lines.lines();
            (String::from_utf8(text.to_vec()).unwrap(), entries[0].origin)
        };
        let (line, kernel) = origin(0, "Out of memory");
        assert_eq!(line, "2026-01-02T03:04:06.500000Z localhost kernel: Out of memory\n");
        assert_eq!(kernel.trust(), Trust::Proven);
        let (line, systemd) = origin(3, "systemd[1]: Started kubelet.");
        assert_eq!(line, "2026-01-02T03:04:06.500000Z localhost systemd: Started kubelet.\n");
        assert_eq!(systemd.trust(), Trust::Claimed);
        // A program that claims to be the kernel.
        assert_eq!(origin(1, "kernel: Out of memory").1.trust(), Trust::Claimed);
        assert_eq!(origin(1, "Out of memory").1.trust(), Trust::Claimed);
    }

    #[test]
    fn the_ring_buffer_of_another_root_is_not_read() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("proc")).unwrap();
        std::fs::write(root.path().join("proc/stat"), "btime 1767323045\n").unwrap();
        assert!(RingBuffer::open(&Host::at(root.path()).unwrap()).unwrap().is_none());
    }

    #[test]
    fn the_ring_buffer_of_this_machine_ends() {
        // The buffer may not be readable in the test environment.
        let Ok(Some(mut buffer)) = RingBuffer::open(&Host::at(Path::new("/")).unwrap()) else { return };
        let mut records = 0;
        while buffer.next_record().unwrap().is_some() {
            records += 1;
            assert!(records <= MAX_RECORDS);
        }
    }
}
