use std::sync::Arc;

use landfall_steps::{Applied, Confirmed, Context, Found, Outputs, Step, StepError, StepSpec};

use super::DECISION;
use super::select::{is_written, write};
use crate::prepare::environment::PrepareEnvironment;

/// Lets the kubelet start. It is the last step, so the content of this file is true when it appears.
pub(super) struct WriteEnv<W> {
    pub(super) env: Arc<W>,
}

// === impl WriteEnv ===

impl<W: PrepareEnvironment> WriteEnv<W> {
    fn is_done(&self, context: &Context<'_>) -> Result<bool, StepError> {
        match &context.get(&DECISION)?.kubelet_env {
            Some(file) => is_written(&*self.env, file),
            None => Ok(true),
        }
    }
}

impl<W: PrepareEnvironment> Step for WriteEnv<W> {
    fn spec(&self) -> StepSpec {
        StepSpec::new(super::WRITE_ENV, "Let the kubelet start").needs([DECISION.slot()])
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        if self.is_done(context)? {
            return Ok(Found::satisfied("there is nothing to write"));
        }
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        if let Some(file) = &context.get(&DECISION)?.kubelet_env {
            write(&*self.env, file)?;
        }
        Ok(Applied::Done(Outputs::none()))
    }

    async fn confirm(&self, context: &Context<'_>) -> Result<Confirmed, StepError> {
        if self.is_done(context)? {
            return Ok(Confirmed::Holds);
        }
        Err(StepError::now("the file does not say what was written"))
    }
}
