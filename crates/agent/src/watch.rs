//! Follows a machine: its journal and the logs beside it, each line once, and the facts that the agent observes itself.

use std::io;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use landfall_diagnose::{Case, Clock, Engine, Fact, Observation, SourceId, Stream};
use landfall_evidence::collect::{Host, Secrets};
use landfall_evidence::read::{self, JournalLines};
use landfall_journal::{Filter, Id128, Journal};
use landfall_model::identity::NodeIdentity;
use landfall_model::report::Report;

use crate::milestones::Milestones;
use crate::processes::{End, Ended};
use crate::tail::Tail;
use crate::units::Change;

/// Where journald writes: in memory until the disk can be written to, then there.
const JOURNALS: [&str; 2] = ["run/log/journal", "var/log/journal"];

/// Logs that do not pass through the journal, at least on some images. `kubeadm` speaks in the second.
const LOGS: [&str; 2] = ["/var/log/cloud-init.log", "/var/log/cloud-init-output.log"];

/// Where there is no journal, this is what all programs say. It is of several boots.
const MESSAGES: &str = "/var/log/messages";
/// OpenRC runs the machine, not systemd.
const OPENRC: &str = "/run/openrc";

/// Bytes handed to the engine at once, and read of one log before the others get their turn.
pub(crate) const CHUNK: usize = 256 << 10;

/// Entries of one turn; the rest waits for the next, so that a flood does not keep the verdict waiting.
const MAX_ENTRIES: usize = 20_000;

/// How often it is asked when the boot began: a clock that is set moves that, too.
const ASK_AGAIN: Duration = Duration::from_secs(1);

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
    milestones: Milestones,
    secrets: Option<Secrets>,
    boot: Option<Id128>,
    began: Began,
    /// When something new was last read.
    heard: Instant,
}

/// When this boot began.
#[derive(Clone, Copy, Debug)]
struct Began {
    /// As far as anybody knows, by the clock as it was set when this was asked.
    at: Option<Timestamp>,
    asked: Instant,
    /// Of a container, which began later than the kernel: only its journal tells.
    is_fixed: bool,
}

// === impl Watch ===

impl<'e> Watch<'e> {
    /// Follows this boot, from its beginning.
    pub fn new(engine: &'e Engine, host: Host) -> Self {
        let mut journal = Journal::open(JOURNALS.map(|path| host.root().join(path)));
        let (boot, began) = boot_to_follow(&host, &mut journal);
        if let Some(boot) = boot {
            journal.set_filter(Filter::boot(boot));
        }
        let mut case = engine.open();
        let journal_source = case.add_source("journal", "journal-text");
        let messages = host.exists(OPENRC).then(|| Tail::of_kernels(MESSAGES));
        let tails = LOGS.into_iter().map(Tail::of).chain(messages).collect();
        Self {
            engine,
            case,
            host,
            journal,
            journal_source,
            journal_lines: 0,
            tails,
            milestones: Milestones::default(),
            secrets: None,
            boot,
            began,
            heard: Instant::now(),
        }
    }

    /// Which machine it is, and which boot of it. Names and ids come while it boots, so that it is worth asking again.
    pub fn identity(&self) -> NodeIdentity {
        let mut identity = self.host.identity();
        identity.boot_id = self.boot.map(hyphenated).or(identity.boot_id);
        identity
    }

