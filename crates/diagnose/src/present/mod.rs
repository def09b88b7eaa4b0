//! Rendering of reports. Pure: text out, no terminal.

mod bar;
mod cause;
mod html;
mod markdown;
mod quote;
mod reasoning;
mod screen;

pub use cause::{cause_index, cause_page};
pub use html::html;
pub use markdown::markdown;
pub use reasoning::reasoning;
pub use screen::{Line, Role, Size, Span, plain, screen, text};

use landfall_model::report::{Finding, Report, State, Trust};

use self::quote::Quote;
use crate::reason::VERDICT_FLOOR;

/// Maximum number of evidence lines displayed; the JSON contains all.
const SHOWN_EVIDENCE: usize = 3;

/// Maximum number of other findings of each kind displayed.
const SHOWN_OTHERS: usize = 4;

/// Width of the reasoning if the terminal width is unknown.
const REASONING_WIDTH: usize = 100;

/// The findings of a report, grouped for display.
struct Groups<'r> {
    named: Option<&'r Finding>,
    /// Further roots with the confidence of a verdict.
    also_wrong: Vec<&'r Finding>,
    /// Findings that follow from the named one.
    follows: Vec<&'r Finding>,
    /// Further roots, or leads if there is no verdict.
    beside: Vec<&'r Finding>,
    /// Findings that are over.
    ruled_out: Vec<&'r Finding>,
}

// === impl Groups ===

impl<'r> Groups<'r> {
    fn new(report: &'r Report) -> Self {
        let named =
            report.findings.iter().find(|finding| Some(&finding.cause) == report.verdict.cause.as_ref());
        let mut groups = Self {
            named,
            also_wrong: Vec::new(),
            follows: Vec::new(),
            beside: Vec::new(),
            ruled_out: Vec::new(),
        };
        for finding in &report.findings {
            if named.is_some_and(|named| named.cause == finding.cause) {
                continue;
            }
            if finding.confidence.value() <= 0.0 {
                groups.ruled_out.push(finding);
            } else if named.is_some_and(|named| named.explains.contains(&finding.cause)) {
                groups.follows.push(finding);
            } else if named.is_some() && finding.root && finding.confidence.value() >= VERDICT_FLOOR {
                groups.also_wrong.push(finding);
            } else {
                groups.beside.push(finding);
            }
        }
        groups
    }

    /// Returns the groups other than the named and the further verdicts.
    fn titled(&self) -> [(&'static str, &[&'r Finding]); 3] {
        let beside = if self.named.is_some() { "Also seen" } else { "Leads" };
        [("Follows from it", &self.follows), (beside, &self.beside), ("Ruled out", &self.ruled_out)]
    }
}

fn state_word(state: State) -> &'static str {
    match state {
        State::Failed => "FAILED",
        State::Hung => "HUNG",
        State::Running => "RUNNING",
        State::Degraded => "DEGRADED",
        State::Succeeded => "SUCCEEDED",
        State::Unknown => "UNKNOWN",
    }
}

/// Returns the known values of the verdict's cause, component, phase, confidence and trust.
fn facts(report: &Report) -> Vec<String> {
    let verdict = &report.verdict;
    let mut facts = Vec::new();
    facts.extend(verdict.cause.as_ref().map(|cause| format!("cause {cause}")));
    facts.extend(verdict.component.as_ref().map(|component| format!("component {component}")));
    facts.extend(verdict.phase.map(|phase| format!("phase {phase}")));
    if verdict.cause.is_some() {
        facts.push(format!("confidence {}, {}", verdict.confidence, verdict.trust.name()));
    } else if matches!(verdict.state, State::Succeeded | State::Degraded) {
        facts.push(format!("evidence {}", verdict.trust.name()));
    }
    let named = report.findings.iter().find(|finding| Some(&finding.cause) == verdict.cause.as_ref());
    if let Some(finding) = named.filter(|finding| !finding.nodes.is_empty()) {
        facts.push(format!("on {}", finding.nodes.join(", ")));
    }
    facts
}

/// Returns the trust of a finding's best evidence.
fn trust(finding: &Finding) -> Trust {
    finding.evidence.iter().map(|evidence| evidence.trust).max().unwrap_or_default()
}

/// Returns the most significant line if no cause is named.
fn surest_lead(report: &Report) -> Option<Quote<'_>> {
    let lead = report.findings.iter().find(|finding| finding.root && finding.confidence.value() > 0.0)?;
    quote::quotes(&lead.evidence).into_iter().next()
}

/// Summarizes the sources: amount, kinds and time range.
fn what_was_read(report: &Report) -> String {
    let read: Vec<_> = report.sources.iter().filter(|source| source.lines > 0).collect();
    let lines: u64 = read.iter().map(|source| source.lines).sum();
    let [source] = read[..] else {
        let first = read.iter().filter_map(|source| source.first).min();
        let last = read.iter().filter_map(|source| source.last).max();
        return match read.len() {
            0 => "nothing".to_owned(),
            count => format!("{} of {count} sources{}", lines_of(lines), span_of(first, last)),
        };
    };
    format!(
        "{} of `{}` ({}){}",
        lines_of(lines),
        source.name,
        source.kind,
        span_of(source.first, source.last)
    )
}

