//! A real node: a small Debian booted by `systemd-nspawn` with journald, D-Bus, cloud-init (NoCloud), containerd and
//! kubelet, in network and control groups of its own. It reboots by itself when the system inside asks for it, loses power
//! when told to, and is gone with everything it was when its value is dropped.

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
/// Orderly shutdown (5 s for each unit that does not end) and the next boot.
const REBOOT_LIMIT: Duration = Duration::from_mins(2);
/// cloud-init runs what the user data says; joining a cluster takes 2 s of it.
const CLOUD_INIT_LIMIT: Duration = Duration::from_mins(2);
/// How long a command inside a node may run, as `timeout` reads it.
const COMMAND_LIMIT: &str = "60s";
/// How many of the journal's last lines a failed test shows.
const JOURNAL_TAIL: &str = "100";
/// Rights no node has: the clock and the kernel's modules are those of the machine the tests run on.
const MACHINE_RIGHTS: [&str; 2] = ["sys_time", "sys_module"];
const MACHINE: &str = include_str!("../../../../testbed/node/run-machine");

/// What a node is before its first boot.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// Its host name, and the name it registers under.
    pub name: String,
    /// What cloud-init is given; begins with `#cloud-config` or `#!`.
    pub user_data: String,
    pub dns: Dns,
    /// Names it knows without asking anybody (`/etc/hosts`).
    pub hosts: Vec<(IpAddr, String)>,
    /// Files by their path inside, laid over the image.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    /// Further arguments for `systemd-nspawn`.
    pub arguments: Vec<String>,
}

