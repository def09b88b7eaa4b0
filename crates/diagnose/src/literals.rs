//! Search for some thousand literals in one pass, several times faster than an automaton.
//!
//! The rarest seven bytes of each literal are selected, and all four 4-byte groups in them are added to a
//! table. Only each fourth 4-byte group of the text is looked up: for any position of a literal, exactly one
//! of its groups is at such an offset. One bit rejects most groups; the others are compared with the literals
//! that contain them. This is Wu and Manber's algorithm with a table small enough for the first-level cache.

use std::collections::HashMap;

/// Bytes of a literal that are used to find it. A shorter literal cannot be found, and would match too often.
pub(crate) const WINDOW: usize = 7;

const GROUP: usize = 4;

/// Distance between lookups in the text.
const STRIDE: usize = WINDOW - GROUP + 1;

/// Bits that select a slot in the filter: 32 KiB, the size of a first-level cache.
const FILTER_BITS: u32 = 18;

/// Bits that select a bucket of groups.
const BUCKET_BITS: u32 = 14;

/// A set of literals, prepared for searching.
#[derive(Debug)]
pub(crate) struct Literals {
    texts: Vec<Box<[u8]>>,
    filter: Vec<u64>,
    /// Offset of each bucket's groups in `groups`; one entry more than there are buckets.
    buckets: Vec<u32>,
    groups: Vec<Group>,
}

#[derive(Clone, Copy, Debug)]
struct Group {
    value: u32,
    literal: u32,
    /// Offset of the group in the literal.
    offset: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Found {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) literal: usize,
}

// === impl Literals ===

impl Literals {
    /// Prepares the search.
    ///
    /// Literals shorter than [`WINDOW`] are never found; rules with such literals are rejected on load.
    pub(crate) fn new<'a>(literals: impl IntoIterator<Item = &'a str>) -> Self {
        let texts: Vec<Box<[u8]>> = literals.into_iter().map(|literal| literal.as_bytes().into()).collect();
        let mut shared = HashMap::new();
        for group in texts.iter().flat_map(|text| (0..text.len()).filter_map(|at| group_at(text, at))) {
            *shared.entry(group).or_insert(0_u32) += 1;
        }
        let mut groups = Vec::with_capacity(texts.len() * STRIDE);
        for (literal, bytes) in (0_u32..).zip(&texts) {
            let window = rarest_window(bytes, &shared);
            for offset in (window..window + STRIDE).take_while(|offset| offset + GROUP <= bytes.len()) {
                if let (Some(value), Ok(offset)) = (group_at(bytes, offset), u32::try_from(offset)) {
                    groups.push(Group { value, literal, offset });
                }
            }
        }
        groups.sort_by_key(|group| (bucket(group.value), group.value, group.literal));
        let mut filter = vec![0_u64; 1 << (FILTER_BITS - 6)];
        let mut buckets = vec![0_u32; (1 << BUCKET_BITS) + 1];
        for group in &groups {
            let (word, bit) = place(group.value);
            filter[word] |= bit;
            buckets[bucket(group.value) + 1] += 1;
        }
        for index in 1..buckets.len() {
            buckets[index] += buckets[index - 1];
        }
        Self { texts, filter, buckets, groups }
    }

    /// Calls `found` for each occurrence of a literal.
    ///
    /// The calls are in line order, but not in the order of the bytes within a line.
    pub(crate) fn find(&self, text: &[u8], mut found: impl FnMut(Found)) {
        const { assert!(STRIDE == GROUP, "the groups that are looked up follow each other") };
        let (groups, _) = text.as_chunks::<GROUP>();
        for (index, group) in groups.iter().enumerate() {
            let value = u32::from_le_bytes(*group);
            let (word, bit) = place(value);
            if self.filter[word] & bit != 0 {
                self.compare(text, index * STRIDE, value, &mut found);
            }
        }
    }

    // Most groups end at the filter: inlining the comparison would take registers from the calling loop.
    #[inline(never)]
    fn compare(&self, text: &[u8], at: usize, value: u32, found: &mut impl FnMut(Found)) {
        let bucket = bucket(value);
        let range = self.buckets[bucket] as usize..self.buckets[bucket + 1] as usize;
        for group in self.groups[range].iter().filter(|group| group.value == value) {
            let literal = &self.texts[group.literal as usize];
            let Some(start) = at.checked_sub(group.offset as usize) else { continue };
            // Most groups belong to other words, which already differ in the first byte.
            if text.get(start) == literal.first()
                && text.get(start..start + literal.len()).is_some_and(|bytes| bytes == &**literal)
            {
                found(Found { start, end: start + literal.len(), literal: group.literal as usize });
            }
        }
    }
}

