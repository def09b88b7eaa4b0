//! Runtime versions for each cluster version: the table `VersionManifestV1`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::version::KubeVersion;

/// A table of all existing versions has 2 KB.
pub const MAX_BYTES: usize = 256 * 1024;

/// Limit for parser events: some for each of ten thousand versions.
const MAX_EVENTS: usize = 100_000;
/// Limit for nodes repeated by alias: a list of runtimes, referenced for each of a hundred cluster versions, repeats
/// some hundred.
const MAX_REPEATED: usize = 2_000;
/// The table has four levels.
const MAX_DEPTH: usize = 16;

const KIND: &str = "VersionManifestV1";
const KUBERNETES: &str = "k8s";
const EMBEDDED: &str = include_str!("embedded-mappings.yaml");

/// The table. Keys are always text: as numbers, `1.10` and `1.1` would be equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mappings {
    kind: String,
    versions: BTreeMap<String, BTreeMap<String, BTreeMap<String, Vec<String>>>>,
}

#[derive(Debug, thiserror::Error)]
pub enum MappingsError {
    #[error("the runtime mappings have {bytes} bytes, more than {MAX_BYTES}")]
    TooLong { bytes: usize },
    #[error("the runtime mappings are not a `{KIND}`: {reason}")]
    Syntax { reason: String },
    #[error("the runtime mappings are a `{kind}`; a `{KIND}` is expected")]
    Kind { kind: String },
    #[error("the runtime mappings contain no `{runtime}` for Kubernetes {version}")]
    Unknown { runtime: String, version: String },
    #[error("the runtime mappings list no version of `{runtime}` for Kubernetes {version}")]
    Empty { runtime: String, version: String },
}

// === impl Mappings ===

impl Mappings {
    pub fn parse(text: &str) -> Result<Self, MappingsError> {
        if text.len() > MAX_BYTES {
            return Err(MappingsError::TooLong { bytes: text.len() });
        }
        // A table is short, so aliases repeat a few nodes rather than a million.
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_events: MAX_EVENTS,
                max_nodes: MAX_EVENTS,
                max_recorded_anchor_events: MAX_REPEATED,
                max_depth: MAX_DEPTH,
            },
            // Only the first line of a parser error is reported.
            with_snippet: false,
            alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_REPEATED },
        };
        let mappings: Self = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let reason = error.to_string();
            MappingsError::Syntax { reason: reason.lines().next().unwrap_or_default().to_owned() }
        })?;
        if mappings.kind != KIND {
            return Err(MappingsError::Kind { kind: mappings.kind.chars().take(64).collect() });
        }
        Ok(mappings)
    }

    /// Returns the table built into this binary.
    pub fn embedded() -> Result<Self, MappingsError> {
        Self::parse(EMBEDDED)
    }

    /// Returns the compatible versions of a runtime, in order of preference.
    pub fn preferences(&self, version: &KubeVersion, runtime: &str) -> Result<Vec<String>, MappingsError> {
        let version = version.minor_key();
        let found = self
            .versions
            .get(KUBERNETES)
            .and_then(|versions| versions.get(&version))
            .and_then(|runtimes| runtimes.get(runtime));
        match found {
            None => Err(MappingsError::Unknown { runtime: runtime.to_owned(), version }),
            Some(list) if list.is_empty() => {
                Err(MappingsError::Empty { runtime: runtime.to_owned(), version })
            }
            Some(list) => Ok(list.clone()),
        }
    }

    /// Returns all entries for a cluster version: name and versions, in order of preference.
    pub fn wanted(&self, version: &KubeVersion) -> Vec<(String, Vec<String>)> {
        let found = self.versions.get(KUBERNETES).and_then(|versions| versions.get(&version.minor_key()));
        let pairs = found.into_iter().flatten();
        pairs.map(|(name, versions)| (name.clone(), versions.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> KubeVersion {
        text.parse().unwrap()
    }

    #[test]
    fn the_table_of_this_program_is_sound() {
        let table = Mappings::embedded().unwrap();
        assert_eq!(table.preferences(&version("v1.7.5"), "docker").unwrap(), ["1.12"]);
        assert_eq!(table.preferences(&version("v1.9.0"), "docker").unwrap(), ["17.03", "1.12"]);
        assert!(matches!(
            table.preferences(&version("v1.5.0"), "docker"),
            Err(MappingsError::Unknown { .. })
        ));
    }

    #[test]
    fn unquoted_numbers_stay_text() {
        let text = "kind: VersionManifestV1\nversions:\n  k8s:\n    1.1: {docker: [\"1.9\"]}\n    1.10: {docker: [17.03, 1.20]}\n";
        let table = Mappings::parse(text).unwrap();
        assert_eq!(table.preferences(&version("v1.10.3"), "docker").unwrap(), ["17.03", "1.20"]);
        assert_eq!(table.preferences(&version("v1.1.0"), "docker").unwrap(), ["1.9"]);
    }

    /// Aliases may repeat a list for decades of versions, but not a thousand times.
    #[test]
    fn references_are_taken_and_bombs_are_not() {
        let table = |versions: u32| {
            let mut text =
                "kind: VersionManifestV1\nversions:\n  k8s:\n    1.1: &same {docker: [a, b]}\n".to_owned();
            text.extend((2..=versions).map(|minor| format!("    1.{minor}: *same\n")));
            Mappings::parse(&text)
        };
        assert_eq!(table(90).unwrap().preferences(&version("v1.90.0"), "docker").unwrap(), ["a", "b"]);
        assert!(table(1000).is_err());
    }

    #[test]
    fn what_is_no_table_is_refused() {
        let broken = [
            "",
            "kind: Other\nversions: {}\n",
            "versions: {}\n",
            "kind: VersionManifestV1\n",
            "kind: VersionManifestV1\nversions: {k8s: {1.9: {docker: 17.03}}}\n",
            "[",
        ];
        for text in broken {
            assert!(Mappings::parse(text).is_err(), "{text:?}");
        }
        let empty =
            Mappings::parse("kind: VersionManifestV1\nversions: {k8s: {1.9: {docker: []}}}\n").unwrap();
        assert!(matches!(empty.preferences(&version("v1.9.0"), "docker"), Err(MappingsError::Empty { .. })));
        assert!(matches!(Mappings::parse(&"x".repeat(MAX_BYTES + 1)), Err(MappingsError::TooLong { .. })));
    }
}
