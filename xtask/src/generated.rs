//! Files that are made from the code and committed, so that they can be read and reviewed. `check` fails when one is
//! stale; `cargo xtask gen` writes them anew.

use std::path::Path;

use anyhow::{Context, Result, bail};
use landfall_diagnose::{CauseEntry, RuleSet};
use landfall_model::report::{Class, Report};

use crate::shell;

const CAUSES: &str = "docs/causes";
/// Lines shown on a cause's page; the rules hold the rest.
const SHOWN_EXAMPLES: usize = 4;

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

/// Pages of causes that no longer exist.
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
        Generated { path: "docs/reference/cli.md".to_owned(), content: command_reference()? },
    ];
    let rules = RuleSet::embedded().context("read the rules")?;
    let mut index = String::from(
        "# Causes\n\nEvery root cause a verdict may name. A name never changes its meaning. Generated from `rules/` by \
         `cargo xtask gen`.\n\n| cause | what happened | phase |\n|---|---|---|\n",
    );
    for entry in rules.catalogue().iter() {
        index += &format!("| [`{0}`]({0}.md) | {1} | {2} |\n", entry.name, entry.title, entry.phase);
        let examples: Vec<&str> = rules.examples(&entry.name).collect();
        files.push(Generated {
            path: format!("{CAUSES}/{}.md", entry.name),
            content: cause_page(entry, &examples),
        });
    }
    files.push(Generated { path: format!("{CAUSES}/README.md"), content: index });
    Ok(files)
}

/// The page a report refers to.
fn cause_page(entry: &CauseEntry, examples: &[&str]) -> String {
    let class = match entry.class {
        Class::Terminal => "Trying again on the same machine cannot help.",
        Class::Retryable => "It may pass by itself.",
        Class::Symptom => "It follows from something else; look for that first.",
    };
    let mut page = format!(
        "# {}\n\n`{}` · {} · phase {}\n\n{} {class}\n\n## How we know\n\n",
        entry.title, entry.name, entry.component, entry.phase, entry.meaning
    );
    if examples.is_empty() {
        page += "No single line says so; it is concluded from what the log shows and what it does not.\n";
    } else {
        let lines: Vec<&str> = examples.iter().take(SHOWN_EXAMPLES).map(|line| line.trim()).collect();
        page += &format!("Lines such as\n\n```text\n{}\n```\n", lines.join("\n"));
    }
    page += &format!("\n## Fix\n\n{}\n\n## Prevent\n\n{}\n", entry.fix, entry.prevent);
    if !entry.explains.is_empty() {
        let follows: Vec<String> =
            entry.explains.iter().map(|cause| format!("[`{cause}`]({cause}.md)")).collect();
        page += &format!("\n## What follows from it\n\n{}\n", follows.join(", "));
    }
    if !entry.references.is_empty() {
        let references: Vec<String> =
            entry.references.iter().map(|reference| format!("- <{reference}>")).collect();
        page += &format!("\n## Sources\n\n{}\n", references.join("\n"));
    }
    page
}

fn report_schema() -> Result<String> {
    let schema = schemars::schema_for!(Report);
    Ok(serde_json::to_string_pretty(&schema).context("write the schema of reports")? + "\n")
}

/// The help texts of all commands, as the binary prints them.
fn command_reference() -> Result<String> {
    let help = |arguments: &[&str]| -> Result<String> {
        let run = ["run", "--quiet", "--locked", "--package", "landfall", "--"];
        let text = shell::output(shell::cargo().args(run).args(arguments).arg("--help"))?;
        // Trailing blanks are the terminal's business.
        let text = String::from_utf8(text).context("help is text")?;
        Ok(text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n"))
    };
    let main = help(&[])?;
    let mut page = format!("# Command line\n\nGenerated by `cargo xtask gen`.\n\n```text\n{main}\n```\n");
    for command in subcommands(&main) {
        let own = help(&[command])?;
        page += &format!("\n## landfall {command}\n\n```text\n{own}\n```\n");
        for part in subcommands(&own) {
            let text = help(&[command, part])?;
            page += &format!("\n### landfall {command} {part}\n\n```text\n{text}\n```\n");
        }
    }
    Ok(page)
}

/// The names in the `Commands:` part of a help text.
fn subcommands(help: &str) -> Vec<&str> {
    let listing = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    listing
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect()
}
