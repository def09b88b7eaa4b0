//! A simulated fleet under [`plan`](crate::plan::plan).
//!
//! Machines reboot, fail, disappear and lose their Node object. Disruption budgets reject evictions. The
//! controller crashes between any two writes.

mod attacks;
pub(crate) mod fleet;

use landfall_model::in_place::{LABEL, State};

use crate::plan::{Action, plan};
use crate::policy::{AtOnce, Policy, Secrets};
use crate::record::Phase;
use fleet::{Fate, Fleet, Random};

/// Limit of passes, above what any rollout of these sizes takes.
const MAX_LOOKS: usize = 20_000;

/// Runs passes until no work is left. `lives` returns the number of writes before the next crash, which loses
/// the rest of the plan.
fn lead(fleet: &mut Fleet, policy: &Policy, mut lives: impl FnMut() -> usize) -> usize {
    let mut writes = 0;
    let mut left = lives();
    for _ in 0..MAX_LOOKS {
        let actions = plan(policy, &fleet.look());
        for action in &actions {
            if left == 0 {
                left = lives();
                break;
            }
            left = left.saturating_sub(1);
            writes += 1;
            fleet.carry_out(action);
            fleet.check(policy);
        }
        let is_still = !fleet.live();
        fleet.check(policy);
        if actions.is_empty() && is_still {
            return writes;
        }
    }
    panic!("no end: {:#?}", fleet.phases());
}

fn policy(at_once: usize) -> Policy {
    Policy {
        max_unavailable: AtOnce::Nodes(at_once),
        secrets: Secrets::Template,
        max_failed: usize::MAX,
        ..Policy::default()
    }
}

fn immortal() -> usize {
    usize::MAX
}

#[test]
fn fifty_nodes_three_at_a_time() {
    for seed in 0..10 {
        let mut fleet = Fleet::new(50, Random::new(seed));
        lead(&mut fleet, &policy(3), immortal);
        fleet.check_end();
        assert_eq!(fleet.most_away(), 3, "seed {seed}: the limit is used, and never more");
    }
}

#[test]
fn a_failing_node_stops_the_wave() {
    for seed in 0..5 {
        let mut fleet = Fleet::new(50, Random::new(seed));
        fleet.fate("n07", Fate::FailsLate);
        lead(&mut fleet, &Policy { max_failed: 0, ..policy(3) }, immortal);
        assert_eq!(fleet.phase("n07"), Some(Phase::Failed), "seed {seed}");
        let done = fleet.phases().values().filter(|phase| **phase == Phase::Done).count();
        assert!(done < 12, "seed {seed}: those under way came to their end, and no other was begun: {done}");
        let waiting = fleet.phases().values().filter(|phase| **phase == Phase::Waiting).count();
        assert_eq!(waiting + done + 1, 50, "seed {seed}");

        // After an administrator has repaired the node, the rollout continues.
        fleet.fate("n07", Fate::Well);
        fleet.mend("n07");
        lead(&mut fleet, &Policy { max_failed: 0, ..policy(3) }, immortal);
        fleet.check_end();
    }
}

/// Kills the controller before every single write of a rollout with all fates, and starts another one.
#[test]
fn killed_at_every_write_it_reaches_the_same_end() {
    let start = || {
        let mut fleet = Fleet::new(7, Random::new(1));
        fleet.fate("n01", Fate::RollsBack);
        fleet.fate("n02", Fate::FailsEarly);
        fleet.fate("n03", Fate::RegistersAnew);
        fleet.fate("n04", Fate::FailsLate);
        fleet.cordon_by_hand("n05");
        fleet.give_secret("n06");
        fleet
    };
    let mut calm = start();
    let writes = lead(&mut calm, &policy(2), immortal);
    calm.check_end();
    assert!(writes > 80, "{writes}");
    for number in 0..writes {
        let mut fleet = start();
        let mut lives = [number, usize::MAX].into_iter();
        lead(&mut fleet, &policy(2), || lives.next().unwrap_or(usize::MAX));
        fleet.check_end();
        assert_eq!(fleet.end(), calm.end(), "killed before write {number}");
    }
}

/// Each seed has a fleet with other fates, and repeated controller crashes.
#[test]
fn random_fates_and_random_deaths() {
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let mut fleet = Fleet::new(12, Random::new(seed ^ 0x5eed));
        for name in fleet.names() {
            let fates = [
                Fate::Well,
                Fate::Well,
                Fate::RegistersAnew,
                Fate::RollsBack,
                Fate::FailsEarly,
                Fate::FailsLate,
                Fate::Silent,
                Fate::Lost,
            ];
            fleet.fate(&name, fates[random.below(fates.len())]);
            if random.below(4) == 0 {
                fleet.cordon_by_hand(&name);
            }
        }
        let at_once = 1 + random.below(4);
        let policy = policy(at_once);
        lead(&mut fleet, &policy, || random.below(9));
        fleet.check_end();
    }
}

#[test]
fn a_label_taken_off_in_time_leaves_no_trace() {
    for steps in 0..14 {
        let mut fleet = Fleet::new(1, Random::new(7));
        for _ in 0..steps {
            let actions = plan(&policy(1), &fleet.look());
            if let Some(action) = actions.first() {
                fleet.carry_out(action);
            }
        }
        let was_begun = fleet.has_told("n00");
        fleet.unlabel("n00");
        lead(&mut fleet, &policy(1), immortal);
        let phase = fleet.phase("n00");
        if was_begun {
            assert_eq!(phase, Some(Phase::Done), "after {steps}");
        } else {
            assert!(matches!(phase, None | Some(Phase::Cancelled | Phase::Done)), "after {steps}: {phase:?}");
        }
        assert!(fleet.is_free("n00"), "after {steps}");
    }
}

#[test]
fn a_secret_that_was_used_is_not_used_again() {
    let mut fleet = Fleet::new(1, Random::new(3));
    fleet.give_secret("n00");
    lead(&mut fleet, &policy(1), immortal);
    assert_eq!(fleet.phase("n00"), Some(Phase::Done));
    fleet.label("n00", LABEL);
    fleet.fate("n00", Fate::AnswersFromLedger);
    lead(&mut fleet, &policy(1), immortal);
    assert_eq!(fleet.phase("n00"), Some(Phase::Failed));
    assert!(fleet.is_free("n00"));
    let told = fleet.look().nodes["n00"].told.clone();
    assert!(told.is_some_and(|told| told.detail == State::Done));
}

#[test]
fn a_record_deleted_on_the_way_does_not_free_a_node_that_works() {
    let mut fleet = Fleet::new(1, Random::new(3));
    while fleet.phase("n00") != Some(Phase::Running) {
        for action in plan(&policy(1), &fleet.look()) {
            fleet.carry_out(&action);
        }
        fleet.live();
    }
    fleet.unlabel("n00");
    fleet.carry_out(&Action::Forget { node: "n00".to_owned() });
    let looks = |action: &Action| matches!(action, Action::Uncordon { .. });
    assert!(!plan(&policy(1), &fleet.look()).iter().any(looks), "it is in the middle of it");
    lead(&mut fleet, &policy(1), immortal);
    assert!(fleet.is_free("n00"), "and free when it is done");
}
