use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use landfall_steps::durable::Access;
use landfall_steps::{
    Applied, Backoff, Confirmed, Context, Found, Interrupted, Limits, Outputs, Slot, Step, StepError,
};

use super::{APPLY_MACHINE_CONFIG, REQUEST, RUN_BASE, RUN_KUBE, is_applied, later};
use crate::flavour::Flavour;
use crate::payload::{BASE, KUBE};
use crate::places::{DAEMON, Folder, LOGS, MACHINE_CONFIG};
use crate::world::{Command, Ended, World, make_dir, read, write};

/// A new operating system over a thin line; the daemon itself would try for ever.
const DAEMON_LIMIT: Duration = Duration::from_mins(60);
/// Updates of all packages of a machine.
const SCRIPT_LIMIT: Duration = Duration::from_hours(2);
/// Beyond what is run: time to write down how it ended.
const MARGIN: Duration = Duration::from_mins(5);
/// How often a half of the payload may be begun: mirrors stutter, playbooks do not get better.
const MAX_TRIES: u32 = 4;
const MAX_DAEMON: u64 = 1024 * 1024 * 1024;
const MAX_CONFIG: u64 = 64 * 1024 * 1024;
const EXECUTABLE: Access = Access { mode: 0o700, owner: None };

/// Lets machine-config-daemon lay the new life down.
pub(super) struct ApplyMachineConfig<W> {
    pub(super) world: Arc<W>,
}

/// The two halves of a payload, each in a boot of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    /// Packages, hardening, settings: in effect at the next boot.
    Base,
    /// Kubelet and runtime.
    Kube,
}

pub(super) struct RunHalf<W> {
    pub(super) world: Arc<W>,
    pub(super) half: Half,
}

fn told(what: &str, ended: &Ended, log: &Path) -> String {
    let how = ended.code.map_or("was ended by a signal".to_owned(), |code| format!("ended with {code}"));
    format!("{what} {how}; see `{}`: {}", log.display(), ended.tail)
}

// === impl ApplyMachineConfig ===

impl<W: World> ApplyMachineConfig<W> {
    fn copy(&self, from: &Path, to: &Path, limit: u64, access: Access) -> Result<(), StepError> {
        let bytes = read(&*self.world, from, limit).map_err(|error| later(&error))?;
        let bytes = bytes.ok_or_else(|| StepError::never(format!("`{}` is gone", from.display())))?;
        write(&*self.world, to, &bytes, access).map_err(|error| later(&error))
    }
}

impl<W: World> Step for ApplyMachineConfig<W> {
    fn name(&self) -> &'static str {
        APPLY_MACHINE_CONFIG
    }

    fn title(&self) -> String {
        "Let machine-config-daemon apply the MachineConfig".to_owned()
    }

    fn limits(&self) -> Limits {
        Limits { deadline: DAEMON_LIMIT + MARGIN, backoff: Backoff::ONCE }
    }

    /// The daemon reboots by itself, so that this process may never hear of its end; what it leaves behind tells.
    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        let folder = Folder::of(context.attempt());
        let applied = is_applied(&*self.world, Flavour::Rhcos, &folder).map_err(|error| later(&error))?;
        match (applied, context.interrupted()) {
            (false, _) => Ok(Found::Needed),
            (true, Interrupted::InEarlierBoot) => {
                let reason = "the daemon has applied it, and the machine has booted since".to_owned();
                Ok(Found::Satisfied { reason, outputs: Outputs::none() })
            }
            (true, _) => Ok(Found::RebootNeeded(Outputs::none())),
        }
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        let folder = Folder::of(context.attempt());
        self.copy(&folder.daemon(), Path::new(DAEMON), MAX_DAEMON, EXECUTABLE)?;
        self.copy(&folder.machine_config(), Path::new(MACHINE_CONFIG), MAX_CONFIG, Access::PRIVATE)?;
        make_dir(&*self.world, Path::new(LOGS), Access::PRIVATE_DIR).map_err(|error| later(&error))?;
        let command = Command {
            program: DAEMON.into(),
            arguments: vec!["firstboot-complete-machineconfig".to_owned()],
            folder: "/".into(),
            environment: Vec::new(),
            log: Folder::log(context.attempt(), "machine-config-daemon"),
            limit: DAEMON_LIMIT,
        };
        let ended = self.world.run(&command).await.map_err(StepError::never)?;
        if is_applied(&*self.world, Flavour::Rhcos, &folder).map_err(|error| later(&error))? {
            return Ok(Applied::RebootNeeded(Outputs::none()));
        }
        let is_gone = !self.world.exists(Path::new(MACHINE_CONFIG)).map_err(|error| later(&error))?;
        if ended.code == Some(0) && is_gone {
            // It found nothing to change.
            return Ok(Applied::Done(Outputs::none()));
        }
        Err(StepError::never(told("machine-config-daemon", &ended, &command.log)))
    }

    async fn confirm(&self, _: &Context<'_>) -> Result<Confirmed, StepError> {
        if self.world.exists(Path::new(MACHINE_CONFIG)).map_err(|error| later(&error))? {
            return Err(StepError::never("the machine has booted, and the MachineConfig is not applied"));
        }
        Ok(Confirmed::Holds)
    }

    async fn roll_back(&self, context: &Context<'_>) -> Result<(), StepError> {
        let folder = Folder::of(context.attempt());
        if is_applied(&*self.world, Flavour::Rhcos, &folder).map_err(|error| later(&error))? {
            return Ok(());
        }
        for path in [MACHINE_CONFIG, DAEMON] {
            self.world.remove_all(Path::new(path)).map_err(|error| later(&error))?;
        }
        Ok(())
    }
}

