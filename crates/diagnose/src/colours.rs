//! Removal of terminal escapes such as colors before matching: they may be inside the words that a rule
//! matches.

use std::sync::LazyLock;

use landfall_model::terminal;
use memchr::{memchr, memmem};

/// Escapes in the notations of syslog (`#033[`), shells (`\033[`), JSON (`\u001b[`), Go (`\x1b[`) and
/// `cat -v` (`^[[`).
static WRITTEN_OUT: LazyLock<[memmem::Finder<'static>; 3]> =
    LazyLock::new(|| [&b"033["[..], b"1b[", b"^[["].map(memmem::Finder::new));

/// Returns the lines without escapes, or `None` if there are none. Line ends are kept.
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
