//! Credentials for an in-place bootstrap: the JSON of the Secret, as in the seed, parsed without I/O.
//!
//! ```text
//! RHCOS   ignition_url, ignition_token, ca_cert             [bootstrap_url, bootstrap_secret]
//! RHEL    bootstrap_url, bootstrap_secret, workerid, clusterid, region
//! ```
//!
//! On RHCOS, `bootstrap_url` and `bootstrap_secret` name the progress webhook; `progress_url` overrides its URL on
//! both. `hub_url` and `hub_token` name a hub that also receives progress. `registry_auth` is a `config.json` for
//! registries that the machine itself cannot access.

use landfall_model::Secret;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::in_place::flavour::Flavour;
use crate::in_place::oci::AuthFile;

/// Enough for a token, some URLs and one or two CA certificates.
pub const MAX_BYTES: u64 = 1024 * 1024;

/// Every field but `registry_auth`, which may be an object.
const TEXTS: [&str; 12] = [
    "ignition_url",
    "ignition_token",
    "ca_cert",
    "bootstrap_url",
    "bootstrap_secret",
    "workerid",
    "clusterid",
    "region",
    "progress_url",
    "hub_url",
    "hub_token",
    "hub_ca_cert",
];
/// A field and the field it is useless without: its absence would disable reporting without any error.
const PAIRS: [(&str, &str); 5] = [
    ("bootstrap_url", "bootstrap_secret"),
    ("progress_url", "bootstrap_secret"),
    ("hub_url", "hub_token"),
    ("hub_token", "hub_url"),
    ("hub_ca_cert", "hub_url"),
];

/// The complete content of the Secret.
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub struct Credentials {
    pub source: Source,
    pub progress: Option<ProgressEndpoint>,
    pub hub: Option<HubEndpoint>,
    /// A `config.json` with credentials for registries.
    pub registry_auth: Option<Secret<String>>,
}

/// Source of the new configuration of the machine.
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub enum Source {
    Ignition {
        url: String,
        /// The unmodified value of `Authorization`.
        token: Secret<String>,
        /// The only CAs that the endpoint is verified with (PEM).
        authorities: String,
    },
    Payload {
        url: String,
        password: Secret<String>,
        worker: String,
        cluster: String,
        region: String,
        /// CAs for the endpoint; without any, those of the machine.
        authorities: Option<String>,
    },
}

/// An endpoint that receives progress.
#[expect(missing_debug_implementations, reason = "holds a password")]
pub struct ProgressEndpoint {
    pub url: String,
    pub password: Secret<String>,
    pub authorities: Option<String>,
    pub worker: String,
    pub cluster: String,
}

/// A hub that receives progress.
#[expect(missing_debug_implementations, reason = "holds a token")]
pub struct HubEndpoint {
    pub url: String,
    pub token: Secret<String>,
    /// CAs for the hub; without any, those of the machine.
    pub authorities: Option<String>,
}

