//! CPU limit for a process, so that it is the bottleneck on a machine that it shares with the rest of the
//! benchmark.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Period of the limit: long enough for useful work, short enough not to appear as a pause.
const PERIOD_US: u32 = 20_000;
/// cgroup directories of the kernel's limits: the separate `cpu` controller, or the unified hierarchy.
const ALONE: &str = "/sys/fs/cgroup/cpu";
const TOGETHER: &str = "/sys/fs/cgroup";

/// A cgroup with a limit; removed when dropped, after its processes.
pub(super) struct Share {
    folder: PathBuf,
}

// === impl Share ===

impl Share {
    /// Creates a cgroup whose processes together get this many hundredths of one core.
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
        // An empty leftover group is harmless.
        let _ = fs::remove_dir(&self.folder);
    }
}
