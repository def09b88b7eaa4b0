//! A real node: a small Debian booted by `systemd-nspawn` with journald, D-Bus, cloud-init (NoCloud),
//! containerd and kubelet, in its own network and cgroups.
//!
//! The node reboots when the system inside requests it, loses power on demand, and is removed completely when
//! its value is dropped.

mod cgroup;
mod disk;
mod image;
mod join;
mod network;
mod slot;

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::json;

pub use self::image::{POD_IMAGE, node_image};
pub use self::join::{API_NAME, Invitation};
pub use self::network::{Dns, HOST_ADDRESS};
use self::slot::Slot;
use crate::{ApiServer, Binary, Need, Process, eventually};

/// A boot takes 3 s on an idle machine.
const BOOT_LIMIT: Duration = Duration::from_mins(1);
/// Orderly shutdown (5 s for each unit that does not stop) and the next boot.
const REBOOT_LIMIT: Duration = Duration::from_mins(2);
/// cloud-init runs the user data; joining a cluster takes 2 s of it.
const CLOUD_INIT_LIMIT: Duration = Duration::from_mins(2);
/// Timeout of a command in a node, in the format of `timeout`.
const COMMAND_LIMIT: &str = "60s";
/// Number of journal lines printed for a failed test.
const JOURNAL_TAIL: &str = "100";
/// Capabilities that nodes do not have: the clock and kernel modules are those of the test machine.
const MACHINE_RIGHTS: [&str; 2] = ["sys_time", "sys_module"];
const MACHINE: &str = include_str!("../../../../testbed/node/run-machine");

/// Configuration of a node before its first boot.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// Its host name and Node name.
    pub name: String,
    /// User data for cloud-init; starts with `#cloud-config` or `#!`.
    pub user_data: String,
    pub dns: Dns,
    /// Names resolved without DNS (`/etc/hosts`).
    pub hosts: Vec<(IpAddr, String)>,
    /// Files by their path inside, which replace those of the image.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// Additional arguments for `systemd-nspawn`.
    pub arguments: Vec<String>,
}

/// A machine, running or powered off.
#[derive(Debug)]
pub struct Node {
    name: String,
    machine: Option<Process>,
    arguments: Vec<String>,
    starts: u32,
    address: Ipv4Addr,
    slot: Slot,
}

// === impl NodeSpec ===

impl NodeSpec {
    /// Returns a node without a task.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            user_data: "#cloud-config\n{}\n".to_owned(),
            dns: Dns::None,
            hosts: Vec::new(),
            files: Vec::new(),
            arguments: Vec::new(),
        }
    }

    fn write(&self, root: &Path) -> Result<()> {
        let seed = Path::new("var/lib/cloud/seed/nocloud");
        // JSON is YAML.
        let meta_data = json!({"instance-id": format!("i-{}", self.name), "local-hostname": self.name});
        let mut hosts = format!("127.0.0.1 localhost\n127.0.1.1 {}\n::1 localhost\n", self.name);
        for (address, name) in &self.hosts {
            // Writing to a string cannot fail.
            let _ = writeln!(hosts, "{address} {name}");
        }
        let own = [
            (seed.join("user-data"), self.user_data.clone().into_bytes()),
            (seed.join("meta-data"), meta_data.to_string().into_bytes()),
            ("etc/hosts".into(), hosts.into_bytes()),
            ("etc/resolv.conf".into(), self.dns.resolv_conf().into_bytes()),
        ];
        for (path, content) in own.iter().chain(&self.files) {
            let path = root.join(path.strip_prefix("/").unwrap_or(path));
            let parent = path.parent().context("a file has a folder")?;
            std::fs::create_dir_all(parent).with_context(|| format!("create `{}`", parent.display()))?;
            // Not through a link, which could lead out of the node.
            if path.symlink_metadata().is_ok() {
                std::fs::remove_file(&path).with_context(|| format!("replace `{}`", path.display()))?;
            }
            std::fs::write(&path, content).with_context(|| format!("write `{}`", path.display()))?;
        }
        Ok(())
    }
}

// === impl Node ===

