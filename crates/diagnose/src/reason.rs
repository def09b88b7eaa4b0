//! From lines to a verdict.
//!
//! Lines of one cause become a finding. Evidence that a later success has cleared no longer counts. Findings explain
//! findings, by the catalogue and by their rules; what nothing explains is a root, and the surest root is the verdict.
//! A stage that was opened long ago and never ended is a finding of its own when nothing else explains it.

use std::collections::{BTreeMap, BTreeSet};

use landfall_model::report::{Class, Evidence, FORMAT, Finding, Report, State, Verdict};
use landfall_model::{Cause, Confidence, Phase};

use crate::case::SourceEntry;
use crate::moment::{Moment, Time};
use crate::rules::Rule;
use crate::scan::{Engine, Hit, Hits};
use crate::stages::{OpenStage, Stages};
use crate::template;

/// Below this a finding is a lead, not a verdict.
const VERDICT_FLOOR: f64 = 0.5;

/// Below this a finding explains nothing else.
const EXPLAINS_FLOOR: f64 = 0.5;

/// Nothing read from logs alone is surer than this.
const CEILING: f64 = 0.98;

/// What a further kind of line adds, as a share of its own strength: kinds of lines are not independent witnesses.
const SUPPORT: f64 = 0.3;

/// How much a second, unrelated root takes from the first, as a share of its own confidence.
const RIVALRY: f64 = 0.3;

/// Lines of evidence shown for one finding.
const MAX_EVIDENCE: usize = 6;

/// Findings shown. The rest is noise of noise.
const MAX_FINDINGS: usize = 24;

/// Sources shorter than this say nothing by where in them a line stands.
const LONG_SOURCE: u64 = 100;

/// All lines of one rule in one source.
#[derive(Debug)]
struct Lines<'c> {
    rule: &'c Rule,
    source: usize,
    hits: &'c Hits,
    /// What they prove, after noise, clearing and position are taken into account.
    weight: f64,
}

/// A finding in the making.
#[derive(Debug)]
struct Draft<'c> {
    lines: Vec<Lines<'c>>,
    class: Class,
    phase: Phase,
    confidence: f64,
    explains: BTreeSet<Cause>,
    explained: bool,
}

pub(crate) fn report(engine: &Engine, sources: &[SourceEntry]) -> Report {
    let stages = Stages::new(engine, sources);
    let mut drafts = drafts(engine, sources, &stages);
    explain(engine, &mut drafts);

    let hung = hang(&stages, &drafts);
    let verdict = verdict(engine, &stages, &drafts, hung.as_ref());
    let mut findings = findings(engine, sources, &drafts, &verdict);
    if let Some(stage) = &hung {
        findings.insert(0, hang_finding(engine, sources, stage, verdict.confidence));
    }
    findings.truncate(MAX_FINDINGS);
    Report {
        format: FORMAT,
        verdict,
        findings,
        timeline: stages.timeline(),
        sources: sources.iter().map(SourceEntry::report).collect(),
    }
}

fn drafts<'c>(
    engine: &'c Engine,
    sources: &'c [SourceEntry],
    stages: &Stages<'_>,
) -> BTreeMap<Cause, Draft<'c>> {
    let mut drafts: BTreeMap<Cause, Draft<'c>> = BTreeMap::new();
    for (source, entry) in sources.iter().enumerate() {
        for (id, hits) in &entry.hits {
            let Some(rule) = engine.rule(*id) else { continue };
            if out_of_place(rule, source, hits, stages) {
                continue;
            }
            let lines = Lines { rule, source, hits, weight: weight(rule, source, entry, hits, stages) };
            let draft = drafts.entry(rule.cause.clone()).or_insert_with(|| Draft {
                lines: Vec::new(),
                class: rule.class,
                phase: rule.phase,
                confidence: 0.0,
                explains: BTreeSet::new(),
                explained: false,
            });
            draft.lines.push(lines);
        }
    }
    for draft in drafts.values_mut() {
        draft.lines.sort_by(|a, b| b.weight.total_cmp(&a.weight).then_with(|| a.rule.id.cmp(&b.rule.id)));
        if let Some(best) = draft.lines.first() {
            draft.class = best.rule.class;
            draft.phase = best.rule.phase;
        }
        draft.confidence = combined(&draft.lines);
    }
    drafts
}

