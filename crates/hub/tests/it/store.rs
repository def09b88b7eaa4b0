//! Tests that every store must pass, and tests of individual stores.

mod bundles;
mod forgotten;
mod trust;

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use landfall_hub::NodeName;
use landfall_hub::store::{
    Arrival, FleetQuery, NEW_NODES_A_MINUTE, Outcome, PostgresPlace, PostgresStore, Refusal, SqliteStore,
    Standing, Store, StoreError,
};
use landfall_model::report::{Report, State};
use landfall_testkit::{Postgres, have};
use sha2::{Digest as _, Sha256};

use crate::bed::{envelope, failed, no_dns, running, succeeded};

fn now() -> Timestamp {
    Timestamp::now()
}

pub(crate) fn name(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

pub(crate) fn arrival(node: &str, boot: &str, sequence: u64, report: Report) -> Arrival {
    let envelope = envelope(node, sequence, report);
    let text = serde_json::to_string(&envelope.report).unwrap();
    let mut identity = envelope.node.clone();
    identity.boot_id = Some(boot.to_owned());
    Arrival {
        id: envelope.id,
        node: name(node),
        identity,
        boot_number: None,
        sequence,
        time: envelope.time,
        received: now(),
        verdict: envelope.report.verdict.clone(),
        digest: Sha256::digest(text.as_bytes()).into(),
        words: text.clone(),
        report: text,
        key: None,
        standing: Standing::Trusted,
    }
}

pub(crate) async fn accept(store: &dyn Store, arrival: &Arrival) -> Result<Outcome, Refusal> {
    store.accept(vec![arrival.clone()]).await.unwrap().pop().unwrap()
}

async fn state(store: &dyn Store, node: &str) -> State {
    store.node(name(node)).await.unwrap().unwrap().line.state
}

/// Late and repeated reports do not change the displayed state.
async fn late_report_does_not_change_verdict(store: &dyn Store) {
    let (one, other) = (arrival("asked", "b", 1, running()), arrival("asked", "b", 2, running()));
    accept(store, &one).await.unwrap();
    assert_eq!(store.has(vec![other.id, one.id]).await.unwrap(), [one.id]);
    let second = arrival("order", "a", 2, no_dns());
    let first = arrival("order", "a", 1, running());
    assert_eq!(accept(store, &second).await, Ok(Outcome::Stored));
    assert_eq!(accept(store, &first).await, Ok(Outcome::Late));
    assert_eq!(accept(store, &first).await, Ok(Outcome::Duplicate));
    assert_eq!(accept(store, &second).await, Ok(Outcome::Duplicate));
    assert_eq!(state(store, "order").await, State::Failed);
    let mut forged = second.clone();
    forged.sequence = 3;
    assert_eq!(accept(store, &forged).await, Err(Refusal::IdTaken));
    let history = store.history(name("order"), None, 10).await.unwrap();
    assert_eq!(history.iter().map(|turn| turn.late).collect::<Vec<_>>(), [true, false]);
    // Two reports of one batch are applied in their order.
    let pair = vec![arrival("order", "a", 3, running()), arrival("order", "a", 4, no_dns())];
    assert_eq!(store.accept(pair).await.unwrap(), [Ok(Outcome::Stored), Ok(Outcome::Stored)]);
    assert_eq!(state(store, "order").await, State::Failed);
}

/// The first key that signs is pinned, even if the signed report repeats an unsigned one.
async fn first_key_is_pinned(store: &dyn Store) {
    let said = |sequence, key: Option<&[u8]>| Arrival {
        key: key.map(<[u8]>::to_vec),
        ..arrival("pins", "a", sequence, running())
    };
    accept(store, &said(1, None)).await.unwrap();
    accept(store, &said(2, Some(b"one"))).await.unwrap();
    for (sequence, key) in [(3, None), (4, Some(&b"other"[..]))] {
        let refused = accept(store, &said(sequence, key)).await;
        assert!(matches!(refused, Err(Refusal::WrongKey)), "{refused:?}");
    }
    accept(store, &said(5, Some(b"one"))).await.unwrap();
}

/// A hung node reports for how long it has been hung; a new duration alone is not a change.
async fn hung_duration_is_not_a_change(store: &dyn Store) {
    let hung = |minutes: u32| {
        let mut report = failed("stage-hung", &format!("`join` has been open for {minutes} min"), "waiting");
        report.verdict.state = State::Hung;
        report
    };
    accept(store, &arrival("hangs", "a", 1, hung(30))).await.unwrap();
    let since = store.node(name("hangs")).await.unwrap().unwrap().line.since;
    accept(store, &arrival("hangs", "a", 2, hung(31))).await.unwrap();
    let both = vec![arrival("hangs", "a", 3, hung(32)), arrival("hangs", "a", 4, hung(33))];
    store.accept(both).await.unwrap();
    let line = store.node(name("hangs")).await.unwrap().unwrap().line;
    assert_eq!((line.title.as_str(), line.since), ("`join` has been open for 33 min", since));
    assert_eq!(store.history(name("hangs"), None, 10).await.unwrap().len(), 1);
    // A different phase, and then a failure, are changes.
    let mut elsewhere = hung(1);
    elsewhere.verdict.phase = None;
    accept(store, &arrival("hangs", "a", 5, elsewhere)).await.unwrap();
    accept(store, &arrival("hangs", "a", 6, failed("disk-full", "Full", "no space"))).await.unwrap();
    accept(store, &arrival("hangs", "a", 7, failed("disk-full", "Fuller", "no space"))).await.unwrap();
    assert_eq!(store.history(name("hangs"), None, 10).await.unwrap().len(), 4);
}

/// Returns a report of another boot, with the boot's number and the second in which the report was made.
fn of_boot(node: &str, boot: (&str, Option<u64>), sequence: u64, second: i64, report: Report) -> Arrival {
    let time = Timestamp::from_second(second).unwrap();
    Arrival { boot_number: boot.1, time, ..arrival(node, boot.0, sequence, report) }
}

/// The sequence restarts with an unknown boot. Boots are ordered by their number or, without a number, by time.
async fn new_boot_restarts_sequence(store: &dyn Store) {
    let (a, b) = (("a", None), ("b", None));
    assert_eq!(accept(store, &of_boot("reboots", a, 7, 100, no_dns())).await, Ok(Outcome::Stored));
    assert_eq!(accept(store, &of_boot("reboots", b, 1, 200, running())).await, Ok(Outcome::Stored));
    assert_eq!(state(store, "reboots").await, State::Running);
    assert_eq!(accept(store, &of_boot("reboots", a, 8, 110, no_dns())).await, Ok(Outcome::Late));
    assert_eq!(state(store, "reboots").await, State::Running);
    let node = store.node(name("reboots")).await.unwrap().unwrap();
    assert_eq!((node.boots, node.sequence), (2, 1));
}

/// Reports of an earlier boot can arrive after those of the current one, from a neighbor or a spool.
async fn earlier_boot_is_late(store: &dyn Store) {
    // Boots without a number are ordered by the clock.
    let (a, b) = (("a", None), ("b", None));
    assert_eq!(accept(store, &of_boot("clock", b, 1, 200, running())).await, Ok(Outcome::Stored));
    assert_eq!(accept(store, &of_boot("clock", a, 7, 100, no_dns())).await, Ok(Outcome::Late));
    assert_eq!(accept(store, &of_boot("clock", b, 2, 210, succeeded())).await, Ok(Outcome::Stored));
    assert_eq!(state(store, "clock").await, State::Succeeded);
    // A boot becomes the current one again with a later report.
    assert_eq!(accept(store, &of_boot("clock", a, 9, 300, no_dns())).await, Ok(Outcome::Stored));
    assert_eq!(accept(store, &of_boot("clock", b, 3, 290, running())).await, Ok(Outcome::Late));
    assert_eq!(accept(store, &of_boot("clock", b, 4, 310, running())).await, Ok(Outcome::Stored));
    assert_eq!(store.node(name("clock")).await.unwrap().unwrap().boots, 2);

    // Boots with a number ignore the clock, which is wrong in both boots here.
    let (first, second) = (("a", Some(1)), ("b", Some(2)));
    assert_eq!(accept(store, &of_boot("counted", second, 1, 30, running())).await, Ok(Outcome::Stored));
    assert_eq!(accept(store, &of_boot("counted", first, 7, 900, no_dns())).await, Ok(Outcome::Late));
    assert_eq!(accept(store, &of_boot("counted", first, 8, 901, no_dns())).await, Ok(Outcome::Late));
    assert_eq!(accept(store, &of_boot("counted", second, 2, 31, succeeded())).await, Ok(Outcome::Stored));
    let third = vec![
        of_boot("counted", ("c", Some(3)), 1, 2, running()),
        of_boot("counted", second, 3, 32, no_dns()),
        of_boot("counted", ("c", Some(3)), 2, 3, running()),
    ];
    let (stored, late) = (Ok(Outcome::Stored), Ok(Outcome::Late));
    assert_eq!(store.accept(third).await.unwrap(), [stored, late, stored]);
    let node = store.node(name("counted")).await.unwrap().unwrap();
    assert_eq!((node.line.state, node.boots, node.sequence), (State::Running, 3, 2));

    // A clock that was years ahead does not block the next boot.
    let ahead = now().as_second() + 1_000_000_000;
    assert_eq!(accept(store, &of_boot("ahead", a, 1, ahead, no_dns())).await, Ok(Outcome::Stored));
    assert_eq!(accept(store, &arrival("ahead", "b", 1, running())).await, Ok(Outcome::Stored));

    // The agent was replaced in the middle of a boot and counts boots from then on.
    let mid = now().as_second() - 1000;
    assert_eq!(accept(store, &of_boot("replaced", a, 1, mid, running())).await, Ok(Outcome::Stored));
    assert_eq!(
        accept(store, &of_boot("replaced", ("a", Some(5)), 2, mid, running())).await,
        Ok(Outcome::Stored)
    );
    assert_eq!(
        accept(store, &of_boot("replaced", ("z", Some(4)), 9, mid + 500, no_dns())).await,
        Ok(Outcome::Late)
    );
    assert_eq!(
        accept(store, &of_boot("replaced", ("a", Some(5)), 3, mid, running())).await,
        Ok(Outcome::Stored)
    );

    // Many late boots do not evict the current one.
    for number in 1..=70 {
        let boot = format!("l{number}");
        let late = of_boot("counted", (&boot, Some(1)), 1, 1, running());
        assert_eq!(accept(store, &late).await, Ok(Outcome::Late));
    }
    assert_eq!(accept(store, &of_boot("counted", ("c", Some(3)), 3, 4, running())).await, stored);
}

/// A deleted unsigned node may report again, including reports that it sent before.
async fn deleted_unsigned_node_reports_again(store: &dyn Store) {
    let reports: Vec<Arrival> = (1..=3).map(|sequence| arrival("again", "a", sequence, running())).collect();
    store.accept(reports.clone()).await.unwrap();
    assert!(store.forget(name("again")).await.unwrap());
    assert!(!store.forget(name("again")).await.unwrap());
    assert!(store.node(name("again")).await.unwrap().is_none());
    assert_eq!(store.has(vec![reports[1].id]).await.unwrap(), [reports[1].id], "it was acknowledged");
    // A report of another node does not reuse the deleted node's rows.
    accept(store, &arrival("other", "a", 1, running())).await.unwrap();
    assert_eq!(accept(store, &reports[2]).await, Ok(Outcome::Stored));
    assert_eq!(accept(store, &reports[2]).await, Ok(Outcome::Duplicate));
    assert_eq!(accept(store, &reports[0]).await, Ok(Outcome::Late));
    let node = store.node(name("again")).await.unwrap().unwrap();
    assert_eq!((node.boots, node.sequence, node.reports), (1, 3, 1));
    // The ID belongs to the other node while that report is stored.
    let mut stolen = arrival("other", "a", 2, running());
    stolen.id = reports[2].id;
    assert_eq!(accept(store, &stolen).await, Err(Refusal::IdTaken));
}

/// Retention deletes old reports except the displayed one; a deleted report cannot be replayed.
async fn pruned_report_is_not_replayed(store: &dyn Store) {
    let old = now() - SignedDuration::from_hours(48);
    let mut first = arrival("old", "a", 1, running());
    let mut second = arrival("old", "a", 2, no_dns());
    first.received = old;
    second.received = old;
    for arrival in [&first, &second] {
        assert_eq!(accept(store, arrival).await, Ok(Outcome::Stored));
    }
    let limit = now() - SignedDuration::from_hours(24);
    let pruned = store.prune(limit, limit).await.unwrap();
    assert!(pruned.turns >= 1, "{pruned:?}");
    assert_eq!(state(store, "old").await, State::Failed, "what is shown stays");
    assert_eq!(store.history(name("old"), None, 10).await.unwrap().len(), 1);
    // Earlier reports are deleted as well: receipt times are assumed to increase, apart from small clock
    // corrections.
    assert!(pruned.reports >= 2, "{pruned:?}");
    let mut replay = first.clone();
    replay.id = crate::bed::new_id();
    assert_eq!(accept(store, &replay).await, Err(Refusal::Replay));
    assert_eq!(accept(store, &arrival("old", "a", 3, running())).await, Ok(Outcome::Stored));
}

/// A deleted report cannot be replayed under its own ID.
async fn pruned_report_with_same_id_is_not_replayed(store: &dyn Store) {
    let mut first = arrival("n1", "a", 1, running());
    first.received = now() - SignedDuration::from_hours(48);
    assert_eq!(accept(store, &first).await, Ok(Outcome::Stored));
    assert_eq!(accept(store, &arrival("n1", "a", 2, no_dns())).await, Ok(Outcome::Stored));
    let limit = now() - SignedDuration::from_hours(24);
    assert_eq!(store.prune(limit, limit).await.unwrap().reports, 1);
    assert_eq!(accept(store, &first).await, Err(Refusal::Replay));
}

/// Each pass deletes a bounded number of reports; the last pass finds none.
async fn prune_is_bounded(store: &dyn Store) {
    const REPORTS: u64 = 4500;
    let old = now() - SignedDuration::from_hours(48);
    let all: Vec<Arrival> = (1..=REPORTS)
        .map(|sequence| {
            let report = failed("disk-full", "Full", &sequence.to_string());
            Arrival { received: old, ..arrival("swept", "a", sequence, report) }
        })
        .collect();
    for batch in all.chunks(500) {
        store.accept(batch.to_vec()).await.unwrap();
    }
    let limit = now() - SignedDuration::from_hours(24);
    let mut sweeps = Vec::new();
    loop {
        let pruned = store.prune(limit, limit).await.unwrap();
        if (pruned.reports, pruned.turns) == (0, 0) {
            break;
        }
        assert!(pruned.reports <= 2000 && pruned.turns <= 2000, "{pruned:?}");
        assert!(
            pruned.reports < 2000 || pruned.turns == 0,
            "bodies are looked for once, not each time: {pruned:?}"
        );
        sweeps.push(pruned.reports);
    }
    assert!(sweeps.len() >= 3, "{sweeps:?}");
    // Reports received in between are deleted as well: receipt times are assumed to increase.
    assert!(sweeps.iter().sum::<u64>() >= REPORTS, "{sweeps:?}");
    assert_eq!(state(store, "swept").await, State::Failed, "what is shown stays");
    assert!(store.forget(name("swept")).await.unwrap());
    assert!(store.node(name("swept")).await.unwrap().is_none());
}

/// Characters that a database may reject, in every field that a node controls.
async fn unusual_characters_are_stored(store: &dyn Store) {
    let mut report =
        failed("disk-full", "zero \0 and \u{202e} and ' \" \\ %s $1", "a\0b NULL; DROP TABLE nodes");
    report.verdict.component = Some("c\0".to_owned());
    let odd = arrival("odd", "boot\0", 1, report.clone());
    assert_eq!(accept(store, &odd).await, Ok(Outcome::Stored));
    assert_eq!(accept(store, &odd).await, Ok(Outcome::Duplicate));
    report.findings.clear();
    assert_eq!(accept(store, &arrival("odd", "boot\0", 2, report)).await, Ok(Outcome::Stored));
    let node = store.node(name("odd")).await.unwrap().unwrap();
    assert_eq!((node.boots, node.sequence), (1, 2));
    let query = FleetQuery { text: "zero \0".to_owned(), limit: 5, ..FleetQuery::default() };
    store.fleet(query).await.unwrap();
    store.search(vec!["a\"b".to_owned(), "'".to_owned()], 5).await.unwrap();
    assert!(store.bundle("\0".to_owned()).await.unwrap().is_none());
}

/// Search matches words and parts of names regardless of punctuation; all words must match.
async fn search_finds_all_words(store: &dyn Store) {
    accept(store, &arrival("words", "a", 1, no_dns())).await.unwrap();
    accept(store, &arrival("words", "a", 2, failed("disk-full", "Full", "no space left on /var")))
        .await
        .unwrap();
    for (words, found) in [
        (&["lookup"][..], 1),
        (&["api.corp"], 1),
        (&["CORP", "10.0.0.2:53"], 1),
        (&["corp.api"], 0),
        (&["lookup", "space"], 0),
        (&["space", "/var"], 1),
    ] {
        let wanted = words.iter().map(|word| (*word).to_owned()).collect();
        let hits = store.search(wanted, 10).await.unwrap();
        let hits = hits.iter().filter(|hit| hit.node == "words").count();
        assert_eq!(hits, found, "{words:?}");
    }
}

/// Paging returns every node exactly once, even if the nodes change between two pages.
async fn node_pages_are_complete(store: &dyn Store) {
    let names: Vec<String> = (0..7).map(|number| format!("paged-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        let report = if number % 2 == 0 { running() } else { no_dns() };
        accept(store, &arrival(name, "a", 1, report)).await.unwrap();
    }
    let mut told = Vec::new();
    let mut after = "paged-".to_owned();
    let mut sequence = 1;
    loop {
        let page = store.nodes(after, 2).await.unwrap();
        told.extend(
            page.nodes.iter().map(|node| node.name.clone()).filter(|name| name.starts_with("paged-")),
        );
        let Some(next) = page.next else { break };
        assert_eq!(page.nodes.last().map(|node| &node.name), Some(&next));
        after = next;
        // All nodes change state between two pages, so that the order by state differs each time.
        sequence += 1;
        for (number, name) in names.iter().enumerate() {
            let is_well = (number + usize::try_from(sequence).unwrap()) % 2 == 0;
            let report = if is_well { running() } else { no_dns() };
            accept(store, &arrival(name, "a", sequence, report)).await.unwrap();
        }
    }
    assert_eq!(told, names);
    let last = store.nodes("paged-5".to_owned(), 1).await.unwrap();
    assert_eq!((last.nodes[0].name.as_str(), &last.nodes[0].provider_id), ("paged-6", &None));
    // The provider ID is part of the node's line, regardless of the other reported values.
    let mut named = arrival("paged-6", "a\0", sequence + 1, failed("disk-full", "Full", "no space"));
    named.identity.provider_id = Some("aws:///eu-1/i-0\0\"".to_owned());
    accept(store, &named).await.unwrap();
    let last = store.nodes("paged-5".to_owned(), 1).await.unwrap();
    assert_eq!(last.nodes[0].provider_id, named.identity.provider_id);
    let all = store.nodes(String::new(), 1000).await.unwrap();
    assert!(all.next.is_none() && all.nodes.is_sorted_by_key(|node| node.name.clone()), "{all:?}");
    assert!(store.nodes("~\0".to_owned(), 5).await.unwrap().nodes.is_empty());
}

/// The version grows only with changes of the fleet view.
async fn version_grows_with_visible_changes(store: &dyn Store) {
    let before = store.version().await.unwrap();
    accept(store, &arrival("version", "a", 1, running())).await.unwrap();
    let first = store.version().await.unwrap();
    assert!(first > before);
    accept(store, &arrival("version", "a", 2, running())).await.unwrap();
    assert_eq!(store.version().await.unwrap(), first);
    accept(store, &arrival("version", "a", 3, no_dns())).await.unwrap();
    assert!(store.version().await.unwrap() > first);
}

fn sqlite() -> (tempfile::TempDir, Arc<dyn Store>) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("hub.db")).unwrap();
    (folder, Arc::new(store))
}

