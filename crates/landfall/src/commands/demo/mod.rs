//! `landfall demo`: the bootstrap of a cluster in a sandbox, narrated as it happens.
//!
//! The roles are those of this binary, each a process started as an operator would start it. Parts that need root or
//! a cluster are simulated. Machines are directories into which recorded logs are written, and the in-place rollout
//! replays the events of a real one. The output says so at these points.

mod cast;
mod certificates;
mod machines;
mod pod_network;
mod story;
mod wave;

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, anyhow};
use clap::Args;
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use tokio::signal::unix::{SignalKind, signal};

use self::cast::Cast;
use self::story::Story;
use crate::exit::{Exit, Failure};
use crate::output;
use crate::runtime::{self, Signals};

/// Simulate the bootstrap of a cluster on this machine, in a sandbox
///
/// No root, no cluster: hub, gateway, tunnel and node agents run as processes of this program in a temporary folder, on
/// loopback. Machines are folders with recorded logs. Some fail, for reasons that are found out. Everything is removed
/// at the end.
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall demo
  landfall demo --once
  landfall demo --listen 127.0.0.1:8700

Exit codes: 0 the simulation completed · 1 a step of it failed")]
pub(crate) struct Demo {
    /// End with the story; without this the hub's page stays open until Ctrl-C
    #[arg(long)]
    once: bool,

    /// Where the hub's page is served: an address of loopback [default: a free port]
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", hide_default_value = true)]
    listen: SocketAddr,

    /// The process that plays; what follows is the command of one of its roles
    #[arg(long, value_name = "PID", hide = true, requires = "role")]
    parent: Option<i32>,

    /// The role to be
    #[arg(last = true, hide = true, requires = "parent")]
    role: Vec<OsString>,
}

// === impl Demo ===

impl Demo {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        if let Some(parent) = self.parent {
            return Err(become_role(parent, &self.role).into());
        }
        if !self.listen.ip().is_loopback() {
            let error = anyhow!("invalid address {}: must be a loopback address", self.listen);
            return Err(Failure::usage(error, "the sandbox is for this machine only: use 127.0.0.1"));
        }
        // Checked before the demo starts, so that the error is not the hub's message in the middle of the output.
        TcpListener::bind(self.listen).with_context(|| format!("listen on {}", self.listen)).map_err(
            |error| Failure::new(error, "name a free port with `--listen`, or omit it to select one"),
        )?;
        let runtime = runtime::single_threaded()?;
        let played = runtime.block_on(self.play());
        // Background tasks are useless after the end of the demo.
        runtime.shutdown_background();
        played
    }

    async fn play(&self) -> Result<Exit, Failure> {
        let mut signals = Signals::new()?;
        // The terminal may be closed.
        let mut hang_up = signal(SignalKind::hangup()).context("listen for signals")?;
        let told = async {
            tokio::select! {
                () = signals.next() => {}
                _ = hang_up.recv() => {}
            }
        };
        let mut cast = Cast::new().map_err(|error| {
            Failure::new(error, "name a folder you may write to, with a short path, in `TMPDIR`")
        })?;
        let outcome = {
            let story = async {
                let page = Story::new(&mut cast).tell(self.listen).await?;
                if !self.once {
                    output::print(&format!("\nThe hub's page stays open at {page} until Ctrl-C.\n"))?;
                    std::future::pending::<()>().await;
                }
                anyhow::Ok(())
            };
            tokio::select! {
                outcome = story => outcome,
                // An interrupted user has seen enough, but an interrupted script is incomplete.
                () = told => if self.once { Err(anyhow!("the story was interrupted")) } else { Ok(()) },
            }
        };
        let gone = cast.leave().await;
        outcome.map_err(|error| {
            Failure::new(error, "run it again with `LANDFALL_LOG=debug`; what the roles said is quoted above")
        })?;
        gone?;
        output::print("Everything is removed.\n")?;
        Ok(Exit::Done)
    }
}

/// Replaces this process with a role that does not outlive the demo, however that ends. Returns only on failure.
fn become_role(parent: i32, role: &[OsString]) -> anyhow::Error {
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return anyhow::Error::from(error).context("ask to end with the story");
    }
    if getppid().map(Pid::as_raw_pid) != Some(parent) {
        return anyhow!("the story ended before its role began");
    }
    match std::env::current_exe() {
        Ok(program) => anyhow::Error::from(Command::new(program).args(role).exec()).context("begin the role"),
        Err(error) => anyhow::Error::from(error).context("find this program"),
    }
}
