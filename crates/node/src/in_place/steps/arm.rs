use std::path::Path;
use std::sync::Arc;

use landfall_durable::Access;
use landfall_steps::{Applied, Confirmed, Context, Found, Outputs, Step, StepError, StepSpec};

use super::{GO_DOWN, INSTALL, INSTALLED_IN, REQUEST, TAKE_LABEL_OFF};
use crate::environment::{PUBLIC_DIR, make_dir, read, write};
use crate::in_place::environment::InPlaceEnvironment;
use crate::in_place::places::PROGRAM;
use crate::in_place::request::{ClusterUse, LABEL, Request, SEED_LABEL};
use crate::in_place::units::{self, Placed};
use crate::run::later;

const MAX_UNIT: u64 = 64 * 1024;
/// Size limit of this binary, including debug information.
const MAX_PROGRAM: u64 = 1024 * 1024 * 1024;
const EXECUTABLE: Access = Access { mode: 0o755, owner: None };

/// Installs the units that continue after the reboot, and the gate before the kubelet.
pub(super) struct Install<W> {
    pub(super) env: Arc<W>,
}

/// Removes the label, so that no kubelet ever starts with it again.
pub(super) struct TakeLabelOff<W> {
    pub(super) env: Arc<W>,
}

/// Reboots the machine; the kubelet does not start in the next boot until the gate opens.
pub(super) struct GoDown<W> {
    #[expect(dead_code, reason = "as every step; the caller requests the reboot itself")]
    pub(super) env: Arc<W>,
}

// === impl Install ===

impl<W: InPlaceEnvironment> Install<W> {
    fn is_installed(&self) -> Result<bool, StepError> {
        let own = self.env.program().map_err(later)?;
        if read(&*self.env, Path::new(PROGRAM), MAX_PROGRAM).map_err(later)? != Some(own) {
            return Ok(false);
        }
        for placed in units::placed() {
            let is_there = match &placed {
                Placed::File { path, text } => {
                    let found = read(&*self.env, path, MAX_UNIT).map_err(later)?;
                    found.as_deref() == Some(text.as_bytes())
                }
                Placed::Link { path, .. } => self.env.exists(path).map_err(later)?,
            };
            if !is_there {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl<W: InPlaceEnvironment> Step for Install<W> {
    fn spec(&self) -> StepSpec {
        StepSpec::new(INSTALL, "Put a gate before the kubelet").gives([INSTALLED_IN.slot()])
    }

    /// Always runs, so that it can be rolled back: an earlier attempt may have left parts of it.
    async fn check(&self, _: &Context<'_>) -> Result<Found, StepError> {
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        let own = self.env.program().map_err(later)?;
        write(&*self.env, Path::new(PROGRAM), &own, EXECUTABLE).map_err(later)?;
        for placed in units::placed() {
            match &placed {
                Placed::File { path, text } => {
                    write(&*self.env, path, text.as_bytes(), Access::PUBLIC).map_err(later)?;
                }
                Placed::Link { path, to } => {
                    let folder = path.parent().unwrap_or(Path::new("/"));
                    make_dir(&*self.env, folder, PUBLIC_DIR).map_err(later)?;
                    self.env.set_link(path, to).map_err(later)?;
                }
            }
        }
        self.env.reload_units().await.map_err(StepError::later)?;
        let boot = context.boot().as_str().to_owned();
        Ok(Applied::Done(Outputs::none().give(&INSTALLED_IN, &boot)?))
    }

    async fn confirm(&self, _: &Context<'_>) -> Result<Confirmed, StepError> {
        if self.is_installed()? {
            Ok(Confirmed::Holds)
        } else {
            Err(StepError::now("what was put in place is not there"))
        }
    }

    /// Opens the gate. The units that run after a boot stay until the ledger records the end.
    async fn roll_back(&self, _: &Context<'_>) -> Result<(), StepError> {
        self.env.remove_all(&units::drop_in()).map_err(later)?;
        self.env.reload_units().await.map_err(StepError::later)
    }
}

// === impl TakeLabelOff ===

impl<W: InPlaceEnvironment> TakeLabelOff<W> {
    async fn is_off(&self, request: &Request) -> Result<bool, String> {
        match self.env.node(&request.node).await {
            Ok(None) => Ok(true),
            Ok(Some(facts)) => Ok(![SEED_LABEL, LABEL].iter().any(|label| facts.labels.contains_key(*label))),
            Err(error) => Err(error.reason),
        }
    }
}

impl<W: InPlaceEnvironment> Step for TakeLabelOff<W> {
    fn spec(&self) -> StepSpec {
        StepSpec::new(TAKE_LABEL_OFF, "Remove the label of the node").needs([REQUEST.slot()])
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        let request = context.get(&REQUEST)?;
        if request.cluster == ClusterUse::None {
            return Ok(Found::satisfied("no cluster is concerned"));
        }
        match self.is_off(&request).await {
            Ok(true) => Ok(Found::satisfied("there is none")),
            Ok(false) => Ok(Found::Needed),
            Err(reason) => Ok(Found::Waiting { on: format!("the cluster: {reason}") }),
        }
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        let node = context.get(&REQUEST)?.node;
        for label in [SEED_LABEL, LABEL] {
            if let Err(error) = self.env.remove_label(&node, label).await {
                return Ok(Applied::Waiting { on: format!("the cluster: {}", error.reason) });
            }
        }
        Ok(Applied::Done(Outputs::none()))
    }

    async fn confirm(&self, context: &Context<'_>) -> Result<Confirmed, StepError> {
        match self.is_off(&context.get(&REQUEST)?).await {
            Ok(true) => Ok(Confirmed::Holds),
            Ok(false) => Err(StepError::now("the label is on the node again")),
            Err(reason) => Ok(Confirmed::Waiting { on: format!("the cluster: {reason}") }),
        }
    }
}

// === impl GoDown ===

impl<W: InPlaceEnvironment> Step for GoDown<W> {
    fn spec(&self) -> StepSpec {
        StepSpec::new(GO_DOWN, "Take the machine down, and its kubelet with it").needs([INSTALLED_IN.slot()])
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        if context.get(&INSTALLED_IN)? != context.boot().as_str() {
            return Ok(Found::satisfied("this boot began with the gate closed"));
        }
        Ok(Found::Needed)
    }

    async fn apply(&self, _: &Context<'_>) -> Result<Applied, StepError> {
        Ok(Applied::RebootNeeded(Outputs::none()))
    }
}
