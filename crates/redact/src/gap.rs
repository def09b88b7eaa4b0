//! Text after an unsearched gap.
//!
//! A construct may have started in the gap, so lines are withheld until one that cannot be inside a
//! construct. In a log of several programs, each program is decided separately.

use std::collections::HashSet;

use crate::frame::Prefixes;
use crate::region::is_yaml;

/// Maximum number of distinct line prefixes.
const PREFIXES_MAX: usize = 1024;

/// Minimum number of words in a line that is not part of a document.
const WORDS_OF_SENTENCE: usize = 4;

/// The marker that replaces withheld lines.
pub(crate) const MARKER: &str = "context";

/// Decides which lines after a gap may be released.
pub(crate) struct Gap {
    prefixes: Prefixes,
    /// Line prefixes with at least one line that was not part of a construct.
    clear: HashSet<Vec<u8>>,
}

// === impl Gap ===

impl Gap {
    pub(crate) fn new(prefixes: &Prefixes) -> Self {
        Self { prefixes: prefixes.clone(), clear: HashSet::new() }
    }

    /// Returns whether a line may be released.
    pub(crate) fn admits(&mut self, line: &[u8]) -> bool {
        let len = self.prefixes.len(line);
        let prefix = general(&line[..len]);
        if self.clear.contains(&prefix) {
            return true;
        }
        let is_clear = !is_data(&line[len..]);
        if is_clear && self.clear.len() < PREFIXES_MAX {
            self.clear.insert(prefix);
        }
        is_clear
    }

    /// Like [`Self::admits`], for an entry of one program.
    pub(crate) fn admits_entry(&mut self, text: &[u8]) -> bool {
        let mut lines = text.split(|byte| *byte == b'\n');
        lines.next().is_some_and(|first| self.admits(first))
    }
}

/// Returns a prefix without the parts that vary from line to line: numbers and the widths of gaps.
fn general(prefix: &[u8]) -> Vec<u8> {
    let mut general = Vec::with_capacity(prefix.len());
    for byte in prefix {
        let byte = if byte.is_ascii_digit() { b'0' } else { *byte };
        if !(matches!(byte, b'0' | b' ') && general.last() == Some(&byte)) {
            general.push(byte);
        }
    }
    general
}

/// Returns whether a line may belong to a document: it is neither a complete object nor a sentence.
fn is_data(line: &[u8]) -> bool {
    let content = line.trim_ascii();
    let is_object = line.starts_with(b"{\"") && content.ends_with(b"}");
    let is_word = |word: &&[u8]| {
        word.len() > 1 && word.iter().all(|byte| byte.is_ascii_alphabetic() || b"\"',.()-".contains(byte))
    };
    let begins =
        matches!(line.first(), Some(b'"' | b'[')) || line.first().is_some_and(u8::is_ascii_alphanumeric);
    let words = content.split(u8::is_ascii_whitespace).filter(is_word).count();
    let is_sentence = begins && !is_yaml(content) && words >= WORDS_OF_SENTENCE;
    !is_object && !is_sentence
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_logs_are_told_from_lines_of_documents() {
        for line in [
            "I1119 05:38:09.123456    1234 a.go:7] \"Failed to start the container\" pod=\"a/b\"",
            "{\"level\":\"info\",\"msg\":\"ready\"}",
            "Started the container of the control plane.",
        ] {
            assert!(Gap::new(&Prefixes::new().unwrap()).admits(line.as_bytes()), "{line}");
        }
        for line in [
            "",
            "  indented text of some words here",
            "key: value",
            "hunter22",
            "Nov 19 05:38:09 node-1 ignition[812]:   \"path\": \"/etc/a\",",
            "export TOKEN=abc",
            "root:hunter22",
            "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7",
        ] {
            assert!(!Gap::new(&Prefixes::new().unwrap()).admits(line.as_bytes()), "{line}");
        }
    }

    #[test]
    fn programs_are_told_apart() {
        let mut gap = Gap::new(&Prefixes::new().unwrap());
        assert!(gap.admits(b"Nov 19 05:38:09 n kubelet[8]: The kubelet is now ready"));
        assert!(!gap.admits(b"Nov 19 05:38:09 n ignition[9]: hunter22"));
        assert!(gap.admits(b"Nov 19 05:38:10 n kubelet[812]: ok"));
    }
}
