//! The walls of the house, checked over `cargo metadata`: a crate uses only lower levels, roles never use each other,
//! the test kit stays out of the product, and an outside crate that shapes the code around it has one home.

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
    /// `testkit`, `e2e` and `xtask`: may use anything, may be used by tests and tasks only.
    Development,
}

/// Every room and its level. A new crate is not allowed in before it stands here.
const ROOMS: &[(&str, Level)] = &[
    ("landfall-model", Level::Noun),
    ("landfall-journal", Level::Noun),
    ("landfall-hpack", Level::Noun),
    ("landfall-pki", Level::Mechanism),
    ("landfall-cri", Level::Mechanism),
    ("landfall-dbus", Level::Mechanism),
    ("landfall-fetch", Level::Mechanism),
    ("landfall-nats", Level::Mechanism),
    ("landfall-objects", Level::Mechanism),
    ("landfall-wire", Level::Mechanism),
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
    ("landfall-inplace", Level::Role),
    ("landfall-hub", Level::Role),
    ("landfall-controller", Level::Role),
    ("landfall-render", Level::Role),
    ("landfall", Level::Binary),
    ("landfall-testkit", Level::Development),
    ("landfall-e2e", Level::Development),
    ("xtask", Level::Development),
];

/// Outside crates with one home. Tests may use them anywhere.
const HOMES: &[(&str, &[&str])] = &[
    ("rcgen", &["landfall-pki"]),
    ("kube", &["landfall-cluster"]),
    ("k8s-openapi", &["landfall-cluster"]),
    ("reqwest", &["landfall-fetch"]),
    ("pgp", &["landfall-node"]),
    ("tonic", &["landfall-tunnel"]),
    ("rusqlite", &["landfall-hub"]),
    ("tokio-postgres", &["landfall-hub"]),
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
    let level = |name: &str| ROOMS.iter().find(|(room, _)| *room == name).map(|(_, level)| *level);
    let mut found = Vec::new();
    for package in &metadata.packages {
        let name = &package.name;
        let Some(own) = level(name) else {
            found.push(format!("`{name}` has no level: add it to ROOMS and to ARCHITECTURE.md"));
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
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(name: &str, uses: &str, kind: Option<&str>) -> Vec<String> {
        let dependency = Dependency { name: uses.to_owned(), kind: kind.map(str::to_owned) };
        violations(&Metadata {
            packages: vec![Package { name: name.to_owned(), dependencies: vec![dependency] }],
        })
    }

    #[test]
    fn the_walls_hold() {
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
}