/// All reasons why the Secret cannot be used, in one error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    #[error("the Secret is not JSON: line {line}, column {column}")]
    NotJson { line: usize, column: usize },
    #[error("the Secret is not a JSON object")]
    NotObject,
    #[error("this is a complete Kubernetes object: pass only the decoded value of its key `bootstrap`")]
    Manifest,
    #[error("`{field}` of the Secret is not text")]
    NotText { field: &'static str },
    #[error("the Secret lacks {}", names(missing))]
    Incomplete { missing: Vec<&'static str> },
    #[error("`{field}` of the Secret is not an https:// URL")]
    NotProtected { field: &'static str },
    #[error("`{field}` of the Secret contains no certificate")]
    NoAuthority { field: &'static str },
    #[error("`{field}` of the Secret has characters that cannot be sent in a header")]
    NotSendable { field: &'static str },
}

// === impl Credentials ===

impl Credentials {
    /// Parses the JSON for a machine of this flavor.
    pub fn parse(json: &Secret<Vec<u8>>, flavour: Flavour) -> Result<Self, CredentialsError> {
        // The message of the parser is not used: it may quote the Secret.
        let not_json = |error: serde_json::Error| CredentialsError::NotJson {
            line: error.line(),
            column: error.column(),
        };
        let value: Value = serde_json::from_slice(json.expose()).map_err(not_json)?;
        let object = value.as_object().ok_or(CredentialsError::NotObject)?;
        if object.contains_key("apiVersion") && object.contains_key("kind") {
            return Err(CredentialsError::Manifest);
        }
        let is_text = |name: &str| object.get(name).is_none_or(|value| value.is_string() || value.is_null());
        if let Some(field) = TEXTS.into_iter().find(|name| !is_text(name)) {
            return Err(CredentialsError::NotText { field });
        }
        let text = |name: &str| {
            let text = object.get(name).and_then(Value::as_str).map(str::trim);
            text.filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let required: &[&'static str] = match flavour {
            Flavour::Rhcos => &["ignition_url", "ignition_token", "ca_cert"],
            Flavour::Rhel => &["bootstrap_url", "bootstrap_secret", "workerid", "clusterid", "region"],
        };
        // Fields that another given field requires.
        let pairs = PAIRS.iter().filter(|(given, _)| text(given).is_some()).map(|(_, needed)| needed);
        let required = required.iter().chain(pairs).copied();
        let mut missing: Vec<&'static str> = required.filter(|name| text(name).is_none()).collect();
        missing.dedup();
        if !missing.is_empty() {
            return Err(CredentialsError::Incomplete { missing });
        }
        for field in ["ignition_url", "bootstrap_url", "progress_url", "hub_url"] {
            if text(field).is_some_and(|url| !is_protected(&url)) {
                return Err(CredentialsError::NotProtected { field });
            }
        }
        for field in ["ignition_token", "bootstrap_secret", "region", "hub_token"] {
            if text(field).is_some_and(|value| !value.bytes().all(|byte| (b' '..=b'~').contains(&byte))) {
                return Err(CredentialsError::NotSendable { field });
            }
        }
        let authorities = text("ca_cert");
        for field in ["ca_cert", "hub_ca_cert"] {
            if text(field).is_some_and(|pem| !pem.contains("-----BEGIN CERTIFICATE-----")) {
                return Err(CredentialsError::NoAuthority { field });
            }
        }
        let named = |name: &str| text(name).unwrap_or_default();
        let source = match flavour {
            Flavour::Rhcos => Source::Ignition {
                url: named("ignition_url"),
                token: Secret::new(named("ignition_token")),
                authorities: authorities.clone().unwrap_or_default(),
            },
            Flavour::Rhel => Source::Payload {
                url: named("bootstrap_url"),
                password: Secret::new(named("bootstrap_secret")),
                worker: named("workerid"),
                cluster: named("clusterid"),
                region: named("region"),
                authorities: authorities.clone(),
            },
        };
        // The original sends the first progress to `/upiworker` below the URL of the payload.
        let progress_url = text("progress_url")
            .or_else(|| text("bootstrap_url").map(|url| format!("{}/upiworker", url.trim_end_matches('/'))));
        let progress = progress_url.zip(text("bootstrap_secret")).map(|(url, password)| ProgressEndpoint {
            url,
            password: Secret::new(password),
            authorities,
            worker: named("workerid"),
            cluster: named("clusterid"),
        });
        let hub = text("hub_url").zip(text("hub_token")).map(|(url, token)| HubEndpoint {
            url,
            token: Secret::new(token),
            authorities: text("hub_ca_cert"),
        });
        let registry_auth = object.get("registry_auth").map(|auth| match auth {
            Value::String(text) => Secret::new(text.clone()),
            other => Secret::new(other.to_string()),
        });
        Ok(Self { source, progress, hub, registry_auth })
    }

    /// Returns every value in it that must not be written anywhere else.
    pub fn secrets(&self) -> Vec<Secret<String>> {
        let own = match &self.source {
            Source::Ignition { token, .. } => token.expose().trim_start_matches("Bearer ").to_owned(),
            Source::Payload { password, .. } => password.expose().clone(),
        };
        let progress = self.progress.as_ref().map(|endpoint| endpoint.password.expose().clone());
        let hub = self.hub.as_ref().map(|endpoint| endpoint.token.expose().clone());
        let registries = self.registry_auth.as_ref().map(|auth| AuthFile::parse(auth.expose()));
        let registries = registries.iter().flat_map(AuthFile::secrets);
        [Some(own), progress, hub].into_iter().flatten().chain(registries).map(Secret::new).collect()
    }
}

/// Identifies the Secret without revealing it; part of the identity of an attempt.
pub fn digest(json: &Secret<Vec<u8>>) -> String {
    hex::encode(Sha256::digest(json.expose()))
}

/// Checks that a host follows, and that no character is invalid in a URL.
fn is_protected(url: &str) -> bool {
    let rest = url.strip_prefix("https://").unwrap_or_default();
    rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[')
        && !url.contains(|c: char| c.is_whitespace() || c.is_control())
}

fn names(missing: &[&'static str]) -> String {
    missing.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const CA: &str = "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n";

    fn parse(value: &Value, flavour: Flavour) -> Result<Credentials, CredentialsError> {
        Credentials::parse(&Secret::new(value.to_string().into_bytes()), flavour)
    }

    fn refused(value: &Value, flavour: Flavour) -> CredentialsError {
        parse(value, flavour).err().unwrap()
    }

    #[test]
    fn the_secrets_of_the_seed_are_read() {
        let rhcos = json!({"ignition_url": "https://i/ignition", "ignition_token": "Bearer abc", "ca_cert": CA,
            "bootstrap_url": "https://b/boot/", "bootstrap_secret": "otp"});
        let read = parse(&rhcos, Flavour::Rhcos).unwrap();
        let Source::Ignition { url, token, authorities } = &read.source else { panic!() };
        assert_eq!((url.as_str(), token.expose().as_str()), ("https://i/ignition", "Bearer abc"));
        assert!(authorities.starts_with("-----BEGIN"));
        assert_eq!(read.progress.unwrap().url, "https://b/boot/upiworker");
        let rhel = json!({"region": "eu-de", "bootstrap_url": "https://b", "workerid": "w", "clusterid": "c",
            "bootstrap_secret": "otp"});
        let read = parse(&rhel, Flavour::Rhel).unwrap();
        let Source::Payload { region, worker, authorities: None, .. } = &read.source else { panic!() };
        assert_eq!((region.as_str(), worker.as_str()), ("eu-de", "w"));
    }

    #[test]
    fn everything_that_is_missing_is_told_at_once() {
        let error = refused(&json!({"ignition_url": "https://i", "ca_cert": ""}), Flavour::Rhcos);
        assert_eq!(error.to_string(), "the Secret lacks `ignition_token`, `ca_cert`");
        assert_eq!(refused(&json!([]), Flavour::Rhel), CredentialsError::NotObject);
    }

    #[test]
    fn every_secret_of_the_secret_is_known() {
        // `puller:pullpass`
        let secret = json!({"ignition_url": "https://i", "ignition_token": "Bearer abc", "ca_cert": CA,
            "bootstrap_url": "https://b", "bootstrap_secret": "otp", "hub_url": "https://h", "hub_token": "hub",
            "registry_auth": {"auths": {"reg.corp": {"auth": "cHVsbGVyOnB1bGxwYXNz"}}}});
        let secrets = parse(&secret, Flavour::Rhcos).unwrap().secrets();
        let secrets: Vec<&str> = secrets.iter().map(|secret| secret.expose().as_str()).collect();
        assert_eq!(secrets, ["abc", "otp", "hub", "cHVsbGVyOnB1bGxwYXNz", "pullpass"]);
    }

    #[test]
    fn half_of_an_endpoint_is_not_passed_over() {
        let whole = json!({"ignition_url": "https://i", "ignition_token": "t", "ca_cert": CA});
        for (given, lacks) in [
            (&["progress_url"][..], "bootstrap_secret"),
            (&["bootstrap_url", "progress_url"], "bootstrap_secret"),
            (&["hub_url"], "hub_token"),
            (&["hub_token", "hub_ca_cert"], "hub_url"),
        ] {
            let mut secret = whole.clone();
            for name in given {
                secret[*name] = json!("https://x");
            }
            let expected = CredentialsError::Incomplete { missing: vec![lacks] };
            assert_eq!(refused(&secret, Flavour::Rhcos), expected, "{given:?}");
        }
    }

    #[test]
    fn what_people_hand_in_instead_is_named() {
        let cut = Secret::new(b"{\"ignition_url\": \"https://i\",\n \"ignition_token\": s3cret}".to_vec());
        let error = Credentials::parse(&cut, Flavour::Rhcos).err().unwrap();
        assert_eq!(error.to_string(), "the Secret is not JSON: line 2, column 20");
        let object = json!({"apiVersion": "v1", "kind": "Secret", "data": {"bootstrap": "e30="}});
        assert_eq!(refused(&object, Flavour::Rhcos), CredentialsError::Manifest);
        let number = json!({"workerid": 7});
        assert_eq!(refused(&number, Flavour::Rhel), CredentialsError::NotText { field: "workerid" });
        let rhcos = |url: &str| json!({"ignition_url": url, "ignition_token": "t", "ca_cert": CA});
        for url in ["https://", "https:///x", "https://?", "https://a b/", "https://a/\u{7}", "HTTP://a"] {
            let expected = CredentialsError::NotProtected { field: "ignition_url" };
            assert_eq!(refused(&rhcos(url), Flavour::Rhcos), expected, "{url}");
        }
        assert!(parse(&rhcos("https://[fd00::1]:22623/config/worker"), Flavour::Rhcos).is_ok());
    }

    #[test]
    fn open_lines_and_empty_authorities_are_refused() {
        let with = |url: &str, ca: &str, token: &str| {
            refused(&json!({"ignition_url": url, "ignition_token": token, "ca_cert": ca}), Flavour::Rhcos)
        };
        assert_eq!(with("http://i", CA, "t"), CredentialsError::NotProtected { field: "ignition_url" });
        assert_eq!(with("https://i", "x", "t"), CredentialsError::NoAuthority { field: "ca_cert" });
        assert_eq!(with("https://i", CA, "a\nb"), CredentialsError::NotSendable { field: "ignition_token" });
    }
}
