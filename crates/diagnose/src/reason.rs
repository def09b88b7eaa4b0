//! The causal engine, which derives a verdict from lines.
//!
//! Lines of one cause become a finding. Evidence cleared by a later success does not count. Findings explain
//! other findings, by the catalog and by their rules. An unexplained finding is a root, and the root with the
//! highest confidence is the verdict. A stage that was opened long ago and never ended becomes a separate
//! finding if no other one explains it.

use std::collections::{BTreeMap, BTreeSet};

use landfall_model::report::{Class, FORMAT, Reasoning, Report, State, Trust, Verdict};
use landfall_model::{Cause, Confidence, Phase};

use crate::case::{Clock, SourceEntry};
use crate::findings::{self, duration};
use crate::foreign;
use crate::hits::Hits;
use crate::moment::Moment;
use crate::next;
use crate::rules::Rule;
use crate::scan::Engine;
use crate::stages::{OpenStage, Stages};
use crate::template;
use crate::weigh::{self, Weight};

/// Below this confidence a finding is a lead, not a verdict.
pub(crate) const VERDICT_FLOOR: f64 = 0.5;

/// Below this confidence a finding does not explain others.
const EXPLAINS_FLOOR: f64 = 0.5;

/// Maximum confidence from logs alone.
const CEILING: f64 = 0.98;

/// Contribution of a further kind of line, as a share of its own strength: kinds of lines are not
/// independent.
const SUPPORT: f64 = 0.3;

/// Reduction of the first root by a second, unrelated one, as a share of the second's confidence.
const RIVALRY: f64 = 0.3;

/// Confidence of a hang: it follows from the clock, not from a line.
const HANG: f64 = 0.75;

/// Maximum confidence of a single claim for a cause whose fix destroys data: a lead, never a verdict.
const UNCORROBORATED: f64 = 0.45;

/// Generality of a cause that only states a failure.
const UNRECOGNISED: u8 = 4;

/// Maximum number of findings shown; the rest is noise.
const MAX_FINDINGS: usize = 24;

/// All lines of one rule in one source.
#[derive(Debug)]
pub(crate) struct Lines<'c> {
    pub(crate) rule: &'c Rule,
    pub(crate) source: usize,
    pub(crate) hits: &'c Hits,
    pub(crate) weight: Weight,
}

/// A finding being built.
#[derive(Debug)]
pub(crate) struct Draft<'c> {
    /// Strongest first.
    pub(crate) lines: Vec<Lines<'c>>,
    pub(crate) class: Class,
    pub(crate) phase: Phase,
    pub(crate) confidence: f64,
    /// Derivation of the confidence.
    pub(crate) arithmetic: String,
    pub(crate) explains: BTreeSet<Cause>,
    /// The causes that explain it, with the reasons.
    pub(crate) explained_by: Vec<String>,
    /// The machines on which it was seen.
    pub(crate) nodes: BTreeSet<&'c str>,
}

pub(crate) type Drafts<'c> = BTreeMap<Cause, Draft<'c>>;

pub(crate) fn report(engine: &Engine, sources: &[SourceEntry], clock: Clock) -> Report {
    let stages = Stages::new(engine, sources, clock);
    let mut drafts = drafts(engine, sources, &stages);
    explain(engine, &mut drafts);

    let hung = hang(&stages, &drafts);
    let mut steps = Vec::new();
    let verdict = verdict(engine, &stages, &drafts, hung.as_ref(), &mut steps);
    let mut findings = findings::findings(engine, sources, &drafts, &verdict);
    if let Some(stage) = &hung {
        findings.insert(0, findings::hang(engine, sources, stage, hang_title(stage), verdict.confidence));
    }
    findings.truncate(MAX_FINDINGS);
    let undecided = verdict.state == State::Unknown;
    Report {
        format: FORMAT,
        last_seen: stages
            .last_event()
            .filter(|_| undecided)
            .map(|event| findings::shown(sources, event.moment.source, event.hit, 1)),
        next_steps: if undecided { next::steps(engine, sources, &stages, &drafts) } else { Vec::new() },
        reasoning: Some(Reasoning {
            verdict: steps,
            findings: findings::reasons(sources, &drafts, &findings),
            stages: stages.reasons(),
            versions: stages.versions(),
        }),
        verdict,
        findings,
        timeline: stages.timeline(),
        sources: sources.iter().map(SourceEntry::report).collect(),
    }
}

