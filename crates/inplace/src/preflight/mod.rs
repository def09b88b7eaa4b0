//! Would it work? Asked of everything that will be needed, before the node is touched. It writes nothing but what it
//! downloads, into the attempt's own folder.

mod checks;
mod registries;

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::credentials::{Credentials, CredentialsError};
use crate::flavour::Flavour;
use crate::places::Folder;
use crate::request::Request;
use crate::world::World;

pub use checks::host_facts;

/// Everything that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub format: u32,
    pub node: String,
    pub flavour: Flavour,
    pub attempt: String,
    /// Nothing stands in the way.
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
    /// Worth knowing; it does not stop anything.
    Warned,
    /// Something must change first, and may by itself.
    FailedForNow,
    /// It will not work with this Secret on this machine.
    Failed,
    /// What it builds on failed.
    Skipped,
}

/// Looks at everything.
pub async fn examine<W: World>(
    world: &W,
    request: &Request,
    credentials: Result<&Credentials, &CredentialsError>,
    attempt: &str,
) -> Report {
    let folder = Folder::of(attempt);
    let mut checks = checks::Checks::new(world, request, &folder);
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

/// For people.
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
    let end = if report.ready { "Nothing stands in the way." } else { "This node was not touched." };
    let _ = writeln!(text, "\n{end}");
    text
}

// === impl Report ===

impl Report {
    /// Everything that stands in the way, and whether it may go away by itself.
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
