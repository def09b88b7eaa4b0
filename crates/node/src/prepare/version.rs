//! Versions of the cluster and of the operating system, in the formats used in practice.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The longest version seen in practice has 40 bytes. It becomes part of file names and of `kubelet.env`.
const MAX_BYTES: usize = 128;
/// Container Linux has three parts; update_engine once reported `0.0.0.0`.
const MAX_PARTS: usize = 4;

/// A version of Kubernetes: `v1.7.5+coreos.1`, `v1.31.4`, `v1.29.5-gke.1000`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct KubeVersion {
    text: String,
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

/// A version of the operating system: `1520.3.0`, `4152.2.0`, `12`. Ordered by its numbers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OsVersion {
    text: String,
    parts: [u64; MAX_PARTS],
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a version: {expected} is expected")]
pub struct InvalidVersion {
    text: String,
    expected: &'static str,
}

// === impl KubeVersion ===

impl KubeVersion {
    /// `1.7`, the key of runtime mappings.
    pub fn minor_key(&self) -> String {
        format!("{}.{}", self.major, self.minor)
    }

    /// Returns the version as an image tag, which cannot contain a `+`.
    pub fn image_tag(&self) -> String {
        self.text.replace('+', "_")
    }

    /// Parses an image tag.
    pub fn from_image_tag(tag: &str) -> Result<Self, InvalidVersion> {
        tag.replacen('_', "+", 1).parse()
    }

    /// Returns the version without build and vendor suffix: `v1.31.4`, as in release URLs.
    pub fn release(&self) -> String {
        format!("v{}.{}.{}", self.major, self.minor, self.patch)
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Compares versions without the suffixes of vendors.
    pub fn compare(&self, other: &Self) -> Ordering {
        (self.major, self.minor, self.patch).cmp(&(other.major, other.minor, other.patch))
    }
}

impl FromStr for KubeVersion {
    type Err = InvalidVersion;

    fn from_str(text: &str) -> Result<Self, InvalidVersion> {
        let invalid = || InvalidVersion { text: shown(text), expected: "something like `v1.31.4`" };
        let text = text.trim();
        if !is_tame(text) {
            return Err(invalid());
        }
        let numbers = text.strip_prefix('v').unwrap_or(text);
        let numbers = numbers.split(['+', '-', '_']).next().unwrap_or_default();
        let parts: Option<Vec<u32>> = numbers.split('.').map(number).collect();
        match parts.as_deref() {
            Some([major, minor, patch]) => {
                Ok(Self { text: text.to_owned(), major: *major, minor: *minor, patch: *patch })
            }
            _ => Err(invalid()),
        }
    }
}

impl TryFrom<String> for KubeVersion {
    type Error = InvalidVersion;

    fn try_from(text: String) -> Result<Self, InvalidVersion> {
        text.parse()
    }
}

impl From<KubeVersion> for String {
    fn from(version: KubeVersion) -> Self {
        version.text
    }
}

impl fmt::Display for KubeVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

// === impl OsVersion ===

impl OsVersion {
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// All zeros, which update_engine reports for an unknown version.
    pub fn is_unknown(&self) -> bool {
        self.parts == [0; MAX_PARTS]
    }
}

impl FromStr for OsVersion {
    type Err = InvalidVersion;

    fn from_str(text: &str) -> Result<Self, InvalidVersion> {
        let invalid = || InvalidVersion { text: shown(text), expected: "something like `1520.3.0`" };
        if !is_tame(text) {
            return Err(invalid());
        }
        let numbers = text.split(['+', '-', '_']).next().unwrap_or_default();
        let mut parts = [0; MAX_PARTS];
        for (index, part) in numbers.split('.').enumerate() {
            let place = parts.get_mut(index).ok_or_else(invalid)?;
            *place = number(part).ok_or_else(invalid)?;
        }
        Ok(Self { text: text.to_owned(), parts })
    }
}

impl TryFrom<String> for OsVersion {
    type Error = InvalidVersion;

    fn try_from(text: String) -> Result<Self, InvalidVersion> {
        text.parse()
    }
}

impl From<OsVersion> for String {
    fn from(version: OsVersion) -> Self {
        version.text
    }
}

impl PartialEq for OsVersion {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for OsVersion {}

impl Ord for OsVersion {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts.cmp(&other.parts).then_with(|| self.text.cmp(&other.text))
    }
}

impl PartialOrd for OsVersion {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for OsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

/// Checks that a text is safe in a file name, in a URL and in a line of an environment file.
pub(crate) fn is_tame(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= MAX_BYTES
        && !text.starts_with(['.', '-'])
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".+-_".contains(&byte))
}

fn number<N: FromStr>(text: &str) -> Option<N> {
    // `parse` alone would accept `+1`.
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok())?
}

fn shown(text: &str) -> String {
    text.chars().take(MAX_BYTES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_versions_become_tags_and_back() {
        let version: KubeVersion = "v1.7.5+coreos.1".parse().unwrap();
        assert_eq!((version.minor_key().as_str(), version.image_tag().as_str()), ("1.7", "v1.7.5_coreos.1"));
        assert_eq!(KubeVersion::from_image_tag("v1.7.5_coreos.1").unwrap(), version);
        assert_eq!("v1.29.5-gke.1000".parse::<KubeVersion>().unwrap().release(), "v1.29.5");
        assert_eq!("1.10.0".parse::<KubeVersion>().unwrap().minor_key(), "1.10");
    }

    #[test]
    fn what_is_no_version_is_refused() {
        for text in ["", "v1", "v1.7", "latest", "v1.7.x", "v1.7.5\nEVIL=1", "../1.7.5", "v1.+7.5"] {
            assert!(text.parse::<KubeVersion>().is_err(), "{text:?}");
        }
        for text in ["", "..", "1..2", "1.2.3.4.5", "1/2", "99999999999999999999.0.0"] {
            assert!(text.parse::<OsVersion>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn systems_are_ordered_by_number() {
        let version = |text: &str| text.parse::<OsVersion>().unwrap();
        assert!(version("1520.3.0") < version("1520.10.0"));
        assert!(version("999.0.0") < version("1520.3.0"));
        assert!(version("0.0.0").is_unknown() && version("0.0.0.0").is_unknown());
        assert!(!version("0.0.1").is_unknown());
    }
}