/// Whether the lines mean nothing because what they would have to follow did not happen.
fn out_of_place(rule: &Rule, source: usize, hits: &Hits, stages: &Stages<'_>) -> bool {
    let (Some(name), Some(newest)) = (rule.after.as_deref(), hits.newest()) else { return false };
    !stages.is_after(name, Moment { source, line: newest.line, time: newest.time })
}

/// What the lines of one rule in one source prove.
fn weight(rule: &Rule, source: usize, entry: &SourceEntry, hits: &Hits, stages: &Stages<'_>) -> f64 {
    let Some(newest) = hits.newest() else { return 0.0 };
    let at = |hit: &Hit| Moment { source, line: hit.line, time: hit.time };
    let last = at(newest);
    let too_early = rule.noise_before.as_deref().is_some_and(|name| stages.is_before(name, last));
    if too_early || stages.clears(rule, last) {
        return 0.0;
    }
    let mut weight = rule.strength.value();
    if rule.persists.is_some_and(|least| passed(least, entry, hits)) {
        weight *= 0.5;
    }
    if rule.workload && stages.succeeded_before(Phase::Kubelet, last) {
        weight *= 0.4;
    }
    if rule.class != Class::Terminal {
        if stages.succeeded_before(rule.phase, last) {
            weight *= 0.5;
        }
        // Trouble that may pass and is not seen again in the second half of a long log probably has passed.
        if entry.lines >= LONG_SOURCE && newest.line < entry.lines / 2 {
            weight *= 0.7;
        }
        if newest.informational {
            weight *= 0.85;
        }
    }
    weight
}

/// Whether trouble that is normal during start was over sooner than `least` seconds, and the log went on after it.
fn passed(least: u64, entry: &SourceEntry, hits: &Hits) -> bool {
    let least = i64::try_from(least).unwrap_or(i64::MAX);
    let (Some(first), Some(newest)) = (hits.first.first(), hits.newest()) else { return false };
    let since = |later: Option<Time>, earlier: Option<Time>| {
        later.zip(earlier).and_then(|(later, earlier)| later.seconds_since(earlier))
    };
    let lasted = since(newest.time, first.time);
    let silent = since(entry.last, newest.time);
    lasted.is_some_and(|seconds| seconds < least) && silent.is_some_and(|seconds| seconds >= least / 2)
}

/// The strongest kind of line counts in full, further kinds as support, if they are other lines: two rules that match
/// one line are one witness.
fn combined(lines: &[Lines<'_>]) -> f64 {
    let mut rules = BTreeSet::new();
    let mut heard = BTreeSet::new();
    let mut doubt = 1.0;
    for lines in lines {
        let alone = heard.is_empty();
        let before = heard.len();
        heard.extend(lines.hits.iter().map(|hit| (lines.source, hit.line)));
        let says_more = heard.len() > before;
        if rules.insert(lines.rule.id.as_str()) && says_more {
            doubt *= 1.0 - if alone { lines.weight } else { SUPPORT * lines.weight };
        }
    }
    (1.0 - doubt).min(CEILING)
}

/// Marks every finding that another one explains.
fn explain(engine: &Engine, drafts: &mut BTreeMap<Cause, Draft<'_>>) {
    let catalogue = engine.rules.catalogue();
    let mut edges: BTreeMap<Cause, BTreeSet<Cause>> = BTreeMap::new();
    for (cause, draft) in drafts.iter().filter(|(_, draft)| draft.confidence >= EXPLAINS_FLOOR) {
        let entry = catalogue.get(cause);
        let told = entry.into_iter().flat_map(|entry| entry.general.iter().chain(&entry.explains));
        let by_rule =
            draft.lines.iter().filter(|lines| lines.weight > 0.0).flat_map(|lines| &lines.rule.explains);
        let generality = entry.map_or(0, |entry| entry.generality);
        let vaguer = drafts
            .keys()
            .filter(|other| catalogue.get(other).is_some_and(|other| other.generality > generality));
        let present = told
            .chain(by_rule)
            .chain(vaguer)
            .filter(|other| *other != cause && drafts.get(*other).is_some_and(|draft| draft.confidence > 0.0))
            .cloned();
        edges.insert(cause.clone(), present.collect());
    }
    // Two findings that explain each other: the surer one stays.
    let surer = |a: &Cause, b: &Cause| {
        let confidence = |cause: &Cause| drafts.get(cause).map_or(0.0, |draft| draft.confidence);
        confidence(a) > confidence(b) || (confidence(a) >= confidence(b) && a < b)
    };
    let mutual = |a: &Cause, b: &Cause| edges.get(b).is_some_and(|back| back.contains(a));
    let kept: BTreeMap<Cause, BTreeSet<Cause>> = edges
        .iter()
        .map(|(cause, others)| {
            let others =
                others.iter().filter(|other| !mutual(cause, other) || surer(cause, other)).cloned().collect();
            (cause.clone(), others)
        })
        .collect();
    for (cause, others) in kept {
        for other in &others {
            if let Some(draft) = drafts.get_mut(other) {
                draft.explained = true;
            }
        }
        if let Some(draft) = drafts.get_mut(&cause) {
            draft.explains = others;
        }
    }
}

/// The stage that hangs, when the clock shows that it does and no finding explains it.
fn hang<'c>(stages: &Stages<'c>, drafts: &BTreeMap<Cause, Draft<'_>>) -> Option<OpenStage<'c>> {
    if drafts.values().any(|draft| !draft.explained && draft.confidence >= VERDICT_FLOOR)
        || !stages.failed().is_empty()
    {
        return None;
    }
    let overdue = |stage: &OpenStage<'_>| {
        let patience = stage.milestone.patience.and_then(|seconds| i64::try_from(seconds).ok());
        stage.age.zip(patience).is_some_and(|(age, patience)| age >= patience)
    };
    stages.open().into_iter().filter(overdue).max_by_key(|stage| (stage.milestone.phase, stage.hit.line))
}

