//! Tests against real stores that check signatures; each behavior is checked for every store.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::PathBuf;

use landfall_fetch::objects::{Bucket, ObjectsError, Source};
use landfall_fetch::{Algorithm, Digest};
use landfall_model::chain;
use landfall_testkit::{ObjectServer, ObjectStore, have};

/// Returns every store that is installed here.
fn stores() -> impl Iterator<Item = (ObjectServer, ObjectStore)> {
    let servers = ObjectServer::ALL.into_iter().filter(|server| have(server.needs()));
    servers.map(|server| (server, server.start().unwrap()))
}

fn open(store: &ObjectStore, prefix: &str, credentials: PathBuf) -> Bucket {
    let location = store.location(prefix).parse().unwrap();
    Bucket::open(location, credentials, Some(&store.authority())).unwrap()
}

fn bucket(store: &ObjectStore, prefix: &str) -> Bucket {
    open(store, prefix, store.credentials())
}

fn keys(listed: &[landfall_fetch::objects::Listed]) -> Vec<&str> {
    listed.iter().map(|object| object.key.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_put_found_listed_and_deleted() {
    for (_, store) in stores() {
        for credentials in store.all_credentials().unwrap() {
            let ours = open(&store, "reports/prod", credentials);
            let odd = "n 1/ü+%41&.json";
            assert_eq!(ours.get(odd, 100).await.unwrap(), None);
            assert_eq!(ours.list("", 100).await.unwrap(), []);
            ours.put(odd, "application/json", Source::Bytes(b"{}")).await.unwrap();
            assert_eq!(ours.get(odd, 100).await.unwrap().unwrap(), b"{}");

            // A second upload replaces the first; other prefixes are not listed.
            ours.put(odd, "application/json", Source::Bytes(b"[1]")).await.unwrap();
            ours.put("n2/a.json", "application/json", Source::Bytes(b"")).await.unwrap();
            bucket(&store, "reports").put("production", "text/plain", Source::Bytes(b"x")).await.unwrap();
            assert_eq!(ours.get(odd, 100).await.unwrap().unwrap(), b"[1]");
            let listed = ours.list("", 100).await.unwrap();
            assert_eq!(keys(&listed), [odd, "n2/a.json"]);
            assert_eq!(listed.iter().map(|object| object.bytes).collect::<Vec<_>>(), [3, 0]);
            assert!(listed.iter().all(|object| object.modified.is_some()));
            assert_eq!(keys(&ours.list("n2/", 100).await.unwrap()), ["n2/a.json"]);
            assert_eq!(keys(&ours.list("", 1).await.unwrap()), [odd]);

            ours.delete(odd).await.unwrap();
            ours.delete(odd).await.unwrap();
            assert_eq!(keys(&ours.list("", 100).await.unwrap()), ["n2/a.json"]);
            ours.delete("n2/a.json").await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_stored_as_it_is_hashed_or_not_at_all() {
    for (server, store) in stores() {
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
        let refused = ours.put("forged", "text/plain", Source::File(&file, &other)).await.unwrap_err();
        match server {
            ObjectServer::Versitygw => assert!(matches!(refused, ObjectsError::Refused(_)), "{refused:?}"),
            ObjectServer::Azurite => assert!(matches!(refused, ObjectsError::Changed { .. }), "{refused:?}"),
        }
        assert!(refused.is_lasting());
        assert_eq!(ours.get("forged", 10).await.unwrap(), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_of_many_pages_is_whole_and_in_order() {
    for (_, store) in stores() {
        let ours = bucket(&store, "many");
        let expected: Vec<String> = (0..1100).map(|number| format!("{number:05}")).collect();
        store.fill("many", &expected).unwrap();
        let listed = ours.list("", 10_000).await.unwrap();
        assert_eq!(keys(&listed), expected);
        assert!(listed.iter().all(|object| object.bytes == 5));
        assert_eq!(keys(&ours.list("", 1050).await.unwrap()), expected[..1050]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_credentials_and_a_missing_bucket_are_told_apart() {
    for (server, store) in stores() {
        let (denials, no_bucket) = match server {
            ObjectServer::Versitygw => (["SignatureDoesNotMatch", ""], "NoSuchBucket"),
            // Microsoft's emulator answers both with the second code.
            ObjectServer::Azurite => (["AuthorizationFailure", "AuthenticationFailed"], "ContainerNotFound"),
        };
        for credentials in store.wrong_credentials().unwrap() {
            let stranger = open(&store, "", credentials);
            let refused = stranger.put("a", "text/plain", Source::Bytes(b"x")).await.unwrap_err();
            let denied = |error: &ObjectsError| matches!(error, ObjectsError::Refused(no) if no.status == 403 && denials.contains(&no.code.as_str()));
            assert!(denied(&refused), "{refused}");
            assert!(!refused.is_lasting(), "a right may be given");
            let refused = stranger.get("a", 10).await.unwrap_err();
            assert!(matches!(&refused, ObjectsError::Refused(no) if no.status == 403), "{refused}");
        }
        let elsewhere = store.location("").replace(ObjectStore::BUCKET, "another");
        let elsewhere = elsewhere.parse().unwrap();
        let elsewhere = Bucket::open(elsewhere, store.credentials(), Some(&store.authority())).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("copy");
        for missing in [
            elsewhere.get("a", 10).await.unwrap_err(),
            elsewhere.get_to_file("a", 10, &copy).await.unwrap_err(),
            elsewhere.list("", 10).await.unwrap_err(),
        ] {
            assert!(matches!(&missing, ObjectsError::Refused(no) if no.code == no_bucket), "{missing}");
        }
        assert!(!copy.exists());
        let invalid = elsewhere.get("a/../b", 10).await.unwrap_err();
        assert!(matches!(invalid, ObjectsError::Key(_)) && invalid.is_lasting());
    }
}

/// Logs, URLs and errors must not contain credentials.
#[tokio::test(flavor = "multi_thread")]
async fn no_way_in_is_shown() {
    for (_, store) in stores() {
        let location = store.location("reports");
        let unreachable = "az://fleet?account=harbour&endpoint=https://127.0.0.1:1";
        for credentials in
            store.all_credentials().unwrap().into_iter().chain(store.wrong_credentials().unwrap())
        {
            let text = std::fs::read_to_string(&credentials).unwrap();
            let secrets: Vec<&str> = text
                .split(['\n', ';', '&'])
                .filter_map(|part| part.trim().split_once('='))
                .filter(|(name, _)| ["AccountKey", "sig", "aws_secret_access_key "].contains(name))
                .map(|(_, secret)| secret.trim())
                .collect();
            assert_eq!(secrets.len(), 1, "{text}");
            let mut said = Vec::new();
            for place in [location.as_str(), unreachable] {
                let place = place.parse().unwrap();
                let Ok(bucket) = Bucket::open(place, credentials.clone(), Some(&store.authority())) else {
                    continue;
                };
                let errors = [
                    bucket.put("a", "text/plain", Source::Bytes(b"12")).await.err(),
                    bucket.get("a", 1).await.err(),
                    bucket.list("", 1).await.err(),
                ];
                said.extend(errors.iter().flatten().map(|error| format!("{} {error:?}", chain(error))));
                said.push(bucket.url("a"));
                said.push(format!("{} {:?}", bucket.location(), bucket.location()));
            }
            assert!(said.len() > 2, "{said:?}");
            for said in said {
                assert!(!secrets.iter().any(|secret| said.contains(secret)), "{said}");
            }
        }
    }
}
