//! Follows a machine: its journal and the logs beside it, each line once, and the facts that the agent observes itself.

use std::io;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use landfall_diagnose::{Case, Clock, Engine, Fact, Observation, SourceId, Stream};
use landfall_evidence::collect::{Host, Secrets};
use landfall_evidence::read::kmsg::{self, RingBuffer};
use landfall_evidence::read::{self, JournalLines};
use landfall_journal::{Filter, Id128, Journal};
use landfall_model::chain;
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

/// The source that holds the entries of all journals.
const JOURNAL: &str = "journal";

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

/// Of `/proc/uptime`.
const MAX_UPTIME: u64 = 4 << 10;

/// The program name under which we write to the journal ourselves: what we say about evidence is none.
const OWN_NAME: &[u8] = b"landfall";

/// Follows one boot of a machine and knows at any time what to make of it.
#[derive(Debug)]
pub struct Watch<'e> {
    engine: &'e Engine,
    case: Case<'e>,
    host: Host,
    journal: Journal,
    journal_lines: Lines,
    /// Remembers between two reads what the last entries left open.
    unfinished: Option<JournalLines<'e>>,
    /// Of the kernel, where no journal exists.
    ring_buffer: Option<RingBuffer>,
    ring_buffer_lines: Option<Lines>,
    tails: Vec<Tail>,
    milestones: Milestones,
    secrets: Option<Secrets>,
    boot: Option<Id128>,
    began: Began,
    /// When something new was last read.
    heard: Instant,
}

/// A source of lines with known origins.
#[derive(Clone, Copy, Debug)]
struct Lines {
    source: SourceId,
    read: u64,
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
        let journal_lines = Lines::of(&mut case, JOURNAL);
        let ring_buffer = if journal.files() == 0 { open_ring_buffer(&host) } else { None };
        let messages = host.exists(OPENRC).then(|| Tail::of_kernels(MESSAGES));
        let tails = LOGS.into_iter().map(Tail::of).chain(messages).collect();
        Self {
            engine,
            case,
            host,
            journal,
            journal_lines,
            unfinished: None,
            ring_buffer,
            ring_buffer_lines: None,
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
        let mut new = self.read_journal() | self.read_ring_buffer();
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
        let up = uptime(&self.host.read("/proc/uptime", MAX_UPTIME).unwrap_or_default());
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
        // A value over several entries may not be complete yet.
        let lines = self.unfinished.take();
        let mut lines = lines.unwrap_or_else(|| JournalLines::new(self.engine.rules().origins()));
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
                self.journal_lines.scan(self.engine, &mut self.case, &mut lines);
            }
        }
        self.journal_lines.scan(self.engine, &mut self.case, &mut lines);
        self.unfinished = Some(lines);
        new
    }

    /// Reads what the kernel wrote since, unless the journal has it by now.
    fn read_ring_buffer(&mut self) -> bool {
        let Some(buffer) = self.ring_buffer.as_mut().filter(|_| self.journal.files() == 0) else {
            return false;
        };
        let Some(started) = self.began.at else { return false };
        let mut lines = JournalLines::new(self.engine.rules().origins());
        let mut new = false;
        loop {
            let result = buffer.read(&mut lines, started, CHUNK);
            if !lines.lines().0.is_empty() {
                new = true;
                let case = &mut self.case;
                let source = self.ring_buffer_lines.get_or_insert_with(|| Lines::of(case, kmsg::PATH));
                source.scan(self.engine, case, &mut lines);
            }
            match result {
                Ok(true) => {}
                Ok(false) => return new,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), "kernel ring buffer reading failed");
                    self.ring_buffer = None;
                    return new;
                }
            }
        }
    }
}

fn open_ring_buffer(host: &Host) -> Option<RingBuffer> {
    RingBuffer::open(host).unwrap_or_else(|error| {
        tracing::info!(error = %chain(&error), "kernel ring buffer opening failed");
        None
    })
}

/// The running boot, as journald calls it.
///
/// A container may have a boot id of its own, and a unit whose `/proc/sys` is protected may see the kernel's instead: where
/// the journal does not know that one, the last boot is meant, if it began since the kernel did.
fn boot_to_follow(host: &Host, journal: &mut Journal) -> (Option<Id128>, Began) {
    let at = |micros: u64| Timestamp::from_microsecond(i64::try_from(micros).ok()?).ok();
    let kernel = host.kernel_started();
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

// === impl Lines ===

impl Lines {
    fn of(case: &mut Case<'_>, name: &str) -> Self {
        Self { source: case.add_source(name, "journal-text"), read: 0 }
    }

    /// Hands all lines to the engine.
    fn scan(&mut self, engine: &Engine, case: &mut Case<'_>, lines: &mut JournalLines<'_>) {
        let (text, origins) = lines.lines();
        if !text.is_empty() {
            let stream = Stream::sniff(JOURNAL, b"");
            case.add(self.source, engine.scan_journal(&stream, self.read + 1, text, origins));
            self.read += text.iter().filter(|byte| **byte == b'\n').count() as u64;
            lines.clear();
        }
    }
}

// === impl Began ===

impl Began {
    /// Where the kernel does not tell, what is known stays.
    fn ask(&mut self, host: &Host) {
        self.asked = Instant::now();
        if !self.is_fixed {
            self.at = host.kernel_started().or(self.at);
        }
    }
}
