//! Findings in the report: titles, evidence, fixes and reasons.

use std::collections::BTreeSet;

use landfall_model::report::{Class, Evidence, Finding, FindingReason, LineReason, Trust, Verdict};
use landfall_model::{Cause, Confidence};

use crate::case::SourceEntry;
use crate::hits::Hit;
use crate::moment::Time;
use crate::reason::{Draft, Drafts, Lines};
use crate::scan::Engine;
use crate::stages::OpenStage;
use crate::template;

/// Maximum number of evidence lines per finding.
const MAX_EVIDENCE: usize = 6;

/// Maximum number of line kinds in the reasons of one finding.
const MAX_REASONS: usize = 12;

pub(crate) fn findings(
    engine: &Engine,
    sources: &[SourceEntry],
    drafts: &Drafts<'_>,
    verdict: &Verdict,
) -> Vec<Finding> {
    let mut order: Vec<(&Cause, &Draft<'_>)> = drafts.iter().collect();
    order.sort_by(|a, b| {
        let key = |cause: &Cause, draft: &Draft<'_>| {
            (verdict.cause.as_ref() != Some(cause), !draft.explained_by.is_empty())
        };
        key(a.0, a.1).cmp(&key(b.0, b.1)).then(b.1.confidence.total_cmp(&a.1.confidence))
    });
    let several = sources.iter().map(|entry| entry.node.as_str()).collect::<BTreeSet<_>>().len() > 1;
    order
        .into_iter()
        .map(|(cause, draft)| {
            let entry = engine.rules.catalogue().get(cause);
            let named = verdict.cause.as_ref() == Some(cause);
            let over = draft.lines.first().filter(|_| draft.confidence <= 0.0);
            Finding {
                title: title(engine, cause, draft),
                root: draft.is_root(),
                confidence: if named { verdict.confidence } else { Confidence::new(draft.confidence) },
                class: draft.class,
                explains: draft.explains.iter().cloned().collect(),
                evidence: evidence(sources, draft),
                nodes: draft
                    .nodes
                    .iter()
                    .filter(|node| several && !node.is_empty())
                    .map(|node| (*node).to_owned())
                    .collect(),
                fix: filled(draft, |lines| lines.rule.fix.as_deref())
                    .or_else(|| entry.map(|entry| entry.fix.clone()))
                    .unwrap_or_default(),
                ruled_out: over.and_then(|lines| lines.weight.because.first().cloned()),
                reference: format!("docs/causes/{cause}.md"),
                cause: cause.clone(),
            }
        })
        .collect()
}

pub(crate) fn title(engine: &Engine, cause: &Cause, draft: &Draft<'_>) -> String {
    filled(draft, |lines| lines.rule.title.as_deref())
        .or_else(|| engine.rules.catalogue().get(cause).map(|entry| entry.title.clone()))
        .unwrap_or_else(|| cause.to_string())
}

/// Fills in the text of the strongest kind of line, with the names from the newest line that has all of them.
fn filled<'c>(draft: &Draft<'c>, text: impl Fn(&Lines<'c>) -> Option<&'c str>) -> Option<String> {
    let best = draft.lines.first()?;
    let template = text(best)?;
    let newest_first = best.hits.last.iter().rev().chain(best.hits.first.iter().rev());
    newest_first.into_iter().find_map(|hit| template::fill(template, &hit.captures))
}

fn evidence(sources: &[SourceEntry], draft: &Draft<'_>) -> Vec<Evidence> {
    // The newest line of each kind first, then the first ones of the strongest kind. Lines that do not count
    // are shown only if no line does.
    let counts = |lines: &&Lines<'_>| lines.weight.value > 0.0 || draft.confidence <= 0.0;
    let newest = draft.lines.iter().filter(counts).filter_map(|lines| Some((lines, lines.hits.newest()?)));
    let oldest = draft.lines.iter().take(1).flat_map(|lines| lines.hits.iter().map(move |hit| (lines, hit)));
    let mut seen = BTreeSet::new();
    let mut counted = BTreeSet::new();
    newest
        .chain(oldest)
        .filter(|(lines, hit)| seen.insert((lines.source, hit.line)))
        .take(MAX_EVIDENCE)
        .map(|(lines, hit)| {
            // The count applies to the kind, so only one line of the kind shows it.
            let first = counted.insert((lines.source, lines.rule.id.as_str()));
            shown(sources, lines.source, hit, if first { lines.hits.count } else { 1 })
        })
        .collect()
}

pub(crate) fn shown(sources: &[SourceEntry], source: usize, hit: &Hit, count: u64) -> Evidence {
    let name = sources.get(source).map_or("", |entry| entry.name.as_str());
    let source = match &hit.stream {
        Some(stream) if !name.contains(stream.as_str()) => format!("{name}:{stream}"),
        _ => name.to_owned(),
    };
    Evidence {
        source,
        line: hit.line,
        time: hit.time.and_then(Time::timestamp),
        text: hit.text.clone(),
        trust: hit.origin.trust,
        focus: hit.focus.clone(),
        before: hit.before.clone(),
        after: hit.after.clone(),
        count,
    }
}

pub(crate) fn hang(
    engine: &Engine,
    sources: &[SourceEntry],
    stage: &OpenStage<'_>,
    title: String,
    confidence: Confidence,
) -> Finding {
    let cause = Cause::new("stage-hung").expect("a well-formed name");
    let entry = engine.rules.catalogue().get(&cause);
    Finding {
        title,
        root: true,
        confidence,
        class: Class::Retryable,
        explains: Vec::new(),
        evidence: vec![shown(sources, stage.source, stage.hit, 1)],
        nodes: Vec::new(),
        fix: entry.map(|entry| entry.fix.clone()).unwrap_or_default(),
        ruled_out: None,
        reference: format!("docs/causes/{cause}.md"),
        cause,
    }
}

pub(crate) fn reasons(
    sources: &[SourceEntry],
    drafts: &Drafts<'_>,
    findings: &[Finding],
) -> Vec<FindingReason> {
    let reasons = findings.iter().filter_map(|finding| {
        let draft = drafts.get(&finding.cause)?;
        let lines = draft.lines.iter().take(MAX_REASONS).map(|lines| LineReason {
            rule: lines.rule.id.clone(),
            source: sources.get(lines.source).map(|entry| entry.name.clone()).unwrap_or_default(),
            line: lines.hits.newest().map_or(0, |hit| hit.line),
            count: lines.hits.count,
            strength: lines.rule.strength.value(),
            trust: lines.hits.newest().map_or_else(Trust::default, |hit| hit.origin.trust),
            weight: rounded(lines.weight.value),
            because: lines.weight.because.clone(),
        });
        Some(FindingReason {
            cause: finding.cause.clone(),
            lines: lines.collect(),
            arithmetic: draft.arithmetic.clone(),
            explained_by: draft.explained_by.clone(),
        })
    });
    reasons.collect()
}

/// Rounds to three digits; more would suggest false precision.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

pub(crate) fn duration(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}
