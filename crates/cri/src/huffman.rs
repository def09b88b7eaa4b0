//! The Huffman code of RFC 7541, appendix B. It is canonical: the lengths alone determine it.

use std::sync::LazyLock;

use crate::CriError;

const MIN_LENGTH: usize = 5;
const MAX_LENGTH: usize = 30;
/// Padding fills the last byte; a whole byte of it says nothing.
const MAX_PADDING: usize = 7;

/// How many bits the code of each symbol has. The last symbol ends a string and appears only as padding, cut off.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

/// The codes of each length: the first of them, and the symbols they stand for.
static CODES: LazyLock<Vec<(u32, Vec<usize>)>> = LazyLock::new(|| {
    let mut next = 0;
    let mut codes = Vec::with_capacity(MAX_LENGTH + 1);
    for length in 0..=MAX_LENGTH {
        next <<= 1;
        let of_length = |symbol: &usize| usize::from(LENGTHS[*symbol]) == length;
        let symbols: Vec<usize> = (0..LENGTHS.len()).filter(of_length).collect();
        let count = u32::try_from(symbols.len()).unwrap_or(u32::MAX);
        codes.push((next, symbols));
        next += count;
    }
    codes
});

/// Decodes a whole string, refusing what would make it longer than `limit`.
pub(crate) fn decode(input: &[u8], limit: usize) -> Result<Vec<u8>, CriError> {
    let malformed = CriError::Malformed { what: "a header that is not Huffman code" };
    let mut output = Vec::with_capacity((input.len() * 8 / MIN_LENGTH).min(limit));
    let (mut bits, mut length) = (0_u32, 0_usize);
    for bit in input.iter().flat_map(|byte| (0..8).rev().map(move |shift| byte >> shift & 1)) {
        bits = bits << 1 | u32::from(bit);
        length += 1;
        let Some((first, symbols)) = CODES.get(length) else { return Err(malformed) };
        let Some(symbol) = bits.checked_sub(*first).and_then(|index| symbols.get(index as usize)) else {
            continue;
        };
        // Symbols above 255 are the end of the string, which must not be spelled out.
        let Ok(symbol) = u8::try_from(*symbol) else { return Err(malformed) };
        if output.len() == limit {
            return Err(CriError::Malformed { what: "a header that is too long" });
        }
        output.push(symbol);
        (bits, length) = (0, 0);
    }
    let all_ones = (1 << length) - 1;
    if length > MAX_PADDING || bits != all_ones { Err(malformed) } else { Ok(output) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7541, C.4 and C.6.
    #[test]
    fn the_examples_of_the_rfc_decode() {
        let cases: [(&[u8], &str); 3] = [
            (b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff", "www.example.com"),
            (
                b"\x9d\x29\xad\x17\x18\x63\xc7\x8f\x0b\x97\xc8\xe9\xae\x82\xae\x43\xd3",
                "https://www.example.com",
            ),
            (b"", ""),
        ];
        for (input, text) in cases {
            assert_eq!(decode(input, 100).unwrap(), text.as_bytes(), "{text}");
        }
    }

    #[test]
    fn wrong_padding_a_spelled_out_end_and_length_are_refused() {
        assert_eq!(decode(&[0b0000_0111], 10).unwrap(), b"0");
        for input in [&[0b0000_0110][..], &[0b0000_0111, 0xff], &[0xff; 4], &[0; 5]] {
            assert!(decode(input, 7).is_err(), "{input:?}");
        }
    }
}
