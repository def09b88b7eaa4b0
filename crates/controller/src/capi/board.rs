//! The fleet view of a management cluster without a hub.
//!
//! It shows the conditions of Machines, and the content of the nodes' `BootstrapReport`s. It has the format
//! of the hub's `/api/v1/fleet`, so that one page shows both.

use std::collections::BTreeMap;

use jiff::Timestamp;
use landfall_cluster::Cluster;
use landfall_model::report::{State, Trust};
use serde_json::{Value, json};

use super::condition::{self, Condition, Status, basis};
use super::heard::Heard;
use super::machine::Machine;
use super::observe::{LookError, machines, reports, shape};
use super::pair::pair;

/// Node names shown per group.
const EXAMPLES: usize = 5;

/// Filter for the nodes to show.
#[derive(Clone, Debug, Default)]
pub struct Query {
    pub state: Option<String>,
    pub cause: Option<String>,
    pub limit: usize,
}

/// One Machine in the fleet view.
#[derive(Clone, Debug)]
struct Line {
    namespace: String,
    name: String,
    state: State,
    trust: Trust,
    cause: Option<String>,
    title: String,
    component: Option<String>,
    phase: Option<&'static str>,
    since: Timestamp,
}

pub async fn board(cluster: &Cluster, query: &Query) -> Result<Value, LookError> {
    let shape = shape(cluster).await?;
    let machines = machines(cluster, shape).await?;
    let heard = reports(cluster).await?.into_iter().filter_map(|found| found.heard).collect();
    Ok(fleet(&machines, heard, query))
}

/// Returns the fleet view of the observed Machines and reports.
pub fn fleet(machines: &[Machine], heard: Vec<Heard>, query: &Query) -> Value {
    let mut heard = pair(machines, heard).heard;
    let lines =
        machines.iter().enumerate().filter_map(|(place, machine)| Line::new(machine, heard.remove(&place)));
    let mut lines: Vec<Line> = lines.collect();
    let rank = |state: State| State::ALL.iter().position(|other| *other == state);
    let key = |line: &Line| (rank(line.state), line.namespace.clone(), line.name.clone());
    lines.sort_by_cached_key(key);
    let states: Vec<Value> = State::ALL
        .into_iter()
        .map(|state| (state, lines.iter().filter(|line| line.state == state).count()))
        .filter(|(_, count)| *count > 0)
        .map(|(state, count)| json!({"state": state.name(), "nodes": count}))
        .collect();
    let fits = |line: &&Line| {
        query.state.as_ref().is_none_or(|state| line.state.name() == state)
            && query.cause.as_ref().is_none_or(|cause| line.cause.as_ref() == Some(cause))
    };
    let found: Vec<&Line> = lines.iter().filter(fits).collect();
    let shown: Vec<Value> = found.iter().take(query.limit).map(|line| line.json()).collect();
    json!({
        "total": lines.len(), "states": states, "groups": groups(&lines), "found": found.len(), "nodes": shown,
    })
}

/// Returns the failures, one group per cause, largest first.
fn groups(lines: &[Line]) -> Vec<Value> {
    let mut groups: BTreeMap<Option<&String>, Vec<&Line>> = BTreeMap::new();
    for line in
        lines.iter().filter(|line| matches!(line.state, State::Failed | State::Hung | State::Degraded))
    {
        groups.entry(line.cause.as_ref()).or_default().push(line);
    }
    let mut groups: Vec<(Option<&String>, Vec<&Line>)> = groups.into_iter().collect();
    groups.sort_by_key(|(_, lines)| std::cmp::Reverse(lines.len()));
    let group = |(cause, lines): (Option<&String>, Vec<&Line>)| {
        let first = lines.first()?;
        let examples: Vec<String> =
            lines.iter().take(EXAMPLES).map(|line| format!("{}/{}", line.namespace, line.name)).collect();
        Some(json!({
            "cause": cause, "title": first.title, "state": first.state.name(), "nodes": lines.len(),
            "examples": examples,
        }))
    };
    groups.into_iter().filter_map(group).collect()
}

// === impl Line ===

impl Line {
    /// Creates the line of a Machine, or `None` if it has neither a report nor a condition. The node's own
    /// report has more details than the condition. The condition takes precedence if it is newer, or if the
    /// Node is ready in spite of the report.
    fn new(machine: &Machine, heard: Option<Heard>) -> Option<Self> {
        let (namespace, name) = (machine.id.namespace.clone(), machine.id.name.clone());
        let condition = machine.condition.as_ref();
        let counts = |heard: &Heard| {
            condition
                .is_none_or(|shown| heard.last_seen > shown.since && !condition::is_outlived(machine, heard))
        };
        match heard.filter(counts) {
            Some(heard) => Some(Self {
                namespace,
                name,
                state: heard.state,
                trust: heard.trust,
                cause: heard.cause.map(|cause| cause.to_string()),
                title: heard.title,
                component: heard.component,
                phase: heard.phase.map(landfall_model::Phase::name),
                since: condition.map_or(heard.last_seen, |condition| condition.since),
            }),
            None => condition.map(|condition| Self {
                namespace,
                name,
                state: state(condition),
                trust: trust(condition),
                cause: cause(condition),
                title: title(&condition.message).to_owned(),
                component: None,
                phase: phase(&condition.message),
                since: condition.since,
            }),
        }
    }

