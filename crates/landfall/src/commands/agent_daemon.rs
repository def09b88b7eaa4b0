//! `landfall agent` without `--once`: the arguments of the daemon, and what they become.

use std::path::{Path, PathBuf};

use clap::Args;
use landfall_agent::carrier::{Carrier, Folder, Hub};
use landfall_agent::{Agent, AgentError, Config};

use crate::exit::{Exit, Failure};

/// How the daemon works; `--once` has no use for these.
#[derive(Args)]
#[command(next_help_heading = "Following the boot (without --once)")]
pub(crate) struct Daemon {
    /// Where the last report and what is yet to be brought are kept
    #[arg(long, value_name = "DIR", default_value = "/var/lib/landfall/agent", conflicts_with = "once")]
    state: PathBuf,

    /// Push reports to this hub: `https://HOST[:PORT]`
    #[arg(long, value_name = "URL", conflicts_with = "once")]
    hub: Option<String>,

    /// The authority of the hub's certificate, PEM
    #[arg(long, value_name = "FILE", requires = "hub")]
    hub_ca: Option<PathBuf>,

    /// The file with this node's token for the hub; read at each use
    #[arg(long, value_name = "FILE", requires = "hub")]
    hub_token: Option<PathBuf>,

    /// This node's certificate for the hub, PEM
    #[arg(long, value_name = "FILE", requires = "hub", requires = "hub_key")]
    hub_cert: Option<PathBuf>,

    /// The key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "hub_cert")]
    hub_key: Option<PathBuf>,

    /// Write each report into this folder, for somebody else to take away
    #[arg(long, value_name = "DIR", conflicts_with = "once")]
    report_folder: Option<PathBuf>,
}

// === impl Daemon ===

impl Daemon {
    pub(crate) fn run(self, root: &Path) -> Result<Exit, Failure> {
        let mut carriers: Vec<Box<dyn Carrier>> = Vec::new();
        if let Some(address) = &self.hub {
            let certificate = self.hub_cert.as_deref().zip(self.hub_key.as_deref());
            let hub = Hub::new(address, self.hub_ca.as_deref(), self.hub_token, certificate);
            let hint = "name the hub as `https://HOST:8700`, its authority with `--hub-ca`, and PEM files that exist";
            let hub = hub.map_err(|error| Failure::usage(error, hint))?;
            carriers.push(Box::new(hub));
        }
        if let Some(folder) = self.report_folder {
            carriers.push(Box::new(Folder::new(folder)));
        }
        let config = Config { root: root.to_owned(), state: self.state, carriers };
        Agent::open(config).and_then(Agent::run).map(|()| Exit::Done).map_err(explain)
    }
}

fn explain(error: AgentError) -> Failure {
    let hint = match &error {
        AgentError::Rules(_) => "this is a defect of the program: please report it",
        AgentError::Root { .. } => "name the folder that holds the machine's `etc` and `var` with `--root`",
        AgentError::State { .. } | AgentError::Keep(_) | AgentError::Spool { .. } => {
            "run as root, or name a folder you may write to with `--state`"
        }
        AgentError::Thread(_) => "look at the limits of this process",
    };
    Failure::new(error, hint)
}
