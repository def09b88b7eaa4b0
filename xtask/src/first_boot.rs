//! A first boot that fails, as its agent lives through it: logs to read, a hub to tell, a port at which it is asked.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{Process, free_port};
use tempfile::TempDir;

const FAILURE: &str = "error: error execution phase preflight: couldn't validate the identity of the API Server: Get \
                       \"https://api.c1.example:6443/\": dial tcp: lookup api.c1.example on 10.0.0.2:53: no such host\n";
const SECOND_FAILURE: &str = "cp: error writing '/etc/kubernetes/kubelet.conf': No space left on device\n";
/// What a report of the first names.
const CAUSE: &str = "dns-resolution-failure";
/// Where its log is, below the folder.
const LOG: &str = "machine/var/log/cloud-init-output.log";
const START: Duration = Duration::from_secs(20);

pub(crate) struct FirstBoot {
    folder: TempDir,
    /// Ports on loopback: the hub's, and the agent's own.
    hub: u16,
    port: u16,
}

// === impl FirstBoot ===

impl FirstBoot {
    /// A machine with this much of ordinary logs before the failure.
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        let folder = tempfile::tempdir().context("make a folder for the machine")?;
        let at = |name: &str| folder.path().join(name);
        for name in ["machine/var/log", "machine/etc", "reports"] {
            fs::create_dir_all(at(name))?;
        }
        fs::write(at("machine/etc/hostname"), "n1\n")?;
        let logs = crate::bench::ordinary_logs(&landfall_testkit::cache_dir()?.join("bench"))?;
        let mut text = fs::read(logs).context("read the log")?;
        text.truncate(bytes);
        text.extend_from_slice(format!("\n{FAILURE}").as_bytes());
        fs::write(at(LOG), text)?;

        let authority = Authority::new("first boot", 2)?;
        fs::write(at("ca.crt"), authority.certificate())?;
        let server = Leaf::new("server", Purpose::Serve).names(["127.0.0.1"]);
        let operator = Leaf::new("operator", Purpose::Call).organization("landfall:operators");
        for leaf in [("server", server), ("operator", operator)] {
            let pair = authority.issue(&leaf.1)?;
            fs::write(at(&format!("{}.crt", leaf.0)), &pair.certificate)?;
            fs::write(at(&format!("{}.key", leaf.0)), pair.key.expose())?;
        }

        Ok(Self { folder, hub: free_port()?, port: free_port()? })
    }

    /// Starts the hub.
    pub(crate) fn hub(&self, program: &Path) -> Result<Process> {
        let mut hub = Process::start("hub", program, self.folder.path(), |command| {
            command.current_dir(self.folder.path()).args(["hub", "--listen", &self.address()]);
            command.args(["--store", "sqlite:hub.db", "--objects", "file:bundles"]);
            command.args(["--tls-cert", "server.crt", "--tls-key", "server.key"]);
        })?;
        hub.wait_until("it to listen", START, || std::net::TcpStream::connect(self.address()).ok())?;
        Ok(hub)
    }

    /// Starts the agent. The program may be one that watches it; then its words come first, and name the agent's.
    pub(crate) fn agent(&self, program: &Path, words: &[OsString]) -> Result<Process> {
        Process::start("agent", program, self.folder.path(), |command| {
            command.current_dir(self.folder.path()).args(words);
            command.args(["agent", "--root", "machine", "--state", "state", "--report-folder", "reports"]);
            command.args(["--hub", &format!("https://{}", self.address()), "--hub-ca", "ca.crt"]);
            command.args(["--serve", &format!("127.0.0.1:{}", self.port), "--serve-client-ca", "ca.crt"]);
            command.args(["--serve-cert", "server.crt", "--serve-key", "server.key"]);
        })
    }

    /// Comes back when the hub was told of the failure and has its logs, and an operator who asked the agent itself knows, too.
    pub(crate) fn until_told(&self, agent: &mut Process, within: Duration) -> Result<()> {
        for (what, port, path, word) in [
            ("the hub to know", self.hub, "/api/v1/fleet", CAUSE),
            ("the hub to have its logs", self.hub, "/api/v1/nodes/n1", "\"digest\":"),
            ("the agent to answer", self.port, "/report", CAUSE),
        ] {
            agent.wait_until(what, within, || self.ask(port, path)?.contains(word).then_some(()))?;
        }
        Ok(())
    }

    /// Another failure, which hides the first.
    pub(crate) fn fail_again(&self) -> Result<()> {
        let log = OpenOptions::new().append(true).open(self.path(LOG)).context("open the log")?;
        (&log).write_all(SECOND_FAILURE.as_bytes()).context("write the log")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.hub)
    }

    fn ask(&self, port: u16, path: &str) -> Option<String> {
        let mut curl = Command::new("curl");
        curl.current_dir(self.folder.path()).args(["--silent", "--max-time", "20", "--cacert", "ca.crt"]);
        curl.args(["--cert", "operator.crt", "--key", "operator.key"]);
        let answer = curl.arg(format!("https://127.0.0.1:{port}{path}")).output().ok()?;
        Some(String::from_utf8_lossy(&answer.stdout).into_owned())
    }
}
