//! Benchmark of `landfall diagnose` on 1 GiB of mixed logs, against ripgrep counting lines with the same
//! literals.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use landfall_diagnose::RuleSet;

use super::{Bench, Better, measure};

const SIZE: u64 = 1 << 30;
/// Speed goal: not slower than the fastest common search tool, which only counts.
const SPEED_GOAL: f64 = 1.0;
const MEMORY_BAR_MIB: f64 = 256.0;

pub(super) fn run(bench: &Bench) -> Result<()> {
    let binary = bench.program()?;
    let folder = landfall_testkit::cache_dir()?.join("bench");
    let logs = mixed_logs(&folder)?;
    let literals = folder.join("literals.txt");
    let rules = RuleSet::embedded().context("read the rules")?;
    fs::write(&literals, rules.literals().collect::<Vec<_>>().join("\n") + "\n")?;

    let ours =
        || measure::seconds(Command::new(&binary).args(["diagnose", "--output", "json"]).arg(&logs), &[0, 2]);
    let peer =
        || measure::seconds(Command::new("rg").args(["-c", "-F", "-f"]).arg(&literals).arg(&logs), &[0, 1]);
    // The first read fills the file cache for both.
    peer()?;
    bench.compare("mixed-logs-1GiB", "s", Better::Lower, SPEED_GOAL, "ripgrep -c -F -f", ours, peer)?;
    let memory = || {
        measure::peak_mib(Command::new(&binary).args(["diagnose", "--output", "json"]).arg(&logs), &[0, 2])
    };
    bench.compare("peak-memory", "MiB", Better::Lower, 1.0, "bar", memory, || Ok(MEMORY_BAR_MIB))
}

/// Creates logs like those of a fleet: mostly ordinary lines of several components, with occasional relevant
/// ones. Created once, with identical bytes in each run.
fn mixed_logs(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("mixed-1.log");
    if fs::metadata(&path).is_ok_and(|file| file.len() >= SIZE) {
        return Ok(path);
    }
    fs::create_dir_all(folder).context("make the bench folder")?;
    let partial = folder.join("mixed-1.partial");
    let mut out = BufWriter::new(File::create(&partial).context("make the log")?);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut written = 0;
    let mut line = 0_u64;
    while written < SIZE {
        // xorshift: deterministic pseudo-random numbers.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let text = ordinary_line(line, state);
        written += text.len() as u64;
        out.write_all(text.as_bytes())?;
        line += 1;
    }
    out.flush().context("write the log")?;
    drop(out);
    fs::rename(&partial, &path)?;
    Ok(path)
}

fn ordinary_line(line: u64, random: u64) -> String {
    let (minute, second, micro) = (line / 6000 % 60, line / 100 % 60, random % 1_000_000);
    let clock = format!("{:02}:{minute:02}:{second:02}", line / 360_000 % 24);
    let id = random % 0xffff_ffff;
    match random >> 32 & 1023 {
        0 => format!(
            "E0102 {clock}.{micro:06}    1742 reflector.go:205] \"Failed to watch\" err=\"failed to list *v1.Node: Get \\\"https://api.c1.example:6443/api/v1/nodes?fieldSelector=metadata.name%3Dn1\\\": dial tcp 10.0.0.{}:6443: connect: connection refused\" logger=\"UnhandledError\"\n",
            id % 250
        ),
        1 => format!(
            "Jan 02 {clock} n1 systemd[1]: kubelet.service: Scheduled restart job, restart counter is at {}.\n",
            id % 90
        ),
        n if n % 5 == 0 => format!(
            "I0102 {clock}.{micro:06}    1742 kubelet.go:2421] \"SyncLoop UPDATE\" source=\"api\" pods=[\"kube-system/coredns-{id:08x}-x2k4p\"]\n"
        ),
        n if n % 5 == 1 => format!(
            "time=\"2026-01-02T{clock}.{micro:06}Z\" level=info msg=\"StartContainer for \\\"{id:016x}{random:016x}\\\" returns successfully\"\n"
        ),
        n if n % 5 == 2 => format!(
            "2026-01-02 {clock},{:03} - util.py[DEBUG]: Writing to /var/lib/cloud/instances/i-{id:08x}/sem/config_ssh - wb: [644] 25 bytes\n",
            micro % 1000
        ),
        n if n % 5 == 3 => format!(
            "Jan 02 {clock} n1 kernel: [{:>5}.{micro:06}] IPv6: ADDRCONF(NETDEV_CHANGE): veth{id:08x}: link becomes ready\n",
            line / 100 % 99_999
        ),
        _ => format!(
            "{{\"level\":\"info\",\"ts\":\"2026-01-02T{clock}.{micro:06}Z\",\"caller\":\"mvcc/kvstore_compaction.go:66\",\"msg\":\"finished scheduled compaction\",\"compact-revision\":{id},\"took\":\"12.{}ms\"}}\n",
            id % 1000
        ),
    }
}
