//! The answer of an Ignition server, parsed without I/O: its files, the MachineConfig among them, and the image that
//! contains machine-config-daemon.

mod data_url;

use std::collections::BTreeMap;

use serde_json::{Value, json};

pub use data_url::{DataUrlError, decode};

/// A complete worker configuration has some megabytes.
pub const MAX_BYTES: u64 = 32 * 1024 * 1024;
/// The MachineConfig that the server embeds in its answer.
const MACHINE_CONFIG: &str = "/etc/mcs-machine-config-content.json";
/// File with the digest of the machine-config-daemon image, as the servers of the original provide it.
const DAEMON_DIGEST: &str = "/etc/sysconfig/machineconfigdaemonsha";
const DAEMON_DIGEST_KEY: &str = "MACHINE_CONFIG_DAEMON_SHA";
/// The unit that pulls the image, used when the digest file is missing.
const PULL_UNIT: &str = "machine-config-daemon-pull.service";
pub const REGISTRIES: &str = "/etc/containers/registries.conf";
/// Repository of release images.
const RELEASE_REPOSITORY: &str = "quay.io/openshift-release-dev/ocp-v4.0-art-dev";
/// Files that the server adds beside the MachineConfig: machine-config-daemon would not write them.
pub const ADDED_FILES: [&str; 2] =
    ["/etc/kubernetes/kubeconfig", "/etc/machine-config-daemon/node-annotations.json"];

/// An Ignition configuration.
#[derive(Clone, Debug)]
pub struct Ignition {
    files: BTreeMap<String, Value>,
    units: Vec<(String, String)>,
}

