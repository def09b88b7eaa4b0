//! Encoded text inside text: runs of Base64 and hexadecimal, percent encoding, backslash escapes, gzip.

use std::io::Read as _;

use crate::runs::{Run, is_encoded};
use crate::views::{byte_of, is_wide};

/// Shorter runs of encoded text cannot contain a secret that a pattern would recognize.
pub(crate) const ENCODED_MIN: usize = 16;

/// The minimum for hexadecimal digits.
const HEXADECIMAL_MIN: usize = 24;

/// Number of hexadecimal digits at the start of a run that must decode to ASCII before the rest is decoded.
const PROBE_DIGITS: usize = 16;

/// Shorter Base64 lines are not treated as part of a wrapped text.
const WRAPPED_MIN: usize = 40;

/// Longer ones are not wrapped: tools break lines at 60 to 76 characters.
const WRAPPED_MAX: usize = 200;

/// Maximum decompressed size of one payload; larger ones are withheld, not searched.
const UNPACKED_MAX: u64 = 4 << 20;

/// Maximum nesting of gzip.
const UNPACKED_DEPTH_MAX: u32 = 4;

/// Signature of gzip.
const GZIP: &[u8] = b"\x1f\x8b\x08";

/// Base64 groups at the start of a run that must decode to ASCII before the rest is decoded.
const PROBE_GROUPS: usize = 5;

const NONE: u8 = 0xff;

/// Values of both Base64 alphabets.
const SEXTETS: [u8; 256] = {
    let mut table = [NONE; 256];
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut i = 0;
    while i < 64 {
        #[expect(clippy::cast_possible_truncation, reason = "i is below 64")]
        let value = i as u8;
        table[alphabet[i] as usize] = value;
        i += 1;
    }
    table[b'-' as usize] = 62;
    table[b'_' as usize] = 63;
    table
};

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    Text(Vec<u8>),
    /// The run has a payload that cannot be read completely.
    Unreadable,
}

/// Joins wrapped Base64: the line of `run` and the lines that continue it.
pub(crate) fn wrapped(text: &[u8], run: Run) -> Option<(Vec<u8>, usize)> {
    if !(WRAPPED_MIN..=WRAPPED_MAX).contains(&run.len()) || line_end(&text[run.end..]).is_none() {
        return None;
    }
    let mut joined = text[run.start..run.end].to_vec();
    let mut end = run.end;
    while let Some(next) = line_end(&text[end..]).map(|len| end + len) {
        let start = next + text[next..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let len = text[start..].iter().take_while(|byte| is_encoded(**byte)).count();
        let padding = text[start + len..].iter().take_while(|byte| **byte == b'=').count();
        let behind = text.get(start + len + padding);
        let ends_line = behind.is_none() || line_end(&text[start + len + padding..]).is_some();
        // The last line may be of any length, but it completes a group of four.
        let fits = (WRAPPED_MIN..=WRAPPED_MAX).contains(&len)
            || len < WRAPPED_MIN && (joined.len() + len + padding).is_multiple_of(4);
        if len == 0 || !fits || !ends_line && !matches!(behind, Some(b'"' | b'\'' | b'\\' | b'<')) {
            break;
        }
        joined.extend_from_slice(&text[start..start + len]);
        end = start + len + padding;
        if padding > 0 || !ends_line || len < WRAPPED_MIN {
            break;
        }
    }
    (end > run.end).then_some((joined, end))
}

/// Returns whether a run at a line end may start Base64 whose next lines have other prefixes.
///
/// Only text and gzip are considered.
pub(crate) fn may_be_framed(text: &[u8], run: Run) -> bool {
    (WRAPPED_MIN..=WRAPPED_MAX).contains(&run.len())
        && matches!(text.get(run.end), Some(b'\n' | b'\r' | b'"' | b'\'' | b'\\'))
        && (text[run.start..].starts_with(b"H4sI") || base64_is_text(&text[run.start..run.end]))
}

/// Returns whether a line consists of Base64, like the inner lines of wrapped Base64.
pub(crate) fn is_wrapped_line(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    (WRAPPED_MIN..=WRAPPED_MAX).contains(&line.len()) && line.iter().all(|byte| is_encoded(*byte))
}

/// Returns the start of the last Base64 line up to `limit` that decodes separately to text.
///
/// Returns `None` unless the text consists only of Base64 lines.
pub(crate) fn end_of_text(text: &[u8], limit: usize) -> Option<usize> {
    let (mut start, mut len, mut end) = (0, 0, None);
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        if !is_wrapped_line(line) {
            return None;
        }
        let content = line.trim_ascii();
        if start > 0 && start <= limit && len % 4 == 0 && base64_is_text(content) {
            end = Some(start);
        }
        len += content.len();
        start += line.len();
    }
    end
}

