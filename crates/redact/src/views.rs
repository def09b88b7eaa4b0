//! Text as its readers see it, with notations resolved.
//!
//! Each function takes a part of a log and returns the text that it represents, or `None` if the notation is
//! not used.

use std::ops::RangeInclusive;

use landfall_model::terminal::{self, Holds};
use memchr::{memchr, memchr_iter, memmem};

use crate::frame;
use crate::mapped::Mapped;

/// A separator line that no construct can cross.
pub(crate) const BETWEEN: &[u8] = b"\n\x01\n";

/// Maximum number of lines that one command may span.
const JOINED_MAX: usize = 256;

/// Minimum number of bytes in an array of numbers that is read as text.
const NUMBERS_MIN: usize = 16;

/// Length of quoted-printable lines that continue on the next line, including the equals sign.
const SOFT_WIDTHS: RangeInclusive<usize> = 70..=76;

/// Entities of HTML and XML.
const ENTITIES: [(&[u8], u8); 8] = [
    (b"&quot;", b'"'),
    (b"&apos;", b'\''),
    (b"&amp;", b'&'),
    (b"&lt;", b'<'),
    (b"&gt;", b'>'),
    (b"&equals;", b'='),
    (b"&colon;", b':'),
    (b"&NewLine;", b'\n'),
];

/// A text as displayed by a terminal, and the contents of its escapes, one per line.
#[derive(Debug)]
pub(crate) struct OnTerminal {
    pub(crate) shown: Mapped,
    pub(crate) hidden: Mapped,
}

/// Removes terminal control sequences.
pub(crate) fn on_terminal(original: &[u8]) -> Option<OnTerminal> {
    let mut shown = Mapped::with_capacity(original.len());
    let mut hidden = Mapped::default();
    let mut at = 0;
    for place in terminal::places(original) {
        if place < at {
            continue;
        }
        let Some(escape) = terminal::escape(&original[place..]) else { continue };
        shown.keep(original, at, place);
        at = place + escape.len;
        if let Holds::Text(inside) = escape.holds {
            hidden.keep(original, place + inside.start, place + inside.end);
            hidden.text.extend_from_slice(BETWEEN);
        }
    }
    (at > 0).then(|| {
        shown.keep(original, at, original.len());
        OnTerminal { shown, hidden }
    })
}

/// Resolves `%41`.
pub(crate) fn percent(original: &[u8]) -> Option<Mapped> {
    resolve(original, b'%', |rest| match rest {
        [b'%', high, low, ..] => Some((byte_of(*high, *low)?, 3)),
        _ => None,
    })
}

/// Resolves `%41`, and `+` for a space, as in form bodies.
pub(crate) fn form(original: &[u8]) -> Option<Mapped> {
    memchr(b'+', original)?;
    resolve_any(
        original,
        |byte| matches!(byte, b'%' | b'+'),
        |rest| match rest {
            [b'%', high, low, ..] => Some((byte_of(*high, *low)?, 3)),
            [b'+', ..] => Some((b' ', 1)),
            _ => None,
        },
    )
}

/// Resolves `\u0041`, `\x41`, `\n`, `\/`, `\"` and `\\`.
pub(crate) fn escapes(original: &[u8]) -> Option<Mapped> {
    resolve(original, b'\\', escape)
}

/// Adds a range of the original with its escapes resolved.
pub(crate) fn add_unescaped(mapped: &mut Mapped, original: &[u8], start: usize, end: usize) {
    let mut at = start;
    for place in memchr_iter(b'\\', &original[start..end]).map(|place| start + place) {
        if place >= at
            && let Some((byte, len)) = escape(&original[place..end])
        {
            mapped.keep(original, at, place);
            mapped.put(byte, place, len);
            at = place + len;
        }
    }
    mapped.keep(original, at, end);
}

