//! Several hubs on one database, and an unavailable database.

use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use landfall_hub::store::{Outcome, PostgresPlace, PostgresStore, StoreError};
use landfall_hub::{ObjectPlace, StorePlace};
use landfall_testkit::{Durability, ObjectServer, Postgres, eventually, have};

use crate::bed::{TestHub, bucket, bundle, envelope, failed, no_dns, running};
use crate::store::{accept, arrival, name, open};

const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn what_one_hub_takes_the_other_shows() {
    if !have(Postgres::NEEDS) {
        return;
    }
    let postgres = Postgres::shared().unwrap();
    let url = postgres.database().unwrap();
    let hub = || TestHub::with(|config| config.store = StorePlace::parse(&url).unwrap());
    let (one, other) = (hub(), hub());
    let mut events = TcpStream::connect(other.address).unwrap();
    events.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let request = format!("GET /api/v1/events HTTP/1.1\r\nhost: {}\r\n\r\n", other.address);
    events.write_all(request.as_bytes()).unwrap();

    let first = envelope("n1", 1, no_dns());
    one.stored(&first);
    assert_eq!(other.json("/api/v1/fleet")["groups"][0]["cause"], "dns-resolution-failure");
    assert_eq!(other.post(&first).json()["outcome"], "duplicate");
    other.stored(&envelope("n1", 2, running()));
    assert_eq!(one.json("/api/v1/nodes/n1")["state"], "running");
    let mut heard = String::new();
    let mut buffer = [0; 4096];
    while !heard.contains("event: changed") {
        let count = events.read(&mut buffer).unwrap();
        assert!(count > 0, "the stream ended: {heard}");
        heard += &String::from_utf8_lossy(&buffer[..count]);
    }
}

#[test]
fn a_bundle_given_to_one_hub_is_read_at_the_other() {
    if !have(Postgres::NEEDS) {
        return;
    }
    let postgres = Postgres::shared().unwrap();
    for server in ObjectServer::ALL.into_iter().filter(|server| have(server.needs())) {
        let (url, objects) = (postgres.database().unwrap(), server.start().unwrap());
        let bucket = bucket(&objects, "hub");
        let hub = || {
            TestHub::with(|config| {
                config.store = StorePlace::parse(&url).unwrap();
                config.objects = ObjectPlace::parse(&bucket).unwrap();
            })
        };
        let (one, other) = (hub(), hub());
        one.stored(&envelope("n1", 1, no_dns()));
        let packed = bundle("n1", &["first".to_owned(), "no such host".to_owned()]);
        let taken = one.request("POST", "/api/v1/nodes/n1/bundles", &[], &packed);
        assert_eq!(taken.status, 200, "{taken:?}");
        let digest = taken.json()["digest"].as_str().unwrap().to_owned();
        let kept = format!("{}/{digest}", &digest[..2]);
        assert_eq!(objects.objects("hub").unwrap().get(&kept), Some(&packed));
        assert_eq!(other.get(&format!("/api/v1/bundles/{digest}/content")).body, packed);
        let lines = other.json(&format!("/api/v1/bundles/{digest}/lines?q=no+such+host"));
        assert_eq!(lines["lines"][0]["line"], 2, "{lines}");
        assert_eq!(other.request("DELETE", "/api/v1/nodes/n1", &[], b"").status, 204);
        // An object that is removed during the listing makes the listing fail.
        let gone = || objects.objects("hub").is_ok_and(|left| left.is_empty()).then_some(());
        eventually("the bundle to be gone with its node", LIMIT, gone).unwrap();
    }
}

/// The worst case: the same nodes report to both hubs concurrently, so that the hubs keep overtaking each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_hubs_that_take_the_same_nodes_lose_nothing() {
    const NODES: u64 = 4;
    const REPORTS: u64 = 60;
    if !have(Postgres::NEEDS) {
        return;
    }
    let postgres = Postgres::shared().unwrap();
    let url = postgres.database().unwrap();
    // Opened concurrently on an empty database: the tables are created once.
    let stores = tokio::join!(open(&url), open(&url));
    let stores = [stores.0, stores.1];
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..8 {
        let store = Arc::clone(&stores[writer % 2]);
        writers.spawn(async move {
            let mut taken = 0;
            for number in 0..NODES * REPORTS {
                let (node, sequence) = (format!("n{}", number % NODES), number / NODES + 1);
                let report = failed("disk-full", "Full", &format!("{writer} {sequence}"));
                let verdict = accept(store.as_ref(), &arrival(&node, "a", sequence, report)).await;
                assert!(matches!(verdict, Ok(Outcome::Stored | Outcome::Late)), "{verdict:?}");
                taken += u64::from(verdict == Ok(Outcome::Stored));
            }
            taken
        });
    }
    let mut stored = 0;
    while let Some(done) = writers.join_next().await {
        stored += done.unwrap();
    }
    let mut counted = 0;
    for node in 0..NODES {
        let node = stores[0].node(name(&format!("n{node}"))).await.unwrap().unwrap();
        assert_eq!(node.sequence, REPORTS);
        counted += node.reports;
    }
    assert_eq!(counted, stored);
    let database = url.rsplit('/').next().unwrap();
    let rows = postgres.sql(database, "SELECT count(*) FROM reports").unwrap();
    assert_eq!(rows, (8 * NODES * REPORTS).to_string());
}