#[derive(Debug, thiserror::Error)]
pub enum IgnitionError {
    #[error("the Ignition answer is not JSON")]
    NotJson(#[source] serde_json::Error),
    #[error("the Ignition answer has version `{version}`; 2.x and 3.x are understood")]
    Version { version: String },
    #[error("the Ignition answer lacks `{path}`")]
    NoFile { path: &'static str },
    #[error("`{path}` in the Ignition answer cannot be decoded")]
    Content {
        path: String,
        #[source]
        source: DataUrlError,
    },
    #[error("`{path}` in the Ignition answer is not what it should be: {what}")]
    Shape { path: &'static str, what: &'static str },
    #[error("the Ignition answer does not say which image holds machine-config-daemon")]
    NoDaemon,
}

// === impl Ignition ===

impl Ignition {
    pub fn parse(bytes: &[u8]) -> Result<Self, IgnitionError> {
        let document: Value = serde_json::from_slice(bytes).map_err(IgnitionError::NotJson)?;
        let version = document["ignition"]["version"].as_str().unwrap_or_default();
        if !version.starts_with("2.") && !version.starts_with("3.") {
            return Err(IgnitionError::Version { version: version.chars().take(32).collect() });
        }
        let entries = document["storage"]["files"].as_array().cloned().unwrap_or_default();
        let files = entries
            .into_iter()
            .filter_map(|entry| entry["path"].as_str().map(str::to_owned).map(|path| (path, entry)))
            .collect();
        let units = document["systemd"]["units"].as_array().cloned().unwrap_or_default();
        let text = |unit: &Value, key: &str| unit[key].as_str().unwrap_or_default().to_owned();
        let units = units.iter().map(|unit| (text(unit, "name"), text(unit, "contents"))).collect();
        Ok(Self { files, units })
    }

    /// Returns the content of a file, if it exists.
    pub fn file(&self, path: &str) -> Result<Option<Vec<u8>>, IgnitionError> {
        let Some(entry) = self.files.get(path) else { return Ok(None) };
        let source = entry["contents"]["source"].as_str().unwrap_or("data:,");
        let compression = entry["contents"]["compression"].as_str();
        let content = decode(source, compression)
            .map_err(|source| IgnitionError::Content { path: path.to_owned(), source })?;
        Ok(Some(content))
    }

    /// Returns the MachineConfig as served.
    pub fn machine_config(&self) -> Result<Value, IgnitionError> {
        let bytes = self.file(MACHINE_CONFIG)?.ok_or(IgnitionError::NoFile { path: MACHINE_CONFIG })?;
        let config: Value = serde_json::from_slice(&bytes).map_err(IgnitionError::NotJson)?;
        if config["kind"] != "MachineConfig" || !config["spec"]["config"].is_object() {
            let what = "a MachineConfig with `spec.config` is expected";
            return Err(IgnitionError::Shape { path: MACHINE_CONFIG, what });
        }
        Ok(config)
    }

    /// Returns the MachineConfig for machine-config-daemon: with the files that the server adds, and the fields that
    /// the daemon requires.
    pub fn complete_machine_config(&self) -> Result<Value, IgnitionError> {
        let mut config = self.machine_config()?;
        let shape = |what| IgnitionError::Shape { path: MACHINE_CONFIG, what };
        let ignition = &mut config["spec"]["config"];
        let storage = ignition.as_object_mut().ok_or(shape("`spec.config` is an object"))?;
        let storage = storage.entry("storage").or_insert_with(|| json!({}));
        let storage = storage.as_object_mut().ok_or(shape("`storage` is an object"))?;
        let files = storage.entry("files").or_insert_with(|| json!([]));
        let files = files.as_array_mut().ok_or(shape("`storage.files` is a list"))?;
        for path in ADDED_FILES {
            let entry = self.files.get(path).ok_or(IgnitionError::NoFile { path })?;
            // Rejects content that the daemon could not decode.
            self.file(path)?;
            files.retain(|file| file["path"] != path);
            files.push(entry.clone());
        }
        let passwd = ignition.as_object_mut().ok_or(shape("`spec.config` is an object"))?;
        let passwd = passwd.entry("passwd").or_insert_with(|| json!({}));
        let passwd = passwd.as_object_mut().ok_or(shape("`passwd` is an object"))?;
        let users = passwd.entry("users").or_insert_with(|| json!([]));
        let users = users.as_array_mut().ok_or(shape("`passwd.users` is a list"))?;
        if users.is_empty() {
            users.push(json!({"name": "core"}));
        }
        let first = users.first_mut().and_then(Value::as_object_mut);
        let keys = first.ok_or(shape("a user is an object"))?.entry("sshAuthorizedKeys");
        let keys = keys.or_insert_with(|| json!([]));
        if keys.as_array().is_none_or(Vec::is_empty) {
            *keys = json!([""]);
        }
        Ok(config)
    }

    /// Returns the image that contains machine-config-daemon, `repository@sha256:…`, before mirrors are applied.
    pub fn daemon_image(&self) -> Result<String, IgnitionError> {
        if let Some(bytes) = self.file(DAEMON_DIGEST)? {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let value = text.lines().find_map(|line| {
                let (key, value) = line.trim().split_once('=')?;
                (key.trim() == DAEMON_DIGEST_KEY).then(|| value.trim().trim_matches('"').to_owned())
            });
            let what = "`MACHINE_CONFIG_DAEMON_SHA=sha256:…` is expected";
            let value = value.ok_or(IgnitionError::Shape { path: DAEMON_DIGEST, what })?;
            return match value {
                named if named.contains("@sha256:") => Ok(named),
                digest if digest.starts_with("sha256:") => Ok(format!("{RELEASE_REPOSITORY}@{digest}")),
                digest if digest.len() == 64 => Ok(format!("{RELEASE_REPOSITORY}@sha256:{digest}")),
                _ => Err(IgnitionError::Shape { path: DAEMON_DIGEST, what }),
            };
        }
        let pull = self.units.iter().find(|(name, _)| name == PULL_UNIT);
        let image = pull.and_then(|(_, text)| {
            let words = text.split(|c: char| c.is_whitespace() || matches!(c, '\'' | '"'));
            words.into_iter().find(|word| word.contains("@sha256:")).map(str::to_owned)
        });
        image.ok_or(IgnitionError::NoDaemon)
    }

    /// Returns the registry settings that the machine will have.
    pub fn registries(&self) -> Result<Option<String>, IgnitionError> {
        Ok(self.file(REGISTRIES)?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }
}

#[cfg(test)]
mod tests;
