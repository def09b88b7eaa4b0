use super::*;
use crate::store::SqliteStore;

fn hub(folder: &std::path::Path) -> Hub {
    let store = Arc::new(SqliteStore::open(&folder.join("hub.db")).unwrap());
    let objects = Objects::folder(&folder.join("bundles")).unwrap();
    let limits = BundleLimits { packed: 1 << 20 };
    Hub::new(store, objects, Access::default(), limits, Roles::new(Vec::new(), None)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn batches_wait_for_each_other_and_not_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let hub = hub(folder.path());
    let all = hub.batching.acquire_many(u32::try_from(MAX_BATCHES).unwrap()).await.unwrap();
    let nothing = || hub.batch(&Caller::Anyone, Packing::None, b"");
    let problem = nothing().await.unwrap_err();
    assert_eq!((problem.status, problem.retry), (503, true), "{problem:?}");
    let ((), taken) = tokio::join!(async { drop(all) }, nothing());
    assert!(taken.unwrap().is_empty());
}

#[tokio::test]
async fn who_goes_away_makes_no_room_for_more_work() {
    let folder = tempfile::tempdir().unwrap();
    let hub = hub(folder.path());
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let (begin, begun) = tokio::sync::oneshot::channel();
    let work = hub.unpacked(move || {
        let _ = begin.send(());
        let _ = ended.recv();
        Ok(())
    });
    tokio::select! {
        _ = work => panic!("nobody told it to end"),
        begun = begun => begun.unwrap(),
    }
    assert_eq!(hub.unpacking.available_permits(), MAX_UNPACKING - 1, "the work goes on without its caller");
    drop(end);
    let all = u32::try_from(MAX_UNPACKING).unwrap();
    drop(hub.unpacking.acquire_many(all).await.unwrap());
}
