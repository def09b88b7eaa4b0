//! The node's own secrets: exact values, found in all encoded forms and in any context.
//!
//! All forms of all values are searched in one pass. Each form has at least [`KNOWN_MIN`] bytes. It is
//! therefore sufficient to check each fifth position of the text: one of them is within the first five bytes
//! of any occurrence. The four bytes there are looked up in an index of possible values. This is several
//! times faster than an automaton over the same forms and needs no construction. It also keeps no copy of a
//! secret that cannot be wiped.
//!
//! Long forms (keys, complete files) are split into needles. A match of a needle is extended in both
//! directions while text and form agree, including across line ends. Parts of a long secret and Base64 broken
//! into lines are therefore found.

use landfall_model::Secret;

use crate::Kind;
use crate::encode;
use crate::hit::{Hit, What};
use crate::pseudonym::{Pseudonyms, Tag};

/// Shorter values are not searched for: they also occur in innocent text.
pub const KNOWN_MIN: usize = 8;

/// Limit for all known values; more is a mistake of the caller (such as a complete file system), not a
/// secret.
pub const KNOWN_TOTAL_MAX: usize = 1 << 20;

/// Bytes per lookup.
const GRAM: usize = 4;

/// Distance between checked positions; `GRAM + STRIDE - 1` is at most [`KNOWN_MIN`].
const STRIDE: usize = KNOWN_MIN - GRAM + 1;

/// Longer forms are split into needles of [`NEEDLE`] bytes: any part with twice a needle's length contains
/// one.
const LONG: usize = 48;
const NEEDLE: usize = 16;

/// Minimum number of distinct bytes in a needle of a long form; otherwise dashes and padding would match
/// everywhere.
const DISTINCT_MIN: usize = 7;

/// Assumed maximum length of secrets with several words where text is split; longer ones are found by their
/// needles.
const PHRASE_MAX: usize = 1024;

/// Maximum indentation after a line break inside a form.
const INDENT_MAX: usize = 64;

/// Bits of the filter before the index. 2²⁰ bits are 128 KiB and stay in the second-level cache.
const FILTER_BITS: u32 = 20;
const FILTER_WORDS: usize = 1 << (FILTER_BITS - 6);

pub(crate) struct Known {
    forms: Vec<Form>,
    needles: Vec<Needle>,
    /// Fixed size, so that the compiler can remove bounds checks.
    filter: Box<[u64; FILTER_WORDS]>,
    /// Sorted by gram.
    index: Vec<Entry>,
    longest_phrase: usize,
}

struct Form {
    bytes: Secret<Vec<u8>>,
    kind: Kind,
    tag: Tag,
}

#[derive(Clone, Copy)]
struct Needle {
    form: u32,
    start: u32,
    len: u32,
}

#[derive(Clone, Copy)]
struct Entry {
    gram: u32,
    needle: u32,
    /// Offset of the gram in the needle.
    at: u8,
}

// === impl Known ===

impl Known {
    pub(crate) fn new(values: &[(Kind, Secret<Vec<u8>>)], pseudonyms: &Pseudonyms) -> Self {
        let filter = vec![0; FILTER_WORDS].into_boxed_slice();
        let filter = filter.try_into().unwrap_or_else(|_| unreachable!("the filter is made with this size"));
        let mut known =
            Self { forms: Vec::new(), needles: Vec::new(), filter, index: Vec::new(), longest_phrase: 0 };
        for (kind, value) in values {
            let tag = pseudonyms.tag(value.expose());
            for bytes in encode::forms(value.expose()) {
                known.add(Form { bytes, kind: *kind, tag });
            }
        }
        known.index.sort_by_key(|entry| entry.gram);
        known
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the values are at most a mebibyte together, their forms 32"
    )]
    fn add(&mut self, form: Form) {
        let len = form.bytes.expose().len();
        if form.bytes.expose().iter().any(u8::is_ascii_whitespace) {
            self.longest_phrase = self.longest_phrase.max(len.min(PHRASE_MAX));
        }
        let needles: Vec<(usize, usize)> = if len > LONG {
            let cuts = (0..=len - NEEDLE).step_by(NEEDLE).map(|start| (start, NEEDLE));
            cuts.filter(|&(start, len)| is_telling(&form.bytes.expose()[start..start + len])).collect()
        } else {
            Vec::new()
        };
        let needles = if needles.is_empty() { vec![(0, len)] } else { needles };
        for (start, len) in needles {
            let needle = self.needles.len() as u32;
            for at in 0..STRIDE {
                let gram = gram(form.bytes.expose(), start + at);
                let slot = slot(gram);
                self.filter[slot / 64] |= 1 << (slot % 64);
                self.index.push(Entry { gram, needle, at: at as u8 });
            }
            self.needles.push(Needle { form: self.forms.len() as u32, start: start as u32, len: len as u32 });
        }
        self.forms.push(form);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.forms.is_empty()
    }

    /// Returns the length of the longest form that contains spaces.
    pub(crate) fn longest_phrase(&self) -> usize {
        self.longest_phrase
    }

    pub(crate) fn find(&self, text: &[u8], hits: &mut Vec<Hit>) {
        if self.is_empty() || text.len() < KNOWN_MIN {
            return;
        }
        let mut from = 0;
        // Fixed-size chunks let the compiler remove bounds checks; the rest is checked byte by byte.
        for chunk in text.chunks_exact(STRIDE * GRAM) {
            let grams =
                [gram(chunk, 0), gram(chunk, STRIDE), gram(chunk, STRIDE * 2), gram(chunk, STRIDE * 3)];
            let hit = [
                self.may_have(grams[0]),
                self.may_have(grams[1]),
                self.may_have(grams[2]),
                self.may_have(grams[3]),
            ];
            if hit[0] | hit[1] | hit[2] | hit[3] {
                for i in 0..4 {
                    if hit[i] {
                        self.look_up(text, from + i * STRIDE, grams[i], hits);
                    }
                }
            }
            from += chunk.len();
        }
        for place in (from..=text.len() - GRAM).step_by(STRIDE) {
            let gram = gram(text, place);
            if self.may_have(gram) {
                self.look_up(text, place, gram, hits);
            }
        }
    }

    #[inline]
    fn may_have(&self, gram: u32) -> bool {
        let slot = slot(gram);
        self.filter[slot / 64] & (1 << (slot % 64)) != 0
    }

    #[cold]
    fn look_up(&self, text: &[u8], place: usize, gram: u32, hits: &mut Vec<Hit>) {
        let first = self.index.partition_point(|entry| entry.gram < gram);
        for entry in self.index[first..].iter().take_while(|entry| entry.gram == gram) {
            let needle = self.needles[entry.needle as usize];
            let form = &self.forms[needle.form as usize];
            let bytes = form.bytes.expose();
            let (start, len) = (needle.start as usize, needle.len as usize);
            let Some(text_start) = place.checked_sub(usize::from(entry.at)) else { continue };
            if text.get(text_start..text_start + len) != Some(&bytes[start..start + len]) {
                continue;
            }
            let (from, to) = if len == bytes.len() {
                (text_start, text_start + len)
            } else {
                (
                    grow_left(text, text_start, &bytes[..start]),
                    grow_right(text, text_start + len, &bytes[start + len..]),
                )
            };
            // All needles of one long form extend to the same range.
            if hits.last().is_none_or(|last| last.start != from || last.end != to) {
                hits.push(Hit { start: from, end: to, what: What::Mark(form.kind, form.tag) });
            }
        }
    }
}

