use std::path::Path;
use std::sync::Arc;

use landfall_model::chain;
use landfall_steps::{Applied, Confirmed, Context, Found, Outputs, Slot, Step, StepError};

use super::select::{left_out, write};
use super::{DECISION, REQUEST, SELECTED_IN};
use crate::prepare::decision::{Backend, Content, Decision, PlannedFile};
use crate::prepare::gather;
use crate::prepare::planner::DOCKER;
use crate::prepare::profile;
use crate::prepare::world::{LockAnswer, LockAsk, World, read};

const CLEANUP: &str = "torcx-docker-cleanup.service";
const UNITS: &str = "/run/systemd/system";
const CLEANUP_UNIT: &str = "\
[Unit]
Description=Clear docker's data, which another version of docker could not use
DefaultDependencies=no
Before=docker.service umount.target

[Service]
Type=oneshot
ExecStart=/usr/bin/rm -rf /var/lib/docker

[Install]
RequiredBy=umount.target
";

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
    /// Docker cannot go back to an older version's data: it is cleared on the way down.
    async fn stage_cleanup(&self, decision: &Decision) -> Result<(), StepError> {
        if decision.backend != Backend::Torcx
            || decision.runtimes.iter().all(|runtime| runtime.chosen.is_none())
        {
            return Ok(());
        }
        let unit = Path::new(UNITS).join(CLEANUP);
        let files = [
            PlannedFile {
                path: unit.clone(),
                why: "clears docker's data".to_owned(),
                content: Content::Text { text: CLEANUP_UNIT.to_owned() },
            },
            PlannedFile {
                path: Path::new(UNITS).join("umount.target.requires").join(CLEANUP),
                why: "on the way down".to_owned(),
                content: Content::Link { to: unit },
            },
        ];
        for file in &files {
            write(&*self.world, file)?;
        }
        self.world.reload_units().await.map_err(StepError::later)
    }
}

impl<W: World> Step for Reboot<W> {
    fn name(&self) -> &'static str {
        "reboot"
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
        self.stage_cleanup(&context.get(&DECISION)?).await?;
        Ok(Applied::RebootNeeded(Outputs::none()))
    }

    async fn confirm(&self, _: &Context<'_>) -> Result<Confirmed, StepError> {
        Ok(Confirmed::Holds)
    }
}

// === impl Verify ===

impl<W: World> Verify<W> {
    async fn look(&self, decision: &Decision) -> Result<(), StepError> {
        if !decision.reboot.needed {
            return Ok(());
        }
        if let Some(expected) = &decision.inputs.next_os.value {
            let found = gather::current_os(&*self.world).map_err(|error| super::later(&error))?.value.version;
            if found != *expected {
                return Err(StepError::later(format!(
                    "the machine was to boot {expected} and booted {found}: the update was rolled back"
                )));
            }
        }
        for runtime in decision.runtimes.iter().filter(|_| decision.backend == Backend::Torcx) {
            let Some(chosen) = &runtime.chosen else { continue };
            let running = read(&*self.world, Path::new(profile::RUNNING), profile::MAX_BYTES);
            let running = running.map_err(|error| super::later(&error))?;
            // Without torcx's own note there is nothing to compare with; with it, it must say so.
            let Some(running) = running else { continue };
            let found = profile::reference(&running, DOCKER).map_err(|error| super::later(&error))?;
            if found.as_ref() != Some(chosen) {
                let found = found.as_deref().unwrap_or("none");
                return Err(StepError::later(format!(
                    "this boot was to have {DOCKER} {chosen} and has {found}"
                )));
            }
        }
        if decision.backend == Backend::Sysext {
            let left_out = left_out(&*self.world, decision).await?;
            if !left_out.is_empty() {
                return Err(StepError::later(format!("the boot left out {}", left_out.join(", "))));
            }
        }
        Ok(())
    }
}

impl<W: World> Step for Verify<W> {
    fn name(&self) -> &'static str {
        "verify-runtime"
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
