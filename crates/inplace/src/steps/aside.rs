use std::io;
use std::path::Path;
use std::sync::Arc;

use landfall_steps::{Applied, Confirmed, Context, Found, Outputs, Slot, Step, StepError};

use super::{REQUEST, SET_STATE_ASIDE, is_applied, later};
use crate::flavour::Flavour;
use crate::places::{Folder, MACHINE_CONFIG, MACHINE_CONFIG_DONE};
use crate::world::World;

/// What a kubelet of the new life must not find.
const RHCOS: &[&str] = &[
    "/var/lib/kubelet",
    "/etc/cni/net.d",
    "/etc/kubernetes/kubeconfig",
    "/etc/machine-config-daemon/node-annotations.json",
    // The daemon's mark of an earlier life.
    MACHINE_CONFIG_DONE,
    MACHINE_CONFIG,
];
const RHEL: &[&str] = &[
    "/var/lib/kubelet",
    "/etc/cni",
    "/etc/kubernetes",
    "/etc/systemd/system/kubelet.service",
    "/etc/systemd/system/crio.service",
    "/etc/systemd/system/decrypt-docker.service",
    "/etc/systemd/system/pull-dependencies.service",
    "/etc/systemd/system/cleanup-keys.service",
    // By these the payload knows how far it came in an earlier life.
    "/etc/armadabootstrap/imaging.flag",
    "/var/log/firstboot.flag",
    "/var/log/bootstrap_base.flag",
];

/// Those of them that are folders.
const FOLDERS: [&str; 4] = ["/var/lib/kubelet", "/etc/cni", "/etc/cni/net.d", "/etc/kubernetes"];

/// Moves the state of the old life aside, to be had back until the new one is laid down.
pub(super) struct SetStateAside<W> {
    pub(super) world: Arc<W>,
}

pub(super) fn paths(flavour: Flavour) -> impl Iterator<Item = &'static Path> {
    let paths = match flavour {
        Flavour::Rhcos => RHCOS,
        Flavour::Rhel => RHEL,
    };
    paths.iter().map(Path::new)
}

/// Why the state could not be moved, told before the machine goes down: behind a link or on a file system of its own, it
/// would stay where it is, with the keys in it.
pub(crate) fn obstacles(world: &impl World, flavour: Flavour) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for path in paths(flavour).filter(|path| FOLDERS.iter().any(|folder| *path == Path::new(folder))) {
        if let Some(tied) = world.tied(path)? {
            found.push(format!("`{}` {tied}", path.display()));
        }
    }
    Ok(found)
}

// === impl SetStateAside ===

impl<W: World> SetStateAside<W> {
    /// What is still where it was: before the new life is begun, nobody else has a claim to these names.
    fn left(&self, flavour: Flavour) -> Result<Vec<&'static Path>, StepError> {
        let mut left = Vec::new();
        for path in paths(flavour) {
            if self.world.exists(path).map_err(|error| later(&error))? {
                left.push(path);
            }
        }
        Ok(left)
    }
}

impl<W: World> Step for SetStateAside<W> {
    fn name(&self) -> &'static str {
        SET_STATE_ASIDE
    }

    fn title(&self) -> String {
        "Set the state of the old kubelet aside".to_owned()
    }

    fn needs(&self) -> Vec<Slot> {
        vec![REQUEST.slot()]
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        if self.left(context.get(&REQUEST)?.flavour)?.is_empty() && context.attempts() > 0 {
            return Ok(Found::Satisfied { reason: "it is".to_owned(), outputs: Outputs::none() });
        }
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        for path in self.left(context.get(&REQUEST)?.flavour)? {
            let aside = Folder::aside(context.attempt(), path);
            let moved = if self.world.exists(&aside).map_err(|error| later(&error))? {
                // It is whole under its new name: an earlier process was cut off while the old one went.
                self.world.remove_all(path)
            } else {
                self.world.set_aside(path, &aside)
            };
            moved.map_err(|error| {
                StepError::never(format!("cannot move `{}` aside: {error}", path.display()))
            })?;
        }
        self.world.reload_units().await.map_err(StepError::later)?;
        Ok(Applied::Done(Outputs::none()))
    }

    async fn confirm(&self, context: &Context<'_>) -> Result<Confirmed, StepError> {
        match self.left(context.get(&REQUEST)?.flavour)?.first() {
            None => Ok(Confirmed::Holds),
            Some(path) => Err(StepError::now(format!("`{}` is still there", path.display()))),
        }
    }

    async fn roll_back(&self, context: &Context<'_>) -> Result<(), StepError> {
        let flavour = context.get(&REQUEST)?.flavour;
        let folder = Folder::of(context.attempt());
        if is_applied(&*self.world, flavour, &folder).map_err(|error| later(&error))? {
            return Ok(());
        }
        for path in paths(flavour) {
            let aside = Folder::aside(context.attempt(), path);
            if self.world.exists(&aside).map_err(|error| later(&error))? {
                // What the failed life has put there makes way.
                self.world.remove_all(path).map_err(|error| later(&error))?;
                self.world.set_aside(&aside, path).map_err(|error| later(&error))?;
            }
        }
        self.world.reload_units().await.map_err(StepError::later)
    }
}
