//! What every store promises.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use landfall_hub::NodeName;
use landfall_hub::store::{
    Arrival, BundleRecord, FleetQuery, Outcome, PostgresPlace, PostgresStore, Refusal, SqliteStore, Store,
};
use landfall_model::report::{Report, State};
use landfall_testkit::{Postgres, have};
use sha2::{Digest as _, Sha256};

use crate::bed::{envelope, failed, no_dns, running};

fn now() -> Timestamp {
    Timestamp::now()
}

pub(crate) fn name(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

pub(crate) fn arrival(node: &str, boot: &str, sequence: u64, report: Report) -> Arrival {
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

pub(crate) async fn accept(store: &dyn Store, arrival: &Arrival) -> Result<Outcome, Refusal> {
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

    words(store).await;
    versions(store).await;
    odd_characters(store).await;
    sweeps(store).await;
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
    assert_eq!(pruned.bundles, std::slice::from_ref(&record.digest));
    assert!(store.bundles(name("bundled")).await.unwrap().is_empty());
    // Of a node that sends ever more, the newest are kept; of another, all.
    for number in 0..20 {
        let node = if number == 0 { "modest" } else { "bundled" };
        let received = record.received + SignedDuration::from_secs(number);
        let digest = format!("{number:064x}");
        store
            .add_bundle(BundleRecord { digest, node: node.to_owned(), received, ..record.clone() })
            .await
            .unwrap();
    }
    let mut pruned = store.prune(Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH).await.unwrap().bundles;
    pruned.sort_unstable();
    assert_eq!(pruned, [1, 2, 3].map(|number| format!("{number:064x}")));
    assert_eq!(store.bundles(name("bundled")).await.unwrap().len(), 16);
    assert_eq!(store.bundles(name("modest")).await.unwrap().len(), 1);
}

/// What was forgotten cannot come again.
async fn replays(store: &dyn Store) {
    let mut first = arrival("n1", "a", 1, running());
    first.received = now() - SignedDuration::from_hours(48);
    assert_eq!(accept(store, &first).await, Ok(Outcome::Stored));
    assert_eq!(accept(store, &arrival("n1", "a", 2, no_dns())).await, Ok(Outcome::Stored));
    let limit = now() - SignedDuration::from_hours(24);
    assert_eq!(store.prune(limit, limit).await.unwrap().reports, 1);
    assert_eq!(accept(store, &first).await, Err(Refusal::Replay));
}

/// A sweep takes a bounded part; some sweeps take all, and the last finds nothing.
async fn sweeps(store: &dyn Store) {
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
        sweeps.push(pruned.reports);
    }
    assert!(sweeps.len() >= 3, "{sweeps:?}");
    // What came in between goes with them: a hub's clock does not run backwards for days.
    assert!(sweeps.iter().sum::<u64>() >= REPORTS, "{sweeps:?}");
    assert_eq!(state(store, "swept").await, State::Failed, "what is shown stays");
    let swept = store.forget(name("swept")).await.unwrap();
    assert_eq!(swept, Some(Vec::new()));
    assert!(store.node(name("swept")).await.unwrap().is_none());
}

/// Characters a database may not like, in every place a node can put them.
async fn odd_characters(store: &dyn Store) {
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

/// Search finds words and parts of names, whatever signs stand between, and only where all are.
async fn words(store: &dyn Store) {
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

/// Boards hear of what they would show, and of nothing else.
async fn versions(store: &dyn Store) {
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

#[tokio::test]
async fn sqlite_keeps_the_contract() {
    let (_folder, store) = sqlite();
    replays(store.as_ref()).await;
    contract(store.as_ref()).await;
}

#[tokio::test]
async fn postgres_keeps_the_contract() {
    if !have(Postgres::NEEDS) {
        return;
    }
    let postgres = Postgres::shared().unwrap();
    let store = open(&postgres.database().unwrap()).await;
    replays(store.as_ref()).await;
    contract(store.as_ref()).await;
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

/// Words are added to the index later than a report is acknowledged; a crash in between must not lose them.
#[tokio::test]
async fn what_was_acknowledged_before_a_crash_is_found_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hub.db");
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(accept(&store, &arrival("n1", "a", 1, no_dns())).await, Ok(Outcome::Stored));
    // What a crash leaves: the files as they are at this moment.
    let left = folder.path().join("left.db");
    for end in ["", "-wal"] {
        let name = |path: &std::path::Path| format!("{}{end}", path.display());
        std::fs::copy(name(&path), name(&left)).unwrap();
    }
    let again = SqliteStore::open(&left).unwrap();
    assert_eq!(again.search(vec!["10.0.0.2".to_owned()], 5).await.unwrap().len(), 1);
    // Numbers of what is forgotten are given again, to other words.
    assert!(again.forget(name("n1")).await.unwrap().is_some());
    let full = failed("disk-full", "The disk is full", "write: no space left on device");
    assert_eq!(accept(&again, &arrival("n2", "a", 1, full)).await, Ok(Outcome::Stored));
    for (word, found) in [("10.0.0.2", 0), ("space", 1)] {
        assert_eq!(again.search(vec![word.to_owned()], 5).await.unwrap().len(), found, "{word}");
    }
}

/// Many writers at once: everything that is acknowledged is there.
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
