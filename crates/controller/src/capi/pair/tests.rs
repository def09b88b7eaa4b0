use jiff::Timestamp;
use landfall_model::report::{State, Trust};

use super::super::heard::Heard;
use super::super::machine::{Machine, MachineName};
use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + second).unwrap()
}

fn machine(name: &str) -> Machine {
    Machine::fresh(name, at(0))
}

fn said(name: &str, last_seen: i64) -> Heard {
    Heard {
        name: name.to_owned(),
        provider_id: None,
        bound: None,
        state: State::Running,
        trust: Trust::Proven,
        cause: None,
        title: String::new(),
        component: None,
        phase: None,
        since: None,
        last_seen: at(last_seen),
        is_in_hub: true,
    }
}

/// Returns a report from the object of the Machine `m1`.
fn bound(last_seen: i64) -> Heard {
    Heard { bound: Some(("ns".to_owned(), "m1".to_owned())), is_in_hub: false, ..said("own", last_seen) }
}

/// Returns the pairs of Machine and report names.
fn paired(machines: &[Machine], heard: &[Heard]) -> Vec<(String, String)> {
    let pairs = pair(machines, heard.to_vec());
    let name = |place: &usize| machines[*place].id.name.clone();
    pairs.heard.iter().map(|(place, heard)| (name(place), heard.name.clone())).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(machine, name)| ((*machine).to_owned(), (*name).to_owned())).collect()
}

#[test]
fn a_machine_is_found_by_each_of_its_names() {
    let machines = [
        Machine { node: Some("ip-10-0-0-1".to_owned()), ..machine("a") },
        Machine { addresses: ["host-b.corp".to_owned()].into(), ..machine("b") },
        Machine { infrastructure: Some("infra-c".to_owned()), ..machine("c") },
        machine("d"),
        Machine { provider_id: Some("aws:///i-e".to_owned()), ..machine("e") },
    ];
    let by_cloud = Heard { provider_id: Some("aws:///i-e".to_owned()), ..said("whatever", 9) };
    let heard = [
        said("ip-10-0-0-1", 9),
        said("Host-B.corp", 9),
        said("infra-c", 9),
        said("d", 9),
        by_cloud,
        said("nobody", 9),
    ];
    let expected =
        [("a", "ip-10-0-0-1"), ("b", "Host-B.corp"), ("c", "infra-c"), ("d", "d"), ("e", "whatever")];
    assert_eq!(paired(&machines, &heard), pairs(&expected));
}

#[test]
fn two_candidates_are_none() {
    let other = Machine {
        id: MachineName {
            namespace: "other".to_owned(),
            name: "worker-1".to_owned(),
            uid: "uid-other".to_owned(),
        },
        ..machine("worker-1")
    };
    let machines = [machine("worker-1"), other];
    let found = pair(&machines, vec![said("worker-1", 9)]);
    assert_eq!((found.heard.len(), found.ambiguous), (0, vec!["worker-1".to_owned()]));
    // The Node's name distinguishes them.
    let known = Machine { node: Some("worker-1".to_owned()), ..machines[1].clone() };
    let found = pair(&[machines[0].clone(), known], vec![said("worker-1", 9)]);
    assert_eq!(found.heard.keys().collect::<Vec<_>>(), [&1]);
}

#[test]
fn a_report_from_before_the_machine_is_another_s() {
    let machines = [Machine { created: at(100), ..machine("host-1") }];
    assert_eq!(paired(&machines, &[said("host-1", 99)]), []);
    assert_eq!(paired(&machines, &[said("host-1", 100)]), pairs(&[("host-1", "host-1")]));
}

#[test]
fn the_cloud_s_name_in_a_report_cannot_speak_over_the_machine_s_own_node() {
    let liar = Heard { provider_id: Some("aws:///i-1".to_owned()), ..said("liar", 99) };
    let healthy =
        Machine { provider_id: Some("aws:///i-1".to_owned()), node: Some("n1".to_owned()), ..machine("m1") };
    assert_eq!(paired(std::slice::from_ref(&healthy), std::slice::from_ref(&liar)), []);
    // A provider ID does not replace a report under the Machine's own name either.
    let young = Machine { node: None, ..healthy };
    for heard in [[said("m1", 9), liar.clone()], [liar, said("m1", 9)]] {
        assert_eq!(paired(std::slice::from_ref(&young), &heard), pairs(&[("m1", "m1")]));
    }
}

