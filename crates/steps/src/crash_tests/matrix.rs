use landfall_durable::simulated::{Aftermath, Data, Names};
use landfall_model::step::{Outcome, StepState};
use tokio::runtime::{Builder, Runtime};

use super::world::{Crash, Kind, Machine};
use crate::OnFailure;

/// Every kind of step, in short runs: the number of crashes and the cost of each grow with the length.
const IN_ONE_BOOT: [Kind; 4] = [Kind::Effect, Kind::File, Kind::Satisfied, Kind::Twofold];
const ACROSS_STARTS: [Kind; 4] = [Kind::Waits, Kind::Reboot, Kind::Flaky, Kind::WaitsAfter];
const BACKWARD: [Kind; 4] = [Kind::File, Kind::Twofold, Kind::Reboot, Kind::Fails];

pub(super) fn runtime() -> Runtime {
    // Paused time jumps to the next timer, so delays between attempts cost nothing.
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// Crashes once before every operation, in every world that can follow. Returns the number of crashes.
///
/// One crash before each is enough: it is also the moment after the previous one.
fn crash_everywhere(kinds: &[Kind], on_failure: OnFailure) -> usize {
    let runtime = runtime();
    let calm = Machine::new(kinds, on_failure);
    let end = calm.run(&runtime, None).unwrap();
    let mut crashed = 0;
    for (number, operation) in calm.operations().iter().enumerate() {
        let cut_off = Machine::new(kinds, on_failure);
        assert_eq!(cut_off.run(&runtime, Some(number)), None);
        for crash in cut_off.crashes() {
            let machine = cut_off.fork();
            machine.crash(crash);
            assert_eq!(
                machine.run(&runtime, None).as_ref(),
                Some(&end),
                "{crash:?} before {number}: {operation}"
            );
            crashed += 1;
        }
    }
    crashed
}

#[test]
fn a_calm_run_ends_as_it_should() {
    let kinds = [IN_ONE_BOOT, ACROSS_STARTS].concat();
    let machine = Machine::new(&kinds, OnFailure::RollBack);
    let end = machine.run(&runtime(), None).unwrap();
    assert_eq!(end.outcome, Outcome::Done);
    let skipped = StepState::Skipped { reason: "it is there".into() };
    for (kind, state) in kinds.iter().zip(&end.states) {
        assert_eq!(state, if *kind == Kind::Satisfied { &skipped } else { &StepState::Done }, "{kind:?}");
    }
    assert_eq!(end.values.len(), 1 + kinds.len());
    // Four starts write once: three for the two waits, one for the reboot. Seven steps write twice, the skipped one
    // once. Each wait and the reboot add one write, the failed attempt two.
    assert_eq!(ledger_writes(&machine), 4 + 2 * 7 + 1 + 2 + 1 + 2);
}

#[test]
fn a_crash_at_every_operation_in_one_boot_changes_nothing() {
    let crashed = crash_everywhere(&IN_ONE_BOOT, OnFailure::Stop);
    assert!(crashed >= 3 * 5 * 8, "{crashed}");
}

#[test]
fn a_crash_at_every_operation_across_starts_changes_nothing() {
    let crashed = crash_everywhere(&ACROSS_STARTS, OnFailure::Stop);
    assert!(crashed >= 3 * 5 * 17, "{crashed}");
}

#[test]
fn a_crash_at_every_operation_of_a_rollback_changes_nothing() {
    let machine = Machine::new(&BACKWARD, OnFailure::RollBack);
    let end = machine.run(&runtime(), None).unwrap();
    assert_eq!(end.outcome, Outcome::RolledBack { step: "four".into(), reason: "it cannot be done".into() });
    assert_eq!(end.present, Vec::<String>::new());
    assert!(end.files.iter().all(Option::is_none));
    let crashed = crash_everywhere(&BACKWARD, OnFailure::RollBack);
    assert!(crashed >= 3 * 5 * ledger_writes(&machine), "{crashed}");
}

fn ledger_writes(machine: &Machine) -> usize {
    let is_write = |name: &&String| name.starts_with("rename") && name.contains("ledger");
    machine.operations().iter().filter(is_write).count()
}

/// `check` of the second process sees a file whose name only the first process was about to sync.
#[test]
fn file_of_a_killed_process_survives_a_power_cut() {
    let runtime = runtime();
    let machine = Machine::new(&[Kind::File, Kind::Effect], OnFailure::Stop);
    let operation = |machine: &Machine, wanted: &str| {
        let ahead = machine.fork();
        let end = ahead.run(&runtime, None);
        (ahead.operations().iter().rposition(|operation| operation == wanted).unwrap(), end)
    };
    let (sync, end) = operation(&machine, "sync directory /etc");
    assert!(machine.run(&runtime, Some(sync)).is_none());
    machine.crash(Crash::Kill);
    let (next_step, _) = operation(&machine, "effect two");
    assert!(machine.run(&runtime, Some(next_step)).is_none());
    machine.crash(Crash::PowerCut(Aftermath { data: Data::Lost, names: Names::Lost }));
    assert_eq!(machine.run(&runtime, None), end);
}
