use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use landfall_cluster::{FleetNode, NodeFacts};
use landfall_model::in_place::LABEL;

use super::*;
use crate::policy::{AtOnce, Secrets, Unasked};
use crate::world::Refused;

const NOW: &str = "2026-11-16T12:00:00Z";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn node(name: &str, labels: &[(&str, &str)]) -> Node {
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let facts = NodeFacts { ready: true, boot_id: "b0".to_owned(), labels, ..NodeFacts::default() };
    let node = FleetNode { name: name.to_owned(), version: "1".to_owned(), facts, ..FleetNode::default() };
    Node { secret: SecretState::Given { name: format!("ibm-ipb-{name}") }, ..Node::new(node) }
}

fn asked(name: &str) -> Node {
    node(name, &[(LABEL, "requested")])
}

fn world(nodes: Vec<(&str, Node)>) -> World {
    World {
        now: at(NOW),
        nodes: nodes.into_iter().map(|(name, node)| (name.to_owned(), node)).collect(),
        records: BTreeMap::new(),
        requests: Vec::new(),
        refused: Refused::default(),
    }
}

/// Returns the phase and reason written for a node.
fn written(actions: &[Action], name: &str) -> Option<(Phase, String)> {
    actions.iter().find_map(|action| match action {
        Action::Write { node, record } if node == name => Some((record.phase, record.reason.clone())),
        _ => None,
    })
}

fn begun(policy: &Policy, world: &World) -> Vec<String> {
    let actions = plan(policy, world);
    let begun = actions.iter().filter_map(|action| match action {
        Action::Write { node, record } if record.phase == Phase::Cordoning => Some(node.clone()),
        _ => None,
    });
    begun.collect()
}

#[track_caller]
fn waits(policy: &Policy, world: &World, name: &str, reason: &str) {
    assert_eq!(written(&plan(policy, world), name), Some((Phase::Waiting, reason.to_owned())));
}

fn policy() -> Policy {
    Policy::default()
}

#[test]
fn nobody_who_did_not_ask_is_touched() {
    let quiet = world(vec![("a", node("a", &[])), ("b", node("b", &[(LABEL, "no")]))]);
    assert_eq!(plan(&policy(), &quiet), []);
}

#[test]
fn as_many_as_may_go_in_the_order_of_their_names() {
    let mut fleet =
        world(vec![("a", asked("a")), ("b", asked("b")), ("c", asked("c")), ("d", node("d", &[]))]);
    let two = Policy { max_unavailable: AtOnce::Nodes(2), ..policy() };
    assert_eq!(begun(&two, &fleet), ["a", "b"]);
    waits(&two, &fleet, "c", "MaxUnavailable");

    // A node that is not ready for other reasons counts.
    fleet.nodes.get_mut("d").unwrap().is_ready = false;
    assert_eq!(begun(&two, &fleet), ["a"]);

    // A node whose Node object is temporarily missing counts as well.
    fleet.records.insert("z".to_owned(), Record::new(Phase::Running, at(NOW)));
    assert_eq!(begun(&two, &fleet), [] as [String; 0]);
}

#[test]
fn what_stands_in_the_way_is_told() {
    let with = |change: &dyn Fn(&mut Node)| {
        let mut fleet = world(vec![("a", asked("a"))]);
        change(fleet.nodes.get_mut("a").unwrap());
        fleet
    };
    waits(&policy(), &with(&|node| node.is_ready = false), "a", "NodeNotReady");
    let without = with(&|node| node.secret = SecretState::Missing);
    waits(&policy(), &without, "a", "SecretMissing");
    let template = Policy { secrets: Secrets::Template, ..policy() };
    assert_eq!(begun(&template, &without), ["a"]);

    let closed = Policy { windows: vec!["Tue 00:00-24:00".parse().unwrap()], ..policy() };
    waits(&closed, &with(&|_| {}), "a", "Window");
    let open = Policy {
        windows: vec!["Tue 00:00-24:00".parse().unwrap(), "Mon 11:00-13:00".parse().unwrap()],
        ..policy()
    };
    assert_eq!(begun(&open, &with(&|_| {})), ["a"]);
}

#[test]
fn a_pause_lies_between_two_nodes() {
    let mut fleet = world(vec![("a", asked("a")), ("b", node("b", &[]))]);
    let ended = Record { finished: Some(at("2026-11-16T11:56:00Z")), ..Record::new(Phase::Done, at(NOW)) };
    fleet.records.insert("b".to_owned(), ended);
    let pausing = |minutes| Policy { pause: Duration::from_mins(minutes), ..policy() };
    waits(&pausing(5), &fleet, "a", "Pause");
    assert_eq!(begun(&pausing(4), &fleet), ["a"]);
}

