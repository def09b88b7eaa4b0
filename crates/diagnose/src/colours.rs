//! Colours and other escapes for a terminal: left out before a line is looked at, because they may stand in the middle of
//! the words that give it away.

use std::sync::LazyLock;

use landfall_model::terminal;
use memchr::{memchr, memmem};

/// Written out by syslog (`#033[`) and shells (`\033[`), by JSON (`\u001b[`) and Go (`\x1b[`), and by `cat -v` (`^[[`).
static WRITTEN_OUT: LazyLock<[memmem::Finder<'static>; 3]> =
    LazyLock::new(|| [&b"033["[..], b"1b[", b"^[["].map(memmem::Finder::new));

/// The lines without their escapes; `None` when there are none. Line ends stay.
pub(crate) fn removed(lines: &[u8]) -> Option<Vec<u8>> {
    if memchr(terminal::ESCAPE, lines).is_none()
        && WRITTEN_OUT.iter().all(|finder| finder.find(lines).is_none())
    {
        return None;
    }
    let mut plain = Vec::with_capacity(lines.len());
    let mut at = 0;
    for place in terminal::places(lines) {
        if place < at {
            continue;
        }
        if let Some(escape) = terminal::escape(&lines[place..]) {
            plain.extend_from_slice(&lines[at..place]);
            at = place + escape.len;
        }
    }
    plain.extend_from_slice(&lines[at..]);
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_escapes_go() {
        for (lines, plain) in [
            ("\x1b[1m\x1b[31mrunning\x1b[0m with swap on\n", "running with swap on\n"),
            ("a #033[0;1;39mb#033[0m c\n\\u001b[31mred\\u001b[0m\n", "a b c\nred\n"),
            ("running ^[[31mwith swap^[[0m on\n", "running with swap on\n"),
            ("\x1b]0;title\x07a\nb\x1b\n", "a\nb\n"),
        ] {
            assert_eq!(removed(lines.as_bytes()).as_deref(), Some(plain.as_bytes()), "{lines:?}");
        }
        assert_eq!(removed(b"plain # text \\n [31m\n"), None);
    }
}
