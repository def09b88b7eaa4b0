//! The simulated machine as the steps see it: disk, network, systemd and cluster, and the effects of its programs.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use landfall_cluster::NodeFacts;
use landfall_durable::simulated::{Aftermath, Data, Moment, Names};
use landfall_durable::{self as durable, Access, Disk};
use landfall_fetch::{Algorithm, Answer, Body, Digest, Exchange, FetchError, Saved};
use landfall_steps::{BootId, BootIdError};
use serde_json::Value;

use super::machine::{Fault, Machine, NEW_KUBECONFIG, NODE, PASSWORD};
use super::served;
use crate::environment::{ClusterUnavailable, Environment};
use crate::in_place::environment::{Command, CommandResult, InPlaceEnvironment, PinnedBy, TrustRoots};
use crate::in_place::places::{MACHINE_CONFIG, MACHINE_CONFIG_DONE};

/// Response time of the progress endpoint.
const ANSWER: Duration = Duration::from_secs(1);

// === impl Machine ===

impl Machine {
    /// Simulates the contract of the daemon: input, `.bak`, reboot.
    fn daemon(&self) -> io::Result<CommandResult> {
        if self.fault == Fault::Apply {
            return Ok(CommandResult { code: Some(1), tail: "it does not fit".to_owned() });
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
            // Like a power failure, but without one: the process ends with the machine.
            return Err(io::ErrorKind::Interrupted.into());
        }
        write(NEW_KUBECONFIG)?;
        durable::publish(&self.disk, Path::new(MACHINE_CONFIG), Path::new(MACHINE_CONFIG_DONE))
            .map_err(|error| error.source)?;
        self.rest().applied += 1;
        Ok(CommandResult { code: Some(0), tail: String::new() })
    }

    fn half(&self, name: &str) -> io::Result<CommandResult> {
        if self.fault == Fault::Apply {
            return Ok(CommandResult { code: Some(2), tail: "a task failed".to_owned() });
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
            // Interrupted scripts run again from the start; only one success per half counts.
            rest.applied = u32::from(rest.halves.iter().any(|(half, _)| half == "kube"));
        })?;
        Ok(CommandResult { code: Some(0), tail: String::new() })
    }
}

impl Environment for Machine {
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.disk.clone())
    }

    fn host_path(&self, path: &Path) -> PathBuf {
        path.to_owned()
    }

    fn boot(&self) -> Result<BootId, BootIdError> {
        BootId::parse(&format!("b-{:x}", self.rest().boots))
    }

    fn now(&self) -> Timestamp {
        "2026-01-02T03:04:05Z".parse().unwrap()
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        if self.disk.is_off() {
            return Err(io::ErrorKind::Other.into());
        }
        let has_files = !self.files(path).is_empty();
        Ok(has_files || self.disk.peek(path).is_some() || self.rest().trees.contains(path))
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

    async fn reload_units(&self) -> Result<(), String> {
        Ok(())
    }
}

impl InPlaceEnvironment for Machine {
    fn uptime(&self) -> Duration {
        Duration::from_secs(60)
    }

    async fn exchange(&self, _: &TrustRoots, question: &Exchange) -> Result<Answer, FetchError> {
        if question.url.ends_with("/upiworker")
            && let Some(Body::Bytes(body)) = &question.body
        {
            if !self.rest().endpoint {
                return Ok(Answer { status: 503, headers: Vec::new(), body: Vec::new() });
            }
            let told: Value = serde_json::from_slice(body).unwrap();
            self.rest().progress.push(told["sequence"].as_u64().unwrap());
            // The event is accepted long before the answer arrives, and the work continues meanwhile.
            tokio::time::sleep(ANSWER).await;
        }
        Ok(served::answer(&question.url))
    }

    async fn download(
        &self,
        trust: &TrustRoots,
        question: &Exchange,
        file: &Path,
    ) -> Result<Saved, FetchError> {
        let answer = served::answer(&question.url);
        if !question.url.contains("/blobs/") {
            assert!(matches!(trust, TrustRoots::Only(_)), "I1: only the given authorities count");
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

    fn pinned_by(&self, _: &Path) -> io::Result<Option<PinnedBy>> {
        Ok(None)
    }

    fn stash(&self, from: &Path, to: &Path) -> io::Result<()> {
        if self.disk.peek(from).is_some() {
            return durable::publish(&self.disk, from, to).map_err(|error| error.source);
        }
        for file in self.files(from) {
            let target = to.join(file.strip_prefix(from).unwrap());
            durable::create_dir(&self.disk, target.parent().unwrap(), Access::PRIVATE_DIR)
                .map_err(|error| error.source)?;
            let bytes = self.disk.read(&file, 1 << 20)?;
            // A directory is modeled as one file, so that moving it is one operation.
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

    async fn unpack(&self, _: &Path, folder: &Path) -> Result<(), String> {
        let done = self.disk.effect("unpack", || {
            let mut rest = self.rest();
            rest.trees.insert(folder.to_owned());
            rest.trees.insert(folder.join(crate::in_place::payload::KUBE));
        });
        done.map_err(|error| error.to_string())
    }

    fn program(&self) -> io::Result<Vec<u8>> {
        Ok(b"this program".to_vec())
    }

    async fn unit_state(&self, _: &str) -> Result<String, String> {
        self.try_kubelet();
        Ok(if self.kubelet_runs() { "active" } else { "inactive" }.to_owned())
    }

    async fn start_unit(&self, _: &str) -> Result<(), String> {
        self.try_kubelet();
        Ok(())
    }

    async fn run(&self, command: &Command) -> Result<CommandResult, String> {
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

    async fn node(&self, name: &str) -> Result<Option<NodeFacts>, ClusterUnavailable> {
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

    async fn drain_blockers(&self, _: &str) -> Result<Vec<String>, ClusterUnavailable> {
        Ok(Vec::new())
    }

    async fn remove_label(&self, _: &str, label: &str) -> Result<(), ClusterUnavailable> {
        // After the first boot only the kubelet's own credentials are left, which may not change this label.
        let removed = self.disk.effect("remove the label", || self.rest().labels.remove(label));
        removed.map(drop).map_err(|error| ClusterUnavailable { reason: error.to_string() })
    }

    async fn annotate(&self, _: &str, _: &str, value: &str) -> Result<(), ClusterUnavailable> {
        assert!(!value.contains(PASSWORD) && !value.contains("a-token-of"), "{value}");
        let told: Value = serde_json::from_str(value).unwrap();
        self.rest().shown.push(told["state"].as_str().unwrap().to_owned());
        Ok(())
    }
}
