use super::*;
use crate::store::SqliteStore;

fn hub(folder: &std::path::Path) -> Hub {
    let store = Arc::new(SqliteStore::open(&folder.join("hub.db")).unwrap());
    let objects = Objects::folder(&folder.join("bundles")).unwrap();
    let limits = BundleLimits { packed: 1 << 20 };
    Hub::new(store, objects, Access::default(), limits, Roles::new(Vec::new(), None)).unwrap()
}

/// Callers that may not report do not use permits.
#[tokio::test(start_paused = true)]
async fn batches_of_one_credential_leave_permits_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let hub = hub(folder.path());
    let viewer = Caller::Viewer("vic".to_owned());
    let refused = hub.batch_permit(&viewer).await.unwrap_err();
    assert_eq!((refused.status, refused.retry), (403, false), "{refused:?}");
    let token = |token: u8| Caller::Nodes { prefix: "batches".to_owned(), token: [token; 32] };
    let _stalled = hub.batch_permit(&token(1)).await.unwrap();
    assert_eq!(hub.batch_permit(&token(1)).await.unwrap_err().status, 503);
    let begun = tokio::time::Instant::now();
    hub.batch_permit(&token(2)).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 0);
}

#[tokio::test]
async fn uploads_are_limited_per_node_and_per_credential() {
    let folder = tempfile::tempdir().unwrap();
    let hub = hub(folder.path());
    let token = Caller::Nodes { prefix: String::new(), token: [7; 32] };
    let send = async |by: &Caller, node: &str| {
        let content = futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"x"))]);
        let node = NodeName::new(node).unwrap();
        hub.take_bundle(&Caller::Node(node.clone()), by, node, None, content).await.unwrap_err().status
    };
    let node = NodeName::new("n1").unwrap();
    let slots = [hub.node_uploads.try_acquire(Some(&node)), hub.node_uploads.try_acquire(Some(&node))];
    assert!(slots.iter().all(Option::is_some));
    assert_eq!(send(&Caller::Node(node), "n1").await, 503);
    let slots: Vec<_> = std::iter::from_fn(|| hub.uploads.try_acquire(Some(&token))).collect();
    assert_eq!(slots.len(), UPLOADS.per_caller);
    assert_eq!(send(&token, "n2").await, 503);
    assert_eq!(send(&Caller::Node(NodeName::new("n2").unwrap()), "n2").await, 422, "it is no bundle");
    drop(slots);
    assert_eq!(send(&token, "n2").await, 422);
}

/// A holder of a shared token can send bundles under new names without limit.
#[tokio::test]
async fn bundles_leave_room_for_reports() {
    let folder = tempfile::tempdir().unwrap();
    let mut hub = hub(folder.path());
    hub.left_free = |_| u64::MAX;
    let send = async |hub: &Hub| {
        let content = futures_util::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"x"))]);
        hub.take_bundle(&Caller::Anyone, &Caller::Anyone, NodeName::new("n1").unwrap(), None, content)
            .await
            .unwrap_err()
    };
    let problem = send(&hub).await;
    assert_eq!((problem.status, problem.retry), (503, true), "{problem:?}");
    assert!(hub.is_crowded.load(std::sync::atomic::Ordering::Relaxed));
    hub.left_free = |_| 0;
    assert_eq!(send(&hub).await.status, 422, "it is looked at, and is none");
}

/// One byte every 30 s never exceeds the maximum pause, but the upload ends at its timeout.
#[tokio::test(start_paused = true)]
async fn a_bundle_that_never_ends_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let hub = hub(folder.path());
    let drops = futures_util::stream::unfold((), async |()| {
        tokio::time::sleep(std::time::Duration::from_secs(30)).await;
        Some((Ok::<_, std::io::Error>(Bytes::from_static(b"x")), ()))
    });
    let node = NodeName::new("n1").unwrap();
    let begun = tokio::time::Instant::now();
    let problem =
        hub.take_bundle(&Caller::Anyone, &Caller::Anyone, node, None, Box::pin(drops)).await.unwrap_err();
    assert_eq!((problem.status, begun.elapsed()), (408, bundles::UPLOAD_PATIENCE), "{problem:?}");
}

