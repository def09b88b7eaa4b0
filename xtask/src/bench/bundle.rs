//! Benchmark of bundling 1 GiB of container logs, against tar with a common compressor.
//!
//! Ours also redacts secrets and hashes each file; the peer only copies.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{Bench, Better, measure, redact};

/// File size of a node: the maximum that a bundle takes per container.
const FILE: usize = 4 << 20;
/// Names for the same content: each is read and compressed, but it is stored once.
const NAMES_FOR_SPEED: usize = 4;
const NAMES_FOR_MEMORY: usize = 16;
/// Speed goal: not slower than copying, although each byte is inspected.
const SPEED_GOAL: f64 = 1.0;
const MEMORY_BAR_MIB: f64 = 64.0;

/// A slow machine may exceed the one-minute limit of a bundle for containers.
const PATIENT: &str = "[[item]]\nid = \"container-logs\"\nto = \"bootstrap/containers/\"\nseconds = 3600\nmebibytes = 5\n\
                       source.files = { paths = [\"/var/log/containers/*.log\"], lines = \"plain\" }\n";

pub(super) fn run(bench: &Bench) -> Result<()> {
    let binary = bench.program()?;
    let folder = landfall_testkit::cache_dir()?.join("bench");
    let logs = redact::ordinary_logs(&folder)?;
    let bundle = |root: &Path, format: &str| {
        let mut command = Command::new(&binary);
        command.args(["agent", "--once", "--format", format, "-o", "-", "--root"]).arg(root);
        command.stderr(std::process::Stdio::null());
        command
    };
    let tar = |root: &Path, packer: &str| {
        let mut command = Command::new("sh");
        let script = format!("tar --create --hard-dereference -C \"$0\" . | {packer}");
        command.args(["-euc", &script]).arg(root);
        command
    };
    for (metric, names, format, packer) in
        [("zstd-1GiB", NAMES_FOR_SPEED, "zstd", "zstd -3 -T0"), ("gzip-256MiB", 1, "gzip", "gzip -6")]
    {
        let root = machine(&folder, &logs, names)?;
        // The first read fills the file cache for both.
        measure::seconds(&mut tar(&root, "cat"), &[0])?;
        let ours = || measure::seconds(&mut bundle(&root, format), &[0]);
        let peer = || measure::seconds(&mut tar(&root, packer), &[0]);
        bench.compare(metric, "s", Better::Lower, SPEED_GOAL, &format!("tar | {packer}"), ours, peer)?;
    }
    let large = machine(&folder, &logs, NAMES_FOR_MEMORY)?;
    let memory = || measure::peak_mib(&bundle(&large, "zstd"), &[0]);
    bench.compare("peak-memory-4GiB", "MiB", Better::Lower, 1.0, "bar", memory, || Ok(MEMORY_BAR_MIB))
}

/// Creates a disk with the log in files, each under several names.
fn machine(folder: &Path, logs: &Path, names: usize) -> Result<PathBuf> {
    let root = folder.join(format!("bundle-{names}"));
    if root.is_dir() {
        return Ok(root);
    }
    let partial = folder.join(format!("bundle-{names}.partial"));
    if partial.is_dir() {
        fs::remove_dir_all(&partial).context("remove an unfinished bench folder")?;
    }
    let containers = partial.join("var/log/containers");
    fs::create_dir_all(&containers).context("make the bench folder")?;
    let drop_ins = partial.join("etc/landfall/gather.d");
    fs::create_dir_all(&drop_ins)?;
    fs::write(drop_ins.join("bench.toml"), PATIENT)?;
    let content = fs::read(logs).context("read the log")?;
    for (number, piece) in content.chunks(FILE).enumerate() {
        let first = containers.join(format!("pod-{number:03}-00.log"));
        fs::write(&first, piece).context("write a log")?;
        for name in 1..names {
            fs::hard_link(&first, containers.join(format!("pod-{number:03}-{name:02}.log")))?;
        }
    }
    fs::rename(&partial, &root)?;
    Ok(root)
}