/// Returns the byte that the escape at the start of a text represents, and the length of the escape.
fn escape(text: &[u8]) -> Option<(u8, usize)> {
    match text {
        [b'\\', b'u', b'0', b'0', high, low, ..] => Some((byte_of(*high, *low)?, 6)),
        [b'\\', b'x', high, low, ..] => Some((byte_of(*high, *low)?, 4)),
        [b'\\', plain @ (b'/' | b'"' | b'\'' | b'\\'), ..] => Some((*plain, 2)),
        [b'\\', b'n', ..] => Some((b'\n', 2)),
        [b'\\', b'r', ..] => Some((b'\r', 2)),
        [b'\\', b't', ..] => Some((b'\t', 2)),
        _ => None,
    }
}

/// Resolves `&quot;`, `&#34;` and `&#x22;`.
pub(crate) fn entities(original: &[u8]) -> Option<Mapped> {
    resolve(original, b'&', |rest| {
        let named = ENTITIES.iter().find(|(entity, _)| rest.starts_with(entity));
        if let Some((entity, byte)) = named {
            return Some((*byte, entity.len()));
        }
        let number = rest.strip_prefix(b"&#")?;
        let len = memchr(b';', number.get(..8).unwrap_or(number))?;
        let digits = std::str::from_utf8(&number[..len]).ok()?;
        let byte = match digits.strip_prefix(['x', 'X']) {
            Some(digits) => u8::from_str_radix(digits, 16).ok()?,
            None => digits.parse().ok()?,
        };
        byte.is_ascii().then_some((byte, 2 + len + 1))
    })
}

/// Resolves `=3D` and the line ends that quoted-printable adds.
pub(crate) fn quoted_printable(original: &[u8]) -> Option<Mapped> {
    let mut mapped = Mapped::with_capacity(original.len());
    let mut at = 0;
    for place in memchr_iter(b'=', original) {
        if place < at {
            continue;
        }
        let (byte, len) = match &original[place..] {
            [b'=', b'\n', next @ ..] if !frame::begins_record(next) => (None, 2),
            [b'=', b'\r', b'\n', next @ ..] if !frame::begins_record(next) => (None, 3),
            [b'=', high, low, ..] => match byte_of(*high, *low) {
                Some(byte) => (Some(byte), 3),
                None => continue,
            },
            _ => continue,
        };
        mapped.keep(original, at, place);
        if let Some(byte) = byte {
            mapped.put(byte, place, len);
        }
        at = place + len;
    }
    mapped.keep(original, at, original.len());
    (at > 0).then_some(mapped)
}

/// Returns whether the equals sign at a line end is quoted-printable, which fills lines up to a width.
///
/// In a private key it pads Base64.
pub(crate) fn ends_softly(text: &[u8], line: (usize, usize)) -> bool {
    let next = text.get(line.1 + 1..).unwrap_or_default();
    let next = &next[..memchr(b'\n', next).unwrap_or(next.len())];
    SOFT_WIDTHS.contains(&(line.1 - line.0))
        && memmem::find(next, b"-----END").is_none()
        && !frame::begins_record(next)
}

/// Resolves `""` for a quote, as in CSV, and `''`, as in YAML.
pub(crate) fn doubled_quotes(original: &[u8]) -> Option<Mapped> {
    resolve_any(
        original,
        |byte| matches!(byte, b'"' | b'\''),
        |rest| match rest {
            [mark, second, ..] if mark == second => Some((*mark, 2)),
            _ => None,
        },
    )
}

/// Resolves `#012`, syslog's notation for control characters.
pub(crate) fn octal(original: &[u8]) -> Option<Mapped> {
    resolve(original, b'#', |rest| match rest {
        [b'#', b'0', b'1', b'1', ..] => Some((b'\t', 4)),
        [b'#', b'0', b'1', b'2', ..] => Some((b'\n', 4)),
        _ => None,
    })
}

