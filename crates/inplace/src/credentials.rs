//! What a machine is given to re-bootstrap itself: the JSON of the Secret, as the seed has it, read without I/O.
//!
//! ```text
//! RHCOS   ignition_url, ignition_token, ca_cert             [bootstrap_url, bootstrap_secret]
//! RHEL    bootstrap_url, bootstrap_secret, workerid, clusterid, region
//! ```
//!
//! `bootstrap_url` and `bootstrap_secret` are on RHCOS where progress is told; `progress_url` names another place for
//! both. `hub_url` and `hub_token` name a hub that is told as well. `registry_auth` is a `config.json` for registries that the machine itself has no access to.

use landfall_model::Secret;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::flavour::Flavour;

/// A token, some URLs and a certificate authority or two.
pub const MAX_BYTES: u64 = 1024 * 1024;

/// What the Secret says, whole.
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub struct Credentials {
    pub source: Source,
    pub progress: Option<ProgressEndpoint>,
    pub hub: Option<HubEndpoint>,
    /// A `config.json` with access to registries.
    pub registry_auth: Option<Secret<String>>,
}

/// Where the new life of the machine comes from.
#[expect(missing_debug_implementations, reason = "holds credentials")]
pub enum Source {
    Ignition {
        url: String,
        /// The value of `Authorization`, as it is.
        token: Secret<String>,
        /// The only authorities the endpoint is trusted by, PEM.
        authorities: String,
    },
    Payload {
        url: String,
        password: Secret<String>,
        worker: String,
        cluster: String,
        region: String,
        /// Where none are given, the machine's own count.
        authorities: Option<String>,
    },
}

/// Where progress is told.
#[expect(missing_debug_implementations, reason = "holds a password")]
pub struct ProgressEndpoint {
    pub url: String,
    pub password: Secret<String>,
    pub authorities: Option<String>,
    pub worker: String,
    pub cluster: String,
}

/// A hub that progress is told to.
#[expect(missing_debug_implementations, reason = "holds a token")]
pub struct HubEndpoint {
    pub url: String,
    pub token: Secret<String>,
    /// Where none are given, the machine's own count.
    pub authorities: Option<String>,
}

/// Every way in which the Secret cannot be used, at once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialsError {
    #[error("the Secret is not a JSON object")]
    NotJson,
    #[error("the Secret lacks {}", names(missing))]
    Incomplete { missing: Vec<&'static str> },
    #[error("`{field}` of the Secret is not an https:// URL")]
    NotProtected { field: &'static str },
    #[error("`{field}` of the Secret holds no certificate")]
    NoAuthority { field: &'static str },
    #[error("`{field}` of the Secret has characters that cannot be sent in a header")]
    NotSendable { field: &'static str },
}

// === impl Credentials ===

impl Credentials {
    /// Reads the JSON for a machine of this flavour.
    pub fn parse(json: &Secret<Vec<u8>>, flavour: Flavour) -> Result<Self, CredentialsError> {
        let value: Value = serde_json::from_slice(json.expose()).map_err(|_| CredentialsError::NotJson)?;
        let object = value.as_object().ok_or(CredentialsError::NotJson)?;
        let text = |name: &str| {
            let text = object.get(name).and_then(Value::as_str).map(str::trim);
            text.filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let required: &[&'static str] = match flavour {
            Flavour::Rhcos => &["ignition_url", "ignition_token", "ca_cert"],
            Flavour::Rhel => &["bootstrap_url", "bootstrap_secret", "workerid", "clusterid", "region"],
        };
        let hub: &[&'static str] = if text("hub_url").is_some() { &["hub_token"] } else { &[] };
        let required = required.iter().chain(hub).copied();
        let missing: Vec<&'static str> = required.filter(|name| text(name).is_none()).collect();
        if !missing.is_empty() {
            return Err(CredentialsError::Incomplete { missing });
        }
        for field in ["ignition_url", "bootstrap_url", "progress_url", "hub_url"] {
            if text(field).is_some_and(|url| !url.starts_with("https://")) {
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
        // The original tells the first progress to `/upiworker` below the URL the payload comes from.
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

    /// Everything in it that must not be written down anywhere else.
    pub fn secrets(&self) -> Vec<Secret<String>> {
        let own = match &self.source {
            Source::Ignition { token, .. } => token.expose().trim_start_matches("Bearer ").to_owned(),
            Source::Payload { password, .. } => password.expose().clone(),
        };
        let progress = self.progress.as_ref().map(|endpoint| endpoint.password.expose().clone());
        let hub = self.hub.as_ref().map(|endpoint| endpoint.token.expose().clone());
        [Some(own), progress, hub].into_iter().flatten().map(Secret::new).collect()
    }
}

/// Names the Secret without telling it: part of what makes an attempt.
pub fn digest(json: &Secret<Vec<u8>>) -> String {
    Sha256::digest(json.expose()).iter().map(|byte| format!("{byte:02x}")).collect()
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
        assert_eq!(refused(&json!([]), Flavour::Rhel), CredentialsError::NotJson);
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