fn drafts<'c>(engine: &'c Engine, sources: &'c [SourceEntry], stages: &Stages<'_>) -> Drafts<'c> {
    let mut drafts: Drafts<'c> = BTreeMap::new();
    for (source, entry) in sources.iter().enumerate() {
        let accepted = entry.hits.iter().map(|(id, hits)| (id, hits, true));
        let foreign = entry.foreign.iter().map(|(id, hits)| (id, hits, false));
        for (id, hits, counts) in accepted.chain(foreign) {
            let Some(rule) = engine.rule(*id) else { continue };
            if weigh::out_of_place(rule, source, hits, stages) {
                continue;
            }
            let weight =
                if counts { weigh::weigh(rule, source, entry, hits, stages) } else { weigh::rejected(hits) };
            let lines = Lines { rule, source, hits, weight };
            let draft = drafts.entry(rule.cause.clone()).or_insert_with(|| Draft {
                lines: Vec::new(),
                class: rule.class,
                phase: rule.phase,
                confidence: 0.0,
                arithmetic: String::new(),
                explains: BTreeSet::new(),
                explained_by: Vec::new(),
                nodes: BTreeSet::new(),
            });
            if lines.weight.value > 0.0 {
                draft.nodes.insert(entry.node.as_str());
            }
            draft.lines.push(lines);
        }
    }
    for (cause, draft) in &mut drafts {
        draft.lines.sort_by(|a, b| {
            b.weight.value.total_cmp(&a.weight.value).then_with(|| a.rule.id.cmp(&b.rule.id))
        });
        if let Some(best) = draft.lines.first() {
            draft.class = best.rule.class;
            draft.phase = best.hits.newest().map_or(best.rule.phase, |hit| {
                let at = Moment { source: best.source, line: hit.line, time: hit.time };
                // A failed kubeadm preflight check is a failure of the operation it was about to start.
                let phase = if hit.itemised { Phase::ControlPlane } else { best.rule.phase };
                stages.phase_at(phase, at)
            });
        }
        (draft.confidence, draft.arithmetic) = combined(&draft.lines);
        if engine.is_destructive(cause) && draft.confidence > UNCORROBORATED && !draft.is_corroborated(stages)
        {
            draft.confidence = UNCORROBORATED;
            draft.arithmetic += &format!(
                "; {UNCORROBORATED} because the fix destroys data, and a single unproven source reports it"
            );
        }
    }
    doubt_rejections(&mut drafts, stages);
    drafts
}

/// Reduces findings that rest only on rejected clients to leads.
///
/// A finding that explains another one is evidence about this machine.
fn doubt_rejections(drafts: &mut Drafts<'_>, stages: &Stages<'_>) {
    let rests: BTreeSet<Cause> = drafts
        .iter()
        .filter(|(_, draft)| draft.rests_on_clients(stages))
        .map(|(cause, _)| cause.clone())
        .collect();
    for cause in &rests {
        let Some(draft) = drafts.get(cause) else { continue };
        let explained = draft.lines.iter().flat_map(|lines| &lines.rule.explains);
        let is_sign = |other: &Cause| {
            !rests.contains(other)
                && drafts.get(other).is_some_and(|other| other.confidence >= EXPLAINS_FLOOR)
        };
        if draft.confidence <= UNCORROBORATED || explained.into_iter().any(is_sign) {
            continue;
        }
        if let Some(draft) = drafts.get_mut(cause) {
            draft.confidence = UNCORROBORATED;
            draft.arithmetic += &format!(
                "; {UNCORROBORATED} because servers only report clients that they rejected, and any client can cause that"
            );
        }
    }
}

