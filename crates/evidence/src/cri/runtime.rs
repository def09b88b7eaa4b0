//! The messages of `runtime.v1`, limited to fields that help to understand a failure. The environment, the arguments
//! and the annotations of containers are not parsed.

use std::collections::BTreeMap;

use serde::Serialize;

use super::CriError;
use super::protobuf::{Fields, Value, messages};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Version {
    pub runtime_name: String,
    pub runtime_version: String,
    pub runtime_api_version: String,
}

/// The status of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub conditions: Vec<Condition>,
    /// Results of the last attempts to load a network configuration.
    pub network_configuration: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: bool,
    pub reason: String,
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pod {
    pub id: String,
    pub name: String,
    pub namespace: String,
    pub uid: String,
    pub attempt: u64,
    pub state: PodState,
    /// Nanoseconds since 1970.
    pub created_at: i64,
    pub runtime_handler: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum PodState {
    #[serde(rename = "SANDBOX_READY")]
    Ready,
    #[default]
    #[serde(rename = "SANDBOX_NOTREADY")]
    NotReady,
}

/// A container, from the list (without its start and end times) or from its own status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Container {
    pub id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pod_sandbox_id: String,
    pub name: String,
    /// Number of previous starts in this pod.
    pub attempt: u64,
    pub state: ContainerState,
    pub created_at: i64,
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i64,
    pub reason: String,
    pub message: String,
    pub image: String,
    pub image_ref: String,
    pub log_path: String,
    pub labels: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum ContainerState {
    #[serde(rename = "CONTAINER_CREATED")]
    Created,
    #[serde(rename = "CONTAINER_RUNNING")]
    Running,
    #[serde(rename = "CONTAINER_EXITED")]
    Exited,
    #[default]
    #[serde(rename = "CONTAINER_UNKNOWN")]
    Unknown,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Image {
    pub id: String,
    pub repo_tags: Vec<String>,
    pub repo_digests: Vec<String>,
    pub size: u64,
    pub pinned: bool,
}

// === impl Version ===

impl Version {
    pub fn decode(message: &[u8]) -> Result<Self, CriError> {
        let mut version = Self::default();
        for field in Fields::of(message) {
            match field? {
                (2, value) => version.runtime_name = value.text(),
                (3, value) => version.runtime_version = value.text(),
                (4, value) => version.runtime_api_version = value.text(),
                _ => {}
            }
        }
        Ok(version)
    }
}

// === impl Status ===

impl Status {
    pub fn decode(message: &[u8]) -> Result<Self, CriError> {
        let mut status = Self::default();
        for field in Fields::of(message) {
            match field? {
                (1, value) => {
                    for condition in messages(value.bytes(), 1)? {
                        status.conditions.push(Condition::decode(condition)?);
                    }
                }
                // The rest of the verbose information is the complete configuration.
                (2, value) => {
                    let (name, text) = entry(value.bytes())?;
                    if name.starts_with("lastCNILoadStatus") {
                        status.network_configuration.insert(name, text);
                    }
                }
                _ => {}
            }
        }
        Ok(status)
    }
}

// === impl Condition ===

impl Condition {
    fn decode(message: &[u8]) -> Result<Self, CriError> {
        let mut condition = Self::default();
        for field in Fields::of(message) {
            match field? {
                (1, value) => condition.kind = value.text(),
                (2, value) => condition.status = value.number() != 0,
                (3, value) => condition.reason = value.text(),
                (4, value) => condition.message = value.text(),
                _ => {}
            }
        }
        Ok(condition)
    }
}

// === impl Pod ===

impl Pod {
    pub fn decode_list(message: &[u8]) -> Result<Vec<Self>, CriError> {
        messages(message, 1)?.into_iter().map(Self::decode).collect()
    }

    fn decode(message: &[u8]) -> Result<Self, CriError> {
        // Protobuf omits zero, which means ready.
        let mut pod = Self { state: PodState::Ready, ..Self::default() };
        for field in Fields::of(message) {
            match field? {
                (1, value) => pod.id = value.text(),
                (2, value) => {
                    for field in Fields::of(value.bytes()) {
                        match field? {
                            (1, value) => pod.name = value.text(),
                            (2, value) => pod.uid = value.text(),
                            (3, value) => pod.namespace = value.text(),
                            (4, value) => pod.attempt = value.number(),
                            _ => {}
                        }
                    }
                }
                (3, value) if value.number() != 0 => pod.state = PodState::NotReady,
                (4, value) => pod.created_at = value.signed(),
                (7, value) => pod.runtime_handler = value.text(),
                _ => {}
            }
        }
        Ok(pod)
    }
}

// === impl Container ===

impl Container {
    pub fn decode_list(message: &[u8]) -> Result<Vec<Self>, CriError> {
        messages(message, 1)?.into_iter().map(Self::decode_listed).collect()
    }

    /// Decodes the status of one container, which does not include the pod.
    pub fn decode_status(message: &[u8]) -> Result<Self, CriError> {
        let Some(message) = messages(message, 1)?.first().copied() else {
            return Err(CriError::Malformed { what: "a status without a container" });
        };
        let mut container = Self { state: ContainerState::Created, ..Self::default() };
        for field in Fields::of(message) {
            match field? {
                (1, value) => container.id = value.text(),
                (2, value) => container.metadata(value)?,
                (3, value) => container.state = ContainerState::of(value.number()),
                (4, value) => container.created_at = value.signed(),
                (5, value) => container.started_at = value.signed(),
                (6, value) => container.finished_at = value.signed(),
                (7, value) => container.exit_code = value.signed(),
                (8, value) => container.image = image_name(value)?,
                (9, value) => container.image_ref = value.text(),
                (10, value) => container.reason = value.text(),
                (11, value) => container.message = value.text(),
                (12, value) => container.labels.extend([entry(value.bytes())?]),
                (15, value) => container.log_path = value.text(),
                _ => {}
            }
        }
        Ok(container)
    }

    fn decode_listed(message: &[u8]) -> Result<Self, CriError> {
        let mut container = Self { state: ContainerState::Created, ..Self::default() };
        for field in Fields::of(message) {
            match field? {
                (1, value) => container.id = value.text(),
                (2, value) => container.pod_sandbox_id = value.text(),
                (3, value) => container.metadata(value)?,
                (4, value) => container.image = image_name(value)?,
                (5, value) => container.image_ref = value.text(),
                (6, value) => container.state = ContainerState::of(value.number()),
                (7, value) => container.created_at = value.signed(),
                (8, value) => container.labels.extend([entry(value.bytes())?]),
                _ => {}
            }
        }
        Ok(container)
    }

    fn metadata(&mut self, value: Value<'_>) -> Result<(), CriError> {
        for field in Fields::of(value.bytes()) {
            match field? {
                (1, value) => self.name = value.text(),
                (2, value) => self.attempt = value.number(),
                _ => {}
            }
        }
        Ok(())
    }
}

// === impl ContainerState ===

impl ContainerState {
    fn of(number: u64) -> Self {
        match number {
            0 => Self::Created,
            1 => Self::Running,
            2 => Self::Exited,
            _ => Self::Unknown,
        }
    }
}

// === impl Image ===

impl Image {
    pub fn decode_list(message: &[u8]) -> Result<Vec<Self>, CriError> {
        messages(message, 1)?.into_iter().map(Self::decode).collect()
    }

    fn decode(message: &[u8]) -> Result<Self, CriError> {
        let mut image = Self::default();
        for field in Fields::of(message) {
            match field? {
                (1, value) => image.id = value.text(),
                (2, value) => image.repo_tags.push(value.text()),
                (3, value) => image.repo_digests.push(value.text()),
                (4, value) => image.size = value.number(),
                (8, value) => image.pinned = value.number() != 0,
                _ => {}
            }
        }
        Ok(image)
    }
}

fn image_name(value: Value<'_>) -> Result<String, CriError> {
    let name = messages(value.bytes(), 1)?.first().copied().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Decodes a map entry as name and value.
fn entry(message: &[u8]) -> Result<(String, String), CriError> {
    let mut entry = (String::new(), String::new());
    for field in Fields::of(message) {
        match field? {
            (1, value) => entry.0 = value.text(),
            (2, value) => entry.1 = value.text(),
            _ => {}
        }
    }
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cri::protobuf::push_bytes;

    fn message(fields: &[(u8, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (number, bytes) in fields {
            push_bytes(&mut out, *number, bytes);
        }
        out
    }

    #[test]
    fn a_container_that_ended_is_read() {
        let mut status = message(&[(1, b"abc"), (2, &message(&[(1, b"etcd")])), (10, b"Error")]);
        // State 2, exit code -1, finished at 5 ns.
        status.extend(b"\x18\x02\x38\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x30\x05");
        status.extend(message(&[(12, &message(&[(1, b"a"), (2, b"b")])), (13, b"an annotation")]));
        let container = Container::decode_status(&message(&[(1, &status)])).unwrap();
        assert_eq!((container.id.as_str(), container.name.as_str()), ("abc", "etcd"));
        assert_eq!((container.state, container.exit_code), (ContainerState::Exited, -1));
        assert_eq!((container.reason.as_str(), container.finished_at), ("Error", 5));
        assert_eq!(container.labels["a"], "b");
    }

    #[test]
    fn conditions_are_read_and_the_configuration_is_not() {
        let condition = message(&[(1, b"NetworkReady"), (3, b"NetworkPluginNotReady"), (4, b"no")]);
        let info = |name: &[u8]| message(&[(1, name), (2, b"value")]);
        let answer = message(&[
            (1, &message(&[(1, &condition)])),
            (2, &info(b"config")),
            (2, &info(b"lastCNILoadStatus")),
        ]);
        let status = Status::decode(&answer).unwrap();
        assert_eq!(status.conditions[0].reason, "NetworkPluginNotReady");
        assert!(!status.conditions[0].status);
        assert_eq!(status.network_configuration.into_keys().collect::<Vec<_>>(), ["lastCNILoadStatus"]);
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_decoders(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Version::decode(&bytes);
            let _ = Status::decode(&bytes);
            let _ = Pod::decode_list(&bytes);
            let _ = Container::decode_list(&bytes);
            let _ = Container::decode_status(&bytes);
            let _ = Image::decode_list(&bytes);
        }
    }
}
