//! The page of one node: its verdict with evidence, progress, other findings and history.

use askama::Template;
use axum::extract::{Path, Query, State};
use jiff::Timestamp;
use landfall_model::Phase;
use landfall_model::report::{Evidence, Finding, PhaseOutcome, Report, Source, TimelineEntry};
use serde::Deserialize;

use super::super::Served;
use super::super::api::node_name;
use super::shown::{self, ago};
use super::{Looking, Page, render, waves};
use crate::access::Wish;
use crate::hub::NodeView;
use crate::machine::Part;
use crate::problem::Problem;
use crate::proof;
use crate::store::{BundleRecord, FleetQuery, Turn};

/// Number of evidence lines shown initially.
const SHOWN_EVIDENCE: usize = 12;
/// Number of lines of the same message shown before and after a line of evidence.
const SHOWN_AROUND: usize = 20;
/// Number of shown verdict changes.
const SHOWN_TURNS: u32 = 30;
/// Width of an open phase, in thousandths.
const OPEN: i64 = 120;

#[derive(Deserialize)]
pub(super) struct Parameters {
    turn: Option<u64>,
}

#[derive(Template)]
#[template(path = "node.html")]
struct NodePage {
    place: &'static str,
    name: String,
    past: bool,
    /// Time of the last report of a node that should have reported again.
    silent: Option<String>,
    state: &'static str,
    title: String,
    heading: String,
    cause: Option<String>,
    others: u64,
    /// State of its in-place bootstrap: the color and the label.
    wave: Option<(&'static str, &'static str)>,
    facts: Vec<String>,
    meaning: Option<String>,
    fix: Option<String>,
    evidence: Vec<EvidenceView>,
    seen_last: Option<EvidenceView>,
    next_steps: Vec<String>,
    timeline: Vec<PhaseView>,
    span: Option<String>,
    others_seen: Vec<(&'static str, Vec<FindingView>)>,
    parts: Vec<(&'static str, Vec<PartView>)>,
    machine: Vec<(&'static str, String)>,
    history: Vec<TurnView>,
    bundles: Vec<BundleView>,
    sources: Vec<SourceView>,
    /// Whether the user may delete the node.
    operator: bool,
}

/// A line of evidence; the matched part is between `start` and `end`.
struct EvidenceView {
    source: String,
    line: u64,
    time: Option<String>,
    before: Vec<String>,
    start: String,
    focus: String,
    end: String,
    after: Vec<String>,
    count: u64,
    link: Option<String>,
}

struct FindingView {
    title: String,
    cause: String,
    fix: String,
    ruled_out: Option<String>,
    evidence: Vec<EvidenceView>,
}

/// A unit or a probe of the newest bundle.
struct PartView {
    name: String,
    state: Option<String>,
    bad: bool,
    text: String,
    link: String,
}

/// A phase on the chart, in thousandths of the chart's width.
struct PhaseView {
    name: &'static str,
    outcome: &'static str,
    from: i64,
    length: i64,
    took: Option<String>,
}

struct TurnView {
    turn: u64,
    state: &'static str,
    title: String,
    when: String,
    late: bool,
    shown: bool,
}

struct BundleView {
    digest: String,
    files: u64,
    size: String,
    when: String,
    cut: bool,
}

struct SourceView {
    name: String,
    kind: String,
    lines: u64,
    error: Option<String>,
}

pub(super) async fn page(
    State(served): State<Served>,
    Looking(caller): Looking,
    Path(name): Path<String>,
    Query(parameters): Query<Parameters>,
) -> Page {
    let name = node_name(name)?;
    let view = served.hub.node(&caller, &name).await?;
    let history = served.hub.history(&caller, &name, None, SHOWN_TURNS).await?;
    let past = match parameters.turn {
        Some(turn) if turn != view.node.turn => Some(served.hub.past_report(&caller, &name, turn).await?),
        _ => None,
    };
    let turn = if past.is_some() { parameters.turn } else { Some(view.node.turn) };
    let report = past.as_ref().unwrap_or(&view.report);
    let entry = report.verdict.cause.as_ref().and_then(|cause| served.hub.cause(cause));
    let others = match &report.verdict.cause {
        Some(cause) => {
            let query = FleetQuery { cause: Some(cause.clone()), ..FleetQuery::default() };
            served.hub.fleet(&caller, query).await?.found.saturating_sub(u64::from(past.is_none()))
        }
        None => 0,
    };
    // An unreadable bundle does not affect the rest of the page.
    let parts = match view.bundles.first() {
        Some(newest) => served.hub.machine(&caller, newest).await.unwrap_or_default(),
        None => None,
    };
    let wave = served.hub.store.progress(name.clone()).await.map_err(Problem::from)?;
    let wave =
        wave.last().map(|event| (waves::colour(&event.progress.state), waves::words(&event.progress.state)));
    let now = Timestamp::now();
    let bundle = view.bundles.first().map(|bundle| bundle.digest.as_str());
    let named = report.findings.iter().find(|finding| Some(&finding.cause) == report.verdict.cause.as_ref());
    let verdict = &report.verdict;
    render(&NodePage {
        place: "",
        name: name.to_string(),
        past: past.is_some(),
        silent: shown::is_silent(&view.node.line, now).then(|| ago(view.node.line.last_seen, now)),
        state: verdict.state.name(),
        title: shown::text(&verdict.title),
        heading: shown::sentence(&verdict.title),
        cause: verdict.cause.as_ref().map(ToString::to_string),
        others,
        wave,
        facts: facts(report),
        meaning: entry.map(|entry| shown::sentence(&entry.meaning)),
        fix: named.map(|finding| shown::sentence(&finding.fix)).filter(|fix| !fix.is_empty()),
        evidence: named.map(|finding| evidence(finding, bundle)).unwrap_or_default(),
        seen_last: report.last_seen.as_ref().map(|line| EvidenceView::new(line, bundle)),
        next_steps: report.next_steps.iter().map(|step| shown::sentence(step)).collect(),
        timeline: timeline(&report.timeline, now),
        span: span(&report.timeline),
        others_seen: others_seen(report, named, bundle),
        parts: parts
            .iter()
            .flat_map(|machine| {
                [
                    ("Units", PartView::all(&machine.units, bundle)),
                    ("Probes", PartView::all(&machine.probes, bundle)),
                ]
            })
            .collect(),
        machine: machine(&view, now),
        history: history.iter().map(|line| TurnView::new(line, turn, now)).collect(),
        bundles: view.bundles.iter().map(|bundle| BundleView::new(bundle, now)).collect(),
        sources: report.sources.iter().map(SourceView::new).collect(),
        operator: caller.may(Wish::Operate).is_ok(),
    })
}

fn facts(report: &Report) -> Vec<String> {
    let verdict = &report.verdict;
    let mut facts = Vec::new();
    facts.extend(verdict.phase.map(|phase| format!("phase {phase}")));
    facts.extend(verdict.component.as_ref().map(|component| format!("component {}", shown::text(component))));
    if verdict.cause.is_some() {
        facts.push(format!("confidence {}", verdict.confidence));
        facts.push(format!("{} evidence", verdict.trust.name()));
    }
    facts
}

fn evidence(finding: &Finding, bundle: Option<&str>) -> Vec<EvidenceView> {
    finding.evidence.iter().take(SHOWN_EVIDENCE).map(|line| EvidenceView::new(line, bundle)).collect()
}

/// The other findings in sections: consequences, independent findings and past ones.
fn others_seen(
    report: &Report,
    named: Option<&Finding>,
    bundle: Option<&str>,
) -> Vec<(&'static str, Vec<FindingView>)> {
    let (mut follows, mut beside, mut ruled_out) = (Vec::new(), Vec::new(), Vec::new());
    for finding in &report.findings {
        if named.is_some_and(|named| named.cause == finding.cause) {
            continue;
        }
        let list = if finding.confidence.value() <= 0.0 {
            &mut ruled_out
        } else if named.is_some_and(|named| named.explains.contains(&finding.cause)) {
            &mut follows
        } else {
            &mut beside
        };
        list.push(FindingView {
            title: shown::sentence(&finding.title),
            cause: finding.cause.to_string(),
            fix: shown::sentence(&finding.fix),
            ruled_out: finding.ruled_out.as_deref().map(shown::sentence),
            evidence: evidence(finding, bundle),
        });
    }
    let heading = if named.is_some() { "Also seen" } else { "Leads" };
    vec![("Follows from it", follows), (heading, beside), ("Ruled out", ruled_out)]
}

/// Returns the phases to scale if their times are known, otherwise evenly spaced in their order.
fn timeline(entries: &[TimelineEntry], now: Timestamp) -> Vec<PhaseView> {
    let starts = entries.iter().filter_map(|entry| entry.started);
    let ends = entries.iter().filter_map(|entry| entry.ended.or(entry.started));
    let (first, last) = (starts.min(), ends.max());
    let scale = match (first, last) {
        (Some(first), Some(last)) if last > first => {
            Some((first, last.duration_since(first).as_millis().max(1)))
        }
        _ => None,
    };
    // An open phase has no length yet and gets the remaining width, so that it is visible.
    let open = entries.iter().any(|entry| entry.started.is_some() && entry.ended.is_none());
    let width = if open { 1000 - OPEN } else { 1000 };
    let count = i64::try_from(entries.len()).unwrap_or(1).max(1);
    let place = |number: usize| i64::try_from(number).unwrap_or(0) * 1000 / count;
    let views = entries.iter().enumerate().map(|(number, entry)| {
        let (from, length) = match (scale, entry.started) {
            (Some((first, whole)), Some(started)) => {
                let at = |time: Timestamp| {
                    i64::try_from(time.duration_since(first).as_millis() * i128::from(width) / whole)
                        .unwrap_or(0)
                        .clamp(0, width)
                };
                let end = entry.ended.map_or(1000, at);
                let from = at(started).min(994);
                (from, (end - from).max(6))
            }
            _ => (place(number), 1000 / count),
        };
        let took = match (entry.started, entry.ended) {
            (Some(started), Some(ended)) => Some(shown::age(ended.duration_since(started).as_secs())),
            (Some(started), None) => {
                Some(format!("{} so far", shown::age(now.duration_since(started).as_secs())))
            }
            _ => None,
        };
        let outcome = match entry.outcome {
            PhaseOutcome::Ok => "ok",
            PhaseOutcome::Failed => "failed",
            PhaseOutcome::Open => "open",
        };
        PhaseView { name: Phase::name(entry.phase), outcome, from, length, took }
    });
    views.collect()
}

fn span(entries: &[TimelineEntry]) -> Option<String> {
    let first = entries.iter().filter_map(|entry| entry.started).min()?;
    let last = entries.iter().filter_map(|entry| entry.ended.or(entry.started)).max()?;
    Some(format!("{first:.0} to {last:.0}"))
}

fn machine(view: &NodeView, now: Timestamp) -> Vec<(&'static str, String)> {
    let node = &view.node;
    let identity = &node.identity;
    // These values are inserted as markup, because some contain times.
    let plain = |text: &Option<String>| text.as_ref().map(|text| shown::markup(text));
    let mut machine = Vec::new();
    for (term, value) in [
        ("System", plain(&identity.os)),
        ("Architecture", plain(&identity.architecture)),
        ("Provider id", plain(&identity.provider_id)),
        ("Machine id", plain(&identity.machine_id)),
        ("Boot id", plain(&identity.boot_id)),
    ] {
        machine.extend(value.map(|value| (term, value)));
    }
    machine.push(("First report", format!("{} ago", ago(node.first_seen, now))));
    machine.push(("Last report", format!("{} ago", ago(node.line.last_seen, now))));
    machine.push(("Boots", node.boots.to_string()));
    machine.push(("Reports", node.reports.to_string()));
    machine.push(("Signed", if node.signed { "yes" } else { "no" }.to_owned()));
    let skew = node.line.last_seen.duration_since(node.time).as_secs();
    if skew.abs() > 60 {
        let way = if skew > 0 { "behind" } else { "ahead" };
        machine.push(("Clock", format!("{} {way}, or the report waited", shown::age(skew.abs()))));
    }
    machine
}

/// Returns the link to a line of evidence in a bundle, if the bundle can contain it.
fn jump(line: &Evidence, digest: &str) -> Option<String> {
    let words: String = line.text.chars().take(proof::MAX_WORDS).collect();
    let (source, words) = (shown::escaped(&line.source), shown::escaped(&words));
    let link = format!("/logs/{digest}/find?source={source}&line={}&text={words}", line.line);
    proof::is_written(&line.source).then_some(link)
}

// === impl EvidenceView ===

impl EvidenceView {
    fn new(line: &Evidence, bundle: Option<&str>) -> Self {
        let (text, focus) = (shown::text(&line.text), shown::text(&line.focus));
        let (start, focus, end) = match text.split_once(&focus) {
            Some((start, end)) if !focus.is_empty() => (start.to_owned(), focus, end.to_owned()),
            _ => (text, String::new(), String::new()),
        };
        let around =
            |lines: &[String]| lines.iter().take(SHOWN_AROUND).map(|line| shown::text(line)).collect();
        Self {
            source: shown::text(proof::path_in_bundle(&line.source).unwrap_or(&line.source)),
            line: line.line,
            time: line.time.map(|time| format!("{time:.0}")),
            before: around(&line.before),
            start,
            focus,
            end,
            after: around(&line.after),
            count: line.count,
            link: bundle.and_then(|digest| jump(line, digest)),
        }
    }
}

// === impl PartView ===

impl PartView {
    fn all(parts: &[Part], bundle: Option<&str>) -> Vec<Self> {
        let view = |part: &Part| Self {
            name: shown::text(&part.name),
            state: part.state().map(shown::text),
            bad: part.is_bad(),
            text: shown::text(&part.text),
            link: format!("/logs/{}?path={}", bundle.unwrap_or_default(), shown::escaped(&part.path)),
        };
        parts.iter().map(view).collect()
    }
}

// === impl TurnView ===

impl TurnView {
    fn new(turn: &Turn, shown_turn: Option<u64>, now: Timestamp) -> Self {
        Self {
            turn: turn.turn,
            state: turn.state.name(),
            title: shown::sentence(&turn.title),
            when: format!("{} ago", ago(turn.received, now)),
            late: turn.late,
            shown: Some(turn.turn) == shown_turn,
        }
    }
}

// === impl BundleView ===

impl BundleView {
    fn new(bundle: &BundleRecord, now: Timestamp) -> Self {
        Self {
            digest: bundle.digest.clone(),
            files: bundle.files,
            size: shown::size(bundle.bytes),
            when: format!("{} ago", ago(bundle.received, now)),
            cut: bundle.cut,
        }
    }
}

// === impl SourceView ===

impl SourceView {
    fn new(source: &Source) -> Self {
        Self {
            name: shown::text(&source.name),
            kind: shown::text(&source.kind),
            lines: source.lines,
            error: source.error.as_deref().map(shown::text),
        }
    }
}
