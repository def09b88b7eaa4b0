use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use landfall_steps::{Applied, Confirmed, Context, Found, Outputs, Step, StepError, StepSpec};

use super::{CLEAR_UP, REQUEST, VERIFY, aside};
use crate::in_place::environment::InPlaceEnvironment;
use crate::in_place::places::{DAEMON, Folder};
use crate::in_place::request::{ClusterUse, Request};
use crate::run::later;

/// Time limit since the boot, in which images are pulled and certificates approved.
const LIMIT: Duration = Duration::from_mins(60);

/// Checks that the machine is a working member of the cluster again.
pub(super) struct Verify<W> {
    pub(super) env: Arc<W>,
}

/// Removes everything that is no longer needed: the old state, the download, the Secret.
pub(super) struct ClearUp<W> {
    pub(super) env: Arc<W>,
}

// === impl Verify ===

impl<W: InPlaceEnvironment> Verify<W> {
    async fn missing(&self, request: &Request, boot: &str) -> Result<Option<String>, StepError> {
        let state = self.env.unit_state("kubelet.service").await.map_err(StepError::later)?;
        if state != "active" {
            return Ok(Some(format!("the kubelet: it is {state}")));
        }
        if request.cluster == ClusterUse::None {
            return Ok(None);
        }
        match self.env.node(&request.node).await {
            Err(error) => Ok(Some(format!("the cluster: {}", error.reason))),
            Ok(None) => Ok(Some(format!("node `{}` to register", request.node))),
            // The cluster may report a node as ready long after its machine went down.
            Ok(Some(facts)) if facts.boot_id != boot => {
                Ok(Some("the kubelet to register from this boot".to_owned()))
            }
            Ok(Some(facts)) if !facts.ready => Ok(Some(format!("node `{}` to be ready", request.node))),
            Ok(Some(_)) => Ok(None),
        }
    }
}

impl<W: InPlaceEnvironment> Step for Verify<W> {
    fn spec(&self) -> StepSpec {
        StepSpec::new(VERIFY, "See that the machine is a working member again").needs([REQUEST.slot()])
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        let request = context.get(&REQUEST)?;
        let Some(missing) = self.missing(&request, context.boot().as_str()).await? else {
            return Ok(Found::satisfied("it is"));
        };
        if self.env.uptime() > LIMIT {
            return Err(StepError::never(format!("{LIMIT:?} after the boot still waiting for {missing}")));
        }
        Ok(Found::Waiting { on: missing })
    }

    async fn apply(&self, _: &Context<'_>) -> Result<Applied, StepError> {
        Ok(Applied::Done(Outputs::none()))
    }
}

// === impl ClearUp ===

impl<W: InPlaceEnvironment> Step for ClearUp<W> {
    fn spec(&self) -> StepSpec {
        StepSpec::new(CLEAR_UP, "Remove files that are no longer needed").needs([REQUEST.slot()])
    }

    async fn check(&self, _: &Context<'_>) -> Result<Found, StepError> {
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        let attempt = context.attempt();
        for path in aside::paths(context.get(&REQUEST)?.flavour) {
            self.env.remove_all(&Folder::aside(attempt, path)).map_err(later)?;
        }
        self.env.remove_all(Path::new(DAEMON)).map_err(later)?;
        self.env.remove_all(Folder::of(attempt).path()).map_err(later)?;
        Ok(Applied::Done(Outputs::none()))
    }

    async fn confirm(&self, context: &Context<'_>) -> Result<Confirmed, StepError> {
        let folder = Folder::of(context.attempt());
        if self.env.exists(folder.path()).map_err(later)? {
            return Err(StepError::now(format!("`{}` is still there", folder.path().display())));
        }
        Ok(Confirmed::Holds)
    }
}