fn object(folder: &std::path::Path, digest: &str) -> std::path::PathBuf {
    folder.join("bundles").join(&digest[..2]).join(digest)
}

/// Stores an object of a given age.
fn lay(path: &std::path::Path, age: std::time::Duration) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, "packed").unwrap();
    let laid = std::time::SystemTime::now() - age;
    std::fs::File::options().write(true).open(path).unwrap().set_modified(laid).unwrap();
}

async fn record(hub: &Hub, digest: &str) {
    let bundle = BundleRecord {
        digest: digest.to_owned(),
        node: "n1".to_owned(),
        received: Timestamp::now(),
        bytes: 6,
        files: 1,
        cut: false,
    };
    assert!(hub.store.expect_bundle(digest.to_owned(), Timestamp::now()).await.unwrap());
    assert!(hub.store.add_bundle(bundle).await.unwrap());
}

#[tokio::test]
async fn objects_without_a_record_are_swept_when_they_are_old() {
    let folder = tempfile::tempdir().unwrap();
    let hub = hub(folder.path());
    let day = std::time::Duration::from_secs(24 * 3600);
    let [lost, new, known] = ["ab", "cd", "ef"].map(|part| part.repeat(32));
    for (digest, age) in [(&lost, 2 * day), (&new, day / 2), (&known, 2 * day)] {
        lay(&object(folder.path(), digest), age);
    }
    record(&hub, &known).await;
    let strange = folder.path().join("bundles/ab/notes.txt");
    lay(&strange, 2 * day);
    hub.sweep().await;
    assert!(!object(folder.path(), &lost).exists());
    assert!(object(folder.path(), &new).exists() && object(folder.path(), &known).exists());
    assert!(strange.exists(), "it is not ours");
}

#[tokio::test]
async fn an_object_that_cannot_be_removed_is_not_lost_from_sight() {
    let folder = tempfile::tempdir().unwrap();
    let hub = hub(folder.path());
    let digest = "ab".repeat(32);
    record(&hub, &digest).await;
    // A directory in place of the file makes the removal fail, even for root.
    let path = object(folder.path(), &digest);
    std::fs::create_dir_all(&path).unwrap();
    let later = Timestamp::now() + jiff::SignedDuration::from_hours(1);
    assert_eq!(hub.store.prune(Timestamp::UNIX_EPOCH, later).await.unwrap().bundles, 1);
    hub.remove_loose().await;
    assert_eq!(hub.store.loose(later).await.unwrap(), [digest.as_str()], "it is tried again");
    std::fs::remove_dir(&path).unwrap();
    lay(&path, std::time::Duration::ZERO);
    let even_later = later + jiff::SignedDuration::from_hours(1);
    assert_eq!(hub.store.loose(even_later).await.unwrap(), [digest.as_str()]);
    hub.objects.remove(&digest).await.unwrap();
    hub.store.removed(digest).await.unwrap();
    assert!(hub.store.loose(Timestamp::MAX).await.unwrap().is_empty());
}

#[tokio::test]
async fn who_goes_away_makes_no_room_for_more_work() {
    let folder = tempfile::tempdir().unwrap();
    let hub = hub(folder.path());
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let (begin, begun) = tokio::sync::oneshot::channel();
    let work = hub.unpacked(&Caller::Anyone, move || {
        let _ = begin.send(());
        let _ = ended.recv();
        Ok(())
    });
    tokio::select! {
        _ = work => panic!("nobody told it to end"),
        begun = begun => begun.unwrap(),
    }
    assert_eq!(hub.unpacking.available(), UNPACKING.total - 1, "the work goes on without its caller");
    drop(end);
    let all = [hub.unpacking.acquire(None).await, hub.unpacking.acquire(None).await];
    assert!(all.iter().all(Option::is_some), "it ends with the work");
}

