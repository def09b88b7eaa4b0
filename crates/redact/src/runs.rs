//! Runs of characters that could be encoded text.
//!
//! Words of logs are short and of every length, so a search that looks at one byte after the other mostly waits for
//! branches that were guessed wrong. Here sixty-four bytes become as many bits, and whether enough of those stand in a row
//! is seen without a branch.

/// The shortest run that matters to anybody: the secret half of a bootstrap token.
pub(crate) const RUN_MIN: usize = 16;

/// Bytes that become the bits of one number.
const BLOCK: usize = 64;

/// A run of characters of Base64 (which hexadecimal is part of), as long as it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// Where [`RUN_MIN`] set bits in a row end, in bits that go on from one number to the next.
#[derive(Default)]
struct Rows {
    /// For 1, 2, 4 and 8 bits in a row, where those end in the number before.
    before: [u64; 4],
}

// === impl Run ===

impl Run {
    pub(crate) fn len(self) -> usize {
        self.end - self.start
    }
}

/// All runs of at least [`RUN_MIN`] characters.
pub(crate) fn runs(text: &[u8]) -> Vec<Run> {
    let mut found = Vec::new();
    let mut open = None;
    let mut rows = Rows::default();
    let (blocks, rest) = text.as_chunks::<BLOCK>();
    let mut last = [0; BLOCK];
    last[..rest.len()].copy_from_slice(rest);
    for (number, block) in blocks.iter().chain((!rest.is_empty()).then_some(&last)).enumerate() {
        let encoded = bits(block, is_encoded);
        let mut ends = rows.ends(encoded);
        if open.is_none() && ends == 0 {
            continue;
        }
        let base = number * BLOCK;
        let mut gaps = !encoded;
        loop {
            let start = match open {
                Some(start) => start,
                None if ends == 0 => break,
                None => {
                    let end = ends.trailing_zeros();
                    gaps &= u64::MAX << end;
                    base + end as usize + 1 - RUN_MIN
                }
            };
            if gaps == 0 {
                open = Some(start);
                break;
            }
            let gap = gaps.trailing_zeros();
            found.push(Run { start, end: base + gap as usize });
            open = None;
            ends &= u64::MAX << gap;
        }
    }
    found.extend(open.map(|start| Run { start, end: text.len() }));
    found
}

/// Whether a byte belongs to either alphabet of Base64.
#[inline]
#[expect(
    clippy::needless_bitwise_bool,
    reason = "without branches the compiler can look at sixteen bytes at once"
)]
pub(crate) fn is_encoded(byte: u8) -> bool {
    let letter = (byte | 0x20).wrapping_sub(b'a') < 26;
    let digit_or_slash = byte.wrapping_sub(b'/') < 11;
    letter | digit_or_slash | (byte == b'+') | (byte == b'-') | (byte == b'_')
}

/// A bit for each byte of which `is` is true, the lowest for the first. It must not branch either.
#[inline]
pub(crate) fn bits<const LEN: usize>(block: &[u8; LEN], is: impl Fn(u8) -> bool) -> u64 {
    // Gathers the lowest bits of eight bytes in the highest byte.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    const { assert!(LEN <= 64 && LEN.is_multiple_of(8), "as many bits as the number has") };
    let mut classes = [0; LEN];
    for (class, byte) in classes.iter_mut().zip(block) {
        *class = u8::from(is(*byte));
    }
    let (eights, _) = classes.as_chunks::<8>();
    let gathered = eights.iter().map(|eight| u64::from_le_bytes(*eight).wrapping_mul(GATHER) >> 56);
    gathered.enumerate().fold(0, |all, (i, bits)| all | bits << (8 * i))
}

/// How many bytes at the start of `text` are such of which `is` is true. It must not branch either.
#[inline]
pub(crate) fn leading(text: &[u8], is: impl Fn(u8) -> bool + Copy) -> usize {
    const LEN: usize = 32;
    let mut len = 0;
    while let Some(block) = text[len..].first_chunk::<LEN>() {
        let ones = (bits(block, is).trailing_ones() as usize).min(LEN);
        len += ones;
        if ones < LEN {
            return len;
        }
    }
    len + text[len..].iter().take_while(|byte| is(**byte)).count()
}

// === impl Rows ===

impl Rows {
    /// The bits of the next number at which a row of [`RUN_MIN`] or more is at least that long.
    #[inline]
    fn ends(&mut self, bits: u64) -> u64 {
        let mut rows = bits;
        for (power, before) in self.before.iter_mut().enumerate() {
            let len = 1 << power;
            let shifted = rows << len | *before >> (64 - len);
            *before = rows;
            rows &= shifted;
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same, a byte at a time.
    fn plainly(text: &[u8]) -> Vec<Run> {
        let mut found = Vec::new();
        let mut start = 0;
        for end in 0..=text.len() {
            if end == text.len() || !is_encoded(text[end]) {
                if end - start >= RUN_MIN {
                    found.push(Run { start, end });
                }
                start = end + 1;
            }
        }
        found
    }

    #[test]
    fn runs_are_found_whole_wherever_they_stand() {
        for before in 0..140 {
            for len in (0..40).chain([63, 64, 65, 127, 128, 129, 200]) {
                for after in ["", ".", ". and so on", "\n0123456789abcdef"] {
                    let text =
                        format!("{}{}{after}", " ".repeat(before), "aB3_-+/z".repeat(25).split_at(len).0);
                    assert_eq!(runs(text.as_bytes()), plainly(text.as_bytes()), "{text:?}");
                }
            }
        }
    }

    #[test]
    fn leading_bytes_are_counted_in_blocks_and_behind_them() {
        for len in 0..70 {
            for rest in ["", ".", ".abc", ".abcdefghijklmnopqrstuvwxyz"] {
                let text = format!("{}{rest}", "a".repeat(len));
                assert_eq!(leading(text.as_bytes(), is_encoded), len, "{text}");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn runs_are_those_that_are_found_plainly(
            words in proptest::collection::vec("[a-zA-Z0-9+/_-]{0,40}[ .:\"é]{0,3}", 0..40)
        ) {
            let text = words.concat();
            proptest::prop_assert_eq!(runs(text.as_bytes()), plainly(text.as_bytes()));
        }
    }
}