    fn json(&self) -> Value {
        json!({
            "namespace": self.namespace, "name": self.name, "state": self.state.name(), "trust": self.trust.name(),
            "cause": self.cause, "title": self.title, "component": self.component, "phase": self.phase, "since": self.since.to_string(),
        })
    }
}

/// Returns the node state that a condition represents.
fn state(condition: &Condition) -> State {
    match (condition.status, condition.reason.as_str()) {
        (Status::False, _) | (Status::Unknown, condition::FAILURE_CLAIMED) => State::Failed,
        (Status::True, condition::DEGRADED) | (Status::Unknown, condition::DEGRADED_CLAIMED) => {
            State::Degraded
        }
        (Status::True, _) | (Status::Unknown, condition::SUCCESS_CLAIMED) => State::Succeeded,
        (Status::Unknown, condition::HUNG) => State::Hung,
        (Status::Unknown, condition::IN_PROGRESS) => State::Running,
        (Status::Unknown, _) => State::Unknown,
    }
}

/// Returns the trust that a condition represents. A ready Node is the cluster's own observation.
fn trust(condition: &Condition) -> Trust {
    let is_proven = condition.reason == condition::NODE_READY
        || details(&condition.message).is_some_and(|(_, details)| details.ends_with(basis(Trust::Proven)));
    if is_proven { Trust::Proven } else { Trust::Claimed }
}

/// Returns a message without the URL of the hub's page.
fn without_link(message: &str) -> &str {
    message.rsplit_once(". See ").map_or(message, |(text, _)| text)
}

/// Splits a message into its sentence and the details in parentheses after it.
fn details(message: &str) -> Option<(&str, &str)> {
    without_link(message).strip_suffix(')').and_then(|text| text.rsplit_once(" ("))
}

/// Returns the sentence of a message, without the details shown in other columns and without the hub's URL.
fn title(message: &str) -> &str {
    // Conditions of older controllers do not name the evidence.
    let is_ours = |details: &str| {
        ["cause ", "phase "].iter().any(|word| details.starts_with(word))
            || [Trust::Claimed, Trust::Proven].iter().any(|trust| details.ends_with(basis(*trust)))
    };
    match details(message) {
        Some((title, details)) if is_ours(details) => title,
        _ => without_link(message),
    }
}

fn phase(message: &str) -> Option<&'static str> {
    let text = without_link(message);
    let named = text.rsplit_once("phase ").or_else(|| text.rsplit_once(", in "))?.1;
    let name = named.split([',', ';', ')', ' ']).next()?;
    landfall_model::Phase::ALL.into_iter().map(landfall_model::Phase::name).find(|known| *known == name)
}

