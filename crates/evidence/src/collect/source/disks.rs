//! File system usage in bytes and inodes: either can be exhausted.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::Source;
use crate::collect::forbidden;
use crate::collect::host::Host;
use crate::collect::piece::Trouble;
use crate::collect::sink::{Sink, shown};

/// Maximum number of mounts queried. A node with many pods has thousands, mostly of the same file system.
const MAX_MOUNTS: usize = 200;

/// File systems without data, or with a server that may not respond.
const LEFT_OUT: [&str; 19] = [
    "autofs",
    "bpf",
    "binfmt_misc",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nfs",
    "nfs4",
    "nsfs",
    "proc",
    "securityfs",
    "sysfs",
    "tracefs",
];

pub(super) struct Disks {
    pub(super) to: String,
}

// === impl Disks ===

impl Source for Disks {
    fn collect(&self, host: &Host, sink: &mut Sink) -> Result<(), Trouble> {
        let fact = |path: &str| forbidden::fact(host, path);
        let mounts = fact("/proc/1/mounts").or_else(|| fact("/proc/mounts")).unwrap_or_default();
        let mut text = String::from("Filesystem Type Size Used Avail Use% Inodes IFree IUse% Mounted on\n");
        let mut seen = BTreeSet::new();
        for mount in mounts.lines().chain([". / unknown"]).take(MAX_MOUNTS) {
            let mut words = mount.split(' ');
            let (Some(device), Some(place), Some(kind)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            if LEFT_OUT.contains(&kind)
                || place.contains("/kubelet/pods/")
                || place.contains("/containerd/io")
            {
                continue;
            }
            sink.time_left()?;
            // The kernel escapes spaces in octal.
            let place = place.replace("\\040", " ");
            let Ok(space) = host.space(&place) else { continue };
            if !seen.insert((space.f_fsid, place.clone())) || space.f_blocks == 0 {
                continue;
            }
            // The root file system is already listed under its own name.
            if device == "." && seen.iter().filter(|(_, seen)| seen == "/").count() > 1 {
                continue;
            }
            let (size, free) = (space.f_blocks * space.f_frsize, space.f_bfree * space.f_frsize);
            let available = space.f_bavail * space.f_frsize;
            let (inodes, inodes_free) = (space.f_files, space.f_ffree);
            let (device, place) = (shown(device), shown(&place));
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{device} {kind} {size} {} {available} {} {inodes} {inodes_free} {} {place}",
                size - free,
                percent(size - free, size - free + available),
                percent(inodes - inodes_free.min(inodes), inodes),
            );
        }
        sink.text(&self.to, "statvfs", &text);
        Ok(())
    }
}

/// Rounds up like `df`: 99.1% is effectively full.
fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        "-".to_owned()
    } else {
        format!("{}%", (u128::from(part) * 100).div_ceil(u128::from(whole)))
    }
}
