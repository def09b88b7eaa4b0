//! Hashes in the notation of manifests (`sha512-<hex>`) and of `SHA256SUMS` (`<hex>  <name>`).

use std::fmt;
use std::str::FromStr;

use landfall_fetch::{Algorithm, Digest as Expected};
use serde::{Deserialize, Serialize};

/// The hash a file must have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(Expected);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a hash: `sha512-` or `sha256-` and its hexadecimal digits are expected")]
pub struct InvalidDigest {
    text: String,
}

// === impl Digest ===

impl Digest {
    pub fn sha256(hex: &str) -> Result<Self, InvalidDigest> {
        Self::of(Algorithm::Sha256, hex)
    }

    pub fn expected(&self) -> &Expected {
        &self.0
    }

    fn of(algorithm: Algorithm, hex: &str) -> Result<Self, InvalidDigest> {
        let invalid = || InvalidDigest { text: hex.chars().take(160).collect() };
        Expected::new(algorithm, hex).map(Self).ok_or_else(invalid)
    }
}

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        let invalid = || InvalidDigest { text: text.chars().take(160).collect() };
        let (algorithm, hex) = text.split_once(['-', ':']).ok_or_else(invalid)?;
        let algorithm = match algorithm {
            "sha512" => Algorithm::Sha512,
            "sha256" => Algorithm::Sha256,
            _ => return Err(invalid()),
        };
        Self::of(algorithm, hex)
    }
}

impl TryFrom<String> for Digest {
    type Error = InvalidDigest;

    fn try_from(text: String) -> Result<Self, InvalidDigest> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0.algorithm.name(), self.0.hex())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_read_and_written() {
        let text = format!("sha512-{}", "0e".repeat(64));
        assert_eq!(text.parse::<Digest>().unwrap().to_string(), text);
        assert_eq!(
            Digest::sha256(&"AB".repeat(32)).unwrap().to_string(),
            format!("sha256-{}", "ab".repeat(32))
        );
        let short = format!("sha512-{}", "0e".repeat(32));
        for text in ["", "sha512", "sha512-", "sha512-xyz", "md5-00", "sha1-00", short.as_str()] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }
}
