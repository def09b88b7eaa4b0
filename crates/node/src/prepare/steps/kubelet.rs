use std::sync::Arc;

use landfall_steps::{Applied, Confirmed, Context, Found, Outputs, Slot, Step, StepError};

use super::DECISION;
use super::select::{is_written, write};
use crate::prepare::world::World;

/// Lets the kubelet start. The last step: what this file says is true when it appears.
pub(super) struct WriteEnv<W> {
    pub(super) world: Arc<W>,
}

// === impl WriteEnv ===

impl<W: World> WriteEnv<W> {
    fn is_done(&self, context: &Context<'_>) -> Result<bool, StepError> {
        match &context.get(&DECISION)?.kubelet_env {
            Some(file) => is_written(&*self.world, file),
            None => Ok(true),
        }
    }
}

impl<W: World> Step for WriteEnv<W> {
    fn name(&self) -> &'static str {
        super::WRITE_ENV
    }

    fn title(&self) -> String {
        "Let the kubelet start".to_owned()
    }

    fn needs(&self) -> Vec<Slot> {
        vec![DECISION.slot()]
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        if self.is_done(context)? {
            let reason = "there is nothing to write".to_owned();
            return Ok(Found::Satisfied { reason, outputs: Outputs::none() });
        }
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        if let Some(file) = &context.get(&DECISION)?.kubelet_env {
            write(&*self.world, file)?;
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