fn verdict(
    engine: &Engine,
    stages: &Stages<'_>,
    drafts: &BTreeMap<Cause, Draft<'_>>,
    hung: Option<&OpenStage<'_>>,
) -> Verdict {
    let rank = |draft: &Draft<'_>| {
        let class = match draft.class {
            Class::Terminal => 0.04,
            Class::Retryable => 0.0,
            Class::Symptom => -0.1,
        };
        #[expect(clippy::cast_precision_loss, reason = "a handful of causes")]
        let explains = 0.02 * draft.explains.len().min(4) as f64;
        draft.confidence + class + explains
    };
    let mut roots: Vec<(&Cause, &Draft<'_>)> =
        drafts.iter().filter(|(_, draft)| !draft.explained && draft.confidence > 0.0).collect();
    roots.sort_by(|a, b| rank(b.1).total_cmp(&rank(a.1)).then(a.1.phase.cmp(&b.1.phase)));

    if let Some((cause, draft)) = roots.first().filter(|(_, draft)| draft.confidence >= VERDICT_FLOOR) {
        let rival = roots.get(1).map_or(0.0, |(_, rival)| rival.confidence);
        let rivalry = if rival >= VERDICT_FLOOR { 1.0 - RIVALRY * rival } else { 1.0 };
        let confidence = Confidence::new(draft.confidence * rivalry);
        let state = if draft.class != Class::Terminal && stages.success() >= Some(Phase::ControlPlane) {
            State::Degraded
        } else {
            State::Failed
        };
        return Verdict {
            state,
            title: title(engine, cause, draft),
            component: draft.lines.first().map(|lines| lines.rule.component.clone()),
            phase: Some(draft.phase),
            cause: Some((*cause).clone()),
            confidence,
        };
    }
    if let Some(stage) = hung {
        return Verdict {
            state: State::Hung,
            cause: Cause::new("stage-hung").ok(),
            title: hang_title(stage),
            component: None,
            phase: Some(stage.milestone.phase),
            confidence: Confidence::new(0.75),
        };
    }
    let plain = |state, title: &str, phase, confidence| Verdict {
        state,
        cause: None,
        title: title.to_owned(),
        component: None,
        phase,
        confidence: Confidence::new(confidence),
    };
    let doubt = roots.first().map_or(0.0, |(_, draft)| draft.confidence);
    if let Some((name, milestone)) = stages.failed().into_iter().next() {
        let title = format!("`{name}` failed, but the logs do not say why");
        return plain(State::Unknown, &title, Some(milestone.phase), 0.0);
    }
    if let Some(phase) = stages.success() {
        return plain(
            State::Succeeded,
            "Nothing is wrong: bootstrap succeeded",
            Some(phase),
            0.95 * (1.0 - doubt),
        );
    }
    if let Some(stage) = stages.open().into_iter().max_by_key(|stage| stage.milestone.phase)
        && roots.is_empty()
    {
        return plain(
            State::Running,
            "Still going; nothing wrong has been seen",
            Some(stage.milestone.phase),
            0.6,
        );
    }
    if roots.is_empty() && !stages.timeline().is_empty() {
        return plain(State::Succeeded, "Nothing wrong has been seen", None, 0.6);
    }
    plain(State::Unknown, "The logs do not show a cause", None, 0.0)
}

