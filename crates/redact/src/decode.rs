//! Encoded text inside text: runs of Base64 and hexadecimal, percent encoding, backslash escapes, gzip.

use std::io::Read as _;

use landfall_model::terminal::{self, Holds};

use crate::runs::{Run, is_encoded};

/// Shorter runs of encoded text cannot hold a secret that its own pattern would recognise.
pub(crate) const ENCODED_MIN: usize = 20;

/// The same for hexadecimal digits.
const HEXADECIMAL_MIN: usize = 32;

/// Lines of Base64 shorter than this are not taken for a piece of a longer text broken into lines.
const WRAPPED_MIN: usize = 40;

/// And longer ones are not broken into lines: tools break at 60 to 76 characters.
const WRAPPED_MAX: usize = 200;

/// What one compressed payload may unpack to; more is withheld, not searched.
const UNPACKED_MAX: u64 = 4 << 20;

/// Groups of Base64 at the start of a run that must decode to ASCII before the rest is looked at.
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
    /// Something is in there, but it cannot be read whole.
    Unreadable,
}

/// Base64 that was broken into lines: from the line of `run` on, the lines that continue it, joined.
pub(crate) fn wrapped(text: &[u8], run: Run) -> Option<(Vec<u8>, usize)> {
    if !(WRAPPED_MIN..=WRAPPED_MAX).contains(&run.len()) || !matches!(text.get(run.end), Some(b'\n' | b'\r'))
    {
        return None;
    }
    let mut joined = text[run.start..run.end].to_vec();
    let mut end = run.end;
    loop {
        let next = match &text[end..] {
            [b'\n', ..] => end + 1,
            [b'\r', b'\n', ..] => end + 2,
            _ => break,
        };
        let start = next + text[next..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let len = text[start..].iter().take_while(|byte| is_encoded(**byte)).count();
        let padding = text[start + len..].iter().take_while(|byte| **byte == b'=').count();
        let behind = text.get(start + len + padding);
        let ends_line = matches!(behind, None | Some(b'\n' | b'\r'));
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

/// Whether a line is nothing but Base64, as lines of wrapped Base64 are, except the first and the last.
pub(crate) fn is_wrapped_line(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    (WRAPPED_MIN..=WRAPPED_MAX).contains(&line.len()) && line.iter().all(|byte| is_encoded(*byte))
}

/// Whether a line ends with Base64 that may go on in the next.
pub(crate) fn may_be_wrapped(line: &[u8]) -> bool {
    let line = line.trim_ascii_end();
    line.len() >= WRAPPED_MIN && line[line.len() - WRAPPED_MIN..].iter().all(|byte| is_encoded(*byte))
}

/// The texts a run may stand for.
pub(crate) fn run(run: &[u8]) -> Option<Decoded> {
    if run.starts_with(b"H4sI") {
        return Some(unpack(&base64(run)));
    }
    if run.len() >= HEXADECIMAL_MIN && hexadecimal_is_text(run) && run.iter().all(u8::is_ascii_hexdigit) {
        return Some(Decoded::Text(hexadecimal(run)));
    }
    // The run may begin with characters that only look like part of it.
    (0..4).find(|&skip| base64_is_text(&run[skip..])).map(|skip| Decoded::Text(base64(&run[skip..])))
}

fn base64_is_text(run: &[u8]) -> bool {
    run.chunks_exact(4).take(PROBE_GROUPS).all(|group| is_text(&sextets(group)))
        && run.len() >= 4 * (PROBE_GROUPS - 1)
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
    let pairs = run[..HEXADECIMAL_MIN / 2].chunks_exact(2);
    pairs.into_iter().all(|pair| byte_of(pair[0], pair[1]).is_some_and(|byte| byte == 0 || is_text(&[byte])))
}

/// NUL separates the arguments of a command line, as audit records encode it (`proctitle=`).
fn hexadecimal(run: &[u8]) -> Vec<u8> {
    let bytes = run.chunks_exact(2).filter_map(|pair| byte_of(pair[0], pair[1]));
    bytes.map(|byte| if byte == 0 { b' ' } else { byte }).collect()
}

fn is_text(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | 0x20..0x7f))
}

fn unpack(packed: &[u8]) -> Decoded {
    let mut text = Vec::new();
    match flate2::read::MultiGzDecoder::new(packed).take(UNPACKED_MAX + 1).read_to_end(&mut text) {
        Ok(_) if text.len() as u64 <= UNPACKED_MAX => Decoded::Text(text),
        _ => Decoded::Unreadable,
    }
}

/// A text with its escapes resolved, and where it came from.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    pub(crate) text: Vec<u8>,
    /// For each escape, where the text goes on behind it, here and in the original.
    escapes: Vec<(usize, usize)>,
}

