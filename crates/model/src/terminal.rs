//! Terminal escape sequences: colors, cursor movements, titles, links. Searches ignore them, because they may occur in
//! the middle of a word.

use std::ops::Range;

/// First byte of every escape sequence.
pub const ESCAPE: u8 = 0x1b;

/// Maximum length of a movement or color sequence, which usually has a handful of bytes.
const CONTROL_MAX: usize = 64;

/// Maximum length of a title or link sequence.
const STRING_MAX: usize = 4096;

/// Textual forms of the escape byte in logs: syslog, JSON, Go and Python, shells, `cat -v`.
const WRITTEN_OUT: [&[u8]; 7] = [b"#033", b"\\u001b", b"\\u001B", b"\\x1b", b"\\x1B", b"\\033", b"^["];

/// An escape sequence at the start of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Escape {
    pub len: usize,
    pub holds: Holds,
}

/// The content of an escape sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holds {
    Nothing,
    /// A title, the address of a link, or other text that is not displayed in place; its range inside the sequence.
    Text(Range<usize>),
}

/// Returns the positions in a text at which an escape sequence may begin.
pub fn places(text: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let may_begin = |byte: u8| matches!(byte, ESCAPE | b'#' | b'\\' | b'^');
    text.iter().enumerate().filter(move |(_, byte)| may_begin(**byte)).map(|(place, _)| place)
}

/// Returns the escape sequence that `text` begins with. It never extends over the end of a line. A single escape byte
/// counts, too.
pub fn escape(text: &[u8]) -> Option<Escape> {
    let plain = |len: usize| Some(Escape { len, holds: Holds::Nothing });
    if let [ESCAPE, rest @ ..] = text {
        return match rest {
            [b'[', rest @ ..] => plain(control(rest).map_or(1, |len| 2 + len)),
            [b']' | b'P' | b'X' | b'^' | b'_', rest @ ..] => match string(rest) {
                Some((len, end)) => Some(Escape { len: 2 + len + end, holds: Holds::Text(2..2 + len) }),
                None => plain(1),
            },
            // A character set, as sent by `tput sgr0`.
            [b'(' | b')' | b'#' | b'%', b'0'..=b'9' | b'@'..=b'G', ..] => plain(3),
            // Only letters in use are accepted: others are text after a stray byte.
            [
                b'7' | b'8' | b'=' | b'>' | b'\\' | b'D' | b'E' | b'H' | b'M' | b'N' | b'O' | b'Z' | b'c',
                ..,
            ] => plain(2),
            _ => plain(1),
        };
    }
    // Only color and similar sequences are recognized in textual form: such text may also be literal.
    let introducer = WRITTEN_OUT.iter().find(|written| text.starts_with(written))?.len();
    let parameters = text.get(introducer..)?.strip_prefix(b"[")?;
    let digits =
        parameters.iter().take(CONTROL_MAX).take_while(|byte| matches!(byte, b'0'..=b'9' | b';')).count();
    let end = *parameters.get(digits)?;
    if matches!(end, b'm' | b'K' | b'J' | b'H' | b'A'..=b'D' | b'G') {
        plain(introducer + 1 + digits + 1)
    } else {
        None
    }
}

/// Parses the rest of `ESC [ parameters letter`.
fn control(rest: &[u8]) -> Option<usize> {
    let parameters = rest.iter().take(CONTROL_MAX).take_while(|byte| matches!(byte, b' '..=b'?')).count();
    let ends = match rest.get(parameters) {
        // Without parameters, a lower-case letter is more likely the start of a word after a bracket.
        Some(b'a'..=b'z') => parameters > 0 || rest[0] == b'm',
        end => matches!(end, Some(b'@'..=b'~')),
    };
    ends.then_some(parameters + 1)
}

/// Parses the rest of `ESC ] text`: the length of the text, and of the bell or `ESC \` that ends it.
fn string(rest: &[u8]) -> Option<(usize, usize)> {
    let len = rest.iter().take(STRING_MAX).position(|byte| matches!(*byte, 0x07 | ESCAPE | b'\n'))?;
    match rest[len..] {
        [0x07, ..] => Some((len, 1)),
        [ESCAPE, b'\\', ..] => Some((len, 2)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_end_where_terminals_end_them() {
        for (text, len) in [
            ("\x1b[31mred", 5),
            ("\x1b[mplain", 3),
            ("\x1b[38;2;10;20;30mx", 16),
            ("\x1b[38:5:1mx", 9),
            ("\x1b[?25lx", 6),
            ("\x1b(Bx", 3),
            ("\x1b7x", 2),
            ("\x1b]0;title\x07x", 10),
            ("\x1b]8;;https://a\x1b\\link", 16),
            ("#033[0;1;39mx", 12),
            ("\\u001b[31mx", 10),
            ("\\x1b[0mx", 7),
            ("\\033[0Kx", 7),
            ("^[[0;31mx", 8),
            // Not sequences, except for the byte itself.
            ("\x1b", 1),
            ("\x1b[31", 1),
            ("\x1b]0;open\nx", 1),
            ("\x1bpassword", 1),
            ("\x1b(password", 1),
            ("\x1b[password", 1),
            ("\x1b[31\n", 1),
        ] {
            assert_eq!(escape(text.as_bytes()).map(|escape| escape.len), Some(len), "{text:?}");
        }
        for text in ["", "x", "#033", "#0331", "#033[abc", "\\x1b", "\\x1bm", "^[31m", "^[[a-z]", "[31m"] {
            assert_eq!(escape(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn only_strings_hold_text() {
        assert_eq!(escape(b"\x1b]0;x\x07").map(|escape| escape.holds), Some(Holds::Text(2..5)));
        assert_eq!(escape(b"\x1b[31m").map(|escape| escape.holds), Some(Holds::Nothing));
    }

    #[test]
    fn endless_escapes_are_none() {
        let control = [b"\x1b[", &[b'1'; CONTROL_MAX + 1][..], b"m"].concat();
        let string = [b"\x1b]", &[b'x'; STRING_MAX][..], b"\x07"].concat();
        for text in [control, string] {
            assert_eq!(escape(&text).map(|escape| escape.len), Some(1));
        }
    }
}
