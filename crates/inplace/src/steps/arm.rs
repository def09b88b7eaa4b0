use std::path::Path;
use std::sync::Arc;

use landfall_steps::durable::Access;
use landfall_steps::{Applied, Confirmed, Context, Found, Outputs, Slot, Step, StepError};

use super::{GO_DOWN, INSTALL, INSTALLED_IN, REQUEST, TAKE_LABEL_OFF, later};
use crate::places::PROGRAM;
use crate::request::{ClusterUse, LABEL, Request, SEED_LABEL};
use crate::units::{self, Placed};
use crate::world::{PUBLIC_DIR, World, make_dir, read, write};

const MAX_UNIT: u64 = 64 * 1024;
/// This program, with everything in it.
const MAX_PROGRAM: u64 = 1024 * 1024 * 1024;
const EXECUTABLE: Access = Access { mode: 0o755, owner: None };

/// Puts in place what goes on after the reboot, and the gate before the kubelet.
pub(super) struct Install<W> {
    pub(super) world: Arc<W>,
}

/// Takes the label off, so that no kubelet ever starts with it again.
pub(super) struct TakeLabelOff<W> {
    pub(super) world: Arc<W>,
}

/// Takes the machine down; it comes up with its kubelet held back.
pub(super) struct GoDown<W> {
    #[expect(dead_code, reason = "as every step; the reboot itself is asked for by the caller")]
    pub(super) world: Arc<W>,
}

// === impl Install ===

impl<W: World> Install<W> {
    fn is_installed(&self) -> Result<bool, StepError> {
        let own = self.world.program().map_err(|error| later(&error))?;
        if read(&*self.world, Path::new(PROGRAM), MAX_PROGRAM).map_err(|error| later(&error))? != Some(own) {
            return Ok(false);
        }
        for placed in units::placed() {
            let is_there = match &placed {
                Placed::File { path, text } => {
                    let found = read(&*self.world, path, MAX_UNIT).map_err(|error| later(&error))?;
                    found.as_deref() == Some(text.as_bytes())
                }
                Placed::Link { path, .. } => self.world.exists(path).map_err(|error| later(&error))?,
            };
            if !is_there {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl<W: World> Step for Install<W> {
    fn name(&self) -> &'static str {
        INSTALL
    }

    fn title(&self) -> String {
        "Put a gate before the kubelet".to_owned()
    }

    fn gives(&self) -> Vec<Slot> {
        vec![INSTALLED_IN.slot()]
    }

    /// Always begun, so that it can be taken back: an earlier attempt may have left some of it.
    async fn check(&self, _: &Context<'_>) -> Result<Found, StepError> {
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        let own = self.world.program().map_err(|error| later(&error))?;
        write(&*self.world, Path::new(PROGRAM), &own, EXECUTABLE).map_err(|error| later(&error))?;
        for placed in units::placed() {
            match &placed {
                Placed::File { path, text } => {
                    write(&*self.world, path, text.as_bytes(), Access::PUBLIC)
                        .map_err(|error| later(&error))?;
                }
                Placed::Link { path, to } => {
                    let folder = path.parent().unwrap_or(Path::new("/"));
                    make_dir(&*self.world, folder, PUBLIC_DIR).map_err(|error| later(&error))?;
                    self.world.set_link(path, to).map_err(|error| later(&error))?;
                }
            }
        }
        self.world.reload_units().await.map_err(StepError::later)?;
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

    /// Opens the gate. What goes on after a boot stays until the ledger has its end.
    async fn roll_back(&self, _: &Context<'_>) -> Result<(), StepError> {
        self.world.remove_all(&units::drop_in()).map_err(|error| later(&error))?;
        self.world.reload_units().await.map_err(StepError::later)
    }
}

// === impl TakeLabelOff ===

impl<W: World> TakeLabelOff<W> {
    async fn is_off(&self, request: &Request) -> Result<bool, String> {
        match self.world.node(&request.node).await {
            Ok(None) => Ok(true),
            Ok(Some(facts)) => Ok(![SEED_LABEL, LABEL].iter().any(|label| facts.labels.contains_key(*label))),
            Err(error) => Err(error.reason),
        }
    }
}

impl<W: World> Step for TakeLabelOff<W> {
    fn name(&self) -> &'static str {
        TAKE_LABEL_OFF
    }

    fn title(&self) -> String {
        "Take the label off the node".to_owned()
    }

    fn needs(&self) -> Vec<Slot> {
        vec![REQUEST.slot()]
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        let request = context.get(&REQUEST)?;
        let satisfied =
            |reason: &str| Found::Satisfied { reason: reason.to_owned(), outputs: Outputs::none() };
        if request.cluster == ClusterUse::None {
            return Ok(satisfied("no cluster is concerned"));
        }
        match self.is_off(&request).await {
            Ok(true) => Ok(satisfied("there is none")),
            Ok(false) => Ok(Found::Needed),
            Err(reason) => Ok(Found::Waiting { on: format!("the cluster: {reason}") }),
        }
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        let node = context.get(&REQUEST)?.node;
        for label in [SEED_LABEL, LABEL] {
            if let Err(error) = self.world.remove_label(&node, label).await {
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

impl<W: World> Step for GoDown<W> {
    fn name(&self) -> &'static str {
        GO_DOWN
    }

    fn title(&self) -> String {
        "Take the machine down, and its kubelet with it".to_owned()
    }

    fn needs(&self) -> Vec<Slot> {
        vec![INSTALLED_IN.slot()]
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        if context.get(&INSTALLED_IN)? != context.boot().as_str() {
            let reason = "this boot began with the gate closed".to_owned();
            return Ok(Found::Satisfied { reason, outputs: Outputs::none() });
        }
        Ok(Found::Needed)
    }

    async fn apply(&self, _: &Context<'_>) -> Result<Applied, StepError> {
        Ok(Applied::RebootNeeded(Outputs::none()))
    }

    async fn confirm(&self, _: &Context<'_>) -> Result<Confirmed, StepError> {
        Ok(Confirmed::Holds)
    }
}
