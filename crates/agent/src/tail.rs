//! A growing log.
//!
//! cloud-init's logs, and the system log of machines without a journal, contain all boots of a machine. Only
//! lines of this boot count.

use std::fs::{File, Metadata};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;

use jiff::{SignedDuration, Timestamp};
use landfall_diagnose::{Case, Engine, SourceId, Stream};
use landfall_evidence::collect::Host;
use landfall_evidence::read::stream_of_file;

use crate::watch::{CHUNK, scan};

/// Text with which cloud-init begins a boot; the date that follows has no fractional seconds.
const BANNER: &str = "running 'init-local' at ";
const DATE: &str = "%a, %d %b %Y %H:%M:%S %z";
const DATE_LENGTH: usize = "Thu, 01 Jan 2026 00:01:00 +0000".len();
/// Text with which a kernel begins.
const KERNEL: &str = "Linux version ";
const SECOND: SignedDuration = SignedDuration::from_secs(1);
/// Bytes of a line that are searched for the banner, and bytes of a log that are searched for such a line.
/// Both are far above the sizes of ordinary logs.
const MAX_LINE: u64 = 64 << 10;
const MAX_LOG: u64 = 64 << 20;

#[derive(Debug)]
pub(crate) struct Tail {
    path: &'static str,
    /// Whether the log contains kernel messages.
    kernels: bool,
    source: Option<(SourceId, Stream)>,
    inode: u64,
    read: u64,
    lines: u64,
    /// The last line without its line end.
    rest: Vec<u8>,
}

// === impl Tail ===

impl Tail {
    pub(crate) fn of(path: &'static str) -> Self {
        Self { path, kernels: false, source: None, inode: 0, read: 0, lines: 0, rest: Vec::new() }
    }

    /// Creates a log in which each boot begins with the kernel's version line.
    pub(crate) fn of_kernels(path: &'static str) -> Self {
        Self { kernels: true, ..Self::of(path) }
    }

    /// Reads new lines and returns whether there were any. Lines from before this boot are skipped.
    pub(crate) fn read(
        &mut self,
        engine: &Engine,
        case: &mut Case<'_>,
        host: &Host,
        began: Option<Timestamp>,
    ) -> bool {
        let Ok(file) = host.open(self.path) else { return false };
        let Ok(metadata) = file.metadata() else { return false };
        if self.inode == 0 {
            let start = if self.kernels { start_of_kernel } else { start };
            (self.inode, self.read) =
                (metadata.ino(), began.map_or(0, |began| start(&file, &metadata, began)));
        }
        if metadata.ino() != self.inode || metadata.len() < self.read {
            // The log was rotated or truncated.
            (self.inode, self.read) = (metadata.ino(), 0);
            self.rest.clear();
        }
        if metadata.len() == self.read {
            return false;
        }
        let mut new = false;
        while let Ok(count) = self.take(&file) {
            if count == 0 {
                break;
            }
            new |= self.scan(engine, case, &metadata);
        }
        new
    }

    fn take(&mut self, mut file: &File) -> io::Result<usize> {
        file.seek(SeekFrom::Start(self.read))?;
        let count = file.take(CHUNK as u64).read_to_end(&mut self.rest)?;
        self.read += count as u64;
        Ok(count)
    }

    fn scan(&mut self, engine: &Engine, case: &mut Case<'_>, metadata: &Metadata) -> bool {
        // A line longer than a chunk is split: it is binary data, and its end may never arrive.
        let whole = match self.rest.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => at + 1,
            None if self.rest.len() >= CHUNK => self.rest.len(),
            None => return false,
        };
        let chunk: Vec<u8> = self.rest.drain(..whole).collect();
        let (source, stream) = self.source.get_or_insert_with(|| {
            let stream = stream_of_file(self.path, &chunk, metadata);
            (case.add_source(self.path, stream.kind.name()), stream)
        });
        self.lines += scan(engine, case, *source, stream, self.lines, &chunk);
        true
    }
}

/// Returns the offset of this boot in a log. That is the end if the log is older, cloud-init's banner if
/// there is one, else the beginning.
fn start(file: &File, metadata: &Metadata, began: Timestamp) -> u64 {
    if is_older(metadata, began) {
        return metadata.len();
    }
    let is_banner = |line: &[u8]| boot_of(line).is_some_and(|boot| boot + SECOND > began);
    lines(file, 0).find(|(_, line)| is_banner(line)).map_or(0, |(at, _)| at)
}