/// `1 line`, `2 lines`
fn lines_of(count: u64) -> String {
    if count == 1 { "1 line".to_owned() } else { format!("{count} lines") }
}

fn span_of(first: Option<jiff::Timestamp>, last: Option<jiff::Timestamp>) -> String {
    first.zip(last).map(|(first, last)| format!(", from {first:.0} to {last:.0}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, RuleSet, Stream};

    const LOG: &str = "\
2026-01-02T03:04:00Z n1 kubelet[7]: \"Started kubelet\"
2026-01-02T03:04:01Z n1 kubelet[7]: Get \"https://api.c1.example:6443/api/v1/nodes\": dial tcp: lookup api.c1.example on 10.0.0.2:53: no such host
2026-01-02T03:04:02Z n1 kubelet[7]: Get \"https://10.0.0.9:6443/api/v1/nodes\": dial tcp 10.0.0.9:6443: connect: connection refused
2026-01-02T03:04:03Z n1 kubelet[7]: <script>alert(`1`)</script> write /x: no space left on device
";

    fn diagnose(text: &str) -> Report {
        let engine = Engine::new(RuleSet::embedded().unwrap()).unwrap();
        let mut case = engine.open();
        let source = case.add_source("kubelet.log", "journal-text");
        case.add(source, engine.scan(&Stream::default(), 1, text.as_bytes()));
        case.fail_source("broken.tar", "unexpected end".to_owned());
        case.finish()
    }

    fn report() -> Report {
        Report { reasoning: None, ..diagnose(LOG) }
    }

    #[test]
    fn the_screen_shows_verdict_evidence_and_fix() {
        insta::assert_snapshot!(text(&report(), 80));
    }

    #[test]
    fn a_narrow_screen_wraps() {
        for width in [40, 50, 80] {
            let shown = text(&report(), width);
            assert_eq!(shown.lines().find(|line| line.chars().count() > width), None);
        }
    }

    #[test]
    fn a_low_screen_shows_less_but_never_without_evidence_and_fix() {
        let mut log = LOG.repeat(30);
        log.push_str("\t[ERROR Swap]: running with swap on is not supported\n\t[ERROR NumCPU]: the number of available CPUs 1 is less than the required 2\n");
        let report = diagnose(&log);
        let low = screen(&report, Size { width: 80, height: 24 });
        let high = screen(&report, Size { width: 80, height: 60 });
        assert!(low.len() < 24, "{}", plain(&low));
        assert!(low.len() < high.len());
        for part in ["Evidence", "Fix", "Also wrong", "Timeline"] {
            assert!(plain(&low).contains(part), "{part} is missing:\n{}", plain(&low));
        }
    }

    #[test]
    fn the_reasoning_names_rules_arithmetic_and_what_was_ruled_out() {
        let registered = "2026-01-02T03:05:00Z n1 kubelet[7]: \"Successfully registered node\" node=\"n1\"\n";
        insta::assert_snapshot!(plain(&reasoning(&diagnose(&format!("{LOG}{registered}")), 100)));
        assert!(plain(&reasoning(&diagnose(LOG), 100)).contains("could be the root as well"));
        assert!(markdown(&diagnose(LOG)).contains("### Reasoning"));
        assert!(html(&diagnose(LOG)).contains("<summary>Reasoning</summary>"));
    }

    #[test]
    fn markdown_quotes_what_it_shows() {
        insta::assert_snapshot!(markdown(&report()));
    }

    #[test]
    fn html_escapes_what_it_shows() {
        let page = html(&report());
        assert!(page.contains("&lt;script&gt;alert(`1`)&lt;/script&gt;"), "{page}");
        assert!(!page.contains("<script"), "a report runs no script");
        assert!(!page.contains("http://") && !page.contains("src="), "the page needs nothing from outside");
        insta::assert_snapshot!(page);
    }

    #[test]
    fn what_is_not_known_is_said_with_what_was_read_and_what_would_help() {
        let engine = Engine::new(RuleSet::embedded().unwrap()).unwrap();
        let shown = text(&engine.open().finish(), 80);
        assert!(shown.starts_with("UNKNOWN: The logs do not show a cause\n"), "{shown}");
        let shown = text(
            &diagnose(
                "[init] Using Kubernetes version: v1.33.1\nerror execution phase addon/coredns: nobody has seen this\n",
            ),
            80,
        );
        for part in
            ["Read\n  2 lines of `kubelet.log`", "Seen last\n", "nobody has seen this", "Next\n  Collect "]
        {
            assert!(shown.contains(part), "{part} is missing:\n{shown}");
        }
    }

    #[test]
    fn every_cause_has_a_page() {
        let rules = RuleSet::embedded().unwrap();
        let index = cause_index(&rules);
        for entry in rules.catalogue().iter() {
            let page = cause_page(&rules, &entry.name).unwrap();
            assert!(page.contains("## Fix") && index.contains(entry.name.as_str()));
        }
        assert_eq!(cause_page(&rules, &landfall_model::Cause::new("no-such-cause").unwrap()), None);
    }
}