/// A text as it looks on a terminal, and what is inside the escapes of it, a line each.
#[derive(Debug)]
pub(crate) struct OnTerminal {
    pub(crate) shown: Mapped,
    pub(crate) hidden: Mapped,
}

/// A line between texts that nothing can continue over.
pub(crate) const BETWEEN: &[u8] = b"\n\x01\n";

// === impl Mapped ===

impl Mapped {
    /// Resolves `%41`; `None` when there is nothing to resolve.
    pub(crate) fn from_percent(original: &[u8]) -> Option<Self> {
        Self::resolve(original, b'%', |rest| match rest {
            [b'%', high, low, ..] => Some((byte_of(*high, *low)?, 3)),
            _ => None,
        })
    }

    /// Resolves `\u0041`, `\x41`, `\/`, `\"` and `\\`; `None` when there is nothing to resolve.
    pub(crate) fn from_escapes(original: &[u8]) -> Option<Self> {
        Self::resolve(original, b'\\', |rest| match rest {
            [b'\\', b'u', b'0', b'0', high, low, ..] => Some((byte_of(*high, *low)?, 6)),
            [b'\\', b'x', high, low, ..] => Some((byte_of(*high, *low)?, 4)),
            [b'\\', plain @ (b'/' | b'"' | b'\\'), ..] => Some((*plain, 2)),
            [b'\\', b'n', ..] => Some((b'\n', 2)),
            _ => None,
        })
    }

    /// Writes the argument vectors of a line as a shell shows them, so that one set of rules for flags covers them: `['curl', '-u']` of
    /// Python, `["curl","-u"]` of JSON, `a0="curl" a1="-u"` of audit records. Quotes stay around arguments that contain white space.
    /// `None` without an argument vector.
    pub(crate) fn from_arguments(original: &[u8]) -> Option<Self> {
        let mut mapped = Self { text: Vec::with_capacity(original.len()), escapes: Vec::new() };
        let (mut copied, mut at, mut elements) = (0, 0, 0);
        while let Some(len) = original[at..].iter().position(|byte| matches!(byte, b'"' | b'\'')) {
            let mark = at + len;
            let depth = original[at..mark].iter().rev().take_while(|byte| **byte == b'\\').count();
            let open = mark - depth;
            at = mark + 1;
            let Some(lead) = lead_of_argument(&original[..open]) else { continue };
            let closing = [&vec![b'\\'; depth][..], &[original[mark]]].concat();
            let Some(inside) = memchr::memmem::find(&original[at..], &closing) else { break };
            let close = at + inside;
            let is_word = !original[at..close].iter().any(u8::is_ascii_whitespace);
            mapped.leave_out(original, &mut copied, open - lead, if is_word { at } else { open });
            at = close + closing.len();
            if is_word {
                mapped.leave_out(original, &mut copied, close, at);
            }
            if original.get(at) == Some(&b',') {
                mapped.leave_out(original, &mut copied, at, at + 1);
                at += 1;
                if original.get(at) != Some(&b' ') {
                    mapped.text.push(b' ');
                    mapped.escapes.push((mapped.text.len(), at));
                }
            }
            elements += 1;
        }
        mapped.text.extend_from_slice(&original[copied..]);
        (elements > 1).then_some(mapped)
    }

    fn leave_out(&mut self, original: &[u8], copied: &mut usize, start: usize, end: usize) {
        self.text.extend_from_slice(&original[*copied..start]);
        *copied = end;
        self.escapes.push((self.text.len(), end));
    }

