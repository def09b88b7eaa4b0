//! In-place bootstraps: the progress of all machines, and the history of one.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::{Path, State};
use jiff::Timestamp;
use landfall_model::in_place::State as Stage;

use super::super::Served;
use super::super::api::node_name;
use super::shown::{self, ago};
use super::{Looking, Page, render};
use crate::store::{ProgressEvent, ProgressLine};

/// Maximum number of listed machines; the totals include all of them.
const ROWS: usize = 200;
/// Number of node names shown per reason.
const EXAMPLES: usize = 6;
/// Seconds without an event after which an unfinished machine is shown as silent. Large machines take 15 minutes to
/// boot.
const SILENT_AFTER: i64 = 1200;

#[derive(Template)]
#[template(path = "waves.html")]
struct WavesPage {
    place: &'static str,
    headline: String,
    stages: Vec<StageView>,
    reasons: Vec<ReasonView>,
    machines: Vec<MachineView>,
    more: usize,
}

#[derive(Template)]
#[template(path = "wave.html")]
struct WavePage {
    place: &'static str,
    name: String,
    attempt: String,
    colour: &'static str,
    stage: &'static str,
    reason: Option<String>,
    events: Vec<EventView>,
}

/// A stage's share of the bar, in thousandths.
struct StageView {
    name: &'static str,
    colour: &'static str,
    machines: usize,
    from: usize,
    length: usize,
}

/// Machines that failed for the same reason.
struct ReasonView {
    colour: &'static str,
    stage: &'static str,
    machines: usize,
    noun: &'static str,
    reason: String,
    step: String,
    retryable: bool,
    names: String,
}

struct MachineView {
    name: String,
    colour: &'static str,
    stage: &'static str,
    step: String,
    reason: Option<String>,
    heard: String,
    silent: bool,
}

struct EventView {
    colour: &'static str,
    stage: &'static str,
    step: String,
    reason: Option<String>,
    time: String,
    came: String,
}

pub(super) async fn page(State(served): State<Served>, Looking(caller): Looking) -> Page {
    let mut lines = served.hub.progress_lines(&caller).await?.nodes;
    let now = Timestamp::now();
    lines.sort_by(|one, other| {
        let key = |line: &ProgressLine| (rank(&line.event.progress.state), line.node.clone());
        key(one).cmp(&key(other))
    });
    render(&WavesPage {
        place: "waves",
        headline: headline(&lines),
        stages: stages(&lines),
        reasons: reasons(&lines),
        machines: lines.iter().take(ROWS).map(|line| MachineView::new(line, now)).collect(),
        more: lines.len().saturating_sub(ROWS),
    })
}

pub(super) async fn machine(
    State(served): State<Served>,
    Looking(caller): Looking,
    Path(name): Path<String>,
) -> Page {
    let name = node_name(name)?;
    let events = served.hub.progress(&caller, name.clone()).await?.events;
    let now = Timestamp::now();
    let last = events.last().map(|event| &event.progress);
    render(&WavePage {
        place: "waves",
        name: name.to_string(),
        attempt: last.map(|last| shown::text(&last.attempt)).unwrap_or_default(),
        colour: last.map_or("unknown", |last| colour(&last.state)),
        stage: last.map_or("", |last| words(&last.state)),
        reason: last.and_then(|last| reason(&last.state)),
        events: events.iter().map(|event| EventView::new(event, now)).collect(),
    })
}

fn headline(lines: &[ProgressLine]) -> String {
    let count =
        |wanted: fn(&Stage) -> bool| lines.iter().filter(|line| wanted(&line.event.progress.state)).count();
    let failed = count(|state| matches!(state, Stage::Failed { .. }));
    let back = count(|state| matches!(state, Stage::RolledBack { .. }));
    let done = count(|state| matches!(state, Stage::Done));
    let all = shown::counted(lines.len() as u64, "machine", "machines");
    if lines.is_empty() {
        return "No in-place bootstrap was requested".to_owned();
    }
    let mut parts = vec![format!("{done} of {all} done")];
    for (number, word) in
        [(failed, "failed"), (back, "rolled back"), (lines.len() - done - failed - back, "in progress")]
    {
        if number > 0 {
            parts.push(format!("{number} {word}"));
        }
    }
    parts.join(", ")
}

fn stages(lines: &[ProgressLine]) -> Vec<StageView> {
    let mut stages: BTreeMap<u8, (&Stage, usize)> = BTreeMap::new();
    for line in lines {
        let state = &line.event.progress.state;
        stages.entry(rank(state)).or_insert((state, 0)).1 += 1;
    }
    let mut from = 0;
    let views = stages.into_values().map(|(state, machines)| {
        // The minimum width keeps a single machine among thousands visible.
        let length = (machines * 1000 / lines.len().max(1)).max(4);
        let view = StageView { name: words(state), colour: colour(state), machines, from, length };
        from += length;
        view
    });
    views.collect()
}

