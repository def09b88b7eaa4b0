use std::path::Path;
use std::sync::Arc;

use landfall_steps::durable::{self, Access};
use landfall_steps::{Applied, Confirmed, Context, Found, Outputs, Slot, Step, StepError};

use super::{DECISION, PUBLIC_DIR, SELECTED_IN};
use crate::prepare::decision::{Backend, Content, Decision, PlannedFile};
use crate::prepare::world::{World, make_dir};

/// Longer than every file of a plan.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Makes the runtime the one that is used.
pub(super) struct Select<W> {
    pub(super) world: Arc<W>,
}

/// Makes extensions part of the running system, when no reboot does it.
pub(super) struct Merge<W> {
    pub(super) world: Arc<W>,
}

/// Whether a file is as planned.
pub(crate) fn is_written(world: &impl World, file: &PlannedFile) -> Result<bool, StepError> {
    let failed =
        |error: std::io::Error| StepError::later(format!("cannot read `{}`: {error}", file.path.display()));
    match &file.content {
        Content::Text { text } => match world.disk().read(&world.place(&file.path), MAX_FILE_BYTES) {
            Ok(bytes) => Ok(bytes == text.as_bytes()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) if error.kind() == std::io::ErrorKind::FileTooLarge => Ok(false),
            Err(error) => Err(failed(error)),
        },
        Content::Link { to } => Ok(world.link(&file.path).map_err(failed)?.as_deref() == Some(to)),
    }
}

/// Writes a file as planned: there whole or not at all.
pub(crate) fn write(world: &impl World, file: &PlannedFile) -> Result<(), StepError> {
    let parent = file.path.parent().unwrap_or(Path::new("/"));
    make_dir(world, parent, PUBLIC_DIR).map_err(|error| super::later(&error))?;
    match &file.content {
        Content::Text { text } => {
            durable::write(&*world.disk(), &world.place(&file.path), text.as_bytes(), Access::PUBLIC)
                .map_err(|error| super::later(&error))
        }
        Content::Link { to } => world.set_link(&file.path, to).map_err(|error| {
            StepError::later(format!("cannot link `{}` to `{}`: {error}", file.path.display(), to.display()))
        }),
    }
}

/// The extensions that should be part of the system and are not. Not an exit code but a look tells: systemd skips what
/// does not fit without a word.
pub(crate) async fn left_out(world: &impl World, decision: &Decision) -> Result<Vec<String>, StepError> {
    let merged = world.merged().await.map_err(StepError::later)?;
    let wanted = decision.artefacts.iter().map(|artefact| &artefact.name);
    Ok(wanted.filter(|name| !merged.contains(name)).cloned().collect())
}

// === impl Select ===

impl<W: World> Select<W> {
    fn pending<'a>(&self, decision: &'a Decision) -> Result<Vec<&'a PlannedFile>, StepError> {
        let mut pending = Vec::new();
        for file in &decision.files {
            if !is_written(&*self.world, file)? {
                pending.push(file);
            }
        }
        Ok(pending)
    }

    fn outputs(context: &Context<'_>) -> Result<Outputs, StepError> {
        Ok(Outputs::none().give(&SELECTED_IN, &context.boot().as_str().to_owned())?)
    }
}

impl<W: World> Step for Select<W> {
    fn name(&self) -> &'static str {
        super::SELECT
    }

    fn title(&self) -> String {
        "Select the runtime".to_owned()
    }

    fn needs(&self) -> Vec<Slot> {
        vec![DECISION.slot()]
    }

    fn gives(&self) -> Vec<Slot> {
        vec![SELECTED_IN.slot()]
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        if self.pending(&context.get(&DECISION)?)?.is_empty() {
            let reason = "it is selected already".to_owned();
            return Ok(Found::Satisfied { reason, outputs: Self::outputs(context)? });
        }
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        let decision = context.get(&DECISION)?;
        for file in self.pending(&decision)? {
            write(&*self.world, file)?;
        }
        Ok(Applied::Done(Self::outputs(context)?))
    }

    async fn confirm(&self, context: &Context<'_>) -> Result<Confirmed, StepError> {
        match self.pending(&context.get(&DECISION)?)?.first() {
            None => Ok(Confirmed::Holds),
            Some(file) => Err(StepError::now(format!("`{}` is not as it was written", file.path.display()))),
        }
    }
}

// === impl Merge ===

impl<W: World> Step for Merge<W> {
    fn name(&self) -> &'static str {
        super::MERGE
    }

    fn title(&self) -> String {
        "Make the extensions part of the system".to_owned()
    }

    fn needs(&self) -> Vec<Slot> {
        vec![DECISION.slot()]
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        let decision = context.get(&DECISION)?;
        let reason = if decision.backend != Backend::Sysext {
            "there are no extensions"
        } else if decision.reboot.needed {
            "the next boot does it"
        } else if !self.world.is_here() {
            "they are part of it already"
        } else {
            // Also when they are merged: which image is behind the name cannot be seen.
            return Ok(Found::Needed);
        };
        Ok(Found::Satisfied { reason: reason.to_owned(), outputs: Outputs::none() })
    }

    async fn apply(&self, _: &Context<'_>) -> Result<Applied, StepError> {
        self.world.merge().await.map_err(StepError::later)?;
        Ok(Applied::Done(Outputs::none()))
    }

    async fn confirm(&self, context: &Context<'_>) -> Result<Confirmed, StepError> {
        let left_out = left_out(&*self.world, &context.get(&DECISION)?).await?;
        if left_out.is_empty() {
            return Ok(Confirmed::Holds);
        }
        Err(StepError::later(format!("systemd left out {} without a word", left_out.join(", "))))
    }
}
