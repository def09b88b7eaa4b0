use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use landfall_durable::simulated::{Moment, SimulatedDisk};
use landfall_model::step::{Event, Happening, Outcome, Retry, Start, StepState};
use landfall_net::{Backoff, Retries};
use tokio_util::sync::CancellationToken;

use super::GRACE;
use crate::crash_tests::script::{Answer, Calls, STATE, Script, boot, disk, plan, process, process_until};
use crate::*;

fn says<T>(answer: T) -> Answer<T> {
    Answer::Say(Ok(answer))
}

fn fails<T>(error: StepError) -> Answer<T> {
    Answer::Say(Err(error))
}

fn wait() -> Found {
    Found::Waiting { on: "approval".into() }
}

fn reboot() -> Applied {
    Applied::RebootNeeded(Outputs::none())
}

fn calls(calls: &Calls) -> Vec<String> {
    std::mem::take(&mut *calls.lock().unwrap())
}

fn record(disk: &SimulatedDisk) -> RunRecord {
    read_all(disk, Path::new(STATE), "test").unwrap().remove(0)
}

fn state(disk: &SimulatedDisk, index: usize) -> StepState {
    record(disk).steps()[index].state.clone()
}

fn tries(number: u32) -> Limits {
    let second = Duration::from_secs(1);
    Limits {
        deadline: second * 30,
        backoff: Retries::new(Backoff::new(second, second * 2).unwrap(), number).unwrap(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_tried_again_with_pauses_and_then_left_for_later() {
    let (disk, log) = (disk(), Calls::default());
    let step = Script::new("one", &log).apply([1, 2, 3, 4].map(|_| fails(StepError::now("busy"))));
    let step = Script { limits: tries(3), ..step };
    let plan = plan(&[&step], OnFailure::Stop);
    let started = tokio::time::Instant::now();
    let outcome = process(&disk, &plan, "a").await.unwrap();
    let failed = Outcome::Failed { step: "one".into(), reason: "busy".into(), retry: Retry::Later };
    assert_eq!(outcome, failed);
    let paused = started.elapsed();
    assert!((Duration::from_millis(1500)..=Duration::from_millis(3100)).contains(&paused), "{paused:?}");
    assert_eq!(calls(&log).iter().filter(|call| *call == "apply one").count(), 3);
    // The next process has its own count.
    assert_eq!(process(&disk, &plan, "a").await.unwrap(), Outcome::Done);
    assert_eq!(record(&disk).steps()[0].attempts, 5);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_hangs_is_cut_off_at_its_deadline() {
    let (disk, log) = (disk(), Calls::default());
    let step = Script { limits: tries(1), ..Script::new("one", &log).apply([Answer::Hang]) };
    let plan = plan(&[&step], OnFailure::Stop);
    let Outcome::Failed { reason, retry, .. } = process(&disk, &plan, "a").await.unwrap() else { panic!() };
    assert_eq!((reason.as_str(), retry), ("did not complete within 30s", Retry::Later));
    assert_eq!(process(&disk, &plan, "a").await.unwrap(), Outcome::Done);
}

#[tokio::test]
async fn only_another_boot_confirms_a_reboot() {
    let (disk, log) = (disk(), Calls::default());
    let first = Script::new("one", &log).apply([says(reboot())]);
    let plan = plan(&[&first, &Script::new("two", &log)], OnFailure::Stop);
    let needed = Outcome::RebootNeeded { step: "one".into() };
    assert_eq!(process(&disk, &plan, "a").await.unwrap(), needed);
    assert_eq!(calls(&log), ["check one", "apply one"]);
    assert_eq!(process(&disk, &plan, "a").await.unwrap(), needed, "a restart is not a reboot");
    assert_eq!(calls(&log), Vec::<String>::new());
    assert_eq!(process(&disk, &plan, "b").await.unwrap(), Outcome::Done);
    assert_eq!(calls(&log), ["confirm one", "check two", "apply two", "confirm two"]);
}

#[tokio::test]
async fn a_run_that_has_ended_is_answered_from_the_ledger() {
    let (disk, log) = (disk(), Calls::default());
    let plan = plan(&[&Script::new("one", &log)], OnFailure::Stop);
    assert_eq!(process(&disk, &plan, "a").await.unwrap(), Outcome::Done);
    let (before, _) = (record(&disk), calls(&log));
    assert_eq!(process(&disk, &plan, "b").await.unwrap(), Outcome::Done);
    assert_eq!(record(&disk), before);
    assert_eq!(calls(&log), Vec::<String>::new());
}

#[tokio::test]
async fn three_boots_without_progress_are_a_failure_until_a_person_reopens_the_run() {
    let (disk, log) = (disk(), Calls::default());
    let step = Script::new("two", &log).apply([1, 2, 3].map(|_| fails(StepError::later("disk is full"))));
    let plan = plan(&[&Script::new("one", &log), &step], OnFailure::Stop);
    for boot_id in ["a", "b", "b", "c"] {
        if boot_id == "c" {
            step.apply.lock().unwrap().push_back(fails(StepError::later("disk is full")));
        }
        let outcome = process(&disk, &plan, boot_id).await.unwrap();
        assert!(matches!(outcome, Outcome::Failed { retry: Retry::Later, .. }), "{boot_id}: {outcome:?}");
    }
    step.apply.lock().unwrap().push_back(fails(StepError::later("disk is full")));
    assert!(
        !process(&disk, &plan, "d").await.unwrap().is_final(),
        "progress in the first boot does not count"
    );
    calls(&log);
    let failed = Outcome::Failed {
        step: "two".into(),
        reason: "3 boots passed without progress".into(),
        retry: Retry::Never,
    };
    assert_eq!(process(&disk, &plan, "e").await.unwrap(), failed);
    assert_eq!(process(&disk, &plan, "f").await.unwrap(), failed);
    assert_eq!(calls(&log), Vec::<String>::new(), "nothing is tried any more");

    let mut ledger = Ledger::open(Arc::new(disk.clone()), Path::new(STATE), &plan, boot("f")).unwrap();
    let told = ledger.reopen().unwrap();
    assert!(
        matches!(&told[..], [Event { what: Happening::Reopened { step }, .. }] if step == "two"),
        "{told:?}"
    );
    drop(ledger);
    assert_eq!(process(&disk, &plan, "f").await.unwrap(), Outcome::Done);
}

#[tokio::test]
async fn boots_spent_waiting_for_others_do_not_count() {
    let (disk, log) = (disk(), Calls::default());
    let step = Script::new("one", &log).check(std::iter::repeat_with(|| says(wait())).take(6));
    let plan = plan(&[&step], OnFailure::Stop);
    for boot_id in ["a", "b", "c", "d", "e", "f"] {
        let outcome = process(&disk, &plan, boot_id).await.unwrap();
        assert_eq!(outcome, Outcome::Waiting { step: "one".into(), on: "approval".into() });
    }
    assert_eq!(process(&disk, &plan, "a").await.unwrap(), Outcome::Done);
}

#[tokio::test(start_paused = true)]
async fn cancelling_stops_a_look_at_once_and_a_change_at_its_end() {
    let (disk, log) = (disk(), Calls::default());
    let first = Script::new("one", &log)
        .check([Answer::Hang])
        .apply([Answer::AfterCancel(Applied::Done(Outputs::none()))]);
    let plan = plan(&[&first, &Script::new("two", &log)], OnFailure::Stop);
    let cancelled_soon = || {
        let cancel = CancellationToken::new();
        let trigger = cancel.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            trigger.cancel();
        });
        cancel
    };
    let started = tokio::time::Instant::now();
    assert_eq!(process_until(&disk, &plan, "a", &cancelled_soon()).await.unwrap(), Outcome::Cancelled);
    assert!(started.elapsed() < Duration::from_millis(1100));
    assert_eq!(state(&disk, 0), StepState::Pending);
    // Canceled in the middle of the change, which then finishes and is confirmed.
    assert_eq!(process_until(&disk, &plan, "a", &cancelled_soon()).await.unwrap(), Outcome::Cancelled);
    assert_eq!((state(&disk, 0), state(&disk, 1)), (StepState::Done, StepState::Pending));
    assert_eq!(process(&disk, &plan, "a").await.unwrap(), Outcome::Done);
    let made = calls(&log);
    assert_eq!(
        made,
        ["check one", "check one", "apply one", "confirm one", "check two", "apply two", "confirm two"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_change_that_does_not_end_is_left_and_known_as_interrupted() {
    let (disk, log) = (disk(), Calls::default());
    let step = Script::new("one", &log).apply([Answer::Hang, Answer::Hang]);
    let plan = plan(&[&step], OnFailure::Stop);
    for (boot_id, seen) in
        [("a", None), ("a", Some("interrupted InThisBoot")), ("b", Some("interrupted InEarlierBoot"))]
    {
        let cancel = CancellationToken::new();
        let started = tokio::time::Instant::now();
        let stop = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            cancel.cancel();
        };
        let (outcome, ()) = tokio::join!(process_until(&disk, &plan, boot_id, &cancel), stop);
        match outcome.unwrap() {
            Outcome::Cancelled => {
                assert!(started.elapsed() >= GRACE);
                assert_eq!(state(&disk, 0), StepState::Applying);
            }
            outcome => assert_eq!((outcome, boot_id), (Outcome::Done, "b")),
        }
        assert_eq!(calls(&log).iter().find(|call| call.starts_with("interrupted")).map(String::as_str), seen);
    }
    assert_eq!(state(&disk, 0), StepState::Done);
}

#[tokio::test]
async fn a_step_gives_what_it_declared_and_reads_what_it_declared() {
    const A: Key<String> = Key::new("a");
    const B: Key<String> = Key::new("b");
    let log = Calls::default();
    let given = |key: &Key<String>| says(Applied::Done(Outputs::none().give(key, &"x".to_owned()).unwrap()));
    let giving = Script { gives: vec![A.slot()], ..Script::new("one", &log) };
    let cases = [
        (giving.clone(), "the step did not give `a`"),
        (Script::new("one", &log).apply([given(&B)]), "the step gave `b`, which it had not declared"),
        (
            Script { reads: Some(A), ..Script::new("one", &log) },
            "`a` is not among the declared inputs of the step",
        ),
    ];
    for (step, reason) in cases {
        let outcome = process(&disk(), &plan(&[&step], OnFailure::Stop), "a").await.unwrap();
        let failed = Outcome::Failed { step: "one".into(), reason: reason.into(), retry: Retry::Never };
        assert_eq!(outcome, failed);
    }
    let reading = Script { needs: vec![A.slot()], reads: Some(A), ..Script::new("two", &log) };
    let fitting = plan(&[&giving.apply([given(&A)]), &reading], OnFailure::Stop);
    assert_eq!(process(&disk(), &fitting, "a").await.unwrap(), Outcome::Done);
}

#[tokio::test(start_paused = true)]
async fn a_rollback_goes_on_past_what_cannot_be_taken_back_and_can_be_reopened() {
    let (disk, log) = (disk(), Calls::default());
    let one = Script::new("one", &log).roll_back([fails(StepError::now("busy"))]);
    let two = Script::new("two", &log).roll_back([fails(StepError::never("gone"))]);
    let three = Script::new("three", &log).apply([fails(StepError::never("broken"))]);
    let four = Script::new("four", &log);
    let plan = plan(&[&one, &two, &three, &four], OnFailure::RollBack);
    let outcome = process(&disk, &plan, "a").await.unwrap();
    let stuck = vec!["two".to_owned()];
    assert_eq!(outcome, Outcome::RollbackFailed { step: "three".into(), reason: "broken".into(), stuck });
    let made = calls(&log);
    let back: Vec<_> = made.iter().filter(|call| call.starts_with("roll back")).collect();
    assert_eq!(back, ["roll back three", "roll back two", "roll back one", "roll back one"]);
    assert!(!made.contains(&"check four".to_owned()));

    let mut ledger = Ledger::open(Arc::new(disk.clone()), Path::new(STATE), &plan, boot("a")).unwrap();
    ledger.reopen().unwrap();
    drop(ledger);
    let outcome = process(&disk, &plan, "a").await.unwrap();
    assert_eq!(outcome, Outcome::RolledBack { step: "three".into(), reason: "broken".into() });
    assert_eq!(calls(&log), ["roll back two"]);
}

#[tokio::test]
async fn what_was_found_staged_asks_for_the_reboot_without_being_done_again() {
    let (disk, log) = (disk(), Calls::default());
    let step = Script::new("one", &log).check([says(Found::RebootNeeded(Outputs::none()))]);
    let plan = plan(&[&step], OnFailure::Stop);
    assert!(matches!(process(&disk, &plan, "a").await.unwrap(), Outcome::RebootNeeded { .. }));
    assert_eq!(process(&disk, &plan, "b").await.unwrap(), Outcome::Done);
    assert_eq!(calls(&log), ["check one", "confirm one"]);
}

#[tokio::test]
async fn the_story_tells_how_each_process_found_the_run() {
    let (disk, log) = (disk(), Calls::default());
    let step = Script::new("one", &log).check([says(wait()), says(wait())]).apply([says(reboot())]);
    let plan = plan(&[&step], OnFailure::Stop);
    for boot_id in ["a", "a", "a", "b"] {
        process(&disk, &plan, boot_id).await.unwrap();
    }
    let record = record(&disk);
    let starts = record.events_after(0).iter().filter_map(|event| match &event.what {
        Happening::Opened { start, .. } => Some(*start),
        _ => None,
    });
    let starts: Vec<_> = starts.collect();
    assert_eq!(starts, [Start::Fresh, Start::Restarted, Start::Restarted, Start::Rebooted]);
    let last = record.events_after(0).last().unwrap();
    assert_eq!(last.what, Happening::Ended { outcome: Outcome::Done });
    assert_eq!(record.events_after(last.sequence - 1), std::slice::from_ref(last));
}

#[tokio::test(start_paused = true)]
async fn what_does_not_hold_after_the_reboot_is_looked_at_again_and_staged_anew() {
    let (disk, log) = (disk(), Calls::default());
    let step = Script::new("one", &log).apply([says(reboot()), says(reboot())]).confirm([
        fails(StepError::now("old version still runs")),
        says(Confirmed::Waiting { on: "it".into() }),
    ]);
    let plan = plan(&[&step], OnFailure::Stop);
    let needed = Outcome::RebootNeeded { step: "one".into() };
    assert_eq!(process(&disk, &plan, "a").await.unwrap(), needed);
    assert_eq!(process(&disk, &plan, "b").await.unwrap(), needed, "confirm failed, so it was done again");
    assert!(matches!(process(&disk, &plan, "c").await.unwrap(), Outcome::Waiting { .. }));
    step.check
        .lock()
        .unwrap()
        .push_back(says(Found::Satisfied { reason: "runs".into(), outputs: Outputs::none() }));
    assert_eq!(process(&disk, &plan, "c").await.unwrap(), Outcome::Done);
    let once = ["check one", "apply one"];
    let again = ["confirm one", "check one", "apply one"];
    let last = ["confirm one", "check one", "confirm one"];
    assert_eq!(calls(&log), [&once[..], &again[..], &last[..]].concat());
    assert_eq!(state(&disk, 0), StepState::Done, "not skipped: it was begun");
}

#[tokio::test]
async fn a_failing_disk_stops_the_run_before_anything_is_done_unrecorded() {
    let log = Calls::default();
    let plan = plan(&[&Script::new("one", &log), &Script::new("two", &log)], OnFailure::Stop);
    let calm = disk();
    process(&calm, &plan, "a").await.unwrap();
    calls(&log);
    for number in 0..calm.count() {
        let disk = disk();
        disk.cut_power_at(number, Moment::Before);
        process(&disk, &plan, "a").await.unwrap_err();
        let made = calls(&log);
        disk.restart_process();
        let recorded = read_all(&disk, Path::new(STATE), "test").unwrap();
        for (index, call) in ["apply one", "apply two"].into_iter().enumerate() {
            if made.iter().any(|made| made == call) {
                assert!(recorded[0].steps()[index].attempts > 0, "{call} was made and not recorded before");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_that_reboots_in_circles_is_stopped() {
    let (disk, log) = (disk(), Calls::default());
    let once = || Script::new("one", &log).apply((0..9).map(|_| says(reboot())));
    let step = once().confirm((0..9).map(|_| fails(StepError::now("old version still runs"))));
    let plan = plan(&[&step], OnFailure::Stop);
    let mut boots = 0;
    let outcome = loop {
        let outcome = process(&disk, &plan, &format!("{boots:x}")).await.unwrap();
        if outcome.is_final() {
            break outcome;
        }
        assert!(matches!(outcome, Outcome::RebootNeeded { .. }), "{outcome:?}");
        boots += 1;
        assert!(boots < 9);
    };
    assert!(matches!(outcome, Outcome::Failed { retry: Retry::Never, .. }), "{outcome:?}");
    // The first reboot counts as progress; the next three were loops.
    assert_eq!((boots, record(&disk).steps()[0].reboots), (4, 4));
}

#[tokio::test]
async fn what_has_not_given_up_cannot_be_reopened() {
    let (disk, log) = (disk(), Calls::default());
    let open = |plan: &Plan| Ledger::open(Arc::new(disk.clone()), Path::new(STATE), plan, boot("a")).unwrap();
    let refused = |plan: &Plan| {
        let error = open(plan).reopen().unwrap_err();
        assert!(matches!(error, LedgerError::Illegal(IllegalMove::NothingToReopen)), "{error:?}");
    };
    let done = plan(&[&Script::new("one", &log)], OnFailure::Stop);
    refused(&done);
    assert_eq!(process(&disk, &done, "a").await.unwrap(), Outcome::Done);
    refused(&done);

    // The failed step was never started. The one before it was, and its rollback fails at first.
    let one = Script::new("one", &log).roll_back([fails(StepError::never("gone"))]);
    let two = Script::new("two", &log).check([fails(StepError::never("broken"))]);
    let back = Plan::of("back").on_failure(OnFailure::RollBack).step(one).step(two).build().unwrap();
    assert!(matches!(process(&disk, &back, "a").await.unwrap(), Outcome::RollbackFailed { .. }));
    let told = open(&back).reopen().unwrap();
    assert!(matches!(&told[0].what, Happening::Reopened { step } if step == "one"), "{told:?}");
    assert!(matches!(process(&disk, &back, "a").await.unwrap(), Outcome::RolledBack { .. }));
    refused(&back);
}
