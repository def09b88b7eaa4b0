//! Where things are on the node.

use std::path::{Path, PathBuf};

/// The folder of the ledgers, shared with the other work on the node.
pub const STATE: &str = "/var/lib/landfall";
/// The name of the run, and of its folder of ledgers.
pub const RUN: &str = "node-in-place";
/// The program that goes on after the reboot: where a service may run it from, even under SELinux.
pub const PROGRAM: &str = "/usr/local/bin/landfall-in-place";
pub const UNITS: &str = "/etc/systemd/system";
pub const LOGS: &str = "/var/log/landfall";
/// The programs whose words are kept there, in the order they are run.
pub const LOGGED: [&str; 3] = ["machine-config-daemon", "base", "kube"];
/// What machine-config-daemon reads, and what it calls it when it is done.
pub const MACHINE_CONFIG: &str = "/etc/ignition-machine-config-encapsulated.json";
pub const MACHINE_CONFIG_DONE: &str = "/etc/ignition-machine-config-encapsulated.json.bak";
pub const DAEMON: &str = "/usr/local/bin/machine-config-daemon";
pub const CURRENT_CONFIG: &str = "/etc/machine-config-daemon/currentconfig";

/// The work folder of one attempt: for root alone, gone at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder(PathBuf);

// === impl Folder ===

impl Folder {
    pub fn of(attempt: &str) -> Self {
        Self(Path::new(STATE).join("in-place").join(attempt))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn secret(&self) -> PathBuf {
        self.0.join("secret.json")
    }

    pub fn ignition(&self) -> PathBuf {
        self.0.join("ignition.json")
    }

    pub fn payload(&self) -> PathBuf {
        self.0.join("payload.tar")
    }

    /// There before the one-time password is shown to anybody: from then on it may be spent.
    pub fn asked(&self) -> PathBuf {
        self.0.join("asked")
    }

    /// The payload, unpacked.
    pub fn scripts(&self) -> PathBuf {
        self.0.join("scripts")
    }

    pub fn machine_config(&self) -> PathBuf {
        self.0.join("machine-config.json")
    }

    pub fn daemon(&self) -> PathBuf {
        self.0.join("machine-config-daemon")
    }

    /// The sequence number of the last progress that was taken: beside the folder, because it outlives it.
    pub fn told(&self) -> PathBuf {
        self.0.with_extension("told")
    }

    /// The same for the hub.
    pub fn told_hub(&self) -> PathBuf {
        self.0.with_extension("hub.told")
    }

    /// One half of the payload ended well.
    pub fn half_done(&self, half: &str) -> PathBuf {
        self.0.join(format!("done-{half}"))
    }

    /// Where something of the old life is kept until the new one is proven: beside it, so that moving is one operation.
    pub fn aside(attempt: &str, path: &Path) -> PathBuf {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".landfall-{}", attempt.get(..8).unwrap_or(attempt)));
        path.with_file_name(name)
    }

    /// What a program said, redacted.
    pub fn log(attempt: &str, program: &str) -> PathBuf {
        Path::new(LOGS).join(format!("in-place-{}-{program}.log", attempt.get(..8).unwrap_or(attempt)))
    }
}
