//! A simulated machine: disk, systemd, cluster, registry and daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use landfall_durable::simulated::{Aftermath, Data, Moment, Names, SimulatedDisk};
use landfall_durable::{self as durable, Access, Disk as _};
use landfall_model::Secret;
use landfall_model::step::Outcome;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::kubelet::Life;
use crate::environment::Environment as _;
use crate::in_place::flavour::Flavour;
use crate::in_place::places::RUN;
use crate::in_place::request::{ClusterUse, Request, SEED_LABEL};
use crate::in_place::run::{self, Attempt};
use crate::in_place::units;
use crate::run::{RunError, records};

const MAX_STARTS: usize = 60;
pub(super) const NODE: &str = "n1";
const TOKEN: &str = "Bearer a-token-of-some-length";
pub(super) const PASSWORD: &str = "a-password-spent-once";
pub(super) const NEW_KUBECONFIG: &str = "/etc/kubernetes/kubeconfig";
const OLD_STATE: &str = "/var/lib/kubelet";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// Applying the new configuration fails.
    Apply,
    /// The machine goes down in the middle of the daemon's work, every time.
    DaemonDiesWithMachine,
    /// The preflight fails permanently: the Secret names a broken Ignition URL.
    Preflight,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Crash {
    Kill,
    PowerCut(Aftermath),
}

/// The parts of the final state that must not depend on crashes.
#[derive(Debug, PartialEq)]
pub(super) struct End {
    pub(super) outcome: Outcome,
    pub(super) applied: u32,
    pub(super) new_life: bool,
    pub(super) labelled: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Machine {
    flavour: Flavour,
    pub(super) fault: Fault,
    pub(super) disk: SimulatedDisk,
    rest: Arc<Mutex<Rest>>,
}

/// State outside the disk, or too large for it.
#[derive(Clone, Debug)]
pub(super) struct Rest {
    pub(super) boots: u32,
    pub(super) labels: BTreeMap<String, String>,
    /// The boot in which the kubelet runs.
    pub(super) kubelet: Option<u32>,
    /// Directories and links.
    pub(super) trees: BTreeSet<PathBuf>,
    pub(super) applied: u32,
    pub(super) downloads: u32,
    pub(super) halves: Vec<(String, u32)>,
    /// States written to the cluster.
    pub(super) shown: Vec<String>,
    /// Whether the progress endpoint answers, and the numbers of the events it accepted.
    pub(super) endpoint: bool,
    pub(super) progress: Vec<u64>,
}

// === impl Crash ===

impl Crash {
    /// A state in which names survived a power failure but their content did not.
    pub(super) fn worst() -> Self {
        Self::PowerCut(Aftermath { data: Data::Torn, names: Names::Kept })
    }
}

// === impl Machine ===

impl Machine {
    pub(super) fn new(flavour: Flavour, fault: Fault) -> Self {
        let disk = SimulatedDisk::new(&[
            "/etc/kubernetes",
            "/etc/machine-config-daemon",
            "/etc/systemd/system/multi-user.target.wants",
            "/var/lib",
            "/var/log",
            "/run",
            "/usr/local/bin",
            "/etc/yum.repos.d",
        ]);
        let put = |path: &str, text: &str| {
            durable::write(&disk, Path::new(path), text.as_bytes(), Access::PUBLIC).unwrap();
        };
        put("/run/ostree-booted", "");
        put(NEW_KUBECONFIG, "old");
        put("/etc/yum.repos.d/base.repo", "[base]\nbaseurl=https://mirror/\n");
        let rest = Rest {
            boots: 0,
            labels: [(SEED_LABEL.to_owned(), "true".to_owned())].into(),
            kubelet: Some(0),
            trees: [PathBuf::from(OLD_STATE)].into(),
            applied: 0,
            downloads: 0,
            halves: Vec::new(),
            shown: Vec::new(),
            endpoint: true,
            progress: Vec::new(),
        };
        Self { flavour, fault, disk, rest: Arc::new(Mutex::new(rest)) }
    }