    /// Leaves out what only a terminal understands; `None` when there is nothing to leave out.
    pub(crate) fn from_terminal(original: &[u8]) -> Option<OnTerminal> {
        let mut shown = Self { text: Vec::with_capacity(original.len()), escapes: Vec::new() };
        let mut hidden = Self::default();
        let mut at = 0;
        for place in terminal::places(original) {
            if place < at {
                continue;
            }
            let Some(escape) = terminal::escape(&original[place..]) else { continue };
            shown.text.extend_from_slice(&original[at..place]);
            at = place + escape.len;
            shown.escapes.push((shown.text.len(), at));
            if let Holds::Text(inside) = escape.holds {
                hidden.escapes.push((hidden.text.len(), place + inside.start));
                hidden.text.extend_from_slice(&original[place..at][inside]);
                hidden.text.extend_from_slice(BETWEEN);
            }
        }
        shown.text.extend_from_slice(&original[at..]);
        (!shown.escapes.is_empty()).then_some(OnTerminal { shown, hidden })
    }

    fn resolve(original: &[u8], mark: u8, escape: impl Fn(&[u8]) -> Option<(u8, usize)>) -> Option<Self> {
        let mut mapped = Self { text: Vec::with_capacity(original.len()), escapes: Vec::new() };
        let mut at = 0;
        for place in memchr::memchr_iter(mark, original) {
            // Part of the escape before it.
            if place < at {
                continue;
            }
            mapped.text.extend_from_slice(&original[at..place]);
            at = place;
            if let Some((byte, len)) = escape(&original[place..]) {
                mapped.text.push(byte);
                at += len;
                mapped.escapes.push((mapped.text.len(), at));
            }
        }
        mapped.text.extend_from_slice(&original[at..]);
        (!mapped.escapes.is_empty()).then_some(mapped)
    }

    /// Where in the original a range of the text stands. An escape at either end of it stays outside.
    pub(crate) fn range(&self, start: usize, end: usize) -> (usize, usize) {
        let origin = self.origin(start);
        (origin, if start < end { self.origin(end - 1) + 1 } else { origin })
    }

    /// Where in the original a place of the text stands: before an escape, if it resolves to the byte there.
    pub(crate) fn origin(&self, at: usize) -> usize {
        let before = self.escapes.partition_point(|(text, _)| *text <= at);
        let (text, original) = before.checked_sub(1).map_or((0, 0), |last| self.escapes[last]);
        original + (at - text)
    }
}

/// Bytes before the opening quote of an argument that do not belong to the vector as a shell shows it: ` a12=` without its space.
/// `None` if no argument begins there.
fn lead_of_argument(before: &[u8]) -> Option<usize> {
    if let Some(named) = before.strip_suffix(b"=") {
        let digits = named.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        let name = &named[..named.len() - digits];
        return (digits > 0 && name.ends_with(b" a")).then_some(digits + 2);
    }
    match before.trim_ascii_end().last() {
        Some(b'[' | b'(' | b',') => Some(0),
        _ => None,
    }
}

fn byte_of(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? << 4 | digit(low)?)
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
    fn places_are_found_again_behind_escapes() {
        let mapped = Mapped::from_percent(b"a%20b%%zz%41").unwrap();
        assert_eq!(mapped.text, b"a b%%zzA");
        let origins: Vec<usize> = (0..=mapped.text.len()).map(|at| mapped.origin(at)).collect();
        assert_eq!(origins, [0, 1, 4, 5, 6, 7, 8, 9, 12]);
        assert!(Mapped::from_percent(b"100% of 5%").is_none());
    }

    #[test]
    fn argument_vectors_are_written_as_a_shell_shows_them() {
        for (vector, shown) in [
            ("['curl', '-u', 'a:b']", "[curl -u a:b]"),
            (r#"{"args":["curl","-H","A: b","x"]}"#, r#"{"args":[curl -H "A: b" x]}"#),
            (r#"args=[\"curl\", \"-u\"]"#, "args=[curl -u]"),
            (r#"EXECVE argc=2 a0="curl" a1="-u""#, "EXECVE argc=2 curl -u"),
        ] {
            let mapped = Mapped::from_arguments(vector.as_bytes()).unwrap();
            assert_eq!(String::from_utf8_lossy(&mapped.text), shown, "{vector}");
            let last = memchr::memmem::find(&mapped.text, b"-u").map(|at| mapped.range(at, at + 2));
            let original = memchr::memmem::find(vector.as_bytes(), b"-u").map(|at| (at, at + 2));
            assert_eq!(last, original, "{vector}");
        }
        for text in ["it's", "say \"x\"", "", "f('x')"] {
            assert!(Mapped::from_arguments(text.as_bytes()).is_none(), "{text}");
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
