//! What every store promises.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use landfall_hub::NodeName;
use landfall_hub::store::{Arrival, BundleRecord, FleetQuery, Outcome, Refusal, SqliteStore, Store};
use landfall_model::report::{Report, State};
use sha2::{Digest as _, Sha256};

use crate::bed::{envelope, failed, no_dns, running};

fn now() -> Timestamp {
    Timestamp::now()
}

fn name(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

fn arrival(node: &str, boot: &str, sequence: u64, report: Report) -> Arrival {
    let envelope = envelope(node, sequence, report);
    let text = serde_json::to_string(&envelope.report).unwrap();
    let mut identity = envelope.node;
    identity.boot_id = Some(boot.to_owned());
    Arrival {
        id: envelope.id,
        node: name(node),
        identity,
        sequence,
        time: envelope.time,
        received: now(),
        verdict: envelope.report.verdict,
        digest: Sha256::digest(text.as_bytes()).into(),
        words: text.clone(),
        report: text,
        key: None,
    }
}

async fn accept(store: &dyn Store, arrival: &Arrival) -> Result<Outcome, Refusal> {
    store.accept(vec![arrival.clone()]).await.unwrap().pop().unwrap()
}

async fn state(store: &dyn Store, node: &str) -> State {
    store.node(name(node)).await.unwrap().unwrap().line.state
}

/// The contract, run on every store there is.
async fn contract(store: &dyn Store) {
    order(store).await;
    reboots(store).await;
    retention(store).await;
    bundles(store).await;
    crate::progress::contract(store).await;
}

/// Late and repeated reports never change what is shown.
async fn order(store: &dyn Store) {
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
    // Two of one batch, in the order they came.
    let pair = vec![arrival("order", "a", 3, running()), arrival("order", "a", 4, no_dns())];
    assert_eq!(store.accept(pair).await.unwrap(), [Ok(Outcome::Stored), Ok(Outcome::Stored)]);
    assert_eq!(state(store, "order").await, State::Failed);
}

/// A boot that was never heard of is newer than all that were; its sequence begins anew.
async fn reboots(store: &dyn Store) {
    assert_eq!(accept(store, &arrival("reboots", "a", 7, no_dns())).await, Ok(Outcome::Stored));
    assert_eq!(accept(store, &arrival("reboots", "b", 1, running())).await, Ok(Outcome::Stored));
    assert_eq!(state(store, "reboots").await, State::Running);
    assert_eq!(accept(store, &arrival("reboots", "a", 8, no_dns())).await, Ok(Outcome::Late));
    assert_eq!(state(store, "reboots").await, State::Running);
    let node = store.node(name("reboots")).await.unwrap().unwrap();
    assert_eq!((node.boots, node.sequence), (2, 1));
}

/// What is old is forgotten, what is shown is not, and what was forgotten cannot come again.
async fn retention(store: &dyn Store) {
    let old = now() - SignedDuration::from_hours(48);
    let mut first = arrival("old", "a", 1, running());
    let mut second = arrival("old", "a", 2, no_dns());
    first.received = old;
    second.received = old;
    for arrival in [&first, &second] {
        assert_eq!(accept(store, arrival).await, Ok(Outcome::Stored));
    }
    let limit = now() - SignedDuration::from_hours(24);
    // In the order of arrival: what is younger than the limit comes first here, so it is taken in portions until done.
    let pruned = store.prune(limit, limit).await.unwrap();
    assert!(pruned.turns >= 1, "{pruned:?}");
    assert_eq!(state(store, "old").await, State::Failed, "what is shown stays");
    assert_eq!(store.history(name("old"), None, 10).await.unwrap().len(), 1);
    if pruned.reports > 0 {
        let mut replay = first.clone();
        replay.id = crate::bed::new_id();
        assert_eq!(accept(store, &replay).await, Err(Refusal::Replay));
    }
    assert_eq!(accept(store, &arrival("old", "a", 3, running())).await, Ok(Outcome::Stored));
}

async fn bundles(store: &dyn Store) {
    let record = BundleRecord {
        digest: "ab".repeat(32),
        node: "bundled".to_owned(),
        // What a store keeps is exact to the microsecond.
        received: Timestamp::from_microsecond(now().as_microsecond()).unwrap(),
        bytes: 5,
        files: 2,
        cut: false,
    };
    store.add_bundle(record.clone()).await.unwrap();
    store.add_bundle(record.clone()).await.unwrap();
    assert_eq!(store.bundles(name("bundled")).await.unwrap(), std::slice::from_ref(&record));
    assert_eq!(store.bundle(record.digest.clone()).await.unwrap(), Some(record.clone()));
    let later = now() + SignedDuration::from_hours(1);
    let pruned = store.prune(Timestamp::UNIX_EPOCH, later).await.unwrap();
    assert_eq!(pruned.bundles, [record.digest]);
    assert!(store.bundles(name("bundled")).await.unwrap().is_empty());
}

#[tokio::test]
async fn sqlite_keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    contract(&SqliteStore::open(&folder.path().join("hub.db")).unwrap()).await;
}

#[tokio::test]
async fn forgotten_reports_cannot_be_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("hub.db")).unwrap();
    let mut first = arrival("n1", "a", 1, running());
    first.received = now() - SignedDuration::from_hours(48);
    assert_eq!(accept(&store, &first).await, Ok(Outcome::Stored));
    assert_eq!(accept(&store, &arrival("n1", "a", 2, no_dns())).await, Ok(Outcome::Stored));
    let limit = now() - SignedDuration::from_hours(24);
    assert_eq!(store.prune(limit, limit).await.unwrap().reports, 1);
    assert_eq!(accept(&store, &first).await, Err(Refusal::Replay));
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

/// Many writers at once: everything that is acknowledged is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_lost_among_many() {
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&folder.path().join("hub.db")).unwrap());
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
