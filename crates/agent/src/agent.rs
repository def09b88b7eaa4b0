//! The loop: wait, read, reason, keep, bring out.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use landfall_diagnose::{Engine, RuleError, RuleSet};
use landfall_evidence::collect::Host;
use landfall_evidence::read::ReadError;
use landfall_model::chain;
use landfall_model::envelope::Envelope;
use landfall_model::report::State;
use landfall_steps::durable::{self, Access, HostDisk};

use crate::carrier::{Carrier, carry};
use crate::keeper::{KeepError, Keeper};
use crate::processes::Processes;
use crate::serve::{Port, Serve, ServeError};
use crate::spool::{Spool, SpoolError};
use crate::watch::Watch;

/// How often logs are looked at that the kernel does not tell about. Bounds how late a failure is seen.
const LOOK: Duration = Duration::from_millis(500);
/// The same once the node is up: what goes wrong then is no emergency of the first boot.
const LOOK_WHEN_DONE: Duration = Duration::from_secs(5);
/// Reasoning takes milliseconds; a chatty journal must not make it take a core.
const BETWEEN_REPORTS: Duration = Duration::from_millis(500);
/// How often it is tried again to write what the disk did not take.
const WRITE_AGAIN: Duration = Duration::from_secs(5);
/// Told once is enough: the spool holds the rest.
const QUEUED_NEWS: usize = 1;
/// Ends of programs nobody has looked at yet; those beyond are not told.
const QUEUED_ENDS: usize = 64;

static DISK: HostDisk = HostDisk;

/// What an agent is told.
#[expect(missing_debug_implementations, reason = "carriers hold credentials")]
pub struct Config {
    /// The machine's root folder.
    pub root: PathBuf,
    /// Where the last report and the spools are kept.
    pub state: PathBuf,
    pub carriers: Vec<Box<dyn Carrier>>,
    /// The port to be asked on, if any.
    pub serve: Option<Serve>,
}

