//! A self-contained HTML page without external resources or scripts.

use std::fmt::{self, Write as _};

use landfall_model::report::{Finding, PhaseOutcome, Report, State, TimelineEntry};

use super::bar::lengths;
use super::quote::{self, Quote};
use super::{
    Groups, REASONING_WIDTH, facts, plain, reasoning, state_word, surest_lead, trust, what_was_read,
};
use crate::findings::duration;

const STYLE: &str = include_str!("report.css");

/// Maximum number of quoted characters per line.
const QUOTED: usize = 1000;

/// Text that is escaped as literal text.
struct Escaped<'a>(&'a str);

/// Escaped text in which backticks enclose code.
struct Prose<'a>(&'a str);

/// Renders the report as a self-contained page.
pub fn html(report: &Report) -> String {
    let verdict = &report.verdict;
    let title = format!("{}: {}", state_word(verdict.state), verdict.title);
    let class = match verdict.state {
        State::Failed | State::Hung => "bad",
        State::Succeeded => "good",
        State::Running | State::Degraded | State::Unknown => "open",
    };
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         <header class=\"{class}\">\n<p class=\"state\">{}</p>\n<h1>{}</h1>",
        Escaped(&title),
        state_word(verdict.state),
        Prose(&verdict.title)
    );
    let facts = facts(report);
    if !facts.is_empty() {
        out.push_str("<ul class=\"facts\">\n");
        for fact in &facts {
            let (name, value) = fact.split_once(' ').unwrap_or(("", fact));
            let _ = writeln!(out, "<li><span>{}</span> {}</li>", Escaped(name), Escaped(value));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("</header>\n");
    let groups = Groups::new(report);
    if let Some(finding) = groups.named {
        proof(&mut out, finding, "h2");
    } else if verdict.state == State::Unknown {
        undecided(&mut out, report);
    }
    if !groups.also_wrong.is_empty() {
        out.push_str("<h2>Also wrong</h2>\n");
    }
    for finding in &groups.also_wrong {
        let _ = writeln!(
            out,
            "<details open>\n<summary>{} <span class=\"place\">{}, {}</span></summary>",
            Prose(&finding.title),
            finding.confidence,
            trust(finding).name()
        );
        proof(&mut out, finding, "h3");
        out.push_str("</details>\n");
    }
    timeline(&mut out, &report.timeline);
    for (name, findings) in groups.titled().into_iter().filter(|(_, findings)| !findings.is_empty()) {
        let _ = writeln!(out, "<h2>{name}</h2>\n<ul>");
        for finding in findings {
            let why = finding.ruled_out.as_deref().unwrap_or_default();
            let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
            let _ = writeln!(
                out,
                "<li><code>{}</code> {}<span class=\"place\">{}</span></li>",
                Escaped(finding.cause.as_str()),
                Prose(&finding.title),
                Prose(&why)
            );
        }
        out.push_str("</ul>\n");
    }
    if report.reasoning.is_some() {
        let text = plain(&reasoning(report, REASONING_WIDTH));
        let _ = writeln!(
            out,
            "<details>\n<summary>Reasoning</summary>\n<pre>{}</pre>\n</details>",
            Escaped(text.trim())
        );
    }
    sources(&mut out, report);
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

fn proof(out: &mut String, finding: &Finding, level: &str) {
    let _ = writeln!(out, "<{level}>Evidence</{level}>");
    for quote in quote::quotes(&finding.evidence) {
        quoted(out, &quote);
    }
    let _ = writeln!(
        out,
        "<{level}>Fix</{level}>\n<p>{}</p>\n<p class=\"place\">More: <code>landfall explain {}</code>, {}</p>",
        Prose(&finding.fix),
        Escaped(finding.cause.as_str()),
        Escaped(&finding.reference)
    );
}

fn quoted(out: &mut String, quote: &Quote<'_>) {
    let _ = write!(out, "<figure>\n<figcaption>{}</figcaption>\n<pre>", Escaped(&quote.place(usize::MAX)));
    let text = quote.excerpt(QUOTED);
    match quote::marked(&text, quote.focus) {
        Some((before, focus, after)) => {
            let _ = write!(out, "{}<mark>{}</mark>{}", Escaped(before), Escaped(focus), Escaped(after));
        }
        None => {
            let _ = write!(out, "{}", Escaped(&text));
        }
    }
    for line in quote.neighbours() {
        let _ = write!(out, "\n{}", Escaped(line));
    }
    out.push_str("</pre>\n</figure>\n");
}

/// Renders the available evidence without a cause.
fn undecided(out: &mut String, report: &Report) {
    if let Some(quote) = surest_lead(report) {
        out.push_str("<h2>Surest lead</h2>\n");
        quoted(out, &quote);
    }
    let _ = writeln!(out, "<h2>Read</h2>\n<p>{}</p>", Prose(&what_was_read(report)));
    if let Some(last) = &report.last_seen {
        out.push_str("<h2>Seen last</h2>\n");
        for quote in quote::quotes(std::slice::from_ref(last)) {
            quoted(out, &quote);
        }
    }
    if !report.next_steps.is_empty() {
        out.push_str("<h2>Next</h2>\n<ul>\n");
        for step in &report.next_steps {
            let _ = writeln!(out, "<li>{}</li>", Prose(step));
        }
        out.push_str("</ul>\n");
    }
}

fn timeline(out: &mut String, timeline: &[TimelineEntry]) {
    if timeline.is_empty() {
        return;
    }
    out.push_str("<h2>Timeline</h2>\n");
    for entries in timeline.chunk_by(|a, b| a.boot == b.boot) {
        let entries: Vec<&TimelineEntry> = entries.iter().collect();
        if let Some(boot) = entries.first().and_then(|entry| entry.boot) {
            let _ = writeln!(out, "<p class=\"place\">Boot {boot}</p>");
        }
        out.push_str("<ol class=\"bar\">\n");
        for (entry, length) in entries.iter().zip(lengths(&entries)) {
            let (class, word) = match entry.outcome {
                PhaseOutcome::Ok => ("ok", "ok"),
                PhaseOutcome::Failed => ("failed", "failed"),
                PhaseOutcome::Open => ("open", "open"),
            };
            // Logarithmic: a phase that took a hundred times as long is not a hundred times as wide.
            let share = length.map_or(1, |seconds| 1 + (seconds.max(0) + 1).ilog2());
            let took = length.filter(|seconds| *seconds > 0).map(duration).unwrap_or_default();
            let began = entry.started.map(|time| format!("{time:.0}")).unwrap_or_default();
            let _ = writeln!(
                out,
                "<li class=\"{class}\" style=\"flex-grow:{share}\" title=\"{began}\"><b>{}</b> {word} <span>{took}</span></li>",
                entry.phase
            );
        }
        out.push_str("</ol>\n");
    }
}

fn sources(out: &mut String, report: &Report) {
    let _ = writeln!(
        out,
        "<details class=\"sources\">\n<summary>Sources ({})</summary>\n<ul>",
        report.sources.len()
    );
    for source in &report.sources {
        let error = source.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        let _ = writeln!(
            out,
            "<li>{} <span class=\"place\">{}, {}{}</span></li>",
            Escaped(&source.name),
            Escaped(&source.kind),
            super::lines_of(source.lines),
            Escaped(&error)
        );
    }
    out.push_str("</ul>\n</details>\n");
    for source in &report.sources {
        if let Some(error) = &source.error {
            let _ = writeln!(
                out,
                "<p class=\"warning\">Could not read <code>{}</code>: {}</p>",
                Escaped(&source.name),
                Escaped(error)
            );
        }
    }
}

// === impl Escaped ===

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                _ => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

// === impl Prose ===

impl fmt::Display for Prose<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<&str> = self.0.split('`').collect();
        // An odd number of backticks includes a foreign one: then none of them starts code.
        if parts.len().is_multiple_of(2) {
            return Escaped(self.0).fmt(f);
        }
        for (index, part) in parts.into_iter().enumerate() {
            if index.is_multiple_of(2) {
                Escaped(part).fmt(f)?;
            } else {
                write!(f, "<code>{}</code>", Escaped(part))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backticks_make_code_and_nothing_makes_markup() {
        assert_eq!(Prose("`a<b>` & `c`").to_string(), "<code>a&lt;b&gt;</code> &amp; <code>c</code>");
        assert_eq!(Prose("odd ` <one>").to_string(), "odd ` &lt;one&gt;");
    }
}
