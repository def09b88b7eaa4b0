//! A first boot that fails, as its agent lives through it: logs to read, a hub to tell, a port at which it is asked.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{Process, free_port};
use tempfile::TempDir;

const FAILURE: &str = "error: error execution phase preflight: couldn't validate the identity of the API Server: Get \
                       \"https://api.c1.example:6443/\": dial tcp: lookup api.c1.example on 10.0.0.2:53: no such host\n";
/// What a report of it names.
pub(crate) const CAUSE: &str = "dns-resolution-failure";
/// Where its log is, below the folder.
const LOG: &str = "machine/var/log/cloud-init-output.log";
const START: Duration = Duration::from_secs(20);

pub(crate) struct FirstBoot {
    folder: TempDir,
    /// Ports on loopback: the hub's, and the agent's own.
    hub: u16,
    port: u16,
    _hub: Process,
}

// === impl FirstBoot ===

impl FirstBoot {
    /// A machine with this much of ordinary logs before the failure, and a hub.
    pub(crate) fn new(program: &Path, bytes: usize) -> Result<Self> {
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

        let (hub, port) = (free_port()?, free_port()?);
        let mut process = Process::start("hub", program, folder.path(), |command| {
            command.current_dir(folder.path()).args(["hub", "--listen", &format!("127.0.0.1:{hub}")]);
            command.args(["--store", "sqlite:hub.db", "--objects", "file:bundles"]);
            command.args(["--tls-cert", "server.crt", "--tls-key", "server.key"]);
        })?;
        process
            .wait_until("it to listen", START, || std::net::TcpStream::connect(("127.0.0.1", hub)).ok())?;
        Ok(Self { folder, hub, port, _hub: process })
    }

    /// Starts the agent. The program may be one that watches it; then its words come first, and name the agent's.
    pub(crate) fn agent(&self, program: &Path, words: &[OsString]) -> Result<Process> {
        Process::start("agent", program, self.folder.path(), |command| {
            command.current_dir(self.folder.path()).args(words);
            command.args(["agent", "--root", "machine", "--state", "state", "--report-folder", "reports"]);
            command.args(["--hub", &format!("https://127.0.0.1:{}", self.hub), "--hub-ca", "ca.crt"]);
            command.args(["--serve", &format!("127.0.0.1:{}", self.port), "--serve-client-ca", "ca.crt"]);
            command.args(["--serve-cert", "server.crt", "--serve-key", "server.key"]);
        })
    }

    /// Comes back when the hub was told this of a node, and an operator who asked the agent itself.
    pub(crate) fn until_told(&self, agent: &mut Process, word: &str, within: Duration) -> Result<()> {
        for (what, port, path) in
            [("the hub to know", self.hub, "/api/v1/fleet"), ("the agent to answer", self.port, "/report")]
        {
            agent.wait_until(what, within, || self.ask(port, path)?.contains(word).then_some(()))?;
        }
        Ok(())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn ask(&self, port: u16, path: &str) -> Option<String> {
        let mut curl = Command::new("curl");
        curl.current_dir(self.folder.path()).args(["--silent", "--max-time", "20", "--cacert", "ca.crt"]);
        curl.args(["--cert", "operator.crt", "--key", "operator.key"]);
        let answer = curl.arg(format!("https://127.0.0.1:{port}{path}")).output().ok()?;
        Some(String::from_utf8_lossy(&answer.stdout).into_owned())
    }
}
