use std::sync::Arc;
use std::time::Duration;

use landfall_model::step::{Retry, Unit};
use landfall_steps::{Applied, Backoff, Confirmed, Context, Found, Limits, Outputs, Slot, Step, StepError};

use super::{DECISION, REQUEST};
use crate::prepare::update_engine::{Pending, UpdateError};
use crate::prepare::why::TroubleBox;
use crate::prepare::world::World;
use crate::prepare::{DecideError, decide, gather};

/// Longer than the wait for an update itself may take.
const UPDATE_LIMIT: Duration = Duration::from_mins(55);
/// All places, all rounds, for both operating systems.
const DECIDE_LIMIT: Duration = Duration::from_mins(20);

/// Brings the operating system up to date, as far as the next boot.
pub(super) struct UpdateOs<W> {
    pub(super) world: Arc<W>,
}

/// Finds out what the node needs.
pub(super) struct Decide<W> {
    pub(super) world: Arc<W>,
    /// Where it says why it came to none.
    pub(super) trouble: TroubleBox,
}

// === impl UpdateOs ===

impl<W: World> Step for UpdateOs<W> {
    fn name(&self) -> &'static str {
        super::UPDATE_OS
    }

    fn title(&self) -> String {
        "Update the operating system".to_owned()
    }

    fn needs(&self) -> Vec<Slot> {
        vec![REQUEST.slot()]
    }

    fn limits(&self) -> Limits {
        Limits { deadline: UPDATE_LIMIT, backoff: Backoff::default() }
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        let satisfied =
            |reason: &str| Ok(Found::Satisfied { reason: reason.to_owned(), outputs: Outputs::none() });
        if !context.get(&REQUEST)?.upgrade_os {
            return satisfied("nobody asked for it");
        }
        match self.world.update_status().await {
            Ok(status) if status.pending() != Pending::Nothing => {
                satisfied("an update is waiting to be booted")
            }
            Ok(_) => Ok(Found::Needed),
            Err(error @ (UpdateError::Absent | UpdateError::Bus { .. })) => {
                let system = gather::current_os(&*self.world).map_err(|error| super::later(&error))?.value;
                if matches!(system.id.as_str(), "coreos" | "flatcar") {
                    // It may only be starting.
                    return Err(StepError::caused(&error, Retry::Now));
                }
                satisfied("this operating system has no update_engine")
            }
            Err(error) => Err(StepError::caused(&error, Retry::Now)),
        }
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        let progress = |done, total| context.progress(done, total, Unit::Bytes);
        match self.world.update(&progress).await {
            Ok(_) => Ok(Applied::Done(Outputs::none())),
            // Asking again at once would fail again; the next start of the process is the right distance.
            Err(error @ UpdateError::Failed { .. }) => Err(super::later(&error)),
            Err(error) => Err(StepError::caused(&error, Retry::Now)),
        }
    }

    async fn confirm(&self, _: &Context<'_>) -> Result<Confirmed, StepError> {
        Ok(Confirmed::Holds)
    }
}

// === impl Decide ===

impl<W: World> Step for Decide<W> {
    fn name(&self) -> &'static str {
        super::DECIDE
    }

    fn title(&self) -> String {
        "Find out what this node needs".to_owned()
    }

    fn needs(&self) -> Vec<Slot> {
        vec![REQUEST.slot()]
    }

    fn gives(&self) -> Vec<Slot> {
        vec![DECISION.slot()]
    }

    fn limits(&self) -> Limits {
        Limits { deadline: DECIDE_LIMIT, backoff: Backoff::default() }
    }

    async fn check(&self, _: &Context<'_>) -> Result<Found, StepError> {
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        let decision = decide(&*self.world, &context.get(&REQUEST)?).await;
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

    async fn confirm(&self, _: &Context<'_>) -> Result<Confirmed, StepError> {
        Ok(Confirmed::Holds)
    }
}