#[inline]
fn gram(text: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([text[at], text[at + 1], text[at + 2], text[at + 3]])
}

#[inline]
fn slot(gram: u32) -> usize {
    (gram.wrapping_mul(0x9e37_79b1) >> (32 - FILTER_BITS)) as usize
}

/// Returns whether a part of a secret is distinctive: dashes, padding and prose are not.
fn is_telling(needle: &[u8]) -> bool {
    let mut seen = [false; 256];
    let mut distinct = 0;
    for &byte in needle {
        distinct += usize::from(!seen[usize::from(byte)]);
        seen[usize::from(byte)] = true;
    }
    distinct >= DISTINCT_MIN
        && !needle.iter().any(u8::is_ascii_whitespace)
        && memchr::memmem::find(needle, b"----").is_none()
}

/// Returns how far right of `end` the text matches `rest`, across line breaks that the form does not contain.
fn grow_right(text: &[u8], mut end: usize, rest: &[u8]) -> usize {
    let mut at = end;
    for &byte in rest {
        if text.get(at) != Some(&byte) {
            let mut next = at;
            if text.get(next) == Some(&b'\r') {
                next += 1;
            }
            if text.get(next) != Some(&b'\n') {
                break;
            }
            next += 1;
            let indent =
                text[next..].iter().take(INDENT_MAX).take_while(|byte| matches!(byte, b' ' | b'\t')).count();
            at = next + indent;
            if text.get(at) != Some(&byte) {
                break;
            }
        }
        at += 1;
        end = at;
    }
    end
}

/// Like [`grow_right`], to the left.
fn grow_left(text: &[u8], mut start: usize, rest: &[u8]) -> usize {
    let mut at = start;
    for &byte in rest.iter().rev() {
        let before = |at: usize| at.checked_sub(1).map(|at| text[at]);
        if before(at) != Some(byte) {
            let indent = text[..at]
                .iter()
                .rev()
                .take(INDENT_MAX)
                .take_while(|byte| matches!(byte, b' ' | b'\t'))
                .count();
            let mut next = at - indent;
            if before(next) != Some(b'\n') {
                break;
            }
            next -= 1;
            if before(next) == Some(b'\r') {
                next -= 1;
            }
            at = next;
            if before(at) != Some(byte) {
                break;
            }
        }
        at -= 1;
        start = at;
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(value: &[u8], text: &[u8]) -> Vec<(usize, usize)> {
        let pseudonyms = Pseudonyms::new(Secret::new([7; 32]));
        let known = Known::new(&[(Kind::PASSWORD, Secret::new(value.to_vec()))], &pseudonyms);
        let mut hits = Vec::new();
        known.find(text, &mut hits);
        crate::hit::merge(&mut hits);
        hits.iter().map(|hit| (hit.start, hit.end)).collect()
    }

    #[test]
    fn a_short_value_is_found_at_every_offset() {
        for before in 0..64 {
            for after in 0..24 {
                let text = [&vec![b'.'; before][..], b"hunter22", &vec![b'.'; after][..]].concat();
                assert_eq!(find(b"hunter22", &text), [(before, before + 8)]);
            }
        }
    }

    #[test]
    fn a_piece_of_a_long_value_is_found_whole() {
        let value: Vec<u8> = (0..200_u32)
            .map(|i| b"abcdefghijklmnopqrstuvwxyz0123456789"[(i * i * 31 + i / 3) as usize % 36])
            .collect();
        let piece = &value[37..90];
        let text = [b"-- ", piece, b" --"].concat();
        assert_eq!(find(&value, &text), [(3, 3 + piece.len())]);
        let wrapped =
            [b"x\n  ", &value[..60], b"\n  ", &value[60..120], b"\r\n  ", &value[120..], b"\ny"].concat();
        assert_eq!(find(&value, &wrapped), [(4, wrapped.len() - 2)]);
    }
}