/// A machine that runs, or stands without power.
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
    /// A node with nothing to do.
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

    /// Makes the node and switches it on; [`Self::wait_for_boot`] waits until it is up.
    pub fn boot(spec: &NodeSpec) -> Result<Self> {
        let image = node_image()?;
        let slot = Slot::claim()?;
        let network = slot.network();
        // From here on, dropping the node clears up whatever has been made of it.
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

    /// The node's file system as seen from outside. What is mounted inside (`/run`, `/tmp`) is not part of it.
    pub fn root(&self) -> PathBuf {
        self.slot.disk().root()
    }

    /// The folder of the persistent journal; holds one folder for the machine.
    pub fn journal_dir(&self) -> PathBuf {
        self.root().join("var/log/journal")
    }

    /// Runs `journalctl` with these arguments over the node's journal. The node need not run.
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

    /// What the node has written to its serial console since it last got power.
    pub fn console(&self) -> String {
        self.machine.as_ref().map(Process::log).unwrap_or_default()
    }

    /// The id, on this machine, of the process that is number 1 inside.
    pub fn leader(&self) -> Option<i32> {
        // Number 1 inside is the process that has a number in exactly two namespaces more than we see: the one that holds
        // the machine, and the node's own. Pods have more.
        let is_leader = |id: &i32| {
            let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
            let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
            let numbers: Vec<&str> = numbers.split_whitespace().collect();
            numbers.len() == 3 && numbers.last() == Some(&"1")
        };
        self.machine.as_ref()?;
        // Every process is in one group of each hierarchy: one hierarchy will do.
        cgroup::processes(self.slot.groups().get(..1)?).into_iter().find(is_leader)
    }

    /// Runs a command inside the node and waits for its end.
    pub fn run(&self, command: &[&str]) -> Result<Output> {
        let leader = self.leader().with_context(|| format!("`{}` is not running", self.name))?;
        // Who enters from outside brings the rights of outside, where the node's own processes have been denied some.
        Command::new("setpriv")
            .arg(format!("--bounding-set={}", MACHINE_RIGHTS.map(|right| format!("-{right}")).join(",")))
            // A shell stands between: it is the parent of the command but not itself in the node's process namespace.
            // nsenter in its place would stop for good when its child is stopped, as a system that shuts down does to
            // every process, and the namespace would wait for it as long.
            .args(["--", "nsenter", "--target", &leader.to_string(), "--all", "--no-fork", "--"])
            .args(["sh", "-c", "\"$@\"; exit $?", "run", "timeout", "--kill-after=5s", COMMAND_LIMIT])
            .args(command)
            .env_clear()
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("LANG", "C.UTF-8")
            .output()
            .context("run `setpriv`")
    }

    /// Runs a command inside the node and gives what it printed; fails when the command does.
    pub fn output(&self, command: &[&str]) -> Result<String> {
        let output = self.run(command)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{} in `{}`: {}", command.join(" "), self.name, errors.trim());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Reads a file inside the running node, of `/run` and `/proc` as well.
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

    /// Waits until cloud-init has finished in this boot and gives the errors it met.
    pub fn wait_for_cloud_init(&mut self) -> Result<Vec<String>> {
        self.wait("cloud-init to finish", CLOUD_INIT_LIMIT, |node| {
            let result = node.read("/run/cloud-init/result.json").ok()?;
            let result: serde_json::Value = serde_json::from_str(&result).ok()?;
            let errors = result["v1"]["errors"].as_array()?;
            Some(errors.iter().map(|error| error.as_str().unwrap_or_default().to_owned()).collect())
        })
    }

    /// Reboots in good order and waits for the next boot.
    pub fn reboot(&mut self) -> Result<()> {
        let before = self.boot_id()?;
        // The system may be gone before the command can say that it worked.
        self.run(&["systemctl", "reboot"])?;
        self.wait("the node to reboot", REBOOT_LIMIT, |node| node.boot_id().ok().filter(|id| *id != before))?;
        self.wait_for_boot()
    }

    /// Takes the power away: every process ends where it stands, the disk stays as it is.
    pub fn power_cut(&mut self) -> Result<()> {
        if let Some(mut machine) = self.machine.take() {
            machine.signal(Signal::KILL)?;
            machine.wait(BOOT_LIMIT)?;
        }
        cgroup::kill(self.slot.groups())
    }

    /// Switches on what was switched off.
    pub fn power_on(&mut self) -> Result<()> {
        ensure!(self.machine.is_none(), "`{}` has power already", self.name);
        self.starts += 1;
        let script = self.slot.directory().join("run-machine");
        std::fs::write(&script, MACHINE).context("write the script that runs a machine")?;
        let log = format!("{}-console-{}", self.name, self.starts);
        let network = self.slot.network().path();
        self.machine = Some(Process::start(&log, Path::new("unshare"), self.slot.directory(), |command| {
            // A process namespace around the whole machine: the kernel ends everything in it when `unshare` ends, however
            // that comes about. systemd-nspawn alone leaves its container running when it is killed.
            command.args(["--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--", "sh"]).arg(script);
            command.args(self.slot.groups()).args(["--", "systemd-nspawn", "--boot", "--quiet"]);
            command.arg(format!("--machine={}", self.slot.name()));
            command.arg(format!("--directory={}", self.root().display()));
            command.arg(format!("--network-namespace-path={}", network.display()));
            // This machine may have no systemd to register with.
            command.args(["--register=no", "--keep-unit", "--link-journal=no"]);
            command.args(["--console=read-only", "--resolv-conf=off", "--timezone=off"]);
            // What kubelet and runc do in a node of their own.
            command.arg("--capability=all");
            command.args(MACHINE_RIGHTS.map(|right| format!("--drop-capability=cap_{right}")));
            command.arg("--system-call-filter=@keyring bpf @mount");
            // kubelet insists on a kernel log; this machine's is none of the node's business.
            command.arg("--bind=/dev/null:/dev/kmsg");
            command.args(&self.arguments);
            // Of the kernel's settings only those of the network are the node's own.
            command.env("SYSTEMD_NSPAWN_API_VFS_WRITABLE", "network");
            // Its lock files would outlive a power cut; the place on this machine is locked anyway.
            command.env("SYSTEMD_NSPAWN_LOCK", "0");
            if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
                command.env("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "0");
            }
        })?);
        Ok(())
    }

    /// Whether the cluster has the node and calls it ready.
    pub fn is_ready(&self, cluster: &ApiServer) -> Result<bool> {
        let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        Ok(cluster.kubectl(&["get", "node", &self.name, "--ignore-not-found", "-o", ready])? == "True")
    }

    /// Polls until `probe` gives a value; gives up early when the machine stops.
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
            // Without this it would be asked to shut down in good order first.
            let _ = machine.signal(Signal::KILL);
        }
        // Shows the console when the test has failed.
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
