use std::io;
use std::path::Path;
use std::sync::Arc;

use landfall_steps::{Applied, Confirmed, Context, Found, Outputs, Step, StepError, StepSpec};

use super::{REQUEST, SET_STATE_ASIDE, is_applied};
use crate::in_place::environment::InPlaceEnvironment;
use crate::in_place::flavour::Flavour;
use crate::in_place::places::{Folder, MACHINE_CONFIG, MACHINE_CONFIG_DONE};
use crate::run::later;

/// State that the kubelet of the new configuration must not find.
const RHCOS: &[&str] = &[
    "/var/lib/kubelet",
    "/etc/cni/net.d",
    "/etc/kubernetes/kubeconfig",
    "/etc/machine-config-daemon/node-annotations.json",
    // The marker that the daemon left in an earlier bootstrap.
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
    // The payload derives its progress from these files of an earlier bootstrap.
    "/etc/armadabootstrap/imaging.flag",
    "/var/log/firstboot.flag",
    "/var/log/bootstrap_base.flag",
];

/// Entries of these lists that are directories.
const FOLDERS: [&str; 4] = ["/var/lib/kubelet", "/etc/cni", "/etc/cni/net.d", "/etc/kubernetes"];

/// Moves the old state aside, from where it can be restored until the new configuration is applied.
pub(super) struct SetStateAside<W> {
    pub(super) env: Arc<W>,
}

pub(super) fn paths(flavour: Flavour) -> impl Iterator<Item = &'static Path> {
    let paths = match flavour {
        Flavour::Rhcos => RHCOS,
        Flavour::Rhel => RHEL,
    };
    paths.iter().map(Path::new)
}

/// Returns why the state cannot be moved, checked before the machine goes down.
///
/// A directory behind a link or on its own file system would stay where it is, together with the keys in it.
pub(crate) fn obstacles(env: &impl InPlaceEnvironment, flavour: Flavour) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for path in paths(flavour).filter(|path| FOLDERS.iter().any(|folder| *path == Path::new(folder))) {
        if let Some(tied) = env.pinned_by(path)? {
            found.push(format!("`{}` {tied}", path.display()));
        }
    }
    Ok(found)
}

// === impl SetStateAside ===

impl<W: InPlaceEnvironment> SetStateAside<W> {
    /// Returns the state still in its original place. Before the new configuration is applied, no other component
    /// uses these paths.
    fn left(&self, flavour: Flavour) -> Result<Vec<&'static Path>, StepError> {
        let mut left = Vec::new();
        for path in paths(flavour) {
            if self.env.exists(path).map_err(later)? {
                left.push(path);
            }
        }
        Ok(left)
    }
}

impl<W: InPlaceEnvironment> Step for SetStateAside<W> {
    fn spec(&self) -> StepSpec {
        StepSpec::new(SET_STATE_ASIDE, "Set the state of the old kubelet aside").needs([REQUEST.slot()])
    }

    async fn check(&self, context: &Context<'_>) -> Result<Found, StepError> {
        if self.left(context.get(&REQUEST)?.flavour)?.is_empty() && context.attempts() > 0 {
            return Ok(Found::satisfied("it is"));
        }
        Ok(Found::Needed)
    }

    async fn apply(&self, context: &Context<'_>) -> Result<Applied, StepError> {
        for path in self.left(context.get(&REQUEST)?.flavour)? {
            let aside = Folder::aside(context.attempt(), path);
            let moved = if self.env.exists(&aside).map_err(later)? {
                // The copy under the new name is complete: an earlier process was interrupted while it removed the
                // original.
                self.env.remove_all(path)
            } else {
                self.env.stash(path, &aside)
            };
            moved.map_err(|error| {
                StepError::never(format!("cannot move `{}` aside: {error}", path.display()))
            })?;
        }
        self.env.reload_units().await.map_err(StepError::later)?;
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
        if is_applied(&*self.env, flavour, &folder).map_err(later)? {
            return Ok(());
        }
        for path in paths(flavour) {
            let aside = Folder::aside(context.attempt(), path);
            if self.env.exists(&aside).map_err(later)? {
                // State written by the failed bootstrap is removed.
                self.env.remove_all(path).map_err(later)?;
                self.env.stash(&aside, path).map_err(later)?;
            }
        }
        self.env.reload_units().await.map_err(StepError::later)
    }
}