/// Returns the offset of this boot in a kernel log: the last version line.
fn start_of_kernel(file: &File, metadata: &Metadata, began: Timestamp) -> u64 {
    if is_older(metadata, began) {
        return metadata.len();
    }
    let is_first = |line: &[u8]| String::from_utf8_lossy(line).contains(KERNEL);
    let from = metadata.len().saturating_sub(MAX_LOG);
    lines(file, from).filter(|(_, line)| is_first(line)).last().map_or(from, |(at, _)| at)
}

fn is_older(metadata: &Metadata, began: Timestamp) -> bool {
    let written = metadata.modified().ok().and_then(|time| Timestamp::try_from(time).ok());
    written.is_some_and(|written| written < began)
}

/// Yields lines from this offset, with their offsets.
fn lines(mut file: &File, from: u64) -> impl Iterator<Item = (u64, Vec<u8>)> {
    let sought = file.seek(SeekFrom::Start(from)).is_ok();
    let mut reader = BufReader::new(file.take(if sought { MAX_LOG } else { 0 }));
    let mut at = from;
    std::iter::from_fn(move || {
        let mut line = Vec::new();
        let length =
            reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line).ok().filter(|read| *read > 0)?;
        at += length as u64;
        Some((at - length as u64, line))
    })
}

/// Returns the start time of the boot that this line announces.
fn boot_of(line: &[u8]) -> Option<Timestamp> {
    let line = String::from_utf8_lossy(line);
    let (_, date) = line.split_once(BANNER)?;
    Timestamp::strptime(DATE, date.get(..DATE_LENGTH)?).ok()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_log_of_several_boots_is_read_from_this_one_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let boot = |hour| {
            format!(
                "Cloud-init v. 24.1 running 'init-local' at Wed, 18 Nov 2026 0{hour}:00:07 +0000. Up 7.1 seconds.\nsaid\n"
            )
        };
        let text = format!("{}{}{}", boot(1), boot(2), boot(3));
        std::fs::write(&path, &text).unwrap();
        let file = File::open(&path).unwrap();
        let start = |began: &str, written: &str| {
            let written: Timestamp = written.parse().unwrap();
            file.set_modified(SystemTime::from(written)).unwrap();
            usize::try_from(super::start(&file, &file.metadata().unwrap(), began.parse().unwrap())).unwrap()
        };
        let written = "2026-11-18T03:10:00Z";
        assert_eq!(start("2026-11-18T03:00:01Z", written), boot(1).len() + boot(2).len());
        assert_eq!(start("2026-11-18T02:00:07.9Z", written), boot(1).len(), "a date has no parts of seconds");
        assert_eq!(start("2026-11-18T00:00:00Z", written), 0);
        // The log has no line of this boot, then lines without a banner.
        assert_eq!(start("2026-11-18T04:00:00Z", written), text.len());
        assert_eq!(start("2026-11-18T04:00:00Z", "2026-11-18T04:00:30Z"), 0);
        for odd in
            ["running 'init-local' at ", "running 'init-local' at Wed, 18 Nov 2026 99:00:07 +0000", "é"]
        {
            assert_eq!(boot_of(odd.as_bytes()), None, "{odd}");
        }
    }

    #[test]
    fn a_log_of_several_kernels_is_read_from_the_last_one_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("messages");
        let boot = "Nov 18 01:00:07 n1 kern.notice kernel: [    0.000000] Linux version 6.6.1\nNov 18 01:00:09 n1 x: said\n";
        std::fs::write(&path, boot.repeat(3)).unwrap();
        let file = File::open(&path).unwrap();
        let metadata = file.metadata().unwrap();
        let written = Timestamp::try_from(metadata.modified().unwrap()).unwrap();
        let start = |began| usize::try_from(start_of_kernel(&file, &metadata, began)).unwrap();
        assert_eq!(start(written - SECOND), 2 * boot.len());
        assert_eq!(start(written + SECOND), 3 * boot.len(), "nothing of this boot yet");
        std::fs::write(&path, "rotated since\n").unwrap();
        assert_eq!(start_of_kernel(&file, &file.metadata().unwrap(), written - SECOND), 0);
    }
}
