//! Payloads inside of files: data URLs, Base64, percent encoding, gzip.

use std::io::Read as _;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use flate2::read::MultiGzDecoder;

/// The largest payload after decompression.
const MAX_UNPACKED: u64 = 1 << 20;

/// The shortest user data in Base64.
const MIN_ENCODED: usize = 24;

/// Accepts Base64 with and without padding.
const CONFIG: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, CONFIG);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, CONFIG);

/// The content of `data:[TYPE][;base64],…`.
pub(super) fn data_url(text: &str) -> Option<Vec<u8>> {
    let (head, data) = text.trim().strip_prefix("data:")?.split_once(',')?;
    let data = percent(data);
    if head.split(';').any(|part| part.trim() == "base64") { base64(&data) } else { Some(data) }
}

/// Base64 of either alphabet, with line breaks.
pub(super) fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    STANDARD.decode(&text).or_else(|_| URL_SAFE.decode(&text)).ok()
}

/// Text that is Base64 of user data as a whole.
pub(super) fn user_data(text: &str) -> Option<Vec<u8>> {
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || "+/-_=\r\n".contains(c);
    let text = text.trim();
    if text.len() < MIN_ENCODED || !text.chars().all(is_base64) {
        return None;
    }
    let starts = [&b"#"[..], b"\x1f\x8b", b"{", b"Content-Type:", b"MIME-Version:"];
    base64(text.as_bytes()).filter(|bytes| starts.iter().any(|start| bytes.starts_with(start)))
}

/// Percent encoding, undone. Invalid sequences stay.
pub(super) fn percent(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let number = after.get(..2).filter(|_| *first == b'%').and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            digits
                .bytes()
                .all(|digit| digit.is_ascii_hexdigit())
                .then(|| u8::from_str_radix(digits, 16).ok())?
        });
        bytes.push(number.unwrap_or(*first));
        rest = if number.is_some() { &after[2..] } else { after };
    }
    bytes
}

/// The content of a gzip file; other files as they are. The part before a damaged place counts.
pub(in crate::collect) fn unpacked(bytes: Vec<u8>) -> Vec<u8> {
    if !bytes.starts_with(b"\x1f\x8b") {
        return bytes;
    }
    let mut unpacked = Vec::new();
    let _ = MultiGzDecoder::new(&bytes[..]).take(MAX_UNPACKED).read_to_end(&mut unpacked);
    unpacked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_data_urls() {
        for (url, expected) in [
            ("data:,a%20b%0Ac", Some("a b\nc")),
            ("data:text/plain;charset=utf-8;base64,aHVudGVyMg==", Some("hunter2")),
            ("data:;base64,aHVudGVyMg", Some("hunter2")),
            ("data:;base64,aHVudGVyMg%3D%3D", Some("hunter2")),
            ("data:,100%", Some("100%")),
            ("data:,%zz%+1", Some("%zz%+1")),
            ("data:;base64,!!", None),
            ("https://x/", None),
        ] {
            assert_eq!(data_url(url), expected.map(|text| text.as_bytes().to_vec()), "{url}");
        }
    }
}
