//! Ordinary logs through the redactor, against ripgrep replacing matches of the same rules.
//!
//! Both run on one thread, and what counts is the processor time they take, so that neighbours do not.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{Bench, Better};
use crate::shell;

const SIZE: usize = 256 << 20;
/// At least as fast as the fastest search tool of the field, which looks for no known values and into no encodings.
const PEER_GOAL: f64 = 1.0;
/// Megabytes a second on one core, as issue and manual promise.
const BAR: f64 = 300.0;
/// Known values of an ordinary node: tokens, keys, passwords.
const KNOWN_VALUES: u64 = 20;

pub(super) fn run(bench: &Bench) -> Result<()> {
    let mut build = shell::cargo();
    build.args([
        "build",
        "--release",
        "--locked",
        "--quiet",
        "--package",
        "landfall-redact",
        "--example",
        "redact",
    ]);
    shell::run(&mut build)?;
    let binary = shell::root().join("target/release/examples/redact");
    let folder = landfall_testkit::cache_dir()?.join("bench");
    let logs = ordinary_logs(&folder)?;
    let known = folder.join("redact-known.txt");
    let values =
        (1..=KNOWN_VALUES).map(|i| format!("known-Value-{:016x}\n", i.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    fs::write(&known, values.collect::<Vec<_>>().concat())?;
    let patterns = folder.join("redact-patterns.txt");
    let rules =
        fs::read_to_string(shell::root().join("crates/redact/redact.toml")).context("read the rules")?;
    fs::write(&patterns, peer_patterns(&rules))?;

    let ours = || speed(Command::new(&binary).arg("lines").arg(&known), &logs);
    let peer = || {
        let mut rg = Command::new("rg");
        rg.args(["--no-config", "--threads=1", "--passthru", "--text", "--replace", "***", "--file"])
            .arg(&patterns)
            .arg("-");
        speed(&mut rg, &logs)
    };
    bench.compare(
        "ordinary-logs",
        "MB/s",
        Better::Higher,
        PEER_GOAL,
        "ripgrep --passthru --replace",
        ours,
        peer,
    )?;
    bench.compare("ordinary-logs-bar", "MB/s", Better::Higher, 1.0, "bar", ours, || Ok(BAR))
}

/// Megabytes per second of processor time, with the output thrown away.
fn speed(command: &mut Command, input: &Path) -> Result<f64> {
    let mut timed = Command::new("/usr/bin/time");
    timed.args(["-f", "%U %S"]).arg(command.get_program()).args(command.get_args());
    timed.stdin(File::open(input).context("open the log")?).stdout(Stdio::null());
    let output = timed.output().context("start `/usr/bin/time`; hint: install the package `time`")?;
    ensure!(output.status.success(), "{} ended with {}", command.get_program().display(), output.status);
    let text = String::from_utf8_lossy(&output.stderr);
    let times = text.lines().last().unwrap_or_default().split(' ').map(str::parse::<f64>);
    let seconds: f64 = times.sum::<Result<f64, _>>().context("read the processor time")?;
    let megabytes = fs::metadata(input)?.len() / 1_000_000;
    Ok(f64::from(u32::try_from(megabytes)?) / seconds)
}

/// The rules as patterns of ripgrep: the patterns themselves, names of fields with a value behind them, and the tokens
/// and keys that the redactor has code for.
fn peer_patterns(rules: &str) -> String {
    let mut patterns =
        String::from("\\b[a-z0-9]{6}\\.[a-z0-9]{16}\\b\n-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----\n");
    for line in rules.lines() {
        if let Some(regex) = line.strip_prefix("regex = ") {
            let regex = regex.trim_matches('\'').replace("?P<s>", "?:").replace("?P<t>", "?:");
            patterns.push_str(&regex);
            patterns.push('\n');
        } else if let Some(names) = line.strip_prefix("names = [") {
            for name in names.split('"').skip(1).step_by(2) {
                let _ = writeln!(
                    patterns,
                    "(?i){}[\"']?\\s*[:=]\\s*[\"']?[^\\s\"',;]{{6,}}",
                    name.replace('.', "\\.")
                );
            }
        }
    }
    patterns
}

/// Logs of a node that joins: kubelet, containerd, systemd, etcd, kernel, cloud-init, and a token in one of two thousand
/// lines. Made once; the same bytes every time.
pub(super) fn ordinary_logs(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("redact-1.log");
    if fs::metadata(&path).is_ok_and(|file| file.len() >= SIZE as u64) {
        return Ok(path);
    }
    fs::create_dir_all(folder).context("make the bench folder")?;
    let mut logs = String::with_capacity(SIZE + 1024);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut line = 0_u64;
    while logs.len() < SIZE {
        // xorshift: numbers that look random and are the same on every machine.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ordinary_line(&mut logs, line, state);
        line += 1;
    }
    let partial = folder.join("redact-1.partial");
    fs::write(&partial, logs).context("write the log")?;
    fs::rename(&partial, &path)?;
    Ok(path)
}

fn ordinary_line(logs: &mut String, line: u64, random: u64) {
    let clock = format!("{:02}:{:02}:{:02}", line / 360_000 % 24, line / 6000 % 60, line / 100 % 60);
    let micro = random % 1_000_000;
    let id = |salt: u64| {
        let part = |i: u64| (random ^ salt.wrapping_mul(i)).wrapping_mul(0x2545_f491_4f6c_dd1d);
        format!("{:016x}{:016x}{:016x}{:016x}", part(1), part(3), part(5), part(7))
    };
    let written = match random >> 32 & 2047 {
        0 => writeln!(
            logs,
            "Jan 02 {clock} n1 cloud-init[812]: + kubeadm join 10.0.0.1:6443 --token abcdef.{} --discovery-token-ca-cert-hash sha256:{}",
            &id(9)[..16],
            id(11)
        ),
        n if n % 20 < 5 => writeln!(
            logs,
            "Jan 02 {clock} n1 kubelet[1742]: I0102 {clock}.{micro:06}    1742 kubelet.go:2457] \"SyncLoop (PLEG): event for pod\" pod=\"kube-system/coredns-{}-{}\" event={{\"ID\":\"{}-4b1c-8c0d-{}\",\"Type\":\"ContainerStarted\",\"Data\":\"{}\"}}",
            &id(1)[..10],
            &id(2)[..5],
            &id(3)[..8],
            &id(4)[..12],
            id(5)
        ),
        n if n % 20 < 9 => writeln!(
            logs,
            "Jan 02 {clock} n1 containerd[999]: time=\"2026-01-02T{clock}.{micro:06}Z\" level=info msg=\"StartContainer for \\\"{}\\\" returns successfully\"",
            id(6)
        ),
        n if n % 20 < 10 => writeln!(
            logs,
            "Jan 02 {clock} n1 kubelet[1742]: E0102 {clock}.{micro:06}    1742 reflector.go:158] \"Unhandled Error\" err=\"failed to list *v1.Node: Get \\\"https://api.c1.example:6443/api/v1/nodes?fieldSelector=metadata.name%3Dn1&limit=500&resourceVersion=0\\\": dial tcp 10.0.0.{}:6443: connect: connection refused\"",
            micro % 250
        ),
        n if n % 20 < 13 => {
            writeln!(
                logs,
                "Jan 02 {clock} n1 systemd[1]: Started cri-containerd-{}.scope - libcontainer container {}.",
                id(7),
                id(8)
            )
        }
        n if n % 20 < 15 => writeln!(
            logs,
            "{{\"level\":\"info\",\"ts\":\"2026-01-02T{clock}.{micro:06}Z\",\"caller\":\"mvcc/index.go:214\",\"msg\":\"compact tree index\",\"revision\":{line},\"took\":\"1.{micro}ms\"}}"
        ),
        n if n % 20 < 17 => writeln!(
            logs,
            "Jan 02 {clock} n1 kernel: [{line}.{micro:06}] IPv6: ADDRCONF(NETDEV_CHANGE): veth{}: link becomes ready",
            &id(9)[..8]
        ),
        _ => writeln!(
            logs,
            "Jan 02 {clock} n1 cloud-init[812]: Get:{line} http://archive.ubuntu.com/ubuntu noble-updates/main amd64 libssl3t64 amd64 3.0.13-0ubuntu3.{} [1,942 kB]",
            micro % 9
        ),
    };
    written.expect("a string takes any text");
}
