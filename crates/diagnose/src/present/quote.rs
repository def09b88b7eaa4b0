//! Quoted evidence for display: without log line heads, with repeats merged, and with the relevant part
//! always visible.

use landfall_model::report::Evidence;

use crate::line;

/// Minimum number of characters of a source's name.
const MIN_NAME: usize = 12;

/// A quotation. Lines that differ only in numbers share one.
pub(super) struct Quote<'r> {
    evidence: &'r Evidence,
    /// The line without its head.
    body: &'r str,
    pub(super) focus: &'r str,
    count: u64,
}

/// Returns the evidence with repeats merged.
pub(super) fn quotes(evidence: &[Evidence]) -> Vec<Quote<'_>> {
    let mut quotes: Vec<(String, Quote<'_>)> = Vec::new();
    for evidence in evidence {
        let body = body(&evidence.text);
        let shape = shape(body);
        if let Some((_, known)) = quotes
            .iter_mut()
            .find(|(known, quote)| *known == shape && quote.evidence.source == evidence.source)
        {
            // Each kind has one count, which includes the lines displayed with it.
            known.count = known.count.max(evidence.count).max(2);
            continue;
        }
        let quote = Quote { evidence, body, focus: &evidence.focus, count: evidence.count };
        quotes.push((shape, quote));
    }
    quotes.into_iter().map(|(_, quote)| quote).collect()
}

/// Truncates a text to `room` characters.
pub(super) fn cut(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(room.saturating_sub(1)).collect();
    cut.truncate(cut.trim_end().len());
    cut.push('…');
    cut
}

/// Splits a text into the parts before the focus, the focus extended to complete words, and the rest.
///
/// A rule may name parts of words.
pub(super) fn marked<'t>(text: &'t str, focus: &str) -> Option<(&'t str, &'t str, &'t str)> {
    let start = text.find(focus).filter(|_| !focus.is_empty())?;
    let (before, rest) = text.split_at(start);
    let (within, after) = rest.split_at(focus.len());
    let is_letter = |c: char| c.is_ascii_alphanumeric();
    let is_cut = |left: &str, right: &str| left.ends_with(is_letter) && right.starts_with(is_letter);
    let start = if is_cut(before, within) { before.trim_end_matches(is_letter).len() } else { start };
    let end = if is_cut(within, after) { after.len() - after.trim_start_matches(is_letter).len() } else { 0 };
    let end = before.len() + within.len() + end;
    Some((&text[..start], &text[start..end], &text[end..]))
}

/// Returns a line's message without its log head.
fn body(text: &str) -> &str {
    let message = line::head(text.as_bytes()).message;
    let message = text.get(text.len() - message.len()..).unwrap_or(text).trim();
    // `1234 server.go:12] ` and ` - util.py[WARNING]: ` are source locations.
    let printed = message
        .split_once("] ")
        .filter(|(place, _)| place.len() < 60 && place.contains(".go:") && !place.contains(['"', '[']));
    let message = printed.map_or(message, |(_, rest)| rest);
    let message = message.strip_prefix("- ").unwrap_or(message);
    if message.is_empty() { text } else { message }
}

/// Returns the line without its numbers.
fn shape(body: &str) -> String {
    let mut shape = String::with_capacity(body.len());
    for c in body.chars() {
        match c {
            '0'..='9' if shape.ends_with('#') => {}
            '0'..='9' => shape.push('#'),
            c => shape.push(c),
        }
    }
    shape
}

// === impl Quote ===

impl<'r> Quote<'r> {
    /// Formats location, time and count in at most `room` characters. Long paths keep their end.
    pub(super) fn place(&self, room: usize) -> String {
        let time = match self.evidence.time {
            Some(time) => format!("  {time:.0}"),
            None => self.stamp().map(|stamp| format!("  {stamp}")).unwrap_or_default(),
        };
        let count = if self.count > 1 { format!("  ×{}", self.count) } else { String::new() };
        let tail = format!(":{}{time}{count}", self.evidence.line);
        let left = room.saturating_sub(tail.chars().count()).max(MIN_NAME);
        let name: Vec<char> = self.evidence.source.chars().collect();
        if name.len() <= left {
            return cut(&format!("{}{tail}", self.evidence.source), room);
        }
        let end: String = name[name.len() - (left - 1)..].iter().collect();
        cut(&format!("…{end}{tail}"), room)
    }

