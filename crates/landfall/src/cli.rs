use std::ffi::OsString;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::commands::{
    agent, collector, completions, connect, controller, demo, diagnose, explain, gateway, gather, hub, man,
    node, render, status, tunnel,
};
use crate::torcx_names;

const EXIT_CODES: &str = "\
Exit codes: 0 done (diagnose: nothing wrong found) · 1 failed · 2 findings present · 64 wrong usage · 69 peer unavailable · \
75 try again later · 77 not permitted · 100 reboot requested";

/// From first boot to a Ready node, and the root cause when a machine does not get there.
#[derive(Parser)]
#[command(version, help_expected = true, disable_help_subcommand = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// Say more on standard error; twice for everything (`LANDFALL_LOG` filters finer)
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Diagnose(diagnose::Diagnose),
    Gather(gather::Gather),
    Connect(connect::Connect),
    Explain(explain::Explain),
    Agent(Box<agent::Agent>),
    Tunnel(tunnel::Tunnel),
    Gateway(gateway::Gateway),
    Collector(collector::Collector),
    Node(Box<node::Node>),
    Hub(hub::Hub),
    Controller(Box<controller::Controller>),
    Status(status::Status),
    Render(render::Render),
    Demo(demo::Demo),
    Completions(completions::Completions),
    Man(man::Man),
}

// === impl Cli ===

impl Cli {
    /// What the words say. Older programs' names and ways of writing flags become ours.
    pub(crate) fn of_arguments(words: impl Iterator<Item = OsString>) -> Result<Self, clap::Error> {
        let (words, program) = torcx_names::arguments(words, Self::command)?;
        let command = program.map_or_else(Self::command, |program| program.dress(Self::command()));
        let mut matches = command.clone().try_get_matches_from(tunnel::as_upstream_writes(words))?;
        Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command.clone()))
    }
}

// === impl Command ===

impl Command {
    /// How much is logged at least, in `-v`s.
    pub(crate) fn verbosity(&self) -> u8 {
        match self {
            Self::Tunnel(tunnel) => tunnel.verbosity(),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