/// Combines the lines: the strongest kind counts fully, further kinds as support if they are different lines.
///
/// Two rules that match one line count once.
fn combined(lines: &[Lines<'_>]) -> (f64, String) {
    let mut rules = BTreeSet::new();
    let mut heard = BTreeSet::new();
    let mut doubt = 1.0;
    let mut factors = Vec::new();
    for lines in lines {
        let alone = heard.is_empty();
        let before = heard.len();
        heard.extend(lines.hits.iter().map(|hit| (lines.source, hit.line)));
        let says_more = heard.len() > before;
        if rules.insert(lines.rule.id.as_str()) && says_more {
            let weight = lines.weight.value;
            doubt *= 1.0 - if alone { weight } else { SUPPORT * weight };
            if weight > 0.0 {
                factors.push(if alone {
                    format!("(1 − {weight:.2})")
                } else {
                    format!("(1 − {SUPPORT} × {weight:.2})")
                });
            }
        }
    }
    let confidence = (1.0 - doubt).min(CEILING);
    let arithmetic = if factors.is_empty() {
        "0: nothing of it counts".to_owned()
    } else {
        format!("1 − {} = {:.2}, at most {CEILING}", factors.join(" × "), 1.0 - doubt)
    };
    (confidence, arithmetic)
}

/// Marks each finding that another one explains.
fn explain(engine: &Engine, drafts: &mut Drafts<'_>) {
    let catalogue = engine.rules.catalogue();
    let mut edges: BTreeMap<Cause, BTreeMap<Cause, &'static str>> = BTreeMap::new();
    for (cause, draft) in drafts.iter().filter(|(_, draft)| draft.confidence >= EXPLAINS_FLOOR) {
        let entry = catalogue.get(cause);
        let generality = entry.map_or(0, |entry| entry.generality);
        let mut found = BTreeMap::new();
        // A claim does not explain a proven finding, which would otherwise be hidden by it.
        let may_follow = |other: &Cause, rival: &Draft<'_>| {
            other != cause && rival.confidence > 0.0 && rival.trust() <= draft.trust()
        };
        for (other, rival) in drafts.iter().filter(|(other, rival)| may_follow(other, rival)) {
            let told = |list: &[Cause]| list.contains(other);
            let by_rule =
                || draft.lines.iter().any(|lines| lines.weight.value > 0.0 && told(&lines.rule.explains));
            let vaguer = || catalogue.get(other).is_some_and(|entry| entry.generality > generality);
            let why = if entry.is_some_and(|entry| told(&entry.general)) {
                "it is the broader name for the same trouble"
            } else if entry.is_some_and(|entry| told(&entry.explains)) {
                "the catalogue says that it follows"
            } else if by_rule() {
                "the line itself says so"
            } else if vaguer() {
                "it leaves more open"
            } else if points_at(rival, draft) {
                "it is what other machines see of this one"
            } else {
                continue;
            };
            found.insert(other.clone(), why);
        }
        edges.insert(cause.clone(), found);
    }
    // Of two findings that explain each other, the one with higher confidence stays.
    let surer = |a: &Cause, b: &Cause| {
        let confidence = |cause: &Cause| drafts.get(cause).map_or(0.0, |draft| draft.confidence);
        confidence(a) > confidence(b) || (confidence(a) >= confidence(b) && a < b)
    };
    let mutual = |a: &Cause, b: &Cause| edges.get(b).is_some_and(|back| back.contains_key(a));
    let mut kept = Vec::new();
    for (cause, others) in &edges {
        for (other, why) in others.iter().filter(|(other, _)| !mutual(cause, other) || surer(cause, other)) {
            kept.push((cause.clone(), other.clone(), *why));
        }
    }
    for (cause, other, why) in kept {
        if let Some(draft) = drafts.get_mut(&other) {
            draft.explained_by.push(format!("{cause}: {why}"));
        }
        if let Some(draft) = drafts.get_mut(&cause) {
            draft.explains.insert(other);
        }
    }
}

/// Returns whether all evidence of one finding is from other machines and concerns the machine of another
/// finding.
fn points_at(symptom: &Draft<'_>, cause: &Draft<'_>) -> bool {
    let elsewhere = symptom.class != Class::Terminal && symptom.nodes.is_disjoint(&cause.nodes);
    let lines = || symptom.lines.iter().filter(|lines| lines.weight.value > 0.0);
    elsewhere
        && lines().all(|lines| {
            lines.hits.newest().is_some_and(|hit| {
                cause.nodes.iter().any(|node| !node.is_empty() && hit.text.contains(&format!("{node}:")))
            })
        })
}

