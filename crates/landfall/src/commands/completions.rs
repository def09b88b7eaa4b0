use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::exit::{Exit, Failure};
use crate::output;

/// Print a shell's completion script
///
/// For bash: `source <(landfall completions bash)`.
#[derive(Args)]
pub(crate) struct Completions {
    /// The shell to complete in
    shell: Shell,
}

// === impl Completions ===

impl Completions {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "landfall", &mut script);
        output::print(&String::from_utf8_lossy(&script))?;
        Ok(Exit::Done)
    }
}
