use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Command, CommandFactory as _};
use clap_mangen::Man as Page;

use crate::cli::Cli;
use crate::exit::{Exit, Failure};
use crate::output;

/// Start of the exit codes in a command's help, which end with that paragraph.
const EXIT_CODES: &str = "Exit codes: ";
/// Exit codes of a command whose help lists none.
const USUAL_CODES: &str = "0 done · 1 failed · 64 wrong usage";

/// The last sections of every page, in roff.
const SECTIONS: &str = include_str!("sections.roff");

/// Print the manual page, or write the pages of all commands
///
/// To read it: `landfall man | man -l -`.
#[derive(Args)]
pub(crate) struct Man {
    /// Write one page per command into this folder instead
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

// === impl Man ===

impl Man {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let mut command = Cli::command();
        command.build();
        let names = names(&command);
        match self.directory {
            None => output::print(&page(command, &names)?)?,
            Some(directory) => {
                let doing = || format!("write the manual pages to `{}`", directory.display());
                std::fs::create_dir_all(&directory).with_context(doing)?;
                write_all(command, &names, &directory).with_context(doing)?;
            }
        }
        Ok(Exit::Done)
    }
}

/// Writes the pages of a command and of its subcommands.
fn write_all(command: Command, names: &[String], directory: &Path) -> anyhow::Result<()> {
    for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write_all(subcommand.clone(), names, directory)?;
    }
    let path = directory.join(format!("{}.1", name(&command)));
    std::fs::write(path, page(command, names)?)?;
    Ok(())
}

fn page(command: Command, names: &[String]) -> anyhow::Result<String> {
    let own = name(&command);
    let others: Vec<String> =
        names.iter().filter(|name| **name != own).map(|name| format!("\\fB{name}\\fR(1)")).collect();
    let help = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let exit_status = exit_status(&help.unwrap_or_default());
    let mut page = Vec::new();
    Page::new(command).render(&mut page).context("write the manual page")?;
    Ok(format!("{}{exit_status}{SECTIONS}{}\n", String::from_utf8_lossy(&page), others.join(", ")))
}

/// Returns the section with the exit codes from a command's help.
fn exit_status(help: &str) -> String {
    let told = help.split_once(EXIT_CODES).and_then(|(_, rest)| rest.split("\n\n").next());
    let told = told.unwrap_or(USUAL_CODES).split_whitespace().collect::<Vec<_>>().join(" ");
    let mut section = ".SH \"EXIT STATUS\"\n".to_owned();
    for part in told.split(" · ") {
        // In roff, backslashes and lines that begin with a dot are special.
        let part = part.replace('\\', "\\e");
        section += &match part.split_once(' ') {
            Some((code, meaning)) if code.parse::<u8>().is_ok() => {
                format!(".TP\n\\fB{code}\\fR\n\\&{meaning}\n")
            }
            // A text that refers to another command.
            _ => format!("\\&{part}\n"),
        };
    }
    section
}

/// Returns the page name of a subcommand, such as `landfall-diagnose`.
fn name(command: &Command) -> String {
    command.get_display_name().unwrap_or(command.get_name()).to_owned()
}

fn names(command: &Command) -> Vec<String> {
    let own = std::iter::once(name(command));
    own.chain(command.get_subcommands().filter(|command| !command.is_hide_set()).flat_map(names)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_the_command() {
        let told = exit_status("Examples:\n  x\n\nExit codes: 0 done, or\nbefore · 75 later\n\nMore");
        assert_eq!(
            told,
            ".SH \"EXIT STATUS\"\n.TP\n\\fB0\\fR\n\\&done, or before\n.TP\n\\fB75\\fR\n\\&later\n"
        );
        assert!(exit_status("no word of them").contains("\\fB64\\fR\n\\&wrong usage\n"));
        assert_eq!(
            exit_status("Exit codes: as those of another"),
            ".SH \"EXIT STATUS\"\n\\&as those of another\n"
        );
    }
}
