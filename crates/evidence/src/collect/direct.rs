//! Unmodified files and journal entries, for a diagnosis on the machine itself.
//!
//! Lines keep their numbers even when a part is omitted: the middle of a long file is passed on as line ends
//! only. Nothing is redacted here, because only the report leaves the machine.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom};
use std::time::Duration;

use flate2::read::MultiGzDecoder;
use landfall_journal::{Boot, Filter, Journal, Seek};
use landfall_model::chain;

use super::piece::{Piece, Trouble};
use super::sink::Sink;
use crate::read::{Parts, parts_of_entry};

/// Bytes per read.
pub(super) const CHUNK: usize = 64 << 10;
/// Bytes of journal entries per batch.
const BATCH: u64 = 1 << 20;
/// Final part of a boot that is always read, even when the boot has more entries than the limit allows.
const END_OF_BOOT: Duration = Duration::from_secs(600);

/// The part of the journal that is being read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    All,
    LastBoot,
    EndOfBoot,
}

/// Passes on the text of a file. Fails if the file is not text.
pub(super) fn file(mut file: File, path: &str, sink: &mut Sink) -> Result<(), Trouble> {
    let metadata = file.metadata()?;
    let size = metadata.len();
    let mut head = Vec::new();
    file.by_ref().take(CHUNK as u64).read_to_end(&mut head)?;
    if !is_gzip(&head) && !is_text(&head) {
        return Err(not_text());
    }
    sink.pass(Piece::File { path: path.to_owned(), metadata });
    let result = if is_gzip(&head) {
        file.rewind().map_err(Trouble::from).and_then(|()| unpacked(file, sink))
    } else {
        let read = head.len() as u64;
        sink.pass(Piece::Bytes(head));
        rest(file, size, read, sink)
    };
    sink.pass(Piece::End(result));
    Ok(())
}

fn unpacked(file: File, sink: &mut Sink) -> Result<(), Trouble> {
    let limit = sink.limits().bytes;
    let mut reader = MultiGzDecoder::new(file);
    copy(&mut reader, limit, sink)?;
    if reader.read(&mut [0])? == 0 {
        return Ok(());
    }
    Err(Trouble::Failed(format!("only the first {} MiB of the unpacked text were read", limit >> 20)))
}

/// Passes on the file after its first `read` bytes.
fn rest(mut file: File, size: u64, read: u64, sink: &mut Sink) -> Result<(), Trouble> {
    let limits = sink.limits();
    if size <= limits.bytes {
        // Includes files of unknown size, such as those in `/proc`. A file may also grow meanwhile.
        return copy(&mut file, limits.bytes, sink).map(drop);
    }
    let read = read + copy(&mut file, limits.head().saturating_sub(read), sink)?;
    let middle = size.saturating_sub(limits.tail()).saturating_sub(read);
    let counted = line_ends(&mut (&file).take(middle), sink);
    if counted.is_err() {
        file.seek(SeekFrom::Start(read + middle))?;
    }
    copy(&mut file, 2 * limits.tail(), sink)?;
    let mut error = format!("{middle} bytes in the middle were left out, limit {} MiB", limits.bytes >> 20);
    if counted.is_err() {
        error += "; line numbers after them are too small";
    }
    Err(Trouble::Failed(error))
}

/// Passes on at most `limit` bytes and returns their number.
fn copy(reader: &mut impl Read, limit: u64, sink: &mut Sink) -> Result<u64, Trouble> {
    let mut reader = reader.take(limit);
    let mut total = 0;
    loop {
        sink.time_left()?;
        let mut bytes = Vec::with_capacity(CHUNK);
        let count = reader.by_ref().take(CHUNK as u64).read_to_end(&mut bytes)?;
        if count == 0 {
            return Ok(total);
        }
        total += count as u64;
        sink.pass(Piece::Bytes(bytes));
    }
}

