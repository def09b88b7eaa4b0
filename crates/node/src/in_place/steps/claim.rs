use std::sync::Arc;
use std::time::Duration;

use landfall_durable::Access;
use landfall_net::Retries;
use landfall_steps::{Applied, Context, Found, Limits, Outputs, Step, StepError, StepSpec};

use super::{CLAIM, Given, PREFLIGHT, REPORT, REQUEST};
use crate::environment::{read, write};
use crate::in_place::environment::InPlaceEnvironment;
use crate::in_place::places::Folder;
use crate::in_place::preflight;
use crate::run::later;

/// Enough for the download of a payload that is built during the request, and for a dozen slow mirrors.
const PREFLIGHT_LIMIT: Duration = Duration::from_mins(45);

/// Claims the request: from here on the ledger contains the attempt, and the work directory its Secret.
pub(super) struct Claim<W> {
    pub(super) env: Arc<W>,
    pub(super) given: Option<Arc<Given>>,
}

/// Checks whether the attempt would succeed.
pub(super) struct Preflight<W> {
    pub(super) env: Arc<W>,
    pub(super) given: Option<Arc<Given>>,
}

fn given(given: Option<&Arc<Given>>) -> Result<&Given, StepError> {
    given
        .map(|given| &**given)
        .ok_or_else(|| StepError::later("the Secret is not here any more: hand it in again"))
}

// === impl Claim ===

impl<W: InPlaceEnvironment> Step for Claim<W> {
    fn spec(&self) -> StepSpec {
        StepSpec::new(CLAIM, "Take the request")
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        let given = given(self.given.as_ref())?;
        let path = Folder::of(context.attempt()).secret();
        let found = read(&*self.env, &path, crate::in_place::credentials::MAX_BYTES).map_err(later)?;
        if found.as_ref() == Some(given.raw.expose()) {
            return Ok(Found::satisfied("it is taken"));
        }
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        let given = given(self.given.as_ref())?;
        let path = Folder::of(context.attempt()).secret();
        write(&*self.env, &path, given.raw.expose(), Access::PRIVATE).map_err(later)?;
        Ok(Applied::Done(Outputs::none()))
    }

    /// The first step is rolled back last: all secrets are removed with it.
    async fn roll_back(&self, context: &Context<'_>) -> Result<(), StepError> {
        self.env.remove_all(Folder::of(context.attempt()).path()).map_err(later)
    }
}

// === impl Preflight ===

impl<W: InPlaceEnvironment> Step for Preflight<W> {
    fn spec(&self) -> StepSpec {
        StepSpec::new(PREFLIGHT, "Check all preconditions")
            .needs([REQUEST.slot()])
            .gives([REPORT.slot()])
            .limits(Limits { deadline: PREFLIGHT_LIMIT, backoff: Retries::ONCE })
    }

    async fn check(&self, _: &Context<'_>) -> Result<Found, StepError> {
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        let given = given(self.given.as_ref())?;
        let request = context.get(&REQUEST)?;
        let credentials = given.credentials.as_ref();
        let report = preflight::examine(&*self.env, &request, credentials, context.attempt()).await;
        match report.failure() {
            None => Ok(Applied::Done(Outputs::none().give(&REPORT, &report)?)),
            Some((reason, true)) => Err(StepError::later(reason)),
            Some((reason, false)) => Err(StepError::never(reason)),
        }
    }
}
