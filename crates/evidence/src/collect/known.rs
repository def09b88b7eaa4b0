//! The machine's own secrets, read from their files so that the redactor finds them in all other evidence.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::time::{Duration, Instant};

use landfall_model::Secret;
use landfall_redact::{BuildError, KNOWN_TOTAL_MAX, Kind, Redactor};

use super::host::Host;
use super::secrets::named_files::{self, NamedFile};
use super::secrets::places::{Format, PLACES};
use super::secrets::{self, unpacked};

/// Files with secrets are small; only this much of a larger file is read.
const MAX_FILE: u64 = 1 << 20;
/// Limit for all such files of a machine: a thousand links to one large file do not contain a thousand
/// secrets.
const MAX_READ: usize = 32 << 20;

/// The paths are few and known; only a hostile disk takes longer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Limit for all values, well below the redactor's own limit: if that is exceeded, the redactor cannot be
/// built.
const MAX_TOTAL: usize = KNOWN_TOTAL_MAX / 2;
/// Like [`MAX_TOTAL`] for continuous watching: each byte of a secret permanently takes about 80 bytes of
/// memory.
const MAX_WATCHED: usize = 12 << 10;
/// Share of private keys: those of a control plane alone would leave no space for tokens that are added
/// later.
const MAX_WATCHED_KEYS: usize = MAX_WATCHED / 2;

/// Builds a redactor with this machine's secrets, and reports whether the search was complete.
pub(super) fn redactor(host: &Host) -> Result<(Redactor, Search), BuildError> {
    let mut known = Known::new(MAX_TOTAL, MAX_TOTAL);
    known.read(host, &named_files::find(host, Instant::now() + PATIENCE));
    Ok((known.redactor()?, known.search))
}

/// Completeness of the search for secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    Whole,
    /// A limit was reached: secrets are still recognized by form, but some are not recognized by value.
    CutShort,
}

/// The secrets of a machine that is watched continuously.
///
/// Changed files add secrets; secrets of deleted files are kept, because logs may still quote them.
pub struct Secrets {
    known: Known,
    /// The files that settings name, found again only after a file of the stamp changed.
    named: Vec<NamedFile>,
    /// Fingerprint of the metadata of the files when they were last read.
    stamp: u64,
    redactor: Redactor,
    /// A warning about exceeding the limits was logged.
    warned: bool,
}

struct Known {
    values: Vec<(Kind, Secret<Vec<u8>>)>,
    /// Hashes of known values, so that a key in several files counts once.
    seen: BTreeSet<String>,
    total: usize,
    max_total: usize,
    /// Bytes of private keys, and their limit.
    keys: usize,
    max_keys: usize,
    deadline: Instant,
    search: Search,
}

// === impl Secrets ===

impl Secrets {
    /// Reads the machine's current secrets.
    pub fn of(host: &Host) -> Result<Self, BuildError> {
        let named = named_files::find(host, Instant::now() + PATIENCE);
        let stamp = stamp(host, &named);
        let mut known = Known::new(MAX_WATCHED, MAX_WATCHED_KEYS);
        known.read(host, &named);
        let redactor = known.redactor()?;
        let mut secrets = Self { known, named, stamp, redactor, warned: false };
        secrets.warn();
        Ok(secrets)
    }

