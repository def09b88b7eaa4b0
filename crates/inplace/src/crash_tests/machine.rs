//! A machine in memory: disk, systemd, cluster, registry and daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::Timestamp;
use landfall_cluster::NodeFacts;
use landfall_fetch::{Algorithm, Answer, Body, Digest, Exchange, FetchError, Saved};
use landfall_model::Secret;
use landfall_model::step::Outcome;
use landfall_steps::durable::simulated::{Aftermath, Data, Moment, Names, SimulatedDisk};
use landfall_steps::durable::{self, Access, Disk};
use landfall_steps::{BootId, BootIdError};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::kubelet::Life;
use crate::flavour::Flavour;
use crate::places::{MACHINE_CONFIG, MACHINE_CONFIG_DONE};
use crate::request::{ClusterUse, Request, SEED_LABEL};
use crate::run::{self, Attempt, RunError};
use crate::units;
use crate::world::{Command, Ended, NoAnswer, Tied, Trust, World};

const MAX_STARTS: usize = 60;
const NODE: &str = "n1";
const TOKEN: &str = "Bearer a-token-of-some-length";
const PASSWORD: &str = "a-password-spent-once";
const NEW_KUBECONFIG: &str = "/etc/kubernetes/kubeconfig";
const OLD_STATE: &str = "/var/lib/kubelet";

/// How long the progress endpoint takes to answer.
const ANSWER: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// What lays the new life down fails.
    Apply,
    /// The machine goes down in the middle of the daemon's work, every time.
    DaemonDiesWithMachine,
    /// There is no room on the disk, for good: the Secret names the wrong Ignition.
    Preflight,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Crash {
    Kill,
    PowerCut(Aftermath),
}

/// Everything about the end that must not depend on crashes.
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
    fault: Fault,
    disk: SimulatedDisk,
    rest: Arc<Mutex<Rest>>,
}

/// What is not on the disk, or too large for it.
#[derive(Clone, Debug)]
struct Rest {
    boots: u32,
    labels: BTreeMap<String, String>,
    /// The boot the kubelet runs in.
    kubelet: Option<u32>,
    /// Folders and links.
    trees: BTreeSet<PathBuf>,
    applied: u32,
    downloads: u32,
    halves: Vec<(String, u32)>,
    /// States the cluster was shown.
    shown: Vec<String>,
    /// Whether the progress endpoint answers, and the numbers of the events it took.
    endpoint: bool,
    progress: Vec<u64>,
}

// === impl Crash ===

impl Crash {
    /// Names that survived with content that did not.
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

    /// What is left of the old state, under its own name or set aside.
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