/// Replaces the separators of array strings, `", "` (also escaped), with line ends.
pub(crate) fn elements(original: &[u8]) -> Option<Mapped> {
    // The backslash before a quote is processed with it.
    let is_mark = |at: usize| match original[at] {
        b'\\' => true,
        b'"' | b'\'' => at == 0 || original[at - 1] != b'\\',
        _ => false,
    };
    resolve_at(original, (0..original.len()).filter(|at| is_mark(*at)), |rest| {
        let depth = rest.iter().take_while(|byte| **byte == b'\\').count();
        let (closing, behind) = rest.split_at_checked(depth + 1)?;
        let more = behind.strip_prefix(b",")?;
        let more = more.strip_prefix(b" ").unwrap_or(more);
        let is_quote = matches!(closing.last(), Some(b'"' | b'\''));
        let opening = more.strip_prefix(closing).filter(|_| is_quote)?;
        Some((b'\n', rest.len() - opening.len()))
    })
}

/// Decodes UTF-16 in the byte order of the character at `nul`, the first NUL byte of such text.
///
/// Preceding text and ASCII after it are unchanged.
pub(crate) fn wide(original: &[u8], nul: usize) -> Mapped {
    // A NUL byte before a character is its most significant byte, unless it completes the preceding
    // character.
    let is_little = nul > 0 && original[nul - 1].is_ascii() && original[nul - 1] != b'\n';
    let start = if is_little { nul - 1 } else { nul };
    let mut mapped = Mapped::with_capacity(original.len() / 2);
    mapped.keep(original, 0, start);
    let mut at = start;
    while let Some(&[first, second]) = original[at..].first_chunk() {
        let unit =
            if is_little { u16::from_le_bytes([first, second]) } else { u16::from_be_bytes([first, second]) };
        if first.is_ascii_graphic() && second.is_ascii_graphic() {
            mapped.keep(original, at, at + 2);
            at += 2;
            continue;
        }
        let low = original.get(at + 2..at + 4).map(|low| {
            if is_little {
                u16::from_le_bytes([low[0], low[1]])
            } else {
                u16::from_be_bytes([low[0], low[1]])
            }
        });
        let (decoded, len) = match char::decode_utf16([unit].into_iter().chain(low)).next() {
            Some(Ok(decoded)) => (decoded, 2 * decoded.len_utf16()),
            _ => (char::REPLACEMENT_CHARACTER, 2),
        };
        for byte in decoded.encode_utf8(&mut [0; 4]).bytes() {
            mapped.put(byte, at, len);
        }
        at += len;
    }
    mapped.keep(original, at, original.len());
    mapped
}

/// Returns whether the text around a NUL byte is ASCII in UTF-16.
pub(crate) fn is_wide(text: &[u8], nul: usize) -> bool {
    let near = &text[nul..text.len().min(nul + 16)];
    near.len() >= 8
        && near.iter().step_by(2).all(|byte| *byte == 0)
        && near.iter().skip(1).step_by(2).all(|byte| matches!(byte, b'\t' | b'\n' | b'\r' | 0x20..0x7f))
}

/// Decodes an array of numbers as the bytes of a text: the journal's JSON format for messages that are not
/// UTF-8.
pub(crate) fn numbers(original: &[u8]) -> Option<Mapped> {
    let mut mapped = Mapped::default();
    let mut at = 0;
    while let Some(open) = memchr(b'[', &original[at..]).map(|len| at + len) {
        at = open + 1;
        let mut count = 0;
        loop {
            let digits = original[at..].iter().take(4).take_while(|byte| byte.is_ascii_digit()).count();
            let number = std::str::from_utf8(&original[at..at + digits]).ok().and_then(|n| n.parse().ok());
            let Some(byte) = number else { break };
            if count == 0 {
                mapped.text.extend_from_slice(BETWEEN);
            }
            mapped.put(byte, at, digits);
            count += 1;
            at += digits;
            at += original[at..].iter().take_while(|byte| matches!(byte, b',' | b' ')).count();
        }
    }
    (mapped.text.len() >= NUMBERS_MIN).then_some(mapped)
}

