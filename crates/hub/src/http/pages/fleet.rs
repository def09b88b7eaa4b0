//! The fleet view: failures by cause, then nodes.

use askama::Template;
use axum::extract::{Query, State};
use jiff::Timestamp;
use landfall_model::report::State as NodeState;
use landfall_model::{Cause, Phase};

use super::super::Served;
use super::super::api::FleetParameters;
use super::shown::{self, ago};
use super::{Looking, Page, render};
use crate::store::{Fleet, Group, NodeLine};

/// Number of nodes on one page.
const ROWS: u32 = 100;

#[derive(Template)]
#[template(path = "fleet.html")]
struct FleetPage<'a> {
    place: &'static str,
    headline: String,
    total: u64,
    parts: Vec<Part>,
    groups: Vec<GroupView>,
    nodes_heading: String,
    nodes: Vec<NodeView>,
    states: Vec<&'static str>,
    phases: Vec<&'static str>,
    state: &'a str,
    phase: &'a str,
    cause: &'a str,
    q: &'a str,
    fix: Option<String>,
    filtered: bool,
    previous: Option<String>,
    next: Option<String>,
}

/// A state's share of the bar, in thousandths.
struct Part {
    state: &'static str,
    nodes: u64,
    from: u64,
    length: u64,
}

struct GroupView {
    state: &'static str,
    nodes: u64,
    noun: &'static str,
    title: String,
    cause: Option<String>,
    phases: String,
    first: String,
    names: String,
    fix: Option<String>,
    link: String,
    chosen: bool,
}

struct NodeView {
    name: String,
    state: &'static str,
    title: String,
    cause: Option<String>,
    phase: &'static str,
    since: String,
    heard: String,
    silent: bool,
}

pub(super) async fn page(
    State(served): State<Served>,
    Looking(caller): Looking,
    Query(parameters): Query<FleetParameters>,
) -> Page {
    let mut query = parameters.query()?;
    query.limit = ROWS;
    let offset = query.offset;
    let fix = |cause: Option<&Cause>| {
        cause.and_then(|cause| served.hub.cause(cause)).map(|entry| shown::sentence(&entry.fix))
    };
    let fix_of_chosen = fix(query.cause.as_ref());
    let fleet = served.hub.fleet(&caller, query).await?;
    let now = Timestamp::now();
    let filtered = [&parameters.state, &parameters.cause, &parameters.phase, &parameters.q]
        .iter()
        .any(|value| !value.is_empty());
    let nodes_heading = if filtered {
        format!("{} of {}", fleet.found, shown::counted(fleet.total, "node", "nodes"))
    } else {
        "Nodes".to_owned()
    };
    let more = u64::from(offset) + (fleet.nodes.len() as u64) < fleet.found;
    render(&FleetPage {
        place: "fleet",
        headline: headline(&fleet),
        total: fleet.total,
        parts: parts(&fleet),
        groups: fleet
            .groups
            .iter()
            .map(|group| GroupView::new(group, fix(group.cause.as_ref()), &parameters.cause, now))
            .collect(),
        nodes_heading,
        nodes: fleet.nodes.iter().map(|node| NodeView::new(node, now)).collect(),
        states: NodeState::ALL.map(NodeState::name).to_vec(),
        phases: Phase::ALL.map(Phase::name).to_vec(),
        state: &parameters.state,
        phase: &parameters.phase,
        cause: &parameters.cause,
        q: &parameters.q,
        fix: fix_of_chosen,
        filtered,
        previous: (offset > 0).then(|| link(&parameters, offset.saturating_sub(ROWS))),
        next: more.then(|| link(&parameters, offset.saturating_add(ROWS))),
    })
}

/// Returns a summary of the fleet in one sentence.
fn headline(fleet: &Fleet) -> String {
    let of = |wanted: &[NodeState]| -> u64 {
        fleet.states.iter().filter(|count| wanted.contains(&count.state)).map(|count| count.nodes).sum()
    };
    let trouble = of(&Group::TROUBLE);
    let (running, unknown) = (of(&[NodeState::Running]), of(&[NodeState::Unknown]));
    let all = shown::counted(fleet.total, "node", "nodes");
    if fleet.total == 0 {
        "No node has reported yet".to_owned()
    } else if trouble > 0 {
        let reasons = shown::counted(fleet.groups.len() as u64, "cause", "causes");
        let verb = if trouble == 1 { "is" } else { "are" };
        format!("{trouble} of {all} {verb} in trouble: {reasons}")
    } else if running + unknown > 0 {
        format!("{} of {all} in progress, no problem", running + unknown)
    } else if fleet.total == 1 {
        "The one node made it".to_owned()
    } else {
        format!("All {all} made it")
    }
}

fn parts(fleet: &Fleet) -> Vec<Part> {
    let mut from = 0;
    let total = fleet.total.max(1);
    let parts = fleet.states.iter().map(|count| {
        // The minimum width keeps a single node among thousands visible.
        let length = (count.nodes * 1000 / total).max(4);
        let part = Part { state: count.state.name(), nodes: count.nodes, from, length };
        from += length;
        part
    });
    parts.collect()
}

fn link(parameters: &FleetParameters, offset: u32) -> String {
    let mut link = format!("/?offset={offset}");
    for (name, value) in [
        ("state", &parameters.state),
        ("cause", &parameters.cause),
        ("phase", &parameters.phase),
        ("q", &parameters.q),
    ] {
        if !value.is_empty() {
            link += &format!("&{name}={}", shown::escaped(value));
        }
    }
    link + "#nodes"
}

// === impl GroupView ===

impl GroupView {
    fn new(group: &Group, fix: Option<String>, chosen: &str, now: Timestamp) -> Self {
        let cause = group.cause.as_ref().map_or("none", Cause::as_str);
        let state =
            if group.cause.is_none() { format!("&state={}", group.state.name()) } else { String::new() };
        let more = group.nodes.saturating_sub(group.examples.len() as u64);
        let mut names = group.examples.join(", ");
        if more > 0 {
            names += &format!(" and {more} more");
        }
        Self {
            state: group.state.name(),
            nodes: group.nodes,
            noun: if group.nodes == 1 { "node" } else { "nodes" },
            title: shown::sentence(&group.title),
            cause: group.cause.as_ref().map(ToString::to_string),
            phases: group.phases.iter().map(|phase| phase.name()).collect::<Vec<_>>().join(", "),
            first: ago(group.first, now),
            names,
            fix,
            link: format!("/?cause={cause}{state}#nodes"),
            chosen: cause == chosen,
        }
    }
}

// === impl NodeView ===

impl NodeView {
    fn new(node: &NodeLine, now: Timestamp) -> Self {
        Self {
            name: node.name.clone(),
            state: node.state.name(),
            title: shown::sentence(&node.title),
            cause: node.cause.as_ref().map(ToString::to_string),
            phase: node.phase.map_or("", Phase::name),
            since: ago(node.since, now),
            heard: ago(node.last_seen, now),
            silent: shown::is_silent(node, now),
        }
    }
}
