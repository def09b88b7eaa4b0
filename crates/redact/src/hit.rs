//! Ranges to redact in a text, and writing the text without them.

use std::collections::BTreeMap;

use crate::Kind;
use crate::pseudonym::{Tag, write_filler, write_marker};

/// Maximum number of lines in [`Counts::suspicious_lines`]: enough for a reviewer to start.
const SUSPICIOUS_LINES_MAX: usize = 32;

/// Whether a replacement may change the length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Length {
    /// Markers have their natural length; certificates are replaced with their public facts.
    #[default]
    Free,
    /// All replacements keep the number of bytes and the line ends, so that length-prefixed formats remain
    /// valid. Certificates are public and stay unchanged.
    Same,
}

/// Statistics of a finished stream for the manifest: counts, never values or positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub redacted: BTreeMap<Kind, u64>,
    /// Number of certificates replaced with their public facts.
    pub certificates: u64,
    /// Number of constructs omitted because they could not be searched.
    pub withheld: u64,
    /// Number of high-entropy words that were kept, for a reviewer.
    pub suspicious: u64,
    /// The first lines (counted from 1 in the input) with such words.
    pub suspicious_lines: Vec<u64>,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Hit {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) what: What,
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    Mark(Kind, Tag),
    /// Part of a construct with its marker elsewhere.
    Drop,
    /// A separate marker, for a construct that ended before this position.
    Insert(Kind, Tag),
    /// The public facts of a certificate.
    Facts(Box<[u8]>),
    /// Omitted because it could not be searched.
    Withheld(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) length: Length,
    /// Byte after an inserted marker: a line feed between lines, a space inside an entry.
    pub(crate) after_insert: u8,
}

/// Sorts hits and joins overlapping ones: a range redacted by any pass stays redacted.
pub(crate) fn merge(hits: &mut Vec<Hit>) {
    let is_insert = |hit: &Hit| matches!(hit.what, What::Insert(..));
    hits.sort_by(|a, b| {
        a.start.cmp(&b.start).then_with(|| is_insert(b).cmp(&is_insert(a))).then_with(|| b.end.cmp(&a.end))
    });
    hits.dedup_by(|next, kept| {
        // Two views of a text may both find the end of one construct.
        let is_same_end = next.start == kept.start && next.end == kept.end && next.start == next.end;
        let overlaps = next.start < kept.end || is_same_end;
        if overlaps {
            kept.end = kept.end.max(next.end);
            // A construct's part must not remove the marker of another one that starts inside it.
            if matches!(kept.what, What::Drop) && !matches!(next.what, What::Insert(..)) {
                kept.what = next.what.clone();
            }
        }
        overlaps
    });
}

/// Writes `text` without its merged hits.
pub(crate) fn write_without(text: &[u8], hits: &[Hit], style: Style, counts: &mut Counts, out: &mut Vec<u8>) {
    let mut done = 0;
    for hit in hits {
        out.extend_from_slice(&text[done..hit.start]);
        done = hit.end;
        counts.note(&hit.what);
        match style.length {
            Length::Free => write_free(&hit.what, style.after_insert, out),
            Length::Same => write_same(&text[hit.start..hit.end], &hit.what, out),
        }
    }
    out.extend_from_slice(&text[done..]);
}

fn write_free(what: &What, after_insert: u8, out: &mut Vec<u8>) {
    match what {
        What::Mark(kind, tag) => write_marker(*kind, *tag, out),
        What::Insert(kind, tag) => {
            write_marker(*kind, *tag, out);
            out.push(after_insert);
        }
        What::Drop => {}
        What::Facts(facts) => out.extend_from_slice(facts),
        What::Withheld(what) => write_withheld(what, out),
    }
}

/// Writes `***WITHHELD:what***`, the marker of a construct that could not be searched.
pub(crate) fn write_withheld(what: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"***WITHHELD:");
    out.extend_from_slice(what.as_bytes());
    out.extend_from_slice(b"***");
}

fn write_same(original: &[u8], what: &What, out: &mut Vec<u8>) {
    let mut marked = false;
    for line in original.split_inclusive(|&byte| byte == b'\n') {
        let (line, end): (&[u8], &[u8]) = match line.split_last() {
            Some((b'\n', line)) => (line, b"\n"),
            _ => (line, b""),
        };
        match what {
            // Only the first line has the name: it is one secret.
            What::Mark(kind, tag) if !marked => write_filler(*kind, *tag, line.len(), out),
            _ => out.resize(out.len() + line.len(), b'*'),
        }
        marked = true;
        out.extend_from_slice(end);
    }
}

// === impl Hit ===

impl Hit {
    /// Returns the part after `seam`, relative to it. The marker of a hit that crosses the seam is before it.
    pub(crate) fn behind(&self, seam: usize) -> Self {
        let what = if self.start < seam { What::Drop } else { self.what.clone() };
        Self { start: self.start.max(seam) - seam, end: self.end.max(seam) - seam, what }
    }
}

// === impl Counts ===

impl Counts {
    /// Returns the counts for the manifest: one number per kind, and nonzero counts of withheld, certified
    /// and suspicious items.
    pub fn to_manifest(&self) -> BTreeMap<String, u64> {
        let extra = [
            ("certificates", self.certificates),
            ("withheld", self.withheld),
            ("suspicious", self.suspicious),
        ];
        self.redacted
            .iter()
            .map(|(kind, count)| (kind.to_string(), *count))
            .chain(
                extra
                    .into_iter()
                    .filter(|(_, count)| *count > 0)
                    .map(|(name, count)| (name.to_owned(), count)),
            )
            .collect()
    }

    pub(crate) fn note(&mut self, what: &What) {
        match what {
            What::Mark(kind, _) | What::Insert(kind, _) => *self.redacted.entry(*kind).or_default() += 1,
            What::Facts(_) => self.certificates += 1,
            What::Withheld(_) => self.withheld += 1,
            What::Drop => {}
        }
    }

    pub(crate) fn note_suspicious(&mut self, line: u64) {
        self.suspicious += 1;
        if self.suspicious_lines.len() < SUSPICIOUS_LINES_MAX && self.suspicious_lines.last() != Some(&line) {
            self.suspicious_lines.push(line);
        }
    }
}