    pub(super) fn fork(&self) -> Self {
        let rest = self.rest().clone();
        Self { disk: self.disk.fork(), rest: Arc::new(Mutex::new(rest)), ..self.clone() }
    }

    pub(super) fn flavour(&self) -> Flavour {
        self.flavour
    }

    pub(super) fn operations(&self) -> Vec<String> {
        self.disk.operations()
    }

    pub(super) fn boots(&self) -> u32 {
        self.rest().boots
    }

    pub(super) fn downloads(&self) -> u32 {
        self.rest().downloads
    }

    pub(super) fn disk_is_off(&self) -> bool {
        self.disk.is_off()
    }

    pub(super) fn kubelet_runs(&self) -> bool {
        let rest = self.rest();
        rest.kubelet == Some(rest.boots)
    }

    pub(super) fn start_kubelet(&self, _: Life) {
        let mut rest = self.rest();
        rest.kubelet = Some(rest.boots);
    }

    pub(super) fn shown(&self) -> Vec<String> {
        self.rest().shown.clone()
    }

    pub(super) fn progress_endpoint(&self, answers: bool) {
        self.rest().endpoint = answers;
    }

    pub(super) fn progress(&self) -> Vec<u64> {
        self.rest().progress.clone()
    }

    pub(super) fn paths(&self) -> Vec<String> {
        self.files(Path::new("/")).iter().map(|path| path.display().to_string()).collect()
    }

    /// Returns the remains of the old state, under the original name or moved aside.
    pub(super) fn trees_of_the_old_life(&self) -> Vec<String> {
        let rest = self.rest();
        let trees = rest.trees.iter().map(|path| path.display().to_string());
        trees.filter(|path| path.starts_with(OLD_STATE)).collect()
    }

    pub(super) fn is_labelled(&self) -> bool {
        self.rest().labels.contains_key(SEED_LABEL)
    }

    pub(super) fn label_again(&self) {
        self.rest().labels.insert(SEED_LABEL.to_owned(), "true".to_owned());
    }

    pub(super) fn life(&self) -> Life {
        let config = self.text(NEW_KUBECONFIG);
        let has_old_state = self.rest().trees.contains(Path::new(OLD_STATE));
        match (config.as_deref(), has_old_state) {
            (Some("old"), true) => Life::Old,
            (Some("new"), false) => Life::New,
            _ => Life::Between,
        }
    }

    /// Runs the pod while the label exists and the machine has not gone down; after a boot, the installed unit.
    pub(super) fn run(&self, runtime: &Runtime, cut: Option<usize>) -> Option<End> {
        for _ in 0..MAX_STARTS {
            if let Some(cut) = cut {
                self.disk.cut_power_at(cut, Moment::Before);
            }
            let outcome = runtime.block_on(self.process());
            if self.disk.is_off() {
                return None;
            }
            self.try_kubelet();
            match outcome {
                Some(Ok(outcome)) if outcome.is_final() => return Some(self.end(outcome)),
                Some(Ok(Outcome::RebootNeeded { .. })) => self.boot(),
                Some(Ok(Outcome::Waiting { .. } | Outcome::Failed { .. })) => {}
                Some(other) => panic!("{other:?}"),
                None => return Some(self.end(self.recorded()?)),
            }
            self.disk.restart_process();
        }
        panic!("no end after {MAX_STARTS} starts: {:#?}", self.operations());
    }

