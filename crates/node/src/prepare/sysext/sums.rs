//! `SHA256SUMS`: a hash and a file name per line.

use std::collections::BTreeMap;

use crate::prepare::digest::Digest;

/// The list of all extensions of the bakery has 300 KB.
const MAX_BYTES: usize = 4 * 1024 * 1024;
const MAX_LINES: usize = 100_000;

/// File names with their expected hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums(BTreeMap<String, Digest>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SumsError {
    #[error("the list of hashes is longer than {MAX_BYTES} bytes or {MAX_LINES} lines")]
    TooLong,
    #[error("line {line} of the list of hashes is not a hash and a plain file name")]
    Line { line: usize },
    #[error("the list of hashes names `{name}` twice, with different hashes")]
    Twice { name: String },
}

// === impl Sums ===

impl Sums {
    pub fn parse(text: &str) -> Result<Self, SumsError> {
        if text.len() > MAX_BYTES || text.lines().take(MAX_LINES + 1).count() > MAX_LINES {
            return Err(SumsError::TooLong);
        }
        let mut sums = BTreeMap::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let wrong = SumsError::Line { line: number + 1 };
            // The separator is two spaces, or a space and an asterisk for "binary".
            let (hex, name) = line.split_once(' ').ok_or_else(|| wrong.clone())?;
            let name = name.strip_prefix([' ', '*']).unwrap_or(name);
            let plain = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
            let digest = Digest::sha256(hex).ok().filter(|_| plain).ok_or(wrong)?;
            match sums.insert(name.to_owned(), digest.clone()) {
                Some(before) if before != digest => return Err(SumsError::Twice { name: name.to_owned() }),
                _ => {}
            }
        }
        Ok(Self(sums))
    }

    pub fn find(&self, file: &str) -> Option<&Digest> {
        self.0.get(file)
    }

    /// Returns the available versions of an extension for an architecture.
    pub fn versions(&self, name: &str, architecture: &str) -> Vec<&str> {
        let version = |file: &'_ String| -> Option<(usize, usize)> {
            let rest = file.strip_prefix(name)?.strip_prefix('-')?;
            let version = rest.strip_suffix(".raw")?.strip_suffix(architecture)?.strip_suffix('-')?;
            let start = name.len() + 1;
            (!version.is_empty()).then_some((start, start + version.len()))
        };
        self.0.keys().filter_map(|file| version(file).map(|(start, end)| &file[start..end])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_the_bakery_is_read() {
        let hash = "ab".repeat(32);
        let text = format!(
            "{hash}  kubernetes-v1.32.4-x86-64.raw\n{hash} *kubernetes-v1.32.5-x86-64.raw\n\n{hash}  kubernetes-v1.32.5-arm64.raw\n{hash}  kubernetes.conf\n"
        );
        let sums = Sums::parse(&text).unwrap();
        assert_eq!(sums.versions("kubernetes", "x86-64"), ["v1.32.4", "v1.32.5"]);
        assert_eq!(sums.versions("kubernetes", "arm64"), ["v1.32.5"]);
        assert_eq!(sums.versions("docker", "arm64"), [""; 0]);
        assert!(sums.find("kubernetes-v1.32.4-x86-64.raw").is_some());
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let hash = "ab".repeat(32);
        let other = "cd".repeat(32);
        for text in [
            "not found".to_owned(),
            "<html>".to_owned(),
            format!("{hash}  ../../etc/passwd"),
            format!("{hash}  .hidden"),
            format!("{}  short.raw", "ab".repeat(16)),
        ] {
            assert!(matches!(Sums::parse(&text), Err(SumsError::Line { line: 1 })), "{text}");
        }
        let twice = format!("{hash}  a.raw\n{other}  a.raw\n");
        assert!(matches!(Sums::parse(&twice), Err(SumsError::Twice { .. })));
    }
}
