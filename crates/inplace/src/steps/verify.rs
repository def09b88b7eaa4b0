use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use landfall_steps::{Applied, Confirmed, Context, Found, Outputs, Slot, Step, StepError};

use super::{CLEAR_UP, REQUEST, VERIFY, aside, later};
use crate::places::{DAEMON, Folder};
use crate::request::{ClusterUse, Request};
use crate::world::World;

/// Images are pulled and certificates approved in this time, counted from the boot.
const LIMIT: Duration = Duration::from_mins(60);

/// Looks whether the machine is a working member again.
pub(super) struct Verify<W> {
    pub(super) world: Arc<W>,
}

/// Takes away what is no longer needed: the old life, the download, the Secret.
pub(super) struct ClearUp<W> {
    pub(super) world: Arc<W>,
}

// === impl Verify ===

impl<W: World> Verify<W> {
    /// What is missing, if something is.
    async fn missing(&self, request: &Request, boot: &str) -> Result<Option<String>, StepError> {
        let state = self.world.unit_state("kubelet.service").await.map_err(StepError::later)?;
        if state != "active" {
            return Ok(Some(format!("the kubelet: it is {state}")));
        }
        if request.cluster == ClusterUse::None {
            return Ok(None);
        }
        match self.world.node(&request.node).await {
            Err(error) => Ok(Some(format!("the cluster: {}", error.reason))),
            Ok(None) => Ok(Some(format!("node `{}` to register", request.node))),
            // A node may still be called ready long after its machine went down.
            Ok(Some(facts)) if facts.boot_id != boot => {
                Ok(Some("the kubelet to register from this boot".to_owned()))
            }
            Ok(Some(facts)) if !facts.ready => Ok(Some(format!("node `{}` to be ready", request.node))),
            Ok(Some(_)) => Ok(None),
        }
    }
}

impl<W: World> Step for Verify<W> {
    fn name(&self) -> &'static str {
        VERIFY
    }

    fn title(&self) -> String {
        "See that the machine is a working member again".to_owned()
    }

    fn needs(&self) -> Vec<Slot> {
        vec![REQUEST.slot()]
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        let request = context.get(&REQUEST)?;
        let Some(missing) = self.missing(&request, context.boot().as_str()).await? else {
            return Ok(Found::Satisfied { reason: "it is".to_owned(), outputs: Outputs::none() });
        };
        if self.world.uptime() > LIMIT {
            return Err(StepError::never(format!("{LIMIT:?} after the boot still waiting for {missing}")));
        }
        Ok(Found::Waiting { on: missing })
    }

    async fn apply(&self, _: &Context<'_>) -> Result<Applied, StepError> {
        Ok(Applied::Done(Outputs::none()))
    }

    async fn confirm(&self, _: &Context<'_>) -> Result<Confirmed, StepError> {
        Ok(Confirmed::Holds)
    }
}

// === impl ClearUp ===

impl<W: World> Step for ClearUp<W> {
    fn name(&self) -> &'static str {
        CLEAR_UP
    }

    fn title(&self) -> String {
        "Take away what is no longer needed".to_owned()
    }

    fn needs(&self) -> Vec<Slot> {
        vec![REQUEST.slot()]
    }

    async fn check(&self, _: &Context<'_>) -> Result<Found, StepError> {
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        let attempt = context.attempt();
        for path in aside::paths(context.get(&REQUEST)?.flavour) {
            self.world.remove_all(&Folder::aside(attempt, path)).map_err(|error| later(&error))?;
        }
        self.world.remove_all(Path::new(DAEMON)).map_err(|error| later(&error))?;
        self.world.remove_all(Folder::of(attempt).path()).map_err(|error| later(&error))?;
        Ok(Applied::Done(Outputs::none()))
    }

    async fn confirm(&self, context: &Context<'_>) -> Result<Confirmed, StepError> {
        let folder = Folder::of(context.attempt());
        if self.world.exists(folder.path()).map_err(|error| later(&error))? {
            return Err(StepError::now(format!("`{}` is still there", folder.path().display())));
        }
        Ok(Confirmed::Holds)
    }
}