    async fn process(&self) -> Option<Result<Outcome, RunError>> {
        let env = Arc::new(self.clone());
        let cancel = CancellationToken::new();
        let is_installed = self.exists(units::placed()[2].path()).ok()?;
        if is_installed && self.boots() > 0 {
            let attempt = match Attempt::open(self) {
                Ok(attempt) => attempt,
                Err(RunError::NothingOpen) => {
                    let _ = run::tidy_up(self).await;
                    return None;
                }
                Err(error) => return Some(Err(error)),
            };
            return Some(run::run(&env, &attempt, Vec::new(), &cancel).await);
        }
        // The pod exists as long as the kubelet runs and the label is set.
        if !self.is_labelled() && self.recorded().is_some() {
            return None;
        }
        let attempt = Attempt::new(self.request(), self.secret());
        Some(run::run(&env, &attempt, Vec::new(), &cancel).await)
    }

    /// Returns the outcome that the ledger records.
    fn recorded(&self) -> Option<Outcome> {
        records(self, RUN).unwrap().first()?.ended()
    }

    pub(super) fn crashes(&self) -> Vec<Crash> {
        self.disk.aftermaths().into_iter().map(Crash::PowerCut).chain([Crash::Kill]).collect()
    }

    pub(super) fn crash(&self, crash: Crash) {
        match crash {
            Crash::Kill => {
                self.disk.restart_process();
                self.try_kubelet();
            }
            Crash::PowerCut(aftermath) => {
                self.disk.power_on(aftermath);
                self.boot();
            }
        }
    }

    fn boot(&self) {
        self.rest().boots += 1;
        self.try_kubelet();
    }

    /// Checks the invariants of an ended attempt: one complete configuration; no label, no secret, no unit.
    #[track_caller]
    pub(super) fn check_end(&self, when: &str) {
        assert_ne!(self.life(), Life::Between, "{when}");
        assert!(!self.is_labelled(), "the label is still on, {when}");
        assert!(self.kubelet_runs(), "the kubelet is held back for ever, {when}");
        // After the first three, a power failure may leave a unit that nothing starts.
        for path in &units::to_remove()[..3] {
            assert!(!self.exists(path).unwrap(), "`{}` is left, {when}", path.display());
        }
        self.check_secrets(when);
    }

    #[track_caller]
    pub(super) fn check_secrets(&self, when: &str) {
        let left = self.files(Path::new("/"));
        for path in left {
            let bytes = self.disk.peek(&path).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            for secret in [TOKEN.trim_start_matches("Bearer "), PASSWORD] {
                assert!(!text.contains(secret), "a secret is left in `{}`, {when}", path.display());
            }
        }
    }

    fn end(&self, outcome: Outcome) -> End {
        self.try_kubelet();
        let applied = self.rest().applied;
        End { outcome, applied, new_life: self.life() == Life::New, labelled: self.is_labelled() }
    }

    pub(super) fn files(&self, dir: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for name in self.disk.names(dir).unwrap_or_default() {
            let path = dir.join(name);
            if self.disk.peek(&path).is_some() {
                found.push(path);
            } else {
                found.extend(self.files(&path));
            }
        }
        found
    }

    fn text(&self, path: &str) -> Option<String> {
        self.disk.peek(Path::new(path)).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    pub(super) fn rest(&self) -> MutexGuard<'_, Rest> {
        self.rest.lock().unwrap()
    }

    fn request(&self) -> Request {
        Request {
            node: NODE.to_owned(),
            flavour: self.flavour,
            cluster: ClusterUse::Needed,
            free_bytes: 1,
            number: 0,
        }
    }

    fn secret(&self) -> Secret<Vec<u8>> {
        let authority = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n";
        let ignition =
            if self.fault == Fault::Preflight { "https://ignition/broken" } else { "https://ignition/" };
        let secret = match self.flavour {
            Flavour::Rhcos => {
                json!({"ignition_url": ignition, "ignition_token": TOKEN, "ca_cert": authority})
            }
            Flavour::Rhel => json!({"bootstrap_url": "https://bootstrap/", "bootstrap_secret": PASSWORD,
                "workerid": "w", "clusterid": "c", "region": "r", "ca_cert": authority}),
        };
        Secret::new(secret.to_string().into_bytes())
    }
}