    /// Returns the time as written in the line, if it has no year.
    fn stamp(&self) -> Option<&'r str> {
        let text = &self.evidence.text;
        let head = text.get(..text.len().checked_sub(self.body.len())?)?;
        let is_clock = |window: &[u8]| {
            window
                .iter()
                .enumerate()
                .all(|(at, byte)| if at % 3 == 2 { *byte == b':' } else { byte.is_ascii_digit() })
        };
        let clock = head.as_bytes().windows(8).position(is_clock)?;
        head.get(..clock + 8)
    }

    /// Returns the part of the line around the recognized text, in about `room` characters.
    pub(super) fn excerpt(&self, room: usize) -> String {
        let body: Vec<char> = self.body.chars().collect();
        if body.len() <= room {
            return self.body.to_owned();
        }
        let (at, length) = match self.body.find(self.focus).filter(|_| !self.focus.is_empty()) {
            Some(byte) => (self.body[..byte].chars().count(), self.focus.chars().count()),
            // Programs print the reason at the end.
            None => (body.len(), 0),
        };
        let room = room.saturating_sub(2).max(1);
        let spare = room.saturating_sub(length);
        let start = at.saturating_sub(spare / 2).min(body.len().saturating_sub(room));
        let end = (start + room).min(body.len());
        let before = if start > 0 { "…" } else { "" };
        let after = if end < body.len() { "…" } else { "" };
        let middle: String = body[start..end].iter().collect();
        format!("{before}{}{after}", middle.trim())
    }

    /// Returns further lines of the same message.
    pub(super) fn neighbours(&self) -> impl Iterator<Item = &'r str> {
        let evidence = self.evidence;
        evidence
            .before
            .iter()
            .chain(&evidence.after)
            .map(|line| body(line))
            .filter(|line| !line.trim().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(text: &str, focus: &str) -> Evidence {
        Evidence {
            source: "kubelet.log".to_owned(),
            line: 7,
            time: None,
            trust: landfall_model::report::Trust::Claimed,
            text: text.to_owned(),
            focus: focus.to_owned(),
            before: Vec::new(),
            after: Vec::new(),
            count: 1,
        }
    }

    #[test]
    fn heads_are_taken_off() {
        for (text, body_) in [
            (
                "Jan 02 03:04:05 n1 kubelet[7]: E0102 03:04:05.000000       7 run.go:74] \"command failed\" err=\"x\"",
                "\"command failed\" err=\"x\"",
            ),
            ("2026-01-02T03:04:05Z n1 kubelet[7]: plain", "plain"),
            ("2026-01-02 03:04:05,123 - util.py[WARNING]: failed", "util.py[WARNING]: failed"),
            ("[ERROR Swap]: x", "[ERROR Swap]: x"),
            ("", ""),
        ] {
            assert_eq!(body(text), body_, "{text}");
        }
    }

    #[test]
    fn a_cut_keeps_what_was_recognised() {
        let long = format!("{} no such host {}", "before ".repeat(100), "after ".repeat(100));
        let shown = quotes(&[evidence(&long, "no such host")])[0].excerpt(60);
        assert!(shown.contains("no such host") && shown.starts_with('…') && shown.ends_with('…'), "{shown}");
        assert!(shown.chars().count() <= 60, "{shown}");
    }

    #[test]
    fn repeats_are_shown_once_with_their_number() {
        let all = [
            evidence("try 1 failed", "failed"),
            evidence("try 2 failed", "failed"),
            evidence("other", "other"),
        ];
        let quotes = quotes(&all);
        assert_eq!(quotes.len(), 2);
        assert_eq!(quotes[0].place(70), "kubelet.log:7  ×2");
    }

    #[test]
    fn a_time_without_a_year_is_shown_as_it_is_written() {
        let one = [evidence("Jan 02 03:04:05 n1 kubelet[7]: x", "x")];
        assert_eq!(quotes(&one)[0].place(70), "kubelet.log:7  Jan 02 03:04:05");
        let long = [Evidence { source: "a/very/long/path/".repeat(9), ..one[0].clone() }];
        assert!(quotes(&long)[0].place(40).chars().count() <= 40);
    }
}
