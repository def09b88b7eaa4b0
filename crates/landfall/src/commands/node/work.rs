//! Running the steps of a node: what is shown on the way, and how it ends.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use landfall_model::chain;
use landfall_model::step::{Outcome, StepState, Unit};
use landfall_node::prepare::operator::REBOOT_REQUIRED;
use landfall_node::prepare::request::Request;
use landfall_node::prepare::run::{self, Decided, Other, Prepared, RunError};
use landfall_node::prepare::status::{self, Published};
use landfall_node::prepare::systemd;
use landfall_node::prepare::world::{HostWorld, World as _};
use landfall_steps::LedgerError;
use landfall_steps::events::{EventFile, EventStream, Journal, Notify, Renderer, Sink, Terminal};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::Format;
use super::prepare::{RebootBy, advice};
use crate::exit::{Exit, Failure};
use crate::output::{Progress, say};

/// How long to stay after systemd was asked to reboot: it ends us.
const REBOOT_PATIENCE: Duration = Duration::from_mins(10);

/// For one annotation: nobody waits for it.
const PUBLISH_LIMIT: Duration = Duration::from_secs(15);

/// One line per step; a bar while something is on its way, on a terminal.
#[derive(Default)]
struct Lines {
    bar: Option<Progress>,
    /// A step that fails the same way again and again says so once.
    last: String,
}

pub(super) fn runtime() -> Result<Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    Ok(runtime.context("start the asynchronous runtime")?)
}

/// What a run is to do, and how it is to be told.
pub(super) struct Ask<'a> {
    pub(super) request: &'a Request,
    pub(super) other: Other,
    pub(super) reboot: RebootBy,
    pub(super) output: Format,
}

pub(super) fn carry_out(runtime: &Runtime, world: &Arc<HostWorld>, ask: &Ask<'_>) -> Result<Exit, Failure> {
    let mut sinks = sinks();
    sinks.push(Box::new(EventFile::at(world.place(Path::new(run::EVENTS)))));
    let events = EventStream::new(sinks);
    let cancel = CancellationToken::new();
    let prepared = runtime.block_on(async {
        let signals = cancel_on_signal(&cancel);
        let work = run::prepare(world, ask.request, ask.other, &events, &cancel);
        tokio::select! {
            biased;
            prepared = work => prepared,
            // Never comes: it only cancels.
            () = signals => Err(RunError::NothingOpen),
        }
    });
    let prepared = prepared.map_err(failure)?;
    // Before a reboot ends this process.
    print(world, ask.output)?;
    match prepared {
        Prepared::Before => {
            say("This node is prepared: its `kubelet.env` is there. Nothing was done.");
            Ok(Exit::Done)
        }
        Prepared::Run(Outcome::Done) => {
            match &ask.request.kubelet_env {
                Some(path) => {
                    say(&format!("This node is prepared: `{}` lets the kubelet start.", path.display()));
                }
                None => say("This node is prepared; no `kubelet.env` was asked for."),
            }
            Ok(Exit::Done)
        }
        Prepared::Failed { step, reason, why, decided } => {
            let (hint, exit) = advice(why);
            let go_on = match decided {
                Decided::NotYet => "nothing was laid down: run it again, with other flags if need be",
                Decided::Yes => {
                    "then `landfall node resume`, or with other flags, or to read the lists anew, `landfall node prepare --start-over`"
                }
            };
            Err(Failure::new(step_failed(&step, &reason), format!("{hint}; {go_on}")).exit(exit))
        }
        Prepared::Run(outcome) => end(runtime, world, &outcome, ask.reboot),
    }
}

/// How the node stands, as data.
pub(super) fn print(world: &HostWorld, output: Format) -> Result<(), Failure> {
    if output == Format::Json {
        let document = status::status(world).map_err(failure)?;
        crate::output::print(&super::status::json(&document)?)?;
    }
    Ok(())
}

