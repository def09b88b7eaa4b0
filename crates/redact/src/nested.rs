//! Texts inside texts: encoded payloads, and lines in the notations that they use.
//!
//! The notations of one line nest in many orders, and most orders lead to the same text. Each text is
//! searched once, and the number of searches is limited for each line and for each block.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

use crate::Kind;
use crate::block::{Certificates, Context};
use crate::decode::{self, Decoded};
use crate::entropy;
use crate::hit::{Hit, What};
use crate::resolved::Framed;
use crate::runs::Run;
use crate::scan::{Engine, Entropy, Lines, Scan, line_around};

/// Maximum nesting of encodings: gzip in Base64 in a percent-encoded URL, and one more.
const DEPTH_MAX: u32 = 4;

/// Decoded bytes searched per block; the excess is withheld.
const DECODED_MAX: usize = 16 << 20;

/// Searches inside the lines of a block, in addition to those allowed by its length. Ordinary lines in
/// several notations take up to 20 per KiB, and a line of 100 KiB in one takes 330.
const SEARCHES_MIN: usize = 2048;

/// Total searches inside the lines of a block: each frame allows those for its length again.
const SEARCHES_MAX: usize = 12 << 10;

/// Bytes of a block, and of decoded text, that allow one more search.
const BYTES_PER_SEARCH: usize = 48;
const DECODED_PER_SEARCH: usize = 64;

/// Bytes of text in frames inside frames that are searched per block.
const FRAMED_MAX: usize = 3 << 20;

/// The state of the searches inside a block.
pub(crate) struct Nested {
    /// Decoded bytes that may still be searched.
    bytes: usize,
    /// Remaining searches, in units of [`BYTES_PER_SEARCH`].
    searches: usize,
    /// Remaining searches of the total.
    all: usize,
    /// Offset of the current line or payload.
    at: usize,
    /// Whether the limit was reached in the current line or payload.
    is_exhausted: bool,
    /// Bytes of text in frames inside frames that may still be searched.
    framed: usize,
    hasher: RandomState,
    /// Searched texts by hash.
    found: HashMap<u64, Found>,
}

/// Result of searching a text.
struct Found {
    /// Number of encodings and frames around the text. A smaller number allows deeper searches inside.
    depth: u32,
    frames: u32,
    hits: Vec<Hit>,
}

// === impl Nested ===

impl Nested {
    /// Starts a line or a payload at `at` that represents `len` bytes.
    ///
    /// The text since the previous one allows more searches, so that other lines are not withheld with
    /// hostile ones.
    fn begin(&mut self, at: usize, len: usize) {
        let passed = at.saturating_sub(self.at) + len * BYTES_PER_SEARCH / DECODED_PER_SEARCH;
        self.searches += passed;
        self.at = at;
        self.is_exhausted = false;
    }

    /// Returns the hits of a text that was searched with at least as many remaining levels.
    fn known(&self, hash: u64, depth: u32, frames: u32) -> Option<Vec<Hit>> {
        let found = self.found.get(&hash).filter(|found| found.depth <= depth && found.frames <= frames);
        found.map(|found| found.hits.clone())
    }

    fn insert(&mut self, hash: u64, depth: u32, frames: u32, hits: &[Hit]) {
        self.found.insert(hash, Found { depth, frames, hits: hits.to_vec() });
    }

    /// Returns whether the current line or payload will be withheld, so that further hits in it are
    /// irrelevant.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.is_exhausted
    }

    /// Accounts for a search. Returns whether the limits allow it.
    fn charge(&mut self, len: usize) -> bool {
        let left = self.bytes.checked_sub(len).zip(self.searches.checked_sub(BYTES_PER_SEARCH));
        match left.filter(|_| !self.is_exhausted && self.all > 0) {
            Some(left) => {
                (self.bytes, self.searches) = left;
                self.all -= 1;
            }
            None => self.is_exhausted = true,
        }
        !self.is_exhausted
    }
}

impl Default for Nested {
    fn default() -> Self {
        Self {
            bytes: DECODED_MAX,
            searches: SEARCHES_MIN * BYTES_PER_SEARCH,
            all: SEARCHES_MAX,
            at: 0,
            is_exhausted: false,
            framed: FRAMED_MAX,
            hasher: RandomState::new(),
            found: HashMap::new(),
        }
    }
}

// === impl Engine ===