pub(crate) async fn open(url: &str) -> Arc<dyn Store> {
    Arc::new(PostgresStore::open(&PostgresPlace::parse(url).unwrap()).await.unwrap())
}

/// Runs each part of the contract on each store as a separate test.
macro_rules! contract {
    ($($part:ident in $module:path),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $part() {
                use $module as parts;
                let (_directory, store) = super::sqlite();
                parts::$part(store.as_ref()).await;
            })*
        }

        mod postgres {
            use landfall_testkit::{Postgres, have};

            $(#[tokio::test]
            async fn $part() {
                use $module as parts;
                if !have(Postgres::NEEDS) {
                    return;
                }
                let postgres = Postgres::shared().unwrap();
                let store = super::open(&postgres.database().unwrap()).await;
                parts::$part(store.as_ref()).await;
            })*
        }
    };
}

contract! {
    late_report_does_not_change_verdict in crate::store,
    first_key_is_pinned in crate::store,
    hung_duration_is_not_a_change in crate::store,
    new_boot_restarts_sequence in crate::store,
    earlier_boot_is_late in crate::store,
    deleted_unsigned_node_reports_again in crate::store,
    pruned_report_is_not_replayed in crate::store,
    pruned_report_with_same_id_is_not_replayed in crate::store,
    prune_is_bounded in crate::store,
    unusual_characters_are_stored in crate::store,
    search_finds_all_words in crate::store,
    node_pages_are_complete in crate::store,
    version_grows_with_visible_changes in crate::store,
    bundle_is_recorded_once in crate::store::bundles,
    orphaned_object_is_removed in crate::store::bundles,
    node_without_reports_has_bundles in crate::store::bundles,
    deleted_signed_node_rejects_replays in crate::store::forgotten,
    deleted_signed_node_accepts_newer_reports in crate::store::forgotten,
    deletion_is_remembered_until_pruned in crate::store::forgotten,
    trust_is_part_of_the_verdict in crate::store::trust,
    progress_is_ordered_and_bounded in crate::progress,
}

