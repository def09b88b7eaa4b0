//! Benchmark of exporting 1 GiB of journal, in journald's files of 128 MiB, against journalctl.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{Bench, Better, measure};
use crate::shell;

const SIZE: u64 = 1 << 30;
const SPEED_GOAL: f64 = 10.0;
/// Independent of the journal's size.
const MEMORY_BAR_MIB: f64 = 64.0;

const WRITER: &str = "/usr/lib/systemd/systemd-journal-remote";
/// Number of entries per batch; the size is checked after each batch.
const BATCH: u64 = 20_000;
const START: u64 = 1_700_000_000_000_000;

pub(super) fn run(bench: &Bench) -> Result<()> {
    let build =
        ["build", "--release", "--locked", "--quiet", "--package", "landfall-journal", "--example", "export"];
    shell::run(shell::cargo().args(build))?;
    let binary = shell::root().join("target/release/examples/export");
    let folder = journal(&landfall_testkit::cache_dir()?.join("bench"))?;

    let ours = || measure::seconds(Command::new(&binary).arg(&folder), &[0]);
    let peer = || {
        measure::seconds(
            Command::new("journalctl").args(["--quiet", "--output=export", "--directory"]).arg(&folder),
            &[0],
        )
    };
    // The first read fills the file cache for both.
    ours()?;
    bench.compare("export-1GiB", "s", Better::Lower, SPEED_GOAL, "journalctl -o export", ours, peer)?;
    let memory = || measure::peak_mib(Command::new(&binary).arg(&folder), &[0]);
    bench.compare("peak-memory", "MiB", Better::Lower, 1.0, "bar", memory, || Ok(MEMORY_BAR_MIB))
}

/// Creates the journal once with systemd's own writer.
fn journal(bench: &Path) -> Result<PathBuf> {
    let folder = bench.join("journal-1");
    if folder.is_dir() {
        return Ok(folder);
    }
    let partial = bench.join("journal-1.partial");
    if partial.is_dir() {
        fs::remove_dir_all(&partial).context("remove a journal that was not finished")?;
    }
    fs::create_dir_all(&partial).context("make the bench folder")?;
    let mut writer = Command::new(WRITER)
        .arg("--split-mode=none")
        .arg(format!("--output={}", partial.join("node.journal").display()))
        .arg("-")
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("start `systemd-journal-remote`; hint: `cargo xtask testbed` installs it")?;
    let mut pipe = writer.stdin.take().context("open a pipe to the writer")?;
    let mut node = Node { random: 0x9e37_79b9_7f4a_7c15, time: START };
    let mut number = 0;
    while size_of(&partial)? < SIZE {
        let mut stream = String::new();
        for _ in 0..BATCH {
            node.push_entry(&mut stream, number);
            number += 1;
        }
        pipe.write_all(stream.as_bytes()).context("write entries")?;
    }
    drop(pipe);
    ensure!(writer.wait()?.success(), "`systemd-journal-remote` failed");
    fs::rename(&partial, &folder)?;
    Ok(folder)
}

fn size_of(folder: &Path) -> Result<u64> {
    let mut size = 0;
    for entry in fs::read_dir(folder)? {
        size += entry?.metadata()?.len();
    }
    Ok(size)
}

/// A node that writes entries with twenty fields, most of which repeat, and a unique message. Deterministic.
struct Node {
    random: u64,
    time: u64,
}

// === impl Node ===

impl Node {
    /// xorshift: deterministic pseudo-random numbers.
    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % limit
    }

    fn push_entry(&mut self, out: &mut String, number: u64) {
        const SERVICES: [&str; 8] =
            ["kubelet", "containerd", "etcd", "sshd", "cloud-init", "chronyd", "systemd-networkd", "auditd"];
        const WORDS: [&str; 16] = [
            "pod",
            "sandbox",
            "failed",
            "to",
            "pull",
            "image",
            "connection",
            "refused",
            "SyncLoop",
            "UPDATE",
            "volume",
            "mounted",
            "deadline",
            "exceeded",
            "probe",
            "succeeded",
        ];
        self.time += 1 + self.below(2000);
        let which = self.below(8);
        let service = SERVICES[usize::try_from(which).unwrap_or(0)];
        let (time, uptime) = (self.time, self.time - START + 1_000_000);
        let (priority, pid) = (3 + self.below(4), 700 + which * 10 + self.below(3));
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "__REALTIME_TIMESTAMP={time}\n__MONOTONIC_TIMESTAMP={uptime}\n\
             _BOOT_ID=5c1c1bd8d7a24a4b8ee0c1a6d1f1f7aa\n_TRANSPORT=stdout\nPRIORITY={priority}\nSYSLOG_FACILITY=3\n\
             SYSLOG_IDENTIFIER={service}\n_PID={pid}\n_UID=0\n_GID=0\n_COMM={service}\n_EXE=/usr/bin/{service}\n\
             _CMDLINE=/usr/bin/{service} --config=/etc/{service}/config.yaml --v=2\n_CAP_EFFECTIVE=1ffffffffff\n\
             _SELINUX_CONTEXT=unconfined\n_SYSTEMD_CGROUP=/system.slice/{service}.service\n\
             _SYSTEMD_UNIT={service}.service\n_SYSTEMD_SLICE=system.slice\n\
             _SYSTEMD_INVOCATION_ID={which:032x}\n_STREAM_ID={pid:032x}\n\
             _MACHINE_ID=0123456789abcdef0123456789abcdef\n_HOSTNAME=node-17.example.net\nMESSAGE={number}"
        );
        for _ in 0..4 + self.below(20) {
            out.push(' ');
            out.push_str(WORDS[usize::try_from(self.below(16)).unwrap_or(0)]);
        }
        out.push_str("\n\n");
    }
}
