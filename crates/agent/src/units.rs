//! The units of a bootstrap, as reported by the service manager.
//!
//! systemd is queried over D-Bus, OpenRC by its directories of links. Each change is reported once. Between
//! changes, a poll costs almost nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use landfall_diagnose::UnitState;
use landfall_evidence::collect::{Host, systemd};
use landfall_model::chain;
use landfall_net::dbus::{Connection, DbusError, Value};

/// Watched units without `.service`; a final `*` matches any ending.
const WATCHED: [&str; 22] = [
    "NetworkManager-wait-online",
    "bootkube",
    "cloud-config",
    "cloud-final",
    "cloud-init*",
    "containerd",
    "cri-docker",
    "crio",
    "docker",
    "ignition-*",
    "k3s*",
    "k8s-node-bootstrap",
    "kubeadm",
    "kubelet",
    "landfall-*",
    "node-image-*",
    "nodeadm*",
    "rancher-system-agent",
    "release-image",
    "rke2*",
    "systemd-networkd-wait-online",
    "waagent",
];
const SERVICE: &str = ".service";

/// Limit of reported units. A machine has about a dozen of these; a hostile one may have any number.
const MAX_UNITS: usize = 64;
/// Time from the dial to the last response.
const PATIENCE: Duration = Duration::from_secs(5);
/// Poll interval during the bootstrap, and once the node is ready.
const LOOK: Duration = Duration::from_secs(2);
const LOOK_WHEN_DONE: Duration = Duration::from_secs(60);

/// OpenRC's directory, which contains a directory of links for each state.
const OPENRC: &str = "/run/openrc";
const OPENRC_STATES: [&str; 5] = ["failed", "inactive", "started", "starting", "stopping"];

/// A changed unit state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) at: Timestamp,
    pub(crate) state: UnitState,
}

/// The known state of the units.
#[derive(Debug)]
pub(crate) struct Units {
    host: Host,
    seen: BTreeMap<String, UnitState>,
    /// Whether the failure to connect was already logged.
    refused: bool,
}

// === impl Units ===

impl Units {
    pub(crate) fn of(host: Host) -> Self {
        Self { host, seen: BTreeMap::new(), refused: false }
    }

    /// Sends every change to the channel until its receiver is dropped. `done` is set once the node is ready.
    pub(crate) fn follow(mut self, tell: &SyncSender<Change>, done: &Arc<AtomicBool>) {
        loop {
            for change in self.look(Timestamp::now()) {
                let state = change.state.clone();
                match tell.try_send(change) {
                    Ok(()) => drop(self.seen.insert(state.unit.clone(), state)),
                    // The next poll finds the change again.
                    Err(TrySendError::Full(_)) => break,
                    Err(TrySendError::Disconnected(_)) => return,
                }
            }
            thread::park_timeout(if done.load(Ordering::Relaxed) { LOOK_WHEN_DONE } else { LOOK });
        }
    }

    /// Returns the changes since the last report.
    fn look(&mut self, now: Timestamp) -> Vec<Change> {
        let asked = match systemd::connect(&self.host, PATIENCE) {
            Ok(Some(mut connection)) => self.ask_systemd(&mut connection, now),
            Ok(None) => Ok(self.read_openrc(now)),
            Err(error) => Err(error),
        };
        match asked {
            Ok(changes) => {
                self.refused = false;
                changes
            }
            Err(error) => {
                if !std::mem::replace(&mut self.refused, true) {
                    tracing::info!(error = %chain(&error), "systemd does not tell of units; the logs do.");
                }
                Vec::new()
            }
        }
    }

    fn ask_systemd(&self, connection: &mut Connection, now: Timestamp) -> Result<Vec<Change>, DbusError> {
        let mut changes = Vec::new();
        let watched = systemd::units(connection)?.into_iter().filter(|unit| {
            unit.load != "not-found" && unit.name.strip_suffix(SERVICE).is_some_and(is_watched)
        });
        for unit in watched.take(MAX_UNITS) {
            let known = self.seen.get(&unit.name);
            let same = known.is_some_and(|known| known.active == unit.active && known.sub == unit.sub);
            // A unit in a restart loop stays in the same state; only its restart count changes.
            if same && !unit.is_failing() {
                continue;
            }
            let text = |value| match value {
                Value::Text(text) => text,
                _ => String::new(),
            };
            let number = |value| match value {
                Value::Signed(number) => number,
                Value::Unsigned(number) => i64::try_from(number).unwrap_or(i64::MAX),
                _ => 0,
            };
            let mut get = |interface, name| systemd::property(connection, &unit, interface, name);
            let state = UnitState {
                result: text(get("Service", "Result")?),
                status: number(get("Service", "ExecMainStatus")?),
                restarts: u64::try_from(number(get("Service", "NRestarts")?)).unwrap_or(0),
                unit: unit.name.clone(),
                active: unit.active.clone(),
                sub: unit.sub.clone(),
            };
            if known == Some(&state) {
                continue;
            }
            let since = number(get("Unit", "StateChangeTimestamp")?);
            // 0 means never: the unit has not been started yet.
            if since == 0 {
                continue;
            }
            let at = Timestamp::from_microsecond(since).ok().filter(|at| *at <= now).unwrap_or(now);
            changes.push(Change { at, state });
        }
        changes.sort_by(|a, b| (a.at, &a.state.unit).cmp(&(b.at, &b.state.unit)));
        Ok(changes)
    }

