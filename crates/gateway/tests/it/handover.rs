//! Handover from the bootstrap API server to the permanent ones, without visible errors.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use http_body_util::BodyExt as _;
use hyper::client::conn::{http1, http2};
use hyper::{Method, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use landfall_gateway::config::Readiness;
use landfall_testkit::{ApiServer, Sibling, eventually, have};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bed::{Bed, LIMIT};
use crate::client::{Client, Identity};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WATCHERS: usize = 100;

fn address(sibling: &Sibling) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::LOCALHOST.into(), sibling.port())
}

/// Watches like client-go: each watch continues from the last resource version of the previous one.
async fn watch(client: Client, from: String, seen: Arc<Mutex<BTreeSet<String>>>) {
    let mut version = from;
    loop {
        let path = format!("{MAPS}?watch=true&allowWatchBookmarks=true&resourceVersion={version}");
        let stream = client.connect(b"http/1.1").await;
        let Ok((mut sender, connection)) = http1::handshake(TokioIo::new(stream)).await else { continue };
        tokio::spawn(connection);
        let Ok(answer) = sender.send_request(client.request(Method::GET, &path, "")).await else { continue };
        if answer.status() != 200 {
            tokio::task::yield_now().await;
            continue;
        }
        let (mut body, mut line) = (answer.into_body(), Vec::new());
        while let Some(frame) = body.frame().await {
            // A watch must end normally, without a truncated event.
            let frame = frame.expect("a watch broke");
            for byte in frame.into_data().unwrap_or_default() {
                if byte != b'\n' {
                    line.push(byte);
                    continue;
                }
                let event: Value = serde_json::from_slice(&std::mem::take(&mut line)).unwrap();
                let object = &event["object"]["metadata"];
                object["resourceVersion"].as_str().unwrap().clone_into(&mut version);
                if event["type"] == "ADDED" {
                    let name = object["name"].as_str().unwrap().to_owned();
                    assert!(seen.lock().unwrap().insert(name.clone()), "{name} was seen twice");
                }
            }
        }
        assert!(line.is_empty(), "a watch ended in the middle of an event");
    }
}

#[test]
fn no_event_is_lost_on_the_way() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let local = ApiServer::start().unwrap();
    let permanent = [local.sibling().unwrap(), local.sibling().unwrap()];
    let bed = Bed::before_in_phase(&local, "both", |config| {
        config.upstream.permanent = permanent.iter().map(address).collect();
    });
    let admin = bed.client(bed.user("admin", "system:masters"));
    let list = admin.get(&bed.runtime, MAPS).json();
    let from = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let watched: Vec<_> = (0..WATCHERS)
        .map(|_| {
            let seen = Arc::new(Mutex::new(BTreeSet::new()));
            let watching = bed.runtime.spawn(watch(admin.clone(), from.clone(), Arc::clone(&seen)));
            (seen, watching)
        })
        .collect();
    let mut written = BTreeSet::new();
    let mut write = |name: String| {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}).to_string();
        let got = admin.send(&bed.runtime, Method::POST, MAPS, &map);
        assert_eq!(got.status, 201, "{got:?}");
        written.insert(name);
    };
    let everybody_has = |written: &BTreeSet<String>| {
        watched.iter().all(|(seen, _)| seen.lock().unwrap().is_superset(written))
    };
    (0..10).for_each(|number| write(format!("before-{number}")));

    // The bootstrap finishes, and its API server stops.
    std::fs::write(bed.folder.path().join("finished"), "").unwrap();
    bed.wait_for_phase("handover");
    (0..10).for_each(|number| write(format!("during-{number}")));
    local.process().signal(Signal::TERM).unwrap();
    bed.wait_for_phase("permanent");
    (0..10).for_each(|number| write(format!("after-{number}")));

    let written = written;
    eventually("all events everywhere", LIMIT, || everybody_has(&written).then_some(())).unwrap();
    for (seen, watching) in watched {
        assert_eq!(*seen.lock().unwrap(), written);
        assert!(!watching.is_finished(), "a watcher failed");
        watching.abort();
    }
    // Another server is killed: unsent requests go to the next one.
    permanent[0].process().signal(Signal::KILL).unwrap();
    (0..4).for_each(|_| assert_eq!(admin.get(&bed.runtime, MAPS).status, 200));
}

#[test]
fn a_gateway_that_leaves_says_so() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let local = ApiServer::start().unwrap();
    let permanent = [local.sibling().unwrap(), local.sibling().unwrap()];
    let bed = Bed::before_in_phase(&local, "both", |config| {
        config.upstream.permanent = permanent.iter().map(address).collect();
        config.readiness = Readiness::Leave;
    });
    let client = bed.client(Identity::None);
    assert_eq!(client.get(&bed.runtime, "/readyz").status, 200);
    // Open connections are closed gracefully when the handover begins: by `Connection: close`, by GOAWAY.
    let (closed, asking) = bed.runtime.block_on(async {
        let stream = client.connect(b"http/1.1").await;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        let closed = tokio::spawn(connection);
        let answer = sender.send_request(client.request(Method::GET, "/version", "")).await.unwrap();
        answer.into_body().collect().await.unwrap();
        (closed, sender)
    });
    let by_2 = client.clone().version(Version::HTTP_2);
    let (closed_2, asking_2, watching) = bed.runtime.block_on(async {
        let stream = TokioIo::new(by_2.connect(b"h2").await);
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        let closed = tokio::spawn(connection);
        let admin = bed.client(bed.user("admin", "system:masters")).version(Version::HTTP_2);
        let answer = sender.send_request(by_2.request(Method::GET, "/version", "")).await.unwrap();
        answer.into_body().collect().await.unwrap();
        // A concurrent watch on its own connection.
        let stream = TokioIo::new(admin.connect(b"h2").await);
        let (mut watcher, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        let gone = tokio::spawn(connection);
        let path = format!("{MAPS}?watch=true");
        let answer = watcher.send_request(admin.request(Method::GET, &path, "")).await.unwrap();
        assert_eq!(answer.status(), 200);
        (closed, sender, (watcher, answer, gone))
    });
    std::fs::write(bed.folder.path().join("finished"), "").unwrap();
    bed.runtime.block_on(async {
        tokio::time::timeout(LIMIT, closed).await.unwrap().unwrap().unwrap();
        tokio::time::timeout(LIMIT, closed_2).await.unwrap().unwrap().unwrap();
        let (mut watcher, watched, gone) = watching;
        // The watch continues after GOAWAY and ends normally; its connection accepts no new request.
        tokio::time::timeout(LIMIT, watched.into_body().collect()).await.unwrap().unwrap();
        tokio::time::timeout(LIMIT, gone).await.unwrap().unwrap().unwrap();
        assert!(watcher.ready().await.is_err(), "told to go away");
    });
    drop((asking, asking_2));
    assert_eq!(client.get(&bed.runtime, "/readyz").status, 500);
    assert_eq!(client.get(&bed.runtime, "/livez").status, 200, "it is alive whatever it leaves");
    assert_eq!(client.get(&bed.runtime, "/version").status, 200, "and still serves who comes");
}
