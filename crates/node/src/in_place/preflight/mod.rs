//! Checks everything that the bootstrap will need, before the node is changed.
//!
//! It writes nothing except its downloads, into the directory of the attempt.

mod checks;
mod registries;

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::in_place::credentials::{Credentials, CredentialsError};
use crate::in_place::environment::InPlaceEnvironment;
use crate::in_place::flavour::Flavour;
use crate::in_place::places::Folder;
use crate::in_place::request::Request;

pub use checks::host_facts;

/// Results of all checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub format: u32,
    pub node: String,
    pub flavour: Flavour,
    pub attempt: String,
    /// No check failed.
    pub ready: bool,
    pub checks: Vec<Check>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    pub name: String,
    pub outcome: Outcome,
    pub says: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Passed,
    /// A warning that does not block the bootstrap.
    Warned,
    /// The check failed, but the condition may pass without intervention.
    FailedForNow,
    /// The bootstrap cannot succeed with this Secret on this machine.
    Failed,
    /// A check that this one depends on failed.
    Skipped,
}

/// Runs all checks.
pub async fn examine<W: InPlaceEnvironment>(
    env: &W,
    request: &Request,
    credentials: Result<&Credentials, &CredentialsError>,
    attempt: &str,
) -> Report {
    let folder = Folder::of(attempt);
    let mut checks = checks::Checks::new(env, request, &folder);
    match credentials {
        Ok(credentials) => checks.all(credentials).await,
        Err(error) => checks.without_credentials(error).await,
    }
    let checks = checks.done();
    Report {
        format: 1,
        node: request.node.clone(),
        flavour: request.flavour,
        attempt: attempt.to_owned(),
        ready: !checks.iter().any(Check::is_failure),
        checks,
    }
}

/// Formats the report as text.
pub fn text(report: &Report) -> String {
    let mut text = format!("Preflight of {} ({})\n\n", report.node, report.flavour.name());
    for check in &report.checks {
        let mark = match check.outcome {
            Outcome::Passed => "ok",
            Outcome::Warned => "WARNING",
            Outcome::FailedForNow => "NOT YET",
            Outcome::Failed => "NO",
            Outcome::Skipped => "skipped",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{mark:>8}  {:<16} {}", check.name, check.says);
    }
    let end = if report.ready { "All checks passed." } else { "This node was not touched." };
    let _ = writeln!(text, "\n{end}");
    text
}

// === impl Report ===

impl Report {
    /// Returns all failures in one message, and whether they may pass without intervention.
    pub fn failure(&self) -> Option<(String, bool)> {
        let failed: Vec<&Check> = self.checks.iter().filter(|check| check.is_failure()).collect();
        if failed.is_empty() {
            return None;
        }
        let retryable = failed.iter().all(|check| check.outcome == Outcome::FailedForNow);
        let reasons: Vec<String> =
            failed.iter().map(|check| format!("{}: {}", check.name, check.says)).collect();
        Some((reasons.join("; "), retryable))
    }
}

// === impl Check ===

impl Check {
    fn is_failure(&self) -> bool {
        matches!(self.outcome, Outcome::Failed | Outcome::FailedForNow)
    }
}
