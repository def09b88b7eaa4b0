//! `cargo xtask score DIR`: accuracy of the diagnosis on labeled logs.
//!
//! `DIR` contains one directory per case: the logs, and `label.json` with the cause. Short excerpts and long
//! logs are scored separately, because an excerpt has no context.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use landfall_diagnose::{Engine, RuleSet};
use landfall_evidence::read::{self, Input};
use landfall_model::report::Report;
use serde::{Deserialize, Serialize};

/// Cases with fewer lines are excerpts.
const LONG: u64 = 30;

/// Minimum confidence of a confident verdict.
const CONFIDENT: f64 = 0.9;

#[derive(Deserialize)]
struct Label {
    cause: String,
    #[serde(default)]
    accept: Option<Vec<String>>,
}

#[derive(Serialize)]
struct Outcome {
    case: String,
    expected: String,
    verdict: Option<String>,
    confidence: f64,
    lines: u64,
    right: bool,
    in_top_three: bool,
    leads: Vec<String>,
}

#[derive(Default, Serialize)]
struct Score {
    cases: usize,
    top_1: f64,
    top_3: f64,
    unknown: f64,
    wrong: f64,
    wrong_and_confident: f64,
}

#[derive(Serialize)]
struct Bucket {
    from: f64,
    verdicts: usize,
    right: f64,
}

#[derive(Serialize)]
struct Summary {
    all: Score,
    short: Score,
    long: Score,
    healthy: usize,
    false_alarms: usize,
    calibration: Vec<Bucket>,
    misses: Vec<Outcome>,
}

/// Scores each case in `dir` and prints the result.
pub(crate) fn run(dir: &Path, json: bool) -> anyhow::Result<()> {
    let engine = Engine::new(RuleSet::embedded()?)?;
    let mut folders: Vec<_> = fs::read_dir(dir)
        .with_context(|| format!("list `{}`", dir.display()))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.join("label.json").is_file())
        .collect();
    folders.sort();
    anyhow::ensure!(!folders.is_empty(), "`{}` contains no labeled case", dir.display());
    let outcomes =
        folders.iter().map(|folder| outcome(&engine, folder)).collect::<anyhow::Result<Vec<_>>>()?;
    let summary = summarise(outcomes);
    if json {
        println!("{}", serde_json::to_string_pretty(&summary)?);
    } else {
        print!("{}", table(&summary));
    }
    Ok(())
}

fn outcome(engine: &Engine, folder: &Path) -> anyhow::Result<Outcome> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("read `{}`", path.display()));
    let label: Label = serde_json::from_slice(&read(&folder.join("label.json"))?)
        .with_context(|| format!("invalid label in `{}`", folder.display()))?;
    let report = diagnose(engine, folder)?;
    let accepted = |cause: Option<&str>| {
        let cause = cause.unwrap_or("none");
        cause == label.cause || label.accept.iter().flatten().any(|other| other == cause)
    };
    let verdict = report.verdict.cause.as_ref().map(ToString::to_string);
    let leads: Vec<String> =
        report.findings.iter().take(3).map(|finding| finding.cause.to_string()).collect();
    let right = accepted(verdict.as_deref());
    Ok(Outcome {
        case: folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        in_top_three: right || leads.iter().any(|lead| accepted(Some(lead))),
        right,
        expected: label.cause,
        verdict,
        confidence: report.verdict.confidence.value(),
        lines: report.sources.iter().map(|source| source.lines).sum(),
        leads,
    })
}

/// Diagnoses a case in the same way as users' files.
fn diagnose(engine: &Engine, folder: &Path) -> anyhow::Result<Report> {
    let mut inputs = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("list `{}`", folder.display()))? {
        let path = entry?.path();
        if !path.ends_with("label.json") {
            inputs.push(Input::Path(path));
        }
    }
    read::diagnose(engine, inputs, &|_| {}).with_context(|| format!("read `{}`", folder.display()))
}

fn summarise(outcomes: Vec<Outcome>) -> Summary {
    let (long, short): (Vec<&Outcome>, Vec<&Outcome>) =
        outcomes.iter().partition(|outcome| outcome.lines >= LONG);
    let calibration = [(0.0, 0.5), (0.5, 0.7), (0.7, 0.8), (0.8, CONFIDENT), (CONFIDENT, 1.01)]
        .into_iter()
        .map(|(from, to)| {
            let verdicts: Vec<&Outcome> = outcomes
                .iter()
                .filter(|outcome| outcome.verdict.is_some() && (from..to).contains(&outcome.confidence))
                .collect();
            let right = share(verdicts.iter().filter(|outcome| outcome.right).count(), verdicts.len());
            Bucket { from, verdicts: verdicts.len(), right }
        })
        .collect();
    let healthy = outcomes.iter().filter(|outcome| outcome.expected == "none");
    Summary {
        all: score(&outcomes.iter().collect::<Vec<_>>()),
        short: score(&short),
        long: score(&long),
        false_alarms: healthy.clone().filter(|outcome| outcome.verdict.is_some()).count(),
        healthy: healthy.count(),
        calibration,
        misses: outcomes.into_iter().filter(|outcome| !outcome.right).collect(),
    }
}

fn score(outcomes: &[&Outcome]) -> Score {
    let count = |test: &dyn Fn(&Outcome) -> bool| {
        share(outcomes.iter().filter(|outcome| test(outcome)).count(), outcomes.len())
    };
    Score {
        cases: outcomes.len(),
        top_1: count(&|outcome| outcome.right),
        top_3: count(&|outcome| outcome.in_top_three),
        unknown: count(&|outcome| outcome.verdict.is_none() && !outcome.right),
        wrong: count(&|outcome| outcome.verdict.is_some() && !outcome.right),
        wrong_and_confident: count(&|outcome| {
            outcome.verdict.is_some() && !outcome.right && outcome.confidence >= CONFIDENT
        }),
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of cases are small")]
fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn table(summary: &Summary) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    let rows: BTreeMap<&str, &Score> =
        BTreeMap::from([("all", &summary.all), ("long", &summary.long), ("short", &summary.short)]);
    let _ = writeln!(
        out,
        "{:6} {:>5} {:>6} {:>6} {:>8} {:>6} {:>16}",
        "", "cases", "top-1", "top-3", "unknown", "wrong", "wrong, confident"
    );
    for (name, score) in rows {
        let _ = writeln!(
            out,
            "{name:6} {:>5} {:>5.1}% {:>5.1}% {:>7.1}% {:>5.1}% {:>15.1}%",
            score.cases,
            score.top_1 * 100.0,
            score.top_3 * 100.0,
            score.unknown * 100.0,
            score.wrong * 100.0,
            score.wrong_and_confident * 100.0
        );
    }
    let _ = writeln!(out, "healthy {}, false alarms {}", summary.healthy, summary.false_alarms);
    for bucket in &summary.calibration {
        let _ = writeln!(
            out,
            "confidence from {:.1}: {:>3} verdicts, {:>5.1}% right",
            bucket.from,
            bucket.verdicts,
            bucket.right * 100.0
        );
    }
    for miss in &summary.misses {
        let verdict = miss.verdict.as_deref().unwrap_or("-");
        let _ = writeln!(
            out,
            "{} ({} lines): expected {}, got {verdict} ({:.2}); leads: {}",
            miss.case,
            miss.lines,
            miss.expected,
            miss.confidence,
            miss.leads.join(", ")
        );
    }
    out
}
