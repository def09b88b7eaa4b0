//! One screen: the verdict, the lines that prove it, what to do, what else was seen, how far it came.

use landfall_model::report::{Evidence, Finding, PhaseOutcome, Report, State};

use super::{Groups, SHOWN_EVIDENCE, SHOWN_OTHERS, facts, state_word};

/// Narrower terminals get lines of this width anyway.
const MIN_WIDTH: usize = 40;
/// Lines of the screen that one line of evidence may fill.
const QUOTED_LINES: usize = 3;

/// A line of the screen.
pub type Line = Vec<Span>;

/// Text with the part it plays, so that a terminal can colour it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub role: Role,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Plain,
    /// The state and title of a bad verdict.
    Bad,
    /// The state and title of a good verdict.
    Good,
    /// A verdict that is neither.
    Open,
    Heading,
    /// Where a line of evidence stands.
    Place,
    /// A line of evidence.
    Quote,
}

/// Renders the report for a terminal `width` columns wide.
pub fn text(report: &Report, width: usize) -> String {
    let mut out = String::new();
    for line in screen(report, width) {
        for span in line {
            out.push_str(&span.text);
        }
        out.push('\n');
    }
    out
}

/// The same, with roles.
pub fn screen(report: &Report, width: usize) -> Vec<Line> {
    let width = width.max(MIN_WIDTH);
    let mut lines = Vec::new();
    head(&mut lines, report, width);
    let groups = Groups::new(report);
    if let Some(finding) = groups.named {
        heading(&mut lines, "Evidence");
        for shown in finding.evidence.iter().take(SHOWN_EVIDENCE) {
            evidence(&mut lines, shown, width);
        }
        heading(&mut lines, "Fix");
        wrap(&mut lines, &finding.fix, "  ", width, Role::Plain);
    }
    for (name, findings) in groups.titled() {
        others(&mut lines, name, findings, width);
    }
    timeline(&mut lines, report, width);
    for source in &report.sources {
        if let Some(error) = &source.error {
            let text = format!("could not read `{}`: {error}", source.name);
            lines.push(Vec::new());
            wrap(&mut lines, &text, "", width, Role::Open);
        }
    }
    lines
}

fn head(lines: &mut Vec<Line>, report: &Report, width: usize) {
    let verdict = &report.verdict;
    let role = match verdict.state {
        State::Failed | State::Hung => Role::Bad,
        State::Succeeded => Role::Good,
        State::Running | State::Degraded | State::Unknown => Role::Open,
    };
    wrap(lines, &format!("{}: {}", state_word(verdict.state), verdict.title), "", width, role);
    let facts = facts(report);
    if !facts.is_empty() {
        wrap(lines, &facts.join(" · "), "  ", width, Role::Plain);
    }
}

fn evidence(lines: &mut Vec<Line>, evidence: &Evidence, width: usize) {
    let time = evidence.time.map(|time| format!(" {time:.0}")).unwrap_or_default();
    lines.push(vec![span(Role::Place, format!("  {}:{}{time}", evidence.source, evidence.line))]);
    let room = QUOTED_LINES * width.saturating_sub(4);
    wrap(lines, &shortened(&evidence.text, room), "    ", width, Role::Quote);
}

fn others(lines: &mut Vec<Line>, name: &str, findings: &[&Finding], width: usize) {
    if findings.is_empty() {
        return;
    }
    heading(lines, name);
    for finding in findings.iter().take(SHOWN_OTHERS) {
        wrap(lines, &format!("{}: {}", finding.cause, finding.title), "  ", width, Role::Plain);
    }
    if findings.len() > SHOWN_OTHERS {
        lines.push(vec![span(Role::Plain, format!("  and {} more", findings.len() - SHOWN_OTHERS))]);
    }
}

fn timeline(lines: &mut Vec<Line>, report: &Report, width: usize) {
    if report.timeline.is_empty() {
        return;
    }
    heading(lines, "Timeline");
    let bar: Vec<String> = report
        .timeline
        .iter()
        .map(|entry| {
            let mark = match entry.outcome {
                PhaseOutcome::Ok => "ok",
                PhaseOutcome::Failed => "FAILED",
                PhaseOutcome::Open => "open",
            };
            format!("{} {mark}", entry.phase)
        })
        .collect();
    wrap(lines, &bar.join(" → "), "  ", width, Role::Plain);
}

fn heading(lines: &mut Vec<Line>, name: &str) {
    lines.push(Vec::new());
    lines.push(vec![span(Role::Heading, name.to_owned())]);
}

fn span(role: Role, text: String) -> Span {
    Span { role, text }
}

/// A long line without its middle: programs say at the beginning what they did and at the end why it failed.
fn shortened(text: &str, room: usize) -> String {
    let length = text.chars().count();
    if length <= room {
        return text.to_owned();
    }
    let head: String = text.chars().take(room / 3).collect();
    let tail: String = text.chars().skip(length - room / 2).collect();
    format!("{head}… …{tail}")
}

/// Breaks text at spaces; words longer than a line stand alone and are not cut.
fn wrap(lines: &mut Vec<Line>, text: &str, indent: &str, width: usize, role: Role) {
    for paragraph in text.lines() {
        let mut line = String::from(indent);
        for word in paragraph.split_whitespace() {
            if line.trim().is_empty() {
                line.push_str(word);
            } else if line.chars().count() + 1 + word.chars().count() > width {
                lines.push(vec![span(role, std::mem::replace(&mut line, format!("{indent}{word}")))]);
            } else {
                line.push(' ');
                line.push_str(word);
            }
        }
        lines.push(vec![span(role, line)]);
    }
}
