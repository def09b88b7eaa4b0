use std::sync::Arc;
use std::time::Duration;

use landfall_model::step::{Retry, Unit};
use landfall_steps::{Applied, Context, Found, Outputs, Step, StepError, StepSpec};

use super::{DECISION, REQUEST};
use crate::prepare::environment::PrepareEnvironment;
use crate::prepare::update_engine::{Pending, UpdateError};
use crate::prepare::why::TroubleBox;
use crate::prepare::{DecideError, decide, gather};
use crate::run::later;

/// Longer than the time limit of the update itself.
const UPDATE_LIMIT: Duration = Duration::from_mins(55);
/// Enough for all locations, in all rounds, for both operating systems.
const DECIDE_LIMIT: Duration = Duration::from_mins(20);

/// Stages the update of the operating system for the next boot.
pub(super) struct UpdateOs<W> {
    pub(super) env: Arc<W>,
}

/// Decides what the node needs.
pub(super) struct Decide<W> {
    pub(super) env: Arc<W>,
    /// Receives the reason of a failure.
    pub(super) trouble: TroubleBox,
}

// === impl UpdateOs ===

impl<W: PrepareEnvironment> Step for UpdateOs<W> {
    fn spec(&self) -> StepSpec {
        StepSpec::new(super::UPDATE_OS, "Update the operating system")
            .needs([REQUEST.slot()])
            .deadline(UPDATE_LIMIT)
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        if !context.get(&REQUEST)?.upgrade_os {
            return Ok(Found::satisfied("not requested"));
        }
        match self.env.update_status().await {
            Ok(status) if status.pending() != Pending::Nothing => {
                Ok(Found::satisfied("an update is waiting to be booted"))
            }
            Ok(_) => Ok(Found::Needed),
            Err(error @ (UpdateError::Absent | UpdateError::Bus { .. })) => {
                let system = gather::current_os(&*self.env).map_err(later)?.value;
                if matches!(system.id.as_str(), "coreos" | "flatcar") {
                    // update_engine may still be starting.
                    return Err(StepError::caused(&error, Retry::Now));
                }
                Ok(Found::satisfied("this operating system has no update_engine"))
            }
            Err(error) => Err(StepError::caused(&error, Retry::Now)),
        }
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        let progress = |done, total| context.progress(done, total, Unit::Bytes);
        match self.env.update(&progress).await {
            Ok(_) => Ok(Applied::Done(Outputs::none())),
            // An immediate retry would fail again; the next start of the process has a suitable delay.
            Err(error @ UpdateError::Failed { .. }) => Err(later(error)),
            Err(error) => Err(StepError::caused(&error, Retry::Now)),
        }
    }
}

// === impl Decide ===

impl<W: PrepareEnvironment> Step for Decide<W> {
    fn spec(&self) -> StepSpec {
        StepSpec::new(super::DECIDE, "Find out what this node needs")
            .needs([REQUEST.slot()])
            .gives([DECISION.slot()])
            .deadline(DECIDE_LIMIT)
    }

    async fn check(&self, _: &Context<'_>) -> Result<Found, StepError> {
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        let decision = decide(&*self.env, &context.get(&REQUEST)?).await;
        let decision = decision.map_err(|error| {
            self.trouble.put(super::DECIDE, (&error).into());
            let retry = match &error {
                DecideError::Gather(error) => error.retry(),
                DecideError::Plan { .. } => Retry::Later,
            };
            StepError::caused(&error, retry)
        })?;
        Ok(Applied::Done(Outputs::none().give(&DECISION, &decision)?))
    }
}