    fn read_openrc(&self, now: Timestamp) -> Vec<Change> {
        let mut changes = Vec::new();
        for state in OPENRC_STATES {
            for service in self.host.list(format!("{OPENRC}/{state}")).unwrap_or_default() {
                let Some(unit) = service.to_str().filter(|service| is_watched(service)) else { continue };
                let (unit, active) = (unit.to_owned(), state.to_owned());
                let state = UnitState { unit, active, ..UnitState::default() };
                if changes.len() < MAX_UNITS && self.seen.get(&state.unit) != Some(&state) {
                    changes.push(Change { at: now, state });
                }
            }
        }
        changes
    }
}

fn is_watched(name: &str) -> bool {
    WATCHED.iter().any(|watched| match watched.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *watched,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn units_of_a_bootstrap_are_watched_and_others_are_not() {
        for unit in
            ["kubelet", "cloud-init-local", "k3s-agent", "rke2-server", "node-image-pull", "nodeadm-run"]
        {
            assert!(is_watched(unit), "{unit}");
        }
        for unit in ["ssh", "kubelet-debug", "containerd-shim", ""] {
            assert!(!is_watched(unit), "{unit}");
        }
    }

    #[test]
    fn services_of_openrc_are_told_once_for_each_state() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("run/openrc");
        for state in ["starting", "started", "failed"] {
            std::fs::create_dir_all(folder.join(state)).unwrap();
        }
        std::fs::write(folder.join("starting/kubelet"), "").unwrap();
        std::fs::write(folder.join("started/sshd"), "").unwrap();
        let mut units = Units::of(Host::at(root.path()).unwrap());
        let mut changed = || -> Vec<String> {
            let changes = units.look(Timestamp::now());
            for change in &changes {
                units.seen.insert(change.state.unit.clone(), change.state.clone());
            }
            changes.iter().map(|change| format!("{} {}", change.state.unit, change.state.active)).collect()
        };
        assert_eq!(changed(), ["kubelet starting"]);
        assert_eq!(changed(), [""; 0]);
        std::fs::rename(folder.join("starting/kubelet"), folder.join("failed/kubelet")).unwrap();
        assert_eq!(changed(), ["kubelet failed"]);
    }

    #[test]
    fn a_machine_without_a_service_manager_has_nothing_to_tell() {
        let root = tempfile::tempdir().unwrap();
        let mut units = Units::of(Host::at(root.path()).unwrap());
        assert!(units.look(Timestamp::now()).is_empty() && !units.refused);
    }

    /// A change that does not fit into the queue is sent again, and a dropped receiver ends the loop.
    #[test]
    fn no_change_is_lost_to_a_full_queue() {
        let root = tempfile::tempdir().unwrap();
        let started = root.path().join("run/openrc/started");
        std::fs::create_dir_all(&started).unwrap();
        for service in ["kubelet", "containerd", "k3s"] {
            std::fs::write(started.join(service), "").unwrap();
        }
        let units = Units::of(Host::at(root.path()).unwrap());
        let (tell, changes) = sync_channel(1);
        let thread = thread::spawn(move || units.follow(&tell, &Arc::new(AtomicBool::new(false))));
        let mut told: Vec<String> = (0..3)
            .map(|_| {
                let change = changes.recv_timeout(Duration::from_secs(60)).unwrap();
                thread.thread().unpark();
                change.state.unit
            })
            .collect();
        told.sort_unstable();
        assert_eq!(told, ["containerd", "k3s", "kubelet"]);
        drop(changes);
        std::fs::write(started.join("rke2-agent"), "").unwrap();
        thread.thread().unpark();
        thread.join().unwrap();
    }
}
