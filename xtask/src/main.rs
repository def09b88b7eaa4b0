//! Tasks for developers and CI: `cargo xtask check|test|testbed|gen|bench|score|dist`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a developer's tool talks to the terminal")]

mod bench;
mod check;
mod deny;
mod dist;
mod first_boot;
mod generated;
mod layers;
mod licenses;
mod score;
mod shell;
mod test;
mod testbed;
mod unused;

use clap::{Parser, Subcommand};

/// Landfall's developer tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", help_expected = true)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Format, layer rules, dependency policy, lints, documentation, generated files
    Check,
    /// Install what the tests need, then run all of them
    Test {
        /// Passed on to `cargo test`
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Install packages and build the real components the tests use
    Testbed,
    /// Regenerate the generated files
    Gen,
    /// Measure against a named peer, side by side
    Bench(bench::Arguments),
    /// How right the diagnosis is on labelled logs
    Score {
        /// One folder per case, each with `label.json`
        directory: std::path::PathBuf,
        /// How to print
        #[arg(long, default_value = "text")]
        output: bench::Output,
    },
    /// Static binary, packages, list of parts, container file, units, completions, manual pages, checksums
    Dist,
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().task {
        Task::Check => check::run(),
        Task::Test { arguments } => test::run(&arguments),
        Task::Testbed => testbed::run(),
        Task::Gen => generated::write(),
        Task::Bench(arguments) => bench::run(&arguments),
        Task::Score { directory, output } => score::run(&directory, output.is_json()),
        Task::Dist => dist::run(),
    }
}
