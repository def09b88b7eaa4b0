use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use landfall_durable::Access;
use landfall_net::Retries;
use landfall_steps::{
    Applied, Confirmed, Context, Found, Interrupted, Limits, Outputs, Step, StepError, StepSpec,
};

use super::{APPLY_MACHINE_CONFIG, REQUEST, RUN_BASE, RUN_KUBE, is_applied};
use crate::environment::{make_dir, read, write};
use crate::in_place::environment::{Command, CommandResult, InPlaceEnvironment};
use crate::in_place::flavour::Flavour;
use crate::in_place::payload::{BASE, KUBE};
use crate::in_place::places::{DAEMON, Folder, LOGS, MACHINE_CONFIG};
use crate::run::later;

/// Enough for a new operating system over a slow link; the daemon itself would retry without limit.
const DAEMON_LIMIT: Duration = Duration::from_mins(60);
/// Enough for updates of all packages of a machine.
const SCRIPT_LIMIT: Duration = Duration::from_hours(2);
/// Time beyond the program's limit to record how it ended.
const MARGIN: Duration = Duration::from_mins(5);
/// Limit for starts of one half of the payload: mirrors fail temporarily, but playbooks do not improve.
const MAX_TRIES: u32 = 4;
const MAX_DAEMON: u64 = 1024 * 1024 * 1024;
const MAX_CONFIG: u64 = 64 * 1024 * 1024;
const EXECUTABLE: Access = Access { mode: 0o700, owner: None };

/// Applies the new configuration with machine-config-daemon.
pub(super) struct ApplyMachineConfig<W> {
    pub(super) env: Arc<W>,
}

/// The two halves of a payload, each in its own boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Half {
    /// Packages, hardening and settings, which take effect at the next boot.
    Base,
    /// Kubelet and runtime.
    Kube,
}

pub(super) struct RunHalf<W> {
    pub(super) env: Arc<W>,
    pub(super) half: Half,
}

fn told(what: &str, ended: &CommandResult, log: &Path) -> String {
    let how = ended.code.map_or("was ended by a signal".to_owned(), |code| format!("ended with {code}"));
    format!("{what} {how}; see `{}`: {}", log.display(), ended.tail)
}

// === impl ApplyMachineConfig ===

impl<W: InPlaceEnvironment> ApplyMachineConfig<W> {
    fn copy(&self, from: &Path, to: &Path, limit: u64, access: Access) -> Result<(), StepError> {
        let bytes = read(&*self.env, from, limit).map_err(later)?;
        let bytes = bytes.ok_or_else(|| StepError::never(format!("`{}` is gone", from.display())))?;
        write(&*self.env, to, &bytes, access).map_err(later)
    }
}

impl<W: InPlaceEnvironment> Step for ApplyMachineConfig<W> {
    fn spec(&self) -> StepSpec {
        StepSpec::new(APPLY_MACHINE_CONFIG, "Let machine-config-daemon apply the MachineConfig")
            .limits(Limits { deadline: DAEMON_LIMIT + MARGIN, backoff: Retries::ONCE })
    }

