//! Reports that re-create a deleted node, and reports that do not.

use jiff::{SignedDuration, Timestamp};
use landfall_hub::store::{Arrival, Outcome, Refusal, Store};

use super::{accept, arrival, name, of_boot};
use crate::bed::{new_id, no_dns, running};

const STORED: Result<Outcome, Refusal> = Ok(Outcome::Stored);
const REFUSED: Result<Outcome, Refusal> = Err(Refusal::Forgotten);

fn signed(key: &[u8], arrival: Arrival) -> Arrival {
    Arrival { key: Some(key.to_vec()), ..arrival }
}

/// A replayed envelope restores neither the node nor its key.
pub(super) async fn deleted_signed_node_rejects_replays(store: &dyn Store) {
    let old = |sequence| signed(b"old", arrival("n1", "b", sequence, no_dns()));
    let said: Vec<Arrival> = (1..=3).map(old).collect();
    store.accept(said.clone()).await.unwrap();
    assert!(store.forget(name("n1")).await.unwrap());
    assert_eq!(accept(store, &said[2]).await, REFUSED);
    let again = Arrival { id: new_id(), ..said[1].clone() };
    let before = signed(b"old", of_boot("n1", ("a", None), 9, 100, no_dns()));
    let group = vec![said[0].clone(), again, before, arrival("other", "a", 1, running())];
    assert_eq!(store.accept(group).await.unwrap(), [REFUSED, REFUSED, REFUSED, STORED]);
    assert!(store.node(name("n1")).await.unwrap().is_none());
    let ids = vec![said[0].id, said[2].id];
    assert_eq!(store.has(ids).await.unwrap().len(), 2, "that it was acknowledged is still known");

    // The machine was reinstalled: it has another key, and its clock is not set.
    let anew = signed(b"new", of_boot("n1", ("c", Some(1)), 1, 0, running()));
    assert_eq!(accept(store, &anew).await, STORED);
    assert_eq!(accept(store, &said[2]).await, Err(Refusal::WrongKey));
    assert!(store.forget(name("n1")).await.unwrap());
    for replay in [&said[2], &anew] {
        assert_eq!(accept(store, replay).await, REFUSED, "each of its keys is remembered");
    }
}

/// The next report of a running machine is accepted, regardless of its clock if it counts boots.
pub(super) async fn deleted_signed_node_accepts_newer_reports(store: &dyn Store) {
    let said = |sequence| signed(b"own", arrival("alive", "a", sequence, running()));
    accept(store, &said(7)).await.unwrap();
    assert!(store.forget(name("alive")).await.unwrap());
    assert_eq!(accept(store, &said(8)).await, STORED);
    assert_eq!(accept(store, &said(7)).await, Ok(Outcome::Late), "it is known again");

    let boot = |number, sequence, second| {
        let boot = format!("boot {number}");
        signed(b"own", of_boot("counts", (&boot, Some(number)), sequence, second, running()))
    };
    accept(store, &boot(3, 5, 1000)).await.unwrap();
    assert!(store.forget(name("counts")).await.unwrap());
    assert_eq!(accept(store, &boot(2, 9, 2000)).await, REFUSED);
    assert_eq!(accept(store, &boot(4, 1, 0)).await, STORED);

    // Without a key only the credential authenticates the node, and its holder may report anything.
    let unsigned = arrival("unsigned", "a", 1, running());
    accept(store, &unsigned).await.unwrap();
    assert!(store.forget(name("unsigned")).await.unwrap());
    assert_eq!(accept(store, &unsigned).await, STORED);
}

/// A deletion is remembered as long as reports are kept.
pub(super) async fn deletion_is_remembered_until_pruned(store: &dyn Store) {
    let said = signed(b"own", arrival("gone", "a", 1, running()));
    accept(store, &said).await.unwrap();
    assert!(store.forget(name("gone")).await.unwrap());
    let hour = SignedDuration::from_hours(1);
    let (before, after) = (Timestamp::now() - hour, Timestamp::now() + hour);
    store.prune(before, before).await.unwrap();
    assert_eq!(accept(store, &said).await, REFUSED);
    store.prune(after, before).await.unwrap();
    assert_eq!(accept(store, &said).await, STORED);
}
