use landfall_model::Cause;
use landfall_model::report::{State, Trust};

use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + second).unwrap()
}

fn machine() -> Machine {
    Machine::fresh("m1", at(0))
}

fn said(state: State) -> Heard {
    Heard {
        name: "m1".to_owned(),
        provider_id: None,
        bound: None,
        state,
        trust: Trust::Proven,
        cause: (state == State::Failed).then(|| Cause::new("disk-full").unwrap()),
        title: String::new(),
        component: None,
        phase: None,
        since: None,
        last_seen: at(1000),
        is_in_hub: true,
    }
}

fn world(machine: Machine, heard: Option<Heard>, evidence: Evidence) -> World {
    World {
        now: at(1000),
        machines: vec![Seen { machine, heard, evidence }],
        paused: BTreeSet::new(),
        hearing: Hearing::Whole,
        written: BTreeMap::new(),
        failed: BTreeMap::new(),
        unheld: BTreeSet::new(),
        orphans: Vec::new(),
    }
}

fn decide(world: &World, hold: Option<u64>) -> Vec<Action> {
    plan(&Policy { hold: hold.map(Duration::from_secs) }, &Words::new(None).unwrap(), world)
}

fn condition(status: Status, reason: &str, since: i64) -> Condition {
    Condition { status, reason: reason.to_owned(), message: "before".to_owned(), since: at(since) }
}

#[track_caller]
fn shows(actions: &[Action]) -> (Status, String, Timestamp, Turn) {
    match actions {
        [Action::Show { condition, turn, .. }] => {
            (condition.status, condition.reason.clone(), condition.since, *turn)
        }
        _ => panic!("{actions:?}"),
    }
}

#[test]
fn a_failure_is_shown_and_then_nothing_more_is_written() {
    let mut world = world(machine(), Some(said(State::Failed)), Evidence::OnMachine);
    let actions = decide(&world, None);
    assert_eq!(shows(&actions), (Status::False, "DiskFull".to_owned(), at(1000), Turn::Status));
    let [Action::Show { condition, .. }] = &actions[..] else { panic!("{actions:?}") };
    world.machines[0].machine.condition = Some(condition.clone());
    assert_eq!(decide(&world, None), []);
}

#[test]
fn the_time_of_a_condition_moves_with_its_status_only() {
    let before = |status, reason| Machine { condition: Some(condition(status, reason, 10)), ..machine() };
    let other_words = world(before(Status::False, "Failed"), Some(said(State::Failed)), Evidence::OnMachine);
    assert_eq!(
        shows(&decide(&other_words, None)),
        (Status::False, "DiskFull".to_owned(), at(10), Turn::Words)
    );
    let recovered =
        world(before(Status::False, "DiskFull"), Some(said(State::Succeeded)), Evidence::OnMachine);
    assert_eq!(
        shows(&decide(&recovered, None)),
        (Status::True, "Succeeded".to_owned(), at(1000), Turn::Status)
    );
}

#[test]
fn a_condition_nobody_stands_behind_goes_unless_it_is_good() {
    let with = |status| Machine { condition: Some(condition(status, "X", 10)), ..machine() };
    for (status, expected) in [
        (Status::False, vec![Action::Clear { machine: machine().id }]),
        (Status::Unknown, vec![Action::Clear { machine: machine().id }]),
        (Status::True, Vec::new()),
    ] {
        assert_eq!(decide(&world(with(status), None, Evidence::OnMachine), None), expected, "{status:?}");
    }
    assert_eq!(decide(&world(machine(), None, Evidence::OnMachine), None), []);
}

#[test]
fn the_hook_is_in_place_before_anybody_can_act_on_the_condition() {
    let mut world = world(machine(), Some(said(State::Failed)), Evidence::OnMachine);
    assert_eq!(decide(&world, Some(60)), [Action::Hook { machine: machine().id }]);
    world.machines[0].machine.has_hook = true;
    assert_eq!(shows(&decide(&world, Some(60))).0, Status::False);
    // With the evidence in the hub, no hook is needed.
    world.machines[0].evidence = Evidence::Stored;
    let actions = decide(&world, Some(60));
    assert_eq!(actions[0], Action::Unhook { machine: machine().id });
    world.machines[0].machine.has_hook = false;
    assert!(decide(&world, Some(60)).iter().all(|action| matches!(action, Action::Show { .. })));
}

#[test]
fn claimed_failure_is_held_and_not_false() {
    let claimed = Heard { trust: Trust::Claimed, ..said(State::Failed) };
    let mut world = world(machine(), Some(claimed), Evidence::OnMachine);
    assert_eq!(decide(&world, Some(60)), [Action::Hook { machine: machine().id }]);
    world.machines[0].machine.has_hook = true;
    let expected = (Status::Unknown, "FailureClaimed".to_owned(), at(1000), Turn::Status);
    assert_eq!(shows(&decide(&world, Some(60))), expected);
}

