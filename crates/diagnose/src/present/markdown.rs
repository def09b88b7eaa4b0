//! Markdown, to paste into an issue.

use std::fmt::Write as _;

use landfall_model::report::{PhaseOutcome, Report};

use super::{Groups, SHOWN_EVIDENCE, SHOWN_OTHERS, facts, state_word};

/// Renders the report as Markdown. Redaction is the caller's: evidence is shown as it is in the report.
pub fn markdown(report: &Report) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "## {}: {}\n", state_word(report.verdict.state), inline(&report.verdict.title));
    let facts = facts(report);
    if !facts.is_empty() {
        let _ = writeln!(out, "{}\n", facts.join(" · "));
    }
    let groups = Groups::new(report);
    if let Some(finding) = groups.named {
        let _ = writeln!(out, "### Evidence\n");
        for evidence in finding.evidence.iter().take(SHOWN_EVIDENCE) {
            let time = evidence.time.map(|time| format!(", {time:.0}")).unwrap_or_default();
            let fence = fence(&evidence.text);
            let _ = writeln!(out, "`{}` line {}{time}\n", evidence.source.replace('`', "'"), evidence.line);
            let _ = writeln!(out, "{fence}\n{}\n{fence}\n", evidence.text);
        }
        let _ = writeln!(out, "### Fix\n\n{}\n", finding.fix);
    }
    for (name, findings) in groups.titled().into_iter().filter(|(_, findings)| !findings.is_empty()) {
        let _ = writeln!(out, "### {name}\n");
        for finding in findings.iter().take(SHOWN_OTHERS) {
            let _ = writeln!(out, "- `{}`: {}", finding.cause, inline(&finding.title));
        }
        out.push('\n');
    }
    if !report.timeline.is_empty() {
        out.push_str("### Timeline\n\n| phase | outcome | started | ended |\n|---|---|---|---|\n");
        for entry in &report.timeline {
            let outcome = match entry.outcome {
                PhaseOutcome::Ok => "ok",
                PhaseOutcome::Failed => "failed",
                PhaseOutcome::Open => "open",
            };
            let time =
                |time: Option<jiff::Timestamp>| time.map(|time| format!("{time:.0}")).unwrap_or_default();
            let _ = writeln!(
                out,
                "| {} | {outcome} | {} | {} |",
                entry.phase,
                time(entry.started),
                time(entry.ended)
            );
        }
        out.push('\n');
    }
    for source in &report.sources {
        if let Some(error) = &source.error {
            let _ = writeln!(out, "Could not read `{}`: {}", source.name.replace('`', "'"), inline(error));
        }
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// Text that cannot start markup of its own, except for the code spans our titles use.
fn inline(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '[' | ']' | '*' | '|' | '#' | '\\' => out.extend(['\\', c]),
            '\n' | '\r' => out.push(' '),
            _ => out.push(c),
        }
    }
    out
}

/// A fence longer than any run of backticks in the text.
fn fence(text: &str) -> String {
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    "`".repeat(longest.max(2) + 1)
}
