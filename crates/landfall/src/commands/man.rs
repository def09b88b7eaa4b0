use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};
use clap_mangen::Man as Page;

use crate::cli::Cli;
use crate::exit::{Exit, Failure};
use crate::output;

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
        let command = Cli::command();
        match self.directory {
            None => {
                let mut page = Vec::new();
                Page::new(command).render(&mut page).context("write the manual page")?;
                output::print(&String::from_utf8_lossy(&page))?;
            }
            Some(directory) => {
                let doing = || format!("write the manual pages to `{}`", directory.display());
                std::fs::create_dir_all(&directory).with_context(doing)?;
                clap_mangen::generate_to(command, &directory).with_context(doing)?;
            }
        }
        Ok(Exit::Done)
    }
}