/// Returns a report of the maximum size whose evidence contains the word.
fn large_report(sequence: u64) -> Bytes {
    let line = |number: u64| {
        serde_json::json!({
            "source": "journal", "line": number, "time": null,
            "text": format!("flobber {sequence} {number}")
        })
    };
    let finding = serde_json::json!({
        "cause": "disk-full", "title": "Full", "root": true, "confidence": 0.9, "class": "terminal", "explains": [],
        "evidence": (1..=7).map(line).collect::<Vec<_>>(), "fix": "", "reference": ""
    });
    let message = serde_json::json!({
        "id": format!("01890a5d-ac96-774b-bcce-{sequence:012}"), "node": {"hostname": "n1"},
        "sequence": sequence, "time": "2026-01-02T03:04:05Z",
        "report": {
            "format": 1, "findings": [finding], "timeline": [], "sources": [],
            "nextSteps": vec!["x".repeat(1 << 10); 1000],
            "verdict": {"state": "failed", "title": format!("Full {sequence}"), "cause": "disk-full", "confidence": 0.9}
        }
    });
    let envelope = landfall_model::envelope::Envelope::unsigned(message.to_string().into_bytes());
    serde_json::to_vec(&envelope).unwrap().into()
}

/// Without a limit, any reporter could slow down all searches, and searches could slow down all reports.
#[tokio::test]
async fn a_search_reads_only_so_much() {
    let folder = tempfile::tempdir().unwrap();
    let hub = hub(folder.path());
    for sequence in 1..=20 {
        hub.report(&Caller::Anyone, Packing::None, large_report(sequence)).await.unwrap();
    }
    let found = hub.search(&Caller::Anyone, "FLOBBER").await.unwrap();
    let titles: Vec<&str> = found.iter().map(|found| found.title.as_str()).collect();
    let newest_first: Vec<String> = (1..=20).rev().map(|sequence| format!("Full {sequence}")).collect();
    assert_eq!(titles, newest_first, "everything is found");
    assert!(
        found.iter().all(|found| found.cause.as_ref().is_some_and(|cause| cause.as_str() == "disk-full"))
    );
    let shown = found.iter().take_while(|found| !found.lines.is_empty()).count();
    assert_eq!(shown, search::MAX_LOOKED_AT.div_ceil(1 << 20) + 1, "and not everything is read");
    assert!(found[shown..].iter().all(|found| found.lines.is_empty()));
    assert!(
        found[0].lines.iter().map(|line| line.text.as_str()).eq((1..=5).map(|n| format!("flobber 20 {n}")))
    );
}

#[tokio::test(start_paused = true)]
async fn searches_wait_for_each_other_and_not_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let hub = hub(folder.path());
    let all: Vec<_> = std::iter::from_fn(|| hub.searches.try_acquire(None)).collect();
    let problem = hub.search(&Caller::Anyone, "flobber").await.unwrap_err();
    assert_eq!((problem.status, problem.retry), (503, true), "{problem:?}");
    drop(all);
    assert!(hub.search(&Caller::Anyone, "flobber").await.unwrap().is_empty());
    assert_eq!(hub.searches.available(), SEARCHES.total, "the permit ends with the search");
}

/// A sender of bundles that take long to decompress blocks neither viewers nor other senders.
#[tokio::test]
async fn unpacking_for_one_credential_leaves_permits_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let hub = hub(folder.path());
    let token = Caller::Nodes { prefix: "bundles".to_owned(), token: [1; 32] };
    let viewer = Caller::Viewer("bundles".to_owned());
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let (begin, begun) = tokio::sync::oneshot::channel();
    let long = hub.unpacked(&token, move || {
        let _ = begin.send(());
        let _ = ended.recv();
        Ok(())
    });
    let again = async {
        begun.await.unwrap();
        let mut second = Box::pin(hub.unpacked(&token, || Ok(())));
        tokio::select! {
            biased;
            _ = &mut second => panic!("both turns for one"),
            seen = hub.unpacked(&viewer, || Ok(())) => seen.unwrap(),
        }
        drop(end);
        second.await
    };
    let (long, second) = tokio::join!(long, again);
    assert!(long.is_ok() && second.is_ok());
}
