//! Files that are never collected by any item, because they contain little but secrets.
//!
//! Other sources report their public parts (certificates by their facts). Their secrets are given to the
//! redactor.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::host::Host;
use super::piece::Trouble;
use super::secrets::places;

/// Maximum length of a fact, such as a kernel setting.
const MAX_FACT: u64 = 64 << 10;

const SECRET: &str = "it holds secrets of this machine";

/// Files in the secret directories that contain only times.
const HARMLESS: [&str; 3] = [
    "/var/lib/cloud/instance/boot-finished",
    "/var/lib/cloud/instance/datasource",
    "/var/lib/ignition/result.json",
];

/// Returns the reason why a file is not collected, or `None` if it may be.
pub(super) fn reason(path: &Path) -> Option<&'static str> {
    if is_harmless(path) {
        return None;
    }
    reason_by_name(path).or_else(|| places::is_withheld(path).then_some(SECRET))
}

/// Like [`reason`], without the table of secret files.
pub(super) fn reason_by_name(path: &Path) -> Option<&'static str> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let is_kubeconfig = name.contains("kubeconfig")
        || (path.parent() == Some(Path::new("/etc/kubernetes")) && has_extension(path, "conf"));
    if is_kubeconfig {
        return Some("it holds credentials of the cluster");
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

/// Opens a file that may be collected and returns its real path.
///
/// A link may lead to a file that must not be collected.
pub(super) fn open(host: &Host, path: &Path) -> Result<(PathBuf, File), Trouble> {
    if let Some(reason) = reason(path) {
        return Err(withheld(reason));
    }
    let file = host.open(path)?;
    let real = verify(host, &file)?;
    Ok((real, file))
}

/// Checks an open file by path and identity, and returns its path.
///
/// Call it again after reading: a file may get other names while it is open.
pub(super) fn verify(host: &Host, file: &File) -> Result<PathBuf, Trouble> {
    let real = host.real_path(file)?;
    if let Some(reason) = reason(&real) {
        return Err(withheld(reason));
    }
    let stat = rustix::fs::fstat(file).map_err(io::Error::from)?;
    let mut identities = host.identities();
    // Another link to the file may belong to a secret file created after the last snapshot.
    if stat.st_nlink > 1 && !identities.has_file(&stat) && !identities.is_recent() {
        identities = host.refresh();
    }
    let is_below_secret = || {
        if is_harmless(&real) {
            return false;
        }
        let above = real.ancestors().skip(1).filter(|path| path.parent().is_some());
        above.filter_map(|path| host.stat(path).ok()).any(|stat| identities.has_directory(&stat))
    };
    if identities.has_file(&stat) || is_below_secret() {
        return Err(withheld(SECRET));
    }
    // Operating systems share files below `/usr` between versions.
    let is_shared = || real.components().any(|part| part.as_os_str() == "usr");
    if identities.may_lack(&stat) && !is_shared() {
        return Err(withheld("it has several names, and one of them may be that of a file with secrets"));
    }
    Ok(real)
}

fn withheld(reason: &str) -> Trouble {
    Trouble::Withheld(reason.to_owned())
}

/// Returns the start of a small file that may be collected, as trimmed text.
pub(super) fn fact(host: &Host, path: impl AsRef<Path>) -> Option<String> {
    let (_, mut file) = open(host, path.as_ref()).ok()?;
    let mut bytes = Vec::new();
    file.by_ref().take(MAX_FACT).read_to_end(&mut bytes).ok()?;
    verify(host, &file).ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned())
}

fn is_harmless(path: &Path) -> bool {
    HARMLESS.iter().any(|harmless| path == Path::new(harmless)) || is_end_of_instance(path)
}

/// Returns whether this is the real path of `boot-finished`: cloud-init's instance directory is a link.
fn is_end_of_instance(path: &Path) -> bool {
    path.starts_with("/var/lib/cloud/instances")
        && path.file_name().is_some_and(|name| name == "boot-finished")
}

fn has_extension(path: &Path, wanted: &str) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(wanted))
}

#[cfg(test)]
mod tests {
    use std::fs;

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

    /// Returns a machine with a log and a private key.
    fn machine() -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [("var/log/a.log", "a line\n"), ("etc/kubernetes/pki/ca.key", "a key\n")] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let host = Host::at(root.path()).unwrap();
        (root, host)
    }

    fn is_withheld(result: &Result<impl Sized, Trouble>) -> bool {
        matches!(result, Err(Trouble::Withheld(_)))
    }

    #[test]
    fn file_that_a_flag_names_is_withheld() {
        let (root, host) = machine();
        let manifests = root.path().join("etc/kubernetes/manifests");
        fs::create_dir_all(&manifests).unwrap();
        fs::write(manifests.join("a.yaml"), "    - --token-auth-file=/var/log/a.log\n").unwrap();
        host.refresh();
        assert!(is_withheld(&open(&host, Path::new("/var/log/a.log"))));
    }

    #[test]
    fn file_that_becomes_secret_while_open_is_withheld() {
        let (root, host) = machine();
        let (_, file) = open(&host, Path::new("/var/log/a.log")).unwrap();
        assert!(verify(&host, &file).is_ok());
        fs::rename(root.path().join("var/log/a.log"), root.path().join("etc/kubernetes/pki/ca.crt")).unwrap();
        assert!(is_withheld(&verify(&host, &file)));
    }

    #[test]
    fn secret_file_renamed_over_log_is_withheld() {
        let (root, host) = machine();
        host.refresh();
        fs::rename(root.path().join("etc/kubernetes/pki/ca.key"), root.path().join("var/log/a.log")).unwrap();
        assert!(is_withheld(&open(&host, Path::new("/var/log/a.log"))));
    }

    #[test]
    fn link_to_secret_file_made_while_open_is_withheld() {
        let (root, host) = machine();
        let (_, file) = open(&host, Path::new("/var/log/a.log")).unwrap();
        host.expire();
        let later = root.path().join("etc/kubernetes/pki/later.crt");
        fs::hard_link(root.path().join("var/log/a.log"), later).unwrap();
        assert!(is_withheld(&verify(&host, &file)));
        assert!(is_withheld(&open(&host, Path::new("/var/log/a.log"))));
    }

    #[test]
    fn log_with_two_names_is_collected() {
        let (root, host) = machine();
        fs::hard_link(root.path().join("var/log/a.log"), root.path().join("var/log/b.log")).unwrap();
        assert!(open(&host, Path::new("/var/log/b.log")).is_ok());
    }

    #[test]
    fn log_with_two_names_is_withheld_beside_large_directories() {
        let (root, host) = machine();
        let data = root.path().join("var/lib/containerd/snapshots");
        fs::create_dir_all(&data).unwrap();
        for number in 0..3000 {
            fs::write(data.join(number.to_string()), "").unwrap();
        }
        assert!(open(&host, Path::new("/var/log/a.log")).is_ok(), "it has one name");
        fs::hard_link(root.path().join("var/log/a.log"), root.path().join("var/log/b.log")).unwrap();
        assert!(is_withheld(&open(&host, Path::new("/var/log/b.log"))));
        assert!(host.identities().is_complete(), "large directories are not read to their end");
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
