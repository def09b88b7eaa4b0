//! Separate cgroups for each node, so that two kubelets do not share `kubepods` and no process outlives its
//! node.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::eventually;

/// Killed processes end in milliseconds; on a busy machine, the last one of a node's namespaces takes longer.
const DEATH_LIMIT: Duration = Duration::from_secs(20);

/// Creates the group `name` in each hierarchy of this machine.
///
/// Version 1: below the group of this process, so that external limits still apply. Version 2: at the top,
/// because only the top group may have both processes and children with controllers.
pub(super) fn create(name: &str) -> Result<Vec<PathBuf>> {
    let memberships =
        std::fs::read_to_string("/proc/self/cgroup").context("read this process's control groups")?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("read the mounts")?;
    let mut groups = Vec::new();
    for (mount, parent) in hierarchies(&memberships, &mounts) {
        let group = parent.join(name);
        if let Err(error) = std::fs::create_dir(&group)
            && error.kind() != ErrorKind::AlreadyExists
        {
            return Err(error).with_context(|| format!("create the control group `{}`", group.display()));
        }
        if parent.join("cpuset.cpus").is_file() && mount != Version::Two {
            // A new version 1 cpuset is empty and admits no process until it is configured.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let value = std::fs::read(parent.join(file)).with_context(|| format!("read `{file}`"))?;
                std::fs::write(group.join(file), value).with_context(|| format!("write `{file}`"))?;
            }
        }
        groups.push(group);
    }
    Ok(groups)
}

/// Returns the processes in these groups and their children.
pub(super) fn processes(groups: &[PathBuf]) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    for group in groups {
        for directory in tree(group) {
            // A group that was just removed has no processes.
            let members = std::fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
            found.extend(members.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|id| *id > 0));
        }
    }
    found
}

/// Kills all processes in these groups and waits for their end.
pub(super) fn kill(groups: &[PathBuf]) -> Result<()> {
    eventually("the end of a node's processes", DEATH_LIMIT, || {
        let left = processes(groups);
        for id in left.iter().filter_map(|id| Pid::from_raw(*id)) {
            // The process may have ended already.
            let _ = kill_process(id, Signal::KILL);
        }
        left.is_empty().then_some(())
    })
}

/// Removes empty groups with their children.
pub(super) fn remove(groups: &[PathBuf]) -> Result<()> {
    for group in groups {
        let what = format!("the control group `{}` to be removable", group.display());
        // The kernel reports a group as busy for a moment after its last process ended.
        eventually(&what, DEATH_LIMIT, || {
            for directory in tree(group).iter().rev() {
                let _ = std::fs::remove_dir(directory);
            }
            (!group.exists()).then_some(())
        })?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Returns version and parent directory for each mounted hierarchy.
fn hierarchies(memberships: &str, mounts: &str) -> Vec<(Version, PathBuf)> {
    let mut found = Vec::new();
    for line in memberships.lines() {
        // `4:memory:/path`, `9:name=systemd:/path`, `0::/path`
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let version = if controllers.is_empty() { Version::Two } else { Version::One };
        let Some(mount) = mount_point(mounts, version, controllers) else { continue };
        match version {
            Version::One => found.push((version, mount.join(path.trim_start_matches('/')))),
            Version::Two => found.push((version, mount)),
        }
    }
    found
}

fn mount_point(mounts: &str, version: Version, controllers: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        // `36 35 0:32 / /sys/fs/cgroup/memory rw,relatime shared:1 - cgroup cgroup rw,memory`
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1)?);
        let matches = match version {
            Version::One => {
                let mounted: BTreeSet<&str> = options.split(',').collect();
                kind == "cgroup" && controllers.split(',').all(|controller| mounted.contains(controller))
            }
            Version::Two => kind == "cgroup2",
        };
        matches.then(|| left.split(' ').nth(4).map(PathBuf::from))?
    })
}

/// Returns the directory and its subdirectories, parents first.
fn tree(top: &Path) -> Vec<PathBuf> {
    let mut found = vec![top.to_owned()];
    let mut next = 0;
    while let Some(directory) = found.get(next).cloned() {
        next += 1;
        let entries = std::fs::read_dir(&directory).into_iter().flatten().flatten();
        found.extend(
            entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|e| e.path()),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
24 23 0:22 / /sys rw - sysfs sysfs rw
30 24 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:2 - cgroup cgroup rw,cpu,cpuacct
31 24 0:27 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
32 24 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn version_1_groups_are_made_below_our_own_and_version_2_groups_at_the_top() {
        let memberships = "9:name=systemd:/session\n5:devices:/\n1:cpu,cpuacct:/\n0::/session\n";
        let expected = [
            (Version::One, PathBuf::from("/sys/fs/cgroup/systemd/session")),
            (Version::One, PathBuf::from("/sys/fs/cgroup/cpu,cpuacct/")),
            (Version::Two, PathBuf::from("/sys/fs/cgroup/unified")),
        ];
        assert_eq!(hierarchies(memberships, HYBRID), expected);
    }

    #[test]
    fn a_machine_with_version_2_alone_has_one_hierarchy() {
        let mounts = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";
        let expected = [(Version::Two, PathBuf::from("/sys/fs/cgroup"))];
        assert_eq!(hierarchies("0::/user.slice/session.scope\n", mounts), expected);
    }
}
