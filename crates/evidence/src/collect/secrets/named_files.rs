//! Secret files named by component flags and settings: they can be anywhere.

use std::collections::HashSet;
use std::path::{Component, Path};
use std::time::Instant;

use landfall_redact::Kind;

use super::super::host::Host;
use super::places::{Format, PLACES, Use};

/// A named file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::collect) struct NamedFile {
    /// A path, or a pattern for the files in a directory.
    pub(in crate::collect) path: String,
    pub(in crate::collect) format: Format,
    pub(in crate::collect) usage: Use,
}

/// Files that name others, in addition to the collected files of the table.
const SOURCES: [&str; 9] = [
    "/var/lib/kubelet/config.yaml",
    "/etc/kubernetes/kubelet/*",
    "/etc/kubernetes/*.yaml",
    "/etc/etcd/*.conf",
    "/etc/etcd/*.y*ml",
    "/etc/rancher/*/config.yaml",
    "/etc/rancher/*/config.yaml.d/*.yaml",
    "/usr/lib/systemd/system/kubelet.service.d/*.conf",
    "/usr/lib/systemd/system/*etcd*.service",
];

/// Files with settings are small.
const SOURCE_MAX: u64 = 256 << 10;

/// More than all components of a node name.
const FILES_MAX: usize = 256;

/// Characters between a setting's name and its path, backwards from the path.
const BETWEEN: &[u8] = b" \t\n\"'=:,[-";
const BETWEEN_MAX: usize = 24;

/// Settings in lower case without hyphens and underscores, with the format of the named file.
const SETTINGS: [(&str, Format); 38] = [
    ("encryptionproviderconfig", Format::Any),
    ("experimentalencryptionproviderconfig", Format::Any),
    ("tokenauthfile", Format::PasswordTable),
    ("basicauthfile", Format::PasswordTable),
    ("kubeconfig", Format::Any),
    ("bootstrapkubeconfig", Format::Any),
    ("experimentalbootstrapkubeconfig", Format::Any),
    ("authenticationkubeconfig", Format::Any),
    ("authorizationkubeconfig", Format::Any),
    ("authenticationtokenwebhookconfigfile", Format::Any),
    ("authorizationwebhookconfigfile", Format::Any),
    ("auditwebhookconfigfile", Format::Any),
    ("imagecredentialproviderconfig", Format::Any),
    ("cloudconfig", Format::Any),
    ("serviceaccountsigningkeyfile", Format::Pem),
    ("serviceaccountprivatekeyfile", Format::Pem),
    ("clustersigningkeyfile", Format::Pem),
    ("clustersigningkubeletservingkeyfile", Format::Pem),
    ("clustersigningkubeletclientkeyfile", Format::Pem),
    ("clustersigningkubeapiserverclientkeyfile", Format::Pem),
    ("clustersigninglegacyunknownkeyfile", Format::Pem),
    ("tlsprivatekeyfile", Format::Pem),
    ("tlssnicertkey", Format::Pem),
    ("etcdkeyfile", Format::Pem),
    ("etcdpeerkeyfile", Format::Pem),
    ("kubeletclientkey", Format::Pem),
    ("proxyclientkeyfile", Format::Pem),
    ("clientkey", Format::Pem),
    ("clientkeyfile", Format::Pem),
    ("keyfile", Format::Pem),
    ("peerkeyfile", Format::Pem),
    ("datastorekeyfile", Format::Pem),
    ("tokenfile", Format::Lines(Kind::PASSWORD)),
    ("agenttokenfile", Format::Lines(Kind::PASSWORD)),
    ("k3stokenfile", Format::Lines(Kind::PASSWORD)),
    ("k3sagenttokenfile", Format::Lines(Kind::PASSWORD)),
    ("passwordfile", Format::Lines(Kind::PASSWORD)),
    ("privateregistry", Format::Any),
];

/// Settings whose files are collected with their secrets redacted.
const REDACTED: [&str; 1] = ["environmentfile"];

/// containerd's directory with one subdirectory per registry.
const REGISTRIES: &str = "configpath";
const REGISTRY_FILES: &str = "/*/hosts.toml";

/// The files in which names of files are looked up.
pub(in crate::collect) fn sources() -> impl Iterator<Item = &'static str> {
    let rows = PLACES.iter().filter(|place| place.usage == Use::Redacted && place.format == Format::Any);
    rows.map(|place| place.path).chain(SOURCES)
}

/// The files that the settings of this machine name. Files named by these files are included.
pub(in crate::collect) fn find(host: &Host, deadline: Instant) -> Vec<NamedFile> {
    let mut files = Vec::new();
    let mut seen = HashSet::new();
    for pattern in sources() {
        read(host, pattern, deadline, &mut seen, &mut files);
    }
    let configurations: Vec<String> =
        files.iter().filter(|file| file.format == Format::Any).map(|file| file.path.clone()).collect();
    for pattern in configurations {
        read(host, &pattern, deadline, &mut seen, &mut files);
    }
    files
}

