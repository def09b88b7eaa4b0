//! Rule files of node-problem-detector's system log monitor.
//!
//! They contain patterns and reasons, but no causes, fixes or relations. Each reason becomes a separate cause
//! with the strength stated in the file: `temporary` problems are leads, `permanent` ones count.

use std::collections::BTreeMap;

use landfall_model::report::Class;
use landfall_model::{Cause, InvalidCause, Phase};
use regex_syntax::hir::{Hir, HirKind};
use serde::Deserialize;

use crate::catalogue::CauseEntry;
use crate::literals::WINDOW;
use crate::pattern::MatchSpec;
use crate::rules::{File, RuleSpec, Strength};

/// Maximum number of alternatives per pattern.
const MAX_ALTERNATIVES: usize = 64;

#[derive(Debug, thiserror::Error)]
pub(crate) enum NpdError {
    #[error("the file is not the configuration of a log monitor")]
    Json(#[source] serde_json::Error),
    #[error("the reason `{reason}` cannot be a cause")]
    Reason { reason: String, source: InvalidCause },
    #[error("the pattern of `{reason}` is not an expression")]
    Pattern { reason: String, source: Box<regex_syntax::Error> },
    #[error("the pattern of `{reason}` contains no fixed text of at least {WINDOW} bytes")]
    NoLiteral { reason: String },
}

#[derive(Deserialize)]
struct Monitor {
    plugin: Option<String>,
    #[serde(default, rename = "pluginConfig")]
    plugin_config: PluginConfig,
    source: Option<String>,
    rules: Vec<Problem>,
}

#[derive(Default, Deserialize)]
struct PluginConfig {
    /// The program whose entries the `journald` plugin reads.
    source: Option<String>,
}

#[derive(Deserialize)]
struct Problem {
    r#type: Kind,
    reason: String,
    pattern: String,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Temporary,
    Permanent,
}

pub(crate) fn read(name: &str, text: &str) -> Result<File, NpdError> {
    let monitor: Monitor = serde_json::from_str(text).map_err(NpdError::Json)?;
    let component = monitor.source.clone().unwrap_or_else(|| "node-problem-detector".to_owned());
    let mut file = File::default();
    file.component = Some(component.clone());
    file.sources = vec![monitor.reads().to_owned()];
    let mut causes: BTreeMap<Cause, CauseEntry> = BTreeMap::new();
    for (index, problem) in monitor.rules.into_iter().enumerate() {
        let cause = Cause::new(kebab(&problem.reason))
            .map_err(|source| NpdError::Reason { reason: problem.reason.clone(), source })?;
        let tree = regex_syntax::parse(&problem.pattern).map_err(|source| NpdError::Pattern {
            reason: problem.reason.clone(),
            source: Box::new(source),
        })?;
        let literals =
            literals(&tree).ok_or_else(|| NpdError::NoLiteral { reason: problem.reason.clone() })?;
        let (class, strength) = match problem.r#type {
            Kind::Temporary => (Class::Symptom, Strength::Weak),
            Kind::Permanent => (Class::Terminal, Strength::Fair),
        };
        // The operator chose the pattern, and node-problem-detector applies it to the whole message.
        let matches =
            MatchSpec { any: literals, regex: Some(problem.pattern), anywhere: true, ..MatchSpec::default() };
        file.rule.push(RuleSpec::plain(format!("{name}#{index}"), cause.clone(), matches, strength));
        causes.entry(cause.clone()).or_insert_with(|| CauseEntry {
            name: cause,
            title: format!("{component} reports {}", problem.reason),
            meaning: format!("A rule file of node-problem-detector names this reason: {}.", problem.reason),
            component: component.clone(),
            phase: Phase::Kubelet,
            class,
            fix: "Read the line in the evidence.".to_owned(),
            prevent: String::new(),
            generality: 0,
            destructive: false,
            workload: true,
            references: Vec::new(),
            general: Vec::new(),
            explains: Vec::new(),
        });
    }
    file.cause = causes.into_values().collect();
    Ok(file)
}

// === impl Monitor ===

impl Monitor {
    /// Returns the component whose log it reads, by its name in `sources.toml`.
    fn reads(&self) -> &'static str {
        match (self.plugin.as_deref(), self.plugin_config.source.as_deref()) {
            (Some("kmsg"), _) | (_, Some("kernel")) => "kernel",
            (_, Some("systemd")) => "systemd",
            (_, Some("kubelet")) => "kubelet",
            (_, Some("docker" | "dockerd" | "containerd" | "crio")) => "runtime",
            _ => "any",
        }
    }
}

