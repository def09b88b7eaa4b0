//! A failing first boot from the agent's perspective: logs, a hub to report to, and a port for queries.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use landfall_model::envelope::Envelope;
use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{Process, free_port};
use tempfile::TempDir;

const FAILURE: &str = "error: error execution phase preflight: couldn't validate the identity of the API Server: Get \
                       \"https://api.c1.example:6443/\": dial tcp: lookup api.c1.example on 10.0.0.2:53: no such host\n";
/// The cause in a first report.
const CAUSE: &str = "dns-resolution-failure";
/// Path of its log in the directory.
const LOG: &str = "machine/var/log/cloud-init-output.log";
const START: Duration = Duration::from_secs(20);

pub(crate) struct FirstBoot {
    folder: TempDir,
    /// Loopback ports of the hub and of the agent.
    hub: u16,
    port: u16,
}

// === impl FirstBoot ===

impl FirstBoot {
    /// Creates a machine with this many bytes of ordinary logs before the failure.
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

    /// Starts the agent.
    pub(crate) fn agent(&self, program: &Path) -> Result<Process> {
        Process::start("agent", program, self.folder.path(), |command| {
            command.current_dir(self.folder.path());
            command.args(["agent", "--root", "machine", "--state", "state", "--report-folder", "reports"]);
            command.args(["--hub", &format!("https://{}", self.address()), "--hub-ca", "ca.crt"]);
            command.args(["--serve", &format!("127.0.0.1:{}", self.port), "--serve-client-ca", "ca.crt"]);
            command.args(["--serve-cert", "server.crt", "--serve-key", "server.key"]);
        })
    }

    /// Waits until the hub has the failure and its logs, and the agent's own API reports them.
    pub(crate) fn until_told(&self, agent: &mut Process, within: Duration) -> Result<()> {
        for (what, port, path, word) in [
            ("the hub to know", self.hub, "/api/v1/fleet", CAUSE),
            ("the hub to have its logs", self.hub, "/api/v1/nodes/n1", "\"digest\":"),
        ] {
            agent.wait_until(what, within, || self.ask(port, path)?.contains(word).then_some(()))?;
        }
        let failed = || {
            let envelope = Envelope::parse(self.ask(self.port, "/report")?.as_bytes()).ok()?;
            let cause = envelope.message().ok()?.report.verdict.cause?;
            (cause.as_str() == CAUSE).then_some(())
        };
        agent.wait_until("the agent to answer", within, failed)?;
        Ok(())
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