#[tokio::test]
async fn a_store_opened_again_knows_everything() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub.db");
    let first = arrival("n1", "a", 1, no_dns());
    {
        let store = SqliteStore::open(&path).unwrap();
        assert_eq!(accept(&store, &first).await, Ok(Outcome::Stored));
    }
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(accept(&store, &first).await, Ok(Outcome::Duplicate));
    assert_eq!(store.search(vec!["host".to_owned()], 5).await.unwrap().len(), 1);
    let fleet = store.fleet(FleetQuery { limit: 10, ..FleetQuery::default() }).await.unwrap();
    assert_eq!((fleet.total, fleet.nodes[0].name.as_str()), (1, "n1"));
    std::fs::write(folder.path().join("odd.db"), b"this is no database, however long it is kept".repeat(100))
        .unwrap();
    assert!(SqliteStore::open(&folder.path().join("odd.db")).is_err());
}

/// The index is updated after a report is acknowledged; a crash in between must not lose index entries.
#[tokio::test]
async fn what_was_acknowledged_before_a_crash_is_found_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub.db");
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(accept(&store, &arrival("n1", "a", 1, no_dns())).await, Ok(Outcome::Stored));
    // The files at this moment are those that a crash would leave.
    let left = folder.path().join("left.db");
    for end in ["", "-wal"] {
        let name = |path: &std::path::Path| format!("{}{end}", path.display());
        std::fs::copy(name(&path), name(&left)).unwrap();
    }
    let again = SqliteStore::open(&left).unwrap();
    assert_eq!(again.search(vec!["10.0.0.2".to_owned()], 5).await.unwrap().len(), 1);
    // Row numbers of deleted reports are reused for other text.
    assert!(again.forget(name("n1")).await.unwrap());
    let full = failed("disk-full", "The disk is full", "write: no space left on device");
    assert_eq!(accept(&again, &arrival("n2", "a", 1, full)).await, Ok(Outcome::Stored));
    for (word, found) in [("10.0.0.2", 0), ("space", 1)] {
        assert_eq!(again.search(vec![word.to_owned()], 5).await.unwrap().len(), found, "{word}");
    }
}

