use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Command, CommandFactory as _};
use clap_mangen::Man as Page;

use crate::cli::Cli;
use crate::exit::{Exit, Failure};
use crate::output;

/// What every page ends with, in the language of manual pages.
const SECTIONS: &str = r#".SH "EXIT STATUS"
.TP
\fB0\fR
Done; for \fBdiagnose\fR: nothing is wrong.
.TP
\fB1\fR
Failed.
.TP
\fB2\fR
Something is wrong, named or not (\fBdiagnose\fR).
.TP
\fB64\fR
Wrong usage.
.SH ENVIRONMENT
.TP
\fBLANDFALL_LOG\fR
What is logged to standard error, as a filter of levels and modules.
.TP
\fBNO_COLOR\fR
Set to anything: no colour.
.SH FILES
.TP
\fI/etc/landfall/gather.d/*.toml\fR
What is collected from a machine, besides what is built in.
.SH "SEE ALSO"
"#;

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

/// The page of a command and those of its subcommands.
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
    let mut page = Vec::new();
    Page::new(command).render(&mut page).context("write the manual page")?;
    Ok(format!("{}{SECTIONS}{}\n", String::from_utf8_lossy(&page), others.join(", ")))
}

/// `landfall-diagnose`, as manual pages of subcommands are named.
fn name(command: &Command) -> String {
    command.get_display_name().unwrap_or(command.get_name()).to_owned()
}

fn names(command: &Command) -> Vec<String> {
    let own = std::iter::once(name(command));
    own.chain(command.get_subcommands().filter(|command| !command.is_hide_set()).flat_map(names)).collect()
}
