//! The root file system shared by all nodes, built once and cached.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::cache::cache_dir;

/// A node's only container image: a busybox that waits. Pods must set `imagePullPolicy: Never`.
pub const POD_IMAGE: &str = "testbed.invalid/pause:1";

const SUITE: &str = "bookworm";
const PACKAGES: &str = include_str!("../../../../testbed/node/packages.txt");
const UNITS: &[&str] =
    &["containerd.service", "kubelet.service", "testbed-kernel.service", "testbed-images.service"];
/// Units enabled by packages that cost a second of each boot or, for the login prompt, clutter the console
/// log.
const MASKED_UNITS: &[&str] = &[
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "console-getty.service",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
];
/// Units started only by tests that need them.
const DISABLED_UNITS: &[&str] = &["ssh.service"];
const MAKE_PAUSE_IMAGE: &str = "usr/local/libexec/testbed/make-pause-image";

/// Files missing from the packages: path below the root, mode, content.
const FILES: &[(&str, u32, &str)] = &[
    ("etc/cloud/cloud.cfg.d/90-testbed.cfg", 0o644, include_str!("../../../../testbed/node/90-testbed.cfg")),
    ("etc/cni/net.d/10-pods.conflist", 0o644, include_str!("../../../../testbed/node/10-pods.conflist")),
    ("etc/containerd/config.toml", 0o644, include_str!("../../../../testbed/node/containerd.toml")),
    ("etc/systemd/system.conf.d/testbed.conf", 0o644, include_str!("../../../../testbed/node/system.conf")),
    (
        "etc/systemd/system/cloud-.service.d/testbed.conf",
        0o644,
        include_str!("../../../../testbed/node/cloud-init.conf"),
    ),
    (
        "etc/systemd/system/containerd.service",
        0o644,
        include_str!("../../../../testbed/node/containerd.service"),
    ),
    ("etc/systemd/system/kubelet.service", 0o644, include_str!("../../../../testbed/node/kubelet.service")),
    (
        "etc/systemd/system/kubelet.service.d/10-kubeadm.conf",
        0o644,
        include_str!("../../../../testbed/node/10-kubeadm.conf"),
    ),
    (
        "etc/systemd/system/testbed-kernel.service",
        0o644,
        include_str!("../../../../testbed/node/testbed-kernel.service"),
    ),
    (
        "etc/systemd/system/testbed-images.service",
        0o644,
        include_str!("../../../../testbed/node/testbed-images.service"),
    ),
    (
        "usr/local/libexec/testbed/own-kernel-interface",
        0o755,
        include_str!("../../../../testbed/node/own-kernel-interface"),
    ),
    (MAKE_PAUSE_IMAGE, 0o755, include_str!("../../../../testbed/node/make-pause-image")),
];

/// Returns the directory of the root image, and builds it if this machine does not have it for this recipe.
pub fn node_image() -> Result<PathBuf> {
    let cache = cache_dir()?;
    let image = cache.join(format!("node-{}", fingerprint()));
    if image.is_dir() {
        return Ok(image);
    }
    std::fs::create_dir_all(&cache).with_context(|| format!("create `{}`", cache.display()))?;
    let lock = File::create(cache.join("node.lock")).context("create the lock of the node image")?;
    lock.lock().context("wait for the lock of the node image")?;
    // Another process may have built it meanwhile.
    if image.is_dir() {
        return Ok(image);
    }
    let partial = cache.join("node.partial");
    if partial.exists() {
        std::fs::remove_dir_all(&partial).context("remove an interrupted build of the node image")?;
    }
    build(&partial)?;
    std::fs::rename(partial.join("root"), &image)
        .with_context(|| format!("put `{}` in place", image.display()))?;
    std::fs::remove_dir_all(&partial).context("remove the work folder of the node image")?;
    Ok(image)
}

/// Hashes all inputs of the image.
fn fingerprint() -> String {
    let mut hash = Sha256::new().chain_update(arguments(Path::new("files"), Path::new("root")).join("\n"));
    for (path, mode, content) in FILES {
        hash = hash.chain_update(path).chain_update(mode.to_le_bytes()).chain_update(content);
    }
    hex::encode(&hash.finalize()[..6])
}

/// Returns the `mmdebstrap` arguments that create `root` from the packages and `files`.
fn arguments(files: &Path, root: &Path) -> Vec<String> {
    let mut arguments = vec![
        "--variant=minbase".to_owned(),
        format!("--include={}", PACKAGES.split_whitespace().collect::<Vec<_>>().join(",")),
        format!("--customize-hook=sync-in \"{}\" /", files.display()),
        format!("--customize-hook=chroot \"$1\" /{MAKE_PAUSE_IMAGE}"),
        format!("--customize-hook=chroot \"$1\" systemctl enable {}", UNITS.join(" ")),
        format!("--customize-hook=chroot \"$1\" systemctl mask {}", MASKED_UNITS.join(" ")),
        format!("--customize-hook=chroot \"$1\" systemctl disable {}", DISABLED_UNITS.join(" ")),
    ];
    // Test nodes need no documentation.
    arguments.extend(
        ["doc", "info", "locale", "man"].map(|kind| format!("--dpkgopt=path-exclude=/usr/share/{kind}/*")),
    );
    arguments.extend([SUITE.to_owned(), root.display().to_string()]);
    arguments
}

fn build(work: &Path) -> Result<()> {
    let files = work.join("files");
    for (path, mode, content) in FILES {
        let path = files.join(path);
        let parent = path.parent().context("a file of the image has a folder")?;
        std::fs::create_dir_all(parent).with_context(|| format!("create `{}`", parent.display()))?;
        std::fs::write(&path, content).with_context(|| format!("write `{}`", path.display()))?;
        std::fs::set_permissions(&path, Permissions::from_mode(*mode))?;
    }
    let log = work.join("mmdebstrap.log");
    let output = File::create(&log).context("create the log of mmdebstrap")?;
    let status = Command::new("mmdebstrap")
        .args(arguments(&files, &work.join("root")))
        .stderr(output.try_clone().context("share a log file")?)
        .stdout(output)
        .status()
        .context("run `mmdebstrap`")?;
    if !status.success() {
        bail!("`mmdebstrap` failed; its log:\n{}", std::fs::read_to_string(&log).unwrap_or_default());
    }
    Ok(())
}
