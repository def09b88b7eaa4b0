//! A part of a core for a process, so that it is the bottleneck on a machine it shares with everything it is measured with.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Over how long the part is counted: long enough to be worth a turn, short enough not to be seen as a pause.
const PERIOD_US: u32 = 20_000;
/// Where the kernel keeps its limits: the `cpu` controller of its own tree, or all of them in one.
const ALONE: &str = "/sys/fs/cgroup/cpu";
const TOGETHER: &str = "/sys/fs/cgroup";

/// A control group with a limit; removed when dropped, after its processes.
pub(super) struct Share {
    folder: PathBuf,
}

// === impl Share ===

impl Share {
    /// Room for processes that get this many hundredths of one core together.
    pub(super) fn of_a_core(name: &str, hundredths: u32) -> Result<Self> {
        let quota = PERIOD_US / 100 * hundredths;
        let group = format!("landfall-bench-{}-{name}", std::process::id());
        if Path::new(ALONE).join("cpu.cfs_quota_us").exists() {
            let share = Self::make(Path::new(ALONE).join(group))?;
            share.set("cpu.cfs_period_us", &PERIOD_US.to_string())?;
            share.set("cpu.cfs_quota_us", &quota.to_string())?;
            return Ok(share);
        }
        let given = fs::read_to_string(Path::new(TOGETHER).join("cgroup.subtree_control"));
        if !given.is_ok_and(|given| given.split_whitespace().any(|controller| controller == "cpu")) {
            bail!("there is no control group that limits processors");
        }
        let share = Self::make(Path::new(TOGETHER).join(group))?;
        share.set("cpu.max", &format!("{quota} {PERIOD_US}"))?;
        Ok(share)
    }

    fn make(folder: PathBuf) -> Result<Self> {
        fs::create_dir(&folder).context("make a control group")?;
        Ok(Self { folder })
    }

    pub(super) fn take_in(&self, process: u32) -> Result<()> {
        self.set("cgroup.procs", &process.to_string())
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        let path = self.folder.join(file);
        fs::write(&path, value).with_context(|| format!("write `{}`", path.display()))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // An empty one that stays does nothing.
        let _ = fs::remove_dir(&self.folder);
    }
}
