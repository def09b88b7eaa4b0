//! A log that grows. cloud-init's logs go on over all boots of a machine; only what this boot writes counts.

use std::fs::{File, Metadata};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;

use jiff::{SignedDuration, Timestamp};
use landfall_diagnose::{Case, Engine, SourceId, Stream};
use landfall_evidence::collect::Host;

use crate::watch::{CHUNK, scan};

/// With this cloud-init begins a boot; the date that follows has seconds and no parts of them.
const BANNER: &str = "running 'init-local' at ";
const DATE: &str = "%a, %d %b %Y %H:%M:%S %z";
const DATE_LENGTH: usize = "Thu, 01 Jan 2026 00:01:00 +0000".len();
const SECOND: SignedDuration = SignedDuration::from_secs(1);
/// What is looked at of a line for the banner, and of a log for the line: beyond, it is a log that nobody wrote to be read.
const MAX_LINE: u64 = 64 << 10;
const MAX_LOG: u64 = 64 << 20;

#[derive(Debug)]
pub(crate) struct Tail {
    path: &'static str,
    source: Option<(SourceId, Stream)>,
    inode: u64,
    read: u64,
    lines: u64,
    /// A line without its end yet.
    rest: Vec<u8>,
}

// === impl Tail ===

impl Tail {
    pub(crate) fn of(path: &'static str) -> Self {
        Self { path, source: None, inode: 0, read: 0, lines: 0, rest: Vec::new() }
    }

    /// Reads what is new; whether anything was. What the log held before this boot began is not of it.
    pub(crate) fn read(
        &mut self,
        engine: &Engine,
        case: &mut Case<'_>,
        host: &Host,
        began: Option<Timestamp>,
    ) -> bool {
        let Ok(file) = host.open(self.path) else { return false };
        let Ok(metadata) = file.metadata() else { return false };
        if self.inode == 0
            && let Some(began) = began
        {
            (self.inode, self.read) = (metadata.ino(), start(&file, &metadata, began));
        }
        if metadata.ino() != self.inode || metadata.len() < self.read {
            // Rotated, or emptied.
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
            new |= self.scan(engine, case);
        }
        new
    }

    fn take(&mut self, mut file: &File) -> io::Result<usize> {
        file.seek(SeekFrom::Start(self.read))?;
        let count = file.take(CHUNK as u64).read_to_end(&mut self.rest)?;
        self.read += count as u64;
        Ok(count)
    }

    fn scan(&mut self, engine: &Engine, case: &mut Case<'_>) -> bool {
        // A line longer than a chunk is cut: it is a dump, and its end may never come.
        let whole = match self.rest.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => at + 1,
            None if self.rest.len() >= CHUNK => self.rest.len(),
            None => return false,
        };
        let chunk: Vec<u8> = self.rest.drain(..whole).collect();
        let (source, stream) = self.source.get_or_insert_with(|| {
            let stream = Stream::sniff(self.path, &chunk);
            (case.add_source(self.path, stream.kind.name()), stream)
        });
        self.lines += scan(engine, case, *source, stream, self.lines, &chunk);
        true
    }
}

/// Where this boot begins in a log: at the end when nothing was written since, at cloud-init's banner where there is one, and
/// else at the beginning.
fn start(file: &File, metadata: &Metadata, began: Timestamp) -> u64 {
    let written = metadata.modified().ok().and_then(|time| Timestamp::try_from(time).ok());
    if written.is_some_and(|written| written < began) {
        return metadata.len();
    }
    let mut reader = BufReader::new(file.take(MAX_LOG));
    let mut line = Vec::new();
    let mut at = 0;
    loop {
        line.clear();
        match reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return 0,
            Ok(length) => {
                if boot_of(&line).is_some_and(|boot| boot + SECOND > began) {
                    return at;
                }
                at += length as u64;
            }
        }
    }
}

/// When the boot began that this line announces.
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
            file.try_clone().unwrap().rewind().unwrap();
            usize::try_from(super::start(&file, &file.metadata().unwrap(), began.parse().unwrap())).unwrap()
        };
        let written = "2026-11-18T03:10:00Z";
        assert_eq!(start("2026-11-18T03:00:01Z", written), boot(1).len() + boot(2).len());
        assert_eq!(start("2026-11-18T02:00:07.9Z", written), boot(1).len(), "a date has no parts of seconds");
        assert_eq!(start("2026-11-18T00:00:00Z", written), 0);
        // Nothing of this boot yet, and something without a banner.
        assert_eq!(start("2026-11-18T04:00:00Z", written), text.len());
        assert_eq!(start("2026-11-18T04:00:00Z", "2026-11-18T04:00:30Z"), 0);
        for odd in
            ["running 'init-local' at ", "running 'init-local' at Wed, 18 Nov 2026 99:00:07 +0000", "é"]
        {
            assert_eq!(boot_of(odd.as_bytes()), None, "{odd}");
        }
    }
}