/// `OOMKilling` → `oom-killing`
fn kebab(reason: &str) -> String {
    let chars: Vec<char> = reason.chars().collect();
    let mut name = String::new();
    for (index, c) in chars.iter().enumerate() {
        let after_lower = index > 0 && (chars[index - 1].is_lowercase() || chars[index - 1].is_ascii_digit());
        let ends_acronym = index > 0 && chars.get(index + 1).is_some_and(|next| next.is_lowercase());
        if c.is_uppercase() && (after_lower || ends_acronym) {
            name.push('-');
        }
        name.extend(c.to_lowercase());
    }
    name
}

/// Returns texts of which each match contains at least one, long enough to search for; the longest available.
fn literals(tree: &Hir) -> Option<Vec<String>> {
    match tree.kind() {
        HirKind::Literal(literal) => {
            let text = String::from_utf8(literal.0.to_vec()).ok()?;
            (text.len() >= WINDOW).then(|| vec![text])
        }
        HirKind::Concat(parts) => {
            let shortest = |texts: &Vec<String>| texts.iter().map(String::len).min();
            parts.iter().filter_map(literals).max_by_key(shortest)
        }
        HirKind::Alternation(parts) => {
            let each: Option<Vec<Vec<String>>> = parts.iter().map(literals).collect();
            each.map(|texts| texts.concat()).filter(|texts| texts.len() <= MAX_ALTERNATIVES)
        }
        HirKind::Capture(capture) => literals(&capture.sub),
        HirKind::Repetition(repetition) if repetition.min > 0 => literals(&repetition.sub),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::RuleSet;
    use crate::{Engine, Stream, embedded};

    const MONITOR: &str = r#"{
        "plugin": "kmsg", "source": "kernel-monitor", "conditions": [],
        "rules": [
            {"type": "temporary", "reason": "TaskHung", "pattern": "task [\\S ]+:\\w+ blocked for more than \\w+ seconds\\."},
            {"type": "permanent", "condition": "ReadonlyFilesystem", "reason": "FilesystemIsReadOnly", "pattern": "Remounting filesystem read-only please"}
        ]}"#;

    /// Returns an engine with only the monitor's rules.
    fn engine() -> Engine {
        let sources = embedded::FILES.iter().copied().find(|(name, _)| *name == "sources.toml").unwrap();
        Engine::new(RuleSet::parse([sources, ("kernel-monitor.json", MONITOR)]).unwrap()).unwrap()
    }

    #[test]
    fn reasons_become_causes() {
        for (reason, name) in [
            ("OOMKilling", "oom-killing"),
            ("TaskHung", "task-hung"),
            ("Ext4Error", "ext4-error"),
            ("IOError", "io-error"),
        ] {
            assert_eq!(kebab(reason), name);
        }
    }

    #[test]
    fn a_monitor_can_be_used_as_it_is() {
        let engine = engine();
        let mut case = engine.open();
        let source = case.add_source("dmesg", "console");
        let log = b"[ 1.0] INFO: task etcd:12 blocked for more than 120 seconds.\n[ 2.0] Remounting filesystem read-only please\n";
        case.add(source, engine.scan(&Stream::default(), 1, log));
        let report = case.finish();
        assert_eq!(report.verdict.cause.unwrap().as_str(), "filesystem-is-read-only");
        assert_eq!(report.findings.len(), 2);
    }

    #[test]
    fn kernel_monitor_rejects_lines_of_other_programs() {
        let engine = engine();
        let verdict = |process: &str| {
            let mut case = engine.open();
            let source = case.add_source("journal", "journal-text");
            let log = format!("Jan 02 03:04:05 n1 {process}: Remounting filesystem read-only please\n");
            case.add(source, engine.scan(&Stream::default(), 1, log.as_bytes()));
            case.finish().verdict.cause
        };
        assert!(verdict("kernel").is_some());
        assert_eq!(verdict("sshd[12]"), None);
        assert_eq!(verdict("kubelet[12]"), None);
    }

    #[test]
    fn a_pattern_without_fixed_text_is_refused() {
        let text = r#"{"rules":[{"type":"temporary","reason":"Any","pattern":".*"}]}"#;
        assert!(matches!(read("x", text), Err(NpdError::NoLiteral { .. })));
    }
}
