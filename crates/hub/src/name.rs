use std::fmt;

/// The maximum length of a DNS name.
const MAX_LENGTH: usize = 253;

/// Name of a node: its host name, restricted to characters that are safe in URLs and file names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeName(String);

#[derive(Debug, thiserror::Error)]
#[error(
    "a node's name has letters, digits, `.`, `-` and `_`, begins with a letter or digit, and is at most {MAX_LENGTH} bytes long"
)]
pub struct InvalidNodeName;

// === impl NodeName ===

impl NodeName {
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidNodeName> {
        let name = name.into();
        let begins = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if begins && name.len() <= MAX_LENGTH && name.bytes().all(plain) {
            Ok(Self(name))
        } else {
            Err(InvalidNodeName)
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_mislead_are_refused() {
        for good in ["node-1", "ip-10-0-0-1.eu-west-1.compute.internal", "Node_2"] {
            assert_eq!(NodeName::new(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "-x", "a/b", "a b", "a\n", "<script>", "ä", &"a".repeat(254)] {
            assert!(NodeName::new(bad).is_err(), "{bad:?}");
        }
    }
}
