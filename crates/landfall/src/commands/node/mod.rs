mod hook;
mod in_place;
mod prepare;
mod resume;
mod status;
mod work;

use clap::{Args, Subcommand, ValueEnum};

use crate::exit::{Exit, Failure};

/// Work on this node, in steps that survive reboots and power cuts
#[derive(Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Node {
    #[command(subcommand)]
    work: Work,
}

/// How to print data.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// For programs
    Json,
}

#[derive(Subcommand)]
enum Work {
    Hook(hook::Hook),
    InPlace(in_place::InPlace),
    Prepare(prepare::Prepare),
    Resume(resume::Resume),
    Status(status::Status),
}

// === impl Node ===

impl Node {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        match self.work {
            Work::Hook(command) => command.run(),
            Work::InPlace(command) => command.run(),
            Work::Prepare(command) => command.run(),
            Work::Resume(command) => command.run(),
            Work::Status(command) => command.run(),
        }
    }
}
