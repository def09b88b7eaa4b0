//! Complete runs on a simulated machine that loses power before every operation of every step.

pub(crate) mod machine;

use landfall_model::step::Outcome;
use tokio::runtime::{Builder, Runtime};

use machine::{Crash, Machine, Scenario};

pub(crate) fn runtime() -> Runtime {
    // Paused time jumps to the next timer.
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// Crashes once before every operation, in every state of the disk that can follow. Returns the number of crashes.
fn crash_everywhere(scenario: Scenario) -> usize {
    let runtime = runtime();
    let calm = Machine::new(scenario);
    let end = calm.run(&runtime, None).unwrap();
    assert_eq!(end.outcome, Outcome::Done);
    let mut crashes = 0;
    // Operations that set up the disk are not interrupted.
    let before = Machine::new(scenario).operations().len();
    for (number, operation) in calm.operations().iter().enumerate().skip(before) {
        let cut_off = Machine::new(scenario);
        assert!(cut_off.run(&runtime, Some(number)).is_none());
        for crash in cut_off.crashes() {
            let machine = cut_off.fork();
            machine.crash(crash);
            machine.check_promises(&format!("{crash:?} before {number}: {operation}"));
            let found = machine.run(&runtime, None);
            assert_eq!(found.as_ref(), Some(&end), "{crash:?} before {number}: {operation}");
            crashes += 1;
        }
    }
    crashes
}

#[test]
fn defect_04_a_calm_run_boots_once_and_writes_the_environment_last() {
    let machine = Machine::new(Scenario::UpdateAndRuntime);
    let end = machine.run(&runtime(), None).unwrap();
    assert_eq!(end.outcome, Outcome::Done);
    assert_eq!((machine.boots(), machine.updates()), (1, 1), "one reboot, one update");
    assert_eq!(
        end.kubelet_env.as_deref(),
        Some("KUBELET_IMAGE_URL=quay.io/h\nKUBELET_IMAGE_TAG=v1.9.3_c.0\n")
    );
    assert_eq!(end.selector.as_deref(), Some("tectonic\n"));
    assert_eq!(
        machine.images().iter().filter(|image| image.is_some()).count(),
        2,
        "for both operating systems"
    );
    let operations = machine.operations();
    let position =
        |what: &str| operations.iter().rposition(|name| name.starts_with("rename") && name.ends_with(what));
    let env = position("/etc/kubernetes/kubelet.env").unwrap();
    assert!(position("docker:17.03.torcx.tgz").unwrap() < env && position("next-profile").unwrap() < env);
}

#[test]
fn a_crash_at_every_operation_changes_nothing() {
    let crashes = crash_everywhere(Scenario::UpdateAndRuntime);
    assert!(crashes > 400, "{crashes}");
}

#[test]
fn a_crash_at_every_operation_without_a_reboot_changes_nothing() {
    let crashes = crash_everywhere(Scenario::EverythingRuns);
    assert!(crashes > 100, "{crashes}");
}

#[test]
fn two_crashes_in_a_row_change_nothing() {
    let runtime = runtime();
    let calm = Machine::new(Scenario::UpdateAndRuntime);
    let end = calm.run(&runtime, None).unwrap();
    let count = calm.operations().len();
    let before = Machine::new(Scenario::UpdateAndRuntime).operations().len();
    for first in (before..count).step_by(7) {
        let machine = Machine::new(Scenario::UpdateAndRuntime);
        assert!(machine.run(&runtime, Some(first)).is_none());
        machine.crash(Crash::worst());
        let second = machine.operations().len() + 3 + first % 11;
        if machine.run(&runtime, Some(second)).is_none() {
            machine.crash(Crash::Kill);
            assert_eq!(machine.run(&runtime, None).as_ref(), Some(&end), "{first}, {second}");
        }
    }
}
