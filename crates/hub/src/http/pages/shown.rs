//! Formatting of values on pages.

use jiff::Timestamp;
use landfall_model::report::State;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::store::NodeLine;

/// Maximum length of a line on a page; the API returns complete lines.
const MAX_SHOWN: usize = 4000;
/// Seconds without a report after which an unfinished node is shown as silent. Agents that push or are polled repeat
/// their report every minute until the node is ready; this is three missed reports. The source of a report is not
/// stored, and other sources deliver only changes, so the pages show no more than the silence.
const SILENT_AFTER: i64 = 180;
/// Bytes that are escaped in a query string.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'/');

/// Returns whether a node that has not succeeded is silent.
pub(super) fn is_silent(node: &NodeLine, now: Timestamp) -> bool {
    node.state != State::Succeeded && now.duration_since(node.last_seen).as_secs() > SILENT_AFTER
}

/// Sanitizes text of a node for a page. Control characters, and those that change the text direction, become
/// visible. Templates escape markup.
pub(super) fn text(text: &str) -> String {
    let odd = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{061c}')
    };
    let mut shown: String =
        text.chars().take(MAX_SHOWN).map(|c| if odd(c) { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(MAX_SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

/// Escapes text that is inserted beside other markup.
pub(super) fn markup(shown: &str) -> String {
    let mut escaped = String::with_capacity(shown.len());
    for c in text(shown).chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Formats a sentence as markup, with names in backticks as code.
pub(super) fn sentence(text: &str) -> String {
    let markup = markup(text);
    let mut parts = markup.split('`');
    let mut sentence = parts.next().unwrap_or_default().to_owned();
    while let Some(part) = parts.next() {
        // Only text between two backticks is a name.
        match parts.next() {
            Some(rest) => sentence += &format!("<code>{part}</code>{rest}"),
            None => sentence += &format!("`{part}"),
        }
    }
    sentence
}

/// Returns the age of a time as markup that the page's script updates.
pub(super) fn ago(time: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(time).as_secs().max(0);
    format!("<time datetime=\"{time:.0}\" title=\"{time:.0}\" data-age=\"{seconds}\">{}</time>", age(seconds))
}

/// Formats a duration like the page's script.
pub(super) fn age(seconds: i64) -> String {
    match seconds {
        ..=59 => format!("{} s", seconds.max(0)),
        60..=3599 => format!("{} min", seconds / 60),
        3600..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

pub(super) fn size(bytes: u64) -> String {
    match bytes {
        ..=1023 => format!("{bytes} B"),
        1024..=1_048_575 => format!("{} KiB", bytes >> 10),
        1_048_576..=1_073_741_823 => format!("{} MiB", bytes >> 20),
        _ => format!("{} GiB", bytes >> 30),
    }
}

/// Formats a number with its noun.
pub(super) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Escapes text for a query string.
pub(super) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, QUERY).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_move_what_stands_around_it() {
        assert_eq!(text("a\u{202e}b\u{1b}[31m\tc\n"), "a\u{fffd}b\u{fffd}[31m\tc\n");
        assert_eq!(text(&"x".repeat(5000)).chars().count(), MAX_SHOWN + 1);
    }

    #[test]
    fn names_in_sentences_are_set_as_such_and_nothing_else_is_markup() {
        assert_eq!(sentence("`<b>` is `a & b`"), "<code>&lt;b&gt;</code> is <code>a &amp; b</code>");
        assert_eq!(sentence("one ` only"), "one ` only");
        assert_eq!(sentence("a `b` c ` d"), "a <code>b</code> c ` d");
        assert_eq!(sentence(""), "");
    }

    #[test]
    fn a_node_that_did_not_make_it_is_missed_after_three_minutes() {
        let now = Timestamp::from_second(10_000).unwrap();
        let node = |state, seconds| NodeLine {
            name: "n1".to_owned(),
            state,
            cause: None,
            title: String::new(),
            component: None,
            phase: None,
            confidence: landfall_model::Confidence::NONE,
            trust: landfall_model::report::Trust::Proven,
            since: now,
            last_seen: now - jiff::SignedDuration::from_secs(seconds),
            provider_id: None,
        };
        for state in State::ALL {
            assert!(!is_silent(&node(state, 180), now), "{state:?}");
            assert_eq!(is_silent(&node(state, 181), now), state != State::Succeeded, "{state:?}");
        }
    }

    #[test]
    fn ages_and_sizes_are_one_word() {
        for (seconds, word) in [(-5, "0 s"), (59, "59 s"), (60, "1 min"), (7199, "1 h"), (200_000, "2 d")] {
            assert_eq!(age(seconds), word);
        }
        assert_eq!((size(1), size(2048), size(3 << 20)), ("1 B".into(), "2 KiB".into(), "3 MiB".into()));
        assert_eq!(escaped("a b&c=\"é"), "a%20b%26c%3D%22%C3%A9");
    }
}
