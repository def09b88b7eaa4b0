use std::path::Path;
use std::sync::Arc;

use landfall_model::chain;
use landfall_steps::{Applied, Confirmed, Context, Found, Outputs, Step, StepError, StepSpec};

use super::select::{left_out, write};
use super::{DECISION, REQUEST, SELECTED_IN};
use crate::environment::read_text as read;
use crate::prepare::decision::{Backend, Decision, PlannedFile};
use crate::prepare::environment::{FleetLockRequest, FleetLockResponse, PrepareEnvironment};
use crate::prepare::gather;
use crate::prepare::planner::DOCKER;
use crate::prepare::profile;
use crate::run::later;

/// Reboots into the selected runtime.
pub(super) struct Reboot<W> {
    pub(super) env: Arc<W>,
}

/// Checks that the machine is in the planned state.
pub(super) struct Verify<W> {
    pub(super) env: Arc<W>,
}

// === impl Reboot ===

impl<W: PrepareEnvironment> Reboot<W> {
    /// Writes the files that only a shutdown needs. An error stops the reboot: docker would not start after it.
    async fn stage_way_down(&self, files: &[PlannedFile]) -> Result<(), StepError> {
        if files.is_empty() {
            return Ok(());
        }
        for file in files {
            write(&*self.env, file)?;
        }
        self.env.reload_units().await.map_err(StepError::later)
    }
}

impl<W: PrepareEnvironment> Step for Reboot<W> {
    fn spec(&self) -> StepSpec {
        StepSpec::new(super::REBOOT, "Boot what was selected").needs([
            REQUEST.slot(),
            DECISION.slot(),
            SELECTED_IN.slot(),
        ])
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        if !context.get(&DECISION)?.reboot.needed {
            return Ok(Found::satisfied("nothing waits for one"));
        }
        if context.get(&SELECTED_IN)? != context.boot().as_str() {
            return Ok(Found::satisfied("the machine has booted since"));
        }
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        if let Some(lock) = &context.get(&REQUEST)?.fleet_lock {
            match self.env.fleet_lock(lock, FleetLockRequest::PreReboot).await {
                Ok(FleetLockResponse::Granted) => {}
                Ok(FleetLockResponse::Refused { reason }) => {
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
}

/// Returns why torcx did not activate the chosen runtime in this boot; `None` if it did.
pub(crate) fn inactive(
    env: &impl PrepareEnvironment,
    decision: &Decision,
) -> Result<Option<String>, StepError> {
    if decision.backend != Backend::Torcx {
        return Ok(None);
    }
    let noted = |path| read(env, Path::new(path), profile::MAX_BYTES).map_err(later);
    for chosen in decision.runtimes.iter().filter_map(|runtime| runtime.chosen.as_ref()) {
        let Some(running) = noted(profile::RUNNING)? else {
            let note = profile::RUNNING;
            return Ok(Some(format!(
                "this boot was to have {DOCKER} {chosen}, and torcx did not run: there is no `{note}`"
            )));
        };
        let found = profile::reference(&running, DOCKER).map_err(later)?;
        if found.as_ref() != Some(chosen) {
            let found = found.as_deref().unwrap_or("none");
            return Ok(Some(format!("this boot was to have {DOCKER} {chosen} and has {found}")));
        }
        // torcx writes this file last: if one image cannot be unpacked, there is no runtime at all.
        if noted(profile::SEAL)?.is_none() {
            let note = profile::SEAL;
            return Ok(Some(format!(
                "this boot was to have {DOCKER} {chosen}, and torcx did not complete: `{note}` does not exist"
            )));
        }
    }
    Ok(None)
}

// === impl Verify ===

impl<W: PrepareEnvironment> Verify<W> {
    async fn look(&self, decision: &Decision) -> Result<(), StepError> {
        if let Some(expected) = &decision.inputs.next_os.value {
            let found = gather::current_os(&*self.env).map_err(later)?.value.version;
            if found != *expected {
                return Err(StepError::later(format!(
                    "the machine was to boot {expected} and booted {found}: the update was rolled back"
                )));
            }
        }
        inactive(&*self.env, decision)?.map_or(Ok(()), |reason| Err(StepError::later(reason)))?;
        if decision.backend == Backend::Sysext {
            let left_out = left_out(&*self.env, decision).await?;
            if !left_out.is_empty() {
                let left_out = left_out.join(", ");
                return Err(StepError::later(format!("{left_out} did not become part of the system")));
            }
        }
        Ok(())
    }
}

impl<W: PrepareEnvironment> Step for Verify<W> {
    fn spec(&self) -> StepSpec {
        StepSpec::new(super::VERIFY, "See that the runtime is the right one")
            .needs([REQUEST.slot(), DECISION.slot()])
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        let decision = context.get(&DECISION)?;
        self.look(&decision).await?;
        if decision.reboot.needed && context.get(&REQUEST)?.fleet_lock.is_some() {
            return Ok(Found::Needed);
        }
        Ok(Found::satisfied("it is"))
    }

    /// The machine works: the next one may reboot.
    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        if let Some(lock) = &context.get(&REQUEST)?.fleet_lock {
            match self.env.fleet_lock(lock, FleetLockRequest::SteadyState).await {
                Ok(FleetLockResponse::Granted) => {}
                Ok(FleetLockResponse::Refused { reason }) => {
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