    /// Waits until the journal grows, at most this long.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.journal.wait(timeout).map(drop)
    }

    /// Reads what is new; whether anything was.
    pub fn read(&mut self) -> bool {
        let mut new = self.read_journal();
        if self.began.asked.elapsed() >= ASK_AGAIN {
            self.began.ask(&self.host);
        }
        let began = self.began.at;
        let mut tails = std::mem::take(&mut self.tails);
        for tail in &mut tails {
            new |= tail.read(self.engine, &mut self.case, &self.host, began);
        }
        self.tails = tails;
        for observation in self.milestones.look(&self.host, began, Timestamp::now()) {
            self.case.observe(&observation);
            new = true;
        }
        if new {
            self.heard = Instant::now();
        }
        new
    }

    /// Adds the end of a process, as the kernel reports it.
    pub(crate) fn ended(&mut self, ended: &Ended, at: Timestamp) {
        let (program, pid) = (ended.name.to_owned(), ended.pid);
        let kind = match ended.end {
            End::Code(code) => Fact::Exit { program, pid, code },
            End::Signal(signal) => Fact::Signal { program, pid, signal },
        };
        self.case.observe(&Observation { kind, time: at });
        self.heard = Instant::now();
    }

    /// Adds the state of a unit, as the service manager reports it.
    pub(crate) fn changed(&mut self, change: &Change) {
        // What an earlier boot of a container left is none of this one's.
        self.began.ask(&self.host);
        if self.began.at.is_some_and(|began| change.at < began) {
            return;
        }
        self.case.observe(&Observation { kind: Fact::Unit(change.state.clone()), time: change.at });
        self.heard = Instant::now();
    }

    /// What to make, at this moment, of everything read so far. Secrets are taken out, by their form and by their value.
    pub fn report(&mut self) -> Result<Report, read::ReadError> {
        let up = uptime(&self.host.read("/proc/uptime", MAX_STAT).unwrap_or_default());
        let mut report = self.case.clone().finish_at(Clock { now: self.present(up), up });
        // A page long, and for whoever asks `landfall diagnose --explain`.
        report.reasoning = None;
        let secrets = match self.secrets.take() {
            Some(secrets) => secrets,
            None => Secrets::of(&self.host).map_err(read::ReadError::Redact)?,
        };
        let redactor = self.secrets.insert(secrets).redactor(&self.host).map_err(read::ReadError::Redact)?;
        read::clean_with(&mut report, redactor);
        Ok(report)
    }

    /// The present, by the clock that the logs go by. Where the machine's clock was set since the last line, or the lines are
    /// of another time, it is what that line tells and the silence since.
    fn present(&self, up: Option<SignedDuration>) -> Option<Timestamp> {
        let last = self.case.last()?;
        let clock = Timestamp::now();
        let silence = clock.duration_since(last);
        if up.is_some_and(|up| !silence.is_negative() && silence <= up) {
            return Some(clock);
        }
        last.checked_add(self.heard.elapsed()).ok()
    }

    fn read_journal(&mut self) -> bool {
        let mut lines = JournalLines::new(self.engine.rules().origins());
        let mut new = false;
        for _ in 0..MAX_ENTRIES {
            let Some(mut entry) = self.journal.next() else { break };
            let own =
                entry.get("SYSLOG_IDENTIFIER").ok().flatten().is_some_and(|name| name.value() == OWN_NAME);
            // The journal itself reports a damaged entry; the next one may be whole.
            if own || lines.push(entry).is_err() {
                continue;
            }
            new = true;
            if lines.lines().0.len() >= CHUNK {
                self.scan_journal(&mut lines);
            }
        }
        self.scan_journal(&mut lines);
        new
    }

    fn scan_journal(&mut self, lines: &mut JournalLines<'_>) {
        let (text, origins) = lines.lines();
        if !text.is_empty() {
            let stream = Stream::sniff("journal", b"");
            let scan = self.engine.scan_journal(&stream, self.journal_lines + 1, text, origins);
            self.case.add(self.journal_source, scan);
            self.journal_lines += text.iter().filter(|byte| **byte == b'\n').count() as u64;
            lines.clear();
        }
    }
}

/// The running boot, as journald calls it.
///
/// A container may have a boot id of its own, and a unit whose `/proc/sys` is protected may see the kernel's instead: where
/// the journal does not know that one, the last boot is meant, if it began since the kernel did.
fn boot_to_follow(host: &Host, journal: &mut Journal) -> (Option<Id128>, Began) {
    let at = |micros: u64| Timestamp::from_microsecond(i64::try_from(micros).ok()?).ok();
    let kernel = kernel_began(host);
    let began = |at, is_fixed| Began { at, asked: Instant::now(), is_fixed };
    let running = host.identity().boot_id.and_then(|id| id.replace('-', "").parse::<Id128>().ok());
    let Some(running) = running else { return (None, began(kernel, false)) };
    let boots = journal.boots();
    if let Some(known) = boots.iter().find(|boot| boot.id == running) {
        return (Some(known.id), began(kernel.or_else(|| at(known.first)), false));
    }
    let since = |first| kernel.is_some_and(|kernel| at(first).is_some_and(|first| first >= kernel));
    match boots.last().filter(|boot| since(boot.first)) {
        Some(container) => (Some(container.id), began(at(container.first), true)),
        None => (Some(running), began(kernel, false)),
    }
}

/// Out of `/proc/uptime`: seconds since the kernel began, and idle ones.
fn uptime(text: &[u8]) -> Option<SignedDuration> {
    let text = String::from_utf8_lossy(text);
    let seconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    SignedDuration::try_from_secs_f64(seconds).ok()
}

/// As the kernel writes it.
fn hyphenated(boot: Id128) -> String {
    let digits = boot.to_string();
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32];
    parts.map(|part| digits.get(part).unwrap_or_default().to_owned()).join("-")
}

/// As the machine's kernel says, by the clock as it is set now.
fn kernel_began(host: &Host) -> Option<Timestamp> {
    boot_time(&host.read("/proc/stat", MAX_STAT).unwrap_or_default())
}

/// Out of `/proc/stat`.
fn boot_time(stat: &[u8]) -> Option<Timestamp> {
    let stat = String::from_utf8_lossy(stat);
    let seconds = stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Timestamp::from_second(seconds).ok()
}

/// Hands whole lines to the engine; how many they were.
pub(crate) fn scan(
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

// === impl Began ===

impl Began {
    /// Where the kernel does not tell, what is known stays.
    fn ask(&mut self, host: &Host) {
        self.asked = Instant::now();
        if !self.is_fixed {
            self.at = kernel_began(host).or(self.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_when_it_began() {
        let began = boot_time(b"cpu 1 2\nbtime 1700000000\nprocesses 7\n");
        assert_eq!(began, Some(Timestamp::from_second(1_700_000_000).unwrap()));
        for odd in [&b""[..], b"btime x\n", b"btime 99999999999999999999\n", b"btime 18446744073709551615\n"]
        {
            assert_eq!(boot_time(odd), None);
        }
    }
}
