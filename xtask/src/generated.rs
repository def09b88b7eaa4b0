//! Generated files that are committed for reading and review.
//!
//! `check` fails if one is stale; `cargo xtask gen` regenerates them.

mod commands;
mod exit_codes;
mod kinds;
mod metrics;
mod settings;

use std::path::Path;

use anyhow::{Context, Result, bail};
use landfall_diagnose::{RuleSet, present};
use landfall_model::report::Report;

use crate::shell;

const CAUSES: &str = "docs/causes";

struct Generated {
    path: String,
    content: String,
}

pub(crate) fn check() -> Result<()> {
    let root = shell::root();
    let files = all()?;
    let is_fresh = |file: &Generated| {
        std::fs::read_to_string(root.join(&file.path)).is_ok_and(|content| content == file.content)
    };
    let mut stale: Vec<String> =
        files.iter().filter(|file| !is_fresh(file)).map(|file| file.path.clone()).collect();
    stale.extend(left_over(&files)?);
    if stale.is_empty() { Ok(()) } else { bail!("stale: {}; hint: run `cargo xtask gen`", stale.join(", ")) }
}

pub(crate) fn write() -> Result<()> {
    let files = all()?;
    for path in left_over(&files)? {
        std::fs::remove_file(shell::root().join(path))
            .context("remove a page that is no longer generated")?;
    }
    for file in files {
        let path = shell::root().join(file.path);
        let directory = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(directory).with_context(|| format!("make `{}`", directory.display()))?;
        std::fs::write(&path, file.content).with_context(|| format!("write `{}`", path.display()))?;
    }
    Ok(())
}

/// Returns pages of causes that no longer exist.
fn left_over(files: &[Generated]) -> Result<Vec<String>> {
    let folder = shell::root().join(CAUSES);
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut left = Vec::new();
    for entry in std::fs::read_dir(&folder).context("list the pages of causes")? {
        let path = format!("{CAUSES}/{}", entry?.file_name().to_string_lossy());
        if !files.iter().any(|file| file.path == path) {
            left.push(path);
        }
    }
    Ok(left)
}

fn all() -> Result<Vec<Generated>> {
    let mut files = vec![
        Generated { path: "docs/reference/report.schema.json".to_owned(), content: report_schema()? },
        Generated { path: "docs/reference/configuration.md".to_owned(), content: settings::page()? },
        Generated { path: "docs/reference/metrics.md".to_owned(), content: metrics::page()? },
        Generated { path: "docs/reference/redacted-kinds.md".to_owned(), content: kinds::page()? },
        Generated { path: "docs/concepts/redaction.md".to_owned(), content: kinds::concept()? },
        Generated { path: "docs/reference/hub.openapi.json".to_owned(), content: hub_document()? },
    ];
    let commands = commands::all()?;
    for (name, content) in [("cli", commands::page(&commands)), ("exit-codes", exit_codes::page(&commands)?)]
    {
        files.push(Generated { path: format!("docs/reference/{name}.md"), content });
    }
    let rules = RuleSet::embedded().context("read the rules")?;
    for entry in rules.catalogue().iter() {
        let page = present::cause_page(&rules, &entry.name).context("a cause without a page")?;
        files.push(Generated { path: format!("{CAUSES}/{}.md", entry.name), content: page });
    }
    files.push(Generated { path: format!("{CAUSES}/README.md"), content: present::cause_index(&rules) });
    Ok(files)
}

fn report_schema() -> Result<String> {
    let schema = schemars::schema_for!(Report);
    Ok(serde_json::to_string_pretty(&schema).context("write the schema of reports")? + "\n")
}

fn hub_document() -> Result<String> {
    let document = landfall_hub::openapi_document();
    Ok(serde_json::to_string_pretty(&document).context("write the hub's API document")? + "\n")
}
