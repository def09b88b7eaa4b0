//! Follows a machine: its journal and other logs, each line once, and facts that the agent observes itself.

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

/// journald's directories: in memory until the disk is writable, then on disk.
const JOURNALS: [&str; 2] = ["run/log/journal", "var/log/journal"];

/// Logs that bypass the journal, at least on some images. `kubeadm` writes to the second one.
const LOGS: [&str; 2] = ["/var/log/cloud-init.log", "/var/log/cloud-init-output.log"];

/// The source of the entries of all journals.
const JOURNAL: &str = "journal";

/// The system log of machines without a journal. It contains several boots.
const MESSAGES: &str = "/var/log/messages";
/// Exists where OpenRC is the init system instead of systemd.
const OPENRC: &str = "/run/openrc";

/// Bytes passed to the engine per call, and read of one log before the next log is read.
pub(crate) const CHUNK: usize = 256 << 10;

/// Entries per pass; the rest waits for the next pass, so that a burst does not delay the verdict.
const MAX_ENTRIES: usize = 20_000;

/// Interval of reading the boot time, which changes when the clock is set.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Size limit of `/proc/uptime`.
const MAX_UPTIME: u64 = 4 << 10;

/// The name under which landfall logs to the journal. Its own messages about evidence are not evidence.
const OWN_NAME: &[u8] = b"landfall";

/// Follows one boot of a machine and can report on it at any time.
#[derive(Debug)]
pub struct Watch<'e> {
    engine: &'e Engine,
    case: Case<'e>,
    host: Host,
    journal: Journal,
    journal_lines: Lines,
    /// The unfinished lines of the last journal read.
    unfinished: Option<JournalLines<'e>>,
    /// The kernel's messages, where no journal exists.
    ring_buffer: Option<RingBuffer>,
    ring_buffer_lines: Option<Lines>,
    tails: Vec<Tail>,
    milestones: Milestones,
    secrets: Option<Secrets>,
    boot: Option<Id128>,
    began: Began,
    /// Time at which a new line was last read.
    heard: Instant,
}

/// A source of lines with known origins.
#[derive(Clone, Copy, Debug)]
struct Lines {
    source: SourceId,
    read: u64,
}

/// Start of this boot.
#[derive(Clone, Copy, Debug)]
struct Began {
    /// The start if known, by the clock at the time of `asked`.
    at: Option<Timestamp>,
    asked: Instant,
    /// Set for a container, which started after the kernel: only its journal has the start.
    is_fixed: bool,
}

// === impl Watch ===

impl<'e> Watch<'e> {
    /// Follows this boot from its beginning.
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

    /// Returns the identity of the machine and its boot. Names and IDs may be set during the boot, so they
    /// are read again.
    pub fn identity(&self) -> NodeIdentity {
        let mut identity = self.host.identity();
        identity.boot_id = self.boot.map(hyphenated).or(identity.boot_id);
        identity
    }

    /// Waits until the journal grows or the timeout passes.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        self.journal.wait(timeout).map(drop)
    }

    /// Reads new lines and returns whether there were any.
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

    /// Adds a process exit that the kernel reported.
    pub(crate) fn ended(&mut self, ended: &Ended, at: Timestamp) {
        let (program, pid) = (ended.name.to_owned(), ended.pid);
        let kind = match ended.end {
            End::Code(code) => Fact::Exit { program, pid, code },
            End::Signal(signal) => Fact::Signal { program, pid, signal },
        };
        self.case.observe(&Observation { kind, time: at });
        self.heard = Instant::now();
    }

    /// Adds a unit state that the service manager reported.
    pub(crate) fn changed(&mut self, change: &Change) {
        // In a container, changes from before its start belong to an earlier boot.
        self.began.ask(&self.host);
        if self.began.at.is_some_and(|began| change.at < began) {
            return;
        }
        self.case.observe(&Observation { kind: Fact::Unit(change.state.clone()), time: change.at });
        self.heard = Instant::now();
    }

    /// Returns a report on everything read so far. Secrets are redacted by their form and by their value.
    pub fn report(&mut self) -> Result<Report, read::ReadError> {
        let up = uptime(&self.host.read("/proc/uptime", MAX_UPTIME).unwrap_or_default());
        let mut report = self.case.clone().finish_at(Clock { now: self.present(up), up });
        // The reasoning is a page long and used only by `landfall diagnose --explain`.
        report.reasoning = None;
        let secrets = match self.secrets.take() {
            Some(secrets) => secrets,
            None => Secrets::of(&self.host).map_err(read::ReadError::Redact)?,
        };
        let redactor = self.secrets.insert(secrets).redactor(&self.host).map_err(read::ReadError::Redact)?;
        read::clean_with(&mut report, redactor);
        Ok(report)
    }

    /// Returns the current time by the clock of the logs. The machine's clock does not count if it was set
    /// since the last line, or if the lines are of another time. The result is then the time of the last line
    /// plus the silence since.
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
        // A value over several entries may be incomplete.
        let lines = self.unfinished.take();
        let mut lines = lines.unwrap_or_else(|| JournalLines::new(self.engine.rules().origins()));
        let mut new = false;
        for _ in 0..MAX_ENTRIES {
            let Some(mut entry) = self.journal.next() else { break };
            let own =
                entry.get("SYSLOG_IDENTIFIER").ok().flatten().is_some_and(|name| name.value() == OWN_NAME);
            // The journal reader reports the damaged entry; the next one may be complete.
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

    /// Reads new kernel messages, unless a journal exists.
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

/// Returns the running boot with journald's boot ID, and its start.
///
/// A container may have its own boot ID, while a unit with a protected `/proc/sys` may see the kernel's. If
/// the journal does not contain that ID, its last boot is used, provided that it began after the kernel did.
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

/// Parses `/proc/uptime`: seconds since the kernel started, then idle seconds.
fn uptime(text: &[u8]) -> Option<SignedDuration> {
    let text = String::from_utf8_lossy(text);
    let seconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    SignedDuration::try_from_secs_f64(seconds).ok()
}

/// Formats a boot ID as the kernel does.
fn hyphenated(boot: Id128) -> String {
    let digits = boot.to_string();
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32];
    parts.map(|part| digits.get(part).unwrap_or_default().to_owned()).join("-")
}

/// Passes complete lines to the engine and returns their number.
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

    /// Passes all lines to the engine.
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
    /// Updates the start; if the kernel's value is unavailable, the known one stays.
    fn ask(&mut self, host: &Host) {
        self.asked = Instant::now();
        if !self.is_fixed {
            self.at = host.kernel_started().or(self.at);
        }
    }
}