    /// The pod while the label is on and the machine has not gone down; the installed unit after a boot.
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
        let world = Arc::new(self.clone());
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
            return Some(run::run(&world, &attempt, Vec::new(), &cancel).await);
        }
        // The pod is there as long as the kubelet runs and the label is on.
        if !self.is_labelled() && self.recorded().is_some() {
            return None;
        }
        let attempt = Attempt::new(self.request(), self.secret());
        Some(run::run(&world, &attempt, Vec::new(), &cancel).await)
    }

    /// How the attempt ended, by its ledger.
    fn recorded(&self) -> Option<Outcome> {
        run::records(self).unwrap().first()?.ended()
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

    /// What must hold whenever an attempt has ended: one life, whole; no label, no secret, no unit.
    #[track_caller]
    pub(super) fn check_end(&self, when: &str) {
        assert_ne!(self.life(), Life::Between, "{when}");
        assert!(!self.is_labelled(), "the label is still on, {when}");
        assert!(self.kubelet_runs(), "the kubelet is held back for ever, {when}");
        // Behind these, a power cut may leave a unit that nothing starts.
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

    fn files(&self, dir: &Path) -> Vec<PathBuf> {
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

    fn rest(&self) -> MutexGuard<'_, Rest> {
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

    fn answer(url: &str) -> Answer {
        let body = match url {
            "https://ignition/broken" => b"{}".to_vec(),
            "https://ignition/" => ignition(),
            _ if url.starts_with("https://bootstrap/?") => payload(),
            _ if url.contains("/manifests/") => manifest(),
            _ if url.contains("/blobs/") => layer(),
            _ => Vec::new(),
        };
        Answer { status: 200, headers: Vec::new(), body }
    }

    /// The daemon, as far as its contract goes: input, `.bak`, reboot.
    fn daemon(&self) -> io::Result<Ended> {
        if self.fault == Fault::Apply {
            return Ok(Ended { code: Some(1), tail: "it does not fit".to_owned() });
        }
        let config = self.disk.read(Path::new(MACHINE_CONFIG), 1 << 20)?;
        let config: Value = serde_json::from_slice(&config).unwrap();
        let files = config["spec"]["config"]["storage"]["files"].as_array().unwrap();
        assert_eq!(files.len(), 2, "the two files were added");
        let write = |path: &str| {
            durable::write(&self.disk, Path::new(path), b"new", Access::PRIVATE).map_err(|error| error.source)
        };
        write("/etc/machine-config-daemon/node-annotations.json")?;
        if self.fault == Fault::DaemonDiesWithMachine {
            // As a power cut, but without one: the process ends with the machine.
            return Err(io::ErrorKind::Interrupted.into());
        }
        write(NEW_KUBECONFIG)?;
        durable::publish(&self.disk, Path::new(MACHINE_CONFIG), Path::new(MACHINE_CONFIG_DONE))
            .map_err(|error| error.source)?;
        self.rest().applied += 1;
        Ok(Ended { code: Some(0), tail: String::new() })
    }

    fn half(&self, name: &str) -> io::Result<Ended> {
        if self.fault == Fault::Apply {
            return Ok(Ended { code: Some(2), tail: "a task failed".to_owned() });
        }
        let boots = self.boots();
        if name == "kube" {
            durable::create_dir(&self.disk, Path::new("/etc/kubernetes"), Access::PRIVATE_DIR)
                .map_err(|error| error.source)?;
            durable::write(&self.disk, Path::new(NEW_KUBECONFIG), b"new", Access::PRIVATE)
                .map_err(|error| error.source)?;
        }
        self.disk.effect(name, || {
            let mut rest = self.rest();
            assert!(
                name != "kube" || rest.halves.iter().any(|(half, boot)| half == "base" && *boot < boots),
                "the second half ran without a reboot after the first"
            );
            rest.halves.push((name.to_owned(), boots));
            // Scripts that were cut off are run again, from their beginning; what counts is that they ended well once.
            rest.applied = u32::from(rest.halves.iter().any(|(half, _)| half == "kube"));
        })?;
        Ok(Ended { code: Some(0), tail: String::new() })
    }
}

impl World for Machine {
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.disk.clone())
    }

    fn place(&self, path: &Path) -> PathBuf {
        path.to_owned()
    }

    fn boot(&self) -> Result<BootId, BootIdError> {
        BootId::parse(&format!("b-{:x}", self.rest().boots))
    }

    fn now(&self) -> Timestamp {
        "2026-01-02T03:04:05Z".parse().unwrap()
    }

    fn uptime(&self) -> Duration {
        Duration::from_secs(60)
    }

    async fn exchange(&self, _: &Trust, question: &Exchange) -> Result<Answer, FetchError> {
        if question.url.ends_with("/upiworker")
            && let Some(Body::Bytes(body)) = &question.body
        {
            if !self.rest().endpoint {
                return Ok(Answer { status: 503, headers: Vec::new(), body: Vec::new() });
            }
            let told: Value = serde_json::from_slice(body).unwrap();
            self.rest().progress.push(told["sequence"].as_u64().unwrap());
            // Taken long before the answer is there; the work goes on meanwhile.
            tokio::time::sleep(ANSWER).await;
        }
        Ok(Self::answer(&question.url))
    }

    async fn download(&self, trust: &Trust, question: &Exchange, file: &Path) -> Result<Saved, FetchError> {
        let answer = Self::answer(&question.url);
        if !question.url.contains("/blobs/") {
            assert!(matches!(trust, Trust::Only(_)), "I1: only the given authorities count");
            self.rest().downloads += 1;
        }
        let digest = Digest::of(Algorithm::Sha256, &answer.body);
        let length = answer.body.len() as u64;
        durable::write(&self.disk, file, &answer.body, Access::PRIVATE)
            .map_err(|source| FetchError::Publish { path: file.to_owned(), source })?;
        Ok(Saved { answer, file: Some((digest, length)) })
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(io::Cursor::new(self.disk.read(path, 1 << 24)?)))
    }

    fn free_bytes(&self, _: &Path) -> io::Result<u64> {
        Ok(1 << 40)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        if self.disk.is_off() {
            return Err(io::ErrorKind::Other.into());
        }
        let has_files = !self.files(path).is_empty();
        Ok(has_files || self.disk.peek(path).is_some() || self.rest().trees.contains(path))
    }

    fn tied(&self, _: &Path) -> io::Result<Option<Tied>> {
        Ok(None)
    }

    fn set_aside(&self, from: &Path, to: &Path) -> io::Result<()> {
        if self.disk.peek(from).is_some() {
            return durable::publish(&self.disk, from, to).map_err(|error| error.source);
        }
        for file in self.files(from) {
            let target = to.join(file.strip_prefix(from).unwrap());
            durable::create_dir(&self.disk, target.parent().unwrap(), Access::PRIVATE_DIR)
                .map_err(|error| error.source)?;
            let bytes = self.disk.read(&file, 1 << 20)?;
            // A folder of one file, so that moving it is one operation.
            durable::write(&self.disk, &target, &bytes, Access::PRIVATE).map_err(|error| error.source)?;
            durable::remove(&self.disk, &file).map_err(|error| error.source)?;
        }
        self.disk.effect(&format!("move {}", from.display()), || {
            let mut rest = self.rest();
            if rest.trees.remove(from) {
                rest.trees.insert(to.to_owned());
            }
        })
    }

    fn remove_all(&self, path: &Path) -> io::Result<()> {
        for file in self.files(path).into_iter().chain(self.disk.peek(path).map(|_| path.to_owned())) {
            durable::remove(&self.disk, &file).map_err(|error| error.source)?;
        }
        self.disk.effect(&format!("remove {}", path.display()), || {
            self.rest().trees.remove(path);
        })
    }

    fn set_link(&self, path: &Path, _: &Path) -> io::Result<()> {
        self.disk.effect("link", || {
            self.rest().trees.insert(path.to_owned());
        })
    }

    async fn unpack(&self, _: &Path, folder: &Path) -> Result<(), String> {
        let done = self.disk.effect("unpack", || {
            let mut rest = self.rest();
            rest.trees.insert(folder.to_owned());
            rest.trees.insert(folder.join(crate::payload::KUBE));
        });
        done.map_err(|error| error.to_string())
    }

    fn program(&self) -> io::Result<Vec<u8>> {
        Ok(b"this program".to_vec())
    }

    async fn reload_units(&self) -> Result<(), String> {
        Ok(())
    }

    async fn unit_state(&self, _: &str) -> Result<String, String> {
        self.try_kubelet();
        Ok(if self.kubelet_runs() { "active" } else { "inactive" }.to_owned())
    }

    async fn start_unit(&self, _: &str) -> Result<(), String> {
        self.try_kubelet();
        Ok(())
    }

    async fn run(&self, command: &Command) -> Result<Ended, String> {
        let ended = match command.arguments.last().map(String::as_str) {
            Some("firstboot-complete-machineconfig") => self.daemon(),
            Some(half) => self.half(half),
            None => panic!("{command:?}"),
        };
        match ended {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                let number = self.disk.count();
                self.disk.cut_power_at(number, Moment::Before);
                let _ = self.disk.effect("the machine dies", || ());
                self.disk.power_on(Aftermath { data: Data::Kept, names: Names::Kept });
                self.rest().boots += 1;
                std::future::pending().await
            }
            ended => ended.map_err(|error| error.to_string()),
        }
    }

    async fn node(&self, name: &str) -> Result<Option<NodeFacts>, NoAnswer> {
        assert_eq!(name, NODE);
        let rest = self.rest();
        let boot_id = rest.kubelet.map(|boot| format!("b-{boot:x}")).unwrap_or_default();
        Ok(Some(NodeFacts {
            ready: true,
            boot_id,
            cordoned: true,
            labels: rest.labels.clone(),
            ..NodeFacts::default()
        }))
    }

    async fn remove_label(&self, _: &str, label: &str) -> Result<(), NoAnswer> {
        // After the first boot only the kubelet's own access is left, which may not touch this label.
        let removed = self.disk.effect("remove the label", || self.rest().labels.remove(label));
        removed.map(drop).map_err(|error| NoAnswer { reason: error.to_string() })
    }

    async fn annotate(&self, _: &str, _: &str, value: &str) -> Result<(), NoAnswer> {
        assert!(!value.contains(PASSWORD) && !value.contains("a-token-of"), "{value}");
        let told: Value = serde_json::from_str(value).unwrap();
        self.rest().shown.push(told["state"].as_str().unwrap().to_owned());
        Ok(())
    }
}

