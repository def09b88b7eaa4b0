//! Records of bundles, and orphaned objects.

use jiff::{SignedDuration, Timestamp};
use landfall_hub::store::{BundleRecord, Store};
use landfall_model::in_place::{Progress, State};

use super::{accept, arrival, name, now};
use crate::bed::running;

pub(super) async fn bundle_is_recorded_once(store: &dyn Store) {
    let record = BundleRecord {
        digest: "ab".repeat(32),
        node: "bundled".to_owned(),
        // Stores are exact to the microsecond.
        received: Timestamp::from_microsecond(now().as_microsecond()).unwrap(),
        bytes: 5,
        files: 2,
        cut: false,
    };
    let add = async |record: BundleRecord| {
        assert!(store.expect_bundle(record.digest.clone(), now()).await.unwrap());
        assert!(store.add_bundle(record).await.unwrap());
    };
    add(record.clone()).await;
    add(record.clone()).await;
    assert_eq!(store.bundles(name("bundled")).await.unwrap(), std::slice::from_ref(&record));
    assert_eq!(store.bundle(record.digest.clone()).await.unwrap(), Some(record.clone()));
    assert!(store.loose(Timestamp::MAX).await.unwrap().is_empty(), "what is on record is not loose");
    let later = now() + SignedDuration::from_hours(1);
    assert_eq!(store.prune(Timestamp::UNIX_EPOCH, later).await.unwrap().bundles, 1);
    assert!(store.bundles(name("bundled")).await.unwrap().is_empty());
    assert_eq!(store.loose(now()).await.unwrap(), std::slice::from_ref(&record.digest));
    store.removed(record.digest.clone()).await.unwrap();
    assert!(store.loose(Timestamp::MAX).await.unwrap().is_empty());
    // Only the newest bundles of a node are kept; the other node keeps all of its bundles.
    for number in 0..20 {
        let node = if number == 0 { "modest" } else { "bundled" };
        let received = record.received + SignedDuration::from_secs(number);
        let digest = format!("{number:064x}");
        add(BundleRecord { digest, node: node.to_owned(), received, ..record.clone() }).await;
    }
    let mut loose = store.loose(now()).await.unwrap();
    loose.sort_unstable();
    assert_eq!(loose, [1, 2, 3].map(|number| format!("{number:064x}")));
    for digest in loose {
        store.removed(digest).await.unwrap();
    }
    assert_eq!(store.bundles(name("bundled")).await.unwrap().len(), 16);
    assert_eq!(store.bundles(name("modest")).await.unwrap().len(), 1);
    accept(store, &arrival("bundled", "a", 1, running())).await.unwrap();
    assert!(store.forget(name("bundled")).await.unwrap());
    assert!(store.bundles(name("bundled")).await.unwrap().is_empty());
    let (first, second) = (store.loose(now()).await.unwrap(), store.loose(now()).await.unwrap());
    assert_eq!((first.len(), second.len()), (10, 6), "in portions, none twice");
    for digest in first.into_iter().chain(second) {
        store.removed(digest).await.unwrap();
    }
}

/// A bundle that is sent again is not removed meanwhile, and a bundle under removal is not acknowledged.
pub(super) async fn orphaned_object_is_removed(store: &dyn Store) {
    let record = BundleRecord {
        digest: "cd".repeat(32),
        node: "loose".to_owned(),
        received: Timestamp::from_microsecond(now().as_microsecond()).unwrap(),
        bytes: 5,
        files: 2,
        cut: false,
    };
    let digest = || record.digest.clone();
    let later = now() + SignedDuration::from_hours(1);
    let prune = async || store.prune(Timestamp::UNIX_EPOCH, later).await.unwrap().bundles;
    // Removes the objects of other tests.
    prune().await;
    for digest in store.loose(now()).await.unwrap() {
        store.removed(digest).await.unwrap();
    }
    // Sent, pruned, and sent again before its removal.
    assert!(store.expect_bundle(digest(), now()).await.unwrap());
    assert!(store.add_bundle(record.clone()).await.unwrap());
    assert_eq!(prune().await, 1);
    assert!(store.expect_bundle(digest(), now()).await.unwrap());
    assert!(store.loose(now()).await.unwrap().is_empty());
    assert!(store.add_bundle(record.clone()).await.unwrap());
    assert!(store.loose(Timestamp::MAX).await.unwrap().is_empty());
    // Pruned while it is sent again.
    assert!(store.expect_bundle(digest(), now()).await.unwrap());
    prune().await;
    assert!(store.loose(now()).await.unwrap().is_empty());
    assert!(store.add_bundle(record.clone()).await.unwrap());
    // Rejected while it is being removed.
    assert_eq!(prune().await, 1);
    assert_eq!(store.loose(now()).await.unwrap(), [digest()]);
    assert!(!store.expect_bundle(digest(), now()).await.unwrap());
    assert!(store.loose(now()).await.unwrap().is_empty(), "one who removes it is enough");
    store.removed(digest()).await.unwrap();
    assert!(store.expect_bundle(digest(), now()).await.unwrap());
    // A hub that stopped during the operation.
    assert!(store.loose(later).await.unwrap().is_empty());
    let tomorrow = now() + SignedDuration::from_hours(25);
    assert_eq!(store.loose(tomorrow).await.unwrap(), [digest()]);
    assert!(!store.add_bundle(record.clone()).await.unwrap(), "its object may be gone");
    assert_eq!(store.bundle(digest()).await.unwrap(), None);
    assert_eq!(
        store.loose(tomorrow + SignedDuration::from_mins(11)).await.unwrap(),
        [digest()],
        "not removed"
    );
    store.removed(digest()).await.unwrap();
    // Found by a sweep over the objects.
    assert!(store.expect_bundle("ef".repeat(32), now()).await.unwrap());
    assert!(store.add_bundle(BundleRecord { digest: "ef".repeat(32), ..record.clone() }).await.unwrap());
    let found = vec![digest(), "ef".repeat(32)];
    assert_eq!(store.make_loose(found.clone(), now()).await.unwrap(), 1);
    assert_eq!(store.make_loose(found, now()).await.unwrap(), 0);
    assert_eq!(store.loose(now()).await.unwrap(), [digest()]);
    store.removed(digest()).await.unwrap();
}

/// A machine may send bundles of an in-place bootstrap before its first report.
pub(super) async fn node_without_reports_has_bundles(store: &dyn Store) {
    let (attempt, boot_id) = ("a1".to_owned(), "b1".to_owned());
    let told = Progress { attempt, sequence: 1, time: now(), boot_id, state: State::Claimed, step: None };
    store.add_progress(name("claimed"), told, now()).await.unwrap();
    let digest = "0f".repeat(32);
    let node = "claimed".to_owned();
    let record =
        BundleRecord { digest: digest.clone(), node, received: now(), bytes: 5, files: 2, cut: false };
    assert!(store.expect_bundle(digest.clone(), now()).await.unwrap());
    assert!(store.add_bundle(record).await.unwrap());
    assert!(store.forget(name("claimed")).await.unwrap());
    assert!(store.bundles(name("claimed")).await.unwrap().is_empty());
    assert_eq!(store.loose(now()).await.unwrap(), std::slice::from_ref(&digest));
    store.removed(digest).await.unwrap();
}
