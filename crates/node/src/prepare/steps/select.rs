use std::path::Path;
use std::sync::Arc;

use landfall_durable::Access;
use landfall_steps::{Applied, Confirmed, Context, Found, Outputs, Step, StepError, StepSpec};

use super::{DECISION, SELECTED_IN};
use crate::environment::{self, PUBLIC_DIR, make_dir};
use crate::prepare::decision::{Backend, Content, Decision, PlannedFile};
use crate::prepare::environment::PrepareEnvironment;
use crate::run::later;

/// Larger than every file of a plan.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// Makes the planned runtime the active one.
pub(super) struct Select<W> {
    pub(super) env: Arc<W>,
}

/// Merges extensions into the running system, when no reboot does it.
pub(super) struct Merge<W> {
    pub(super) env: Arc<W>,
}

/// Returns whether a file matches the plan.
pub(crate) fn is_written(env: &impl PrepareEnvironment, file: &PlannedFile) -> Result<bool, StepError> {
    let failed =
        |error: std::io::Error| StepError::later(format!("cannot read `{}`: {error}", file.path.display()));
    match &file.content {
        Content::Text { text } => match env.disk().read(&env.host_path(&file.path), MAX_FILE_BYTES) {
            Ok(bytes) => Ok(bytes == text.as_bytes()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) if error.kind() == std::io::ErrorKind::FileTooLarge => Ok(false),
            Err(error) => Err(failed(error)),
        },
        Content::Link { to } => Ok(env.link(&file.path).map_err(failed)?.as_deref() == Some(to)),
    }
}

/// Writes a file as planned; it appears complete or not at all.
pub(crate) fn write(env: &impl PrepareEnvironment, file: &PlannedFile) -> Result<(), StepError> {
    match &file.content {
        Content::Text { text } => {
            environment::write(env, &file.path, text.as_bytes(), Access::PUBLIC).map_err(later)
        }
        Content::Link { to } => {
            let parent = file.path.parent().unwrap_or(Path::new("/"));
            make_dir(env, parent, PUBLIC_DIR).map_err(later)?;
            env.set_link(&file.path, to).map_err(|error| {
                let (path, to) = (file.path.display(), to.display());
                StepError::later(format!("cannot link `{path}` to `{to}`: {error}"))
            })
        }
    }
}

/// Returns the planned extensions that are not merged.
///
/// The state is read rather than an exit code, because systemd skips incompatible extensions without a message.
pub(crate) async fn left_out(
    env: &impl PrepareEnvironment,
    decision: &Decision,
) -> Result<Vec<String>, StepError> {
    let merged = env.merged().await.map_err(StepError::later)?;
    let wanted = decision.artefacts.iter().map(|artefact| &artefact.name);
    Ok(wanted.filter(|name| !merged.contains(name)).cloned().collect())
}

// === impl Select ===

impl<W: PrepareEnvironment> Select<W> {
    fn pending<'a>(&self, decision: &'a Decision) -> Result<Vec<&'a PlannedFile>, StepError> {
        let mut pending = Vec::new();
        for file in &decision.files {
            if !is_written(&*self.env, file)? {
                pending.push(file);
            }
        }
        Ok(pending)
    }

    fn outputs(context: &Context<'_>) -> Result<Outputs, StepError> {
        Ok(Outputs::none().give(&SELECTED_IN, &context.boot().as_str().to_owned())?)
    }
}

impl<W: PrepareEnvironment> Step for Select<W> {
    fn spec(&self) -> StepSpec {
        StepSpec::new(super::SELECT, "Select the runtime")
            .needs([DECISION.slot()])
            .gives([SELECTED_IN.slot()])
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
            write(&*self.env, file)?;
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

impl<W: PrepareEnvironment> Step for Merge<W> {
    fn spec(&self) -> StepSpec {
        StepSpec::new(super::MERGE, "Make the extensions part of the system").needs([DECISION.slot()])
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        let decision = context.get(&DECISION)?;
        let reason = if decision.backend != Backend::Sysext {
            "there are no extensions"
        } else if decision.reboot.needed {
            "the next boot does it"
        } else if !self.env.is_live_system() {
            "they are part of it already"
        } else {
            // Needed even for merged extensions: the image behind the name cannot be determined.
            return Ok(Found::Needed);
        };
        Ok(Found::satisfied(reason))
    }

    async fn apply(&self, _: &Context<'_>) -> Result<Applied, StepError> {
        self.env.merge().await.map_err(StepError::later)?;
        Ok(Applied::Done(Outputs::none()))
    }

    async fn confirm(&self, context: &Context<'_>) -> Result<Confirmed, StepError> {
        let left_out = left_out(&*self.env, &context.get(&DECISION)?).await?;
        if left_out.is_empty() {
            return Ok(Confirmed::Holds);
        }
        Err(StepError::later(format!("systemd skipped {} without a message", left_out.join(", "))))
    }
}