/// Returns the hung stage, if the clock shows one and no finding explains it.
fn hang<'c>(stages: &Stages<'c>, drafts: &Drafts<'_>) -> Option<OpenStage<'c>> {
    if drafts.values().any(|draft| draft.is_root() && draft.confidence >= VERDICT_FLOOR)
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
    drafts: &Drafts<'_>,
    hung: Option<&OpenStage<'_>>,
    steps: &mut Vec<String>,
) -> Verdict {
    let mut roots: Vec<(&Cause, &Draft<'_>)> = drafts.iter().filter(|(_, draft)| draft.is_root()).collect();
    // Proven evidence takes precedence over claims.
    let proven = |draft: &Draft<'_>| draft.confidence >= VERDICT_FLOOR && draft.trust() == Trust::Proven;
    roots.sort_by(|(_, a), (_, b)| {
        let by_rank = || b.rank().total_cmp(&a.rank()).then(a.phase.cmp(&b.phase));
        proven(b).cmp(&proven(a)).then_with(by_rank)
    });
    for (cause, draft) in &roots {
        steps.push(format!(
            "`{cause}` is explained by nothing else: a root with confidence {:.2}, rank {:.2}",
            draft.confidence,
            draft.rank()
        ));
    }
    if let Some((cause, draft)) = roots.first().filter(|(_, draft)| draft.confidence >= VERDICT_FLOOR) {
        let confidence = contested(draft, &roots[1..], steps);
        let state =
            if draft.class != Class::Terminal && stages.success(draft.trust()) >= Some(Phase::ControlPlane) {
                steps.push("bootstrap had succeeded and this may pass: degraded, not failed".to_owned());
                State::Degraded
            } else {
                State::Failed
            };
        steps.push(format!(
            "`{cause}` ranks first: it is the verdict, with confidence {:.2}",
            confidence.value()
        ));
        return Verdict {
            state,
            title: findings::title(engine, cause, draft),
            component: draft.lines.first().map(|lines| lines.rule.component.clone()),
            phase: Some(draft.phase),
            cause: Some((*cause).clone()),
            confidence,
            trust: draft.trust(),
        };
    }
    if !roots.is_empty() {
        steps.push(format!("no root reaches {VERDICT_FLOOR}: they are leads"));
    }
    if let Some(stage) = hung {
        steps.push(format!("`{}` is overdue, and nothing found explains it: it hangs", stage.name));
        return Verdict {
            state: State::Hung,
            cause: Cause::new("stage-hung").ok(),
            title: hang_title(stage),
            component: None,
            phase: Some(stage.milestone.phase),
            confidence: Confidence::new(HANG),
            trust: stage.hit.origin.trust,
        };
    }
    let (state, title, phase, confidence) = without_cause(engine, stages, &roots);
    steps.push(format!("no cause: {title}"));
    let trust = if state == State::Succeeded { stages.success_trust() } else { Trust::Claimed };
    let confidence = Confidence::new(confidence);
    Verdict { state, cause: None, title, component: None, phase, confidence, trust }
}

/// Returns the confidence of the first root, reduced by a rival.
///
/// Errors that kubeadm lists together are not rivals, because all of them are true. Neither are findings on
/// another machine, or claims next to a proven root.
fn contested(first: &Draft<'_>, others: &[(&Cause, &Draft<'_>)], steps: &mut Vec<String>) -> Confidence {
    let rival = others.iter().find(|(_, other)| {
        other.confidence >= VERDICT_FLOOR
            && other.trust() >= first.trust()
            && !(first.is_itemised() && other.is_itemised())
            && !first.nodes.is_disjoint(&other.nodes)
    });
    let Some((cause, rival)) = rival else { return Confidence::new(first.confidence) };
    let share = 1.0 - RIVALRY * rival.confidence;
    steps.push(format!(
        "`{cause}` could be the root as well: {:.2} × (1 − {RIVALRY} × {:.2})",
        first.confidence, rival.confidence
    ));
    Confidence::new(first.confidence * share)
}

