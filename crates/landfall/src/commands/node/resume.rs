use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use landfall_node::prepare::run::{self, Other};
use landfall_node::prepare::world::HostWorld;

use super::prepare::RebootBy;
use super::work;
use crate::exit::{Exit, Failure};

/// Go on with the run that was interrupted, as it was asked for
#[derive(Args)]
#[command(
    after_help = "Exit codes: as those of `landfall node prepare`; 0 also when there is nothing to go on with"
)]
pub(crate) struct Resume {
    /// How a reboot comes about when one is needed
    #[arg(long, value_enum, default_value_t = RebootBy::Exit)]
    reboot: RebootBy,

    /// The node's root folder
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

// === impl Resume ===

impl Resume {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let looking = HostWorld::new(&self.root, None).context("prepare to look around")?;
        let request = match run::open_request(&looking) {
            Err(run::RunError::NothingOpen) => return Ok(Exit::Done),
            request => request.map_err(work::failure)?,
        };
        let world =
            HostWorld::new(&self.root, request.authority.as_deref()).context("prepare to look around")?;
        work::carry_out(&work::runtime()?, &Arc::new(world), &request, Other::Respect, self.reboot)
    }
}
