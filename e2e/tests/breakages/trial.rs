//! Breaks, diagnoses and compares; continues after a failure and reports all failures at the end.

use std::io::Write as _;
use std::time::Instant;

use anyhow::Result;
use landfall_model::report::Report;

use crate::breakage::Breakage;
use crate::fixture;

/// The result of a breakage.
pub(crate) struct Aftermath {
    pub(crate) report: Report,
    /// The logs as text, for the fixture and for debugging.
    pub(crate) log: String,
}

#[derive(Default)]
pub(crate) struct Trials {
    count: usize,
    failures: Vec<String>,
}

// === impl Trials ===

impl Trials {
    pub(crate) fn run(
        &mut self,
        breakage: &Breakage,
        mut suffer: impl FnMut(&Breakage) -> Result<Aftermath>,
    ) {
        let started = Instant::now();
        self.count += 1;
        let outcome = suffer(breakage);
        let took = started.elapsed().as_secs_f64();
        let failure = match &outcome {
            Ok(Aftermath { report, .. }) if named(report) == Some(breakage.cause.as_str()) => None,
            Ok(Aftermath { report, log }) => Some(format!("{}\n{}", told(report), fixture::trimmed(log))),
            Err(error) => Some(format!("{error:#}")),
        };
        // Progress output of a test that takes minutes.
        let verdict = if failure.is_none() { "named" } else { "FAILED" };
        let mut stderr = std::io::stderr().lock();
        let _ = writeln!(stderr, "{took:6.1} s  {verdict}  {} ({})", breakage.name, breakage.cause);
        if let Some(failure) = failure {
            let _ = writeln!(stderr, "{failure}");
            let first = failure.lines().next().unwrap_or_default();
            self.failures.push(format!("{}: expected `{}`: {first}", breakage.name, breakage.cause));
        } else if let Ok(Aftermath { log, .. }) = outcome
            && std::env::var_os("LANDFALL_SAVE_FIXTURES").is_some()
            && let Err(error) = fixture::save(breakage, &log)
        {
            self.failures.push(format!("{}: not saved: {error:#}", breakage.name));
        }
    }

    pub(crate) fn expect_health(&mut self, what: &str, report: &Report) {
        if report.verdict.cause.is_some() || report.findings.iter().any(|finding| finding.root) {
            self.failures.push(format!("{what}: not found healthy: {}", told(report)));
        }
    }

    /// Fails with one line per failure; the details were printed when it happened.
    pub(crate) fn finish(self) {
        assert!(
            self.failures.is_empty(),
            "{} of {} breakages:\n{}",
            self.failures.len(),
            self.count,
            self.failures.join("\n")
        );
    }
}

fn named(report: &Report) -> Option<&str> {
    report.verdict.cause.as_ref().map(landfall_model::Cause::as_str)
}

/// Formats the verdict and its main evidence in a few lines.
fn told(report: &Report) -> String {
    let verdict = &report.verdict;
    let mut text = format!(
        "verdict: {} at {:.2}: {}",
        named(report).unwrap_or("none"),
        verdict.confidence.value(),
        verdict.title
    );
    for finding in report.findings.iter().take(5) {
        let root = if finding.root { "root" } else { "explained" };
        text += &format!("\n  {root} {} {:.2}", finding.cause, finding.confidence.value());
        for evidence in finding.evidence.iter().take(2) {
            text += &format!("\n    {}:{} {}", evidence.source, evidence.line, evidence.text);
        }
    }
    text
}
