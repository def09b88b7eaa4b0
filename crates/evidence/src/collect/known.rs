//! The machine's own secrets, read from where they lie so that the redactor finds them anywhere else.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Read as _};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::MultiGzDecoder;
use landfall_model::Secret;
use landfall_redact::{BuildError, KNOWN_TOTAL_MAX, Kind, Redactor};

use super::host::Host;

/// Files with secrets are small; of a larger one the first part is read.
const MAX_FILE: u64 = 1 << 20;
/// All such files of a machine together; a thousand links to one large file are no thousand secrets.
const MAX_READ: usize = 32 << 20;

/// The places are few and known; a disk on which they are not found by then was made to keep us.
const PATIENCE: Duration = Duration::from_secs(20);

/// All values together, with room below the redactor's own limit: a value more would leave the machine without any.
const MAX_TOTAL: usize = KNOWN_TOTAL_MAX / 2;
/// The same for a machine that is watched: a byte of a secret takes some eighty of memory, all the time.
const MAX_WATCHED: usize = 12 << 10;
/// What private keys may take of it: those of a control plane alone would leave no room for the tokens that come later.
const MAX_WATCHED_KEYS: usize = MAX_WATCHED / 2;

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
    let mut known = Known::new(MAX_TOTAL, MAX_TOTAL);
    known.read(host);
    Ok((known.redactor()?, known.search))
}

/// How far the search for secrets got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    Whole,
    /// There was too much to look at: secrets are still recognised by their form, some not by their value.
    CutShort,
}

/// The secrets of a machine that is watched for long: those of files that change are learnt, those of files that go are not
/// forgotten, for a log may quote them still.
pub struct Secrets {
    known: Known,
    /// What the files looked like when they were read.
    stamp: u64,
    redactor: Redactor,
    /// It was said that there are more than are known.
    warned: bool,
}

struct Known {
    values: Vec<(Kind, Secret<Vec<u8>>)>,
    /// Hashes, so that nothing is counted twice: the same key lies in several files.
    seen: BTreeSet<String>,
    total: usize,
    max_total: usize,
    /// What private keys take of the total, and may take.
    keys: usize,
    max_keys: usize,
    deadline: Instant,
    search: Search,
}

// === impl Secrets ===

impl Secrets {
    /// Reads what the machine has now.
    pub fn of(host: &Host) -> Result<Self, BuildError> {
        let stamp = stamp(host);
        let mut known = Known::new(MAX_WATCHED, MAX_WATCHED_KEYS);
        known.read(host);
        let redactor = known.redactor()?;
        let mut secrets = Self { known, stamp, redactor, warned: false };
        secrets.warn();
        Ok(secrets)
    }

    /// The redactor that knows them, after another look at what has changed.
    pub fn redactor(&mut self, host: &Host) -> Result<&Redactor, BuildError> {
        let stamp = stamp(host);
        if stamp != self.stamp {
            let before = self.known.values.len();
            self.known.read(host);
            if self.known.values.len() > before {
                self.redactor = self.known.redactor()?;
            }
            // Only now: what failed is tried again.
            self.stamp = stamp;
            self.warn();
        }
        Ok(&self.redactor)
    }

    fn warn(&mut self) {
        if self.known.search == Search::CutShort && !std::mem::replace(&mut self.warned, true) {
            tracing::warn!(
                "This machine has more secrets than are known by their value; the others are taken out by their form only."
            );
        }
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

/// What all files that may hold secrets look like, as one number.
fn stamp(host: &Host) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    let mut hasher = DefaultHasher::new();
    for pattern in FIELDS.iter().chain(&WHOLE).chain(&KEYS) {
        for path in host.find(pattern, deadline).unwrap_or_default() {
            if let Ok(stat) = host.stat(&path) {
                path.hash(&mut hasher);
                (stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec).hash(&mut hasher);
            }
        }
    }
    hasher.finish()
}

// === impl Known ===

impl Known {
    fn new(max_total: usize, max_keys: usize) -> Self {
        Self {
            values: Vec::new(),
            seen: BTreeSet::new(),
            total: 0,
            max_total,
            keys: 0,
            max_keys,
            deadline: Instant::now() + PATIENCE,
            search: Search::Whole,
        }
    }

    /// Tokens and passwords are short, and programs print them more often than keys: they come first while there is room.
    fn read(&mut self, host: &Host) {
        self.deadline = Instant::now() + PATIENCE;
        self.each(host, &FIELDS, Self::fields);
        self.each(host, &WHOLE, |known, content| known.add(Kind::PASSWORD, content.trim_ascii()));
        self.each(host, &FIELDS, Self::embedded_keys);
        self.each(host, &KEYS, Self::keys);
    }

    fn redactor(&self) -> Result<Redactor, BuildError> {
        let builder = self
            .values
            .iter()
            .fold(Redactor::builder(), |builder, (kind, value)| builder.known_secret(*kind, value));
        builder.build()
    }

