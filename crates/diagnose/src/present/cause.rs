//! The pages of the cause catalog.

use landfall_model::Cause;
use landfall_model::report::Class;

use crate::rules::RuleSet;

/// Maximum number of example lines on a cause's page; the rules contain the rest.
const SHOWN_EXAMPLES: usize = 4;

/// Returns the page that a report refers to, as Markdown; `None` if the cause does not exist.
pub fn cause_page(rules: &RuleSet, cause: &Cause) -> Option<String> {
    let entry = rules.catalogue().get(cause)?;
    let class = match entry.class {
        Class::Terminal => "Trying again on the same machine cannot help.",
        Class::Retryable => "It may pass by itself.",
        Class::Symptom => "It follows from something else; look for that first.",
    };
    let mut page = format!(
        "# {}\n\n`{}` · {} · phase {}\n\n{} {class}\n\n## How we know\n\n",
        entry.title, entry.name, entry.component, entry.phase, entry.meaning
    );
    let lines: Vec<&str> = rules.examples(cause).take(SHOWN_EXAMPLES).map(str::trim).collect();
    if lines.is_empty() {
        page += "No single line says so; it is concluded from what the log shows and what it does not.\n";
    } else {
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
    Some(page)
}

/// Returns a Markdown table of all causes.
pub fn cause_index(rules: &RuleSet) -> String {
    let mut index = String::from(
        "# Causes\n\nEvery root cause a verdict may name. A name never changes its meaning. Generated from `rules/` by \
         `cargo xtask gen`.\n\n| cause | what happened | phase |\n|---|---|---|\n",
    );
    for entry in rules.catalogue().iter() {
        index += &format!("| [`{0}`]({0}.md) | {1} | {2} |\n", entry.name, entry.title, entry.phase);
    }
    index
}