/// An agent that can start.
#[expect(missing_debug_implementations, reason = "holds a private key")]
pub struct Agent {
    engine: Engine,
    host: Host,
    keeper: Keeper<'static>,
    carriers: Vec<(Box<dyn Carrier>, Spool<'static>)>,
    port: Option<Port>,
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
    #[error("cannot take up the last report")]
    Keep(#[source] KeepError),
    #[error("cannot open the spool of the {carrier}")]
    Spool {
        carrier: &'static str,
        #[source]
        source: SpoolError,
    },
    #[error("cannot open the agent's port")]
    Serve(#[source] ServeError),
    #[error("cannot start a carrier")]
    Thread(#[source] io::Error),
}

/// Why one turn of the loop made no report; the next may.
#[derive(Debug, thiserror::Error)]
enum TurnError {
    #[error("cannot clean the report")]
    Clean(#[source] ReadError),
    #[error("cannot keep the report")]
    Keep(#[source] KeepError),
}

// === impl Agent ===

impl Agent {
    /// Opens everything; nothing is read of the machine yet.
    pub fn open(config: Config) -> Result<Self, AgentError> {
        let engine = RuleSet::embedded().and_then(Engine::new).map_err(AgentError::Rules)?;
        let host = Host::at(&config.root)
            .map_err(|source| AgentError::Root { path: config.root.clone(), source })?;
        let spools = config.state.join("spool");
        for folder in parents(&config.state).chain([spools.as_path()]) {
            durable::create_dir(&DISK, folder, Access::PRIVATE_DIR)
                .map_err(|source| AgentError::State { path: folder.to_owned(), source })?;
        }
        let keeper = Keeper::open(&DISK, &config.state).map_err(AgentError::Keep)?;
        let mut carriers = Vec::new();
        for carrier in config.carriers {
            let name = carrier.name();
            let failed = |source| AgentError::Spool { carrier: name, source };
            let spool = Spool::open(&DISK, &spools.join(name)).map_err(failed)?;
            // It was kept before it was spooled, and the power may have gone in between.
            if let Some(last) = keeper.last() {
                add(&spool, last);
            }
            carriers.push((carrier, spool));
        }
        let port =
            config.serve.map(|serve| Port::open(serve, &config.root, &config.state, keeper.unwritten()));
        let port = port.transpose().map_err(AgentError::Serve)?;
        Ok(Self { engine, host, keeper, carriers, port })
    }

    /// Follows the machine until the process ends.
    pub fn run(self) -> Result<(), AgentError> {
        let Self { engine, host, mut keeper, carriers, port } = self;
        let node = host.identity();
        let mut watch = Watch::new(&engine, host);
        thread::scope(|scope| {
            let mut spools = Vec::new();
            for (mut carrier, spool) in carriers {
                let (tell, news) = sync_channel(QUEUED_NEWS);
                let own = spool.clone();
                let thread = thread::Builder::new().name(carrier.name().to_owned());
                thread
                    .spawn_scoped(scope, move || carry(carrier.as_mut(), &own, &news))
                    .map_err(AgentError::Thread)?;
                spools.push((spool, tell));
            }
            if let Some(port) = port {
                let thread = thread::Builder::new().name("port".to_owned());
                thread.spawn(move || port.run()).map_err(AgentError::Thread)?;
            }
            let (tell, ends) = sync_channel(QUEUED_ENDS);
            match Processes::listen() {
                Ok(processes) => {
                    let thread = thread::Builder::new().name("processes".to_owned());
                    thread.spawn(move || processes.follow(&tell)).map_err(AgentError::Thread)?;
                }
                Err(error) => tracing::info!(%error, "The kernel does not tell of processes; the logs do."),
            }
            tracing::info!(node = node.hostname, "Following this boot.");
            let mut unsaid = true;
            let mut made = Instant::now().checked_sub(BETWEEN_REPORTS).unwrap_or_else(Instant::now);
            let mut look = LOOK;
            let mut tried = None;
            loop {
                unsaid |= watch.read();
                for ended in ends.try_iter() {
                    watch.ended(&ended, Timestamp::now());
                    unsaid = true;
                }
                if unsaid && made.elapsed() >= BETWEEN_REPORTS {
                    made = Instant::now();
                    match turn(&watch, &mut keeper, &node, &spools) {
                        Ok(state) => {
                            unsaid = false;
                            look = if state == State::Succeeded { LOOK_WHEN_DONE } else { LOOK };
                        }
                        Err(error) => tracing::error!(error = %chain(&error), "No report was made."),
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

/// Makes a report, and when it says something new, keeps it and hands it to the carriers.
fn turn(
    watch: &Watch<'_>,
    keeper: &mut Keeper<'_>,
    node: &landfall_model::identity::NodeIdentity,
    spools: &[(Spool<'_>, SyncSender<()>)],
) -> Result<State, TurnError> {
    let report = watch.report().map_err(TurnError::Clean)?;
    let state = report.verdict.state;
    if !keeper.is_news(node, &report) {
        return Ok(state);
    }
    let envelope = keeper.keep(node.clone(), report, Timestamp::now()).map_err(TurnError::Keep)?;
    let verdict = &envelope.report.verdict;
    tracing::info!(report = %envelope.id, state = ?verdict.state, title = verdict.title, "A new report.");
    for (spool, tell) in spools {
        add(spool, envelope);
        // A full queue means that it is told already.
        let _ = tell.try_send(());
    }
    Ok(state)
}

/// Hands a report to a carrier. A disk that is full, which may be what the report is about, does not keep it from going out.
fn add(spool: &Spool<'_>, envelope: &Envelope) {
    if let Err(error) = spool.add(envelope) {
        tracing::warn!(report = %envelope.id, error = %chain(&error), "A report waits in memory only.");
    }
}

/// Writes what the disk did not take, every now and then, and says so once.
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

/// The folder and those above it that do not exist, outermost first.
fn parents(folder: &Path) -> impl Iterator<Item = &Path> {
    let mut missing: Vec<&Path> = folder.ancestors().skip(1).take_while(|above| !above.exists()).collect();
    missing.reverse();
    missing.into_iter().filter(|path| !path.as_os_str().is_empty()).chain([folder])
}
