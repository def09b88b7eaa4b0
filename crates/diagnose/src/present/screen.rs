//! One screen: verdict, evidence, fixes, other findings and progress.

use landfall_model::report::{Finding, Report, State};

use super::bar;
use super::quote::{self, Quote};
use super::{Groups, facts, state_word};

/// Minimum line width, even on narrower terminals.
const MIN_WIDTH: usize = 40;

/// Minimum height; smaller terminals scroll.
const MIN_HEIGHT: usize = 20;

/// Default terminal height.
const USUAL_HEIGHT: usize = 24;

/// Levels of detail, from complete to minimal. The first that fits is used.
const DETAILS: [Detail; 4] = [
    Detail { evidence: 3, quoted: 3, others: 4, neighbours: 3 },
    Detail { evidence: 3, quoted: 2, others: 2, neighbours: 1 },
    Detail { evidence: 2, quoted: 2, others: 1, neighbours: 0 },
    Detail { evidence: 1, quoted: 2, others: 1, neighbours: 0 },
];

/// A line of the screen.
pub type Line = Vec<Span>;

/// Available space in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub width: usize,
    pub height: usize,
}

/// Text with its role, so that a terminal can color it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub role: Role,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Plain,
    /// State and title of a failure verdict.
    Bad,
    /// State and title of a success verdict.
    Good,
    /// A verdict that is neither.
    Open,
    Heading,
    /// Location of an evidence line, and other secondary text.
    Place,
    /// A line of evidence.
    Quote,
    /// The recognized part of a line.
    Focus,
}

#[derive(Clone, Copy)]
struct Detail {
    /// Number of evidence lines.
    evidence: usize,
    /// Maximum number of screen lines per evidence line.
    quoted: usize,
    /// Number of other findings of each kind.
    others: usize,
    /// Further lines of the same message.
    neighbours: usize,
}

/// Renders the report for a terminal `width` columns wide with the default height.
pub fn text(report: &Report, width: usize) -> String {
    plain(&screen(report, Size { width, height: USUAL_HEIGHT }))
}

/// Returns the text without roles.
pub fn plain(lines: &[Line]) -> String {
    let mut out = String::new();
    for line in lines {
        for span in line {
            out.push_str(&span.text);
        }
        out.truncate(out.trim_end_matches(' ').len());
        out.push('\n');
    }
    out
}

/// Renders the report with roles, in as much detail as fits.
pub fn screen(report: &Report, size: Size) -> Vec<Line> {
    let width = size.width.max(MIN_WIDTH);
    // The prompt needs one line.
    let height = size.height.max(MIN_HEIGHT) - 1;
    let mut lines = Vec::new();
    for detail in DETAILS {
        lines = laid_out(report, width, detail);
        if lines.len() <= height {
            break;
        }
    }
    if lines.len() > height {
        lines.retain(|line| !line.is_empty());
    }
    lines
}

