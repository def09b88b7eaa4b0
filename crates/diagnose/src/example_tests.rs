//! Tests of rule files by their own examples.

use std::fmt;

use landfall_model::report::Report;

use crate::rules::{Example, Examples, RuleSet, Strength, Trigger};
use crate::scan::{Engine, PatternId, Scan};
use crate::stream::Stream;

/// A failed example.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ExampleFailure {
    rule: String,
    line: String,
    complaint: Complaint,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Complaint {
    /// A `yes` line is not matched.
    Missed,
    /// A `no` line is matched.
    Matched,
    /// The line alone leads to another verdict, unrelated to the rule's cause.
    Claimed { by: String },
    /// The rule or milestone has no `yes` line.
    Untested,
}

/// A line that shows a failure without naming a cause.
const CRASH: &str = "systemd[1]: kubelet.service: Main process exited, code=exited, status=1/FAILURE";

// === impl Engine ===

impl Engine {
    /// Checks each example of each rule; an empty result means success.
    fn check_examples(&self) -> Vec<ExampleFailure> {
        let mut failures = Vec::new();
        for (index, rule) in self.rules.rules.iter().enumerate() {
            self.check(index, &rule.id, &rule.examples, &mut failures);
            // Weak lines are leads, and some lines have no significance alone, so they do not determine the
            // verdict.
            if rule.strength < Strength::Fair || rule.after.is_some() {
                continue;
            }
            for line in rule.examples.lines() {
                // Repeats the line until it is significant.
                let often = rule.least.and_then(|least| usize::try_from(least).ok()).unwrap_or(1);
                // A cause whose fix destroys data needs a second sign of failure.
                let entry = self.rules.catalogue().get(&rule.cause);
                let second = entry.filter(|entry| entry.destructive).map(|_| CRASH);
                let report = self.diagnose_line(&vec![line; often].join("\n"), second);
                let explained = report.findings.iter().any(|finding| {
                    Some(&finding.cause) == report.verdict.cause.as_ref()
                        && finding.explains.contains(&rule.cause)
                });
                if report.verdict.cause.as_ref() != Some(&rule.cause) && !explained {
                    let by =
                        report.verdict.cause.map_or_else(|| "nobody".to_owned(), |cause| cause.to_string());
                    failures.push(ExampleFailure {
                        rule: rule.id.clone(),
                        line: line.to_owned(),
                        complaint: Complaint::Claimed { by },
                    });
                }
            }
        }
        for (index, milestone) in self.rules.milestones.iter().enumerate() {
            self.check(self.rules.rules.len() + index, &milestone.id, &milestone.examples, &mut failures);
        }
        failures
    }

    fn check(&self, index: usize, id: &str, examples: &Examples, failures: &mut Vec<ExampleFailure>) {
        let pattern = PatternId::try_from(index).unwrap_or(PatternId::MAX);
        let trigger = self.rules.triggers().nth(index);
        let matched = |example: &&Example| match (example, trigger) {
            (Example::Line(line), Some(Trigger::Line { .. })) => {
                self.scan_line(line).hits.contains_key(&pattern)
            }
            (Example::Fact(fact), Some(Trigger::Fact(spec))) => spec.matches(fact),
            _ => false,
        };
        let mut fail = |line: String, complaint| {
            failures.push(ExampleFailure { rule: id.to_owned(), line, complaint });
        };
        if examples.yes.is_empty() {
            fail(String::new(), Complaint::Untested);
        }
        for example in examples.yes.iter().filter(|example| !matched(example)) {
            fail(example.to_string(), Complaint::Missed);
        }
        for example in examples.no.iter().filter(matched) {
            fail(example.to_string(), Complaint::Matched);
        }
    }

    fn scan_line(&self, line: &str) -> Scan {
        self.scan(&Stream::default(), 1, line.as_bytes())
    }

    fn diagnose_line(&self, line: &str, second: Option<&str>) -> Report {
        let mut case = self.open();
        for text in [Some(line), second].into_iter().flatten() {
            let source = case.add_source("example", "text");
            case.add(source, self.scan_line(text));
        }
        case.finish()
    }
}

// === impl ExampleFailure ===

impl fmt::Display for ExampleFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: ", self.rule)?;
        match &self.complaint {
            Complaint::Missed => write!(f, "does not match its example: {}", self.line),
            Complaint::Matched => write!(f, "matches its counter-example: {}", self.line),
            Complaint::Claimed { by } => write!(f, "its example is claimed by {by}: {}", self.line),
            Complaint::Untested => write!(f, "has no example"),
        }
    }
}

impl fmt::Display for Example {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => f.write_str(line),
            Self::Fact(fact) => write!(f, "{fact:?}"),
        }
    }
}

#[test]
fn every_example_of_the_embedded_rules_holds() {
    let engine = Engine::new(RuleSet::embedded().unwrap()).unwrap();
    let failures: Vec<String> = engine.check_examples().iter().map(ToString::to_string).collect();
    assert!(failures.is_empty(), "{} examples fail:\n{}", failures.len(), failures.join("\n"));
}
