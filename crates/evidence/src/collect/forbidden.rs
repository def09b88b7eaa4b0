//! Files that are never collected, whoever asks: they hold little but secrets. What is public in them is told by other
//! means (certificates by their facts), and their secrets are given to the redactor.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::host::Host;
use super::piece::Trouble;
use super::secrets::places;

/// Facts such as a setting of the kernel are at most this long.
const MAX_FACT: u64 = 64 << 10;

/// Names of files in the secret folders that say when, not what.
const HARMLESS: [&str; 3] = [
    "/var/lib/cloud/instance/boot-finished",
    "/var/lib/cloud/instance/datasource",
    "/var/lib/ignition/result.json",
];

/// Why a file is not collected; `None` when it may be.
pub(super) fn reason(path: &Path) -> Option<&'static str> {
    if HARMLESS.iter().any(|harmless| path == Path::new(harmless)) || is_end_of_instance(path) {
        return None;
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_kubeconfig = name.contains("kubeconfig")
        || (path.parent() == Some(Path::new("/etc/kubernetes")) && has_extension(path, "conf"));
    if is_kubeconfig {
        return Some("it holds credentials of the cluster");
    }
    if places::is_withheld(path) {
        return Some("it holds secrets of this machine");
    }
    if ["key", "p12", "pfx", "jks"].iter().any(|extension| has_extension(path, extension))
        || name.starts_with("id_rsa")
        || name.starts_with("id_ed25519")
        || name.starts_with("id_ecdsa")
        || (name.starts_with("ssh_host_") && name.ends_with("_key"))
    {
        return Some("it holds a private key");
    }
    if ["auth.json", ".dockercfg", ".dockerconfigjson", ".netrc", ".pgpass"].contains(&&*name) {
        return Some("it holds credentials");
    }
    if path.starts_with("/proc") && (name == "environ" || name == "mem" || name == "kcore") {
        return Some("it holds the memory or the environment of processes");
    }
    None
}

/// Opens a file that may be collected, and tells where it really lies: a link may lead to one that may not.
pub(super) fn open(host: &Host, path: &Path) -> Result<(PathBuf, File), Trouble> {
    let withheld = |reason: &str| Trouble::Withheld(reason.to_owned());
    if let Some(reason) = reason(path) {
        return Err(withheld(reason));
    }
    let file = host.open(path)?;
    let real = host.real_path(&file)?;
    match reason(&real) {
        Some(reason) => Err(withheld(reason)),
        None => Ok((real, file)),
    }
}

/// The first bytes of a small file that may be collected, as text without space around it.
pub(super) fn fact(host: &Host, path: impl AsRef<Path>) -> Option<String> {
    let (_, file) = open(host, path.as_ref()).ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_FACT).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// The real place of `boot-finished`: cloud-init's folder of the instance is a link.
fn is_end_of_instance(path: &Path) -> bool {
    path.starts_with("/var/lib/cloud/instances")
        && path.file_name().is_some_and(|name| name == "boot-finished")
}

fn has_extension(path: &Path, wanted: &str) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_user_data_and_kubeconfigs_are_never_collected() {
        for path in [
            "/etc/kubernetes/pki/ca.crt",
            "/etc/kubernetes/admin.conf",
            "/etc/kubernetes/kubelet.conf",
            "/var/lib/cloud/instance/user-data.txt",
            "/var/lib/cloud/instances/i-1/scripts/runcmd",
            "/run/kubeadm/kubeadm.yaml",
            "/var/log/oddly-placed.key",
            "/etc/ssh/ssh_host_ed25519_key",
            "/proc/1/environ",
            "/etc/shadow",
            "/var/lib/etcd/member/snap/db",
            "/etc/containers/auth.json",
            "/var/lib/kubelet/config.json",
            "/opt/openshift/tls/root-ca.crt",
        ] {
            assert!(reason(Path::new(path)).is_some(), "{path}");
        }
    }

    #[test]
    fn what_tells_the_story_is_collected() {
        for path in [
            "/var/log/cloud-init.log",
            "/var/lib/cloud/instance/boot-finished",
            "/var/lib/cloud/instances/i-1/boot-finished",
            "/var/lib/cloud/data/status.json",
            "/var/lib/kubelet/config.yaml",
            "/etc/kubernetes/manifests/etcd.yaml",
            "/etc/ssh/ssh_host_ed25519_key.pub",
            "/proc/meminfo",
        ] {
            assert_eq!(reason(Path::new(path)), None, "{path}");
        }
    }
}
