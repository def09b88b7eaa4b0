//! Paths on the node.

use std::path::{Path, PathBuf};

use crate::run::STATE;

/// The name of the run, and of the directory with its ledgers.
pub const RUN: &str = "node-in-place";
/// The binary that continues after the reboot, in a directory from which a service may run it even under SELinux.
pub const PROGRAM: &str = "/usr/local/bin/landfall-in-place";
pub const UNITS: &str = "/etc/systemd/system";
pub const LOGS: &str = "/var/log/landfall";
/// The programs whose logs are kept there, in the order they run.
pub const LOGGED: [&str; 3] = ["machine-config-daemon", "base", "kube"];
/// The input of machine-config-daemon, and its name after the daemon has finished.
pub const MACHINE_CONFIG: &str = "/etc/ignition-machine-config-encapsulated.json";
pub const MACHINE_CONFIG_DONE: &str = "/etc/ignition-machine-config-encapsulated.json.bak";
pub const DAEMON: &str = "/usr/local/bin/machine-config-daemon";
pub const CURRENT_CONFIG: &str = "/etc/machine-config-daemon/currentconfig";

/// The work directory of one attempt: readable by root only, removed at the end.
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

    /// Marker written before the one-time password is first sent: from then on it may be used up.
    pub fn asked(&self) -> PathBuf {
        self.0.join("asked")
    }

    /// The unpacked payload.
    pub fn scripts(&self) -> PathBuf {
        self.0.join("scripts")
    }

    pub fn machine_config(&self) -> PathBuf {
        self.0.join("machine-config.json")
    }

    pub fn daemon(&self) -> PathBuf {
        self.0.join("machine-config-daemon")
    }

    /// The sequence number of the last accepted progress event: beside the directory, because it must outlive it.
    pub fn told(&self) -> PathBuf {
        self.0.with_extension("told")
    }

    /// The same for the hub.
    pub fn told_hub(&self) -> PathBuf {
        self.0.with_extension("hub.told")
    }

    /// Marker that one half of the payload succeeded.
    pub fn half_done(&self, half: &str) -> PathBuf {
        self.0.join(format!("done-{half}"))
    }

    /// Path for old state until the new configuration is proven: beside the original, so that moving is one
    /// operation.
    pub fn aside(attempt: &str, path: &Path) -> PathBuf {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".landfall-{}", attempt.get(..8).unwrap_or(attempt)));
        path.with_file_name(name)
    }

    /// The redacted output of a program.
    pub fn log(attempt: &str, program: &str) -> PathBuf {
        Path::new(LOGS).join(format!("in-place-{}-{program}.log", attempt.get(..8).unwrap_or(attempt)))
    }
}
