use anyhow::{Context as _, anyhow};
use clap::{Args, ValueEnum};
use landfall_diagnose::{CauseEntry, RuleSet, present};
use landfall_model::Cause;
use serde_json::json;

use crate::exit::{Exit, Failure};
use crate::output;

/// Describe a cause, or list all causes
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall explain                         (all causes)
  landfall explain dns-resolution-failure")]
pub(crate) struct Explain {
    /// The cause a verdict names; none: list them
    #[arg(value_name = "CAUSE")]
    cause: Option<String>,

    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// For programs
    Json,
}

// === impl Explain ===

impl Explain {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let rules = RuleSet::embedded().context("read the built-in rules")?;
        let text = match (&self.cause, self.output) {
            (None, Format::Text) => list(&rules),
            (None, Format::Json) => json_text(&rules.catalogue().iter().map(described).collect())?,
            (Some(name), format) => {
                let unknown = || Failure::new(unknown(&rules, name), "`landfall explain` lists all causes");
                let cause = Cause::new(name.as_str()).map_err(|_| unknown())?;
                let entry = rules.catalogue().get(&cause).ok_or_else(unknown)?;
                match format {
                    Format::Json => json_text(&described(entry))?,
                    Format::Text => present::cause_page(&rules, &cause).ok_or_else(unknown)?,
                }
            }
        };
        output::print(&text)?;
        Ok(Exit::Done)
    }
}

fn list(rules: &RuleSet) -> String {
    let names = || rules.catalogue().iter().map(|entry| entry.name.as_str().chars().count());
    let width = names().max().unwrap_or(0);
    rules
        .catalogue()
        .iter()
        .map(|entry| format!("{:width$}  {}\n", entry.name.as_str(), entry.title))
        .collect()
}

fn described(entry: &CauseEntry) -> serde_json::Value {
    json!({
        "cause": entry.name,
        "title": entry.title,
        "meaning": entry.meaning,
        "component": entry.component,
        "phase": entry.phase,
        "class": entry.class,
        "fix": entry.fix,
        "prevent": entry.prevent,
        "explains": entry.explains,
        "references": entry.references,
    })
}

fn json_text(value: &serde_json::Value) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value).context("write the cause")? + "\n")
}

/// Returns a message for a cause that this binary does not know, because it may come from another version.
pub(super) fn unknown_cause(name: &str) -> anyhow::Result<Option<String>> {
    let rules = RuleSet::embedded().context("read the built-in rules")?;
    let known = Cause::new(name).is_ok_and(|cause| rules.catalogue().get(&cause).is_some());
    Ok((!known).then(|| format!("{}; `landfall explain` lists all causes", unknown(&rules, name))))
}

/// Returns an error with suggestions: causes that share a word with the given name.
fn unknown(rules: &RuleSet, name: &str) -> anyhow::Error {
    let words: Vec<&str> = name.split(['-', '_', ' ']).filter(|word| word.len() > 2).collect();
    let near: Vec<String> = rules
        .catalogue()
        .iter()
        .filter(|entry| words.iter().any(|word| entry.name.as_str().contains(word)))
        .map(|entry| format!("`{}`", entry.name))
        .take(5)
        .collect();
    if near.is_empty() {
        anyhow!("there is no cause `{name}`")
    } else {
        anyhow!("there is no cause `{name}`; there is {}", near.join(", "))
    }
}