impl Engine {
    /// Searches Base64 and hexadecimal runs.
    ///
    /// A payload that contains a secret is replaced completely: a partial replacement would leave neither
    /// text nor a valid encoding.
    pub(crate) fn find_encoded(
        &self,
        text: &[u8],
        runs: &[Run],
        certificates: Certificates,
        scan: &mut Scan,
        framed: &mut Framed,
        hits: &mut Vec<Hit>,
    ) {
        let mut done = 0;
        for &run in runs.iter().filter(|run| run.len() >= decode::ENCODED_MIN) {
            if run.start < done {
                continue;
            }
            let (payload, end) = if let Some((joined, end)) = decode::wrapped(text, run) {
                (Cow::Owned(joined), end)
            } else {
                let is_apart = scan.lines == Lines::Apart && scan.depth == 0;
                if !is_apart && decode::may_be_framed(text, run) {
                    framed.add(text, line_around(text, run.start), run.start, &self.rules.prefixes);
                }
                (Cow::Borrowed(&text[run.start..run.end]), run.end)
            };
            done = end;
            let what = match decode::run(&payload) {
                None => None,
                Some(Decoded::Unreadable) => Some(What::Withheld("gzip")),
                Some(Decoded::Text(decoded)) => {
                    match self.find_within(run.start, &decoded, certificates, scan) {
                        None => Some(What::Withheld("encoded")),
                        Some(found) => self.payload(&decoded, &found),
                    }
                }
            };
            match what {
                Some(what) => {
                    let padding = text[end..].iter().take(2).take_while(|byte| **byte == b'=').count();
                    hits.push(Hit { start: run.start, end: end + padding, what });
                }
                None if scan.depth == 0
                    && scan.frames == 0
                    && scan.entropy == Entropy::Wanted
                    && entropy::is_suspicious(text, run) =>
                {
                    scan.suspicious.push(run.start);
                }
                None => {}
            }
        }
    }

    /// Returns the replacement of a payload with the hits `found`.
    fn payload(&self, decoded: &[u8], found: &[Hit]) -> Option<What> {
        // A dropped line belongs to a construct with its marker or facts elsewhere.
        let secrets: Vec<&Hit> =
            found.iter().filter(|hit| !matches!(hit.what, What::Facts(_) | What::Drop)).collect();
        match secrets[..] {
            [] => {
                // A payload that contains only certificates becomes their facts; inside a larger payload they
                // are kept.
                let mut rest = 0;
                let only = found.iter().all(|hit| {
                    let between = &decoded[std::mem::replace(&mut rest, hit.end)..hit.start];
                    between.iter().all(u8::is_ascii_whitespace)
                });
                let facts: Vec<&[u8]> = found
                    .iter()
                    .filter_map(|hit| if let What::Facts(facts) = &hit.what { Some(&**facts) } else { None })
                    .collect();
                let is_all = only && decoded[rest..].iter().all(u8::is_ascii_whitespace);
                (is_all && !facts.is_empty()).then(|| What::Facts(facts.join(&b" "[..]).into()))
            }
            [Hit { what: what @ What::Mark(..), .. }] => Some(what.clone()),
            [first, ..] => {
                let kind = if let What::Mark(kind, _) = first.what { kind } else { Kind::BASE64 };
                Some(What::Mark(kind, self.pseudonyms.tag(decoded)))
            }
        }
    }

    /// Searches a text decoded from `at`; `None` if the limits do not allow it.
    pub(crate) fn find_within(
        &self,
        at: usize,
        text: &[u8],
        certificates: Certificates,
        scan: &mut Scan,
    ) -> Option<Vec<Hit>> {
        if scan.depth >= DEPTH_MAX {
            return None;
        }
        if scan.depth == 0 {
            scan.nested.begin(at, text.len());
        }
        let hash = scan.nested.hasher.hash_one(text);
        if let Some(hits) = scan.nested.known(hash, scan.depth, scan.frames) {
            return Some(hits);
        }
        if !scan.nested.charge(text.len()) {
            return None;
        }
        scan.depth += 1;
        let mut context = Context::new(certificates);
        let mut hits = self.find(text, &mut context, scan);
        scan.depth -= 1;
        if scan.nested.is_exhausted {
            return None;
        }
        if let Some(what) = context.finish() {
            hits.push(Hit { start: text.len(), end: text.len(), what });
        } else {
            scan.nested.insert(hash, scan.depth, scan.frames, &hits);
        }
        Some(hits)
    }

    /// Searches the text in a frame; `None` if the limits do not allow it.
    ///
    /// Inside a notation, the line is then withheld when its search returns.
    pub(crate) fn find_in_frame(
        &self,
        text: &[u8],
        context: &mut Context,
        scan: &mut Scan,
    ) -> Option<Vec<Hit>> {
        let is_fresh = !context.is_open_anywhere();
        // Most texts are in one frame.
        if scan.depth == 0 && scan.frames == 1 {
            return Some(self.find(text, context, scan));
        }
        let hash = scan.nested.hasher.hash_one(text);
        if is_fresh && let Some(hits) = scan.nested.known(hash, scan.depth, scan.frames) {
            return Some(hits);
        }
        if scan.depth == 0 {
            scan.nested.framed = scan.nested.framed.checked_sub(text.len())?;
        } else if !scan.nested.charge(text.len()) {
            return None;
        }
        let hits = self.find(text, context, scan);
        let is_complete = scan.depth == 0 || !scan.nested.is_exhausted;
        if is_fresh && !context.is_open_anywhere() && is_complete {
            scan.nested.insert(hash, scan.depth, scan.frames, &hits);
        }
        Some(hits)
    }
}