/// Returns the verdict if no cause was found.
fn without_cause(
    engine: &Engine,
    stages: &Stages<'_>,
    roots: &[(&Cause, &Draft<'_>)],
) -> (State, String, Option<Phase>, f64) {
    let doubt = roots.first().map_or(0.0, |(_, draft)| draft.confidence);
    if let Some((name, phase, trust)) = stages.failed().into_iter().rev().max_by_key(|(_, _, trust)| *trust) {
        // The node may become ready before its last preparation step fails.
        if phase < Phase::ControlPlane && stages.success(trust) >= Some(Phase::ControlPlane) {
            let title = format!("The bootstrap succeeded, but `{name}` failed, and the logs do not say why");
            return (State::Degraded, title, Some(phase), 0.6);
        }
        return (State::Unknown, format!("`{name}` failed, but the logs do not say why"), Some(phase), 0.0);
    }
    if let Some(phase) = stages.success(Trust::Claimed) {
        let title = "Nothing is wrong: bootstrap succeeded".to_owned();
        return (State::Succeeded, title, Some(phase), 0.95 * (1.0 - doubt));
    }
    let open = stages.open().into_iter().max_by_key(|stage| stage.milestone.phase);
    let is_doubted = |stage: &OpenStage<'_>| {
        roots.iter().any(|(_, draft)| draft.trust_of_lead() >= stage.hit.origin.trust)
    };
    if let Some(stage) = open.filter(|stage| !is_doubted(stage)) {
        let title = "Still going; nothing wrong has been seen".to_owned();
        return (State::Running, title, Some(stage.milestone.phase), 0.6);
    }
    if roots.is_empty() && !stages.timeline().is_empty() {
        if let Some(phase) = stages.kubeadm_phase() {
            let title = "Still going; nothing wrong has been seen".to_owned();
            return (State::Running, title, Some(phase), 0.6);
        }
        if stages.kubernetes() {
            return (State::Succeeded, "Nothing wrong has been seen".to_owned(), None, 0.6);
        }
        let title = "Nothing wrong has been seen, but nothing of Kubernetes either".to_owned();
        return (State::Unknown, title, None, 0.0);
    }
    // The only known fact is that a failure occurred.
    if let Some((cause, draft)) = roots.first()
        && engine.rules.catalogue().get(cause).is_some_and(|entry| entry.generality >= UNRECOGNISED)
    {
        return (State::Unknown, findings::title(engine, cause, draft), None, 0.0);
    }
    (State::Unknown, "The logs do not show a cause".to_owned(), None, 0.0)
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

// === impl Draft ===

impl Draft<'_> {
    pub(crate) fn is_root(&self) -> bool {
        self.explained_by.is_empty() && self.confidence > 0.0
    }

    /// Proven if the lines of proven origin alone would make it a verdict.
    fn trust(&self) -> Trust {
        // The weight is that of the newest line.
        let proven =
            |lines: &&Lines<'_>| lines.hits.newest().is_some_and(|hit| hit.origin.trust == Trust::Proven);
        let best = self.lines.iter().filter(proven).map(|lines| lines.weight.value).fold(0.0, f64::max);
        if best >= VERDICT_FLOOR { Trust::Proven } else { Trust::Claimed }
    }

    /// Proven if any line that counts is.
    fn trust_of_lead(&self) -> Trust {
        let counted = self.lines.iter().filter(|lines| lines.weight.value > 0.0);
        counted.flat_map(|lines| lines.hits.iter()).map(|hit| hit.origin.trust).max().unwrap_or_default()
    }

    /// Returns whether more than one claim supports it.
    ///
    /// Proven evidence is sufficient, as is a second component or log that reports it in other words. Another
    /// line that shows a crash or an open or failed stage is also sufficient. Logs may be copies of each other,
    /// and a writer may use several names, so the same words are one claim.
    pub(crate) fn is_corroborated(&self, stages: &Stages<'_>) -> bool {
        let counted = || self.lines.iter().filter(|lines| lines.weight.value > 0.0);
        let hits = || counted().flat_map(|lines| lines.hits.iter().map(|hit| (lines.source, hit)));
        let components: BTreeSet<_> = hits().map(|(_, hit)| hit.origin.components).collect();
        let sources: BTreeSet<_> = hits().map(|(source, _)| source).collect();
        let words: BTreeSet<_> = hits().map(|(_, hit)| hit.message()).collect();
        let own: BTreeSet<_> = hits().map(|(source, hit)| (source, hit.line)).collect();
        hits().any(|(_, hit)| hit.origin.trust == Trust::Proven)
            || (components.len() > 1 || sources.len() > 1) && words.len() > 1
            || counted().any(|lines| stages.shows_trouble(lines.source, &own))
    }

    /// Returns whether only servers that rejected a client report it, on a machine with known stages and no
    /// failure.
    fn rests_on_clients(&self, stages: &Stages<'_>) -> bool {
        let counted = || self.lines.iter().filter(|lines| lines.weight.value > 0.0);
        let own: BTreeSet<_> =
            counted().flat_map(|lines| lines.hits.iter().map(|hit| (lines.source, hit.line))).collect();
        let mut hits = counted().flat_map(|lines| lines.hits.iter());
        hits.all(|hit| foreign::names_client(hit.text.as_bytes()))
            && stages.are_known()
            && !counted().any(|lines| stages.shows_failure(lines.source, &own))
    }

    /// Returns whether its strongest lines are items in kubeadm's list of all errors.
    pub(crate) fn is_itemised(&self) -> bool {
        self.lines.first().and_then(|lines| lines.hits.newest()).is_some_and(|hit| hit.itemised)
    }

    /// Sort key of roots: confidence, then finality and number of explained findings.
    fn rank(&self) -> f64 {
        let class = match self.class {
            Class::Terminal => 0.04,
            Class::Retryable => 0.0,
            Class::Symptom => -0.1,
        };
        #[expect(clippy::cast_precision_loss, reason = "a handful of causes")]
        let explains = 0.02 * self.explains.len().min(4) as f64;
        self.confidence + class + explains
    }
}
