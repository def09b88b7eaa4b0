//! Fields: valid names, and values that are printable text.

use std::fmt;

/// Maximum length of a name in journald.
pub(crate) const MAX_NAME: usize = 64;

/// One field of an entry, borrowed from the reader's buffers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    bytes: &'a [u8],
    name: usize,
}

// === impl Field ===

impl<'a> Field<'a> {
    /// `bytes[..name]` must be a valid name and `bytes[name]` the `=`.
    #[inline]
    pub(crate) fn new(bytes: &'a [u8], name: usize) -> Self {
        Self { bytes, name }
    }

    /// Returns the name: letters `A` to `Z`, digits and `_`.
    pub fn name(&self) -> &'a str {
        // Names are validated as ASCII when the field is read.
        std::str::from_utf8(&self.bytes[..self.name]).unwrap_or_default()
    }

    /// Returns the value: any bytes, usually UTF-8.
    pub fn value(&self) -> &'a [u8] {
        &self.bytes[self.name + 1..]
    }

    /// Returns `NAME=value`.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) fn name_bytes(&self) -> &'a [u8] {
        &self.bytes[..self.name]
    }
}

impl fmt::Debug for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={:?}", self.name(), String::from_utf8_lossy(self.value()))
    }
}

/// Returns the length of the name in `NAME=value`, if it is valid.
#[inline]
pub(crate) fn name_len(field: &[u8]) -> Option<usize> {
    let head = &field[..field.len().min(MAX_NAME + 1)];
    let len = memchr::memchr(b'=', head)?;
    is_name(&head[..len]).then_some(len)
}

pub(crate) fn is_name(name: &[u8]) -> bool {
    let valid = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b'_';
    (1..=MAX_NAME).contains(&name.len()) && !name[0].is_ascii_digit() && name.iter().all(valid)
}

/// Returns whether a field fits on one line of the export format: UTF-8 without control characters (except the tab) and
/// without permanently reserved code points.
pub(crate) fn is_text(field: &[u8]) -> bool {
    const LANES: usize = 32;
    let plain = |byte: u8| byte.wrapping_sub(b' ') < 0x5f || byte == b'\t';
    let (chunks, rest) = field.as_chunks::<LANES>();
    // No early exit inside a chunk, so that the compiler can use vector instructions.
    let ascii = chunks.iter().all(|chunk| chunk.iter().fold(true, |all, byte| all & plain(*byte)))
        && rest.iter().all(|byte| plain(*byte));
    ascii || std::str::from_utf8(field).is_ok_and(|text| text.chars().all(is_printable))
}

fn is_printable(c: char) -> bool {
    let code = u32::from(c);
    let reserved = (0xfdd0..=0xfdef).contains(&code) || code & 0xfffe == 0xfffe;
    c == '\t' || !(c.is_control() || reserved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        let long = [vec![b'A'; MAX_NAME], b"=x".to_vec()].concat();
        let too_long = [vec![b'A'; MAX_NAME + 1], b"=x".to_vec()].concat();
        let cases: [(&[u8], Option<usize>); 10] = [
            (b"MESSAGE=a=b", Some(7)),
            (b"_PID=1", Some(4)),
            (b"A1=", Some(2)),
            (&long, Some(MAX_NAME)),
            (&too_long, None),
            (b"=x", None),
            (b"1A=x", None),
            (b"message=x", None),
            (b"NO SIGN", None),
            (b"", None),
        ];
        for (field, expected) in cases {
            assert_eq!(name_len(field), expected, "{}", field.escape_ascii());
        }
    }

    #[test]
    fn text_is_what_a_line_can_carry() {
        let long = format!("MESSAGE={}", "x".repeat(100));
        for text in ["A=", "A=tab\there", "A=grüße 🚀", long.as_str(), "A=\u{a0}"] {
            assert!(is_text(text.as_bytes()), "{text}");
        }
        let hidden = format!("MESSAGE={}\n{}", "x".repeat(50), "x".repeat(50));
        for binary in
            ["A=two\nlines", "A=\u{7f}", "A=\u{85}", "A=\0", "A=\u{fdd0}", "A=\u{1fffe}", hidden.as_str()]
        {
            assert!(!is_text(binary.as_bytes()), "{}", binary.escape_debug());
        }
        assert!(!is_text(b"A=\xff"));
        assert!(!is_text(b"A=\xc3"));
    }
}
