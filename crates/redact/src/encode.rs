//! Encoded forms in which a known value may appear in evidence.

use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use landfall_model::Secret;

use crate::known::KNOWN_MIN;

/// Shorter lines of a multi-line value are not searched separately.
const LINE_MIN: usize = 16;

/// Returns all forms of `value` that are searched literally.
///
/// The forms are: unchanged, Base64 (both alphabets, at each of the three positions inside a larger encoded
/// text), hexadecimal, percent-encoded, and escaped for JSON. Deeper nesting is found by decoding
/// ([`decode`](crate::decode)).
pub(crate) fn forms(value: &[u8]) -> Vec<Secret<Vec<u8>>> {
    let mut forms: Vec<Vec<u8>> = vec![value.to_vec()];
    // Logs break values at line ends, and indent and prefix the parts. Each line is therefore searched
    // separately, unless it is prose or a common header.
    if value.contains(&b'\n') {
        let lines = value.split(|&byte| byte == b'\n').map(<[u8]>::trim_ascii);
        forms.extend(lines.filter(|line| line.len() >= LINE_MIN && is_one_word(line)).map(<[u8]>::to_vec));
    }
    for before in 0..3 {
        forms.push(base64_inside(&STANDARD, value, before));
        forms.push(base64_inside(&URL_SAFE, value, before));
    }
    forms.push(hexadecimal(value, b"0123456789abcdef"));
    forms.push(hexadecimal(value, b"0123456789ABCDEF"));
    forms.push(percent(value, b"0123456789ABCDEF"));
    forms.push(percent(value, b"0123456789abcdef"));
    let escaped = json(value, Angles::Plain);
    forms.push(json(&escaped, Angles::Plain));
    forms.push(escaped);
    forms.push(json(value, Angles::Escaped));
    forms.retain(|form| form.len() >= KNOWN_MIN);
    forms.sort_unstable();
    forms.dedup();
    forms.into_iter().map(Secret::new).collect()
}

fn is_one_word(line: &[u8]) -> bool {
    !line.iter().any(u8::is_ascii_whitespace) && !line.starts_with(b"--")
}

/// Returns the characters that depend only on `value` when `before` bytes (modulo three) precede it.
fn base64_inside(engine: &impl base64::Engine, value: &[u8], before: usize) -> Vec<u8> {
    let mut padded = vec![0; before];
    padded.extend_from_slice(value);
    let encoded = engine.encode(&padded).into_bytes();
    let from = (before * 8).div_ceil(6);
    let to = padded.len() * 8 / 6;
    encoded[from..to].to_vec()
}

fn hexadecimal(value: &[u8], digits: &[u8; 16]) -> Vec<u8> {
    value.iter().flat_map(|&byte| hexadecimal_pair(byte, digits)).collect()
}

fn percent(value: &[u8], digits: &[u8; 16]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(value.len() * 3);
    for &byte in value {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(byte);
        } else {
            encoded.push(b'%');
            encoded.extend(hexadecimal_pair(byte, digits));
        }
    }
    encoded
}

fn hexadecimal_pair(byte: u8, digits: &[u8; 16]) -> [u8; 2] {
    [digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]
}

/// Go escapes `<`, `>` and `&` in JSON by default; most other encoders do not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Angles {
    Plain,
    Escaped,
}

fn json(value: &[u8], angles: Angles) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(value.len());
    for &byte in value {
        match byte {
            b'"' => escaped.extend_from_slice(b"\\\""),
            b'\\' => escaped.extend_from_slice(b"\\\\"),
            b'\n' => escaped.extend_from_slice(b"\\n"),
            b'\r' => escaped.extend_from_slice(b"\\r"),
            b'\t' => escaped.extend_from_slice(b"\\t"),
            b'<' | b'>' | b'&' if angles == Angles::Escaped => {
                escaped.extend_from_slice(b"\\u00");
                escaped.extend(hexadecimal_pair(byte, b"0123456789abcdef"));
            }
            0..0x20 => {
                escaped.extend_from_slice(b"\\u00");
                escaped.extend(hexadecimal_pair(byte, b"0123456789abcdef"));
            }
            _ => escaped.push(byte),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;

    use super::*;

    #[test]
    fn base64_is_found_at_every_position_of_a_larger_text() {
        let value = b"s3cret-value-0";
        let forms = forms(value);
        for before in 0..9 {
            for after in 0..5 {
                let text = [&vec![0xa5; before][..], value, &vec![0x5a; after][..]].concat();
                let encoded = STANDARD.encode(&text);
                let found = forms.iter().any(|form| {
                    form.expose().len() > 12
                        && memchr::memmem::find(encoded.as_bytes(), form.expose()).is_some()
                });
                assert!(found, "{before} before, {after} after: {encoded}");
            }
        }
    }
}
