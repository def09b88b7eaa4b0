//! The main loop: wait, read, evaluate, store, deliver.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use landfall_diagnose::{Engine, RuleError, RuleSet};
use landfall_durable::{self as durable, Access, Disk as _, HostDisk, Lock};
use landfall_evidence::collect::Host;
use landfall_evidence::read::ReadError;
use landfall_model::chain;
use landfall_model::report::State;
use landfall_net::varied;
use rustix::fs::{Mode, OFlags};

use crate::carrier::{Carrier, carry};
use crate::keeper::{KeepError, Keeper, SignedReport};
use crate::processes::Processes;
use crate::serve::{Serve, serve};
use crate::spool::{SPOOLS, Spool, SpoolError};
use crate::units::Units;
use crate::watch::Watch;

/// Poll interval for logs without change notifications. Bounds the delay until a failure is detected.
const LOOK: Duration = Duration::from_millis(500);
/// Poll interval on a ready node: later problems are less urgent than those of the first boot.
const LOOK_WHEN_DONE: Duration = Duration::from_secs(5);
/// Minimum time between reports. A report takes milliseconds; without this limit, a busy journal would use a
/// full core.
const BETWEEN_REPORTS: Duration = Duration::from_millis(500);
/// Interval of evaluation without new lines: a hung stage is detected by the absence of lines.
const THINK_AGAIN: Duration = Duration::from_secs(10);
/// Heartbeat interval of a node that is not ready. It varies, so that a fleet does not report at the
/// same moment. A receiver may treat a node as silent after three missed heartbeats.
const BEAT: Duration = Duration::from_secs(60);
/// Variation of the heartbeat interval, in percent.
const BEAT_VARIATION: u32 = 10;
/// Interval between attempts to write reports that the disk rejected.
const WRITE_AGAIN: Duration = Duration::from_secs(5);
/// One queued wake-up is enough; the carrier drains its whole spool.
const QUEUED_NEWS: usize = 1;
/// Process exits queued for the main loop; further ones are dropped.
const QUEUED_ENDS: usize = 64;
/// Unit changes queued for the main loop; further ones are reported by the next poll.
const QUEUED_CHANGES: usize = 64;

/// Lock file below the state directory. The agent that writes there holds it; it contains that agent's
/// process ID.
const LOCK: &str = "lock";
/// A process ID and a newline fit.
const MAX_LOCK: u64 = 32;

static DISK: HostDisk = HostDisk;

/// Configuration of an agent.
#[expect(missing_debug_implementations, reason = "carriers hold credentials")]
pub struct Config {
    /// The machine's root directory.
    pub root: PathBuf,
    /// Directory of the last report and the spools.
    pub state: PathBuf,
    pub carriers: Vec<Box<dyn Carrier>>,
    /// The port that serves reports and bundles, if any.
    pub serve: Option<Serve>,
}

