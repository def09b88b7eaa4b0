//! The files that contain secrets: one table for both uses.
//!
//! Files marked [`Use::Withheld`] are never collected. The values of all files with a format are given to the
//! redactor.

use std::path::{Component, Components, Path};

use landfall_redact::Kind;

use super::super::host;

/// Format of a file that contains secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::collect) enum Format {
    /// Not read: a directory, or a format without a parser.
    Opaque,
    /// JSON, YAML, TOML, INI, environment, script or user data, detected by content.
    Any,
    /// Like `Any`, encoded in Base64.
    Encoded,
    /// `<name>value</name>`.
    Xml,
    /// `name value` on lines.
    Directives,
    /// Each line is a secret.
    Lines(Kind),
    /// The last line is a secret: a token, or a password after a line with a user name.
    LastLine,
    /// PEM private keys, or a key on one line.
    Pem,
    /// `/etc/shadow` and `/etc/gshadow`.
    Shadow,
    /// `pam_unix`'s list of previous passwords.
    PreviousPasswords,
    /// K3s: `password,user,uid,groups`.
    PasswordTable,
    /// `machine HOST login USER password PASSWORD`.
    Netrc,
    /// Fields separated by colons; the last one is the password.
    Pgpass,
    /// `client server secret addresses`, as pppd reads them.
    ChapSecrets,
    /// `selectors : PSK secret`, as strongSwan reads them.
    IpsecSecrets,
    /// Ceph: `key = …` in sections.
    Keyring,
}

/// Treatment of a file by the collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::collect) enum Use {
    /// Never collected; for a directory, including its subtree.
    Withheld,
    /// Collected with its secrets redacted.
    Redacted,
}

/// Search scope for the identities of withheld files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::collect) enum Scope {
    /// The files that match the path.
    Files,
    /// A directory with its subtree.
    Tree,
    /// A directory of container or user data: too large to enumerate.
    Large,
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub(in crate::collect) struct Place {
    /// A path or a pattern for [`Host::find`](super::super::Host::find).
    pub(in crate::collect) path: &'static str,
    pub(in crate::collect) format: Format,
    pub(in crate::collect) usage: Use,
    pub(in crate::collect) scope: Scope,
}

const fn withheld(path: &'static str, format: Format) -> Place {
    Place { path, format, usage: Use::Withheld, scope: Scope::Files }
}

const fn redacted(path: &'static str, format: Format) -> Place {
    Place { path, format, usage: Use::Redacted, scope: Scope::Files }
}

const fn tree(path: &'static str) -> Place {
    Place { path, format: Format::Opaque, usage: Use::Withheld, scope: Scope::Tree }
}

const fn large(path: &'static str) -> Place {
    Place { path, format: Format::Opaque, usage: Use::Withheld, scope: Scope::Large }
}

use Format::{
    Any, ChapSecrets, Directives, Encoded, IpsecSecrets, Keyring, LastLine, Lines, Netrc, Opaque,
    PasswordTable, Pem, Pgpass, PreviousPasswords, Shadow, Xml,
};