#[test]
fn report_found_by_provider_id_is_claimed() {
    let provider_id = Some("aws:///i-1".to_owned());
    let young = Machine { provider_id: provider_id.clone(), ..machine("m1") };
    for (name, trust) in [("other", Trust::Claimed), ("m1", Trust::Proven)] {
        let report = Heard { provider_id: provider_id.clone(), ..said(name, 9) };
        let found = pair(std::slice::from_ref(&young), vec![report]).heard.remove(&0);
        assert_eq!(found.map(|heard| heard.trust), Some(trust), "{name}");
    }
}

#[test]
fn the_newer_word_counts_whoever_brought_it() {
    let machines = [machine("m1")];
    let failed = |last_seen| Heard { state: State::Failed, ..bound(last_seen) };
    assert_eq!(paired(&machines, &[said("m1", 9), failed(10)]), pairs(&[("m1", "own")]));
    assert_eq!(paired(&machines, &[failed(8), said("m1", 9)]), pairs(&[("m1", "m1")]));
    // The report is about this Machine only, whatever its name.
    let elsewhere = Heard { bound: Some(("ns".to_owned(), "gone".to_owned())), ..said("m1", 9) };
    assert_eq!(paired(&machines, &[elsewhere]), []);
}

/// The hub gets each heartbeat, the object every fourth. The shown report must not depend on the order.
#[test]
fn the_hub_and_an_object_that_say_the_same_are_the_hub_s_word() {
    let machines = [machine("m1")];
    let hub = Heard { since: Some(at(3)), ..said("m1", 9) };
    for heard in [[hub.clone(), bound(10)], [bound(10), hub.clone()]] {
        let word = pair(&machines, heard.to_vec()).heard.remove(&0).unwrap();
        assert_eq!(word, Heard { last_seen: at(10), ..hub.clone() }, "heard as late as either");
    }
}

#[test]
fn a_name_may_have_its_cluster_s_before_it() {
    let of = |cluster: &str, machine: Machine| Machine { cluster: cluster.to_owned(), ..machine };
    let known = Machine { node: Some("worker-0".to_owned()), ..machine("prod-x1") };
    let provider_id = Some("aws:///i-1".to_owned());
    let machines = [
        of("prod", Machine { provider_id, ..known }),
        of("stage", Machine { node: Some("worker-0".to_owned()), ..machine("stage-x1") }),
        of("prod", Machine { addresses: ["Host-B".to_owned()].into(), ..machine("prod-x2") }),
        of("prod", Machine { infrastructure: Some("infra-c".to_owned()), ..machine("prod-x3") }),
        of("prod", machine("prod-x4")),
    ];
    let names = ["prod.worker-0", "stage.worker-0", "Prod.host-b", "prod.infra-c", "prod.prod-x4"];
    let heard = names.map(|name| said(name, 9));
    let expected: Vec<(&str, &str)> =
        machines.iter().map(|machine| machine.id.name.as_str()).zip(names).collect();
    assert_eq!(paired(&machines, &heard), pairs(&expected));
    assert_eq!(paired(&machines, &[said("test.worker-0", 9), said("prod.", 9)]), []);
}

/// A machine of another cluster, whose Machines are not here, has the same name. It reports the name without
/// its cluster.
#[test]
fn a_name_with_its_cluster_is_surer_than_without() {
    let known = Machine { node: Some("worker-0".to_owned()), ..machine("m1") };
    for heard in [[said("c.worker-0", 8), said("worker-0", 9)], [said("worker-0", 9), said("c.worker-0", 8)]]
    {
        assert_eq!(paired(std::slice::from_ref(&known), &heard), pairs(&[("m1", "c.worker-0")]));
    }
    // Two matching names of one Machine are not ambiguous.
    let twice = Machine { addresses: ["w1".to_owned(), "c.w1".to_owned()].into(), ..machine("m1") };
    assert_eq!(paired(&[twice], &[said("c.w1", 9)]), pairs(&[("m1", "c.w1")]));
}