// === impl RunHalf ===

impl<W: World> RunHalf<W> {
    fn script(&self, folder: &Folder) -> Result<std::path::PathBuf, StepError> {
        let scripts = folder.scripts();
        let own = match self.half {
            Half::Base => BASE,
            Half::Kube => KUBE,
        };
        let has_own = self.world.exists(&scripts.join(own)).map_err(|error| later(&error))?;
        Ok(scripts.join(if has_own { own } else { BASE }))
    }
}

impl<W: World> Step for RunHalf<W> {
    fn name(&self) -> &'static str {
        match self.half {
            Half::Base => RUN_BASE,
            Half::Kube => RUN_KUBE,
        }
    }

    fn title(&self) -> String {
        match self.half {
            Half::Base => "Configure the base with the payload's scripts".to_owned(),
            Half::Kube => "Configure the kubelet with the payload's scripts".to_owned(),
        }
    }

    fn needs(&self) -> Vec<Slot> {
        vec![REQUEST.slot()]
    }

    fn limits(&self) -> Limits {
        Limits { deadline: SCRIPT_LIMIT + MARGIN, backoff: Backoff::default() }
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        let mark = Folder::of(context.attempt()).half_done(self.name());
        let mark = read(&*self.world, &mark, 128).map_err(|error| later(&error))?;
        let Some(mark) = mark else { return Ok(Found::Needed) };
        if self.half == Half::Base && mark == context.boot().as_str().as_bytes() {
            return Ok(Found::RebootNeeded(Outputs::none()));
        }
        Ok(Found::Satisfied { reason: "it ended well".to_owned(), outputs: Outputs::none() })
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        if context.attempts() > MAX_TRIES {
            return Err(StepError::never(format!("begun {MAX_TRIES} times, and never ended well")));
        }
        let folder = Folder::of(context.attempt());
        let script = self.script(&folder)?;
        make_dir(&*self.world, Path::new(LOGS), Access::PRIVATE_DIR).map_err(|error| later(&error))?;
        let half = match self.half {
            Half::Base => "base",
            Half::Kube => "kube",
        };
        let command = Command {
            program: "/bin/bash".into(),
            arguments: vec![script.display().to_string(), half.to_owned()],
            folder: script.parent().unwrap_or(Path::new("/")).to_owned(),
            environment: vec![
                ("LANDFALL_HALF", half.to_owned()),
                ("LANDFALL_NODE", context.get(&REQUEST)?.node),
                // A path, for root alone; never the Secret itself.
                ("LANDFALL_SECRET_FILE", folder.secret().display().to_string()),
            ],
            log: Folder::log(context.attempt(), half),
            limit: SCRIPT_LIMIT,
        };
        let ended = self.world.run(&command).await.map_err(StepError::now)?;
        if ended.code != Some(0) {
            return Err(StepError::now(told("the payload", &ended, &command.log)));
        }
        let mark = folder.half_done(self.name());
        write(&*self.world, &mark, context.boot().as_str().as_bytes(), Access::PRIVATE)
            .map_err(|error| later(&error))?;
        match self.half {
            Half::Base => Ok(Applied::RebootNeeded(Outputs::none())),
            Half::Kube => Ok(Applied::Done(Outputs::none())),
        }
    }

    async fn confirm(&self, context: &Context<'_>) -> Result<Confirmed, StepError> {
        let mark = Folder::of(context.attempt()).half_done(self.name());
        if self.world.exists(&mark).map_err(|error| later(&error))? {
            Ok(Confirmed::Holds)
        } else {
            Err(StepError::later("the mark of its end is gone"))
        }
    }
}