/// The newest report counts. A claim can end a `False`, and so delay a remediation; it cannot start one.
#[test]
fn claim_after_proven_failure_is_unknown() {
    let before = Machine { condition: Some(condition(Status::False, "DiskFull", 10)), ..machine() };
    for (state, reason) in [(State::Failed, "FailureClaimed"), (State::Succeeded, "SuccessClaimed")] {
        let claimed = Heard { trust: Trust::Claimed, ..said(state) };
        let actions = decide(&world(before.clone(), Some(claimed), Evidence::OnMachine), None);
        assert_eq!(shows(&actions), (Status::Unknown, reason.to_owned(), at(1000), Turn::Status));
    }
}

/// Without permission to set the hook, the condition is still written.
#[test]
fn a_hook_that_was_denied_holds_back_no_condition() {
    let mut world = world(machine(), Some(said(State::Failed)), Evidence::OnMachine);
    world.unheld.insert("uid-m1".to_owned());
    assert_eq!(shows(&decide(&world, Some(60))).0, Status::False);
}

/// A hub never gets a bundle of a node it does not know, so a hook would preserve nothing.
#[test]
fn who_is_not_in_the_hub_is_not_held() {
    let own = Heard { is_in_hub: false, ..said(State::Failed) };
    let world = world(machine(), Some(own), Evidence::OnMachine);
    assert_eq!(shows(&decide(&world, Some(60))).0, Status::False);
}

#[test]
fn nobody_is_held_longer_than_the_deadline() {
    let dying = |deleted| Machine { has_hook: true, deleted: Some(at(deleted)), ..machine() };
    let unhook = [Action::Unhook { machine: machine().id }];
    for hearing in [Hearing::Whole, Hearing::Deaf] {
        let held = World { hearing, ..world(dying(941), Some(said(State::Failed)), Evidence::OnMachine) };
        assert_eq!(decide(&held, Some(60)), [], "{hearing:?}: not yet");
        let over = World { hearing, ..world(dying(940), Some(said(State::Failed)), Evidence::OnMachine) };
        assert_eq!(decide(&over, Some(60)), unhook, "{hearing:?}: the deadline is there, whoever is heard");
        assert_eq!(decide(&held, None), unhook, "{hearing:?}: nobody wants it any more");
    }
    let recovered = world(dying(999), Some(said(State::Succeeded)), Evidence::OnMachine);
    assert_eq!(decide(&recovered, Some(60)), unhook);
    let forgotten = world(dying(999), None, Evidence::OnMachine);
    assert_eq!(decide(&forgotten, Some(60)), unhook);
}

#[test]
fn a_machine_that_goes_is_left_alone() {
    let going = Machine { deleted: Some(at(999)), ..machine() };
    assert_eq!(decide(&world(going, Some(said(State::Failed)), Evidence::OnMachine), Some(60)), []);
}

#[test]
fn a_hub_that_is_not_heard_changes_nothing() {
    let before = Machine { condition: Some(condition(Status::False, "DiskFull", 10)), ..machine() };
    for heard in [None, Some(said(State::Succeeded))] {
        let deaf = World { hearing: Hearing::Deaf, ..world(before.clone(), heard, Evidence::OnMachine) };
        assert_eq!(decide(&deaf, Some(60)), []);
    }
}

/// A hub outage longer than a health check's timeout must not delete a Machine that became ready meanwhile.
#[test]
fn a_ready_node_is_known_without_a_hub() {
    for (status, shown, ready, is_shown) in [
        (Status::Unknown, 10, Some(20), true),
        (Status::Unknown, 10, Some(10), true),
        (Status::False, 10, Some(11), true),
        // The clocks of the two controllers differ.
        (Status::False, 10, Some(10), true),
        (Status::False, 10, Some(9), true),
        (Status::Unknown, 10, None, false),
        (Status::True, 10, Some(20), false),
    ] {
        let ready_since = ready.map(at);
        let before = Machine { condition: Some(condition(status, "X", shown)), ready_since, ..machine() };
        for hearing in [Hearing::Deaf, Hearing::Partial] {
            let world = World { hearing, ..world(before.clone(), None, Evidence::OnMachine) };
            let actions = decide(&world, None);
            if is_shown {
                let expected = (Status::True, "NodeReady".to_owned(), at(1000), Turn::Status);
                assert_eq!(shows(&actions), expected, "{status:?}, {ready:?}");
            } else {
                assert_eq!(actions, [], "{status:?}, {ready:?}");
            }
        }
    }
    let first = Machine { ready_since: Some(at(20)), ..machine() };
    let deaf = World { hearing: Hearing::Deaf, ..world(first, None, Evidence::OnMachine) };
    assert_eq!(decide(&deaf, None), [], "of whom nothing was ever shown nothing is");
}

