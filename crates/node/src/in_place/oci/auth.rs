//! Access to registries: `config.json` files, and the authentication challenges of registries.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use landfall_model::Secret;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

/// Bytes that are escaped in the value of a query parameter.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Enough for a pull secret for a few dozen registries.
pub const MAX_BYTES: u64 = 1024 * 1024;

/// The `auths` of a `config.json`.
#[expect(missing_debug_implementations, reason = "holds credentials")]
#[derive(Default)]
pub struct AuthFile {
    entries: BTreeMap<String, Secret<String>>,
}

/// The authentication that a registry requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

pub(super) fn token_url(realm: &str, service: Option<&str>, scope: &str) -> String {
    let mut url = realm.to_owned();
    let mut separator = if realm.contains('?') { '&' } else { '?' };
    for (name, value) in service.map(|service| ("service", service)).into_iter().chain([("scope", scope)]) {
        url.push_str(&format!("{separator}{name}={}", escape(value)));
        separator = '&';
    }
    url
}

pub(crate) fn escape(value: &str) -> String {
    utf8_percent_encode(value, QUERY).to_string()
}

// === impl AuthFile ===

impl AuthFile {
    /// Parses a file. Unreadable content counts as empty: the registry then reports the missing credentials.
    pub fn parse(json: &str) -> Self {
        let value: Value = serde_json::from_str(json).unwrap_or_default();
        let auths = value["auths"].as_object().cloned().unwrap_or_default();
        let entries = auths.into_iter().filter_map(|(name, entry)| {
            let encoded = match (entry["auth"].as_str(), entry["username"].as_str()) {
                (Some(auth), _) if !auth.is_empty() => auth.to_owned(),
                (_, Some(user)) => BASE64_STANDARD.encode(format!("{user}:{}", entry["password"].as_str()?)),
                _ => return None,
            };
            let name = name.trim_start_matches("https://").trim_end_matches('/');
            let name = name.trim_end_matches("/v2").trim_end_matches("/v1").to_owned();
            Some((name, Secret::new(encoded)))
        });
        Self { entries: entries.collect() }
    }

    /// Returns every value that must not be logged: the `Basic` credentials, and the passwords in them.
    pub fn secrets(&self) -> impl Iterator<Item = String> {
        self.entries.values().flat_map(|encoded| {
            let encoded = encoded.expose();
            let decoded =
                BASE64_STANDARD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            let password = decoded.and_then(|pair| Some(pair.split_once(':')?.1.to_owned()));
            [Some(encoded.clone()), password].into_iter().flatten()
        })
    }

    /// Returns the registries that the file has credentials for.
    pub fn hosts(&self) -> Vec<String> {
        let mut hosts: Vec<String> =
            self.entries.keys().filter_map(|name| name.split('/').next()).map(str::to_owned).collect();
        hosts.dedup();
        hosts
    }

    /// Returns the `Basic` credentials for a repository: its own entry, else that of a parent path, else that of the
    /// registry.
    pub fn lookup(&self, host: &str, repository: &str) -> Option<&Secret<String>> {
        let mut name = format!("{host}/{repository}");
        loop {
            if let Some(found) = self.entries.get(&name) {
                return Some(found);
            }
            name.truncate(name.rfind('/')?);
        }
    }
}

// === impl Challenge ===

impl Challenge {
    pub fn parse(header: &str) -> Option<Self> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let mut found = BTreeMap::new();
        let mut rest = rest;
        while let Some((name, tail)) = rest.split_once('=') {
            let (value, after) = match tail.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => tail.split_once(',').unwrap_or((tail, "")),
            };
            found.insert(name.trim_matches([',', ' ']).to_ascii_lowercase(), value.to_owned());
            rest = after;
        }
        let realm = found.remove("realm")?;
        Some(Self::Bearer { realm, service: found.remove("service"), scope: found.remove("scope") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_entry_counts() {
        let file = AuthFile::parse(
            r#"{"auths": {"reg.corp": {"auth": "host"}, "reg.corp/a": {"auth": "folder"},
            "https://index.corp/v1/": {"username": "u", "password": "p"}, "broken": 3}}"#,
        );
        let found = |host, repository| file.lookup(host, repository).map(|secret| secret.expose().as_str());
        assert_eq!(found("reg.corp", "a/b"), Some("folder"));
        assert_eq!(found("reg.corp", "ab"), Some("host"));
        assert_eq!(found("index.corp", "x"), Some("dTpw"));
        assert_eq!(found("other.corp", "x"), None);
        assert!(AuthFile::parse("not json").lookup("reg.corp", "a").is_none());
    }

    #[test]
    fn challenges_are_read() {
        assert_eq!(Challenge::parse("Basic realm=\"x\""), Some(Challenge::Basic));
        let bearer = Challenge::parse(
            r#"Bearer realm="https://auth.corp/token",service="reg.corp",scope="repository:a/b:pull,push""#,
        );
        assert_eq!(
            bearer,
            Some(Challenge::Bearer {
                realm: "https://auth.corp/token".into(),
                service: Some("reg.corp".into()),
                scope: Some("repository:a/b:pull,push".into()),
            })
        );
        for odd in ["", "Negotiate", "Bearer", "Bearer realm=\"cut"] {
            assert_eq!(Challenge::parse(odd), None, "{odd}");
        }
        assert_eq!(
            token_url("https://a/t?x=y", Some("r c"), "s:p"),
            "https://a/t?x=y&service=r%20c&scope=s%3Ap"
        );
    }
}
