use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use landfall_durable::Access;
use landfall_model::{Secret, chain};
use landfall_steps::{Applied, Confirmed, Context, Found, Outputs, Step, StepError, StepSpec};

use super::{Given, REQUEST, STAGE};
use crate::environment::{read, write};
use crate::in_place::environment::InPlaceEnvironment;
use crate::in_place::flavour::Flavour;
use crate::in_place::ignition::{self, Ignition};
use crate::in_place::oci::{AuthFile, MAX_AUTH_BYTES, Registry};
use crate::in_place::places::Folder;
use crate::run::later;

/// Enough for an image of 1 GB over a slow link.
const LIMIT: Duration = Duration::from_hours(2);
const DAEMON_IN_IMAGE: &str = "usr/bin/machine-config-daemon";
/// Registry credentials of the kubelet.
pub(crate) const HOST_AUTH: &str = "/var/lib/kubelet/config.json";
pub(crate) const MAX_SETTINGS: u64 = 1024 * 1024;
const EXECUTABLE: Access = Access { mode: 0o700, owner: None };

/// Downloads everything to the machine that will be needed once its kubelet is down.
pub(super) struct Stage<W> {
    pub(super) env: Arc<W>,
    pub(super) given: Option<Arc<Given>>,
}

/// Returns the `registries.conf` that the machine will have, otherwise the current one.
pub(crate) fn registry_settings(
    env: &impl InPlaceEnvironment,
    ignition: &Ignition,
) -> Result<Option<String>, String> {
    if let Some(settings) = ignition.registries().map_err(|error| chain(&error).to_string())? {
        return Ok(Some(settings));
    }
    let settings =
        read(env, Path::new(ignition::REGISTRIES), MAX_SETTINGS).map_err(|error| error.to_string())?;
    Ok(settings.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// Returns registry credentials: those of the Secret, those the machine will have, and the current ones.
pub(crate) fn registry_auth(
    env: &impl InPlaceEnvironment,
    ignition: &Ignition,
    given: Option<&Secret<String>>,
) -> Vec<AuthFile> {
    let coming = ignition.file(HOST_AUTH).ok().flatten();
    let present = read(env, Path::new(HOST_AUTH), MAX_AUTH_BYTES).ok().flatten();
    let files = [coming, present].into_iter().flatten();
    let files = files.map(|bytes| AuthFile::parse(&String::from_utf8_lossy(&bytes)));
    given.map(|secret| AuthFile::parse(secret.expose())).into_iter().chain(files).collect()
}

// === impl Stage ===

impl<W: InPlaceEnvironment> Stage<W> {
    fn is_staged(&self, flavour: Flavour, folder: &Folder) -> Result<bool, StepError> {
        let wanted = match flavour {
            Flavour::Rhcos => vec![folder.machine_config(), folder.daemon()],
            Flavour::Rhel => vec![folder.scripts()],
        };
        for path in wanted {
            if !self.env.exists(&path).map_err(later)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn stage_daemon(&self, folder: &Folder) -> Result<(), StepError> {
        let bytes = read(&*self.env, &folder.ignition(), ignition::MAX_BYTES).map_err(later)?;
        let ignition = Ignition::parse(&bytes.unwrap_or_default()).map_err(later)?;
        let config = ignition.complete_machine_config().map_err(later)?;
        let settings = registry_settings(&*self.env, &ignition).map_err(StepError::later)?;
        let given = self.given.as_ref().and_then(|given| given.credentials.as_ref().ok());
        let registry = Registry {
            env: &*self.env,
            settings: settings.as_deref(),
            auth: registry_auth(
                &*self.env,
                &ignition,
                given.and_then(|credentials| credentials.registry_auth.as_ref()),
            ),
        };
        let image = ignition.daemon_image().map_err(later)?;
        let retry = |error: &dyn std::error::Error| StepError::now(chain(error).to_string());
        let image = registry.find(&image).await.map_err(|error| retry(&error))?;
        let daemon = registry.take(&image, DAEMON_IN_IMAGE, folder.path()).await;
        let daemon = daemon.map_err(|error| retry(&error))?;
        write(&*self.env, &folder.daemon(), &daemon, EXECUTABLE).map_err(later)?;
        // Written last: its existence means that everything else exists.
        let text = serde_json::to_vec(&config).map_err(later)?;
        write(&*self.env, &folder.machine_config(), &text, Access::PRIVATE).map_err(later)
    }
}

impl<W: InPlaceEnvironment> Step for Stage<W> {
    fn spec(&self) -> StepSpec {
        StepSpec::new(STAGE, "Download everything to the machine").needs([REQUEST.slot()]).deadline(LIMIT)
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        if self.is_staged(context.get(&REQUEST)?.flavour, &Folder::of(context.attempt()))? {
            return Ok(Found::satisfied("it is all there"));
        }
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        let folder = Folder::of(context.attempt());
        match context.get(&REQUEST)?.flavour {
            Flavour::Rhcos => self.stage_daemon(&folder).await?,
            Flavour::Rhel => {
                self.env.unpack(&folder.payload(), &folder.scripts()).await.map_err(StepError::later)?;
            }
        }
        Ok(Applied::Done(Outputs::none()))
    }

    async fn confirm(&self, context: &Context<'_>) -> Result<Confirmed, StepError> {
        if self.is_staged(context.get(&REQUEST)?.flavour, &Folder::of(context.attempt()))? {
            Ok(Confirmed::Holds)
        } else {
            Err(StepError::now("the downloaded files are missing"))
        }
    }
}
