//! Runs the steps of a node: output during the run, and its result.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use landfall_model::chain;
use landfall_model::step::{Outcome, StepState, Unit};
use landfall_net::Notify;
use landfall_node::environment::{Environment as _, HostEnvironment};
use landfall_node::in_place::places::RUN as IN_PLACE;
use landfall_node::prepare::environment::PrepareEnvironment as _;
use landfall_node::prepare::operator::REBOOT_REQUIRED;
use landfall_node::prepare::request::Request;
use landfall_node::prepare::run::{self, Decided, Other, Prepared};
use landfall_node::prepare::status::{self, Published};
use landfall_node::run::RunError;
use landfall_steps::LedgerError;
use landfall_steps::events::{EventFile, EventStream, Journal, Renderer, Sink, StatusLine, Terminal};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::Format;
use super::prepare::{RebootBy, advice};
use crate::exit::{Exit, Failure};
use crate::output::{Progress, say};
use crate::runtime::Signals;

/// Time to wait after a reboot request to systemd, which ends this process.
const REBOOT_PATIENCE: Duration = Duration::from_mins(10);

/// Time limit of one annotation, which no other component waits for.
const PUBLISH_LIMIT: Duration = Duration::from_secs(15);

/// Continuation of a run that has not ended.
pub(super) struct Continuation {
    /// The command that requests the reboot.
    pub(super) command: &'static str,
    pub(super) after_reboot: &'static str,
    pub(super) after_stop: &'static str,
    /// The exit code of a process that systemd ends for the reboot.
    pub(super) rebooting: Exit,
}

const RESUME: Continuation = Continuation {
    command: "landfall node prepare",
    after_reboot: "after it, run `landfall node resume`",
    after_stop: "`landfall node resume` continues",
    // A unit that ends because of its own reboot request has not failed.
    rebooting: Exit::Done,
};

/// Prints one line per step; on a terminal also a progress bar.
#[derive(Default)]
struct Lines {
    bar: Option<Progress>,
    /// The last message: repeated identical failures are printed once.
    last: String,
}

/// The request of a run, and its output options.
pub(super) struct Ask<'a> {
    pub(super) request: &'a Request,
    pub(super) other: Other,
    pub(super) reboot: RebootBy,
    pub(super) output: Format,
}

pub(super) fn carry_out(
    runtime: &Runtime,
    env: &Arc<HostEnvironment>,
    ask: &Ask<'_>,
) -> Result<Exit, Failure> {
    let mut sinks = sinks();
    sinks.push(Box::new(EventFile::at(env.host_path(Path::new(run::EVENTS)))));
    let events = EventStream::new(sinks);
    let cancel = CancellationToken::new();
    let prepared = execute(runtime, &cancel, run::prepare(env, ask.request, ask.other, &events, &cancel));
    let prepared = prepared.map_err(failure)?;
    // Printed before a reboot ends this process.
    print(env, ask.output)?;
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
                None => say("This node is prepared; no `kubelet.env` was requested."),
            }
            Ok(Exit::Done)
        }
        Prepared::Failed { step, reason, why, decided } => {
            let (hint, exit) = advice(why);
            let go_on = match decided {
                Decided::NotYet => "nothing was laid down: run it again, with other flags if need be",
                Decided::Yes => {
                    "then `landfall node resume`; use `landfall node prepare --start-over` for other flags or to read the lists again"
                }
            };
            Err(Failure::new(step_failed(&step, &reason), format!("{hint}; {go_on}")).exit(exit))
        }
        Prepared::Run(outcome) => match pause(runtime, env, &outcome, ask.reboot, &RESUME)? {
            Some(exit) => Ok(exit),
            None => Err(ended(&outcome)),
        },
    }
}

/// Prints the status of the node as data.
pub(super) fn print(env: &HostEnvironment, output: Format) -> Result<(), Failure> {
    if output == Format::Json {
        let document = status::status(env).map_err(failure)?;
        crate::output::print(&super::status::json(&document)?)?;
    }
    Ok(())
}

/// Returns all event sinks of this process.
pub(super) fn sinks() -> Vec<Box<dyn Sink>> {
    let mut sinks: Vec<Box<dyn Sink>> = vec![Box::new(Terminal::new(Lines::default()))];
    // Without a journal the lines above contain the same events already.
    if std::env::var_os("JOURNAL_STREAM").is_some() || tracing::enabled!(tracing::Level::INFO) {
        sinks.push(Box::new(Journal));
    }
    if let Some(manager) = Notify::from_environment() {
        sinks.push(Box::new(StatusLine::new(manager)));
    }
    sinks
}

/// Runs the work. A termination signal cancels it, and it may still finish by itself.
pub(super) fn execute<T>(runtime: &Runtime, cancel: &CancellationToken, work: impl Future<Output = T>) -> T {
    runtime.block_on(async {
        tokio::select! {
            biased;
            done = work => done,
            never = cancel_on_signal(cancel) => match never {},
        }
    })
}