    /// Returns the redactor, after reading changed files.
    pub fn redactor(&mut self, host: &Host) -> Result<&Redactor, BuildError> {
        if stamp(host, &self.named) != self.stamp {
            self.named = named_files::find(host, Instant::now() + PATIENCE);
            let stamp = stamp(host, &self.named);
            let before = self.known.values.len();
            self.known.read(host, &self.named);
            if self.known.values.len() > before {
                self.redactor = self.known.redactor()?;
            }
            // Set only after success, so that a failed read is retried.
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

/// Hashes the metadata of all files that may contain secrets or name such files.
fn stamp(host: &Host, named: &[NamedFile]) -> u64 {
    let deadline = Instant::now() + PATIENCE;
    let mut hasher = DefaultHasher::new();
    let mut patterns = BTreeSet::new();
    for pattern in named_files::sources() {
        patterns.insert(pattern);
    }
    for (pattern, _) in readable(named) {
        patterns.insert(pattern);
    }
    for pattern in patterns {
        for path in host.find(pattern, deadline).unwrap_or_default() {
            if let Ok(stat) = host.stat(&path) {
                path.hash(&mut hasher);
                (stat.st_ino, stat.st_size, stat.st_mtime, stat.st_mtime_nsec).hash(&mut hasher);
            }
        }
    }
    hasher.finish()
}

/// The files that are read: those of the table, and those that settings of components name.
fn readable<'n>(named: &'n [NamedFile]) -> impl Iterator<Item = (&'n str, Format)> {
    let places = PLACES.iter().map(|place| -> (&'n str, Format) { (place.path, place.format) });
    let named = named.iter().map(|file| (file.path.as_str(), file.format));
    places.chain(named).filter(|(_, format)| *format != Format::Opaque)
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

    /// Reads all places. Tokens and passwords are short, and programs print them more often than keys: they are added
    /// first.
    fn read(&mut self, host: &Host, named: &[NamedFile]) {
        self.deadline = Instant::now() + PATIENCE;
        let mut keys = Vec::new();
        let mut key_bytes = 0;
        let mut read_bytes = 0;
        let mut read = HashSet::new();
        for (pattern, format) in readable(named) {
            let paths = match host.find(pattern, self.deadline) {
                Ok(paths) => paths,
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    self.search = Search::CutShort;
                    continue;
                }
                // Programs that write our logs could not read this directory either.
                Err(_) => continue,
            };
            for path in paths {
                // Several patterns can match a file, and links can lead to it.
                let Ok(stat) = host.stat(&path) else { continue };
                if !read.insert((stat.st_dev, stat.st_ino)) {
                    continue;
                }
                let Ok(content) = host.read(&path, MAX_FILE) else { continue };
                let is_truncated = content.len() as u64 == MAX_FILE;
                let content = unpacked(content);
                read_bytes += content.len();
                if read_bytes > MAX_READ || Instant::now() >= self.deadline {
                    self.search = Search::CutShort;
                    break;
                }
                let (values, is_complete) = secrets::search(format, &content).into_parts();
                if !is_complete || is_truncated {
                    self.search = Search::CutShort;
                }
                for (kind, value) in values {
                    if kind != Kind::PRIVATE_KEY {
                        self.add(kind, value.expose());
                    } else if key_bytes < self.max_total {
                        key_bytes += value.expose().len();
                        keys.push(value);
                    } else {
                        self.search = Search::CutShort;
                    }
                }
            }
        }
        for key in keys {
            self.add(Kind::PRIVATE_KEY, key.expose());
        }
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
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
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
    fn values_are_found_in_files_that_flags_name() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let flags = "    - --encryption-provider-config=/srv/enc.yaml\n    - --token-auth-file=/srv/users\n";
        write("etc/kubernetes/manifests/kube-apiserver.yaml", flags);
        write("srv/enc.yaml", "keys:\n- name: key1\n  secret: Y2FuYXJ5LTAwMTEtY2FuYXJ5LTIyMzM=\n");
        write("srv/users", "canary-4455,admin,1,system:masters\n");
        let (redactor, _) = redactor(&Host::at(root.path()).unwrap()).unwrap();
        for secret in ["Y2FuYXJ5LTAwMTEtY2FuYXJ5LTIyMzM=", "canary-4455"] {
            let (out, _) = redactor.redact(format!("said >{secret}<\n").as_bytes(), Options::default());
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
        // Secrets added after the keys still fit.
        let later = |number: usize| format!("canary-{number:025}");
        let fields: String = (0..100).map(|number| format!("password: {}\n", later(number))).collect();
        fs::write(root.path().join("run/kubeadm/later.yaml"), fields).unwrap();
        assert!((0..100).all(|number| !shown(&later(number))));
    }
}