/// Everybody here who hears of events.
pub(super) fn sinks() -> Vec<Box<dyn Sink>> {
    let mut sinks: Vec<Box<dyn Sink>> = vec![Box::new(Terminal::new(Lines::default()))];
    // Elsewhere the lines above say the same, and nobody asked for it twice.
    if std::env::var_os("JOURNAL_STREAM").is_some() || tracing::enabled!(tracing::Level::INFO) {
        sinks.push(Box::new(Journal));
    }
    match std::env::var_os("NOTIFY_SOCKET").map(|socket| Notify::new(&socket)) {
        Some(Ok(notify)) => sinks.push(Box::new(notify)),
        Some(Err(error)) => tracing::warn!(%error, "The service manager will not hear of progress."),
        None => {}
    }
    sinks
}

/// Asks for a stop when the process is asked to stop.
pub(super) async fn cancel_on_signal(cancel: &CancellationToken) {
    asked_to_end().await;
    cancel.cancel();
    std::future::pending::<()>().await;
}

/// Listens from now on; comes when the process is asked to end. Within a runtime.
pub(super) fn asked_to_end() -> impl Future<Output = ()> {
    use tokio::signal::unix::{SignalKind, signal};
    let listening =
        signal(SignalKind::terminate()).and_then(|end| Ok((end, signal(SignalKind::interrupt())?)));
    async move {
        let Ok((mut end, mut interrupt)) = listening else {
            // Then the signal itself ends the process.
            return std::future::pending().await;
        };
        tokio::select! {
            _ = end.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}

/// Writes how the node stands on the node itself. It may not be there yet, and the work does not depend on it.
pub(super) fn publish(runtime: &Runtime, world: &HostWorld, kubeconfig: &Path, node: &str) {
    let published = match status::status(world) {
        Ok(document) => {
            let publish = status::publish(world, kubeconfig, node, &document);
            runtime.block_on(async { tokio::time::timeout(PUBLISH_LIMIT, publish).await })
        }
        Err(error) => return tracing::warn!(error = %chain(&error), "The node's status cannot be read."),
    };
    match published {
        Ok(Ok(Published::Written)) => {}
        Ok(Ok(Published::NoSuchNode)) => tracing::info!(node, "The cluster does not know this node yet."),
        Ok(Err(error)) => tracing::warn!(error = %chain(&error), "The status was not written on the node."),
        Err(_) => tracing::warn!("The status was not written on the node in time."),
    }
}

fn step_failed(step: &str, reason: &str) -> anyhow::Error {
    anyhow!("{reason}").context(format!("step `{step}` failed"))
}

fn end(runtime: &Runtime, world: &HostWorld, outcome: &Outcome, reboot: RebootBy) -> Result<Exit, Failure> {
    match outcome {
        Outcome::Done => Ok(Exit::Done),
        Outcome::RebootNeeded { .. } if reboot == RebootBy::Exit => {
            if world.is_here() {
                say("Reboot this machine, then run `landfall node resume`.");
            } else {
                let root = world.root().display();
                say(&format!("Boot the system in `{root}`, then run `landfall node resume` on it."));
            }
            Ok(Exit::Reboot)
        }
        Outcome::RebootNeeded { .. } if reboot == RebootBy::Required => {
            require_reboot(&world.place(Path::new(REBOOT_REQUIRED)), "landfall node prepare")?;
            say(&format!("`{REBOOT_REQUIRED}` asks for a reboot; `landfall node resume` goes on after it."));
            Ok(Exit::Reboot)
        }
        Outcome::RebootNeeded { .. } => {
            say("Rebooting.");
            let _within = runtime.enter();
            let ended = asked_to_end();
            systemd::reboot().map_err(|reason| {
                let error = anyhow!(reason).context("ask for a reboot");
                Failure::new(error, "reboot by hand; the run goes on after it").exit(Exit::Reboot)
            })?;
            // systemd ends this process; its unit must not end before that as if the work were done. That end is what was
            // asked for, and no failure.
            let ended = runtime.block_on(async { tokio::time::timeout(REBOOT_PATIENCE, ended).await });
            if ended.is_ok() {
                return Ok(Exit::Done);
            }
            Err(Failure::new(anyhow!("systemd was asked to reboot and did not"), "see `systemctl list-jobs`"))
        }
        Outcome::Waiting { on, .. } => {
            say(&format!("Waiting for {on}."));
            Ok(Exit::TryLater)
        }
        Outcome::Cancelled => {
            say("Stopped; `landfall node resume` goes on.");
            Ok(Exit::TryLater)
        }
        Outcome::Failed { step, reason, .. } => {
            let hint =
                "`landfall node status` shows the plan; mend what is wrong, then `landfall node resume`";
            Err(Failure::new(step_failed(step, reason), hint))
        }
        Outcome::RolledBack { step, reason } | Outcome::RollbackFailed { step, reason, .. } => {
            Err(step_failed(step, reason).into())
        }
        Outcome::Abandoned { reason } => Err(anyhow!("the run was given up: {reason}").into()),
    }
}

/// Leaves word for whoever reboots machines here.
pub(super) fn require_reboot(path: &Path, who: &str) -> Result<(), Failure> {
    std::fs::write(path, format!("{who}\n")).map_err(|error| {
        let error = anyhow!(error).context(format!("write `{}`", path.display()));
        Failure::new(error, "reboot by hand; the run goes on after it").exit(Exit::Reboot)
    })
}

/// The folder of a machine, and not one that a slip of the hand would make.
pub(super) fn root_is_there(root: &Path) -> Result<(), Failure> {
    if root.is_dir() {
        return Ok(());
    }
    let error = anyhow!("there is no folder `{}`", root.display());
    Err(Failure::usage(error, "name the root of the machine: `/`, or `/host` in a pod that has it there"))
}

pub(super) fn failure(error: RunError) -> Failure {
    let hint = match &error {
        RunError::Ledger(LedgerError::Unfinished { .. }) => {
            "`landfall node resume` goes on with it as it was asked for; with `--start-over` these flags give it up and count"
        }
        RunError::Ledger(LedgerError::Busy { .. }) => {
            "wait for the other process, or see what it does with `landfall node status`"
        }
        RunError::NothingOpen => "`landfall node prepare` begins one",
        _ => "run it as root, on a disk that can be written",
    };
    // Somebody else is at it: no fault, and over by itself.
    let busy = matches!(error, RunError::Ledger(LedgerError::Busy { .. }));
    Failure::new(error, hint).exit(if busy { Exit::TryLater } else { Exit::Failed })
}

// === impl Lines ===

impl Lines {
    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish();
        }
    }
}

impl Renderer for Lines {
    fn step(&mut self, number: usize, count: usize, title: &str, state: &StepState) {
        self.clear();
        let tail = match state {
            StepState::Pending | StepState::Applying => "…".to_owned(),
            StepState::Done => ": done".to_owned(),
            StepState::Skipped { reason } => format!(": nothing to do, {reason}"),
            StepState::Waiting { on } => format!(": waiting for {on}"),
            StepState::RebootNeeded => ": reboot needed".to_owned(),
            StepState::Failed { reason, .. } => format!(": failed, {reason}"),
            other => format!(": {}", other.name()),
        };
        let line = format!("[{number}/{count}] {title}{tail}");
        if line != self.last {
            say(&line);
        }
        self.last = line;
    }

    fn progress(&mut self, number: usize, count: usize, title: &str, done: u64, total: Option<u64>, _: Unit) {
        // Several things may come one after the other, each with a length of its own.
        if self.bar.as_ref().is_some_and(|bar| bar.total() != total) {
            self.clear();
        }
        let bar =
            self.bar.get_or_insert_with(|| Progress::start(format!("[{number}/{count}] {title}"), total));
        bar.reach(done);
    }

    fn ended(&mut self, _: &Outcome) {
        self.clear();
    }
}
