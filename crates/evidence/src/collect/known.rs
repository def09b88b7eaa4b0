//! The machine's own secrets, read from where they lie so that the redactor finds them anywhere else.

use std::collections::BTreeSet;
use std::io::{self, Read as _};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::MultiGzDecoder;
use landfall_model::Secret;
use landfall_redact::{BuildError, Builder, KNOWN_TOTAL_MAX, Kind, Redactor};

use super::host::Host;

/// Files with secrets are small; of a larger one the first part is read.
const MAX_FILE: u64 = 1 << 20;
/// All such files of a machine together; a thousand links to one large file are no thousand secrets.
const MAX_READ: usize = 32 << 20;

/// The places are few and known; a disk on which they are not found by then was made to keep us.
const PATIENCE: Duration = Duration::from_secs(20);

/// All values together, with room below the redactor's own limit: a value more would leave the machine without any.
const MAX_TOTAL: usize = KNOWN_TOTAL_MAX / 2;

/// Where private keys lie.
const KEYS: [&str; 8] = [
    "/etc/kubernetes/pki/**/*.key",
    "/etc/ssh/ssh_host_*_key",
    "/opt/openshift/tls/*.key",
    "/var/lib/kubelet/pki/*.key",
    "/var/lib/kubelet/pki/*.pem",
    "/var/lib/rancher/k3s/agent/*.key",
    "/var/lib/rancher/rke2/agent/*.key",
    "/var/lib/etcd/pki/**/*.key",
];

/// Where configurations with secrets in fields lie.
const FIELDS: [&str; 18] = [
    "/etc/containerd/**/*.toml",
    "/etc/crio/*.conf",
    "/etc/kubeadm.yml",
    "/etc/kubernetes/*.conf",
    "/etc/kubernetes/azure.json",
    "/etc/kubernetes/bootstrap-secrets/kubeconfig*",
    "/etc/kubernetes/cloud-config",
    "/etc/rancher/*/*.yaml",
    "/etc/secret-userdata.txt",
    "/opt/openshift/auth/kubeconfig*",
    "/root/.docker/config.json",
    "/run/cloud-init/instance-data-sensitive.json",
    "/run/kubeadm/*.yaml",
    "/tmp/kubeadm.yml",
    "/var/lib/cloud/instance/user-data.txt",
    "/var/lib/cloud/seed/**/user-data",
    "/var/lib/kubelet/config.json",
    "/var/lib/kubelet/kubeconfig",
];

/// Files that are one secret.
const WHOLE: [&str; 3] = [
    "/opt/openshift/auth/kubeadmin-password",
    "/var/lib/rancher/*/server/token",
    "/var/lib/rancher/*/server/agent-token",
];

/// A redactor that knows this machine's secrets, and whether all places were looked at.
pub(super) fn redactor(host: &Host) -> Result<(Redactor, Search), BuildError> {
    let mut known = Known {
        builder: Redactor::builder(),
        seen: BTreeSet::new(),
        total: 0,
        deadline: Instant::now() + PATIENCE,
        search: Search::Whole,
    };
    for content in known.files(host, &KEYS) {
        known.keys(&content);
    }
    for content in known.files(host, &FIELDS) {
        known.fields(&content);
        known.keys(&content);
    }
    for content in known.files(host, &WHOLE) {
        known.add(Kind::PASSWORD, content.trim_ascii());
    }
    let search = known.search;
    Ok((known.builder.build()?, search))
}

/// How far the search for secrets got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    Whole,
    /// There was too much to look at: secrets are still recognised by their form, some not by their value.
    CutShort,
}

struct Known {
    builder: Builder,
    /// Hashes, so that nothing is counted twice: the same key lies in several files.
    seen: BTreeSet<String>,
    total: usize,
    deadline: Instant,
    search: Search,
}

// === impl Known ===

impl Known {
    fn add(&mut self, kind: Kind, value: &[u8]) {
        if !self.seen.insert(crate::bundle::sha256(value)) {
            return;
        }
        if self.total + value.len() > MAX_TOTAL {
            self.search = Search::CutShort;
            return;
        }
        self.total += value.len();
        let secret = Secret::new(value.to_vec());
        self.builder = std::mem::take(&mut self.builder).known_secret(kind, &secret);
    }

    /// The bodies of PEM blocks that are private keys.
    fn keys(&mut self, text: &[u8]) {
        let text = String::from_utf8_lossy(text);
        let mut body: Option<String> = None;
        for line in text.lines().map(str::trim) {
            if line.starts_with("-----BEGIN") {
                body = line.contains("PRIVATE KEY").then(String::new);
            } else if line.starts_with("-----END") {
                if let Some(body) = body.take() {
                    self.add(Kind::PRIVATE_KEY, body.trim().as_bytes());
                }
            } else if let Some(body) = &mut body {
                body.push_str(line);
                body.push('\n');
            }
        }
    }

