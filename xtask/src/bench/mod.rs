//! `cargo xtask bench NAME`: compares ours with a named peer in the same run.
//!
//! Measurements are interleaved, with at least three rounds and the median of each. `--output json` prints
//! one JSON object per line.

mod agent;
mod bundle;
mod diagnose;
mod gateway;
mod hub;
mod journal;
mod measure;
mod redact;
mod share;
mod tunnel;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use serde::Serialize;

use crate::shell;

pub(crate) use self::redact::ordinary_logs;

/// Fewer rounds are not significant on a noisy machine.
const MIN_ROUNDS: usize = 3;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// What to measure
    name: Name,
    /// How to print
    #[arg(long, default_value = "text")]
    output: Output,
    /// Rounds per measurement; three at least
    #[arg(long, default_value_t = MIN_ROUNDS)]
    rounds: usize,
    /// `agent`, `bundle`, `diagnose`, `gateway` and `hub`: this program instead of a release build made for it
    #[arg(long)]
    program: Option<PathBuf>,
    /// `hub` only: how many nodes report
    #[arg(long, default_value_t = hub::NODES)]
    nodes: u32,
    /// `hub` only: for how many seconds
    #[arg(long, default_value_t = hub::SECONDS)]
    seconds: u32,
    /// `hub` only: only this part [default: `sqlite`, `agents` and `postgres`, which are all the bars]
    #[arg(long)]
    store: Option<hub::Store>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Name {
    /// The node agent at rest, against its bar
    Agent,
    /// A gibibyte of container logs, against tar with zstd and gzip
    Bundle,
    /// A gibibyte of mixed logs, against ripgrep with the same literals
    Diagnose,
    /// The API endpoint, against haproxy, nginx and sslh
    Gateway,
    /// A hub under a fleet that reports every five seconds, against what it may cost
    Hub,
    /// A gibibyte of journal in export format, against journalctl
    Journal,
    /// Secrets out of logs, against ripgrep replacing the same patterns
    Redact,
    /// The tunnel, against upstream's proxy-server and proxy-agent
    Tunnel,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
}

/// Which direction is better.
#[derive(Clone, Copy)]
pub(crate) enum Better {
    Higher,
    Lower,
}

/// One comparison. `ratio` is always "how many times better than the peer".
#[derive(Serialize)]
struct Line<'a> {
    bench: &'a str,
    metric: &'a str,
    unit: &'a str,
    ours: f64,
    peer: f64,
    peer_name: &'a str,
    ratio: f64,
    goal: f64,
    met: bool,
}

/// Prints the comparisons of one benchmark and contains its parameters.
pub(crate) struct Bench {
    name: &'static str,
    output: Output,
    pub(crate) rounds: usize,
    program: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let bench = |name| Bench {
        name,
        output: arguments.output,
        rounds: arguments.rounds.max(MIN_ROUNDS),
        program: arguments.program.clone(),
    };
    match arguments.name {
        Name::Agent => agent::run(&bench("agent")),
        Name::Bundle => bundle::run(&bench("bundle")),
        Name::Diagnose => diagnose::run(&bench("diagnose")),
        Name::Gateway => gateway::run(&bench("gateway")),
        Name::Hub => hub::run(
            &bench("hub"),
            &hub::Load { nodes: arguments.nodes, seconds: arguments.seconds, store: arguments.store },
        ),
        Name::Journal => journal::run(&bench("journal")),
        Name::Redact => redact::run(&bench("redact")),
        Name::Tunnel => tunnel::run(&bench("tunnel")),
    }
}

// === impl Output ===

impl Output {
    pub(crate) fn is_json(self) -> bool {
        matches!(self, Self::Json)
    }
}

// === impl Bench ===

impl Bench {
    /// Returns the binary under test.
    fn program(&self) -> Result<PathBuf> {
        if let Some(program) = &self.program {
            return program.canonicalize().with_context(|| format!("find `{}`", program.display()));
        }
        let build =
            ["build", "--release", "--locked", "--quiet", "--package", "landfall", "--bin", "landfall"];
        shell::run(shell::cargo().args(build))?;
        Ok(shell::target().join("release/landfall"))
    }

    /// Measures ours and the peer alternately and prints the comparison of their medians.
    #[expect(
        clippy::too_many_arguments,
        reason = "one call per printed line, and each argument is one of its fields"
    )]
    pub(crate) fn compare(
        &self,
        metric: &str,
        unit: &str,
        better: Better,
        goal: f64,
        peer_name: &str,
        mut ours: impl FnMut() -> Result<f64>,
        mut peer: impl FnMut() -> Result<f64>,
    ) -> Result<()> {
        let (mut our_values, mut peer_values) = (Vec::new(), Vec::new());
        for _ in 0..self.rounds {
            our_values.push(ours()?);
            peer_values.push(peer()?);
        }
        self.print(metric, unit, better, goal, peer_name, median(&mut our_values), median(&mut peer_values));
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "see `compare`")]
    fn print(
        &self,
        metric: &str,
        unit: &str,
        better: Better,
        goal: f64,
        peer_name: &str,
        ours: f64,
        peer: f64,
    ) {
        let ratio = match better {
            Better::Higher => ours / peer,
            Better::Lower => peer / ours,
        };
        let rounded = |value: f64| (value * 100.0).round() / 100.0;
        let line = Line {
            bench: self.name,
            metric,
            unit,
            ours: rounded(ours),
            peer: rounded(peer),
            peer_name,
            ratio: rounded(ratio),
            goal,
            met: ratio >= goal,
        };
        match self.output {
            Output::Json => println!("{}", serde_json::json!(line)),
            Output::Text => println!(
                "{metric}: {ours:.1} {unit}, {peer_name} {peer:.1} {unit}: {ratio:.2} times better (goal {goal}): {}",
                if line.met { "met" } else { "NOT met" }
            ),
        }
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
