//! Markdown output for issues.

use std::fmt::Write as _;

use landfall_model::report::{Finding, Report, State};

use super::bar::outcome_word;
use super::quote::{self, Quote};
use super::{
    Groups, REASONING_WIDTH, SHOWN_EVIDENCE, SHOWN_OTHERS, facts, plain, reasoning, state_word, surest_lead,
    trust, what_was_read,
};

/// Maximum number of quoted characters per line.
const QUOTED: usize = 500;

/// Renders the report as Markdown.
///
/// The caller is responsible for redaction: evidence is included as in the report.
pub fn markdown(report: &Report) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "## {}: {}\n", state_word(report.verdict.state), inline(&report.verdict.title));
    let facts = facts(report);
    if !facts.is_empty() {
        let _ = writeln!(out, "{}\n", inline(&facts.join(" · ")));
    }
    let groups = Groups::new(report);
    if let Some(finding) = groups.named {
        proof(&mut out, finding, "###", SHOWN_EVIDENCE);
    } else if report.verdict.state == State::Unknown {
        undecided(&mut out, report);
    }
    if !groups.also_wrong.is_empty() {
        let _ = writeln!(out, "### Also wrong\n");
    }
    for finding in groups.also_wrong.iter().take(SHOWN_OTHERS) {
        let _ = writeln!(
            out,
            "#### {} ({}, {})\n",
            inline(&finding.title),
            finding.confidence,
            trust(finding).name()
        );
        proof(&mut out, finding, "#####", 1);
    }
    for (name, findings) in groups.titled().into_iter().filter(|(_, findings)| !findings.is_empty()) {
        let _ = writeln!(out, "### {name}\n");
        for finding in findings.iter().take(SHOWN_OTHERS) {
            let why = finding.ruled_out.as_ref().map(|why| format!(" ({})", inline(why))).unwrap_or_default();
            let _ = writeln!(out, "- `{}`: {}{why}", finding.cause, inline(&finding.title));
        }
        out.push('\n');
    }
    timeline(&mut out, report);
    if report.reasoning.is_some() {
        let text = plain(&reasoning(report, REASONING_WIDTH));
        let fence = fence(&text);
        let _ = writeln!(out, "### Reasoning\n\n{fence}text\n{}\n{fence}\n", text.trim());
    }
    for source in &report.sources {
        if let Some(error) = &source.error {
            let _ = writeln!(out, "Could not read {}: {}", code(&source.name), inline(error));
        }
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

fn proof(out: &mut String, finding: &Finding, level: &str, shown: usize) {
    let _ = writeln!(out, "{level} Evidence\n");
    for quote in quote::quotes(&finding.evidence).iter().take(shown) {
        quoted(out, quote);
    }
    let _ = writeln!(out, "{level} Fix\n\n{}\n", inline(&finding.fix));
    let _ =
        writeln!(out, "[About `{0}`]({1}), or `landfall explain {0}`.\n", finding.cause, finding.reference);
}

fn quoted(out: &mut String, quote: &Quote<'_>) {
    let mut text = quote.excerpt(QUOTED);
    for line in quote.neighbours() {
        let _ = write!(text, "\n{line}");
    }
    let fence = fence(&text);
    let _ = writeln!(out, "{}\n\n{fence}text\n{text}\n{fence}\n", code(&quote.place(usize::MAX)));
}

fn undecided(out: &mut String, report: &Report) {
    if let Some(quote) = surest_lead(report) {
        out.push_str("### Surest lead\n\n");
        quoted(out, &quote);
    }
    let _ = writeln!(out, "Read: {}\n", inline(&what_was_read(report)));
    if let Some(last) = &report.last_seen {
        out.push_str("### Seen last\n\n");
        for quote in quote::quotes(std::slice::from_ref(last)) {
            quoted(out, &quote);
        }
    }
    if !report.next_steps.is_empty() {
        out.push_str("### Next\n\n");
        for step in &report.next_steps {
            let _ = writeln!(out, "- {}", inline(step));
        }
        out.push('\n');
    }
}

fn timeline(out: &mut String, report: &Report) {
    if report.timeline.is_empty() {
        return;
    }
    let boots = report.timeline.iter().any(|entry| entry.boot.is_some());
    let (name, rule) = if boots { ("| boot ", "|---") } else { ("", "") };
    let _ =
        writeln!(out, "### Timeline\n\n{name}| phase | outcome | started | ended |\n{rule}|---|---|---|---|");
    for entry in &report.timeline {
        let time = |time: Option<jiff::Timestamp>| time.map(|time| format!("{time:.0}")).unwrap_or_default();
        let boot = match (boots, entry.boot) {
            (false, _) => String::new(),
            (true, boot) => format!("| {} ", boot.map(|boot| boot.to_string()).unwrap_or_default()),
        };
        let _ = writeln!(
            out,
            "{boot}| {} | {} | {} | {} |",
            entry.phase,
            outcome_word(entry.outcome),
            time(entry.started),
            time(entry.ended)
        );
    }
    out.push('\n');
}

/// Renders a code span for any text.
fn code(text: &str) -> String {
    format!("`{}`", text.replace('`', "'"))
}

/// Escapes text so that it cannot start markup or mention a user, except for the code spans in our titles.
fn inline(text: &str) -> String {
    // An odd number of backticks includes a foreign one: then none of them starts a code span.
    let spans = text.matches('`').count().is_multiple_of(2);
    let mut out = String::with_capacity(text.len());
    let mut in_code = false;
    for c in text.chars() {
        match c {
            '`' if spans => {
                in_code = !in_code;
                out.push(c);
            }
            '\n' | '\r' => out.push(' '),
            c if in_code => out.push(c),
            '<' => out.push_str("&lt;"),
            '@' => out.push_str("&#64;"),
            '`' | '[' | ']' | '*' | '_' | '|' | '#' | '~' | '\\' => out.extend(['\\', c]),
            _ => out.push(c),
        }
    }
    out
}

/// Returns a fence longer than any run of backticks in the text.
fn fence(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    "`".repeat(longest.max(2) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_start_no_markup_and_call_nobody() {
        assert_eq!(inline("`a_b@c` on @root_user *x*"), "`a_b@c` on &#64;root\\_user \\*x\\*");
        assert_eq!(inline("odd ` one"), "odd \\` one");
        assert_eq!(inline("<b> | #1 [x](y)"), "&lt;b> \\| \\#1 \\[x\\](y)");
        assert_eq!(code("a`b"), "`a'b`");
        assert_eq!(fence("a ```` b").len(), 5);
    }
}