/// Returns the length of the Base64 at the end of a line, if the next line may continue it.
pub(crate) fn wrapped_end(line: &[u8]) -> usize {
    let len = line.iter().rev().take_while(|byte| is_encoded(**byte)).count();
    if (WRAPPED_MIN..=WRAPPED_MAX).contains(&len) { len } else { 0 }
}

/// Returns whether a line may be the last one of wrapped Base64.
pub(crate) fn is_last_line(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    let padding = line.iter().rev().take_while(|byte| **byte == b'=').count();
    line.len().is_multiple_of(4)
        && (4..=WRAPPED_MAX).contains(&line.len())
        && padding < 3
        && line[..line.len() - padding].iter().all(|byte| is_encoded(*byte))
}

/// Returns the length of a plain or escaped line end at the start of a text.
fn line_end(text: &[u8]) -> Option<usize> {
    let escaped = |at: usize, letter: u8| {
        let depth = text[at..].iter().take_while(|byte| **byte == b'\\').count();
        (depth > 0 && text.get(at + depth) == Some(&letter)).then_some(at + depth + 1)
    };
    match text {
        [b'\n', ..] => Some(1),
        [b'\r', b'\n', ..] => Some(2),
        [b'\\', ..] => escaped(0, b'n').or_else(|| escaped(escaped(0, b'r')?, b'n')),
        _ => None,
    }
}

/// Returns whether a line ends with Base64 that may continue in the next line.
pub(crate) fn may_be_wrapped(line: &[u8]) -> bool {
    let line = line.trim_ascii_end();
    line.len() >= WRAPPED_MIN && line[line.len() - WRAPPED_MIN..].iter().all(|byte| is_encoded(*byte))
}

/// Decodes the texts that a run may represent.
pub(crate) fn run(run: &[u8]) -> Option<Decoded> {
    if run.starts_with(b"H4sI") {
        return Some(unpack(base64(run)));
    }
    if run.len() >= HEXADECIMAL_MIN && run.starts_with(b"1f8b08") {
        return Some(unpack(hexadecimal(run)));
    }
    if run.len() >= HEXADECIMAL_MIN && hexadecimal_is_text(run) && run.iter().all(u8::is_ascii_hexdigit) {
        return Some(Decoded::Text(as_arguments(hexadecimal(run))));
    }
    // The run may start with unrelated characters of the same alphabet.
    (0..4).find(|&skip| base64_is_text(&run[skip..])).map(|skip| Decoded::Text(base64(&run[skip..])))
}

pub(crate) fn base64_is_text(run: &[u8]) -> bool {
    run.len() >= 4 * (PROBE_GROUPS - 1)
        && (run.chunks_exact(4).take(PROBE_GROUPS).all(|group| is_text(&sextets(group)))
            || base64_is_wide(run)
            || base64_is_environment(run))
}

/// Returns whether a run decodes to words separated by NUL bytes, like the environment of a process in
/// `/proc`.
fn base64_is_environment(run: &[u8]) -> bool {
    let mut groups = run.chunks_exact(4).take(PROBE_GROUPS).map(sextets);
    let Some(first) = groups.next().filter(|first| is_text(first)) else { return false };
    let mut last = first[2];
    groups.flatten().all(|byte| {
        let previous = std::mem::replace(&mut last, byte);
        is_text(&[byte]) || byte == 0 && previous != 0
    })
}