/// Queued reports are limited by their total size, not only by their number.
async fn many_bytes(store: &dyn Store) {
    let report = "x".repeat(1 << 20);
    let large: Vec<Arrival> = (1..=16)
        .map(|sequence| Arrival { report: report.clone(), ..arrival("large", "a", sequence, running()) })
        .collect();
    // All batches are queued before the first one is written.
    let sent = futures_util::future::join_all((0..12).map(|_| store.accept(large.clone()))).await;
    let busy = sent.iter().filter(|sent| matches!(sent, Err(StoreError::Busy))).count();
    assert!((4..12).contains(&busy), "{busy} of {} were told to come again", sent.len());
    assert!(sent.iter().all(|sent| matches!(sent, Ok(_) | Err(StoreError::Busy))));
    assert!(store.accept(large).await.is_ok(), "there is room again");
}

#[tokio::test]
async fn what_waits_for_the_disk_has_a_bound() {
    let (_folder, store) = sqlite();
    many_bytes(store.as_ref()).await;
}

#[tokio::test]
async fn what_waits_for_the_database_has_a_bound() {
    if !have(Postgres::NEEDS) {
        return;
    }
    let postgres = Postgres::shared().unwrap();
    many_bytes(open(&postgres.database().unwrap()).await.as_ref()).await;
}