    fn add(&mut self, kind: Kind, value: &[u8]) {
        let hash = crate::bundle::sha256(value);
        if self.seen.contains(&hash) {
            return;
        }
        let keys = self.keys + if kind == Kind::PRIVATE_KEY { value.len() } else { 0 };
        if self.total + value.len() > self.max_total || keys > self.max_keys {
            self.search = Search::CutShort;
            return;
        }
        self.seen.insert(hash);
        self.total += value.len();
        self.keys = keys;
        self.values.push((kind, Secret::new(value.to_vec())));
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

    /// Keys that stand in a configuration, as they are or as a field of a kubeconfig.
    fn embedded_keys(&mut self, text: &[u8]) {
        self.keys(text);
        for (name, value) in named(&String::from_utf8_lossy(text)) {
            if name == "client-key-data" && value.len() >= landfall_redact::KNOWN_MIN {
                if let Ok(key) = STANDARD.decode(value) {
                    self.keys(&key);
                }
                self.add(Kind::PRIVATE_KEY, value.as_bytes());
            }
        }
    }

    /// Values of fields that hold secrets by their name, in YAML, JSON and TOML alike.
    fn fields(&mut self, text: &[u8]) {
        for (name, value) in named(&String::from_utf8_lossy(text)) {
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
                _ => continue,
            };
            // `token: ""`, `auth: true` and references to files are no secrets.
            if value.len() >= landfall_redact::KNOWN_MIN && !value.starts_with('/') {
                self.add(kind, value.as_bytes());
            }
        }
    }

    /// Looks at what each file that fits holds. What cannot be read cannot have been shown by others to us either.
    fn each(&mut self, host: &Host, patterns: &[&str], mut look: impl FnMut(&mut Self, &[u8])) {
        let mut total = 0;
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
                    return;
                }
                look(self, &content);
            }
        }
    }
}

/// Fields and their values. JSON on one line has its fields between commas.
fn named(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split(['\n', ',', '{', '}']).filter_map(|line| {
        let (name, value) = line.split_once([':', '='])?;
        let name = name.trim().trim_start_matches("- ").trim_matches(['"', '\'']);
        Some((name, value.trim().trim_matches(['"', '\''])))
    })
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

    #[test]
    fn what_a_watched_machine_knew_once_is_not_forgotten() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("run/kubeadm");
        fs::create_dir_all(&folder).unwrap();
        let host = Host::at(root.path()).unwrap();
        let mut secrets = Secrets::of(&host).unwrap();
        let mut shown = |text: &str| {
            let redactor = secrets.redactor(&host).unwrap();
            String::from_utf8(redactor.redact(text.as_bytes(), Options::default()).0).unwrap()
        };
        let line = "it said canary-0011 and canary-2233\n";
        assert_eq!(shown(line), line, "nothing is known yet");
        fs::write(folder.join("a.yaml"), "password: canary-0011\n").unwrap();
        assert!(!shown(line).contains("canary-0011"), "a new file was not read");
        fs::remove_file(folder.join("a.yaml")).unwrap();
        fs::write(folder.join("b.yaml"), "password: canary-2233\n").unwrap();
        let after = shown(line);
        assert!(!after.contains("canary"), "{after}");
    }

    #[test]
    fn a_watched_machine_with_too_many_keys_still_knows_its_tokens() {
        let root = tempfile::tempdir().unwrap();
        let pki = root.path().join("etc/kubernetes/pki");
        fs::create_dir_all(&pki).unwrap();
        fs::create_dir_all(root.path().join("run/kubeadm")).unwrap();
        for number in 0..40 {
            let body = format!("{number:064}\n").repeat(16);
            let key = format!("-----BEGIN PRIVATE KEY-----\n{body}-----END PRIVATE KEY-----\n");
            fs::write(pki.join(format!("{number}.key")), &key).unwrap();
            let data = format!("    client-key-data: {}\n", STANDARD.encode(&key));
            fs::write(root.path().join(format!("etc/kubernetes/{number}.conf")), data).unwrap();
        }
        fs::write(root.path().join("run/kubeadm/join.yaml"), "token: abcdef.0011223344556677\n").unwrap();
        let host = Host::at(root.path()).unwrap();
        let mut secrets = Secrets::of(&host).unwrap();
        assert!(secrets.known.search == Search::CutShort && secrets.known.total <= MAX_WATCHED);
        assert!(secrets.known.keys <= MAX_WATCHED_KEYS && secrets.warned);
        let mut shown = |secret: &str| {
            let redactor = secrets.redactor(&host).unwrap();
            let (out, _) = redactor.redact(format!(">{secret}<\n").as_bytes(), Options::default());
            String::from_utf8_lossy(&out).contains(secret)
        };
        assert!(!shown("0011223344556677"));
        // Those that come when the keys are known already have room too.
        let later = |number: usize| format!("canary-{number:025}");
        let fields: String = (0..100).map(|number| format!("password: {}\n", later(number))).collect();
        fs::write(root.path().join("run/kubeadm/later.yaml"), fields).unwrap();
        assert!((0..100).all(|number| !shown(&later(number))));
    }
}
