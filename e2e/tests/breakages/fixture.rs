//! Trimmed logs of real components.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use landfall_diagnose::{Engine, RuleSet, Stream};
use landfall_redact::{Options, Redactor};

use crate::breakage::Breakage;

/// Lines kept of each kind; kinds differ in their words.
const OF_A_KIND: usize = 2;
/// Bytes kept of a log: its end, which contains the failure.
const MAX: usize = 6 << 10;
/// A longer line is a dump.
const MAX_LINE: usize = 800;
/// Lines of every boot that do not indicate a failure.
const ORDINARY: [&str; 7] = [
    "\u{1b}[0;37m",
    "level=info",
    "\"level\":\"info\"",
    "feature_gate.go",
    "sysinfo.go",
    "systemd-journald[",
    "cgroup v1",
];

/// Returns a log without repetition and without machine-specific parts.
pub(crate) fn trimmed(log: &str) -> String {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut kept = Vec::new();
    for line in log.lines() {
        let kind: String = line.chars().filter(|c| c.is_alphabetic() || *c == ' ').collect();
        let times = seen.entry(kind).or_default();
        *times += 1;
        if *times <= OF_A_KIND && !is_ordinary(line) {
            kept.push(line.chars().take(MAX_LINE).collect::<String>());
        }
    }
    let mut bytes = 0;
    let first = kept.iter().rposition(|line| {
        bytes += line.len() + 1;
        bytes > MAX
    });
    let mut text = kept[first.map_or(0, |at| at + 1)..].join("\n");
    text.push('\n');
    let temporary = std::env::temp_dir().display().to_string();
    text.replace(&temporary, "/srv")
}

fn is_ordinary(line: &str) -> bool {
    // klog: a letter for the level, then month and day.
    let is_klog_info = |word: &str| {
        word.len() == 5 && word.starts_with('I') && word[1..].bytes().all(|byte| byte.is_ascii_digit())
    };
    ORDINARY.iter().any(|words| line.contains(words)) || line.split(' ').any(is_klog_info)
}

/// Writes the fixture, if its lines are still sufficient to diagnose the cause.
pub(crate) fn save(breakage: &Breakage, log: &str) -> Result<()> {
    let redactor = Redactor::builder().build().context("prepare the removal of secrets")?;
    let mut stream = redactor.stream(Options::default());
    let mut clean = Vec::new();
    stream.push(trimmed(log).as_bytes(), &mut clean);
    stream.finish(&mut clean);

    let engine = Engine::new(RuleSet::embedded().context("read the rules")?).context("compile the rules")?;
    let mut case = engine.open();
    let source = case.add_source("fixture", "text");
    case.add(source, engine.scan(&Stream::default(), 1, &clean));
    let verdict = case.finish().verdict;
    let cause = verdict.cause.as_ref().map(landfall_model::Cause::as_str);
    ensure!(cause == Some(breakage.cause.as_str()), "trimmed, it tells {cause:?}");

    let folder = folder().join(&breakage.cause);
    std::fs::create_dir_all(&folder).with_context(|| format!("create `{}`", folder.display()))?;
    let path = folder.join(format!("{}.log", breakage.name));
    std::fs::write(&path, clean).with_context(|| format!("write `{}`", path.display()))
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/diagnose/tests/fixtures/breakages")
}