/// Bootstrap credentials come first: logs repeat their values, and the space for values is limited. Files
/// writable by users other than root are not read: such users could remove any text from the evidence.
pub(in crate::collect) const PLACES: &[Place] = &[
    // kubeadm and its providers.
    withheld("/run/kubeadm/*.yaml", Any),
    withheld("/etc/kubeadm.yml", Any),
    withheld("/tmp/kubeadm.yml", Any),
    withheld("/etc/kubernetes/*.conf", Any),
    withheld("/etc/kubernetes/bootstrap-secrets/kubeconfig*", Any),
    withheld("/etc/kubernetes/*kubeconfig*", Any),
    withheld("/etc/kubernetes/kubelet/*kubeconfig*", Any),
    withheld("/var/lib/kubelet/*kubeconfig*", Any),
    withheld("/root/.kube/config", Any),
    redacted("/etc/kubernetes/manifests/*", Any),
    redacted("/etc/kubernetes/*.env", Any),
    redacted("/var/lib/kubelet/*.env", Any),
    withheld("/var/lib/kubelet/config.json", Any),
    withheld("/etc/cni/net.d/*kubeconfig*", Any),
    withheld("/etc/kubernetes/**/*token*.csv", PasswordTable),
    withheld("/etc/kubernetes/**/*auth*.csv", PasswordTable),
    // K3s and RKE2.
    withheld("/var/lib/rancher/*/server/token", Lines(Kind::PASSWORD)),
    withheld("/var/lib/rancher/*/server/node-token", Lines(Kind::PASSWORD)),
    withheld("/var/lib/rancher/*/server/agent-token", Lines(Kind::PASSWORD)),
    withheld("/var/lib/rancher/*/server/cred/passwd", PasswordTable),
    withheld("/var/lib/rancher/*/server/cred/node-passwd", PasswordTable),
    withheld("/var/lib/rancher/*/server/cred/ipsec.psk", Lines(Kind::PASSWORD)),
    withheld("/var/lib/rancher/*/server/cred/*.json", Any),
    withheld("/var/lib/rancher/*/server/cred/*.kubeconfig", Any),
    withheld("/etc/rancher/node/password", Lines(Kind::PASSWORD)),
    withheld("/etc/rancher/*/config.yaml", Any),
    withheld("/etc/rancher/*/config.yaml.d/*.yaml", Any),
    withheld("/etc/rancher/*/registries.yaml", Any),
    withheld("/etc/rancher/k3s/k3s.yaml", Any),
    withheld("/etc/rancher/rke2/rke2.yaml", Any),
    withheld("/var/lib/rancher/*/agent/*.kubeconfig", Any),
    withheld("/var/lib/rancher/*/server/manifests/*.yaml", Any),
    // k0s and MicroK8s.
    redacted("/etc/k0s/k0s.yaml", Any),
    withheld("/etc/k0s/*token*", Lines(Kind::PASSWORD)),
    withheld("/var/snap/microk8s/*/credentials/*.csv", PasswordTable),
    withheld("/var/snap/microk8s/*/credentials/*.config", Any),
    // Vault, and remote file systems.
    withheld("/root/.vault-token", Lines(Kind::PASSWORD)),
    withheld("/etc/vault.d/*.hcl", Any),
    withheld("/etc/cifs-credentials", Any),
    withheld("/root/.smbcredentials", Any),
    withheld("/etc/chrony.keys", Opaque),
    // Landfall's own tokens, passwords and keys.
    withheld("/etc/landfall/*.token", Lines(Kind::PASSWORD)),
    withheld("/etc/landfall/*-token", Lines(Kind::PASSWORD)),
    withheld("/etc/landfall/token", Lines(Kind::PASSWORD)),
    withheld("/etc/landfall/gather-token", Lines(Kind::PASSWORD)),
    withheld("/etc/landfall/nats", LastLine),
    withheld("/etc/landfall/db", LastLine),
    withheld("/etc/landfall/bucket", Any),
    withheld("/etc/landfall/s3", Any),
    withheld("/etc/landfall/azure", Any),
    withheld("/etc/landfall/stores/database-password", LastLine),
    withheld("/etc/landfall/stores/bucket-credentials", Any),
    withheld("/etc/landfall/hub/*.key", Pem),
    withheld("/etc/landfall/hub/*token*", Lines(Kind::PASSWORD)),
    withheld("/etc/landfall/*.key", Pem),
    withheld("/etc/landfall/*kubeconfig*", Any),
    withheld("/var/lib/landfall/in-place/*/secret.json", Any),
    withheld("/var/lib/landfall/in-place/*/ignition.json", Any),
    withheld("/var/lib/landfall/in-place/*/machine-config.json", Any),
    withheld("/root/.landfall-token", Lines(Kind::PASSWORD)),
    redacted("/etc/landfall/*.env", Any),
    redacted("/etc/landfall/gateway.toml", Any),
    redacted("/etc/landfall/gateway.toml.d/*.toml", Any),
    // User data.
    withheld("/var/lib/cloud/instance/*.txt*", Any),
    withheld("/var/lib/cloud/instance/scripts/*", Any),
    withheld("/var/lib/cloud/instances/*/*.txt*", Any),
    withheld("/var/lib/cloud/instances/*/scripts/*", Any),
    withheld("/var/lib/waagent/CustomData", Encoded),
    withheld("/var/lib/waagent/ovf-env.xml", Xml),
    withheld("/var/lib/cloud/seed/**/user-data", Any),
    withheld("/var/lib/cloud/seed/**/vendor-data", Any),
    withheld("/etc/secret-userdata.txt", Any),
    withheld("/run/cloud-init/combined-cloud-config.json", Any),
    withheld("/run/cloud-init/instance-data-sensitive.json", Any),
    redacted("/etc/cloud/cloud.cfg", Any),
    redacted("/etc/cloud/cloud.cfg.d/*.cfg", Any),
    // Ignition and machine configurations.
    withheld("/run/ignition.json", Any),
    withheld("/usr/lib/ignition/user.ign", Any),
    withheld("/boot/ignition/config.ign", Any),
    withheld("/etc/ignition-machine-config-encapsulated.json", Any),
    withheld("/etc/ignition-machine-config-encapsulated.json.bak", Any),
    withheld("/etc/machine-config-daemon/currentconfig", Any),
    // OpenShift.
    withheld("/opt/openshift/auth/kubeadmin-password", Lines(Kind::PASSWORD)),
    withheld("/opt/openshift/auth/kubeconfig*", Any),
    // Registries.
    withheld("/root/.docker/config.json", Any),
    withheld("/etc/containers/auth.json", Any),
    withheld("/etc/ostree/auth.json", Any),
    withheld("/root/.config/containers/auth.json", Any),
    withheld("/run/user/*/containers/auth.json", Any),
    withheld("/run/containers/*/auth.json", Any),
    redacted("/etc/containerd/**/*.toml", Any),
    redacted("/var/lib/rancher/*/agent/etc/containerd/**/*.toml", Any),
    redacted("/etc/crio/*.conf", Any),
    redacted("/etc/crio/crio.conf.d/*", Any),
    redacted("/etc/containers/registries.conf", Any),
    redacted("/etc/containers/registries.conf.d/*", Any),
    // Clouds.
    withheld("/etc/kubernetes/azure.json", Any),
    withheld("/etc/kubernetes/cloud-config", Any),
    withheld("/etc/kubernetes/cloud_config", Any),
    withheld("/etc/kubernetes/cloud-provider-config", Any),
    withheld("/etc/kubernetes/cloud.conf", Any),
    withheld("/etc/kubernetes/*vsphere.conf", Any),
    withheld("/etc/openstack/*.yaml", Any),
    withheld("/etc/aws/**/*", Any),
    withheld("/root/.aws/credentials", Any),
    withheld("/root/.config/openstack/*.yaml", Any),
    // etcd encryption.
    withheld("/etc/kubernetes/encryption*", Any),
    withheld("/etc/kubernetes/*encryption*.yaml", Any),
    withheld("/etc/kubernetes/enc/*", Any),
    withheld("/etc/kubernetes/*/*encryption*", Any),
    withheld("/etc/kubernetes/pki/**/*.yaml", Any),
    // Accounts.
    withheld("/etc/shadow", Shadow),
    withheld("/etc/shadow-", Shadow),
    withheld("/etc/gshadow", Shadow),
    withheld("/etc/gshadow-", Shadow),
    withheld("/etc/security/opasswd", PreviousPasswords),
    withheld("/etc/security/opasswd.old", PreviousPasswords),
    withheld("/etc/krb5.keytab", Opaque),
    withheld("/root/.netrc", Netrc),
    withheld("/root/.pgpass", Pgpass),
    withheld("/root/.git-credentials", Any),
    withheld("/etc/sssd/sssd.conf", Any),
    withheld("/etc/sssd/conf.d/*.conf", Any),
    redacted("/etc/fstab", Any),
    // Networks.
    withheld("/etc/wireguard/*.conf", Any),
    withheld("/etc/wireguard/*key", Lines(Kind::PRIVATE_KEY)),
    withheld("/etc/NetworkManager/system-connections/*", Any),
    withheld("/run/NetworkManager/system-connections/*", Any),
    withheld("/etc/netplan/*.yaml", Any),
    withheld("/etc/systemd/network/*.netdev", Any),
    withheld("/etc/wpa_supplicant/*.conf", Any),
    withheld("/etc/wpa_supplicant.conf", Any),
    withheld("/etc/sysconfig/network-scripts/keys-*", Any),
    withheld("/etc/ppp/*-secrets", ChapSecrets),
    withheld("/etc/ipsec.secrets", IpsecSecrets),
    withheld("/etc/ipsec.d/*.secrets", IpsecSecrets),
    withheld("/etc/keepalived/keepalived.conf", Directives),
    withheld("/etc/iscsi/iscsid.conf", Any),
    withheld("/etc/ceph/*.keyring", Keyring),
    // Packages and subscriptions.
    withheld("/etc/sysconfig/rhn/systemid", Opaque),
    withheld("/etc/apt/auth.conf", Netrc),
    withheld("/etc/apt/auth.conf.d/*", Netrc),
    redacted("/etc/apt/apt.conf.d/*", Any),
    redacted("/etc/yum.repos.d/*.repo", Any),
    redacted("/etc/dnf/dnf.conf", Any),
    redacted("/etc/yum.conf", Any),
    redacted("/etc/rhsm/rhsm.conf", Any),
    // Environments, with proxy passwords.
    withheld("/etc/systemd/system/*.service.env", Any),
    redacted("/etc/environment", Any),
    redacted("/etc/environment.d/*.conf", Any),
    redacted("/etc/mco/proxy.env", Any),
    redacted("/etc/pip.conf", Any),
    redacted("/etc/default/*", Any),
    redacted("/etc/sysconfig/*", Any),
    redacted("/etc/profile.d/*.sh", Any),
    redacted("/etc/systemd/system.conf", Any),
    redacted("/etc/systemd/system.conf.d/*.conf", Any),
    redacted("/etc/systemd/system/*.service", Any),
    redacted("/etc/systemd/system/*.service.d/*.conf", Any),
    redacted("/etc/systemd/system/service.d/*.conf", Any),
    redacted("/run/systemd/system/*.service.d/*.conf", Any),
    // Private keys.
    withheld("/etc/kubernetes/pki/**/*.key", Pem),
    withheld("/etc/kubernetes/ssl/**/*.key", Pem),
    withheld("/etc/ssh/ssh_host_*_key", Pem),
    withheld("/opt/openshift/tls/*.key", Pem),
    withheld("/var/lib/kubelet/pki/*.key", Pem),
    withheld("/var/lib/kubelet/pki/*.pem", Pem),
    withheld("/var/lib/rancher/*/agent/*.key", Pem),
    withheld("/var/lib/rancher/*/server/tls/**/*.key", Pem),
    withheld("/var/lib/etcd/pki/**/*.key", Pem),
    withheld("/etc/etcd/pki/**/*.key", Pem),
    withheld("/etc/ssl/etcd/**/*.pem", Pem),
    withheld("/etc/pki/consumer/key.pem", Pem),
    withheld("/etc/pki/entitlement/*-key.pem", Pem),
    withheld("/var/lib/landfall/agent/signing.key", Pem),
    // Directories that contain little but the above.
    tree("/etc/aws"),
    tree("/etc/NetworkManager/system-connections"),
    tree("/run/NetworkManager/system-connections"),
    tree("/etc/kubernetes/bootstrap-secrets"),
    tree("/etc/kubernetes/pki"),
    tree("/etc/kubernetes/static-pod-resources"),
    tree("/etc/pki/tls/private"),
    tree("/etc/ssl/private"),
    tree("/etc/wireguard"),
    tree("/etc/landfall/hub"),
    tree("/etc/landfall/stores"),
    tree("/opt/openshift/auth"),
    tree("/opt/openshift/tls"),
    tree("/run/ignition"),
    tree("/run/kubeadm"),
    tree("/run/secrets"),
    tree("/var/lib/cloud/instance"),
    tree("/var/lib/cloud/instances"),
    tree("/var/lib/cloud/seed"),
    withheld("/var/lib/cloud/data/status.json.lock", Opaque),
    tree("/var/lib/ignition"),
    tree("/var/lib/kubelet/pki"),
    tree("/var/lib/landfall/in-place"),
    tree("/var/lib/landfall/hub"),
    tree("/var/lib/rancher/k3s/server"),
    tree("/var/lib/rancher/rke2/server"),
    tree("/var/lib/waagent"),
    tree("/var/opt/openshift/auth"),
    tree("/var/opt/openshift/tls"),
    large("/home"),
    large("/root"),
    large("/run/containers"),
    large("/var/lib/containerd"),
    large("/var/lib/containers"),
    large("/var/lib/docker"),
    large("/var/lib/etcd"),
    large("/var/lib/kubelet/pods"),
];