/// Passes on only the line ends, so that later lines keep their numbers.
///
/// Uses at most half of the remaining time; the rest is for the later lines.
fn line_ends(reader: &mut impl Read, sink: &mut Sink) -> Result<(), Trouble> {
    let least = sink.time_left()? / 2;
    let mut buffer = vec![0; CHUNK];
    loop {
        if sink.time_left()? < least {
            return Err(Trouble::TimedOut);
        }
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                let ends = memchr::memchr_iter(b'\n', &buffer[..count]).count();
                sink.pass(Piece::Bytes(vec![b'\n'; ends]));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Passes on matching entries.
///
/// Earlier boots get half of the item's limits, so that the last boot is always read.
pub(super) fn journal(
    mut journal: Journal,
    filter: &Filter,
    last: Option<Boot>,
    name: &str,
    sink: &mut Sink,
) -> Result<(), Trouble> {
    select(&mut journal, filter.clone(), sink);
    let Some(first) = next_parts(&mut journal) else {
        return Err(journal
            .problems()
            .first()
            .map_or(Trouble::Absent, |problem| Trouble::Failed(chain(&problem.error).to_string())));
    };
    sink.pass(Piece::Journal { name: name.to_owned() });
    let result = entries(&mut journal, first, filter, last, sink);
    sink.pass(Piece::End(result));
    Ok(())
}

fn entries(
    journal: &mut Journal,
    first: Parts,
    filter: &Filter,
    last: Option<Boot>,
    sink: &mut Sink,
) -> Result<(), Trouble> {
    let limits = sink.limits();
    let boot = last.map(|boot| boot.id.to_string()).unwrap_or_default();
    let (mut total, mut batch_size, mut batch) = (0, 0, Vec::new());
    let mut extent = Extent::All;
    let mut next = Some(first);
    while let Some(parts) = next {
        let (size, is_last_boot) = (parts.size(), parts.boot() == boot.as_bytes());
        let time = parts.time().unwrap_or_default();
        (total, batch_size) = (total + size, batch_size + size);
        batch.push(parts);
        if batch_size >= BATCH {
            batch_size = 0;
            sink.pass(Piece::Entries(std::mem::take(&mut batch)));
        }
        let time_left = sink.time_left().unwrap_or_default();
        match (extent, last) {
            (Extent::All, Some(last))
                if !is_last_boot && (total > limits.bytes / 2 || time_left < limits.time / 2) =>
            {
                extent = Extent::LastBoot;
                select(journal, filter.clone().and(&Filter::boot(last.id)), sink);
            }
            (Extent::All | Extent::LastBoot, Some(last))
                if time < end_of_boot(last) && (total > limits.head() || time_left < limits.time / 4) =>
            {
                extent = Extent::EndOfBoot;
                journal.seek(Seek::Time(end_of_boot(last)));
            }
            _ if total > limits.bytes || time_left.is_zero() => {
                sink.pass(Piece::Entries(batch));
                return Err(left_out(sink));
            }
            _ => {}
        }
        next = next_parts(journal);
    }
    sink.pass(Piece::Entries(batch));
    if extent == Extent::All { Ok(()) } else { Err(left_out(sink)) }
}

/// Selects matching entries, starting at the requested time.
fn select(journal: &mut Journal, filter: Filter, sink: &Sink) {
    journal.set_filter(filter);
    if let Some(since) = sink.since() {
        journal.seek(Seek::Time(u64::try_from(since.as_microsecond()).unwrap_or_default()));
    }
}

/// Returns the next undamaged entry.
fn next_parts(journal: &mut Journal) -> Option<Parts> {
    loop {
        if let Ok(parts) = parts_of_entry(journal.next()?) {
            return Some(parts);
        }
    }
}

fn left_out(sink: &Sink) -> Trouble {
    let limits = sink.limits();
    let (seconds, mebibytes) = (limits.time.as_secs(), limits.bytes >> 20);
    Trouble::Failed(format!(
        "entries were left out, limit {mebibytes} MiB and {seconds} s; line numbers after them are too small"
    ))
}

fn end_of_boot(boot: Boot) -> u64 {
    boot.last.saturating_sub(u64::try_from(END_OF_BOOT.as_micros()).unwrap_or(u64::MAX))
}

pub(super) fn is_gzip(head: &[u8]) -> bool {
    head.starts_with(b"\x1f\x8b")
}

pub(super) fn not_text() -> Trouble {
    Trouble::Withheld("it is not text and cannot be searched for secrets".to_owned())
}

/// Returns whether a file is text.
///
/// Logs of machines that lost power contain runs of NUL bytes. Files are rejected if they are mostly NUL or
/// have a known binary format. Files with NUL in every other byte contain wide characters, in which no secret
/// would be recognized, and are also rejected.
pub(super) fn is_text(head: &[u8]) -> bool {
    const BINARY: [&[u8]; 10] = [
        b"\x7fELF",
        b"LPKSHHRH",
        b"\xfd7zXZ",
        b"\x28\xb5\x2f\xfd",
        b"BZh",
        b"PK\x03\x04",
        b"SQLite format",
        b"ElfFile\0",
        b"\xff\xfe",
        b"\xfe\xff",
    ];
    let zeros = head.iter().filter(|byte| **byte == 0).count();
    let alone = head.windows(2).filter(|pair| (pair[0] == 0) != (pair[1] == 0)).count();
    zeros * 2 <= head.len() && alone * 4 <= head.len() && !BINARY.iter().any(|magic| head.starts_with(magic))
}
