//! The complete reasoning behind a verdict.

use landfall_model::report::{FindingReason, LineReason, Report};

use super::bar::outcome_word;
use super::screen::{Line, Role, heading, span, wrap};

/// Renders the derivation of the verdict for a terminal `width` columns wide.
pub fn reasoning(report: &Report, width: usize) -> Vec<Line> {
    let Some(reasoning) = &report.reasoning else { return Vec::new() };
    let mut lines = Vec::new();
    heading(&mut lines, "How the verdict was chosen");
    for step in &reasoning.verdict {
        wrap(&mut lines, step, "  ", width, Role::Plain);
    }
    heading(&mut lines, "Findings");
    if reasoning.findings.is_empty() {
        wrap(&mut lines, "no line of any rule", "  ", width, Role::Plain);
    }
    for reason in &reasoning.findings {
        finding(&mut lines, report, reason, width);
    }
    if !reasoning.stages.is_empty() {
        heading(&mut lines, "Stages, with their last event");
        for stage in &reasoning.stages {
            let time = stage.time.map(|time| format!(" at {time:.0}")).unwrap_or_default();
            let text = format!(
                "{} ({}): {}{time}, {}",
                stage.stage,
                stage.phase,
                outcome_word(stage.outcome),
                stage.place
            );
            wrap(&mut lines, &text, "  ", width, Role::Plain);
        }
    }
    if !reasoning.versions.is_empty() {
        heading(&mut lines, "Versions");
        wrap(&mut lines, &reasoning.versions.join(", "), "  ", width, Role::Plain);
    }
    heading(&mut lines, "Sources");
    for source in &report.sources {
        let span = super::span_of(source.first, source.last);
        let error = source.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        let text =
            format!("{} ({}), {}{span}{error}", source.name, source.kind, super::lines_of(source.lines));
        wrap(&mut lines, &text, "  ", width, Role::Plain);
    }
    lines
}

fn finding(lines: &mut Vec<Line>, report: &Report, reason: &FindingReason, width: usize) {
    let found = report.findings.iter().find(|finding| finding.cause == reason.cause);
    let part = match found {
        Some(finding) if Some(&finding.cause) == report.verdict.cause.as_ref() => "the verdict",
        Some(finding) if finding.root => "a root",
        Some(finding) if finding.confidence.value() <= 0.0 => "ruled out",
        _ => "explained",
    };
    lines.push(vec![
        span(Role::Heading, format!("  {}", reason.cause)),
        span(Role::Place, format!("  {part}")),
    ]);
    for line in &reason.lines {
        wrap(lines, &line_text(line), "    ", width, Role::Plain);
        for because in &line.because {
            wrap(lines, because, "      ", width, Role::Plain);
        }
    }
    wrap(lines, &format!("confidence: {}", reason.arithmetic), "    ", width, Role::Plain);
    for explained in &reason.explained_by {
        wrap(lines, &format!("follows from {explained}"), "    ", width, Role::Plain);
    }
    if let Some(finding) = found.filter(|finding| !finding.explains.is_empty()) {
        let names: Vec<&str> = finding.explains.iter().map(landfall_model::Cause::as_str).collect();
        wrap(lines, &format!("explains {}", names.join(", ")), "    ", width, Role::Plain);
    }
}

fn line_text(line: &LineReason) -> String {
    let count = if line.count > 1 { format!("  ×{}", line.count) } else { String::new() };
    format!(
        "rule `{}`, {}:{}{count}, origin {}: {:.2} of {:.2}",
        line.rule,
        line.source,
        line.line,
        line.trust.name(),
        line.weight,
        line.strength
    )
}