#[test]
fn of_those_who_could_not_be_told_of_nothing_is_taken_away() {
    let before =
        Machine { condition: Some(condition(Status::False, "DiskFull", 10)), has_hook: true, ..machine() };
    let partial =
        |heard| World { hearing: Hearing::Partial, ..world(before.clone(), heard, Evidence::OnMachine) };
    assert_eq!(decide(&partial(None), Some(60)), [], "neither the condition nor the hook");
    let better = decide(&partial(Some(said(State::Succeeded))), Some(60));
    assert_eq!(better[0], Action::Unhook { machine: machine().id });
    assert_eq!(shows(&better[1..]).0, Status::True, "who was told of is written");
}

#[test]
fn what_is_paused_is_watched_and_not_written() {
    let paused = Machine { is_paused: true, has_hook: true, ..machine() };
    assert_eq!(decide(&world(paused, Some(said(State::Failed)), Evidence::Stored), Some(60)), []);
    let mut in_paused = world(machine(), Some(said(State::Failed)), Evidence::OnMachine);
    in_paused.paused.insert(("ns".to_owned(), "c".to_owned()));
    assert_eq!(decide(&in_paused, Some(60)), []);
}

#[test]
fn a_machine_is_not_written_again_and_again() {
    let with = |status, reason| Machine { condition: Some(condition(status, reason, 10)), ..machine() };
    let flip = with(Status::True, "Succeeded");
    let words = with(Status::False, "Failed");
    for (machine, ago, is_written) in
        [(&flip, 9, false), (&flip, 10, true), (&words, 59, false), (&words, 60, true)]
    {
        let mut world = world(machine.clone(), Some(said(State::Failed)), Evidence::OnMachine);
        world.written.insert("uid-m1".to_owned(), at(1000 - ago));
        assert_eq!(!decide(&world, None).is_empty(), is_written, "{ago} s ago");
    }
}

#[test]
fn of_a_thousand_the_most_urgent_come_first() {
    let many = |count: usize, heard: State, has_hook: bool| {
        (0..count).map(move |number| {
            let id = MachineName { uid: format!("{heard:?}{number}"), ..machine().id };
            let machine = Machine { id, has_hook, ..machine() };
            Seen { machine, heard: Some(said(heard)), evidence: Evidence::Stored }
        })
    };
    let mut world = world(machine(), None, Evidence::OnMachine);
    world.machines = many(900, State::Running, false)
        .chain(many(60, State::Failed, false))
        .chain(many(30, State::Succeeded, true))
        .collect();
    let actions = decide(&world, Some(60));
    assert_eq!(actions.len(), MAX_WRITES);
    assert!(actions[..30].iter().all(|action| matches!(action, Action::Unhook { .. })));
    let is_bad = |action: &Action| matches!(action, Action::Show { condition, .. } if condition.status == Status::False);
    assert!(actions[30..90].iter().all(is_bad));
}

/// Denied hook removals are retried in turn, a few per pass, and do not block other writes.
#[test]
fn writes_that_fail_again_and_again_hold_back_no_others() {
    let held = |number: usize| {
        let id = MachineName { uid: format!("held-{number:03}"), ..machine().id };
        let machine = Machine { id, has_hook: true, deleted: Some(at(0)), ..machine() };
        Seen { machine, heard: None, evidence: Evidence::OnMachine }
    };
    let news = |number: usize| {
        let id = MachineName { uid: format!("news-{number:03}"), ..machine().id };
        let heard = Some(said(State::Failed));
        Seen { machine: Machine { id, ..machine() }, heard, evidence: Evidence::OnMachine }
    };
    let mut world = world(machine(), None, Evidence::OnMachine);
    world.machines = (0..300).map(held).chain((0..300).map(news)).collect();
    let words = Words::new(None).unwrap();
    let decide = |world: &World| plan(&Policy::default(), &words, world);
    let is_unhook = |action: &&Action| matches!(action, Action::Unhook { .. });
    assert_eq!(decide(&world).iter().filter(is_unhook).count(), MAX_WRITES, "first nobody is held up");
    let mut tried = BTreeSet::new();
    for look in 0..60 {
        for action in decide(&world).iter().filter(is_unhook) {
            tried.insert(action.machine().uid.clone());
            world.failed.insert(action.machine().uid.clone(), at(look));
        }
    }
    let actions = decide(&world);
    assert_eq!(actions.len(), MAX_WRITES);
    assert_eq!(actions.iter().filter(is_unhook).count(), MAX_AGAIN);
    assert_eq!(tried.len(), 300, "each gets its turn");
    world.machines.truncate(300);
    assert_eq!(decide(&world).len(), MAX_WRITES, "where nothing else is to be done they have the room");
}

#[test]
fn a_teardown_takes_everything_off_whatever_is_paused() {
    let full = Machine {
        has_hook: true,
        is_paused: true,
        condition: Some(condition(Status::True, "Succeeded", 10)),
        ..machine()
    };
    let id = machine().id;
    let expected = [Action::Unhook { machine: id.clone() }, Action::Clear { machine: id }];
    assert_eq!(teardown([&full, &machine()]), expected);
}
