use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use landfall_node::environment::HostEnvironment;
use landfall_node::prepare::run::{self, Other};
use landfall_node::run::RunError;

use super::Format;
use super::prepare::RebootBy;
use super::work::{self, Ask};
use crate::exit::{Exit, Failure};
use crate::{output, runtime};

/// Resume the interrupted run with its original options
#[derive(Args)]
#[command(
    after_help = "Exit codes: as those of `landfall node prepare`; 0 also when there is nothing to resume"
)]
pub(crate) struct Resume {
    /// How a reboot comes about when one is needed
    #[arg(long, value_enum, default_value_t = RebootBy::Exit)]
    reboot: RebootBy,

    /// Format of the final status (text goes to standard error only)
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,

    /// The node's root folder
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

// === impl Resume ===

impl Resume {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let looking = HostEnvironment::new(&self.root, None).context("prepare to look around")?;
        let request = match run::open_request(&looking) {
            Err(RunError::NothingOpen) => {
                output::say("There is nothing to resume; `landfall node status` shows what was done.");
                work::print(&looking, self.output)?;
                return Ok(Exit::Done);
            }
            request => request.map_err(work::failure)?,
        };
        let env = HostEnvironment::new(&self.root, request.authority.as_deref())
            .context("prepare to look around")?;
        let ask = Ask { request: &request, other: Other::Respect, reboot: self.reboot, output: self.output };
        work::carry_out(&runtime::multi_threaded()?, &Arc::new(env), &ask)
    }
}