async fn cancel_on_signal(cancel: &CancellationToken) -> Infallible {
    asked_to_end().await;
    cancel.cancel();
    std::future::pending().await
}

/// Returns a future that completes on a termination signal; signals are caught from this call on. Needs a runtime.
pub(super) fn asked_to_end() -> impl Future<Output = ()> {
    let signals = Signals::new();
    async move {
        match signals {
            Ok(mut signals) => signals.next().await,
            // Without a handler the signal itself ends the process.
            Err(_) => std::future::pending().await,
        }
    }
}

/// Writes the status of the node to its Node object. The object may not exist yet, and the work does not depend on
/// it.
pub(super) fn publish(runtime: &Runtime, env: &HostEnvironment, kubeconfig: &Path, node: &str) {
    let published = match status::status(env) {
        Ok(document) => {
            let publish = status::publish(env, kubeconfig, node, &document);
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

/// Returns the exit of a run that waits for a reboot or another event; `None` when it has failed or ended.
pub(super) fn pause(
    runtime: &Runtime,
    env: &HostEnvironment,
    outcome: &Outcome,
    reboot: RebootBy,
    next: &Continuation,
) -> Result<Option<Exit>, Failure> {
    match outcome {
        Outcome::RebootNeeded { .. } => self::reboot(runtime, env, reboot, next).map(Some),
        Outcome::Waiting { on, .. } => {
            say(&format!("Waiting for {on}."));
            Ok(Some(Exit::TryLater))
        }
        Outcome::Cancelled => {
            say(&format!("Stopped; {}.", next.after_stop));
            Ok(Some(Exit::TryLater))
        }
        _ => Ok(None),
    }
}

fn reboot(
    runtime: &Runtime,
    env: &HostEnvironment,
    reboot: RebootBy,
    next: &Continuation,
) -> Result<Exit, Failure> {
    let Continuation { command, after_reboot, .. } = next;
    let by_hand = |error: anyhow::Error| {
        Failure::new(error, format!("reboot by hand; {after_reboot}")).exit(Exit::Reboot)
    };
    match reboot {
        RebootBy::Exit if env.is_live_system() => {
            say(&format!("Reboot this machine; {after_reboot}."));
            Ok(Exit::Reboot)
        }
        RebootBy::Exit => {
            say(&format!("Reboot the machine at `{}`; {after_reboot}.", env.root().display()));
            Ok(Exit::Reboot)
        }
        RebootBy::Required => {
            let path = env.host_path(Path::new(REBOOT_REQUIRED));
            std::fs::write(&path, format!("{command}\n"))
                .with_context(|| format!("write `{}`", path.display()))
                .map_err(by_hand)?;
            say(&format!("`{REBOOT_REQUIRED}` requests a reboot; {after_reboot}."));
            Ok(Exit::Reboot)
        }
        RebootBy::Systemd => {
            say("Rebooting.");
            let _within = runtime.enter();
            let ended = asked_to_end();
            env.reboot().map_err(|reason| by_hand(anyhow!(reason).context("ask for a reboot")))?;
            // systemd ends this process. Its unit must not end earlier, because that would mean success.
            if runtime.block_on(async { tokio::time::timeout(REBOOT_PATIENCE, ended).await }).is_ok() {
                return Ok(next.rebooting);
            }
            Err(Failure::new(anyhow!("systemd was asked to reboot and did not"), "see `systemctl list-jobs`"))
        }
    }
}

fn ended(outcome: &Outcome) -> Failure {
    match outcome {
        Outcome::Failed { step, reason, .. } => {
            let hint =
                "`landfall node status` shows the plan; fix the problem, then run `landfall node resume`";
            Failure::new(step_failed(step, reason), hint)
        }
        Outcome::RolledBack { step, reason } | Outcome::RollbackFailed { step, reason, .. } => {
            step_failed(step, reason).into()
        }
        Outcome::Abandoned { reason } => anyhow!("the run was abandoned: {reason}").into(),
        other => anyhow!("unexpected end of the run: {other:?}").into(),
    }
}

/// Checks that the root directory exists, so that a typing error does not create one.
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
            "`landfall node resume` continues it as requested; `--start-over` abandons it and uses these flags"
        }
        RunError::Ledger(LedgerError::Busy { .. }) => {
            "wait for the other process; `landfall node status` shows its progress"
        }
        RunError::Ledger(LedgerError::Damaged { dir }) if dir.iter().any(|name| name == IN_PLACE) => {
            "read `journalctl -u landfall-in-place`; the kubelet waits until the ledger is removed"
        }
        RunError::InProgress { .. } => "wait until it has ended; `landfall node status` shows its progress",
        RunError::NothingOpen => "begin one with `landfall node prepare` or `landfall node in-place`",
        RunError::UnknownHost { .. } => {
            "give the root of the machine with `--root`, or its kind with `--kind`"
        }
        _ => "run as root, on a disk that can be written",
    };
    // Another running process is a temporary condition, not a failure.
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
        // Consecutive operations of a step may have different lengths.
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