/// A report that could not be stored does not count against the quota of a shared token. `broken` makes the store
/// fail.
async fn tries_cost_nothing(store: &dyn Store, broken: impl Fn(bool)) {
    let standing = Standing::ByKey(Arc::default());
    let as_many_as_may = |named: &str| -> Vec<Arrival> {
        let one = |number| {
            let report = arrival(&format!("{named}-{number}"), "a", 1, running());
            Arrival { key: Some(vec![7; 32]), standing: standing.clone(), ..report }
        };
        (0..NEW_NODES_A_MINUTE).map(one).collect()
    };
    let new = as_many_as_may("new");
    broken(true);
    assert!(store.accept(new.clone()).await.is_err());
    broken(false);
    let taken = store.accept(new).await.unwrap();
    assert!(taken.iter().all(|taken| *taken == Ok(Outcome::Stored)), "{taken:?}");
    let more = store.accept(as_many_as_may("more")).await.unwrap();
    assert!(more.contains(&Err(Refusal::TooManyNew)), "what was stored is counted");
}

#[tokio::test]
async fn new_nodes_are_counted_when_they_are_stored() {
    let (folder, store) = sqlite();
    let beside = rusqlite::Connection::open(folder.path().join("hub.db")).unwrap();
    tries_cost_nothing(store.as_ref(), |broken| {
        let text = if broken {
            "CREATE TRIGGER broken BEFORE INSERT ON reports BEGIN SELECT RAISE(ABORT, 'broken'); END"
        } else {
            "DROP TRIGGER broken"
        };
        beside.execute_batch(text).unwrap();
    })
    .await;
}