/// Returns whether a run decodes to ASCII in UTF-16.
fn base64_is_wide(run: &[u8]) -> bool {
    // Almost all runs fail here: they start neither with a character and a zero byte nor with a byte order
    // mark.
    let Some(first) = run.first_chunk::<4>().map(|group| sextets(group)) else { return false };
    if !matches!(first, [0, _, _] | [_, 0, _] | [0xff, 0xfe, _] | [0xfe, 0xff, _]) {
        return false;
    }
    let mut start = [0; 3 * PROBE_GROUPS];
    let (decoded, _) = start.as_chunks_mut::<3>();
    let groups = run.chunks_exact(4).take(PROBE_GROUPS);
    let len = 3 * groups.len();
    for (decoded, group) in decoded.iter_mut().zip(groups) {
        *decoded = sextets(group);
    }
    let start = &start[..len];
    let start = start.strip_prefix(b"\xff\xfe").or(start.strip_prefix(b"\xfe\xff")).unwrap_or(start);
    memchr::memchr(0, start).is_some_and(|nul| nul < 2 && is_wide(start, nul))
}

fn sextets(group: &[u8]) -> [u8; 3] {
    let value = |i: usize| SEXTETS[usize::from(group[i])];
    [value(0) << 2 | value(1) >> 4, value(1) << 4 | value(2) >> 2, value(2) << 6 | value(3)]
}

fn base64(run: &[u8]) -> Vec<u8> {
    let groups = run.chunks_exact(4);
    let rest = groups.remainder();
    let mut decoded: Vec<u8> = groups.flat_map(sextets).collect();
    if rest.len() > 1 {
        let mut group = [b'A'; 4];
        group[..rest.len()].copy_from_slice(rest);
        decoded.extend_from_slice(&sextets(&group)[..rest.len() - 1]);
    }
    decoded
}

fn hexadecimal_is_text(run: &[u8]) -> bool {
    let pairs = run[..PROBE_DIGITS].chunks_exact(2);
    pairs.into_iter().all(|pair| byte_of(pair[0], pair[1]).is_some_and(|byte| byte == 0 || is_text(&[byte])))
}

fn hexadecimal(run: &[u8]) -> Vec<u8> {
    run.chunks_exact(2).filter_map(|pair| byte_of(pair[0], pair[1])).collect()
}

/// Replaces each NUL with a space: it separates the arguments of a command line in audit records
/// (`proctitle=`). In UTF-16 it belongs to the characters.
fn as_arguments(mut decoded: Vec<u8>) -> Vec<u8> {
    let is_wide = memchr::memchr(0, &decoded).is_some_and(|nul| is_wide(&decoded, nul));
    if !is_wide {
        decoded.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
    }
    decoded
}

fn is_text(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | 0x20..0x7f))
}

/// Decompresses gzip, including nested gzip.
fn unpack(mut packed: Vec<u8>) -> Decoded {
    for _ in 0..UNPACKED_DEPTH_MAX {
        let mut text = Vec::new();
        match flate2::read::MultiGzDecoder::new(&packed[..]).take(UNPACKED_MAX + 1).read_to_end(&mut text) {
            Ok(_) if text.len() as u64 <= UNPACKED_MAX => {}
            _ => return Decoded::Unreadable,
        }
        if !text.starts_with(GZIP) {
            return Decoded::Text(text);
        }
        packed = text;
    }
    Decoded::Unreadable
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

    use super::*;

    #[test]
    fn the_alphabet_of_runs_is_the_one_that_is_decoded() {
        for byte in 0..=u8::MAX {
            assert_eq!(is_encoded(byte), SEXTETS[usize::from(byte)] != NONE, "{byte}");
        }
    }

    #[test]
    fn text_is_decoded_whatever_its_length() {
        let text = b"a sentence: password=open sesame?> end";
        for len in 15..text.len() {
            let text = &text[..len];
            for encoded in [STANDARD.encode(text), URL_SAFE_NO_PAD.encode(text)] {
                let encoded = encoded.trim_end_matches('=');
                assert_eq!(run(encoded.as_bytes()), Some(Decoded::Text(text.to_vec())), "{encoded}");
            }
        }
    }

    #[test]
    fn names_and_digests_are_not_taken_for_text() {
        for word in [
            "kube-controller-manager-control-plane-0",
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
            "/var/lib/kubelet/plugins_registry",
            "system-node-critical-priority-class",
        ] {
            assert_eq!(run(word.as_bytes()), None, "{word}");
        }
    }

    #[test]
    fn a_bomb_is_unreadable() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::copy(&mut std::io::repeat(b'a').take(UNPACKED_MAX + 1), &mut encoder).unwrap();
        let bomb = STANDARD.encode(encoder.finish().unwrap());
        assert_eq!(run(bomb.trim_end_matches('=').as_bytes()), Some(Decoded::Unreadable));
    }
}