impl Node {
    pub const NEEDS: &'static [Need] = &[
        Need::Root,
        Need::Program("systemd-nspawn"),
        Need::Program("mmdebstrap"),
        Need::Program("ip"),
        Need::Program("journalctl"),
        Need::Built(Binary::Kubelet),
        Need::Built(Binary::Kubeadm),
        Need::Built(Binary::Kubectl),
        Need::Built(Binary::Containerd),
        Need::Built(Binary::ContainerdShim),
        Need::Built(Binary::Ctr),
    ];

    /// Creates and starts the node; [`Self::wait_for_boot`] waits for its boot.
    pub fn boot(spec: &NodeSpec) -> Result<Self> {
        let image = node_image()?;
        let slot = Slot::claim()?;
        let network = slot.network();
        // From here on, dropping the node cleans up all resources created for it.
        let mut node = Self {
            name: spec.name.clone(),
            machine: None,
            arguments: spec.arguments.clone(),
            starts: 0,
            address: network.address(),
            slot,
        };
        network.create(spec.dns)?;
        node.slot.disk().mount(&image)?;
        spec.write(&node.root())?;
        node.power_on()?;
        Ok(node)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Returns the node's file system as seen from outside, without mounts inside (`/run`, `/tmp`).
    pub fn root(&self) -> PathBuf {
        self.slot.disk().root()
    }

    /// Returns the directory of the persistent journal; it contains one directory for the machine.
    pub fn journal_dir(&self) -> PathBuf {
        self.root().join("var/log/journal")
    }

    /// Runs `journalctl` with these arguments on the node's journal. The node need not run.
    pub fn journal(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new("journalctl")
            .arg("--directory")
            .arg(self.journal_dir())
            .args(["--no-pager", "--quiet", "--output=short-precise"])
            .args(arguments)
            .output()
            .context("run `journalctl`")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "journalctl {}: {}", arguments.join(" "), errors.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Returns the serial console output since the last power-on.
    pub fn console(&self) -> String {
        self.machine.as_ref().map(Process::log).unwrap_or_default()
    }

    /// Returns the outer process ID of the node's process 1.
    pub fn leader(&self) -> Option<i32> {
        // The node's process 1 has an ID in exactly two namespaces below ours: that of the machine and the
        // node's own. Pods have more.
        let is_leader = |id: &i32| {
            let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
            let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
            let numbers: Vec<&str> = numbers.split_whitespace().collect();
            numbers.len() == 3 && numbers.last() == Some(&"1")
        };
        self.machine.as_ref()?;
        // Each process is in one group of each hierarchy, so one hierarchy is sufficient.
        cgroup::processes(self.slot.groups().get(..1)?).into_iter().find(is_leader)
    }

    /// Runs a command in the node and waits for its end.
    pub fn run(&self, command: &[&str]) -> Result<Output> {
        let leader = self.leader().with_context(|| format!("`{}` is not running", self.name))?;
        // A process that enters from outside would have more capabilities than the node's own processes.
        Command::new("setpriv")
            .arg(format!("--bounding-set={}", MACHINE_RIGHTS.map(|right| format!("-{right}")).join(",")))
            // A shell in between is the parent of the command, but not itself in the node's process
            // namespace.
            //
            // nsenter as the parent would stop permanently when its child is stopped, which a system does to
            // all processes during shutdown. The namespace would then wait for nsenter indefinitely.
            .args(["--", "nsenter", "--target", &leader.to_string(), "--all", "--no-fork", "--"])
            .args(["sh", "-c", "\"$@\"; exit $?", "run", "timeout", "--kill-after=5s", COMMAND_LIMIT])
            .args(command)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LANG", "C.UTF-8")
            .output()
            .context("run `setpriv`")
    }

    /// Runs a command in the node and returns its output; fails if the command fails.
    pub fn output(&self, command: &[&str]) -> Result<String> {
        let output = self.run(command)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} in `{}`: {}", command.join(" "), self.name, errors.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Reads a file in the running node, including `/run` and `/proc`.
    pub fn read(&self, path: &str) -> Result<String> {
        self.output(&["cat", path])
    }

    pub fn boot_id(&self) -> Result<String> {
        Ok(self.read("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
    }

    /// Waits until `multi-user.target` is reached. cloud-init's last stage, in which user data runs, comes after it.
    pub fn wait_for_boot(&mut self) -> Result<()> {
        self.wait("the boot of the node", BOOT_LIMIT, |node| {
            let active = node.output(&["systemctl", "is-active", "multi-user.target"]).ok()?;
            (active.trim() == "active").then_some(())
        })
    }

    /// Waits until cloud-init has finished in this boot and returns its errors.
    pub fn wait_for_cloud_init(&mut self) -> Result<Vec<String>> {
        self.wait("cloud-init to finish", CLOUD_INIT_LIMIT, |node| {
            let result = node.read("/run/cloud-init/result.json").ok()?;
            let result: serde_json::Value = serde_json::from_str(&result).ok()?;
            let errors = result["v1"]["errors"].as_array()?;
            Some(errors.iter().map(|error| error.as_str().unwrap_or_default().to_owned()).collect())
        })
    }

    /// Reboots in an orderly way and waits for the next boot.
    pub fn reboot(&mut self) -> Result<()> {
        let before = self.boot_id()?;
        // The system may stop before the command can return success.
        self.run(&["systemctl", "reboot"])?;
        self.wait("the node to reboot", REBOOT_LIMIT, |node| node.boot_id().ok().filter(|id| *id != before))?;
        self.wait_for_boot()
    }

    /// Cuts the power: all processes end immediately, and the disk stays as it is.
    pub fn power_cut(&mut self) -> Result<()> {
        if let Some(mut machine) = self.machine.take() {
            machine.signal(Signal::KILL)?;
            machine.wait(BOOT_LIMIT)?;
        }
        cgroup::kill(self.slot.groups())
    }

    /// Switches the power on again.
    pub fn power_on(&mut self) -> Result<()> {
        ensure!(self.machine.is_none(), "`{}` has power already", self.name);
        self.starts += 1;
        let script = self.slot.directory().join("run-machine");
        std::fs::write(&script, MACHINE).context("write the script that runs a machine")?;
        let log = format!("{}-console-{}", self.name, self.starts);
        let network = self.slot.network().path();
        self.machine = Some(Process::start(&log, Path::new("unshare"), self.slot.directory(), |command| {
            // A process namespace around the machine: the kernel ends all processes in it when `unshare` ends
            // for any reason. systemd-nspawn alone leaves its container running when it is killed.
            command.args(["--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--", "sh"]).arg(script);
            command.args(self.slot.groups()).args(["--", "systemd-nspawn", "--boot", "--quiet"]);
            command.arg(format!("--machine={}", self.slot.name()));
            command.arg(format!("--directory={}", self.root().display()));
            command.arg(format!("--network-namespace-path={}", network.display()));
            // This machine may not run systemd, so the node cannot be registered.
            command.args(["--register=no", "--keep-unit", "--link-journal=no"]);
            command.args(["--console=read-only", "--resolv-conf=off", "--timezone=off"]);
            // The capabilities that kubelet and runc need in their own node.
            command.arg("--capability=all");
            command.args(MACHINE_RIGHTS.map(|right| format!("--drop-capability=cap_{right}")));
            command.arg("--system-call-filter=@keyring bpf @mount");
            // kubelet requires a kernel log; this machine's must not be visible in the node.
            command.arg("--bind=/dev/null:/dev/kmsg");
            command.args(&self.arguments);
            // Of the kernel settings, only those of the network are the node's own.
            command.env("SYSTEMD_NSPAWN_API_VFS_WRITABLE", "network");
            // Its lock files would outlive a power cut; the slot on this machine is locked anyway.
            command.env("SYSTEMD_NSPAWN_LOCK", "0");
            if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
                command.env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "0");
            }
        })?);
        Ok(())
    }

    /// Returns whether the cluster has the node and reports it ready.
    pub fn is_ready(&self, cluster: &ApiServer) -> Result<bool> {
        let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        Ok(cluster.kubectl(&["get", "node", &self.name, "--ignore-not-found", "-o", ready])? == "True")
    }

    /// Polls until `probe` returns a value; fails early if the machine stops.
    fn wait<T>(&mut self, what: &str, within: Duration, probe: impl Fn(&Self) -> Option<T>) -> Result<T> {
        let value = eventually(what, within, || {
            let stopped = self.machine.as_mut().is_none_or(|machine| machine.wait(Duration::ZERO).is_ok());
            if stopped { Some(None) } else { probe(self).map(Some) }
        });
        value?.with_context(|| format!("`{}` stopped before {what}", self.name))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        let journal =
            if failed { self.journal(&["--lines", JOURNAL_TAIL]).unwrap_or_default() } else { String::new() };
        if let Some(machine) = &self.machine {
            // Without this it would first be shut down in an orderly way.
            let _ = machine.signal(Signal::KILL);
        }
        // Prints the console if the test failed.
        self.machine = None;
        let cleared = self.slot.clear();
        let mut stderr = std::io::stderr().lock();
        if failed {
            let _ = writeln!(stderr, "---- end of the journal of node `{}` ----\n{journal}", self.name);
        }
        if let Err(error) = cleared {
            let _ = writeln!(stderr, "warning: node `{}` is not cleared away: {error:#}", self.name);
        }
    }
}
