use std::path::Path;
use std::sync::Arc;

use landfall_model::chain;
use landfall_steps::{Applied, Confirmed, Context, Found, Outputs, Slot, Step, StepError};

use super::select::{left_out, write};
use super::{DECISION, REQUEST, SELECTED_IN};
use crate::prepare::decision::{Backend, Decision, PlannedFile};
use crate::prepare::gather;
use crate::prepare::planner::DOCKER;
use crate::prepare::profile;
use crate::prepare::world::{LockAnswer, LockAsk, World, read};

/// Boots what was selected.
pub(super) struct Reboot<W> {
    pub(super) world: Arc<W>,
}

/// Looks whether the machine is what it was meant to become.
pub(super) struct Verify<W> {
    pub(super) world: Arc<W>,
}

// === impl Reboot ===

impl<W: World> Reboot<W> {
    /// What only the way down needs. An error here stops the reboot: docker would not come up after it.
    async fn stage_way_down(&self, files: &[PlannedFile]) -> Result<(), StepError> {
        if files.is_empty() {
            return Ok(());
        }
        for file in files {
            write(&*self.world, file)?;
        }
        self.world.reload_units().await.map_err(StepError::later)
    }
}

impl<W: World> Step for Reboot<W> {
    fn name(&self) -> &'static str {
        super::REBOOT
    }

    fn title(&self) -> String {
        "Boot what was selected".to_owned()
    }

    fn needs(&self) -> Vec<Slot> {
        vec![REQUEST.slot(), DECISION.slot(), SELECTED_IN.slot()]
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        let satisfied =
            |reason: &str| Ok(Found::Satisfied { reason: reason.to_owned(), outputs: Outputs::none() });
        if !context.get(&DECISION)?.reboot.needed {
            return satisfied("nothing waits for one");
        }
        if context.get(&SELECTED_IN)? != context.boot().as_str() {
            return satisfied("the machine has booted since");
        }
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        if let Some(lock) = &context.get(&REQUEST)?.fleet_lock {
            match self.world.fleet_lock(lock, LockAsk::PreReboot).await {
                Ok(LockAnswer::Granted) => {}
                Ok(LockAnswer::Refused { reason }) => {
                    return Ok(Applied::Waiting {
                        on: format!("the reboot lock at `{}`: {reason}", lock.url),
                    });
                }
                Err(error) => {
                    let why = chain(&error).to_string();
                    return Ok(Applied::Waiting { on: format!("the reboot lock: {why}") });
                }
            }
        }
        self.stage_way_down(&context.get(&DECISION)?.reboot.files).await?;
        Ok(Applied::RebootNeeded(Outputs::none()))
    }

    async fn confirm(&self, _: &Context<'_>) -> Result<Confirmed, StepError> {
        Ok(Confirmed::Holds)
    }
}

/// Why the runtime that was chosen is not the one torcx made of this boot, if it is not.
pub(crate) fn inactive(world: &impl World, decision: &Decision) -> Result<Option<String>, StepError> {
    if decision.backend != Backend::Torcx {
        return Ok(None);
    }
    let noted = |path| read(world, Path::new(path), profile::MAX_BYTES).map_err(|error| super::later(&error));
    for chosen in decision.runtimes.iter().filter_map(|runtime| runtime.chosen.as_ref()) {
        let Some(running) = noted(profile::RUNNING)? else {
            let note = profile::RUNNING;
            return Ok(Some(format!(
                "this boot was to have {DOCKER} {chosen}, and torcx did not run: there is no `{note}`"
            )));
        };
        let found = profile::reference(&running, DOCKER).map_err(|error| super::later(&error))?;
        if found.as_ref() != Some(chosen) {
            let found = found.as_deref().unwrap_or("none");
            return Ok(Some(format!("this boot was to have {DOCKER} {chosen} and has {found}")));
        }
        // Written last: one image that could not be unpacked, and there is no runtime at all.
        if noted(profile::SEAL)?.is_none() {
            let note = profile::SEAL;
            return Ok(Some(format!(
                "this boot was to have {DOCKER} {chosen}, and torcx did not come to its end: there is no `{note}`"
            )));
        }
    }
    Ok(None)
}

// === impl Verify ===

impl<W: World> Verify<W> {
    async fn look(&self, decision: &Decision) -> Result<(), StepError> {
        if let Some(expected) = &decision.inputs.next_os.value {
            let found = gather::current_os(&*self.world).map_err(|error| super::later(&error))?.value.version;
            if found != *expected {
                return Err(StepError::later(format!(
                    "the machine was to boot {expected} and booted {found}: the update was rolled back"
                )));
            }
        }
        inactive(&*self.world, decision)?.map_or(Ok(()), |reason| Err(StepError::later(reason)))?;
        if decision.backend == Backend::Sysext {
            let left_out = left_out(&*self.world, decision).await?;
            if !left_out.is_empty() {
                let left_out = left_out.join(", ");
                return Err(StepError::later(format!("{left_out} did not become part of the system")));
            }
        }
        Ok(())
    }
}

impl<W: World> Step for Verify<W> {
    fn name(&self) -> &'static str {
        super::VERIFY
    }

    fn title(&self) -> String {
        "See that the runtime is the right one".to_owned()
    }

    fn needs(&self) -> Vec<Slot> {
        vec![REQUEST.slot(), DECISION.slot()]
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        let decision = context.get(&DECISION)?;
        self.look(&decision).await?;
        if decision.reboot.needed && context.get(&REQUEST)?.fleet_lock.is_some() {
            return Ok(Found::Needed);
        }
        Ok(Found::Satisfied { reason: "it is".to_owned(), outputs: Outputs::none() })
    }

    /// The machine is well: the next one may reboot.
    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        if let Some(lock) = &context.get(&REQUEST)?.fleet_lock {
            match self.world.fleet_lock(lock, LockAsk::SteadyState).await {
                Ok(LockAnswer::Granted) => {}
                Ok(LockAnswer::Refused { reason }) => {
                    let told = format!("the lock server does not take the reboot lock back: {reason}");
                    return Err(StepError::now(told));
                }
                Err(error) => return Err(StepError::now(chain(&error).to_string())),
            }
        }
        Ok(Applied::Done(Outputs::none()))
    }

    async fn confirm(&self, context: &Context<'_>) -> Result<Confirmed, StepError> {
        self.look(&context.get(&DECISION)?).await.map(|()| Confirmed::Holds)
    }
}
