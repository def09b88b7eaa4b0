//! The policy of `deny.toml` for the crates built for our platform: licenses, banned crates, sources,
//! duplicates.
//!
//! cargo-deny reads the same file, but installing it takes longer than all other checks. The parts without a
//! database are therefore implemented here. Security advisories need cargo-deny and its database; without
//! them they are skipped with a message.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::{licenses, shell};

/// Crates for other platforms are neither linked nor downloaded.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
const REGISTRY: &str = "registry+";

#[derive(Deserialize)]
struct Policy {
    licenses: Licenses,
    sources: Sources,
    bans: Bans,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Entry>,
    skip: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Clone, Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// Absent for crates in this workspace.
    source: Option<String>,
}

pub(crate) fn check() -> Result<()> {
    let text = std::fs::read_to_string(shell::root().join("deny.toml")).context("read `deny.toml`")?;
    let policy: Policy = toml::from_str(&text).context("parse `deny.toml`")?;
    let violations = violations(&policy, &packages()?);
    if !violations.is_empty() {
        bail!("{}", violations.join("; "));
    }
    advisories()
}

/// Returns the crates of a build for our platform, including tests.
fn packages() -> Result<Vec<Package>> {
    // `cargo metadata` has licenses and sources, but includes crates of disabled features; `cargo tree` does
    // not.
    let metadata = ["metadata", "--format-version=1", "--locked", "--filter-platform", PLATFORM];
    let metadata = shell::output(shell::cargo().args(metadata))?;
    let metadata: Metadata = serde_json::from_slice(&metadata).context("read `cargo metadata`")?;
    let tree = ["tree", "--workspace", "--locked", "--target", PLATFORM, "--prefix=none", "--format={p}"];
    let tree = shell::output(shell::cargo().args(tree))?;
    let tree = String::from_utf8(tree).context("read `cargo tree`")?;
    let built: BTreeSet<(&str, &str)> = tree.lines().filter_map(built).collect();
    let packages = metadata.packages.into_iter();
    Ok(packages.filter(|package| built.contains(&(&package.name, &package.version))).collect())
}

/// Parses name and version in a line such as `landfall v0.1.0 (/path)`.
fn built(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split_whitespace();
    Some((words.next()?, words.next()?.strip_prefix('v')?))
}

fn violations(policy: &Policy, packages: &[Package]) -> Vec<String> {
    let mut found = Vec::new();
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for Package { name, version, license, source } in packages {
        versions.entry(name).or_default().insert(version);
        let license = license.as_deref().unwrap_or("no license");
        if !licenses::allowed(license, &policy.licenses.allow) {
            found.push(format!("{name} {version} has a license that is not allowed: {license}"));
        }
        let is_allowed = |source: &str| {
            let registry = source.strip_prefix(REGISTRY);
            registry.is_some_and(|registry| {
                policy.sources.allow_registry.iter().any(|allowed| allowed == registry)
            })
        };
        if let Some(source) = source.as_deref().filter(|source| !is_allowed(source)) {
            found.push(format!("{name} {version} is from a source that is not allowed: {source}"));
        }
        if let Some(ban) = policy.bans.deny.iter().find(|ban| ban.name == *name) {
            found.push(format!("{name} {version} is banned: {}", ban.reason));
        }
    }
    for (name, versions) in versions.into_iter().filter(|(_, versions)| versions.len() > 1) {
        let skipped = |version: &&str| policy.bans.skip.iter().any(|skip| skip.names(name, version));
        let unexplained: Vec<&str> = versions.iter().copied().filter(|version| !skipped(version)).collect();
        if unexplained.len() > 1 {
            found.push(format!("{name} has several versions: {}", unexplained.join(", ")));
        }
    }
    for skip in &policy.bans.skip {
        let is_duplicate = packages.iter().any(|package| {
            skip.names(&package.name, &package.version)
                && packages.iter().any(|other| other.name == package.name && other.version != package.version)
        });
        if !is_duplicate {
            found.push(format!("`{}` in `bans.skip` is not a duplicate; remove it", skip.name));
        }
    }
    found
}

fn advisories() -> Result<()> {
    let database = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cargo")))
        .map(|home| home.join("advisory-dbs"))
        .filter(|path| path.is_dir());
    let mut installed = Command::new("cargo-deny");
    installed.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    if database.is_none() || !installed.status().is_ok_and(|status| status.success()) {
        eprintln!("check: advisories skipped: they need cargo-deny and `cargo deny fetch`");
        return Ok(());
    }
    shell::run(shell::cargo().args(["deny", "--offline", "--log-level=warn", "check", "advisories"]))
}

// === impl Entry ===

impl Entry {
    fn names(&self, name: &str, version: &str) -> bool {
        self.name.split_once('@') == Some((name, version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        let text = r#"
            licenses.allow = ["MIT"]
            sources.allow-registry = ["https://index"]
            bans.deny = [{ crate = "ring", reason = "aws-lc-rs" }]
            bans.skip = [{ crate = "old@1.0.0", reason = "somebody" }]
        "#;
        toml::from_str(text).unwrap()
    }

    fn package(name: &str, version: &str, license: &str, source: &str) -> Package {
        let [name, version, license, source] = [name, version, license, source].map(str::to_owned);
        Package { name, version, license: Some(license), source: Some(source) }
    }

    #[test]
    fn violations_of_each_rule_are_found() {
        let good = |name, version| package(name, version, "MIT", "registry+https://index");
        let skipped = [good("old", "1.0.0"), good("old", "2.0.0")];
        for (added, expected) in [
            (vec![], ""),
            (vec![package("gpl", "1.0.0", "GPL-3.0", "registry+https://index")], "not allowed: GPL-3.0"),
            (vec![package("git", "1.0.0", "MIT", "git+https://index")], "source that is not allowed: git+"),
            (vec![good("ring", "1.0.0")], "ring 1.0.0 is banned: aws-lc-rs"),
            (vec![good("two", "1.0.0"), good("two", "2.0.0")], "two has several versions: 1.0.0, 2.0.0"),
            (vec![good("old", "3.0.0")], "old has several versions: 2.0.0, 3.0.0"),
        ] {
            let found = violations(&policy(), &[&skipped[..], &added].concat()).join("; ");
            assert!(
                found.contains(expected) && found.is_empty() == expected.is_empty(),
                "{expected}: {found}"
            );
        }
        let stale = violations(&policy(), &skipped[1..]).join("; ");
        assert_eq!(stale, "`old@1.0.0` in `bans.skip` is not a duplicate; remove it");
    }

    #[test]
    fn name_and_version_are_read_from_the_tree() {
        assert_eq!(built("landfall v0.1.0 (/src/landfall)"), Some(("landfall", "0.1.0")));
        assert_eq!(built("syn v3.0.9 (proc-macro) (*)"), Some(("syn", "3.0.9")));
        assert_eq!(built(""), None);
    }
}
