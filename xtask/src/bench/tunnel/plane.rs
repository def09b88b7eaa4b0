//! The objects under test: a server, an agent, and the load on them.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{Binary, Process, free_port};
use tempfile::TempDir;

use crate::shell;

const START: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    Ours,
    Upstreams,
}

/// Directory with certificates.
pub(super) struct Bed {
    folder: TempDir,
}

/// A connected pair of server and agent.
pub(super) struct Plane {
    pub(super) mode: &'static str,
    pub(super) socket: String,
    _folder: TempDir,
    server: Process,
    agent: Process,
}

/// A program with its arguments.
type Program = (PathBuf, Vec<String>);

/// A load that has finished its work and keeps its sockets open.
pub(super) struct Held(Child);

// === impl Bed ===

impl Bed {
    pub(super) fn new() -> Result<Self> {
        let folder = tempfile::tempdir().context("make a folder")?;
        let authority = Authority::new("bench", 2)?;
        fs::write(folder.path().join("ca.crt"), authority.certificate())?;
        for (name, leaf) in [
            ("server", Leaf::new("server", Purpose::Serve).names(["localhost", "127.0.0.1"])),
            ("agent", Leaf::new("agent", Purpose::Call)),
        ] {
            let issued = authority.issue(&leaf)?;
            fs::write(folder.path().join(format!("{name}.crt")), &issued.certificate)?;
            fs::write(folder.path().join(format!("{name}.key")), issued.key.expose())?;
        }
        Ok(Self { folder })
    }

    /// Starts a server and its agent, and waits until they forward data.
    pub(super) fn plane(&self, whose: Whose, mode: &'static str) -> Result<Plane> {
        let folder = tempfile::tempdir().context("make a folder")?;
        let socket = folder.path().join("frontend.sock").display().to_string();
        let ports = [free_port()?, free_port()?, free_port()?, free_port()?, free_port()?];
        let (server, agent) = match whose {
            Whose::Ours => self.ours(mode, &socket, ports[0]),
            Whose::Upstreams => self.upstreams(mode, &socket, ports)?,
        };
        let start = |name: &str, (program, flags): (PathBuf, Vec<String>)| {
            Process::start(name, &program, folder.path(), |command| {
                command.args(flags);
            })
        };
        let (server, mut agent) = (start("server", server)?, start("agent", agent)?);
        agent
            .wait_until("the tunnel to carry", START, || numbers(&["churn", mode, &socket, "1", "1"]).ok())?;
        Ok(Plane { mode, socket, _folder: folder, server, agent })
    }

    /// Returns the commands of our engine as in the product, without the product's command line.
    fn ours(&self, mode: &str, socket: &str, port: u16) -> (Program, Program) {
        let (program, files) = (example("tunnel"), self.folder.path().display().to_string());
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let port = port.to_string();
        let server = words(&["server", mode, socket, &port, &files]);
        ((program.clone(), server), (program, words(&["agent", &port, &files])))
    }

    fn upstreams(&self, mode: &str, socket: &str, ports: [u16; 5]) -> Result<(Program, Program)> {
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        let server = vec![
            format!("--mode={mode}"),
            format!("--uds-name={socket}"),
            "--server-port=0".to_owned(),
            "--agent-bind-address=127.0.0.1".to_owned(),
            format!("--agent-port={}", ports[0]),
            format!("--health-port={}", ports[1]),
            format!("--admin-port={}", ports[2]),
            format!("--cluster-cert={}", file("server.crt")),
            format!("--cluster-key={}", file("server.key")),
            format!("--cluster-ca-cert={}", file("ca.crt")),
            // Upstream's best case: its default logs each packet.
            "--v=0".to_owned(),
        ];
        let agent = vec![
            "--proxy-server-host=127.0.0.1".to_owned(),
            format!("--proxy-server-port={}", ports[0]),
            format!("--ca-cert={}", file("ca.crt")),
            format!("--agent-cert={}", file("agent.crt")),
            format!("--agent-key={}", file("agent.key")),
            "--agent-id=agent".to_owned(),
            format!("--health-server-port={}", ports[3]),
            format!("--admin-server-port={}", ports[4]),
            "--v=0".to_owned(),
        ];
        Ok(((Binary::KonnectivityServer.path()?, server), (Binary::KonnectivityAgent.path()?, agent)))
    }
}

/// Returns the load's results.
pub(super) fn numbers(arguments: &[&str]) -> Result<Vec<f64>> {
    program_numbers("tunnel-load", arguments)
}

pub(super) fn program_numbers(program: &str, arguments: &[&str]) -> Result<Vec<f64>> {
    let output = Command::new(example(program))
        .args(arguments)
        .stderr(Stdio::piped())
        .output()
        .with_context(|| format!("start `{program}`"))?;
    ensure!(
        output.status.success(),
        "`{program}` {arguments:?} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().map(|word| word.parse().with_context(|| format!("read {text:?}"))).collect()
}

/// Runs a load that keeps its connections until it is released.
pub(super) fn hold(arguments: &[&str]) -> Result<Held> {
    let mut load = Command::new(example("tunnel-load"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("start the load")?;
    let mut line = String::new();
    BufReader::new(load.stdout.take().context("the load's output")?).read_line(&mut line)?;
    ensure!(!line.is_empty(), "the load {arguments:?} failed");
    Ok(Held(load))
}

fn example(name: &str) -> PathBuf {
    shell::root().join("target/release/examples").join(name)
}

// === impl Plane ===

impl Plane {
    fn processes(&self) -> [u32; 2] {
        [self.server.id(), self.agent.id()]
    }

    /// Returns the CPU time of server and agent.
    pub(super) fn cpu_seconds(&self) -> Result<f64> {
        let mut ticks = 0.0;
        for process in self.processes() {
            let stat =
                fs::read_to_string(format!("/proc/{process}/stat")).context("read a process's times")?;
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
            for at in [11, 12] {
                ticks += fields.get(at).context("a process's times")?.parse::<f64>()?;
            }
        }
        // On all common systems the kernel's unit is 1/100 s.
        Ok(ticks / 100.0)
    }

    pub(super) fn resident_mib(&self) -> Result<f64> {
        let mut kibibytes = 0.0;
        for process in self.processes() {
            let status = fs::read_to_string(format!("/proc/{process}/status"))?;
            let line =
                status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("a process's memory")?;
            kibibytes += line.trim().trim_end_matches(" kB").parse::<f64>()?;
        }
        Ok(kibibytes / 1024.0)
    }

    pub(super) fn descriptors(&self) -> Result<usize> {
        let mut count = 0;
        for process in self.processes() {
            count += fs::read_dir(format!("/proc/{process}/fd")).context("count descriptors")?.count();
        }
        Ok(count)
    }
}

// === impl Held ===

impl Held {
    pub(super) fn release(mut self) -> Result<()> {
        drop(self.0.stdin.take());
        self.0.wait().context("wait for the load")?;
        Ok(())
    }
}
