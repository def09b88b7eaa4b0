//! Workspace layer rules, checked with `cargo metadata`.
//!
//! A crate depends only on lower levels, roles never depend on each other, and the test kit is not part of
//! the product. An external crate that shapes the code around it is used by one crate only.

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::shell;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Noun,
    Mechanism,
    Evidence,
    Role,
    Binary,
    /// `testkit`, `e2e` and `xtask`: may depend on all crates; only tests and tasks may depend on them.
    Development,
}

/// All crates with their levels. A new crate must be added here.
const LEVELS: &[(&str, Level)] = &[
    ("landfall-model", Level::Noun),
    ("landfall-journal", Level::Noun),
    ("landfall-http2", Level::Noun),
    ("landfall-pki", Level::Mechanism),
    ("landfall-durable", Level::Mechanism),
    ("landfall-fetch", Level::Mechanism),
    ("landfall-net", Level::Mechanism),
    ("landfall-steps", Level::Mechanism),
    ("landfall-cluster", Level::Mechanism),
    ("landfall-diagnose", Level::Mechanism),
    ("landfall-redact", Level::Mechanism),
    ("landfall-evidence", Level::Evidence),
    ("landfall-gateway", Level::Role),
    ("landfall-gather", Level::Role),
    ("landfall-tunnel", Level::Role),
    ("landfall-agent", Level::Role),
    ("landfall-node", Level::Role),
    ("landfall-hub", Level::Role),
    ("landfall-controller", Level::Role),
    ("landfall-render", Level::Role),
    ("landfall", Level::Binary),
    ("landfall-testkit", Level::Development),
    ("landfall-e2e", Level::Development),
    ("xtask", Level::Development),
];

/// External crates restricted to certain crates. Tests may use them anywhere.
const HOMES: &[(&str, &[&str])] = &[
    ("rcgen", &["landfall-pki"]),
    ("kube", &["landfall-cluster"]),
    ("k8s-openapi", &["landfall-cluster"]),
    ("reqwest", &["landfall-fetch"]),
    ("object_store", &["landfall-fetch"]),
    ("pgp", &["landfall-node"]),
    ("rusqlite", &["landfall-hub"]),
    ("tokio-postgres", &["landfall-hub"]),
    ("tokio-tungstenite", &["landfall-net"]),
    ("tracing-subscriber", &["landfall"]),
    ("clap", &["landfall", "xtask"]),
    ("anyhow", &["landfall", "landfall-testkit", "xtask"]),
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

pub(crate) fn check() -> Result<()> {
    let json =
        shell::output(shell::cargo().args(["metadata", "--format-version=1", "--no-deps", "--locked"]))?;
    let metadata: Metadata = serde_json::from_slice(&json).context("read `cargo metadata`")?;
    let violations = violations(&metadata);
    if violations.is_empty() { Ok(()) } else { bail!("{}", violations.join("; ")) }
}

fn violations(metadata: &Metadata) -> Vec<String> {
    let level =
        |name: &str| LEVELS.iter().find(|(crate_name, _)| *crate_name == name).map(|(_, level)| *level);
    let mut found = Vec::new();
    for package in &metadata.packages {
        let name = &package.name;
        let Some(own) = level(name) else {
            found.push(format!("`{name}` has no level: add it to LEVELS and to ARCHITECTURE.md"));
            continue;
        };
        for dependency in &package.dependencies {
            let used = &dependency.name;
            let in_tests = dependency.kind.as_deref() == Some("dev");
            match level(used) {
                Some(Level::Development) if !in_tests && own != Level::Development => {
                    found.push(format!("`{name}` uses `{used}` outside tests"));
                }
                Some(Level::Development) | None => {}
                Some(other) if other > own || (other == own && own == Level::Role) => {
                    found.push(format!("`{name}` ({own:?}) uses `{used}` ({other:?})"));
                }
                Some(_) => {}
            }
            if let Some((_, homes)) = HOMES.iter().find(|(outside, _)| outside == used)
                && !in_tests
                && !homes.contains(&name.as_str())
            {
                found.push(format!("`{name}` uses `{used}`, whose home is {}", homes.join(", ")));
            }
        }
    }
    found.extend(stale(metadata));
    found
}

/// Returns entries above that are no longer needed.
fn stale(metadata: &Metadata) -> Vec<String> {
    let package = |name: &str| metadata.packages.iter().find(|package| package.name == name);
    let mut found = Vec::new();
    for (crate_name, _) in LEVELS.iter().filter(|(crate_name, _)| package(crate_name).is_none()) {
        found.push(format!("`{crate_name}` in LEVELS is not a crate of the workspace; remove it"));
    }
    for (outside, homes) in HOMES {
        let is_home = |home: &&str| package(home).is_some_and(|package| package.uses(outside));
        for home in homes.iter().filter(|home| !is_home(home)) {
            found.push(format!("`{home}` in HOMES does not use `{outside}`; remove it"));
        }
    }
    found
}

// === impl Package ===

impl Package {
    /// Returns whether the crate depends on another one outside of tests.
    fn uses(&self, name: &str) -> bool {
        self.dependencies.iter().any(|used| used.name == name && used.kind.as_deref() != Some("dev"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the violations of a single dependency without stale entries, because the rest of the workspace
    /// is missing here.
    fn judged(name: &str, uses: &str, kind: Option<&str>) -> Vec<String> {
        let dependency = Dependency { name: uses.to_owned(), kind: kind.map(str::to_owned) };
        let metadata =
            Metadata { packages: vec![Package { name: name.to_owned(), dependencies: vec![dependency] }] };
        let stale = stale(&metadata);
        violations(&metadata).into_iter().filter(|violation| !stale.contains(violation)).collect()
    }

    #[test]
    fn crates_depend_on_lower_levels_only() {
        for (name, uses, kind, allowed) in [
            ("landfall-evidence", "landfall-model", None, true),
            ("landfall-model", "landfall-evidence", None, false),
            ("landfall-diagnose", "landfall-gateway", None, false),
            ("landfall-gateway", "landfall-tunnel", None, false),
            ("landfall-evidence", "landfall-journal", None, true),
            ("landfall", "landfall-hub", None, true),
            ("landfall-hub", "landfall-testkit", None, false),
            ("landfall-hub", "landfall-testkit", Some("dev"), true),
            ("landfall-hub", "rcgen", None, false),
            ("landfall-hub", "rcgen", Some("dev"), true),
            ("landfall-pki", "rcgen", None, true),
            ("landfall-surprise", "serde", None, false),
        ] {
            let found = judged(name, uses, kind);
            assert_eq!(found.is_empty(), allowed, "{name} uses {uses} ({kind:?}): {found:?}");
        }
    }

    #[test]
    fn entries_that_nothing_needs_are_stale() {
        let rcgen = Dependency { name: "rcgen".to_owned(), kind: None };
        let pki = Package { name: "landfall-pki".to_owned(), dependencies: vec![rcgen] };
        let found = stale(&Metadata { packages: vec![pki] });
        assert!(
            found.contains(&"`landfall-hub` in LEVELS is not a crate of the workspace; remove it".to_owned())
        );
        assert!(found.contains(&"`landfall-node` in HOMES does not use `pgp`; remove it".to_owned()));
        assert!(!found.iter().any(|violation| violation.contains("pki")), "{found:?}");
    }
}