    /// Values of fields that hold secrets by their name, in YAML, JSON and TOML alike.
    fn fields(&mut self, text: &[u8]) {
        let text = String::from_utf8_lossy(text);
        // JSON on one line has its fields between commas.
        for line in text.split(['\n', ',', '{', '}']) {
            let Some((name, value)) = line.split_once([':', '=']) else { continue };
            let name = name.trim().trim_start_matches("- ").trim_matches(['"', '\'']);
            let value = value.trim().trim_matches(['"', '\'']);
            let kind = match name {
                // Of a bootstrap token one half is public, of any other none.
                "token" | "tlsBootstrapToken" | "bootstrapToken" if value.find('.') == Some(6) => {
                    Kind::BOOTSTRAP_TOKEN
                }
                "certificateKey" => Kind::CERTIFICATE_KEY,
                "token" | "agent-token" | "password" | "passwd" | "secretKey" | "hashed_passwd"
                | "passwordHash" => Kind::PASSWORD,
                "auth" | "identitytoken" | "registrytoken" => Kind::REGISTRY_AUTH,
                "aadClientSecret" | "aws_secret_access_key" | "client_secret" => Kind::CLOUD_CREDENTIAL,
                "client-key-data" => {
                    if let Ok(key) = STANDARD.decode(value) {
                        self.keys(&key);
                    }
                    Kind::PRIVATE_KEY
                }
                _ => continue,
            };
            // `token: ""`, `auth: true` and references to files are no secrets.
            if value.len() >= landfall_redact::KNOWN_MIN && !value.starts_with('/') {
                self.add(kind, value.as_bytes());
            }
        }
    }

    /// What the files that fit hold. What cannot be read cannot have been shown by others to us either.
    fn files(&mut self, host: &Host, patterns: &[&str]) -> Vec<Vec<u8>> {
        let mut total = 0;
        let mut contents = Vec::new();
        for pattern in patterns {
            let paths = match host.find(pattern, self.deadline) {
                Ok(paths) => paths,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    self.search = Search::CutShort;
                    continue;
                }
                Err(_) => continue,
            };
            for content in paths.into_iter().filter_map(|path| host.read(path, MAX_FILE).ok()).map(unpacked) {
                total += content.len();
                if total > MAX_READ {
                    self.search = Search::CutShort;
                    return contents;
                }
                contents.push(content);
            }
        }
        contents
    }
}

/// User data is often packed.
fn unpacked(bytes: Vec<u8>) -> Vec<u8> {
    if !bytes.starts_with(b"\x1f\x8b") {
        return bytes;
    }
    let mut unpacked = Vec::new();
    // What comes before damage counts.
    let _ = MultiGzDecoder::new(&bytes[..]).take(MAX_FILE).read_to_end(&mut unpacked);
    unpacked
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use landfall_redact::Options;

    use super::*;

    #[test]
    fn values_are_found_in_each_kind_of_file() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("run/kubeadm/join.yaml", "discovery:\n  bootstrapToken:\n    token: abcdef.0011223344556677\n");
        write(
            "var/lib/kubelet/config.json",
            r#"{"auths":{"r.example":{"auth":"dXNlcjpodW50ZXIyLWxvbmc="}}}"#,
        );
        let body = "MHcCAQEEIAbCdEfGhIjKlMnOpQrStUvWxYz0123456789+abcdefgh";
        let key = format!("-----BEGIN EC PRIVATE KEY-----\n{body}\n-----END EC PRIVATE KEY-----\n");
        write("etc/kubernetes/pki/etcd/ca.key", &key);
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(b"#cloud-config\npassword: swordfish-and-chips\n").unwrap();
        fs::create_dir_all(root.path().join("var/lib/cloud/instance")).unwrap();
        fs::write(root.path().join("var/lib/cloud/instance/user-data.txt"), encoder.finish().unwrap())
            .unwrap();
        let (redactor, search) = redactor(&Host::at(root.path()).unwrap()).unwrap();
        assert_eq!(search, Search::Whole);
        for secret in ["0011223344556677", "swordfish-and-chips", "dXNlcjpodW50ZXIyLWxvbmc=", body] {
            let text = format!("a script said: >{secret}< and went on\n");
            let (out, _) = redactor.redact(text.as_bytes(), Options::default());
            assert!(!String::from_utf8_lossy(&out).contains(secret), "{secret} stays");
        }
    }
}
