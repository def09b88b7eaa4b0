//! Runs of characters that could be encoded text.
//!
//! Words in logs are short and of varying length, so a search byte by byte mostly waits for mispredicted
//! branches. Here 64 bytes become 64 bits, and a sufficiently long run of bits is detected without a branch.

/// Minimum length of a relevant run: the secret half of a bootstrap token.
pub(crate) const RUN_MIN: usize = 16;

/// Bytes per bit mask.
const BLOCK: usize = 64;

/// A maximal run of Base64 characters, which include hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// Finds the ends of [`RUN_MIN`] consecutive set bits across bit masks.
#[derive(Default)]
struct Rows {
    /// The ends of 1, 2, 4 and 8 consecutive bits in the previous mask.
    before: [u64; 4],
}

// === impl Run ===

impl Run {
    pub(crate) fn len(self) -> usize {
        self.end - self.start
    }
}

/// Returns all runs of at least [`RUN_MIN`] characters.
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

/// Returns whether a byte belongs to either alphabet of Base64.
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

/// Returns a bit for each byte that satisfies `is`, lowest first. `is` must not branch either.
#[inline]
pub(crate) fn bits<const LEN: usize>(block: &[u8; LEN], is: impl Fn(u8) -> bool) -> u64 {
    // Moves the lowest bits of eight bytes into the highest byte.
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

/// Returns the number of leading bytes that satisfy `is`, which must not branch either.
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
    /// Returns the bits of the next mask at which a row has at least [`RUN_MIN`] bits.
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

    /// Reference implementation, byte by byte.
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
