//! The `landfall` binary: command line, configuration, wiring. No logic.

mod cli;
mod commands;
mod exit;
mod logging;
mod output;
mod runtime;
mod torcx_names;

use std::process::ExitCode;

use crate::cli::{Cli, Command};

/// Keeps freed memory for one second, which a busy tunnel reuses immediately. Settings: `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = match Cli::of_arguments(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return exit::usage(&error),
    };
    logging::start(cli.verbose.max(cli.command.verbosity()));
    let result = match cli.command {
        Command::Diagnose(command) => command.run(),
        Command::Gather(command) => command.run(),
        Command::Connect(command) => command.run(),
        Command::Explain(command) => command.run(),
        Command::Agent(command) => command.run(),
        Command::Tunnel(command) => command.run(),
        Command::Gateway(command) => command.run(),
        Command::Collector(command) => command.run(),
        Command::Node(command) => command.run(),
        Command::Hub(command) => command.run(),
        Command::Controller(command) => command.run(),
        Command::Status(command) => command.run(),
        Command::Render(command) => command.run(),
        Command::Demo(command) => command.run(),
        Command::Completions(command) => command.run(),
        Command::Man(command) => command.run(),
    };
    match result {
        Ok(exit) => exit.into(),
        Err(failure) => failure.report(),
    }
}