fn laid_out(report: &Report, width: usize, detail: Detail) -> Vec<Line> {
    let mut lines = Vec::new();
    head(&mut lines, report, width);
    let groups = Groups::new(report);
    if let Some(finding) = groups.named {
        heading(&mut lines, "Evidence");
        evidence(&mut lines, finding, width, detail);
        heading(&mut lines, "Fix");
        wrap(&mut lines, &finding.fix, "  ", width, Role::Plain);
    } else if report.verdict.state == State::Unknown {
        undecided(&mut lines, report, width, detail);
    }
    also_wrong(&mut lines, &groups.also_wrong, width, detail);
    let beside = if groups.named.is_some() { "Also seen" } else { "Leads" };
    listed(&mut lines, beside, &groups.beside, width, detail);
    names(&mut lines, "Follows from it", &groups.follows, width);
    listed(&mut lines, "Ruled out", &groups.ruled_out, width, detail);
    timeline(&mut lines, report, width);
    let unreadable = report.sources.iter().filter_map(|source| Some((source, source.error.as_ref()?)));
    let unreadable: Vec<_> = unreadable.collect();
    if !unreadable.is_empty() {
        lines.push(Vec::new());
    }
    for (source, error) in unreadable.iter().take(detail.others) {
        wrap(&mut lines, &format!("could not read `{}`: {error}", source.name), "", width, Role::Open);
    }
    if unreadable.len() > detail.others {
        let more = format!("and {} more that could not be read", unreadable.len() - detail.others);
        lines.push(vec![span(Role::Open, more)]);
    }
    if let Some(cause) = &report.verdict.cause {
        lines.push(Vec::new());
        let more = format!("More: `landfall explain {cause}`; why: `--explain`");
        wrap(&mut lines, &more, "", width, Role::Place);
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
    let mut line = String::new();
    for fact in facts(report) {
        if line.is_empty() {
            line = fact;
        } else if 2 + line.chars().count() + 3 + fact.chars().count() <= width {
            line = format!("{line} · {fact}");
        } else {
            wrap(lines, &std::mem::replace(&mut line, fact), "  ", width, Role::Place);
        }
    }
    if !line.is_empty() {
        wrap(lines, &line, "  ", width, Role::Place);
    }
}

fn evidence(lines: &mut Vec<Line>, finding: &Finding, width: usize, detail: Detail) {
    for quote in quote::quotes(&finding.evidence).iter().take(detail.evidence) {
        quoted(lines, quote, width, detail);
    }
}

fn quoted(lines: &mut Vec<Line>, quote: &Quote<'_>, width: usize, detail: Detail) {
    lines.push(vec![span(Role::Place, format!("  {}", quote.place(width.saturating_sub(2))))]);
    let room = detail.quoted * width.saturating_sub(5);
    marked(lines, &quote.excerpt(room), quote.focus, "    ", width);
    for line in quote.neighbours().take(detail.neighbours) {
        let cut = quote::cut(line.trim(), width.saturating_sub(6));
        lines.push(vec![span(Role::Quote, format!("      {cut}"))]);
    }
}

/// Renders a report without a cause: what was read, the last event, and the next steps.
fn undecided(lines: &mut Vec<Line>, report: &Report, width: usize, detail: Detail) {
    if let Some(quote) = super::surest_lead(report) {
        heading(lines, "Surest lead");
        quoted(lines, &quote, width, detail);
    }
    heading(lines, "Read");
    wrap(lines, &super::what_was_read(report), "  ", width, Role::Plain);
    if let Some(last) = &report.last_seen {
        heading(lines, "Seen last");
        for quote in quote::quotes(std::slice::from_ref(last)) {
            quoted(lines, &quote, width, detail);
        }
    }
    if !report.next_steps.is_empty() {
        heading(lines, "Next");
        for step in &report.next_steps {
            wrap(lines, step, "  ", width, Role::Plain);
        }
    }
}

/// Renders further roots with the confidence of a verdict, each with its evidence and fix.
fn also_wrong(lines: &mut Vec<Line>, findings: &[&Finding], width: usize, detail: Detail) {
    if findings.is_empty() {
        return;
    }
    heading(lines, "Also wrong");
    for finding in findings.iter().take(detail.others.max(2)) {
        let trust = super::trust(finding).name();
        let title = format!("{} ({}, {}, {trust})", finding.title, finding.cause, finding.confidence);
        wrap(lines, &title, "  ", width, Role::Plain);
        if detail.neighbours > 0 {
            for quote in quote::quotes(&finding.evidence).iter().take(1) {
                marked(lines, &quote.excerpt(width.saturating_sub(5)), quote.focus, "    ", width);
            }
            wrap(lines, &format!("Fix: {}", finding.fix), "    ", width, Role::Plain);
        }
    }
    and_more(lines, findings.len(), detail.others.max(2));
}

fn listed(lines: &mut Vec<Line>, name: &str, findings: &[&Finding], width: usize, detail: Detail) {
    if findings.is_empty() {
        return;
    }
    heading(lines, name);
    for finding in findings.iter().take(detail.others) {
        let why = finding.ruled_out.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        let text = format!("{}: {}{why}", finding.cause, finding.title);
        wrap(lines, &quote::cut(&text, 2 * width.saturating_sub(4)), "  ", width, Role::Plain);
    }
    and_more(lines, findings.len(), detail.others);
}

fn and_more(lines: &mut Vec<Line>, all: usize, shown: usize) {
    if all > shown {
        lines.push(vec![span(Role::Place, format!("  and {} more", all - shown))]);
    }
}

fn names(lines: &mut Vec<Line>, name: &str, findings: &[&Finding], width: usize) {
    if findings.is_empty() {
        return;
    }
    let names: Vec<&str> = findings.iter().map(|finding| finding.cause.as_str()).collect();
    lines.push(Vec::new());
    wrap(lines, &format!("{name}: {}", names.join(", ")), "", width, Role::Plain);
}

fn timeline(lines: &mut Vec<Line>, report: &Report, width: usize) {
    let bars = bar::bars(&report.timeline, width.saturating_sub(2));
    if bars.is_empty() {
        return;
    }
    heading(lines, "Timeline");
    for line in bars {
        wrap(lines, &line, "  ", width, Role::Plain);
    }
}

pub(super) fn heading(lines: &mut Vec<Line>, name: &str) {
    lines.push(Vec::new());
    lines.push(vec![span(Role::Heading, name.to_owned())]);
}

pub(super) fn span(role: Role, text: String) -> Span {
    Span { role, text }
}

/// Wraps a quotation and marks its recognized part, if that is on one line.
fn marked(lines: &mut Vec<Line>, text: &str, focus: &str, indent: &str, width: usize) {
    let from = lines.len();
    wrap(lines, text, indent, width, Role::Quote);
    for line in &mut lines[from..] {
        let whole: String = line.iter().map(|span| span.text.as_str()).collect();
        if let Some((before, focus, after)) = quote::marked(&whole, focus) {
            *line = vec![
                span(Role::Quote, before.to_owned()),
                span(Role::Focus, focus.to_owned()),
                span(Role::Quote, after.to_owned()),
            ];
            return;
        }
    }
}

/// Wraps text at spaces; words longer than a line are split.
pub(super) fn wrap(lines: &mut Vec<Line>, text: &str, indent: &str, width: usize, role: Role) {
    let room = width.saturating_sub(indent.len()).max(1);
    for paragraph in text.lines() {
        let mut line = String::from(indent);
        let mut used = 0;
        for word in paragraph.split_whitespace() {
            let mut word: Vec<char> = word.chars().collect();
            if used > 0 && used + 1 + word.len() > width.saturating_sub(indent.len()) {
                lines.push(vec![span(role, std::mem::replace(&mut line, indent.to_owned()))]);
                used = 0;
            }
            while word.len() > room {
                let rest = word.split_off(room);
                line.extend(word);
                lines.push(vec![span(role, std::mem::replace(&mut line, indent.to_owned()))]);
                word = rest;
                used = 0;
            }
            if used > 0 {
                line.push(' ');
                used += 1;
            }
            used += word.len();
            line.extend(word);
        }
        lines.push(vec![span(role, line)]);
    }
}