#[test]
fn a_failure_stops_the_others_until_somebody_looks_after_it() {
    let mut fleet = world(vec![("a", asked("a")), ("b", node("b", &[]))]);
    fleet.records.insert("b".to_owned(), Record::new(Phase::Failed, at(NOW)));
    waits(&policy(), &fleet, "a", "Stopped");
    assert_eq!(begun(&Policy { max_failed: 1, ..policy() }, &fleet), ["a"]);

    // A failed node may start when it is requested again, even if it was left cordoned.
    let mut again = asked("b");
    again.cordon = Cordon::Own;
    fleet.nodes.insert("b".to_owned(), again);
    assert_eq!(begun(&policy(), &fleet), ["b"]);

    fleet.nodes.insert("b".to_owned(), node("b", &[]));
    fleet.records.remove("b");
    assert_eq!(begun(&policy(), &fleet), ["a"], "its record was deleted");
}

#[test]
fn one_node_of_the_control_plane_at_a_time() {
    let role = [(LABEL, "requested"), ("node-role.kubernetes.io/control-plane", "")];
    let fleet = world(vec![("a", node("a", &role)), ("b", node("b", &role)), ("c", asked("c"))]);
    let many = Policy { max_unavailable: AtOnce::Nodes(3), ..policy() };
    assert_eq!(begun(&many, &fleet), ["a", "c"]);
    waits(&many, &fleet, "b", "ControlPlane");
}

fn draining(pods: Vec<PodFacts>) -> World {
    let mut fleet = world(vec![("a", asked("a"))]);
    let node = fleet.nodes.get_mut("a").unwrap();
    (node.cordon, node.pods) = (Cordon::Own, pods);
    fleet.records.insert("a".to_owned(), Record::new(Phase::Draining, at("2026-11-16T11:50:00Z")));
    fleet
}

fn pod(name: &str) -> PodFacts {
    PodFacts {
        namespace: "x".to_owned(),
        name: name.to_owned(),
        controller: Some("ReplicaSet".to_owned()),
        ..PodFacts::default()
    }
}

fn evicted(policy: &Policy, world: &World) -> Vec<String> {
    let actions = plan(policy, world);
    let evicted = actions.iter().filter_map(|action| match action {
        Action::Evict { pod, .. } => Some(pod.name.clone()),
        _ => None,
    });
    evicted.collect()
}

#[test]
fn pods_go_or_stay_by_what_they_are() {
    let pods = vec![
        pod("web"),
        PodFacts { controller: Some("DaemonSet".to_owned()), ..pod("net") },
        PodFacts { is_mirror: true, controller: None, ..pod("static") },
        PodFacts { has_finished: true, controller: None, ..pod("finished") },
        PodFacts { is_going: true, ..pod("going") },
        PodFacts { controller: None, ..pod("alone") },
        PodFacts { has_local_data: true, ..pod("data") },
    ];
    let fleet = draining(pods);
    assert_eq!(evicted(&policy(), &fleet), ["web"]);
    let actions = plan(&policy(), &fleet);
    let told = actions.iter().find_map(|action| match action {
        Action::Write { record, .. } => Some(record.message.as_str()),
        _ => None,
    });
    assert_eq!(
        told,
        Some(
            "still on the node: x/alone (nothing would make it again), x/data (its local data would be lost), x/web, \
             x/going (is going)"
        )
    );
    let mut willing = policy();
    (willing.drain.unmanaged, willing.drain.local_data) = (Unasked::Evict, Unasked::Evict);
    assert_eq!(evicted(&willing, &fleet), ["web", "alone", "data"]);
}

#[test]
fn a_node_that_cannot_be_emptied_gets_its_place_back() {
    let mut fleet = draining(vec![pod("web")]);
    fleet.refused.evictions.insert("x/web".to_owned(), "the budget is spent".to_owned());
    let mut patient = policy();
    patient.drain.within = Duration::from_mins(10);
    // The label is removed with the cordon, before the end is recorded, so that a later label is a new
    // request.
    let actions = plan(&patient, &fleet);
    assert!(actions.contains(&Action::Uncordon { node: "a".to_owned(), version: "1".to_owned() }));
    assert!(actions.contains(&Action::TakeLabelsOff { node: "a".to_owned() }));
    assert_eq!(written(&actions, "a"), None);
    let node = fleet.nodes.get_mut("a").unwrap();
    (node.cordon, node.is_requested) = (Cordon::None, false);
    assert_eq!(written(&plan(&patient, &fleet), "a"), Some((Phase::Failed, "DrainTimeout".to_owned())));
}

