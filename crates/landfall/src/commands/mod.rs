//! One file per subcommand: its arguments, and the components it connects.

pub(crate) mod agent;
mod agent_daemon;
mod ask_hub;
mod capi;
pub(crate) mod collector;
pub(crate) mod completions;
pub(crate) mod connect;
pub(crate) mod controller;
pub(crate) mod demo;
pub(crate) mod diagnose;
pub(crate) mod explain;
pub(crate) mod gateway;
pub(crate) mod gather;
pub(crate) mod hub;
pub(crate) mod man;
pub(crate) mod node;
mod reach;
pub(crate) mod render;
pub(crate) mod status;
pub(crate) mod tunnel;

use std::path::Path;

use anyhow::Context as _;
use landfall_evidence::collect::{Host, Plan};

use crate::exit::Failure;

/// Converts an enum of the command line, whose variants have help texts, to the equal one of a role.
macro_rules! same_variants {
    ($from:ty => $to:ty { $($name:ident),+ }) => {
        impl From<$from> for $to {
            fn from(value: $from) -> Self {
                match value {
                    $(<$from>::$name => Self::$name),+
                }
            }
        }
    };
}
use same_variants;

/// Returns the machine below `root`, and the plan of what to collect from it.
fn host_and_plan(root: &Path) -> Result<(Host, Plan), Failure> {
    let host = Host::at(root).with_context(|| format!("open the root folder `{}`", root.display()));
    let host = host
        .map_err(|error| Failure::new(error, "name the folder that holds the machine's `etc` and `var`"))?;
    let plan = Plan::of(&host).context("read what is to be collected")?;
    Ok((host, plan))
}
