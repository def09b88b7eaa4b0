//! The Huffman code of RFC 7541, appendix B.
//!
//! The code is canonical: the lengths alone determine it, so only they are listed here.

use std::sync::LazyLock;

use super::HpackError;

const MIN_LENGTH: usize = 5;
const MAX_LENGTH: usize = 30;
/// The 257th symbol ends a string; only its first bits may occur, as padding.
const END_OF_STRING: usize = 256;
/// Maximum number of padding bits, which fill the last byte; a complete byte of padding is invalid.
const MAX_PADDING: usize = 7;

/// Number of bits in the code of each symbol.
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

static CODE: LazyLock<Code> = LazyLock::new(Code::new);

/// For each length: the first code of that length, and the index of its symbol in `symbols`.
struct Code {
    first: [u32; MAX_LENGTH + 1],
    count: [u32; MAX_LENGTH + 1],
    offset: [usize; MAX_LENGTH + 1],
    symbols: Vec<usize>,
}

/// Decodes a complete string, and rejects one longer than `limit`.
pub(super) fn decode(input: &[u8], limit: usize) -> Result<Vec<u8>, HpackError> {
    let code = &*CODE;
    let mut output = Vec::with_capacity((input.len() * 8 / MIN_LENGTH).min(limit));
    let (mut bits, mut length) = (0_u32, 0_usize);
    for byte in input {
        for shift in (0..8).rev() {
            bits = bits << 1 | u32::from(byte >> shift & 1);
            length += 1;
            if length > MAX_LENGTH {
                return Err(HpackError::Huffman);
            }
            let Some(index) =
                bits.checked_sub(code.first[length]).filter(|index| *index < code.count[length])
            else {
                continue;
            };
            // Symbols above 255 are the end of the string, which must not be encoded.
            let symbol = code.symbols[code.offset[length] + index as usize];
            output.push(u8::try_from(symbol).map_err(|_| HpackError::Huffman)?);
            if output.len() > limit {
                return Err(HpackError::TooLarge);
            }
            (bits, length) = (0, 0);
        }
    }
    let all_ones = (1 << length) - 1;
    if length > MAX_PADDING || bits != all_ones { Err(HpackError::Huffman) } else { Ok(output) }
}

// === impl Code ===

impl Code {
    fn new() -> Self {
        let mut code = Self {
            first: [0; MAX_LENGTH + 1],
            count: [0; MAX_LENGTH + 1],
            offset: [0; MAX_LENGTH + 1],
            symbols: Vec::with_capacity(LENGTHS.len()),
        };
        let mut next = 0;
        for length in MIN_LENGTH..=MAX_LENGTH {
            next <<= 1;
            code.first[length] = next;
            code.offset[length] = code.symbols.len();
            code.symbols.extend((0..=END_OF_STRING).filter(|symbol| usize::from(LENGTHS[*symbol]) == length));
            let added = code.symbols.len() - code.offset[length];
            code.count[length] = u32::try_from(added).expect("a code has 257 symbols at most");
            next += code.count[length];
        }
        code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests RFC 7541, C.4 and C.6.
    #[test]
    fn the_examples_of_the_rfc_decode() {
        let cases: [(&[u8], &str); 6] = [
            (b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff", "www.example.com"),
            (b"\xa8\xeb\x10\x64\x9c\xbf", "no-cache"),
            (b"\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f", "custom-key"),
            (b"\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf", "custom-value"),
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
    fn wrong_padding_and_a_spelled_out_end_are_refused() {
        // `0` is 00000; the rest must be ones.
        assert_eq!(decode(&[0b0000_0111], 10).unwrap(), b"0");
        assert_eq!(decode(&[0b0000_0110], 10), Err(HpackError::Huffman));
        assert_eq!(decode(&[0b0000_0111, 0xff], 10), Err(HpackError::Huffman));
        assert_eq!(decode(&[0xff; 4], 10), Err(HpackError::Huffman));
        assert_eq!(decode(&[0; 5], 7), Err(HpackError::TooLarge));
    }

    #[test]
    fn the_code_is_complete() {
        let used: u64 = LENGTHS.iter().map(|length| 1 << (MAX_LENGTH - usize::from(*length))).sum();
        assert_eq!(used, 1 << MAX_LENGTH);
    }
}
