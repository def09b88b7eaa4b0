//! Versions in logs, and version ranges in rules.

use std::fmt;

/// Compared numbers of a version: major, minor, patch.
const NUMBERS: usize = 3;

/// `v1.30.1+k3s1` is 1.30.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version([u32; NUMBERS]);

/// A rule's version range: `kubelet >= 1.24, < 1.30`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) component: String,
    bounds: Vec<(Relation, Version)>,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    Least,
    Above,
    Most,
    Below,
    Equal,
}

#[derive(Debug, thiserror::Error)]
#[error("invalid version range `{0}`: must be like `kubelet >= 1.24, < 1.30`")]
pub(crate) struct InvalidRange(String);

// === impl Version ===

impl Version {
    /// Parses the leading numbers and ignores the rest.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches('v');
        let mut numbers = [0; NUMBERS];
        for (index, part) in text.split('.').take(NUMBERS).enumerate() {
            let digits = part.len() - part.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            if digits == 0 {
                return (index > 0).then_some(Self(numbers));
            }
            numbers[index] = part[..digits].parse().ok()?;
            if digits < part.len() {
                break;
            }
        }
        Some(Self(numbers))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self([major, minor, patch]) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

// === impl Range ===

impl Range {
    /// Parses a range; without a name, it applies to `component`.
    pub(crate) fn parse(text: &str, component: &str) -> Result<Self, InvalidRange> {
        let invalid = || InvalidRange(text.to_owned());
        let split = text.find(['<', '>', '=']).ok_or_else(invalid)?;
        let named = text[..split].trim();
        let mut bounds = Vec::new();
        let mut rest = &text[split..];
        while !rest.is_empty() {
            let (relation, after) = [
                (">=", Relation::Least),
                ("<=", Relation::Most),
                (">", Relation::Above),
                ("<", Relation::Below),
                ("=", Relation::Equal),
            ]
            .into_iter()
            .find_map(|(sign, relation)| Some((relation, rest.strip_prefix(sign)?)))
            .ok_or_else(invalid)?;
            let after = after.trim_start();
            let end =
                after.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == 'v')).unwrap_or(after.len());
            bounds.push((relation, Version::parse(&after[..end]).ok_or_else(invalid)?));
            rest = after[end..].trim_start_matches([',', ' ']);
        }
        let component = if named.is_empty() { component } else { named };
        Ok(Self { component: component.to_owned(), bounds, text: text.to_owned() })
    }

    pub(crate) fn holds(&self, version: Version) -> bool {
        self.bounds.iter().all(|(relation, bound)| match relation {
            Relation::Least => version >= *bound,
            Relation::Above => version > *bound,
            Relation::Most => version <= *bound,
            Relation::Below => version < *bound,
            Relation::Equal => version == *bound,
        })
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_components_write_them() {
        for (text, version) in [
            ("v1.30.1+k3s1", "1.30.1"),
            ("1.7.2-rc.1", "1.7.2"),
            ("24.1", "24.1.0"),
            ("6.1.0-18-amd64", "6.1.0"),
            ("1.28+", "1.28.0"),
        ] {
            assert_eq!(Version::parse(text).unwrap().to_string(), version, "{text}");
        }
        for text in ["", "v", "x1.2", "99999999999.1"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
    }

    #[test]
    fn ranges_hold_what_they_say() {
        let range = Range::parse("kubelet >= 1.24, < 1.30", "x").unwrap();
        assert_eq!(range.component, "kubelet");
        for (version, holds) in [("1.23.9", false), ("1.24.0", true), ("1.29.4", true), ("1.30.0", false)] {
            assert_eq!(range.holds(Version::parse(version).unwrap()), holds, "{version}");
        }
        assert_eq!(Range::parse(">=1.34", "kubeadm").unwrap().component, "kubeadm");
        for text in ["", "kubelet", ">= soon", ">= 1.31, default from 1.35", "> 1 || < 2"] {
            assert!(Range::parse(text, "x").is_err(), "{text}");
        }
    }
}
