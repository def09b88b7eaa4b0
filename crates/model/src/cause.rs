use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Maximum length of a name. Names are file names and metric labels, so they stay short.
const MAX_LENGTH: usize = 64;

/// The name of a root cause, such as `dns-resolution-failure`.
///
/// Names come from the catalog in `rules/`; a name never changes its meaning. The type guarantees lower-case words
/// joined by single hyphens, so that a path, a URL or a label can contain a cause without escaping.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Cow<'_, str>")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Cause(String);

/// An invalid cause name.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{name}` is not a cause name: lower-case words joined by single hyphens, at most {MAX_LENGTH} bytes"
)]
pub struct InvalidCause {
    name: String,
}

// === impl Cause ===

impl Cause {
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidCause> {
        let name = name.into();
        let word = |word: &str| {
            !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        if name.len() <= MAX_LENGTH && name.split('-').all(word) {
            Ok(Self(name))
        } else {
            Err(InvalidCause { name })
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<Cow<'_, str>> for Cause {
    type Error = InvalidCause;

    fn try_from(name: Cow<'_, str>) -> Result<Self, InvalidCause> {
        Self::new(name)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_hyphenated_lower_case_words() {
        for good in ["disk-full", "x509-unknown-authority", "none"] {
            assert_eq!(Cause::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "-", "Disk-full", "disk--full", "disk_full", "disk-full-", "../disk", &"a".repeat(65)]
        {
            assert!(Cause::new(bad).is_err(), "{bad:?} must be refused");
        }
    }

    #[test]
    fn reading_a_bad_name_says_what_a_good_one_is() {
        let error = serde_json::from_str::<Cause>("\"a/b\"").unwrap_err().to_string();
        assert!(error.contains("`a/b` is not a cause name"), "{error}");
    }
}
