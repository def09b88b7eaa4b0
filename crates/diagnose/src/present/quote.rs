//! Evidence as people read it: without the heads of log lines, repeats once, and never cut where it matters.

use landfall_model::report::Evidence;

use crate::line;

/// Characters of a source's name that are always shown.
const MIN_NAME: usize = 12;

/// One quotation. Lines that differ in numbers only are one.
pub(super) struct Quote<'r> {
    evidence: &'r Evidence,
    /// The line without its head.
    body: &'r str,
    pub(super) focus: &'r str,
    count: u64,
}

/// The evidence with repeats taken together.
pub(super) fn quotes(evidence: &[Evidence]) -> Vec<Quote<'_>> {
    let mut quotes: Vec<(String, Quote<'_>)> = Vec::new();
    for evidence in evidence {
        let body = body(&evidence.text);
        let shape = shape(body);
        if let Some((_, known)) = quotes
            .iter_mut()
            .find(|(known, quote)| *known == shape && quote.evidence.source == evidence.source)
        {
            // The count is told once for each kind; lines that are shown beside it are part of it.
            known.count = known.count.max(evidence.count).max(2);
            continue;
        }
        let quote = Quote { evidence, body, focus: &evidence.focus, count: evidence.count };
        quotes.push((shape, quote));
    }
    quotes.into_iter().map(|(_, quote)| quote).collect()
}

/// Cuts a text to `room` characters.
pub(super) fn cut(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(room.saturating_sub(1)).collect();
    cut.truncate(cut.trim_end().len());
    cut.push('…');
    cut
}

/// What a line says, without what logging put before it.
fn body(text: &str) -> &str {
    let message = line::head(text.as_bytes()).message;
    let message = text.get(text.len() - message.len()..).unwrap_or(text).trim();
    // `1234 server.go:12] ` and ` - util.py[WARNING]: ` say where in the source it was printed.
    let printed = message
        .split_once("] ")
        .filter(|(place, _)| place.len() < 60 && place.contains(".go:") && !place.contains(['"', '[']));
    let message = printed.map_or(message, |(_, rest)| rest);
    let message = message.strip_prefix("- ").unwrap_or(message);
    if message.is_empty() { text } else { message }
}

/// The line with its numbers taken out.
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
    /// Where it stands, when, and how often, in at most `room` characters. Of long paths the end is kept.
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

    /// The time as the line writes it, where it names no year.
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

    /// The part of the line around what was recognised, in about `room` characters.
    pub(super) fn excerpt(&self, room: usize) -> String {
        let body: Vec<char> = self.body.chars().collect();
        if body.len() <= room {
            return self.body.to_owned();
        }
        let (at, length) = match self.body.find(self.focus).filter(|_| !self.focus.is_empty()) {
            Some(byte) => (self.body[..byte].chars().count(), self.focus.chars().count()),
            // Programs say at the end why it failed.
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

    /// Further lines of the same message.
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