/// Joins a command written on several lines: with a trailing backslash on each line but the last, or as a
/// list with one argument per line. `line` is one of the lines; the result includes the range of the group.
pub(crate) fn joined(text: &[u8], line: (usize, usize)) -> Option<(Mapped, (usize, usize))> {
    let kind = Piece::of(&text[line.0..line.1])
        .filter(|piece| *piece != Piece::Last)
        .or_else(|| (line.0 > 0).then(|| Piece::of(line_before(text, line.0)))?)?;
    let is_same = |other: &[u8]| Piece::of(other) == Some(kind);
    let (mut start, mut end) = line;
    for _ in 0..JOINED_MAX {
        if start == 0 || !is_same(line_before(text, start)) {
            break;
        }
        start -= line_before(text, start).len() + 1;
    }
    let mut current = line;
    for _ in 0..JOINED_MAX {
        let goes_on = match kind {
            Piece::Continued => is_same(&text[current.0..current.1]),
            _ => true,
        };
        if !goes_on || current.1 >= text.len() {
            break;
        }
        let next = current.1 + 1;
        let next_end = memchr(b'\n', &text[next..]).map_or(text.len(), |len| next + len);
        let line = &text[next..next_end];
        if kind != Piece::Continued && !is_same(line) || frame::begins_record(line) {
            break;
        }
        current = (next, next_end);
        end = next_end;
    }
    let mut mapped = Mapped::with_capacity(end - start);
    let mut at = start;
    while at < end {
        let line_end = memchr(b'\n', &text[at..end]).map_or(end, |len| at + len);
        let (from, to) = kind.content(&text[at..line_end]);
        mapped.begin_frame(at + from);
        mapped.keep(text, at + from, at + to);
        mapped.text.push(b' ');
        at = line_end + 1;
    }
    (memchr(b'\n', &text[start..end]).is_some()).then_some((mapped, (start, end)))
}

/// A line with a part of a command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Piece {
    /// The command continues after the backslash at the end of the line.
    Continued,
    /// An item of a YAML list.
    Item,
    /// An element of a JSON array.
    Element,
    Last,
}

impl Piece {
    fn of(line: &[u8]) -> Option<Self> {
        let content = line.trim_ascii();
        // In a string, the quotes of an element are escaped.
        let quoted = without_backslashes(content);
        match quoted {
            [.., b'\\'] => Some(Self::Continued),
            [b'-', b' ', item @ ..] if memmem::find(item, b": ").is_none() && !item.ends_with(b":") => {
                Some(Self::Item)
            }
            [b'"', _, ..] if quoted.ends_with(b"\"") || quoted.ends_with(b"\",") => {
                (memmem::find(quoted, b"\":").is_none() && memmem::find(quoted, b"\\\":").is_none())
                    .then_some(Self::Element)
            }
            _ => None,
        }
    }

    /// Returns the part of a line that belongs to the command.
    fn content(self, line: &[u8]) -> (usize, usize) {
        let lead = line.len() - line.trim_ascii_start().len();
        let end = line.trim_ascii_end().len();
        let (lead, end) = match self {
            Self::Continued => {
                let command = line[..end].strip_suffix(b"\\").unwrap_or(&line[..end]);
                return (lead, command.trim_ascii_end().len().max(lead));
            }
            Self::Item => (lead + 2, end),
            Self::Element | Self::Last => (lead, end - usize::from(line[..end].ends_with(b","))),
        };
        let depth = line[lead..end].len() - without_backslashes(&line[lead..end]).len();
        let (opening, word) = line[lead..end].split_at((depth + 1).min(end - lead));
        let is_quoted = matches!(opening.last(), Some(b'"' | b'\''));
        match word.strip_suffix(opening).filter(|_| is_quoted) {
            Some(word) if !word.iter().any(u8::is_ascii_whitespace) => {
                (lead + opening.len(), lead + opening.len() + word.len())
            }
            _ => (lead, end),
        }
    }
}

/// Returns whether a text begins with an escaped quote.
pub(crate) fn opens_escaped(text: &[u8]) -> bool {
    without_backslashes(text).len() < text.len()
}

/// Returns a text without the backslashes that escape its first quote.
fn without_backslashes(text: &[u8]) -> &[u8] {
    let depth = text.iter().take_while(|byte| **byte == b'\\').count();
    if matches!(text.get(depth), Some(b'"' | b'\'')) { &text[depth..] } else { text }
}

