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
    Hub(Box<hub::Hub>),
    Controller(Box<controller::Controller>),
    Status(status::Status),
    Render(render::Render),
    Demo(demo::Demo),
    Completions(completions::Completions),
    Man(man::Man),
}

// === impl Cli ===

impl Cli {
    /// Parses arguments. Names of older programs and their flag notations are converted.
    pub(crate) fn of_arguments(words: impl Iterator<Item = OsString>) -> Result<Self, clap::Error> {
        let (words, program) = torcx_names::arguments(words, Self::command)?;
        let command = program.map_or_else(Self::command, |program| program.dress(Self::command()));
        let mut matches = command.clone().try_get_matches_from(tunnel::as_upstream_writes(words))?;
        Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command.clone()))
    }
}

// === impl Command ===

impl Command {
    /// Returns the minimum verbosity, in `-v`s.
    pub(crate) fn verbosity(&self) -> u8 {
        match self {
            Self::Tunnel(tunnel) => tunnel.verbosity(),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Examples in help texts must parse.
    #[test]
    fn examples_in_help_are_understood() {
        let mut all = Vec::new();
        examples(&Cli::command(), &mut all);
        assert!(all.len() > 40, "{all:?}");
        let refusal = |line: &String| {
            let (before, own) = line.split_once("landfall ")?;
            // A command inside quotes ends with the closing quote.
            let own = if before.ends_with('\'') { own.split('\'').next().unwrap_or(own) } else { own };
            let error =
                Cli::of_arguments(["landfall".to_owned()].into_iter().chain(words(own)).map(OsString::from))
                    .err()?;
            // A placeholder of the example need not be a valid value.
            let open = error.kind() == clap::error::ErrorKind::ValueValidation && line.contains('…');
            (!open).then(|| format!("`{line}`: {error}"))
        };
        let refused: Vec<String> = all.iter().filter_map(refusal).collect();
        assert!(refused.is_empty(), "{refused:#?}");
    }

    /// Splits a line like a shell, up to another command, a file, or a comment after two blanks.
    fn words(line: &str) -> Vec<String> {
        let ends = [" | ", " > ", " < ", " && ", "  "];
        let line = ends.iter().fold(line, |line, end| line.split(end).next().unwrap_or(line));
        let mut words = vec![String::new()];
        let mut quote = None;
        for c in line.chars() {
            match quote {
                Some(open) if c == open => quote = None,
                None if c == '\'' || c == '"' => quote = Some(c),
                None if c == ' ' => words.push(String::new()),
                _ => words.last_mut().into_iter().for_each(|word| word.push(c)),
            }
        }
        words
    }

    /// Returns the lines below `Examples:` in the help of a command and of its subcommands, each joined to one.
    fn examples(command: &clap::Command, all: &mut Vec<String>) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let lines = help.split_once("Examples:\n").map_or("", |(_, rest)| rest).lines();
        let mut goes_on = false;
        for line in lines.take_while(|line| line.starts_with("  ")) {
            let (text, more) =
                line.trim().strip_suffix('\\').map_or((line.trim(), false), |text| (text.trim(), true));
            match all.last_mut().filter(|_| goes_on) {
                Some(begun) => *begun = format!("{begun} {text}"),
                None => all.push(text.to_owned()),
            }
            goes_on = more;
        }
        for part in command.get_subcommands() {
            examples(part, all);
        }
    }
}
