//! A report made readable. Pure: text out, no terminal.

mod html;
mod markdown;
mod screen;

pub use html::html;
pub use markdown::markdown;
pub use screen::{Line, Role, Span, screen, text};

use landfall_model::report::{Finding, Report, State};

/// Evidence lines shown to people; the rest is in the JSON.
const SHOWN_EVIDENCE: usize = 3;

/// Other findings of each kind shown to people.
const SHOWN_OTHERS: usize = 4;

/// The findings of a report as people read them.
struct Groups<'r> {
    named: Option<&'r Finding>,
    /// What follows from the named one.
    follows: Vec<&'r Finding>,
    /// What stands beside it: further roots, or leads when there is no verdict.
    beside: Vec<&'r Finding>,
    /// What was seen and is over.
    ruled_out: Vec<&'r Finding>,
}

// === impl Groups ===

impl<'r> Groups<'r> {
    fn new(report: &'r Report) -> Self {
        let named =
            report.findings.iter().find(|finding| Some(&finding.cause) == report.verdict.cause.as_ref());
        let mut groups = Self { named, follows: Vec::new(), beside: Vec::new(), ruled_out: Vec::new() };
        for finding in &report.findings {
            if named.is_some_and(|named| named.cause == finding.cause) {
                continue;
            }
            if finding.confidence.value() <= 0.0 {
                groups.ruled_out.push(finding);
            } else if named.is_some_and(|named| named.explains.contains(&finding.cause)) {
                groups.follows.push(finding);
            } else {
                groups.beside.push(finding);
            }
        }
        groups
    }

    fn titled(&self) -> [(&'static str, &[&'r Finding]); 3] {
        let beside = if self.named.is_some() { "Also seen" } else { "Leads" };
        [
            ("Follows from it", &self.follows),
            (beside, &self.beside),
            ("Ruled out by a later success", &self.ruled_out),
        ]
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

/// Cause, component, phase and confidence of the verdict, as far as they are known.
fn facts(report: &Report) -> Vec<String> {
    let verdict = &report.verdict;
    let mut facts = Vec::new();
    facts.extend(verdict.cause.as_ref().map(|cause| format!("cause {cause}")));
    facts.extend(verdict.component.as_ref().map(|component| format!("component {component}")));
    facts.extend(verdict.phase.map(|phase| format!("phase {phase}")));
    if verdict.cause.is_some() {
        facts.push(format!("confidence {}", verdict.confidence));
    }
    facts
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

    fn report() -> Report {
        let engine = Engine::new(RuleSet::embedded().unwrap()).unwrap();
        let mut case = engine.open();
        let source = case.add_source("kubelet.log", "journal-text");
        case.add(source, engine.scan(&Stream::default(), 1, LOG.as_bytes()));
        case.fail_source("broken.tar", "unexpected end".to_owned());
        case.finish()
    }

    #[test]
    fn the_screen_shows_verdict_evidence_and_fix() {
        insta::assert_snapshot!(text(&report(), 100));
    }

    #[test]
    fn a_narrow_screen_wraps() {
        let shown = text(&report(), 50);
        let wide = |line: &&str| line.chars().count() > 50 && line.trim().contains(' ');
        assert_eq!(shown.lines().find(wide), None);
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
    fn nothing_known_is_shown_too() {
        let engine = Engine::new(RuleSet::embedded().unwrap()).unwrap();
        let report = engine.open().finish();
        assert_eq!(text(&report, 80), "UNKNOWN: The logs do not show a cause\n");
    }
}
