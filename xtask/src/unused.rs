//! Declared but unused dependencies: those of a crate that its sources do not name, and workspace
//! dependencies that no crate inherits.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::shell;

/// Paths of a crate's own code and of its tests.
const CODE: &[&str] = &["src", "build.rs"];
const TESTS: &[&str] = &["src", "tests", "examples", "benches"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    rename: Option<String>,
    kind: Option<String>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Manifest {
    workspace: Workspace,
}

#[derive(Deserialize)]
struct Workspace {
    dependencies: toml::Table,
}

pub(crate) fn check() -> Result<()> {
    let metadata = shell::output(shell::cargo().args(["metadata", "--format-version=1", "--locked"]))?;
    let metadata: Metadata = serde_json::from_slice(&metadata).context("read `cargo metadata`")?;
    let mut unused = Vec::new();
    let mut taken = BTreeSet::new();
    for package in metadata.packages.iter().filter(|package| metadata.workspace_members.contains(&package.id))
    {
        let folder = package.manifest_path.parent().context("find a crate's directory")?;
        let (code, tests) = (sources(folder, CODE)?, sources(folder, TESTS)?);
        for dependency in &package.dependencies {
            taken.insert(dependency.name.as_str());
            let sources = if dependency.kind.as_deref() == Some("dev") { &tests } else { &code };
            if !mentions(sources, &dependency.identifier(&metadata.packages)) {
                unused.push(format!("`{}` does not use `{}`", package.name, dependency.name));
            }
        }
    }
    let manifest = fs::read_to_string(shell::root().join("Cargo.toml")).context("read `Cargo.toml`")?;
    let manifest: Manifest = toml::from_str(&manifest).context("parse `Cargo.toml`")?;
    let left = manifest.workspace.dependencies.keys().filter(|name| !taken.contains(name.as_str()));
    unused.extend(left.map(|name| format!("no crate uses `{name}` of the workspace")));
    if unused.is_empty() { Ok(()) } else { bail!("{}", unused.join("; ")) }
}

/// Returns the text of the sources in these paths.
fn sources(folder: &Path, places: &[&str]) -> Result<String> {
    let mut text = String::new();
    for place in places {
        add_sources(&folder.join(place), &mut text)?;
    }
    Ok(text)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read `{}`", path.display()))
}

fn add_sources(path: &Path, text: &mut String) -> Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path).with_context(|| format!("read `{}`", path.display()))? {
            add_sources(&entry?.path(), text)?;
        }
    } else if path.extension().is_some_and(|extension| extension == "rs") && path.exists() {
        let source = read(path)?;
        // Modules elsewhere, such as the bodies of fuzz targets.
        for line in source.lines() {
            let module = line.trim().strip_prefix("#[path = \"").and_then(|rest| rest.strip_suffix("\"]"));
            let module = module.and_then(|module| Some(path.parent()?.join(module)));
            if let Some(module) = module.filter(|module| module.is_file()) {
                text.push_str(&read(&module)?);
            }
        }
        text.push_str(&source);
    }
    Ok(())
}

/// Returns whether the code names a crate: at the start of a path, or as a complete name in `use` or a
/// macro's path. Comments do not count.
fn mentions(code: &str, identifier: &str) -> bool {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    code.lines().filter(|line| !line.trim_start().starts_with("//")).any(|line| {
        line.match_indices(identifier).any(|(at, _)| {
            let (before, after) = (&line[..at], line[at + identifier.len()..].trim_start());
            !before.ends_with(is_word)
                && !before.ends_with("::")
                && (after.starts_with("::")
                    || before.trim_end().ends_with("use") && after.starts_with([';', ' ']))
        })
    })
}

// === impl Dependency ===

impl Dependency {
    /// Returns the name of its library in code.
    fn identifier(&self, packages: &[Package]) -> String {
        let library = || {
            let package = packages.iter().find(|package| package.name == self.name)?;
            let is_library = |target: &&Target| {
                target.kind.iter().any(|kind| kind.contains("lib") || kind == "proc-macro")
            };
            Some(package.targets.iter().find(is_library)?.name.clone())
        };
        self.rename.clone().or_else(library).unwrap_or_else(|| self.name.clone()).replace('-', "_")
    }
}

#[cfg(test)]
mod tests {
    use super::mentions;

    #[test]
    fn a_crate_is_used_where_a_path_begins_with_it() {
        for (code, expected) in [
            ("use hex::encode;", true),
            ("let text = hex::encode(bytes);", true),
            ("use hex;", true),
            ("#[derive(hex::Digits)]", true),
            ("// hex::encode", false),
            ("let hex = 1;", false),
            ("use other::hex::encode;", false),
            ("const_hex::encode(bytes)", false),
            ("hexadecimal::encode(bytes)", false),
        ] {
            assert_eq!(mentions(code, "hex"), expected, "{code}");
        }
    }
}
