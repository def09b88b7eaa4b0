//! External interference with an active rollout.
//!
//! Records are forged, deleted and recreated. Clocks jump, labels are added and removed, and pods are
//! deleted. In every case, the limit of unavailable nodes holds and no bootstrap is applied twice. At the
//! end, the controller leaves no object on an inactive node.

use jiff::SignedDuration;
use landfall_model::in_place::LABEL;

use super::fleet::{Fate, Fleet, Random};
use super::{immortal, lead, policy};
use crate::plan::{Action, plan};
use crate::policy::Policy;
use crate::record::{Phase, SECRET_USED};

/// A decade, the possible error of a machine without a battery for its clock.
const YEARS: SignedDuration = SignedDuration::from_hours(10 * 365 * 24);

/// Runs one pass with all of its writes, and advances one minute.
fn turn(fleet: &mut Fleet, policy: &Policy) {
    for action in plan(policy, &fleet.look()) {
        fleet.carry_out(&action);
        fleet.check(policy);
    }
    fleet.live();
    fleet.check(policy);
}

/// Runs passes until the node is in this phase.
fn until(fleet: &mut Fleet, policy: &Policy, name: &str, phase: Phase) {
    for _ in 0..1000 {
        if fleet.phase(name) == Some(phase) {
            return;
        }
        turn(fleet, policy);
    }
    panic!("never {phase:?}: {:?}", fleet.record(name));
}

/// Asserts that the controller has left no object on released nodes.
#[track_caller]
fn assert_let_go(fleet: &Fleet, when: &str) {
    for name in fleet.names() {
        let is_let_go = matches!(fleet.phase(&name), None | Some(Phase::Done | Phase::Cancelled));
        if is_let_go && fleet.is_here(&name) {
            assert!(fleet.is_free(&name), "{when}: {name}: {:?}", fleet.record(&name));
        }
    }
}

#[test]
fn a_record_that_is_called_done_frees_neither_the_node_nor_its_place() {
    for phase in [Phase::Cordoning, Phase::Draining, Phase::HandedOver, Phase::Running, Phase::Restoring] {
        let mut fleet = Fleet::new(4, Random::new(11));
        let one = policy(1);
        until(&mut fleet, &one, "n00", phase);
        fleet.forge("n00", |record| record.phase = Phase::Done);
        // The limit is checked at every write: the next node does not start before this one has returned.
        lead(&mut fleet, &one, immortal);
        assert_let_go(&fleet, &format!("forged at {phase:?}"));
        assert_eq!(fleet.applied("n00"), 1, "forged at {phase:?}");
        for other in ["n01", "n02", "n03"] {
            assert_eq!(fleet.phase(other), Some(Phase::Done), "forged at {phase:?}");
        }
    }
}

#[test]
fn every_forged_phase_comes_to_an_end() {
    let (mut random, kinds) = (Random::new(5), Phase::ALL);
    for seed in 0..200 {
        let mut fleet = Fleet::new(5, Random::new(seed));
        let two = policy(2);
        for _ in 0..random.below(40) {
            turn(&mut fleet, &two);
        }
        let name = format!("n{:02}", random.below(5));
        let forged = kinds[random.below(kinds.len())];
        let before = fleet.phase(&name);
        fleet.forge(&name, |record| record.phase = forged);
        lead(&mut fleet, &two, immortal);
        assert_let_go(&fleet, &format!("seed {seed}: {name} {before:?} called {forged:?}"));
    }
}

#[test]
fn a_record_deleted_at_any_moment_is_begun_anew_or_let_go() {
    for looks in 0..40 {
        let mut fleet = Fleet::new(2, Random::new(looks));
        let one = policy(1);
        for _ in 0..looks {
            turn(&mut fleet, &one);
        }
        fleet.carry_out(&Action::Forget { node: "n00".to_owned() });
        lead(&mut fleet, &one, immortal);
        assert_let_go(&fleet, &format!("deleted after {looks}"));
        assert_eq!(fleet.applied("n00"), 1, "deleted after {looks}");
        assert_eq!(fleet.phase("n01"), Some(Phase::Done), "deleted after {looks}");
    }
}

/// Times written while the clock is wrong do not delay any node for years once the clock is correct.
#[test]
fn a_clock_that_was_ahead_holds_nobody_up() {
    for phase in [Phase::Cordoning, Phase::Draining, Phase::HandedOver, Phase::Running, Phase::Restoring] {
        let mut fleet = Fleet::new(3, Random::new(2));
        let pausing = Policy { pause: std::time::Duration::from_mins(5), ..policy(1) };
        fleet.jump(YEARS);
        until(&mut fleet, &pausing, "n00", phase);
        fleet.jump(-YEARS);
        fleet.fate("n00", if phase == Phase::HandedOver { Fate::Silent } else { Fate::Well });
        lead(&mut fleet, &pausing, immortal);
        let end = if phase == Phase::HandedOver { Phase::Failed } else { Phase::Done };
        assert_eq!(fleet.phase("n00"), Some(end), "ahead in {phase:?}");
        assert_eq!(fleet.phase("n02"), Some(Phase::Done), "ahead in {phase:?}");
        assert_let_go(&fleet, &format!("ahead in {phase:?}"));
    }
}

