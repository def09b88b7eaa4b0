use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::crash_tests::script::{Calls, Script, boot, plan};

const STEPS: usize = 4;

fn moves() -> impl Strategy<Value = Move> {
    let text = || "x".to_owned();
    prop_oneof![
        4 => Just(Move::Begin),
        1 => Just(Move::Skip { reason: text() }),
        4 => Just(Move::Finish),
        2 => Just(Move::AskReboot),
        1 => Just(Move::Wait { on: text() }),
        1 => Just(Move::Fail { reason: text(), retry: Retry::Later }),
        1 => Just(Move::Fail { reason: text(), retry: Retry::Never }),
        2 => Just(Move::RollBack),
        2 => Just(Move::FinishRollBack),
        1 => Just(Move::FailRollBack { reason: text() }),
        1 => Just(Move::Reopen),
    ]
}

/// Returns the transition with which the engine would start the next action.
fn first_move(record: &RunRecord) -> Option<(usize, Move)> {
    match record.next() {
        Todo::Try(index) => Some((index, Move::Begin)),
        Todo::Confirm(index) => Some((index, Move::Finish)),
        Todo::RollBack(index) if record.steps[index].state == StepState::RollingBack => {
            Some((index, Move::FinishRollBack))
        }
        Todo::RollBack(index) => Some((index, Move::RollBack)),
        Todo::Stop(_) => None,
    }
}

fn check_whole(record: &RunRecord) -> Result<(), TestCaseError> {
    let states: Vec<_> = record.steps.iter().map(|step| &step.state).collect();
    let front = states.iter().position(|state| !state.is_behind()).unwrap_or(STEPS);
    if record.failure.is_none() {
        let untouched = states.iter().skip(front + 1).all(|state| **state == StepState::Pending);
        prop_assert!(untouched, "a step ran before its turn: {states:?}");
    }
    for step in &record.steps {
        prop_assert!(step.state != StepState::Applying || step.attempts > 0);
        prop_assert!(step.state != StepState::Pending || step.attempts == 0);
        let skipped = matches!(step.state, StepState::Skipped { .. });
        prop_assert!(!skipped || step.attempts == 0);
    }
    let going_back = states.iter().any(|state| {
        matches!(state, StepState::RollingBack | StepState::RolledBack | StepState::RollbackFailed { .. })
    });
    prop_assert!(!going_back || (record.failure.is_some() && record.on_failure == OnFailure::RollBack));
    prop_assert!(record.history.len() <= MAX_HISTORY);
    prop_assert!(record.history.windows(2).all(|pair| pair[0].sequence + 1 == pair[1].sequence));
    prop_assert_eq!(record.history.last().map_or(0, |event| event.sequence), record.sequence);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Invariants for any transition, order and boot.
    ///
    /// The record stays consistent, a rejection changes nothing, and the announced next action is allowed. A run that
    /// has ended stays ended until it is reopened.
    #[test]
    fn the_record_stays_whole(
        roll_back: bool,
        asked in vec((prop::option::weighted(0.4, 0..=STEPS), moves(), 0..3u8, 0..12u8), 1..60),
    ) {
        let log = Calls::default();
        let steps = ["one", "two", "three", "four"].map(|name| Script::new(name, &log));
        let on_failure = if roll_back { OnFailure::RollBack } else { OnFailure::Stop };
        let plan = plan(&steps.iter().collect::<Vec<_>>(), on_failure);
        let boots = ["a", "b", "c"].map(boot);
        let mut record = RunRecord::new(&plan, &boots[0]);
        for (index, wanted, which, chance) in asked {
            let now = Now { boot: &boots[usize::from(which)], time: Timestamp::UNIX_EPOCH };
            if now.boot.as_str() != record.boot.id || record.sequence == 0 {
                if record.ended().is_some() {
                    continue;
                }
                let idle = record.boot.idle;
                record.enter(plan.titles(), false, now).unwrap();
                prop_assert!(record.boot.idle <= idle + 1 && record.boot.idle <= MAX_IDLE_BOOTS);
            }
            if chance == 0 {
                let ended = record.ended().is_some();
                prop_assert_eq!(record.clone().abandon("x".into(), now).is_err(), ended);
            }
            if let Some((index, first)) = first_move(&record) {
                let allowed = record.clone().make(index, &first, None, now);
                prop_assert!(allowed.is_ok(), "{first:?} of {index}: {allowed:?} in {record:#?}");
            }
            // Without an index, use the current step, so that long runs occur.
            let turn = first_move(&record).map_or(0, |(index, _)| index);
            let index = index.unwrap_or(turn);
            let before = record.clone();
            let mut after = record.clone();
            if after.make(index, &wanted, None, now).is_err() {
                prop_assert_eq!(after, before);
                continue;
            }
            prop_assert!(after.sequence > before.sequence);
            let changed = (0..STEPS).filter(|at| before.steps[*at] != after.steps[*at]);
            prop_assert!(changed.eq([index]) || before.steps == after.steps);
            prop_assert!(before.ended().is_none() || wanted == Move::Reopen, "{wanted:?} after the end");
            let went_back = matches!(wanted, Move::RollBack | Move::FinishRollBack | Move::FailRollBack { .. });
            prop_assert!(!before.steps[index].state.is_behind() || went_back, "{wanted:?} of a step that is done");
            record = after;
            check_whole(&record)?;
        }
    }
}

#[test]
fn the_history_is_bounded_and_says_where_it_begins() {
    let log = Calls::default();
    let plan = plan(&[&Script::new("one", &log)], OnFailure::Stop);
    let boot = boot("a");
    let now = Now { boot: &boot, time: Timestamp::UNIX_EPOCH };
    let mut record = RunRecord::new(&plan, &boot);
    for _ in 0..1000 {
        record.enter(plan.titles(), false, now).unwrap();
    }
    assert_eq!(record.events_after(0).len(), MAX_HISTORY);
    assert_eq!(record.events_after(0)[0].sequence, 1000 - MAX_HISTORY as u64 + 1);
    assert_eq!(record.events_after(999).len(), 1);
    assert_eq!(record.events_after(1000).len(), 0);
}
