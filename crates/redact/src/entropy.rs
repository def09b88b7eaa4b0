//! The last pass: it reports random-looking words to a reviewer.
//!
//! It never redacts them, because digests, identifiers and names in evidence look random, too.

use crate::runs::Run;

/// Shorter words have too few characters for this test.
const WORD_MIN: usize = 32;

/// Bits per character above which a word looks random. Hexadecimal digits have four, prose has less.
const BITS_MIN: f64 = 4.2;

pub(crate) fn is_suspicious(text: &[u8], run: Run) -> bool {
    let word = &text[run.start..run.end];
    word.len() >= WORD_MIN
        && has(word, u8::is_ascii_uppercase)
        && has(word, u8::is_ascii_lowercase)
        && has(word, u8::is_ascii_digit)
        && !is_public(&text[..run.start], word)
        && bits(word) > BITS_MIN
}

/// Tests all bytes without a branch, so that the compiler can vectorize it: most words are identifiers
/// without capital letters.
fn has(word: &[u8], test: impl Fn(&u8) -> bool) -> bool {
    word.iter().fold(false, |any, byte| any | test(byte))
}

/// Returns whether a word is a digest, fingerprint or public key: random but public.
fn is_public(before: &[u8], word: &[u8]) -> bool {
    const PREFIXES: [&[u8]; 6] = [b"sha256:", b"sha512:", b"SHA256:", b"sha256-", b"sha512-", b"ssh-rsa "];
    PREFIXES.iter().any(|prefix| before.ends_with(prefix)) || word.starts_with(b"AAAA")
}

#[expect(clippy::cast_precision_loss, reason = "words are short")]
fn bits(word: &[u8]) -> f64 {
    let mut counts = [0_u32; 256];
    for &byte in word {
        counts[usize::from(byte)] += 1;
    }
    let len = word.len() as f64;
    counts
        .iter()
        .filter(|count| **count > 0)
        .map(|&count| f64::from(count) / len)
        .map(|share| -share * share.log2())
        .sum()
}