/// The database is killed and restarted repeatedly. All acknowledged reports are stored, and the hub recovers by
/// itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_database_that_is_killed_loses_nothing_acknowledged() {
    const ROUNDS: u64 = 3;
    const EACH: usize = 40;
    if !have(Postgres::NEEDS) {
        return;
    }
    let postgres = Arc::new(Postgres::start(Durability::Real).unwrap());
    let store = open(&postgres.database().unwrap()).await;
    let (told, mut acknowledged) = tokio::sync::mpsc::unbounded_channel();
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (store, told) = (Arc::clone(&store), told.clone());
            tokio::spawn(async move {
                for sequence in 1.. {
                    let report = failed("disk-full", "Full", &sequence.to_string());
                    let sent = arrival(&format!("n{writer}"), "a", sequence, report);
                    // As a node does: retry until the report is acknowledged.
                    loop {
                        match store.accept(vec![sent.clone()]).await {
                            Ok(verdicts) => break assert!(verdicts[0].is_ok(), "{verdicts:?}"),
                            Err(error) => assert!(matches!(error, StoreError::Failed { .. }), "{error:?}"),
                        }
                    }
                    if told.send(sent).is_err() {
                        return;
                    }
                }
            })
        })
        .collect();
    drop(told);
    let mut all = Vec::new();
    for _ in 0..ROUNDS {
        for _ in 0..EACH {
            all.push(acknowledged.recv().await.unwrap());
        }
        let database = Arc::clone(&postgres);
        tokio::task::spawn_blocking(move || {
            database.kill().unwrap();
            database.serve().unwrap();
        })
        .await
        .unwrap();
    }
    for _ in 0..EACH {
        all.push(acknowledged.recv().await.unwrap());
    }
    drop(acknowledged);
    for writer in writers {
        writer.await.unwrap();
    }
    for sent in &all {
        assert_eq!(accept(store.as_ref(), sent).await, Ok(Outcome::Duplicate));
    }
}

#[tokio::test]
async fn the_database_is_known_by_its_certificate_and_the_hub_by_its_password() {
    if !have(Postgres::NEEDS) {
        return;
    }
    let postgres = Postgres::shared().unwrap();
    let url = postgres.encrypted(&postgres.database().unwrap());
    let store = open(&url).await;
    assert_eq!(accept(store.as_ref(), &arrival("n1", "a", 1, running())).await, Ok(Outcome::Stored));
    let folder = tempfile::tempdir().unwrap();
    let wrong = folder.path().join("wrong");
    std::fs::write(&wrong, "not-the-password").unwrap();
    let stranger = landfall_pki::Authority::new("somebody else", 1).unwrap();
    let authority = folder.path().join("ca.crt");
    std::fs::write(&authority, stranger.certificate()).unwrap();
    for bad in [
        format!("{url}&password-file={}", wrong.display()),
        format!("{url}&ca-file={}", authority.display()),
        url.replace("localhost", "127.0.0.1"),
    ] {
        let opened = PostgresStore::open(&PostgresPlace::parse(&bad).unwrap()).await;
        assert!(opened.is_err(), "{bad}");
    }
}

/// A read-only server: another one has taken over, or its disk is almost full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_takes_no_writes_is_noticed_and_left() {
    if !have(Postgres::NEEDS) {
        return;
    }
    let postgres = Postgres::start(Durability::None).unwrap();
    let url = postgres.database().unwrap();
    let sql = |text: &str| postgres.sql("postgres", text).unwrap();
    let read_only = |value: &str| {
        sql(&format!("ALTER SYSTEM SET default_transaction_read_only = {value}"));
        sql("SELECT pg_reload_conf()");
        let is_set = || (sql("SHOW default_transaction_read_only") == value).then_some(());
        eventually("the setting", LIMIT, is_set).unwrap();
    };
    let sessions = || -> HashSet<String> {
        let found = sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'landfall-hub'");
        found.lines().map(str::to_owned).collect()
    };
    let store = open(&url).await;
    let report = |sequence| arrival("n1", "a", sequence, running());
    assert_eq!(accept(store.as_ref(), &report(1)).await, Ok(Outcome::Stored));
    store.ready().await.unwrap();

    read_only("on");
    store.ready().await.expect("nobody tried to write yet");
    let refused = report(2);
    assert!(store.accept(vec![refused.clone()]).await.is_err());
    assert!(store.ready().await.is_err(), "and it still cannot");
    read_only("off");
    store.ready().await.unwrap();
    assert_eq!(accept(store.as_ref(), &refused).await, Ok(Outcome::Stored));

    // Requests in the meantime wait for the writable server.
    let before = sessions();
    read_only("on");
    let waiting = tokio::spawn({
        let (store, report) = (Arc::clone(&store), report(3));
        async move { accept(store.as_ref(), &report).await }
    });
    eventually("the connection to be left", LIMIT, || (!before.is_subset(&sessions())).then_some(()))
        .unwrap();
    read_only("off");
    assert_eq!(waiting.await.unwrap(), Ok(Outcome::Stored));
}