fn findings(
    engine: &Engine,
    sources: &[SourceEntry],
    drafts: &BTreeMap<Cause, Draft<'_>>,
    verdict: &Verdict,
) -> Vec<Finding> {
    let mut order: Vec<(&Cause, &Draft<'_>)> = drafts.iter().collect();
    order.sort_by(|a, b| {
        let key = |cause: &Cause, draft: &Draft<'_>| (verdict.cause.as_ref() != Some(cause), draft.explained);
        key(a.0, a.1).cmp(&key(b.0, b.1)).then(b.1.confidence.total_cmp(&a.1.confidence))
    });
    order
        .into_iter()
        .map(|(cause, draft)| {
            let entry = engine.rules.catalogue().get(cause);
            let named = verdict.cause.as_ref() == Some(cause);
            Finding {
                title: title(engine, cause, draft),
                root: !draft.explained && draft.confidence > 0.0,
                confidence: if named { verdict.confidence } else { Confidence::new(draft.confidence) },
                class: draft.class,
                explains: draft.explains.iter().cloned().collect(),
                evidence: evidence(sources, draft),
                fix: fix(draft).or_else(|| entry.map(|entry| entry.fix.clone())).unwrap_or_default(),
                reference: format!("docs/causes/{cause}.md"),
                cause: cause.clone(),
            }
        })
        .collect()
}

fn evidence(sources: &[SourceEntry], draft: &Draft<'_>) -> Vec<Evidence> {
    // The newest line of each kind first (it has the last word), then the first ones of the strongest kind.
    let newest = draft.lines.iter().filter_map(|lines| Some((lines, lines.hits.newest()?)));
    let oldest = draft.lines.iter().take(1).flat_map(|lines| lines.hits.iter().map(move |hit| (lines, hit)));
    let mut seen = BTreeSet::new();
    newest
        .chain(oldest)
        .filter(|(lines, hit)| seen.insert((lines.source, hit.line)))
        .take(MAX_EVIDENCE)
        .map(|(lines, hit)| shown(sources, lines.source, hit))
        .collect()
}

fn shown(sources: &[SourceEntry], source: usize, hit: &Hit) -> Evidence {
    let name = sources.get(source).map_or("", |entry| entry.name.as_str());
    let source = match &hit.process {
        Some(process) if !name.contains(process.as_str()) => format!("{name}:{process}"),
        _ => name.to_owned(),
    };
    Evidence { source, line: hit.line, time: hit.time.and_then(Time::timestamp), text: hit.text.clone() }
}

fn title(engine: &Engine, cause: &Cause, draft: &Draft<'_>) -> String {
    let by_rule = draft
        .lines
        .iter()
        .take(1)
        .find_map(|lines| template::fill(lines.rule.title.as_deref()?, &lines.hits.newest()?.captures));
    by_rule
        .or_else(|| engine.rules.catalogue().get(cause).map(|entry| entry.title.clone()))
        .unwrap_or_else(|| cause.to_string())
}

fn fix(draft: &Draft<'_>) -> Option<String> {
    draft
        .lines
        .iter()
        .take(1)
        .find_map(|lines| template::fill(lines.rule.fix.as_deref()?, &lines.hits.newest()?.captures))
}

fn hang_title(stage: &OpenStage<'_>) -> String {
    let age = stage.age.map(|age| format!(" for {}", duration(age))).unwrap_or_default();
    let waits = stage
        .milestone
        .waits_for
        .as_deref()
        .and_then(|text| template::fill(text, &stage.hit.captures))
        .map(|text| format!(", waiting for {text}"))
        .unwrap_or_default();
    format!("`{}` has been open{age}{waits}", stage.name)
}

fn hang_finding(
    engine: &Engine,
    sources: &[SourceEntry],
    stage: &OpenStage<'_>,
    confidence: Confidence,
) -> Finding {
    let cause = Cause::new("stage-hung").expect("a well-formed name");
    let entry = engine.rules.catalogue().get(&cause);
    Finding {
        title: hang_title(stage),
        root: true,
        confidence,
        class: Class::Retryable,
        explains: Vec::new(),
        evidence: vec![shown(sources, stage.source, stage.hit)],
        fix: entry.map(|entry| entry.fix.clone()).unwrap_or_default(),
        reference: format!("docs/causes/{cause}.md"),
        cause,
    }
}

fn duration(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}
