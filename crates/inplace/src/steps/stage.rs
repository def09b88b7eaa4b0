use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use landfall_model::{Secret, chain};
use landfall_steps::durable::Access;
use landfall_steps::{Applied, Backoff, Confirmed, Context, Found, Limits, Outputs, Slot, Step, StepError};

use super::{Given, REQUEST, STAGE, later};
use crate::flavour::Flavour;
use crate::ignition::{self, Ignition};
use crate::oci::{AuthFile, MAX_AUTH_BYTES, Registry};
use crate::places::Folder;
use crate::world::{World, read, write};

/// An image of a gigabyte over a thin line.
const LIMIT: Duration = Duration::from_hours(2);
const DAEMON_IN_IMAGE: &str = "usr/bin/machine-config-daemon";
/// Access to registries, as the kubelet has it.
pub(crate) const HOST_AUTH: &str = "/var/lib/kubelet/config.json";
pub(crate) const MAX_SETTINGS: u64 = 1024 * 1024;
const EXECUTABLE: Access = Access { mode: 0o700, owner: None };

/// Brings everything to the machine that will be needed once its kubelet is down.
pub(super) struct Stage<W> {
    pub(super) world: Arc<W>,
    pub(super) given: Option<Arc<Given>>,
}

/// The `registries.conf` the machine will have, else the one it has.
pub(crate) fn registry_settings(world: &impl World, ignition: &Ignition) -> Result<Option<String>, String> {
    if let Some(settings) = ignition.registries().map_err(|error| chain(&error).to_string())? {
        return Ok(Some(settings));
    }
    let settings =
        read(world, Path::new(ignition::REGISTRIES), MAX_SETTINGS).map_err(|error| error.to_string())?;
    Ok(settings.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// Access to registries: what came with the Secret, what the machine will have, what it has.
pub(crate) fn registry_auth(
    world: &impl World,
    ignition: &Ignition,
    given: Option<&Secret<String>>,
) -> Vec<AuthFile> {
    let coming = ignition.file(HOST_AUTH).ok().flatten();
    let present = read(world, Path::new(HOST_AUTH), MAX_AUTH_BYTES).ok().flatten();
    let files = [coming, present].into_iter().flatten();
    let files = files.map(|bytes| AuthFile::parse(&String::from_utf8_lossy(&bytes)));
    given.map(|secret| AuthFile::parse(secret.expose())).into_iter().chain(files).collect()
}

// === impl Stage ===

impl<W: World> Stage<W> {
    fn is_staged(&self, flavour: Flavour, folder: &Folder) -> Result<bool, StepError> {
        let wanted = match flavour {
            Flavour::Rhcos => vec![folder.machine_config(), folder.daemon()],
            Flavour::Rhel => vec![folder.scripts()],
        };
        for path in wanted {
            if !self.world.exists(&path).map_err(|error| later(&error))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn stage_daemon(&self, folder: &Folder) -> Result<(), StepError> {
        let bytes =
            read(&*self.world, &folder.ignition(), ignition::MAX_BYTES).map_err(|error| later(&error))?;
        let ignition = Ignition::parse(&bytes.unwrap_or_default()).map_err(|error| later(&error))?;
        let config = ignition.complete_machine_config().map_err(|error| later(&error))?;
        let settings = registry_settings(&*self.world, &ignition).map_err(StepError::later)?;
        let given = self.given.as_ref().and_then(|given| given.credentials.as_ref().ok());
        let registry = Registry {
            world: &*self.world,
            settings: settings.as_deref(),
            auth: registry_auth(
                &*self.world,
                &ignition,
                given.and_then(|credentials| credentials.registry_auth.as_ref()),
            ),
        };
        let image = ignition.daemon_image().map_err(|error| later(&error))?;
        let retry = |error: &dyn std::error::Error| StepError::now(chain(error).to_string());
        let image = registry.find(&image).await.map_err(|error| retry(&error))?;
        let daemon = registry.take(&image, DAEMON_IN_IMAGE, folder.path()).await;
        let daemon = daemon.map_err(|error| retry(&error))?;
        write(&*self.world, &folder.daemon(), &daemon, EXECUTABLE).map_err(|error| later(&error))?;
        // Last: it says that everything else is there.
        let text = serde_json::to_vec(&config).map_err(|error| later(&error))?;
        write(&*self.world, &folder.machine_config(), &text, Access::PRIVATE).map_err(|error| later(&error))
    }
}

impl<W: World> Step for Stage<W> {
    fn name(&self) -> &'static str {
        STAGE
    }

    fn title(&self) -> String {
        "Bring everything to the machine".to_owned()
    }

    fn needs(&self) -> Vec<Slot> {
        vec![REQUEST.slot()]
    }

    fn limits(&self) -> Limits {
        Limits { deadline: LIMIT, backoff: Backoff::default() }
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        if self.is_staged(context.get(&REQUEST)?.flavour, &Folder::of(context.attempt()))? {
            return Ok(Found::Satisfied { reason: "it is all there".to_owned(), outputs: Outputs::none() });
        }
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        let folder = Folder::of(context.attempt());
        match context.get(&REQUEST)?.flavour {
            Flavour::Rhcos => self.stage_daemon(&folder).await?,
            Flavour::Rhel => {
                self.world.unpack(&folder.payload(), &folder.scripts()).await.map_err(StepError::later)?;
            }
        }
        Ok(Applied::Done(Outputs::none()))
    }

    async fn confirm(&self, context: &Context<'_>) -> Result<Confirmed, StepError> {
        if self.is_staged(context.get(&REQUEST)?.flavour, &Folder::of(context.attempt()))? {
            Ok(Confirmed::Holds)
        } else {
            Err(StepError::now("what was brought is not there"))
        }
    }
}
