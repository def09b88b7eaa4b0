//! The secrets found in one file.

use landfall_model::Secret;
use landfall_redact::{KNOWN_MIN, Kind};

use super::names;

/// Maximum number of secrets per file. More are a mistake or an attack.
const MAX_VALUES: usize = 10_000;

/// Maximum value size: a PEM private key of 16 kilobits, or a long token.
const MAX_VALUE: usize = 64 << 10;

/// Maximum decoded bytes per file: bounds nested payloads.
const MAX_DECODED: usize = 8 << 20;

/// Maximum nesting of payloads.
const MAX_DEPTH: usize = 6;

/// A bootstrap token: public ID, dot, secret.
const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;

/// A secret and its kind.
pub(in crate::collect) type Value = (Kind, Secret<Vec<u8>>);

/// Collects the secrets of one file and limits the work.
pub(in crate::collect) struct Values {
    found: Vec<Value>,
    decoded: usize,
    depth: usize,
    is_complete: bool,
}

// === impl Values ===

impl Values {
    pub(super) fn new() -> Self {
        Self { found: Vec::new(), decoded: 0, depth: 0, is_complete: true }
    }

    /// Returns the values, and whether no limit was reached.
    pub(in crate::collect) fn into_parts(self) -> (Vec<Value>, bool) {
        (self.found, self.is_complete)
    }

    /// Adds the value of a field if fields with this name contain secrets.
    ///
    /// A field named `secret` may also contain an object name.
    pub(super) fn field(&mut self, name: &str, value: &str) {
        let Some(kind) = names::kind(name) else { return };
        let is_name = name.to_ascii_lowercase().ends_with("secret") && names::is_object_name(value);
        // `passwd: files systemd` in nsswitch.conf.
        let is_source = name == "passwd" && value.trim().contains(' ');
        if !is_name && !is_source {
            self.secret(kind, value);
        }
    }

    /// Adds a value that is a secret by its name or location, unless it is implausible.
    pub(super) fn secret(&mut self, kind: Kind, value: &str) {
        if value.contains("-----BEGIN") {
            return self.private_keys(value);
        }
        let Some(value) = names::plausible(value) else { return };
        // K3s: the hash of a public certificate, a user and the secret.
        let value = match value.split_once("::") {
            Some((hash, rest)) if hash.starts_with("K10") => {
                rest.split_once(':').map_or(rest, |(_, password)| password)
            }
            _ => value,
        };
        let kind = if is_bootstrap_token(value) { Kind::BOOTSTRAP_TOKEN } else { kind };
        self.add(kind, value.as_bytes());
    }

    /// Adds a value unchanged.
    pub(super) fn add(&mut self, kind: Kind, value: &[u8]) {
        if value.len() < KNOWN_MIN || self.found.iter().any(|(_, known)| known.expose() == value) {
            return;
        }
        if self.found.len() >= MAX_VALUES || value.len() > MAX_VALUE {
            self.is_complete = false;
            return;
        }
        self.found.push((kind, Secret::new(value.to_vec())));
    }

    /// Adds the bodies of PEM private keys.
    pub(super) fn private_keys(&mut self, text: &str) {
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

    /// Searches a payload of this size one level deeper, unless a limit is reached.
    pub(super) fn nested(&mut self, size: usize, search: impl FnOnce(&mut Self)) {
        if self.depth >= MAX_DEPTH || self.decoded + size > MAX_DECODED {
            self.is_complete = false;
            return;
        }
        self.decoded += size;
        self.depth += 1;
        search(self);
        self.depth -= 1;
    }
}

fn is_bootstrap_token(value: &str) -> bool {
    value.split_once('.').is_some_and(|(id, secret)| {
        let is_plain =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        id.len() == ID_LENGTH && secret.len() == SECRET_LENGTH && is_plain(id) && is_plain(secret)
    })
}