fn line_before(text: &[u8], start: usize) -> &[u8] {
    let feed = start - 1;
    let from = memchr::memrchr(b'\n', &text[..feed]).map_or(0, |feed| feed + 1);
    &text[from..feed]
}

fn resolve(original: &[u8], mark: u8, escape: impl Fn(&[u8]) -> Option<(u8, usize)>) -> Option<Mapped> {
    resolve_at(original, memchr_iter(mark, original), escape)
}

fn resolve_any(
    original: &[u8],
    is_mark: impl Fn(u8) -> bool,
    escape: impl Fn(&[u8]) -> Option<(u8, usize)>,
) -> Option<Mapped> {
    let places = original.iter().enumerate().filter(|(_, byte)| is_mark(**byte)).map(|(at, _)| at);
    resolve_at(original, places, escape)
}

fn resolve_at(
    original: &[u8],
    places: impl Iterator<Item = usize>,
    escape: impl Fn(&[u8]) -> Option<(u8, usize)>,
) -> Option<Mapped> {
    let mut mapped = Mapped::with_capacity(original.len());
    let mut at = 0;
    for place in places {
        // Part of the preceding escape.
        if place < at {
            continue;
        }
        if let Some((byte, len)) = escape(&original[place..]) {
            mapped.keep(original, at, place);
            mapped.put(byte, place, len);
            at = place + len;
        }
    }
    mapped.keep(original, at, original.len());
    (at > 0).then_some(mapped)
}

pub(crate) fn byte_of(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? << 4 | digit(low)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(mapped: Option<Mapped>) -> String {
        String::from_utf8_lossy(&mapped.unwrap().text).into_owned()
    }

    #[test]
    fn notations_are_resolved() {
        assert_eq!(text(percent(b"a%20b%%zz%41")), "a b%%zzA");
        assert_eq!(text(form(b"a+b%3Dc")), "a b=c");
        assert_eq!(text(escapes(br#"a\u0041\x42\/\"\\\nc\q"#)), "aAB/\"\\\nc\\q");
        assert_eq!(text(entities(b"a&quot;b&#34;&#x3d;&amp; &unknown; &#999;")), "a\"b\"=& &unknown; &#999;");
        assert_eq!(text(quoted_printable(b"pass=3Dfoo=\nbar=")), "pass=foobar=");
        assert_eq!(text(doubled_quotes(br#""{""a"":""b""}""#)), r#""{"a":"b"}""#);
        assert_eq!(text(Some(wide(b"x\na\0b\0\n\0\x3d\xd8\x10\xdd", 3))), "x\nab\n\u{1f510}");
        assert_eq!(text(Some(wide(b"\0a\0b\0\n", 0))), "ab\n");
        assert_eq!(
            text(numbers(b"{\"M\":[112,97,115,115,61,49,50,51,52,53,54,55,56,57]}")),
            "\n\x01\npass=123456789"
        );
        assert!(percent(b"100% of 5%").is_none());
    }

    #[test]
    fn commands_on_several_lines_are_joined() {
        for (lines, shown) in [
            ("curl \\\n  -u a:b \\\n  https://x\nrest", "curl -u a:b https://x "),
            ("- curl\n- -u\n- 'a:b'\nother: 1", "curl -u a:b "),
            ("  \"curl\",\n  \"-H\",\n  \"A: b\"\n]", "curl -H \"A: b\" "),
            ("  \\\"curl\\\",\n  \\\"-u\\\",\n  \\\"a:b\\\"\n]", "curl -u a:b "),
        ] {
            let first = lines.find('\n').unwrap();
            let (mapped, (start, end)) = joined(lines.as_bytes(), (0, first)).unwrap();
            assert_eq!(String::from_utf8_lossy(&mapped.text), shown);
            assert_eq!((start, &lines[end..]), (0, &lines[lines.rfind('\n').unwrap()..]));
        }
        assert!(joined(b"one line\nand another", (0, 8)).is_none());
    }
}
