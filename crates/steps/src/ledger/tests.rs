use landfall_model::step::{Happening, Outcome, Start};

use super::*;
use crate::OnFailure;
use crate::crash_tests::script::{Answer, Calls, STATE, Script, boot, disk, plan, process};
use crate::machine::Move;
use crate::step::Found;
use landfall_durable::HostDisk;
use landfall_durable::simulated::SimulatedDisk;

fn waiting_plan() -> Plan {
    let wait = || Answer::Say(Ok(Found::Waiting { on: "approval".into() }));
    let step = Script::new("one", &Calls::default()).check([wait(), wait(), wait()]);
    plan(&[&step], OnFailure::Stop)
}

fn open(disk: &SimulatedDisk, plan: &Plan) -> Result<Ledger, LedgerError> {
    Ledger::open(Arc::new(disk.clone()), Path::new(STATE), plan, boot("a"))
}

/// Creates a disk with two generations of a ledger and returns the older path, then the newer one.
async fn two_generations() -> (SimulatedDisk, Plan, PathBuf, PathBuf) {
    let (disk, plan) = (disk(), waiting_plan());
    process(&disk, &plan, "a").await.unwrap();
    let dir = Path::new(STATE).join("test").join(plan.attempt());
    let generation = open(&disk, &plan).unwrap().record().generation;
    assert_eq!(generation, 2);
    (disk, plan, dir.join(SLOTS[1]), dir.join(SLOTS[0]))
}

#[tokio::test]
async fn the_newest_whole_generation_counts_whatever_happened_to_the_newest() {
    let (disk, plan, older, newer) = two_generations().await;
    let whole = disk.peek(&newer).unwrap();
    let previous = decode(&disk.peek(&older).unwrap()).ok().flatten().unwrap();
    let mut fallbacks = 0;
    let mut damaged: Vec<Vec<u8>> = (0..whole.len()).map(|length| whole[..length].to_vec()).collect();
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x04;
        damaged.push(flipped);
    }
    for bytes in damaged {
        disk.damage(&newer, &bytes);
        match open(&disk, &plan) {
            Ok(ledger) => {
                assert_eq!(*ledger.record(), previous);
                fallbacks += 1;
            }
            // A flipped bit increased the format number: that is rejected.
            Err(LedgerError::Newer { format, .. }) => assert_eq!(format, 5),
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(fallbacks, 2 * whole.len() - 1);
    disk.damage(&newer, &whole);
    assert_eq!(open(&disk, &plan).unwrap().record().generation, 2);
}

#[tokio::test]
async fn after_a_fallback_no_event_number_is_used_again() {
    let (disk, plan, _, newer) = two_generations().await;
    let lost = open(&disk, &plan).unwrap().record().last_sequence();
    disk.damage(&newer, b"");
    process(&disk, &plan, "a").await.unwrap();
    let ledger = open(&disk, &plan).unwrap();
    let opened = ledger.record().events_after(lost);
    assert!(matches!(opened[0].what, Happening::Opened { start: Start::Recovered, .. }), "{opened:?}");
    assert!(opened[0].sequence > lost + 1);
}

#[tokio::test]
async fn nothing_is_begun_anew_over_damage() {
    let (disk, plan, older, newer) = two_generations().await;
    disk.damage(&newer, b"");
    disk.damage(&older, b"{}\n{}\n");
    assert!(matches!(open(&disk, &plan), Err(LedgerError::Damaged { .. })));
}

#[tokio::test]
async fn a_newer_format_is_refused_even_when_an_older_record_is_there() {
    let (disk, plan, _, newer) = two_generations().await;
    disk.damage(&newer, b"{\"format\":2,\"digest\":\"other\"}\nwho knows");
    let error = open(&disk, &plan).unwrap_err();
    assert!(error.to_string().contains("has format 2; this version reads formats up to 1"), "{error}");
}

#[tokio::test]
async fn another_request_does_not_take_up_a_foreign_ledger() {
    let (disk, plan, older, newer) = two_generations().await;
    let step = Script::new("one", &Calls::default());
    let other = Plan::of("test").asked_with(b"another secret").step(step).build().unwrap();
    // The first is not finished, so the second has to wait.
    let error = open(&disk, &other).unwrap_err();
    assert!(matches!(&error, LedgerError::Unfinished { attempt } if attempt == plan.attempt()), "{error:?}");

    // An administrator abandons it; then the second may run, and the first stays unchanged.
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let abandon =
        || Ledger::abandon(&shared, Path::new(STATE), "test", plan.attempt(), "wrong target", &boot("a"));
    abandon().unwrap();
    assert!(matches!(abandon(), Err(LedgerError::Illegal(IllegalMove::Ended { .. }))));
    assert_eq!(process(&disk, &other, "a").await.unwrap(), Outcome::Done);
    assert_eq!(
        process(&disk, &plan, "a").await.unwrap(),
        Outcome::Abandoned { reason: "wrong target".into() }
    );
    assert_eq!(read_all(&disk, Path::new(STATE), "test").unwrap().len(), 2);

    // A ledger copied under the name of another attempt is detected.
    let dir = Path::new(STATE).join("test").join(other.attempt());
    for (from, slot) in [(newer, SLOTS[0]), (older, SLOTS[1])] {
        disk.damage(&dir.join(slot), &disk.peek(&from).unwrap());
    }
    let error = open(&disk, &other).unwrap_err();
    assert!(matches!(&error, LedgerError::Foreign { attempt, .. } if attempt == plan.attempt()), "{error:?}");
}

#[tokio::test]
async fn a_ledger_with_other_steps_is_refused() {
    let (disk, _, _, _) = two_generations().await;
    let renamed = plan(&[&Script::new("two", &Calls::default())], OnFailure::Stop);
    assert!(matches!(open(&disk, &renamed), Err(LedgerError::OtherSteps { .. })));
}

#[test]
fn two_processes_never_hold_one_ledger() {
    let state = tempfile::tempdir().unwrap();
    let dir = state.path().join("landfall");
    let plan = waiting_plan();
    let open = || Ledger::open(Arc::new(HostDisk), &dir, &plan, boot("a"));
    let first = open().unwrap();
    assert!(matches!(open(), Err(LedgerError::Busy { .. })));
    drop(first);
    open().unwrap();
}

#[test]
fn a_ledger_that_grows_out_of_bounds_is_an_error_and_changes_nothing() {
    let disk = disk();
    let plan = waiting_plan();
    let mut ledger = open(&disk, &plan).unwrap();
    ledger.enter(&plan).unwrap();
    let before = ledger.record().clone();
    let huge = "x".repeat(usize::try_from(MAX_LEDGER_BYTES).unwrap());
    let error = ledger.change(|record, now| record.make(0, &Move::Wait { on: huge }, None, now)).unwrap_err();
    assert!(matches!(error, LedgerError::TooLarge { .. }), "{error:?}");
    assert_eq!(*ledger.record(), before);
    assert_eq!(*open_after(ledger, &disk, &plan).record(), before);
}

fn open_after(ledger: Ledger, disk: &SimulatedDisk, plan: &Plan) -> Ledger {
    drop(ledger);
    open(disk, plan).unwrap()
}

#[test]
fn a_read_only_state_directory_is_a_clear_error() {
    let disk = SimulatedDisk::new(&["/var"]);
    let error = open(&disk, &waiting_plan()).unwrap_err();
    let told = landfall_model::chain(&error).to_string();
    assert!(
        told.starts_with("cannot write the ledger: cannot create the directory `/var/lib/landfall`"),
        "{told}"
    );
}
