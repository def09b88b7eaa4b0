//! A real store that checks signatures.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use landfall_fetch::{Algorithm, Digest};
use landfall_objects::{Bucket, Found, ObjectsError, Source};
use landfall_testkit::{ObjectStore, have};

fn bucket(store: &ObjectStore, prefix: &str) -> Bucket {
    let location = store.location(prefix).parse().unwrap();
    Bucket::open(location, store.credentials(), Some(&store.authority())).unwrap()
}

fn keys(listed: &[landfall_objects::Listed]) -> Vec<&str> {
    listed.iter().map(|object| object.key.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_put_found_listed_and_deleted() {
    if !have(ObjectStore::NEEDS) {
        return;
    }
    let store = ObjectStore::start().unwrap();
    let ours = bucket(&store, "reports/prod");
    let odd = "n 1/ü+%41&.json";
    assert_eq!(ours.get(odd, 100).await.unwrap(), None);
    assert_eq!(ours.head(odd).await.unwrap(), None);
    ours.put(odd, "application/json", Source::Bytes(b"{}")).await.unwrap();
    assert_eq!(ours.get(odd, 100).await.unwrap().unwrap(), b"{}");
    let found = ours.head(odd).await.unwrap();
    assert_eq!(found, Some(Found { bytes: 2, kind: Some("application/json".to_owned()) }));

    // Put again, the second counts; other folders are not seen.
    ours.put(odd, "application/json", Source::Bytes(b"[1]")).await.unwrap();
    ours.put("n2/a.json", "application/json", Source::Bytes(b"")).await.unwrap();
    bucket(&store, "reports").put("production", "text/plain", Source::Bytes(b"x")).await.unwrap();
    assert_eq!(ours.get(odd, 100).await.unwrap().unwrap(), b"[1]");
    assert_eq!(keys(&ours.list("", 100).await.unwrap()), [odd, "n2/a.json"]);
    assert_eq!(keys(&ours.list("n2/", 100).await.unwrap()), ["n2/a.json"]);
    assert_eq!(keys(&ours.list("", 1).await.unwrap()), [odd]);

    ours.delete(odd).await.unwrap();
    ours.delete(odd).await.unwrap();
    assert_eq!(keys(&ours.list("", 100).await.unwrap()), ["n2/a.json"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_stored_as_it_is_hashed_or_not_at_all() {
    if !have(ObjectStore::NEEDS) {
        return;
    }
    let store = ObjectStore::start().unwrap();
    let ours = bucket(&store, "");
    let folder = tempfile::tempdir().unwrap();
    let (file, copy) = (folder.path().join("bundle"), folder.path().join("copy"));
    let bytes: Vec<u8> = (0..600_000_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(&file, &bytes).unwrap();
    let digest = Digest::of(Algorithm::Sha256, &bytes);
    ours.put("bundle", "application/zstd", Source::File(&file, &digest)).await.unwrap();
    let got = ours.get_to_file("bundle", 1 << 30, &copy).await.unwrap();
    assert_eq!(got, Some((digest, bytes.len() as u64)));
    assert_eq!(std::fs::read(&copy).unwrap(), bytes);
    assert_eq!(ours.get_to_file("nothing", 1 << 30, &copy).await.unwrap(), None);
    let too_long = ours.get("bundle", 10).await;
    assert!(matches!(too_long, Err(ObjectsError::Exchange { .. })), "{too_long:?}");

    let other = Digest::of(Algorithm::Sha256, b"something else");
    let refused = ours.put("forged", "text/plain", Source::File(&file, &other)).await;
    assert!(matches!(refused, Err(ObjectsError::Refused(_))), "{refused:?}");
    assert_eq!(ours.head("forged").await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_of_many_pages_is_whole_and_in_order() {
    if !have(ObjectStore::NEEDS) {
        return;
    }
    let store = ObjectStore::start().unwrap();
    let ours = bucket(&store, "many");
    // Objects are files of the folder the store serves; so it need not be asked a thousand times.
    let folder = store.bucket().join("many");
    std::fs::create_dir(&folder).unwrap();
    let expected: Vec<String> = (0..1100).map(|number| format!("{number:05}")).collect();
    for name in &expected {
        std::fs::write(folder.join(name), name).unwrap();
    }
    let listed = ours.list("", 10_000).await.unwrap();
    assert_eq!(keys(&listed), expected);
    assert!(listed.iter().all(|object| object.bytes == 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_secret_and_a_missing_bucket_are_told_apart() {
    if !have(ObjectStore::NEEDS) {
        return;
    }
    let store = ObjectStore::start().unwrap();
    let location = store.location("").parse().unwrap();
    let stranger = Bucket::open(location, store.wrong_credentials(), Some(&store.authority())).unwrap();
    let refused = stranger.put("a", "text/plain", Source::Bytes(b"x")).await.unwrap_err();
    assert!(
        matches!(&refused, ObjectsError::Refused(no) if (no.status, no.code.as_str()) == (403, "SignatureDoesNotMatch")),
        "{refused}"
    );
    assert!(!refused.is_lasting(), "a right may be given");
    let elsewhere = store.location("").replace(ObjectStore::BUCKET, "another");
    let elsewhere = elsewhere.parse().unwrap();
    let elsewhere = Bucket::open(elsewhere, store.credentials(), Some(&store.authority())).unwrap();
    let missing = elsewhere.get("a", 10).await.unwrap_err();
    assert!(matches!(&missing, ObjectsError::Refused(no) if no.code == "NoSuchBucket"), "{missing}");
    let invalid = elsewhere.get("a/../b", 10).await.unwrap_err();
    assert!(matches!(invalid, ObjectsError::Key(_)) && invalid.is_lasting());
}
