use std::sync::Arc;
use std::time::Duration;

use landfall_steps::durable::Access;
use landfall_steps::{Applied, Backoff, Confirmed, Context, Found, Limits, Outputs, Slot, Step, StepError};

use super::{CLAIM, Given, PREFLIGHT, REPORT, REQUEST, later};
use crate::places::Folder;
use crate::preflight;
use crate::world::{World, read, write};

/// Downloads of a payload that is made while we wait, and a dozen mirrors that are slow to answer.
const PREFLIGHT_LIMIT: Duration = Duration::from_mins(45);

/// Takes the request: from here on the attempt is written down, and its Secret is with it.
pub(super) struct Claim<W> {
    pub(super) world: Arc<W>,
    pub(super) given: Option<Arc<Given>>,
}

/// Looks whether everything would work.
pub(super) struct Preflight<W> {
    pub(super) world: Arc<W>,
    pub(super) given: Option<Arc<Given>>,
}

fn given(given: Option<&Arc<Given>>) -> Result<&Given, StepError> {
    given
        .map(|given| &**given)
        .ok_or_else(|| StepError::later("the Secret is not here any more: hand it in again"))
}

// === impl Claim ===

impl<W: World> Step for Claim<W> {
    fn name(&self) -> &'static str {
        CLAIM
    }

    fn title(&self) -> String {
        "Take the request".to_owned()
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        let given = given(self.given.as_ref())?;
        let path = Folder::of(context.attempt()).secret();
        let found =
            read(&*self.world, &path, crate::credentials::MAX_BYTES).map_err(|error| later(&error))?;
        if found.as_ref() == Some(given.raw.expose()) {
            return Ok(Found::Satisfied { reason: "it is taken".to_owned(), outputs: Outputs::none() });
        }
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        let given = given(self.given.as_ref())?;
        let path = Folder::of(context.attempt()).secret();
        write(&*self.world, &path, given.raw.expose(), Access::PRIVATE).map_err(|error| later(&error))?;
        Ok(Applied::Done(Outputs::none()))
    }

    async fn confirm(&self, _: &Context<'_>) -> Result<Confirmed, StepError> {
        Ok(Confirmed::Holds)
    }

    /// The first step is taken back last: everything secret goes with it.
    async fn roll_back(&self, context: &Context<'_>) -> Result<(), StepError> {
        self.world.remove_all(Folder::of(context.attempt()).path()).map_err(|error| later(&error))
    }
}

// === impl Preflight ===

impl<W: World> Step for Preflight<W> {
    fn name(&self) -> &'static str {
        PREFLIGHT
    }

    fn title(&self) -> String {
        "See whether everything would work".to_owned()
    }

    fn needs(&self) -> Vec<Slot> {
        vec![REQUEST.slot()]
    }

    fn gives(&self) -> Vec<Slot> {
        vec![REPORT.slot()]
    }

    fn limits(&self) -> Limits {
        Limits { deadline: PREFLIGHT_LIMIT, backoff: Backoff::ONCE }
    }

    async fn check(&self, _: &Context<'_>) -> Result<Found, StepError> {
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        let given = given(self.given.as_ref())?;
        let request = context.get(&REQUEST)?;
        let credentials = given.credentials.as_ref();
        let report = preflight::examine(&*self.world, &request, credentials, context.attempt()).await;
        match report.failure() {
            None => Ok(Applied::Done(Outputs::none().give(&REPORT, &report)?)),
            Some((reason, true)) => Err(StepError::later(reason)),
            Some((reason, false)) => Err(StepError::never(reason)),
        }
    }

    async fn confirm(&self, _: &Context<'_>) -> Result<Confirmed, StepError> {
        Ok(Confirmed::Holds)
    }
}