#[tokio::test]
async fn new_nodes_are_counted_when_they_are_stored_in_postgres() {
    if !have(Postgres::NEEDS) {
        return;
    }
    let postgres = Postgres::shared().unwrap();
    let url = postgres.database().unwrap();
    let database = url.rsplit('/').next().unwrap();
    tries_cost_nothing(open(&url).await.as_ref(), |broken| {
        let text = if broken {
            "ALTER TABLE reports ADD CONSTRAINT broken CHECK (false) NOT VALID"
        } else {
            "ALTER TABLE reports DROP CONSTRAINT broken"
        };
        postgres.sql(database, text).unwrap();
    })
    .await;
}

/// With many concurrent writers, every acknowledged report is stored.
async fn many(store: Arc<dyn Store>) {
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..16 {
        let store = Arc::clone(&store);
        writers.spawn(async move {
            for sequence in 1..=50 {
                let node = format!("n{writer}");
                let report = if sequence % 10 == 0 {
                    failed("disk-full", "Full", &sequence.to_string())
                } else {
                    running()
                };
                assert_eq!(
                    accept(store.as_ref(), &arrival(&node, "a", sequence, report)).await,
                    Ok(Outcome::Stored)
                );
            }
        });
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    for writer in 0..16 {
        let node = store.node(name(&format!("n{writer}"))).await.unwrap().unwrap();
        assert_eq!((node.reports, node.sequence), (50, 50));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_among_many() {
    let (_folder, store) = sqlite();
    many(store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_among_many_on_postgres() {
    if !have(Postgres::NEEDS) {
        return;
    }
    let postgres = Postgres::shared().unwrap();
    many(open(&postgres.database().unwrap()).await).await;
}