/// An agent that is ready to run.
#[expect(missing_debug_implementations, reason = "holds a private key")]
pub struct Agent {
    engine: Engine,
    host: Host,
    units: Units,
    keeper: Keeper<'static>,
    carriers: Vec<(Box<dyn Carrier>, Spool<'static>)>,
    serve: Option<Serve>,
    root: PathBuf,
    state: PathBuf,
    /// The kernel releases the lock with the process, however it exits.
    held: Option<Box<dyn Lock>>,
}

#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("cannot use the built-in rules")]
    Rules(#[source] RuleError),
    #[error("cannot open the root folder `{}`", path.display())]
    Root {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot make the state folder `{}`", path.display())]
    State {
        path: PathBuf,
        #[source]
        source: durable::Error,
    },
    #[error("another agent{} works with the state folder `{}`", process.map(|id| format!(", process {id},")).unwrap_or_default(), path.display())]
    Held { path: PathBuf, process: Option<u32> },
    #[error("cannot take up the last report")]
    Keep(#[source] KeepError),
    #[error("cannot open the spool of the {carrier}")]
    Spool {
        carrier: &'static str,
        #[source]
        source: SpoolError,
    },
    #[error("cannot start a carrier")]
    Thread(#[source] io::Error),
}

/// A carrier from the main loop's perspective.
struct Outlet<'d> {
    spool: Spool<'d>,
    tell: SyncSender<()>,
    /// Number of heartbeats between two repetitions of the last report, or `None` for no repetitions.
    beats: Option<u64>,
}

/// Reason for making a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    /// New input, or none for too long. An unchanged report is not delivered again.
    Look,
    /// A heartbeat with its number: an unchanged report is delivered again to show liveness.
    Beat(u64),
}

/// Result of one pass of the main loop.
struct Turn {
    state: State,
    told: bool,
}

/// Reason why one pass of the main loop made no report; the next pass may succeed.
#[derive(Debug, thiserror::Error)]
enum TurnError {
    #[error("cannot clean the report")]
    Clean(#[source] ReadError),
    #[error("cannot keep the report")]
    Keep(#[source] KeepError),
}

// === impl Agent ===

impl Agent {
    /// Opens the rules, the state directory and the port without reading the machine's logs.
    pub fn open(config: Config) -> Result<Self, AgentError> {
        let engine = RuleSet::embedded().and_then(Engine::new).map_err(AgentError::Rules)?;
        let at = || {
            Host::at(&config.root).map_err(|source| AgentError::Root { path: config.root.clone(), source })
        };
        let (host, units) = (at()?, Units::of(at()?));
        let spools = config.state.join(SPOOLS);
        for folder in parents(&config.state).chain([spools.as_path()]) {
            durable::create_dir(&DISK, folder, Access::PRIVATE_DIR)
                .map_err(|source| AgentError::State { path: folder.to_owned(), source })?;
        }
        let held = hold(&config.state)?;
        let keeper = Keeper::open(&DISK, &config.state).map_err(AgentError::Keep)?;
        let mut carriers = Vec::new();
        for carrier in config.carriers {
            let name = carrier.name();
            let failed = |source| AgentError::Spool { carrier: name, source };
            let spool = Spool::open(&DISK, &spools.join(name)).map_err(failed)?;
            // The last report is stored before it is spooled: a power failure in between leaves it out of the
            // spool.
            if let Some(last) = keeper.last() {
                add(&spool, last);
            }
            carriers.push((carrier, spool));
        }
        let Config { serve, root, state, .. } = config;
        Ok(Self { engine, host, units, keeper, carriers, serve, root, state, held })
    }

    /// Follows the machine until the process exits.
    pub fn run(self) -> Result<(), AgentError> {
        let Self { engine, host, units, mut keeper, carriers, serve: port, root, state, held: _held } = self;
        let is_of_this_kernel = host.is_of_this_kernel();
        let mut watch = Watch::new(&engine, host);
        thread::scope(|scope| {
            let mut outlets = Vec::new();
            for (mut carrier, spool) in carriers {
                let (tell, news) = sync_channel(QUEUED_NEWS);
                let (own, beats) = (spool.clone(), carrier.beats());
                let thread = thread::Builder::new().name(carrier.name().to_owned());
                thread
                    .spawn_scoped(scope, move || carry(carrier.as_mut(), &own, &news))
                    .map_err(AgentError::Thread)?;
                outlets.push(Outlet { spool, tell, beats });
            }
            if let Some(port) = port {
                let (thread, unwritten) =
                    (thread::Builder::new().name("port".to_owned()), keeper.unwritten());
                let serving = move || serve(&port, &root, &state, &unwritten);
                thread.spawn(serving).map_err(AgentError::Thread)?;
            }
            let (tell, ends) = sync_channel(QUEUED_ENDS);
            // On a directory or another machine's disk, the kernel events would describe unrelated processes.
            match is_of_this_kernel.then(Processes::listen).transpose() {
                Ok(None) => {}
                Ok(Some(processes)) => {
                    let thread = thread::Builder::new().name("processes".to_owned());
                    thread.spawn(move || processes.follow(&tell)).map_err(AgentError::Thread)?;
                }
                Err(error) => tracing::info!(%error, "The kernel does not tell of processes; the logs do."),
            }
            let (tell, changes) = sync_channel(QUEUED_CHANGES);
            let done = Arc::new(AtomicBool::new(false));
            let thread = thread::Builder::new().name("units".to_owned());
            let seen = Arc::clone(&done);
            thread.spawn(move || units.follow(&tell, &seen)).map_err(AgentError::Thread)?;
            tracing::info!(node = watch.identity().hostname, "Following this boot.");
            let mut unsaid = true;
            let mut made = Instant::now().checked_sub(BETWEEN_REPORTS).unwrap_or_else(Instant::now);
            let mut look = LOOK;
            let mut tried = None;
            let mut beat = Instant::now() + varied(BEAT, BEAT_VARIATION);
            let mut beats = 0;
            loop {
                unsaid |= watch.read();
                for ended in ends.try_iter() {
                    watch.ended(&ended, Timestamp::now());
                    unsaid = true;
                }
                for change in changes.try_iter() {
                    watch.changed(&change);
                    unsaid = true;
                }
                let up = done.load(Ordering::Relaxed);
                let why = match made.elapsed() {
                    _ if !up && Instant::now() >= beat => Some(Why::Beat(beats + 1)),
                    waited if unsaid && waited >= BETWEEN_REPORTS => Some(Why::Look),
                    waited if !up && waited >= THINK_AGAIN => Some(Why::Look),
                    _ => None,
                };
                if let Some(why) = why {
                    made = Instant::now();
                    match turn(&mut watch, &mut keeper, &outlets, why) {
                        Ok(turn) => {
                            unsaid = false;
                            let up = turn.state == State::Succeeded;
                            done.store(up, Ordering::Relaxed);
                            look = if up { LOOK_WHEN_DONE } else { LOOK };
                            if turn.told {
                                beat = Instant::now() + varied(BEAT, BEAT_VARIATION);
                            }
                        }
                        Err(error) => tracing::error!(error = %chain(&error), "No report was made."),
                    }
                    if let Why::Beat(number) = why {
                        beats = number;
                        beat = Instant::now() + varied(BEAT, BEAT_VARIATION);
                    }
                }
                settle(&mut keeper, &mut tried);
                if let Err(error) = watch.wait(if unsaid { BETWEEN_REPORTS } else { look }) {
                    tracing::warn!(error = %error, "Cannot wait for the journal.");
                    thread::park_timeout(look);
                }
            }
        })
    }
}

/// Makes a report. If it is new or a heartbeat is due, stores it and adds it to the carriers' spools.
fn turn(
    watch: &mut Watch<'_>,
    keeper: &mut Keeper<'_>,
    outlets: &[Outlet<'_>],
    why: Why,
) -> Result<Turn, TurnError> {
    let report = watch.report().map_err(TurnError::Clean)?;
    let node = watch.identity();
    let state = report.verdict.state;
    let news = keeper.is_news(&node, &report);
    let beat = match why {
        // A ready node sends no heartbeats.
        Why::Beat(number) if state != State::Succeeded => Some(number),
        _ => None,
    };
    if !news && beat.is_none() {
        return Ok(Turn { state, told: false });
    }
    // A heartbeat repeats the stored report verbatim: line counts that have grown since do not justify a new
    // one.
    let repeated = keeper.last().filter(|_| !news).map(|last| last.message.report.clone());
    let report = repeated.unwrap_or(report);
    let kept = keeper.keep(node, report, Timestamp::now()).map_err(TurnError::Keep)?;
    if news {
        let verdict = &kept.message.report.verdict;
        tracing::info!(report = %kept.message.id, state = ?verdict.state, title = verdict.title, "A new report.");
    }
    for outlet in outlets.iter().filter(|outlet| news || beat.is_some_and(|beat| outlet.takes(beat))) {
        add(&outlet.spool, kept);
        // A full queue already contains a wake-up.
        let _ = outlet.tell.try_send(());
    }
    Ok(Turn { state, told: true })
}

/// Adds a report to a carrier's spool. A full disk, which may be the reported cause, does not prevent its
/// delivery.
fn add(spool: &Spool<'_>, report: &SignedReport) {
    if let Err(error) = spool.add(report) {
        tracing::warn!(report = %report.message.id, error = %chain(&error), "A report waits in memory only.");
    }
}

/// Retries writes that the disk rejected, and logs the first failure and the recovery.
fn settle(keeper: &mut Keeper<'_>, tried: &mut Option<Instant>) {
    if !keeper.is_behind() || tried.is_some_and(|tried| tried.elapsed() < WRITE_AGAIN) {
        return;
    }
    match keeper.settle() {
        Ok(()) => {
            tracing::info!("The last report is on the disk again.");
            *tried = None;
        }
        Err(error) => {
            if tried.is_none() {
                tracing::error!(error = %chain(&error), "The last report is not on the disk: it is sent, but a crash would lose it.");
            }
            *tried = Some(Instant::now());
        }
    }
}

/// Locks the state directory: two agents that count reports and drain spools there would interfere. A full or
/// read-only disk does not prevent reports.
fn hold(state: &Path) -> Result<Option<Box<dyn Lock>>, AgentError> {
    let path = state.join(LOCK);
    match DISK.lock(&path) {
        Ok(held) => {
            // The process ID is for the error message of a second agent; without it the message is less
            // specific.
            let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::open(&path, flags, Mode::empty()).map(File::from);
            let _ = file.map(|mut file| file.write_all(format!("{}\n", std::process::id()).as_bytes()));
            Ok(Some(held))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            let holder = DISK.read(&path, MAX_LOCK).ok();
            let process = holder.and_then(|text| String::from_utf8(text).ok()?.trim().parse().ok());
            Err(AgentError::Held { path: state.to_owned(), process })
        }
        Err(error) => {
            tracing::warn!(%error, path = %path.display(), "Nothing keeps a second agent from the state folder.");
            Ok(None)
        }
    }
}

/// Returns the missing ancestors of a directory, outermost first.
fn parents(folder: &Path) -> impl Iterator<Item = &Path> {
    let mut missing: Vec<&Path> = folder.ancestors().skip(1).take_while(|above| !above.exists()).collect();
    missing.reverse();
    missing.into_iter().filter(|path| !path.as_os_str().is_empty()).chain([folder])
}

// === impl Outlet ===

impl Outlet<'_> {
    /// Whether the carrier repeats the last report on this heartbeat.
    fn takes(&self, beat: u64) -> bool {
        self.beats.is_some_and(|every| beat.is_multiple_of(every)) && self.spool.takes_repeats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of spooled reports in each outlet after one more pass.
    fn told(outlets: &[Outlet<'_>]) -> Vec<usize> {
        outlets.iter().map(|outlet| outlet.spool.waiting().unwrap().len()).collect()
    }

    #[test]
    fn until_the_node_is_up_a_report_is_told_again_to_those_who_want_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("machine");
        std::fs::create_dir_all(root.join("var/log")).unwrap();
        let log = root.join("var/log/cloud-init-output.log");
        std::fs::write(&log, "[kubelet-start] Starting the kubelet\n").unwrap();
        let engine = Engine::new(RuleSet::embedded().unwrap()).unwrap();
        let mut watch = Watch::new(&engine, Host::at(&root).unwrap());
        let mut keeper = Keeper::open(&DISK, folder.path()).unwrap();
        let outlets: Vec<Outlet<'_>> = [("hub", Some(1)), ("object", Some(4)), ("bucket", None)]
            .into_iter()
            .map(|(name, beats)| {
                let spool = Spool::open(&DISK, &folder.path().join(name)).unwrap();
                Outlet { spool, tell: sync_channel(QUEUED_NEWS).0, beats }
            })
            .collect();
        let empty = || {
            for outlet in &outlets {
                for id in outlet.spool.waiting().unwrap() {
                    outlet.spool.remove(id).unwrap();
                }
            }
        };
        let mut look = |watch: &mut Watch<'_>, why| {
            watch.read();
            let turn = turn(watch, &mut keeper, &outlets, why).unwrap();
            (turn.told, turn.state, keeper.last().unwrap().message.clone())
        };
        let (news, state, first) = look(&mut watch, Why::Look);
        assert!(news && state == State::Running && told(&outlets) == [1, 1, 1]);
        assert!(!look(&mut watch, Why::Look).0, "the same is told again without need");

        // While a new report is spooled, no heartbeats are added. A direct request still gets the newer
        // report.
        std::fs::write(&log, "[kubelet-start] Starting the kubelet\nof no interest\n").unwrap();
        let (_, _, second) = look(&mut watch, Why::Beat(1));
        assert_eq!(told(&outlets), [1, 1, 1]);
        assert!(second.sequence == first.sequence + 1 && second.id != first.id && second.time >= first.time);
        assert_eq!(second.report, first.report, "a beat says the same, however logs grow");
        empty();
        look(&mut watch, Why::Beat(2));
        assert_eq!(told(&outlets), [1, 0, 0]);
        empty();
        look(&mut watch, Why::Beat(4));
        assert_eq!(told(&outlets), [1, 1, 0]);

        // A ready node is reported once.
        empty();
        std::fs::write(&log, "This node has joined the cluster:\n").unwrap();
        let (news, state, _) = look(&mut watch, Why::Look);
        assert!(news && state == State::Succeeded && told(&outlets) == [1, 1, 1]);
        empty();
        assert!(!look(&mut watch, Why::Beat(5)).0);
        assert_eq!(told(&outlets), [0, 0, 0]);
    }

    #[test]
    fn a_state_folder_has_one_agent() {
        let folder = tempfile::tempdir().unwrap();
        let config = || Config {
            root: folder.path().to_owned(),
            state: folder.path().join("state"),
            carriers: Vec::new(),
            serve: None,
        };
        let first = Agent::open(config()).unwrap_or_else(|error| panic!("{error}"));
        let second = Agent::open(config()).err().unwrap();
        let words = format!("another agent, process {}, works with the state folder", std::process::id());
        assert!(second.to_string().starts_with(&words), "{second}");
        drop(first);
        assert!(Agent::open(config()).is_ok(), "what the first left stops nobody");
    }
}
