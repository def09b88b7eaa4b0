//! The node agent at rest: what it costs a machine that has said what it had to say. Against the bar, for want of a peer.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{eventually, free_port};

use super::{Bench, Better, redact};

const MEMORY_BAR_MIB: f64 = 15.0;
const CORE_BAR_PERCENT: f64 = 1.0;
/// What a first boot may say before it comes to rest.
const LOG: usize = 64 << 20;
const FAILURE: &str = "error: error execution phase preflight: couldn't validate the identity of the API Server: Get \
                       \"https://api.c1.example:6443/\": dial tcp: lookup api.c1.example on 10.0.0.2:53: no such host\n";
const START_LIMIT: Duration = Duration::from_mins(2);
/// Long enough that a tick of the clock is no tenth of a percent.
const WATCHED: Duration = Duration::from_secs(20);
/// The kernel's clock for processes, wherever Linux runs.
const TICKS_PER_SECOND: f64 = 100.0;

/// An agent that ends with its value.
struct Running(Child);

pub(super) fn run(bench: &Bench) -> Result<()> {
    let program = bench.program()?;
    let folder = tempfile::tempdir().context("make a folder for the bench")?;
    let agent = start(&program, folder.path())?;
    let report = folder.path().join("state/report.json");
    eventually("the verdict", START_LIMIT, || {
        fs::read_to_string(&report).ok()?.contains("dns-resolution-failure").then_some(())
    })?;
    let core = || agent.core_percent();
    bench.compare("at-rest-core", "%", Better::Lower, 1.0, "bar", core, || Ok(CORE_BAR_PERCENT))?;
    for (metric, field) in [("at-rest-memory", "VmRSS:"), ("peak-memory-64MiB-of-logs", "VmHWM:")] {
        let memory = || agent.memory_mib(field);
        bench.compare(metric, "MiB", Better::Lower, 1.0, "bar", memory, || Ok(MEMORY_BAR_MIB))?;
    }
    Ok(())
}

/// With a port and a folder to bring reports to, on a machine whose log is full.
fn start(program: &Path, folder: &Path) -> Result<Running> {
    let log = folder.join("machine/var/log");
    fs::create_dir_all(&log)?;
    fs::create_dir_all(folder.join("machine/etc"))?;
    fs::create_dir_all(folder.join("reports"))?;
    fs::write(folder.join("machine/etc/hostname"), "n1\n")?;
    let logs = redact::ordinary_logs(&landfall_testkit::cache_dir()?.join("bench"))?;
    let mut text = fs::read(logs).context("read the log")?;
    text.truncate(LOG);
    text.extend_from_slice(format!("\n{FAILURE}").as_bytes());
    fs::write(log.join("cloud-init-output.log"), text)?;
    let authority = Authority::new("bench", 2)?;
    let pair = authority.issue(&Leaf::new("agent", Purpose::Serve).names(["127.0.0.1"]))?;
    fs::write(folder.join("ca.crt"), authority.certificate())?;
    fs::write(folder.join("tls.crt"), &pair.certificate)?;
    fs::write(folder.join("tls.key"), pair.key.expose())?;
    let mut command = Command::new(program);
    command.current_dir(folder).args(["agent", "--root", "machine", "--state", "state"]);
    command.args(["--report-folder", "reports", "--serve", &format!("127.0.0.1:{}", free_port()?)]);
    command.args(["--serve-cert", "tls.crt", "--serve-key", "tls.key", "--serve-client-ca", "ca.crt"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    child.map(Running).context("start the agent")
}

// === impl Running ===

impl Running {
    /// Of one core, while nothing happens.
    fn core_percent(&self) -> Result<f64> {
        let (before, started) = (self.ticks()?, Instant::now());
        while let Some(left) = WATCHED.checked_sub(started.elapsed()).filter(|left| !left.is_zero()) {
            std::thread::park_timeout(left);
        }
        let used = (self.ticks()? - before) / TICKS_PER_SECOND;
        Ok(100.0 * used / started.elapsed().as_secs_f64())
    }

    /// User and system time so far.
    fn ticks(&self) -> Result<f64> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).context("look at the agent")?;
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        ensure!(fields.len() > 12, "the kernel tells less of processes than it should");
        Ok(fields[11].parse::<f64>()? + fields[12].parse::<f64>()?)
    }

    fn memory_mib(&self, field: &str) -> Result<f64> {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.0.id())).context("look at the agent")?;
        let value = status.lines().find_map(|line| line.strip_prefix(field));
        let value = value.and_then(|value| value.split_whitespace().next()).context("find its memory")?;
        Ok(value.parse::<f64>()? / 1024.0)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