fn read(
    host: &Host,
    pattern: &str,
    deadline: Instant,
    seen: &mut HashSet<(u64, u64)>,
    files: &mut Vec<NamedFile>,
) {
    for path in host.find(pattern, deadline).unwrap_or_default() {
        let is_new = host.stat(&path).is_ok_and(|stat| seen.insert((stat.st_dev, stat.st_ino)));
        if !is_new || Instant::now() >= deadline {
            continue;
        }
        let Ok(content) = host.read(&path, SOURCE_MAX) else { continue };
        for file in named(&content) {
            if files.len() < FILES_MAX && !files.contains(&file) {
                files.push(file);
            }
        }
    }
}

/// Finds the files that a text names after the settings of the table.
fn named(text: &[u8]) -> impl Iterator<Item = NamedFile> {
    let begins = |at: &usize| *at > 0 && BETWEEN.contains(&text[at - 1]);
    memchr::memchr_iter(b'/', text).filter(begins).filter_map(|at| {
        let setting = setting(&text[..at])?;
        let is_end = |byte: &u8| byte.is_ascii_whitespace() || b"\"',;[]{}\\#".contains(byte);
        let len = text[at..].iter().position(is_end).unwrap_or(text.len() - at);
        let path = std::str::from_utf8(&text[at..at + len]).ok().filter(|path| is_plain(path))?;
        let known = SETTINGS.iter().find(|(name, _)| *name == setting);
        if let Some((_, format)) = known {
            return Some(NamedFile { path: path.to_owned(), format: *format, usage: Use::Withheld });
        }
        let path = if setting == REGISTRIES {
            format!("{}{REGISTRY_FILES}", path.trim_end_matches('/'))
        } else {
            path.to_owned()
        };
        let is_redacted = setting == REGISTRIES || REDACTED.contains(&&*setting);
        is_redacted.then_some(NamedFile { path, format: Format::Any, usage: Use::Redacted })
    })
}

/// Returns the name before a path, in lower case without hyphens and underscores.
fn setting(before: &[u8]) -> Option<String> {
    let gap = before.iter().rev().take(BETWEEN_MAX).take_while(|byte| BETWEEN.contains(byte)).count();
    let before = &before[..before.len() - gap];
    let is_part = |byte: &&u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let len = before.iter().rev().take_while(is_part).count();
    let name = before[before.len() - len..].iter().filter(|byte| byte.is_ascii_alphanumeric());
    let name: String = name.map(|byte| char::from(byte.to_ascii_lowercase())).collect();
    (!name.is_empty()).then_some(name)
}

/// Returns whether a path names one file: it contains no pattern and no `..`.
fn is_plain(path: &str) -> bool {
    let is_normal = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    path.len() > 1 && !path.contains(['*', '?', '[', '$', '%']) && Path::new(path).components().all(is_normal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<(String, Format, Use)> {
        named(text.as_bytes()).map(|file| (file.path, file.format, file.usage)).collect()
    }

    #[test]
    fn files_named_by_flags_and_settings_are_found() {
        for (text, path, format) in [
            ("    - --encryption-provider-config=/srv/enc.yaml\n", "/srv/enc.yaml", Format::Any),
            ("kube-apiserver --token-auth-file /srv/users.csv -v2", "/srv/users.csv", Format::PasswordTable),
            ("ExecStart=/usr/bin/kubelet --bootstrap-kubeconfig=/srv/boot \\", "/srv/boot", Format::Any),
            ("- --kubeconfig\n- /srv/config\n", "/srv/config", Format::Any),
            ("\"--service-account-signing-key-file\", \"/srv/sa\"", "/srv/sa", Format::Pem),
            ("tlsPrivateKeyFile: /srv/tls\n", "/srv/tls", Format::Pem),
            ("ETCD_PEER_KEY_FILE=\"/srv/peer\"\n", "/srv/peer", Format::Pem),
            ("  key-file: '/srv/etcd'\n", "/srv/etcd", Format::Pem),
            ("token-file: /srv/token\n", "/srv/token", Format::Lines(Kind::PASSWORD)),
        ] {
            assert_eq!(paths(text), [(path.to_owned(), format, Use::Withheld)], "{text}");
        }
        let registries = [("/srv/certs/*/hosts.toml".to_owned(), Format::Any, Use::Redacted)];
        assert_eq!(paths("config_path = \"/srv/certs\"\n"), registries);
        let environment = [("/srv/x.env".to_owned(), Format::Any, Use::Redacted)];
        assert_eq!(paths("EnvironmentFile=-/srv/x.env\n"), environment);
    }

    #[test]
    fn other_paths_are_not_taken() {
        for text in [
            "--client-ca-file=/etc/ca.crt",
            "--kubeconfig=/srv/../etc/passwd",
            "--kubeconfig=/srv/*",
            "--kubeconfig=$HOME/x",
            "kubeconfig /",
            "see https://kubernetes.io/docs",
        ] {
            assert_eq!(paths(text), [], "{text}");
        }
    }

    #[test]
    fn files_named_by_named_files_are_found() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("etc/kubernetes/manifests/a.yaml", "command: [x, --kubeconfig=/srv/config]\n");
        write("srv/config", "users:\n- user:\n    client-key: /srv/key\n");
        let host = Host::at(root.path()).unwrap();
        let found = find(&host, Instant::now() + std::time::Duration::from_secs(5));
        let found: Vec<&str> = found.iter().map(|file| &*file.path).collect();
        assert_eq!(found, ["/srv/config", "/srv/key"]);
    }
}