#[test]
fn a_drain_that_somebody_undid_is_done_again() {
    let mut fleet = draining(vec![]);
    fleet.nodes.get_mut("a").unwrap().cordon = Cordon::None;
    assert!(
        plan(&policy(), &fleet).contains(&Action::Cordon { node: "a".to_owned(), version: "1".to_owned() })
    );
    fleet.records.get_mut("a").unwrap().phase = Phase::HandedOver;
    assert_eq!(written(&plan(&policy(), &fleet), "a"), Some((Phase::Draining, String::new())));
}

#[test]
fn the_condition_of_a_node_is_written_when_it_changes() {
    let mut fleet = draining(vec![PodFacts { is_going: true, ..pod("web") }]);
    fleet.records.get_mut("a").unwrap().message = "still on the node: x/web (is going)".to_owned();
    let condition = Condition {
        status: true,
        reason: "Draining".to_owned(),
        message: "still on the node: x/web (is going)".to_owned(),
    };
    assert_eq!(
        plan(&policy(), &fleet),
        [Action::Show { node: "a".to_owned(), condition: condition.clone() }]
    );
    fleet.nodes.get_mut("a").unwrap().condition = Some(condition);
    assert_eq!(plan(&policy(), &fleet), []);
}

/// A rejected pod is reported immediately, not after the time limit.
#[test]
fn a_pod_that_is_refused_is_told_at_once() {
    let mut fleet = draining(Vec::new());
    let handed_over = Record::new(Phase::HandedOver, at("2026-11-16T11:59:00Z"));
    fleet.records.insert("a".to_owned(), handed_over.clone());
    assert_eq!(written(&plan(&policy(), &fleet), "a"), None);

    fleet.refused.runners.insert("a".to_owned(), "exceeded quota".to_owned());
    let actions = plan(&policy(), &fleet);
    assert!(
        actions.iter().any(|action| matches!(action, Action::StartRunner { .. })),
        "asked again: {actions:?}"
    );
    assert_eq!(written(&actions, "a"), Some((Phase::HandedOver, "PodRefused".to_owned())));
    let told =
        handed_over.enter(Phase::HandedOver, at(NOW), "PodRefused", "the cluster refused it: exceeded quota");
    fleet.records.insert("a".to_owned(), told.clone());
    assert_eq!(written(&plan(&policy(), &fleet), "a"), None, "once");

    // After the time limit, the record keeps the last rejection.
    let late = Record { since: at("2026-11-16T10:00:00Z"), ..told };
    fleet.records.insert("a".to_owned(), late);
    fleet.nodes.insert("a".to_owned(), node("a", &[]));
    let actions = plan(&policy(), &fleet);
    assert_eq!(written(&actions, "a"), Some((Phase::Failed, "NotClaimed".to_owned())));
    assert!(format!("{actions:?}").contains("exceeded quota"));
}

#[test]
fn a_pod_that_its_node_refuses_makes_way_and_one_that_runs_clears_the_record() {
    let mut fleet = draining(Vec::new());
    fleet.records.insert("a".to_owned(), Record::new(Phase::HandedOver, at("2026-11-16T11:59:00Z")));
    let node = fleet.nodes.get_mut("a").unwrap();
    (node.runner, node.hindrance) = (Runner::Rejected, Some("OutOfmemory: no room".to_owned()));
    let actions = plan(&policy(), &fleet);
    assert_eq!(written(&actions, "a"), Some((Phase::HandedOver, "PodHindered".to_owned())));
    assert!(actions.contains(&Action::StopRunner { node: "a".to_owned() }));

    let mut hindered = Record::new(Phase::HandedOver, at("2026-11-16T11:59:00Z"));
    "PodHindered".clone_into(&mut hindered.reason);
    fleet.records.insert("a".to_owned(), hindered);
    let node = fleet.nodes.get_mut("a").unwrap();
    (node.runner, node.hindrance) = (Runner::There, None);
    assert_eq!(written(&plan(&policy(), &fleet), "a"), Some((Phase::HandedOver, String::new())));

    fleet.nodes.get_mut("a").unwrap().runner = Runner::None;
    fleet.nodes.get_mut("a").unwrap().secret = SecretState::Missing;
    assert_eq!(written(&plan(&policy(), &fleet), "a"), Some((Phase::HandedOver, "SecretMissing".to_owned())));
}
