use std::fmt;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use landfall_cluster::Cluster;
use landfall_controller::capi::condition::Words;
use landfall_controller::capi::heard::{Answer, Hub};
use landfall_controller::capi::metrics::Metrics;
use landfall_controller::capi::plan::Policy;
use landfall_controller::capi::run::{Controller, tear_down};
use landfall_hub::{Client, ClientError};
use landfall_model::Secret;

use super::tunnel::duration;
use crate::exit::{Exit, Failure};
use crate::output;

/// The other work of the controller: on a management cluster of Cluster API.
#[derive(Args)]
#[command(next_help_heading = "Cluster API")]
pub(super) struct Capi {
    /// Show on each Machine of a management cluster what its node says of its bootstrap, as one condition
    #[arg(long = "capi", id = "capi")]
    is_wanted: bool,

    /// Hub to read reports from
    #[arg(long, value_name = "URL", requires = "capi")]
    hub: Option<String>,

    /// The authority that issued the hub's certificate, PEM
    #[arg(long, value_name = "FILE", requires = "hub")]
    hub_ca: Option<PathBuf>,

    /// File with a viewer token, read on every pass
    #[arg(long, value_name = "FILE", requires = "hub")]
    hub_token_file: Option<PathBuf>,

    /// Where people find the hub's pages, for messages [default: the hub's address]
    #[arg(long, value_name = "URL", requires = "hub")]
    hub_pages: Option<String>,

    /// Delay the deletion of failed Machines until their bundle is in the hub, at most for this long
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "hub")]
    hold_evidence: Option<Duration>,

    /// Time between two passes
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration, requires = "capi")]
    every: Duration,

    /// Take every condition and every hook off all Machines, and end; while no controller runs
    #[arg(long, requires = "capi")]
    teardown: bool,
}

/// A hub client that reads its token file for each request.
struct AskedHub {
    address: String,
    authority: Option<PathBuf>,
    token_file: Option<PathBuf>,
}

// === impl Capi ===

impl Capi {
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    pub(super) fn wants_teardown(&self) -> bool {
        self.teardown
    }

    pub(super) async fn tear_down(cluster: &Cluster) -> Result<Exit, Failure> {
        let removed = tear_down(cluster).await.map_err(|error| {
            Failure::new(error, "use an account that may list Machines and patch them and their status")
        })?;
        output::print(&format!("Removed: hooks {}, conditions {}\n", removed.hooks, removed.conditions))?;
        if removed.failed > 0 {
            let left = anyhow::anyhow!("cannot remove {} hooks or conditions", removed.failed);
            return Err(Failure::new(left, "the log says why; run it again").exit(Exit::TryLater));
        }
        Ok(Exit::Done)
    }

    pub(super) fn controller(
        &self,
        cluster: Cluster,
        namespace: &str,
        identity: String,
        metrics: Arc<Metrics>,
    ) -> Result<Controller, Failure> {
        let words = Words::new(self.hub_pages.clone().or_else(|| self.hub.clone()));
        let words = words.context("prepare the words of conditions")?;
        let hub = self.hub.as_ref().map(|address| AskedHub {
            address: address.clone(),
            authority: self.hub_ca.clone(),
            token_file: self.hub_token_file.clone(),
        });
        if let Some(hub) = &hub {
            hub.client().map_err(|error| {
                let error = anyhow::anyhow!(error).context("prepare to ask the hub");
                Failure::new(error, "look at `--hub`, `--hub-ca` and `--hub-token-file`").exit(Exit::Usage)
            })?;
        } else {
            // Errors are ignored: standard error may be closed.
            let _ = writeln!(io::stderr(), "Without `--hub`, only BootstrapReports of the cluster are read");
        }
        Ok(Controller {
            cluster,
            hub: hub.map(|hub| Arc::new(hub) as Arc<dyn Hub>),
            namespace: namespace.to_owned(),
            policy: Policy { hold: self.hold_evidence },
            words,
            identity,
            every: self.every.max(Duration::from_secs(1)),
            metrics,
        })
    }
}

// === impl AskedHub ===

impl AskedHub {
    fn client(&self) -> Result<Client, Box<dyn std::error::Error + Send + Sync>> {
        let token = self.token_file.as_ref().map(std::fs::read_to_string).transpose()?.map(Secret::new);
        Ok(Client::new(&self.address, self.authority.clone(), token)?)
    }
}

impl Hub for AskedHub {
    fn get(&self, path: String) -> Answer<'_> {
        Box::pin(async move {
            let body = self.client()?.get(&path).await.map_err(|error| explained(&path, error))?;
            Ok(body.to_vec())
        })
    }
}

/// Explains a 404 for an unknown API: an older hub will never answer it.
fn explained(path: &str, error: ClientError) -> Box<dyn std::error::Error + Send + Sync> {
    match error {
        ClientError::Refused { status: 404, .. } if path.starts_with("/api/v1/nodes?") => {
            "the hub is older than this controller and does not list its nodes (`GET /api/v1/nodes`): update the hub".into()
        }
        error => error.into(),
    }
}

impl fmt::Debug for AskedHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AskedHub").field("address", &self.address).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_that_is_too_old_is_told_so() {
        let refused = |status, detail: &str| ClientError::Refused { status, detail: detail.to_owned() };
        let told = |path, error| explained(path, error).to_string();
        assert!(
            told("/api/v1/nodes?limit=1&after=", refused(404, "no such page")).ends_with("update the hub")
        );
        // A 404 for a deleted node does not indicate an older hub.
        assert_eq!(told("/api/v1/nodes/n1", refused(404, "no such node")), "the hub refused: no such node");
        assert_eq!(told("/api/v1/nodes?limit=1", refused(401, "no token")), "the hub refused: no token");
    }
}
