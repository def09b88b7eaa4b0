//! The trust of a verdict is stored with it, even while an older version of the hub writes to the same store.

use landfall_hub::store::{Arrival, Outcome, Store};
use landfall_model::report::Trust;
use landfall_testkit::{Postgres, have};

use super::{accept, arrival, name, open, sqlite};
use crate::bed::no_dns;

const PROVEN: Trust = Trust::Proven;
const CLAIMED: Trust = Trust::Claimed;

fn said(sequence: u64, trust: Trust) -> Arrival {
    let mut report = no_dns();
    report.verdict.trust = trust;
    arrival("trust", "a", sequence, report)
}

/// Returns the trust as the controller reads it.
async fn shown(store: &dyn Store) -> Trust {
    let page = store.nodes("truss".to_owned(), 1).await.unwrap();
    assert_eq!(page.nodes[0].name, "trust");
    page.nodes[0].trust
}

async fn turns(store: &dyn Store) -> Vec<Trust> {
    let history = store.history(name("trust"), None, 10).await.unwrap();
    history.iter().map(|turn| turn.trust).collect()
}

/// A verdict with another trust is a different verdict.
pub(super) async fn trust_is_part_of_the_verdict(store: &dyn Store) {
    for (sequence, trust) in [(1, CLAIMED), (2, PROVEN), (3, PROVEN), (4, CLAIMED), (6, PROVEN)] {
        assert_eq!(accept(store, &said(sequence, trust)).await, Ok(Outcome::Stored));
        let line = store.node(name("trust")).await.unwrap().unwrap().line;
        assert_eq!((line.trust, shown(store).await), (trust, trust), "report {sequence}");
    }
    assert_eq!(accept(store, &said(5, CLAIMED)).await, Ok(Outcome::Late));
    assert_eq!(shown(store).await, PROVEN, "a late report changes nothing");
    // Newest first, including the late one.
    assert_eq!(turns(store).await, [CLAIMED, PROVEN, CLAIMED, PROVEN, CLAIMED]);
    store.accept(vec![said(7, CLAIMED), said(8, PROVEN), said(9, CLAIMED)]).await.unwrap();
    assert_eq!(shown(store).await, CLAIMED, "the last of a batch");
    assert!(store.forget(name("trust")).await.unwrap());
}

/// `run` executes SQL like an older version, which does not know the columns.
async fn older_version(store: &dyn Store, run: impl Fn(&str)) {
    accept(store, &said(1, PROVEN)).await.unwrap();
    let before = store.node(name("trust")).await.unwrap().unwrap().line;
    assert_eq!(before.trust, PROVEN);
    // The older version stores a report of a newer agent.
    run("UPDATE nodes SET proven_body = NULL");
    run("UPDATE bodies SET proven = NULL");
    assert_eq!((shown(store).await, turns(store).await), (CLAIMED, vec![CLAIMED]));
    // The same report again, to this version.
    assert_eq!(accept(store, &said(2, PROVEN)).await, Ok(Outcome::Stored));
    let line = store.node(name("trust")).await.unwrap().unwrap().line;
    assert_eq!((line.trust, line.since), (PROVEN, before.since), "it is stored, and is no other verdict");
    assert_eq!(turns(store).await.len(), 1);
    // The older version shows another body and does not change the unknown column.
    run("UPDATE nodes SET body = body + 1000000");
    assert_eq!(shown(store).await, CLAIMED, "the trust of one verdict is not that of another");
}

#[tokio::test]
async fn verdict_of_older_version_is_claimed() {
    let (folder, store) = sqlite();
    let beside = rusqlite::Connection::open(folder.path().join("hub.db")).unwrap();
    older_version(store.as_ref(), |text| beside.execute_batch(text).unwrap()).await;
}

#[tokio::test]
async fn verdict_of_older_version_is_claimed_in_postgres() {
    if !have(Postgres::NEEDS) {
        return;
    }
    let postgres = Postgres::shared().unwrap();
    let url = postgres.database().unwrap();
    let database = url.rsplit('/').next().unwrap();
    older_version(open(&url).await.as_ref(), |text| drop(postgres.sql(database, text).unwrap())).await;
}