/// Returns whether files at this path are never collected.
pub(in crate::collect) fn is_withheld(path: &Path) -> bool {
    PLACES.iter().any(|place| place.usage == Use::Withheld && covers(place.path, path))
}

/// Returns the format of the file at this path, if the table lists it.
pub(super) fn format(path: &Path) -> Option<Format> {
    let mut places = PLACES.iter().filter(|place| place.format != Opaque);
    places.find(|place| fits(place.path, path)).map(|place| place.format)
}

/// Returns whether the pattern matches the path or a directory above it.
fn covers(pattern: &str, path: &Path) -> bool {
    fit(parts(pattern), path.components(), |_| true)
}

/// Returns whether the pattern matches the path.
fn fits(pattern: &str, path: &Path) -> bool {
    fit(parts(pattern), path.components(), |rest| rest.clone().next().is_none())
}

fn parts(pattern: &str) -> std::str::Split<'_, char> {
    pattern.trim_start_matches('/').split('/')
}

/// Matches the parts of a pattern; `is_end` decides whether the rest of the path may follow.
fn fit(
    mut parts: std::str::Split<'_, char>,
    mut names: Components<'_>,
    is_end: fn(&Components<'_>) -> bool,
) -> bool {
    loop {
        let Some(part) = parts.next() else { return is_end(&names) };
        if part == "**" {
            break;
        }
        let Some(Component::Normal(name)) = names.find(|name| *name != Component::RootDir) else {
            return false;
        };
        if !host::matches(part.as_bytes(), name.as_encoded_bytes()) {
            return false;
        }
    }
    loop {
        if fit(parts.clone(), names.clone(), is_end) {
            return true;
        }
        if names.next().is_none() {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_cover_files_below_directories() {
        for (pattern, path, expected) in [
            ("/etc/kubernetes/pki", "/etc/kubernetes/pki/etcd/ca.key", true),
            ("/etc/kubernetes/pki", "/etc/kubernetes/pki2/ca.key", false),
            ("/etc/kubernetes/pki/**/*.key", "/etc/kubernetes/pki/ca.key", true),
            ("/etc/kubernetes/pki/**/*.key", "/etc/kubernetes/pki/a/b/ca.key", true),
            ("/etc/kubernetes/pki/**/*.key", "/etc/kubernetes/pki/a/b/ca.crt", false),
            ("/etc/rancher/*/config.yaml", "/etc/rancher/k3s/config.yaml", true),
            ("/etc/shadow", "/etc/shadow/x", true),
            ("/etc/shadow", "/etc/kubernetes/../shadow", false),
            ("/etc/shadow", "/etc", false),
        ] {
            assert_eq!(covers(pattern, Path::new(path)), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn table_has_no_duplicate_rows() {
        let mut paths: Vec<_> = PLACES.iter().map(|place| place.path).collect();
        paths.sort_unstable();
        let all = paths.len();
        paths.dedup();
        assert_eq!(paths.len(), all);
    }
}
