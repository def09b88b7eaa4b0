//! Running the steps of a node: what is shown on the way, and how it ends.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use landfall_model::step::{Outcome, StepState, Unit};
use landfall_node::prepare::request::Request;
use landfall_node::prepare::run::{self, Other, Prepared, RunError};
use landfall_node::prepare::systemd;
use landfall_node::prepare::world::HostWorld;
use landfall_steps::LedgerError;
use landfall_steps::events::{EventStream, Journal, Notify, Renderer, Sink, Terminal};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::prepare::RebootBy;
use crate::exit::{Exit, Failure};

/// How long to stay after systemd was asked to reboot: it ends us.
const REBOOT_PATIENCE: Duration = Duration::from_mins(10);

/// One line per step; a download's share of the way on a terminal.
struct Lines {
    is_terminal: bool,
    percent: Option<u64>,
}

pub(super) fn runtime() -> Result<Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    Ok(runtime.context("start the asynchronous runtime")?)
}

pub(super) fn carry_out(
    runtime: &Runtime,
    world: &Arc<HostWorld>,
    request: &Request,
    other: Other,
    reboot: RebootBy,
) -> Result<Exit, Failure> {
    let mut sinks: Vec<Box<dyn Sink>> = vec![
        Box::new(Terminal::new(Lines { is_terminal: std::io::stderr().is_terminal(), percent: None })),
        Box::new(Journal),
    ];
    match std::env::var_os("NOTIFY_SOCKET").map(|socket| Notify::new(&socket)) {
        Some(Ok(notify)) => sinks.push(Box::new(notify)),
        Some(Err(error)) => tracing::warn!(%error, "The service manager will not hear of progress."),
        None => {}
    }
    let events = EventStream::new(sinks);
    let cancel = CancellationToken::new();
    let prepared = runtime.block_on(async {
        let signals = cancel_on_signal(&cancel);
        let work = run::prepare(world, request, other, &events, &cancel);
        tokio::select! {
            biased;
            prepared = work => prepared,
            // Never comes: it only cancels.
            () = signals => Err(RunError::NothingOpen),
        }
    });
    match prepared.map_err(failure)? {
        Prepared::Before => {
            say("This node is prepared: its `kubelet.env` is there.");
            Ok(Exit::Done)
        }
        Prepared::Run(outcome) => end(runtime, &outcome, reboot),
    }
}

/// Asks for a stop when the process is asked to stop.
async fn cancel_on_signal(cancel: &CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    if let (Ok(mut end), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    {
        tokio::select! {
            _ = end.recv() => {}
            _ = interrupt.recv() => {}
        }
        cancel.cancel();
    }
    std::future::pending::<()>().await;
}

fn end(runtime: &Runtime, outcome: &Outcome, reboot: RebootBy) -> Result<Exit, Failure> {
    match outcome {
        Outcome::Done => Ok(Exit::Done),
        Outcome::RebootNeeded { .. } if reboot == RebootBy::Exit => {
            say("Reboot this machine, then run `landfall node resume`.");
            Ok(Exit::Reboot)
        }
        Outcome::RebootNeeded { .. } => {
            say("Rebooting.");
            systemd::reboot().map_err(|reason| {
                let error = anyhow!(reason).context("ask for a reboot");
                Failure::new(error, "reboot by hand; the run goes on after it").exit(Exit::Reboot)
            })?;
            // systemd ends this process; its unit must not end before that as if the work were done.
            runtime.block_on(tokio::time::sleep(REBOOT_PATIENCE));
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
            let error = anyhow!("{reason}").context(format!("step `{step}` failed"));
            let exit = if reason.contains("version-skew policy") { Exit::NotPermitted } else { Exit::Failed };
            let hint =
                "`landfall node status` shows the plan; mend what is wrong, then `landfall node resume`";
            Err(Failure::new(error, hint).exit(exit))
        }
        Outcome::RolledBack { step, reason } | Outcome::RollbackFailed { step, reason, .. } => {
            Err(anyhow!("{reason}").context(format!("step `{step}` failed")).into())
        }
        Outcome::Abandoned { reason } => Err(anyhow!("the run was given up: {reason}").into()),
    }
}

pub(super) fn failure(error: RunError) -> Failure {
    let hint = match &error {
        RunError::Ledger(LedgerError::Unfinished { .. }) => {
            "`landfall node resume` goes on with it; `--start-over` gives it up"
        }
        RunError::Ledger(LedgerError::Busy { .. }) => {
            "wait for the other process, or see what it does with `landfall node status`"
        }
        RunError::NothingOpen => "`landfall node prepare` begins one",
        _ => "run it as root, on a disk that can be written",
    };
    Failure::new(error, hint)
}

fn say(line: &str) {
    // Nobody is left to be told when standard error is closed.
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

// === impl Lines ===

impl Renderer for Lines {
    fn step(&mut self, number: usize, count: usize, title: &str, state: &StepState) {
        self.percent = None;
        let tail = match state {
            StepState::Pending | StepState::Applying => "…".to_owned(),
            StepState::Done => ": done".to_owned(),
            StepState::Skipped { reason } => format!(": nothing to do, {reason}"),
            StepState::Waiting { on } => format!(": waiting for {on}"),
            StepState::RebootNeeded => ": reboot needed".to_owned(),
            StepState::Failed { reason, .. } => format!(": failed, {reason}"),
            other => format!(": {}", other.name()),
        };
        say(&format!("[{number}/{count}] {title}{tail}"));
    }

    fn progress(&mut self, number: usize, count: usize, title: &str, done: u64, total: Option<u64>, _: Unit) {
        let Some(percent) = total.filter(|total| *total > 0).map(|total| done.saturating_mul(100) / total)
        else {
            return;
        };
        if self.is_terminal && self.percent != Some(percent) {
            self.percent = Some(percent);
            let end = if percent >= 100 { "\n" } else { "" };
            let _ = write!(std::io::stderr().lock(), "\r[{number}/{count}] {title}: {percent} %{end}");
        }
    }

    fn ended(&mut self, _: &Outcome) {}
}
