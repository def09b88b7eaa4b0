//! What the machine says, as it says it: its journal and the logs beside it, each line once.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use jiff::Timestamp;
use landfall_diagnose::{Case, Engine, SourceId, Stream};
use landfall_evidence::collect::Host;
use landfall_evidence::read;
use landfall_journal::{Filter, Id128, Journal};
use landfall_model::report::Report;

use crate::processes::Ended;

/// Where journald writes: in memory until the disk can be written to, then there.
const JOURNALS: [&str; 2] = ["run/log/journal", "var/log/journal"];

/// Logs that do not pass through the journal, at least on some images. `kubeadm` speaks in the second.
const LOGS: [&str; 2] = ["/var/log/cloud-init.log", "/var/log/cloud-init-output.log"];

/// Bytes handed to the engine at once, and read of one log before the others get their turn.
const CHUNK: usize = 256 << 10;

/// Entries of one turn; the rest waits for the next, so that a flood does not keep the verdict waiting.
const MAX_ENTRIES: usize = 20_000;

/// `/proc/stat` has a line for each processor and one for all interrupts.
const MAX_STAT: u64 = 1 << 20;

/// The program name under which we write to the journal ourselves: what we say about evidence is none.
const OWN_NAME: &[u8] = b"landfall";

/// Follows one boot of a machine and knows at any time what to make of it.
#[derive(Debug)]
pub struct Watch<'e> {
    engine: &'e Engine,
    case: Case<'e>,
    host: Host,
    journal: Journal,
    journal_source: SourceId,
    journal_lines: u64,
    tails: Vec<Tail>,
    /// What the kernel says of processes, and how many lines of it there are.
    ends: Option<(SourceId, u64)>,
}

/// A log that grows.
#[derive(Debug)]
struct Tail {
    path: &'static str,
    source: Option<(SourceId, Stream)>,
    inode: u64,
    read: u64,
    lines: u64,
    /// A line without its end yet.
    rest: Vec<u8>,
}

// === impl Watch ===

impl<'e> Watch<'e> {
    /// Follows this boot, from its beginning.
    pub fn new(engine: &'e Engine, host: Host) -> Self {
        let mut journal = Journal::open(JOURNALS.map(|path| host.root().join(path)));
        if let Some(boot) = boot_to_follow(&host, &mut journal) {
            journal.set_filter(Filter::boot(boot));
        }
        let mut case = engine.open();
        let journal_source = case.add_source("journal", "journal-text");
        let tail = |path| Tail { path, source: None, inode: 0, read: 0, lines: 0, rest: Vec::new() };
        let tails = LOGS.map(tail).into();
        Self { engine, case, host, journal, journal_source, journal_lines: 0, tails, ends: None }
    }

    /// Waits until the journal grows, at most this long.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.journal.wait(timeout).map(drop)
    }

    /// Reads what is new; whether anything was.
    pub fn read(&mut self) -> bool {
        let mut new = self.read_journal();
        let mut tails = std::mem::take(&mut self.tails);
        for tail in &mut tails {
            new |= tail.read(self.engine, &mut self.case, &self.host);
        }
        self.tails = tails;
        new
    }

    /// Takes the kernel's word for a line of the program's own.
    pub(crate) fn ended(&mut self, ended: &Ended, at: Timestamp) {
        let (source, lines) =
            self.ends.get_or_insert_with(|| (self.case.add_source("processes", "journal-text"), 0));
        let Ended { name, pid, end } = ended;
        let line = format!("{at:.6} localhost {name}[{pid}]: the process ended with {end}\n");
        let stream = Stream::sniff("processes", b"");
        *lines += scan(self.engine, &mut self.case, *source, &stream, *lines, line.as_bytes());
    }

    /// What to make of everything read so far. Secrets are taken out.
    pub fn report(&self) -> Result<Report, read::ReadError> {
        let mut report = self.case.clone().finish();
        // A page long, and for whoever asks `landfall diagnose --explain`.
        report.reasoning = None;
        read::clean(&mut report).map_err(read::ReadError::Redact)?;
        Ok(report)
    }

    fn read_journal(&mut self) -> bool {
        let stream = Stream::sniff("journal", b"");
        let mut chunk = Vec::new();
        let mut new = false;
        for _ in 0..MAX_ENTRIES {
            let Some(mut entry) = self.journal.next() else { break };
            let own =
                entry.get("SYSLOG_IDENTIFIER").ok().flatten().is_some_and(|name| name.value() == OWN_NAME);
            // A damaged entry is told by the journal itself; the next one may be whole.
            if own || read::entry_lines(entry, &mut chunk).is_err() {
                continue;
            }
            new = true;
            if chunk.len() >= CHUNK {
                self.journal_lines += scan(
                    self.engine,
                    &mut self.case,
                    self.journal_source,
                    &stream,
                    self.journal_lines,
                    &chunk,
                );
                chunk.clear();
            }
        }
        if !chunk.is_empty() {
            self.journal_lines +=
                scan(self.engine, &mut self.case, self.journal_source, &stream, self.journal_lines, &chunk);
        }
        new
    }
}

/// The running boot, as journald calls it.
///
/// A container may have a boot id of its own, and a unit whose `/proc/sys` is protected may see the kernel's instead: where
/// the journal does not know that one, the last boot is meant, if it began since the kernel did.
fn boot_to_follow(host: &Host, journal: &mut Journal) -> Option<Id128> {
    let running = host.identity().boot_id?.replace('-', "").parse::<Id128>().ok()?;
    let boots = journal.boots();
    if boots.iter().any(|boot| boot.id == running) {
        return Some(running);
    }
    let began = kernel_began(&host.read("/proc/stat", MAX_STAT).unwrap_or_default());
    let last = boots.last().filter(|boot| began.is_some_and(|began| boot.first >= began));
    Some(last.map_or(running, |boot| boot.id))
}

/// In microseconds, out of `/proc/stat`.
fn kernel_began(stat: &[u8]) -> Option<u64> {
    let stat = String::from_utf8_lossy(stat);
    let seconds: u64 = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    seconds.checked_mul(1_000_000)
}

/// Hands whole lines to the engine; how many they were.
fn scan(
    engine: &Engine,
    case: &mut Case<'_>,
    source: SourceId,
    stream: &Stream,
    before: u64,
    chunk: &[u8],
) -> u64 {
    case.add(source, engine.scan(stream, before + 1, chunk));
    chunk.iter().filter(|byte| **byte == b'\n').count() as u64
}

// === impl Tail ===

impl Tail {
    fn read(&mut self, engine: &Engine, case: &mut Case<'_>, host: &Host) -> bool {
        let Ok(file) = host.open(self.path) else { return false };
        let Ok(metadata) = file.metadata() else { return false };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_when_it_began() {
        assert_eq!(kernel_began(b"cpu 1 2\nbtime 1700000000\nprocesses 7\n"), Some(1_700_000_000_000_000));
        for odd in [&b""[..], b"btime x\n", b"btime 99999999999999999999\n", b"btime 18446744073709551615\n"]
        {
            assert_eq!(kernel_began(odd), None);
        }
    }
}