/// All deadlines pass at the same moment. Active nodes are abandoned, and no other node is taken down for it.
/// A node that returns late is completed.
#[test]
fn a_clock_that_leaps_ahead_gives_up_and_takes_back() {
    for phase in [Phase::Draining, Phase::HandedOver, Phase::Running] {
        let mut fleet = Fleet::new(3, Random::new(8));
        let one = Policy { max_failed: 0, ..policy(1) };
        until(&mut fleet, &one, "n00", phase);
        fleet.jump(YEARS);
        lead(&mut fleet, &one, immortal);
        assert!(fleet.applied("n00") <= 1, "leapt in {phase:?}");
        assert_let_go(&fleet, &format!("leapt in {phase:?}"));
        let ended = fleet.phase("n00");
        assert!(matches!(ended, Some(Phase::Done | Phase::Failed)), "leapt in {phase:?}: {ended:?}");
        if ended == Some(Phase::Failed) {
            assert_eq!(fleet.phase("n01"), Some(Phase::Waiting), "the wave stands still");
        }
    }
}

#[test]
fn a_label_that_flaps_does_nothing_twice() {
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let mut fleet = Fleet::new(2, Random::new(seed));
        let one = policy(1);
        for _ in 0..random.below(30) {
            turn(&mut fleet, &one);
            // The machine removes the label when it is armed; a late client adds it again.
            match random.below(3) {
                0 if fleet.is_here("n00") => fleet.unlabel("n00"),
                1 if fleet.is_here("n00") && !fleet.has_told("n00") => fleet.label("n00", LABEL),
                _ => {}
            }
        }
        lead(&mut fleet, &one, immortal);
        assert!(fleet.applied("n00") <= 1, "seed {seed}");
        assert_let_go(&fleet, &format!("seed {seed}"));
        assert_eq!(fleet.phase("n01"), Some(Phase::Done), "seed {seed}");
    }
}

/// Another client adds the label repeatedly, with a used Secret: the node is not drained each time.
#[test]
fn a_label_left_on_after_the_end_asks_for_nothing() {
    for fate in [Fate::Well, Fate::FailsEarly, Fate::RollsBack] {
        let mut fleet = Fleet::new(1, Random::new(3));
        fleet.fate("n00", fate);
        fleet.give_secret("n00");
        fleet.source("n00", "secret/1");
        lead(&mut fleet, &policy(1), immortal);
        let ended = fleet.phase("n00").unwrap();
        for _ in 0..3 {
            fleet.label("n00", LABEL);
            lead(&mut fleet, &policy(1), immortal);
            assert!(fleet.is_free("n00"), "{fate:?}: it was touched");
            let record = fleet.record("n00").unwrap();
            assert_eq!(record.reason, SECRET_USED, "{fate:?}: {record:?}");
            assert!(record.message.contains("hand in a new one"), "{fate:?}: {record:?}");
        }
        let expected = if ended == Phase::Done { Phase::Waiting } else { ended };
        assert_eq!(fleet.phase("n00"), Some(expected), "how it ended stays to be seen");
        // A new source makes it a new request.
        fleet.fate("n00", Fate::Well);
        fleet.source("n00", "secret/2");
        fleet.mend("n00");
        lead(&mut fleet, &policy(1), immortal);
        assert_eq!((fleet.phase("n00"), fleet.applied("n00")), (Some(Phase::Done), 1), "{fate:?}");
    }
}

#[test]
fn a_pod_deleted_before_the_node_is_armed_is_put_there_again() {
    for looks in 0..20 {
        let mut fleet = Fleet::new(1, Random::new(looks));
        for _ in 0..looks {
            turn(&mut fleet, &policy(1));
        }
        fleet.kill_runner("n00");
        lead(&mut fleet, &policy(1), immortal);
        assert_eq!(fleet.phase("n00"), Some(Phase::Done), "killed after {looks}");
        assert_eq!(fleet.applied("n00"), 1, "killed after {looks}");
    }
}

/// Two replicas both consider themselves leaders, because a write of one was in flight for a minute. Each
/// replica checks its Lease before every write, so one late write is the maximum.
#[test]
fn one_that_acts_on_an_old_look_breaks_nothing() {
    for seed in 0..100 {
        let mut random = Random::new(seed);
        let mut fleet = Fleet::new(6, Random::new(seed ^ 0xfeed));
        let two = policy(2);
        for _ in 0..60 {
            let late = plan(&two, &fleet.look());
            turn(&mut fleet, &two);
            if random.below(4) == 0 {
                let name = format!("n{:02}", random.below(6));
                if fleet.is_here(&name) {
                    fleet.unlabel(&name);
                }
            }
            if !late.is_empty() {
                fleet.carry_out(&late[random.below(late.len())]);
                fleet.check(&two);
            }
        }
        lead(&mut fleet, &two, immortal);
        assert_let_go(&fleet, &format!("seed {seed}"));
        for name in fleet.names() {
            assert!(fleet.applied(&name) <= 1, "seed {seed}: {name}");
        }
    }
}
