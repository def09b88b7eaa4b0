//! A node's disk: the shared image with the node's own changes in an overlay.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::Binary;

/// Binaries built from their Go modules, mounted over the image's `/usr/bin`.
pub(super) const PROGRAMS: [Binary; 6] = [
    Binary::Kubelet,
    Binary::Kubeadm,
    Binary::Kubectl,
    Binary::Containerd,
    Binary::ContainerdShim,
    Binary::Ctr,
];

#[derive(Debug)]
pub(super) struct Disk {
    directory: PathBuf,
}

// === impl Disk ===

impl Disk {
    /// Determines the paths without mounting file systems.
    pub(super) fn of(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Returns the complete file system as seen from this machine, whether or not the node runs.
    pub(super) fn root(&self) -> PathBuf {
        self.directory.join("root")
    }

    pub(super) fn mount(&self, image: &Path) -> Result<()> {
        let folder = |name: &str| -> Result<PathBuf> {
            let path = self.directory.join(name);
            std::fs::create_dir_all(&path).with_context(|| format!("create `{}`", path.display()))?;
            // The topmost layer determines a directory's mode, including that of `/`.
            std::fs::set_permissions(&path, Permissions::from_mode(0o755))?;
            Ok(path)
        };
        let (programs, changes, work) = (folder("programs")?, folder("changes")?, folder("work")?);
        folder("programs/usr")?;
        let bin = folder("programs/usr/bin")?;
        for program in PROGRAMS {
            link_or_copy(&program.path()?, &bin.join(program.name()))?;
        }
        let root = folder("root")?;
        let layers = format!(
            "lowerdir={}:{},upperdir={},workdir={}",
            programs.display(),
            image.display(),
            changes.display(),
            work.display()
        );
        mount(&["-t", "overlay", "overlay", "-o", &layers, &root.to_string_lossy()])?;
        // containerd uses overlays for its containers, and an overlay cannot be on an overlay.
        let containerd = folder("root/var/lib/containerd")?;
        mount(&["--bind", &folder("containerd")?.to_string_lossy(), &containerd.to_string_lossy()])
    }

    pub(super) fn unmount(&self) -> Result<()> {
        let root = self.root();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("read the mounts")?;
        let mounted = |line: &str| line.split(' ').nth(4).is_some_and(|point| Path::new(point) == root);
        if !mounts.lines().any(mounted) {
            return Ok(());
        }
        let output = Command::new("umount").arg("--recursive").arg(&root).output().context("run `umount`")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "umount {}: {}", root.display(), errors.trim());
        Ok(())
    }
}

/// Creates a hard link; across file systems, a copy.
fn link_or_copy(from: &Path, to: &Path) -> Result<()> {
    if std::fs::hard_link(from, to).is_err() {
        std::fs::copy(from, to).with_context(|| format!("copy `{}`", from.display()))?;
    }
    Ok(())
}

fn mount(arguments: &[&str]) -> Result<()> {
    let output = Command::new("mount").args(arguments).output().context("run `mount`")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "mount {}: {}", arguments.join(" "), errors.trim());
    Ok(())
}