fn group_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|group: &[u8; GROUP]| u32::from_le_bytes(*group))
}

fn hash(value: u32) -> u32 {
    value.wrapping_mul(0x9e37_79b1)
}

fn place(value: u32) -> (usize, u64) {
    let bit = hash(value) >> (32 - FILTER_BITS);
    ((bit >> 6) as usize, 1 << (bit & 63))
}

fn bucket(value: u32) -> usize {
    (hash(value) >> (32 - BUCKET_BITS)) as usize
}

/// Returns the offset of the seven bytes with the rarest groups.
///
/// The frequency of groups in logs is unknown; groups shared by many literals are assumed to be frequent.
fn rarest_window(literal: &[u8], shared: &HashMap<u32, u32>) -> usize {
    let cost = |window: usize| -> u32 {
        (window..window + STRIDE)
            .filter_map(|at| group_at(literal, at))
            .map(|group| {
                let common: u32 = group.to_le_bytes().into_iter().map(frequency).sum();
                shared.get(&group).copied().unwrap_or(0) * 16 + common
            })
            .sum()
    };
    (0..=literal.len().saturating_sub(WINDOW)).min_by_key(|at| cost(*at)).unwrap_or(0)
}

/// Returns the approximate logarithm of a byte's frequency in logs.
fn frequency(byte: u8) -> u32 {
    match byte {
        b' ' | b'e' | b't' => 10,
        b'a' | b'o' | b'i' | b'n' | b's' | b'r' | b'd' | b'l' | b'c' => 9,
        b'0'..=b'9' | b'u' | b'm' | b'p' | b'g' => 8,
        b'f' | b'h' | b'b' | b'k' | b'v' | b'y' | b'w' | b'-' | b'.' | b'/' | b':' | b'"' | b'=' | b'_' => 7,
        b'x' | b'j' | b'q' | b'z' | b'[' | b']' | b'(' | b')' | b',' | b'\\' => 5,
        b'A'..=b'Z' => 4,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naive(literals: &[&str], text: &[u8]) -> Vec<Found> {
        let mut all = Vec::new();
        for (literal, bytes) in literals.iter().enumerate() {
            for start in memchr::memmem::find_iter(text, bytes) {
                all.push(Found { start, end: start + bytes.len(), literal });
            }
        }
        all.sort_unstable();
        all
    }

    fn found(literals: &[&str], text: &[u8]) -> Vec<Found> {
        let mut all = Vec::new();
        Literals::new(literals.iter().copied()).find(text, |found| all.push(found));
        all.sort_unstable();
        all
    }

    #[test]
    fn every_place_is_found_at_every_alignment() {
        let literals = [
            "connection refused",
            "refused by",
            "no such host",
            "abcdefgh",
            "bcdefghi",
            "aaaaaaaa\u{e9}",
            "x509: certificate",
        ];
        for shift in 0..23 {
            let mut text = vec![b'.'; shift];
            text.extend_from_slice(
                "connection refused by no such host abcdefghijabcdefgh aaaaaaaaa\u{e9} x509: certificate"
                    .as_bytes(),
            );
            assert_eq!(found(&literals, &text), naive(&literals, &text), "shift {shift}");
            assert_eq!(found(&literals, &text).len(), 8);
        }
    }

    #[test]
    fn random_texts_give_what_a_naive_search_gives() {
        let literals = ["abababab", "babababa", "aabbaabb", "abbaabbaab", "bbbbbbbbb"];
        let mut state = 1_u64;
        for length in 0..600 {
            let text: Vec<u8> = (0..length)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    if state >> 60 < 8 { b'a' } else { b'b' }
                })
                .collect();
            // A naive search misses overlapping occurrences; compare the literals at the offsets it finds.
            let ours = found(&literals, &text);
            assert!(naive(&literals, &text).iter().all(|place| ours.contains(place)), "length {length}");
            assert!(
                ours.iter().all(|place| &text[place.start..place.end] == literals[place.literal].as_bytes())
            );
        }
    }

    #[test]
    fn nothing_is_found_in_nothing() {
        assert!(found(&["abcdefgh"], b"").is_empty());
        assert!(found(&["abcdefgh"], b"bcdefgh").is_empty());
        assert!(found(&[], b"abcdefgh").is_empty());
    }
}