/// Returns the cause that the message names.
fn cause(condition: &Condition) -> Option<String> {
    let (_, rest) = condition.message.split_once("(cause ")?;
    let name = rest.split([',', ';', ')']).next()?;
    landfall_model::Cause::new(name).ok().map(|cause| cause.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn machine(name: &str, status: &str, reason: &str, message: &str) -> Machine {
        Machine::read(&json!({
            "metadata": {"namespace": "ns", "name": name, "uid": name, "creationTimestamp": "2026-01-02T03:00:00Z"},
            "status": {"conditions": [{"type": condition::TYPE, "status": status, "reason": reason,
                "message": message, "lastTransitionTime": "2026-01-02T03:04:05Z"}]},
        }))
        .unwrap()
    }

    #[test]
    fn a_message_is_its_sentence() {
        for (message, sentence, named) in [
            ("It failed (cause disk-full, phase join, kubelet)", "It failed", Some("join")),
            ("It failed (phase runtime). See https://hub/nodes/a", "It failed", Some("runtime")),
            ("Swap is on (no, really)", "Swap is on (no, really)", None),
            (
                "Bootstrap is under way, in cloud-init",
                "Bootstrap is under way, in cloud-init",
                Some("cloud-init"),
            ),
            ("It failed (cause disk-full, phase join; based on proven evidence)", "It failed", Some("join")),
            ("It failed (based on claimed evidence). See https://hub/nodes/a", "It failed", None),
            (
                "Bootstrap is under way, in join (based on claimed evidence)",
                "Bootstrap is under way, in join",
                Some("join"),
            ),
            ("", "", None),
        ] {
            assert_eq!((title(message), phase(message)), (sentence, named), "{message}");
        }
    }

    #[test]
    fn conditions_and_reports_are_one_board() {
        let full = "The disk is full (cause disk-full, phase join). See https://hub/nodes/m1";
        let unheard = Machine { condition: None, ..machine("m0", "True", "", "") };
        let machines = [
            machine("m3", "True", "Succeeded", "Bootstrap succeeded"),
            machine("m1", "False", "DiskFull", full),
            machine("m2", "False", "DiskFull", full),
            unheard,
            machine("m4", "Unknown", "InProgress", "Bootstrap is under way"),
        ];
        let own = json!({"metadata": {"namespace": "ns", "name": "m4"}, "spec": {"machineName": "m4"},
            "status": {"state": "hung", "title": "Waits for ever", "time": "2026-01-02T03:05:00Z"}});
        let own = super::super::report::read(&own).unwrap().heard.unwrap();
        let board = fleet(&machines, vec![own], &Query { limit: 10, ..Query::default() });
        assert_eq!((&board["total"], &board["found"]), (&json!(4), &json!(4)));
        assert_eq!(board["groups"][0]["cause"], "disk-full");
        assert_eq!(board["groups"][0]["nodes"], 2);
        let names: Vec<&str> =
            board["nodes"].as_array().unwrap().iter().filter_map(|node| node["name"].as_str()).collect();
        assert_eq!(names, ["m1", "m2", "m4", "m3"], "what needs a person first comes first");
        assert_eq!(board["nodes"][2]["title"], "Waits for ever", "the node's own words say more");
        let first = &board["nodes"][0];
        assert_eq!(
            (&first["title"], &first["phase"]),
            (&json!("The disk is full"), &json!("join")),
            "{first}"
        );
        assert_eq!((&first["namespace"], &board["groups"][0]["title"]), (&json!("ns"), &first["title"]));
        assert_eq!(board["groups"][0]["examples"], json!(["ns/m1", "ns/m2"]));
        let query = Query { cause: Some("disk-full".to_owned()), limit: 1, ..Query::default() };
        let some = fleet(&machines, Vec::new(), &query);
        assert_eq!((&some["found"], some["nodes"].as_array().unwrap().len()), (&json!(2), 1));
    }

    /// The reports are in the hub; the conditions alone must show the same.
    #[test]
    fn condition_shows_state_cause_and_trust_of_the_report() {
        let machine = Machine::fresh("m1", "2026-01-02T03:04:05Z".parse().unwrap());
        let now = machine.created;
        for pages in [None, Some("https://hub.corp".to_owned())] {
            let words = condition::Words::new(pages).unwrap();
            for (state, trust) in
                State::ALL.iter().flat_map(|state| [(*state, Trust::Claimed), (*state, Trust::Proven)])
            {
                let own = json!({"metadata": {"namespace": "ns", "name": "m1"}, "spec": {"machineName": "m1"},
                    "status": {"state": state.name(), "trust": trust.name(), "cause": "disk-full", "time": now}});
                let heard = super::super::report::read(&own).unwrap().heard.unwrap();
                let names_cause = !matches!(state, State::Succeeded | State::Running);
                let shown = condition::shown(&machine, &heard, now, &words);
                let condition = Condition {
                    status: shown.status,
                    reason: shown.reason,
                    message: shown.message,
                    since: now,
                };
                let machine = Machine { condition: Some(condition), ..machine.clone() };
                let query = Query { limit: 1, ..Query::default() };
                let board = fleet(&[machine], Vec::new(), &query);
                let line = &board["nodes"][0];
                assert_eq!(
                    (&line["state"], &line["trust"]),
                    (&json!(state.name()), &json!(trust.name())),
                    "{line}"
                );
                assert_eq!(line["cause"] == json!("disk-full"), names_cause, "{line}");
            }
        }
    }

    /// The fleet view shows the same as the condition.
    #[test]
    fn a_report_that_is_older_or_outlived_does_not_contradict_the_condition() {
        let own = |time: &str| {
            let own = json!({"metadata": {"namespace": "ns", "name": "m1"}, "spec": {"machineName": "m1"},
                "status": {"state": "failed", "title": "Full", "time": time}});
            super::super::report::read(&own).unwrap().heard.unwrap()
        };
        let state = |machine: &Machine, time: &str| {
            let query = Query { limit: 1, ..Query::default() };
            fleet(std::slice::from_ref(machine), vec![own(time)], &query)["nodes"][0]["state"].clone()
        };
        let (before, after) = ("2026-01-02T03:04:00Z", "2026-01-02T03:05:00Z");
        let succeeded = machine("m1", "True", "Succeeded", "Bootstrap succeeded");
        assert_eq!(state(&succeeded, before), "succeeded");
        assert_eq!(state(&succeeded, after), "failed", "news that is not shown yet");
        let message = condition::node_ready(Some(&own(before))).message;
        let ready = machine("m1", "True", condition::NODE_READY, &message);
        let ready = Machine { ready_since: Some("2026-01-02T03:04:04Z".parse().unwrap()), ..ready };
        assert_eq!(state(&ready, after), "succeeded", "said again, and no news");
        assert_eq!(state(&Machine { condition: None, ..ready }, after), "failed", "nothing else is known");
    }
}
