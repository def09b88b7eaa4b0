//! Complete attempts on a simulated machine that loses power before every operation of every step.

mod environment;
mod kubelet;
mod machine;
mod named;
mod served;

use landfall_model::step::Outcome;
use tokio::runtime::{Builder, Runtime};

use crate::in_place::flavour::Flavour;
use machine::{Crash, End, Fault, Machine};

fn runtime() -> Runtime {
    // Paused time jumps to the next timer.
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// Crashes once before every durable operation, in every state of the disk that can follow. Returns the number of
/// crashes.
///
/// Between two durable operations all states look the same to the next process.
fn crash_everywhere(flavour: Flavour, fault: Fault) -> usize {
    let runtime = runtime();
    let calm = Machine::new(flavour, fault);
    let before = calm.operations().len();
    let end = calm.run(&runtime, None).unwrap();
    let mut crashes = 0;
    let lasting =
        |operation: &str| ["rename", "effect", "remove"].iter().any(|kind| operation.starts_with(kind));
    for (number, operation) in calm.operations().iter().enumerate().skip(before) {
        if !lasting(operation) {
            continue;
        }
        let cut_off = Machine::new(flavour, fault);
        assert!(cut_off.run(&runtime, Some(number)).is_none(), "{number}: {operation}");
        for crash in cut_off.crashes() {
            let machine = cut_off.fork();
            let when = format!("{crash:?} before {number}: {operation}");
            machine.crash(crash);
            let found = machine.run(&runtime, None);
            assert_eq!(found.as_ref(), Some(&end), "{when}");
            machine.check_end(&when);
            crashes += 1;
        }
    }
    crashes
}

#[test]
fn a_calm_attempt_ends_well_with_everything_cleared_up() {
    for flavour in [Flavour::Rhcos, Flavour::Rhel] {
        let machine = Machine::new(flavour, Fault::None);
        let end = machine.run(&runtime(), None).unwrap();
        assert_eq!(end.outcome, Outcome::Done, "{flavour:?}");
        assert_eq!(end.applied, 1, "{flavour:?}");
        assert_eq!(machine.boots(), 2, "{flavour:?}: one to go down, one for the new life");
        assert_eq!(machine.downloads(), 1, "{flavour:?}: what the preflight got is what was applied");
        machine.check_end("calm");
    }
}

#[test]
fn power_cuts_at_every_write_change_nothing_on_rhcos() {
    let crashes = crash_everywhere(Flavour::Rhcos, Fault::None);
    assert!(crashes > 100, "{crashes}");
}

#[test]
fn power_cuts_at_every_write_change_nothing_on_rhel() {
    let crashes = crash_everywhere(Flavour::Rhel, Fault::None);
    assert!(crashes > 100, "{crashes}");
}

/// I5: in the original the kubelet was stopped before it was certain that the new configuration applies, without a
/// rollback.
#[test]
fn i5_what_fails_is_taken_back_whatever_happens_meanwhile() {
    for flavour in [Flavour::Rhcos, Flavour::Rhel] {
        let machine = Machine::new(flavour, Fault::Apply);
        let end = machine.run(&runtime(), None).unwrap();
        assert!(matches!(end.outcome, Outcome::RolledBack { .. }), "{:?}", end.outcome);
        assert_eq!(end.applied, 0);
        machine.check_end("calm");
    }
    let crashes = crash_everywhere(Flavour::Rhcos, Fault::Apply);
    assert!(crashes > 100, "{crashes}");
}

/// I8: in the original an ended pod was started again while the label was still set, and ran a second time.
#[test]
fn i8_a_label_that_comes_back_does_not_run_it_twice() {
    let runtime = runtime();
    let machine = Machine::new(Flavour::Rhcos, Fault::None);
    let end = machine.run(&runtime, None).unwrap();
    machine.label_again();
    let again = machine.run(&runtime, None).unwrap();
    assert_eq!((again.outcome, again.applied), (end.outcome, end.applied), "answered from the ledger");
    assert_eq!((machine.boots(), machine.downloads()), (2, 1));
}

#[test]
fn three_boots_without_progress_are_a_failure() {
    let machine = Machine::new(Flavour::Rhcos, Fault::DaemonDiesWithMachine);
    let end = machine.run(&runtime(), None).unwrap();
    let Outcome::RolledBack { reason, .. } = &end.outcome else { panic!("{:?}", end.outcome) };
    assert!(reason.contains("boot"), "{reason}");
    machine.check_end("after three boots");
}

#[test]
fn a_preflight_that_fails_touches_nothing() {
    let machine = Machine::new(Flavour::Rhcos, Fault::Preflight);
    let end = machine.run(&runtime(), None).unwrap();
    assert!(matches!(&end.outcome, Outcome::RolledBack { step, .. } if step == "preflight"), "{end:?}");
    assert_eq!((end.applied, machine.boots()), (0, 0));
    machine.check_end("after a failed preflight");
}

#[test]
fn two_crashes_in_a_row_change_nothing() {
    let runtime = runtime();
    let calm = Machine::new(Flavour::Rhcos, Fault::None);
    let before = calm.operations().len();
    let end = calm.run(&runtime, None).unwrap();
    let count = calm.operations().len();
    for first in (before..count).step_by(29) {
        let machine = Machine::new(Flavour::Rhcos, Fault::None);
        assert!(machine.run(&runtime, Some(first)).is_none());
        machine.crash(Crash::worst());
        let second = machine.operations().len() + 3 + first % 11;
        if machine.run(&runtime, Some(second)).is_none() {
            machine.crash(Crash::Kill);
            assert_eq!(machine.run(&runtime, None).as_ref(), Some(&end), "{first}, {second}");
        }
        machine.check_end(&format!("{first}, {second}"));
    }
}

/// 500 attempts, each with a crash at a random moment and most with a second one, at every kind of operation, durable
/// or not. The seeds are always the same.
#[test]
fn five_hundred_random_kills_change_nothing() {
    let runtime = runtime();
    for (flavour, fault, seeds) in [
        (Flavour::Rhcos, Fault::None, 0..200_u64),
        (Flavour::Rhel, Fault::None, 200..400),
        (Flavour::Rhcos, Fault::Apply, 400..500),
    ] {
        let calm = Machine::new(flavour, fault);
        let before = calm.operations().len();
        let end = calm.run(&runtime, None).unwrap();
        let count = calm.operations().len() - before;
        for seed in seeds {
            let mut random = Random::new(seed);
            let machine = Machine::new(flavour, fault);
            assert!(machine.run(&runtime, Some(before + random.below(count))).is_none(), "seed {seed}");
            let crashes = machine.crashes();
            machine.crash(crashes[random.below(crashes.len())]);
            let second = machine.operations().len() + random.below(count);
            let mut found = machine.run(&runtime, Some(second));
            if found.is_none() {
                machine.crash(Crash::Kill);
                found = machine.run(&runtime, None);
            }
            let found = found.unwrap();
            // A daemon interrupted right after its last rename has applied the configuration without counting it.
            assert!(found.applied <= end.applied, "seed {seed}: applied {} times", found.applied);
            let told = |end: &End| (end.outcome.clone(), end.new_life, end.labelled);
            assert_eq!(told(&found), told(&end), "seed {seed}");
            machine.check_end(&format!("seed {seed}"));
        }
    }
}

/// A small random number generator; the same seed gives the same numbers.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % u64::try_from(limit).unwrap()).unwrap()
    }
}
