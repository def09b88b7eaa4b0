//! Benchmark of redacting ordinary logs, against ripgrep replacing matches of the same rules.
//!
//! Both run on one thread. The result is CPU time, so that other processes do not affect it.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::{Bench, Better};
use crate::shell;

const SIZE: usize = 256 << 20;
/// At least as fast as the fastest common search tool, which searches no known values and decodes nothing.
const PEER_GOAL: f64 = 1.0;
/// Megabytes per second on one core, as documented.
const BAR: f64 = 300.0;
/// Number of known values on an ordinary node: tokens, keys, passwords.
const KNOWN_VALUES: u64 = 20;

/// The parts of the rules that ripgrep also searches for.
#[derive(Deserialize)]
struct PeerRules {
    pattern: Vec<PeerPattern>,
    field: Vec<PeerField>,
}

#[derive(Deserialize)]
struct PeerPattern {
    regex: String,
}

#[derive(Deserialize)]
struct PeerField {
    names: Vec<String>,
}

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
    fs::write(&patterns, peer_patterns(&rules)?)?;

    let ours_on = |format: &str, input: &Path| speed(Command::new(&binary).arg(format).arg(&known), input);
    let ours = || ours_on("lines", &logs);
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
    bench.compare("ordinary-logs-bar", "MB/s", Better::Higher, 1.0, "bar", ours, || Ok(BAR))?;
    for (metric, format, frame) in [
        ("container-logs-bar", "cri", container_frame as fn(&mut Vec<u8>, u64, &str)),
        ("journal-export-bar", "journal-export", journal_frame),
    ] {
        let input = framed_logs(&folder, &logs, format, frame)?;
        let ours = || ours_on(format, &input);
        bench.compare(metric, "MB/s", Better::Higher, 1.0, "bar", ours, || Ok(BAR))?;
    }
    Ok(())
}

/// Creates ordinary logs in the frames of a format, with the same total size.
fn framed_logs(
    folder: &Path,
    logs: &Path,
    format: &str,
    frame: fn(&mut Vec<u8>, u64, &str),
) -> Result<PathBuf> {
    let path = folder.join(format!("redact-1.{format}"));
    if fs::metadata(&path).is_ok_and(|file| file.len() >= SIZE as u64) {
        return Ok(path);
    }
    let text = fs::read_to_string(logs).context("read the log")?;
    let mut framed = Vec::with_capacity(SIZE + 4096);
    for (number, line) in (0..).zip(text.lines()) {
        frame(&mut framed, number, line);
        if framed.len() >= SIZE {
            break;
        }
    }
    let partial = folder.join(format!("redact-1.{format}.partial"));
    fs::write(&partial, framed).context("write the log")?;
    fs::rename(&partial, &path)?;
    Ok(path)
}

/// Writes a line in the format of container runtimes.
fn container_frame(out: &mut Vec<u8>, number: u64, line: &str) {
    let stream = if number.is_multiple_of(7) { "stdout" } else { "stderr" };
    let (minute, second) = (number / 6000 % 60, number / 100 % 60);
    let nano = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1_000_000_000;
    let frame = format!("2026-01-02T03:{minute:02}:{second:02}.{nano:09}Z {stream} F {line}\n");
    out.extend_from_slice(frame.as_bytes());
}

/// Writes a line in journal export format, with journald's fields for service output.
fn journal_frame(out: &mut Vec<u8>, number: u64, line: &str) {
    let mut words = line.splitn(6, ' ').skip(4);
    let (unit, message) = match (words.next(), words.next()) {
        (Some(program), Some(message)) if !line.starts_with('{') => {
            (program.split(['[', ':']).next().unwrap_or(program), message)
        }
        _ => ("etcd", line),
    };
    let (time, uptime) = (1_767_322_800_000_000 + number * 9973, 80_000_000 + number * 9973);
    let random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let invocation = format!("{:032x}", unit.len() * 0x0123_4567_89ab);
    let entry = format!(
        "__CURSOR=s=0a1b2c3d4e5f60718293a4b5c6d7e8f9;i={number:x};b=4c6e2b0f7a9d4f6c8e1a2b3c4d5e6f70;m={uptime:x};t={time:x};x={random:x}\n\
         __REALTIME_TIMESTAMP={time}\n__MONOTONIC_TIMESTAMP={uptime}\n_BOOT_ID=4c6e2b0f7a9d4f6c8e1a2b3c4d5e6f70\n\
         _MACHINE_ID=9f8e7d6c5b4a39281706f5e4d3c2b1a0\n_HOSTNAME=n1.c1.example\n_TRANSPORT=stdout\nPRIORITY=6\n\
         SYSLOG_FACILITY=3\n_UID=0\n_GID=0\n_SELINUX_CONTEXT=unconfined\n_SYSTEMD_SLICE=system.slice\n\
         _CAP_EFFECTIVE=1ffffffffff\nSYSLOG_IDENTIFIER={unit}\n_PID=1742\n_COMM={unit}\n_EXE=/usr/bin/{unit}\n\
         _CMDLINE=/usr/bin/{unit} --config=/var/lib/{unit}/config.yaml --v=2\n\
         _SYSTEMD_CGROUP=/system.slice/{unit}.service\n_SYSTEMD_UNIT={unit}.service\n\
         _SYSTEMD_INVOCATION_ID={invocation}\n_STREAM_ID={invocation}\nMESSAGE={message}\n\n"
    );
    out.extend_from_slice(entry.as_bytes());
}

/// Returns megabytes per second of CPU time, with the output discarded.
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

/// Converts the rules to ripgrep's format, one expression per line of a file.
fn peer_patterns(rules: &str) -> Result<String> {
    let mut patterns =
        String::from("\\b[a-z0-9]{6}\\.[a-z0-9]{16}\\b\n-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----\n");
    let rules: PeerRules = toml::from_str(rules).context("read the rules")?;
    for pattern in rules.pattern {
        // Multi-line expressions ignore spaces, except for escaped ones.
        let regex = pattern.regex.replace("\\ ", "\\x20").replace("?P<s>", "?:").replace("?P<t>", "?:");
        let lines = regex.lines().map(|line| line.split("  # ").next().unwrap_or(line).trim());
        // In a separate group, because ripgrep joins the lines and flags apply up to the end of a group.
        let _ = writeln!(patterns, "(?:{})", lines.collect::<String>());
    }
    for name in rules.field.into_iter().flat_map(|field| field.names) {
        let name = name.replace('.', "\\.");
        let _ = writeln!(patterns, "(?i){name}[\"']?\\s*[:=]\\s*[\"']?[^\\s\"',;]{{6,}}");
    }
    Ok(patterns)
}

/// Creates logs of a joining node: kubelet, containerd, systemd, etcd, kernel, cloud-init, with a token in
/// one of 2,000 lines. Created once, with identical bytes in each run.
pub(crate) fn ordinary_logs(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("redact-1.log");
    if fs::metadata(&path).is_ok_and(|file| file.len() >= SIZE as u64) {
        return Ok(path);
    }
    fs::create_dir_all(folder).context("make the bench folder")?;
    let mut logs = String::with_capacity(SIZE + 1024);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut line = 0_u64;
    while logs.len() < SIZE {
        // xorshift: deterministic pseudo-random numbers.
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