fn reasons(lines: &[ProgressLine]) -> Vec<ReasonView> {
    let mut groups: BTreeMap<(u8, &str, &str), Vec<&ProgressLine>> = BTreeMap::new();
    for line in lines {
        let state = &line.event.progress.state;
        if let Stage::Failed { reason, step, .. } | Stage::RolledBack { reason, step } = state {
            groups.entry((rank(state), step, reason)).or_default().push(line);
        }
    }
    let mut views: Vec<ReasonView> =
        groups.into_values().filter_map(|lines| ReasonView::new(&lines)).collect();
    views.sort_by_key(|view| std::cmp::Reverse(view.machines));
    views
}

/// Order of the stages: those that need attention first, then those with the most remaining steps.
fn rank(state: &Stage) -> u8 {
    match state {
        Stage::Failed { .. } => 0,
        Stage::RolledBack { .. } => 1,
        Stage::Requested => 2,
        Stage::Claimed => 3,
        Stage::Preflight => 4,
        Stage::Staged => 5,
        Stage::Armed => 6,
        Stage::Applying => 7,
        Stage::Rebooting => 8,
        Stage::Verifying => 9,
        Stage::Done => 10,
    }
}

/// Returns the color, named after the node state that has it.
pub(super) fn colour(state: &Stage) -> &'static str {
    match state {
        Stage::Failed { .. } => "failed",
        Stage::RolledBack { .. } => "degraded",
        Stage::Requested | Stage::Claimed => "unknown",
        Stage::Done => "succeeded",
        _ => "running",
    }
}

pub(super) fn words(state: &Stage) -> &'static str {
    match state {
        Stage::Requested => "requested",
        Stage::Claimed => "claimed",
        Stage::Preflight => "preflight",
        Stage::Staged => "staged",
        Stage::Armed => "armed",
        Stage::Applying => "applying",
        Stage::Rebooting => "rebooting",
        Stage::Verifying => "verifying",
        Stage::Done => "done",
        Stage::Failed { .. } => "failed",
        Stage::RolledBack { .. } => "rolled back",
    }
}

fn reason(state: &Stage) -> Option<String> {
    match state {
        Stage::Failed { reason, .. } | Stage::RolledBack { reason, .. } => Some(shown::sentence(reason)),
        _ => None,
    }
}

fn step(event: &ProgressEvent) -> String {
    let of_state = match &event.progress.state {
        Stage::Failed { step, .. } | Stage::RolledBack { step, .. } => Some(step),
        _ => None,
    };
    of_state.or(event.progress.step.as_ref()).map(|step| shown::text(step)).unwrap_or_default()
}

// === impl ReasonView ===

impl ReasonView {
    fn new(lines: &[&ProgressLine]) -> Option<Self> {
        let first = lines.first()?;
        let state = &first.event.progress.state;
        let mut names =
            lines.iter().take(EXAMPLES).map(|line| line.node.as_str()).collect::<Vec<_>>().join(", ");
        if lines.len() > EXAMPLES {
            names += &format!(" and {} more", lines.len() - EXAMPLES);
        }
        Some(Self {
            colour: colour(state),
            stage: words(state),
            machines: lines.len(),
            noun: if lines.len() == 1 { "machine" } else { "machines" },
            reason: reason(state).unwrap_or_default(),
            step: step(&first.event),
            retryable: matches!(state, Stage::Failed { retryable: true, .. }),
            names,
        })
    }
}

// === impl MachineView ===

impl MachineView {
    fn new(line: &ProgressLine, now: Timestamp) -> Self {
        let state = &line.event.progress.state;
        let ended = matches!(state, Stage::Done | Stage::Failed { .. } | Stage::RolledBack { .. });
        Self {
            name: line.node.clone(),
            colour: colour(state),
            stage: words(state),
            step: step(&line.event),
            reason: reason(state),
            heard: ago(line.event.received, now),
            silent: !ended && now.duration_since(line.event.received).as_secs() > SILENT_AFTER,
        }
    }
}

// === impl EventView ===

impl EventView {
    fn new(event: &ProgressEvent, now: Timestamp) -> Self {
        let state = &event.progress.state;
        Self {
            colour: colour(state),
            stage: words(state),
            step: step(event),
            reason: reason(state),
            time: format!("{:.0}", event.progress.time),
            came: ago(event.received, now),
        }
    }
}