    /// The daemon reboots the machine, so this process may not see its exit; the files it leaves show the result.
    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        let folder = Folder::of(context.attempt());
        let applied = is_applied(&*self.env, Flavour::Rhcos, &folder).map_err(later)?;
        match (applied, context.interrupted()) {
            (false, _) => Ok(Found::Needed),
            (true, Interrupted::InEarlierBoot) => {
                Ok(Found::satisfied("the daemon has applied it, and the machine has booted since"))
            }
            (true, _) => Ok(Found::RebootNeeded(Outputs::none())),
        }
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        let folder = Folder::of(context.attempt());
        self.copy(&folder.daemon(), Path::new(DAEMON), MAX_DAEMON, EXECUTABLE)?;
        self.copy(&folder.machine_config(), Path::new(MACHINE_CONFIG), MAX_CONFIG, Access::PRIVATE)?;
        make_dir(&*self.env, Path::new(LOGS), Access::PRIVATE_DIR).map_err(later)?;
        let command = Command {
            program: DAEMON.into(),
            arguments: vec!["firstboot-complete-machineconfig".to_owned()],
            folder: "/".into(),
            environment: Vec::new(),
            log: Folder::log(context.attempt(), "machine-config-daemon"),
            limit: DAEMON_LIMIT,
        };
        let ended = self.env.run(&command).await.map_err(StepError::never)?;
        if is_applied(&*self.env, Flavour::Rhcos, &folder).map_err(later)? {
            return Ok(Applied::RebootNeeded(Outputs::none()));
        }
        let is_gone = !self.env.exists(Path::new(MACHINE_CONFIG)).map_err(later)?;
        if ended.code == Some(0) && is_gone {
            // The daemon found nothing to change.
            return Ok(Applied::Done(Outputs::none()));
        }
        Err(StepError::never(told("machine-config-daemon", &ended, &command.log)))
    }

    async fn confirm(&self, _: &Context<'_>) -> Result<Confirmed, StepError> {
        if self.env.exists(Path::new(MACHINE_CONFIG)).map_err(later)? {
            return Err(StepError::never("the machine has booted, and the MachineConfig is not applied"));
        }
        Ok(Confirmed::Holds)
    }

    async fn roll_back(&self, context: &Context<'_>) -> Result<(), StepError> {
        let folder = Folder::of(context.attempt());
        if is_applied(&*self.env, Flavour::Rhcos, &folder).map_err(later)? {
            return Ok(());
        }
        for path in [MACHINE_CONFIG, DAEMON] {
            self.env.remove_all(Path::new(path)).map_err(later)?;
        }
        Ok(())
    }
}

// === impl Half ===

impl Half {
    fn step(self) -> &'static str {
        match self {
            Self::Base => RUN_BASE,
            Self::Kube => RUN_KUBE,
        }
    }
}

// === impl RunHalf ===

impl<W: InPlaceEnvironment> RunHalf<W> {
    fn script(&self, folder: &Folder) -> Result<std::path::PathBuf, StepError> {
        let scripts = folder.scripts();
        let own = match self.half {
            Half::Base => BASE,
            Half::Kube => KUBE,
        };
        let has_own = self.env.exists(&scripts.join(own)).map_err(later)?;
        Ok(scripts.join(if has_own { own } else { BASE }))
    }
}

impl<W: InPlaceEnvironment> Step for RunHalf<W> {
    fn spec(&self) -> StepSpec {
        let title = match self.half {
            Half::Base => "Configure the base with the payload's scripts",
            Half::Kube => "Configure the kubelet with the payload's scripts",
        };
        StepSpec::new(self.half.step(), title).needs([REQUEST.slot()]).deadline(SCRIPT_LIMIT + MARGIN)
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        let mark = Folder::of(context.attempt()).half_done(self.half.step());
        let mark = read(&*self.env, &mark, 128).map_err(later)?;
        let Some(mark) = mark else { return Ok(Found::Needed) };
        if self.half == Half::Base && mark == context.boot().as_str().as_bytes() {
            return Ok(Found::RebootNeeded(Outputs::none()));
        }
        Ok(Found::satisfied("it ended well"))
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        if context.attempts() > MAX_TRIES {
            return Err(StepError::never(format!("begun {MAX_TRIES} times, and never ended well")));
        }
        let folder = Folder::of(context.attempt());
        let script = self.script(&folder)?;
        make_dir(&*self.env, Path::new(LOGS), Access::PRIVATE_DIR).map_err(later)?;
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
                // A path that only root can read; never the Secret itself.
                ("LANDFALL_SECRET_FILE", folder.secret().display().to_string()),
            ],
            log: Folder::log(context.attempt(), half),
            limit: SCRIPT_LIMIT,
        };
        let ended = self.env.run(&command).await.map_err(StepError::now)?;
        if ended.code != Some(0) {
            return Err(StepError::now(told("the payload", &ended, &command.log)));
        }
        let mark = folder.half_done(self.half.step());
        write(&*self.env, &mark, context.boot().as_str().as_bytes(), Access::PRIVATE).map_err(later)?;
        match self.half {
            Half::Base => Ok(Applied::RebootNeeded(Outputs::none())),
            Half::Kube => Ok(Applied::Done(Outputs::none())),
        }
    }

    async fn confirm(&self, context: &Context<'_>) -> Result<Confirmed, StepError> {
        let mark = Folder::of(context.attempt()).half_done(self.half.step());
        if self.env.exists(&mark).map_err(later)? {
            Ok(Confirmed::Holds)
        } else {
            Err(StepError::later("the mark of its end is gone"))
        }
    }
}
