//! Payloads in files: data URLs, Base64, percent encoding, gzip.

use std::io::Read as _;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use flate2::read::MultiGzDecoder;

/// Maximum payload size after decompression.
const MAX_UNPACKED: u64 = 1 << 20;

/// Minimum length of Base64 user data.
const MIN_ENCODED: usize = 24;

/// Accepts Base64 with and without padding.
const CONFIG: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, CONFIG);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, CONFIG);

/// Returns the content of `data:[TYPE][;base64],…`.
pub(super) fn data_url(text: &str) -> Option<Vec<u8>> {
    let (head, data) = text.trim().strip_prefix("data:")?.split_once(',')?;
    let data = percent(data);
    if head.split(';').any(|part| part.trim() == "base64") { base64(&data) } else { Some(data) }
}

/// Decodes Base64 of either alphabet, with line breaks.
pub(super) fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    STANDARD.decode(&text).or_else(|_| URL_SAFE.decode(&text)).ok()
}

/// Decodes text that consists of Base64 user data.
pub(super) fn user_data(text: &str) -> Option<Vec<u8>> {
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || "+/-_=\r\n".contains(c);
    let text = text.trim();
    if text.len() < MIN_ENCODED || !text.chars().all(is_base64) {
        return None;
    }
    let starts = [&b"#"[..], b"\x1f\x8b", b"{", b"Content-Type:", b"MIME-Version:"];
    base64(text.as_bytes()).filter(|bytes| starts.iter().any(|start| bytes.starts_with(start)))
}

/// Decodes percent encoding and keeps invalid sequences.
pub(super) fn percent(text: &str) -> Vec<u8> {
    percent_encoding::percent_decode_str(text).collect()
}

/// Decompresses a gzip file up to the first damage; returns other files unchanged.
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