fn data(text: &str) -> String {
    format!("data:,{}", text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>())
}

fn ignition() -> Vec<u8> {
    let config = json!({"kind": "MachineConfig", "metadata": {"name": "rendered-worker-2"},
        "spec": {"config": {"ignition": {"version": "3.2.0"}}}});
    let digest = Digest::of(Algorithm::Sha256, &manifest());
    let file = |path: &str, text: &str| json!({"path": path, "contents": {"source": data(text)}});
    json!({"ignition": {"version": "3.2.0"}, "storage": {"files": [
        file("/etc/mcs-machine-config-content.json", &config.to_string()),
        file("/etc/kubernetes/kubeconfig", "new"),
        file("/etc/machine-config-daemon/node-annotations.json", "new"),
        file("/etc/sysconfig/machineconfigdaemonsha",
            &format!("MACHINE_CONFIG_DAEMON_SHA=quay.io/mco@sha256:{}", digest.hex())),
    ]}})
    .to_string()
    .into_bytes()
}

fn manifest() -> Vec<u8> {
    let layer = layer();
    json!({"layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "size": layer.len(),
        "digest": format!("sha256:{}", Digest::of(Algorithm::Sha256, &layer).hex())}]})
    .to_string()
    .into_bytes()
}

fn archive(path: &str) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(3);
    header.set_mode(0o755);
    header.set_cksum();
    builder.append_data(&mut header, path, &b"mcd"[..]).unwrap();
    builder.into_inner().unwrap()
}

fn layer() -> Vec<u8> {
    archive("usr/bin/machine-config-daemon")
}

fn payload() -> Vec<u8> {
    archive(crate::payload::BASE)
}
