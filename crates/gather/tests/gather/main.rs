//! Tests with load balancers, rejections, truncated streams and proxies. The fake peer uses real TLS and HTTP; the
//! tests of the binary cover the real gateway.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod peer;

use std::time::Duration;

use landfall_gather::{Access, Endpoint, Error, Patience, Route, Wanted, connect, fetch, find};
use landfall_model::{Secret, chain};
use landfall_net::http::HttpError;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use peer::{Behaviour, Peer, Resumes, bundle};

const PATIENT: Patience = Patience { within: Duration::from_secs(60), tell: |_| {} };
const IMPATIENT: Patience = Patience { within: Duration::from_millis(700), tell: |_| {} };

fn route<'a>(endpoint: &'a Endpoint, access: &'a Access) -> Route<'a> {
    Route { endpoint, access, patience: PATIENT }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bootstrap_machine_is_found_behind_a_load_balancer() {
    // One of five backends is the bootstrap host; the balancer uses round robin.
    let other = || Behaviour::ApiServer;
    let peer =
        Peer::start(vec![other(), other(), other(), Behaviour::bootstrap(bundle()), Behaviour::Hangup]).await;
    let (endpoint, access) = peer.access();
    let found = find(&endpoint, &access, PATIENT).await.unwrap();
    assert_eq!((found.identity.node.hostname.as_str(), found.tries), ("boot-0", 4));

    // The bundle request uses the found connection, not a new one.
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("bundle.tar.gz");
    let fetched = fetch(route(&endpoint, &access), found, &Wanted::default(), &to, &|_| {}).await.unwrap();
    assert_eq!(peer.connections(), 4);
    assert!(fetched.cut.is_none() && fetched.verified.is_complete(), "{fetched:?}");
    assert_eq!(std::fs::read(&to).unwrap(), bundle());
    assert!(!folder.path().join("bundle.tar.gz.partial").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn only_other_machines_answer() {
    let peer = Peer::start(vec![Behaviour::ApiServer]).await;
    let (endpoint, access) = peer.access();
    let error = find(&endpoint, &access, IMPATIENT).await.err().unwrap();
    assert!(error.is_unavailable());
    let text = error.to_string();
    assert!(text.contains("another server (HTTP 403)") && text.contains("connections in"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_told_at_once_and_in_the_machines_words() {
    let peer = Peer::start(vec![Behaviour::ApiServer, Behaviour::Denies]).await;
    let (endpoint, access) = peer.access();
    let error = find(&endpoint, &access, PATIENT).await.err().unwrap();
    assert!(error.is_denied());
    assert!(error.to_string().contains("sailor may not get /bootstrap"), "{error}");
    assert_eq!(peer.connections(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_sent_and_only_as_a_header() {
    let peer = Peer::start(vec![Behaviour::bootstrap(bundle())]).await;
    let (endpoint, mut access) = peer.access();
    access.token = Some(Secret::new("gather-token-1".to_owned()));
    find(&endpoint, &access, PATIENT).await.unwrap();
    assert_eq!(peer.authorizations(), ["Bearer gather-token-1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_before_a_cut_is_kept_and_verified() {
    let whole = bundle();
    let peer = Peer::start(vec![Behaviour::cut(&whole, Resumes::Never), Behaviour::Hangup]).await;
    let (endpoint, access) = peer.access();
    let found = find(&endpoint, &access, PATIENT).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("bundle.tar.gz");
    let fetched = fetch(route(&endpoint, &access), found, &Wanted::default(), &to, &|_| {}).await.unwrap();
    assert!(fetched.cut.is_some());
    assert!(!fetched.verified.whole.is_empty() && !fetched.verified.is_complete(), "{fetched:?}");
    assert!(!to.exists(), "a partial bundle has no final name");
    assert_eq!(fetched.path, folder.path().join("bundle.tar.gz.partial"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rest_of_a_cut_bundle_is_fetched_behind_the_balancer() {
    let whole = bundle();
    let peer = Peer::start(vec![Behaviour::cut(&whole, Resumes::Always), Behaviour::ApiServer]).await;
    let (endpoint, access) = peer.access();
    let found = find(&endpoint, &access, PATIENT).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("bundle.tar.gz");
    let fetched = fetch(route(&endpoint, &access), found, &Wanted::default(), &to, &|_| {}).await.unwrap();
    assert!(fetched.cut.is_none() && fetched.verified.is_complete(), "{fetched:?}");
    assert_eq!(std::fs::read(&to).unwrap(), whole);
    assert_eq!(peer.connections(), 3, "the truncated one, the other server, the rest");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_cannot_go_on_begins_again() {
    let whole = bundle();
    let peer =
        Peer::start(vec![Behaviour::cut(&whole, Resumes::Always), Behaviour::bootstrap(whole.clone())]).await;
    let (endpoint, access) = peer.access();
    let found = find(&endpoint, &access, PATIENT).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("bundle.tar.gz");
    fetch(route(&endpoint, &access), found, &Wanted::default(), &to, &|_| {}).await.unwrap();
    assert_eq!(std::fs::read(&to).unwrap(), whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_of_another_authority_is_not_spoken_to() {
    let peer = Peer::start(vec![Behaviour::bootstrap(bundle())]).await;
    let stranger = Peer::start(vec![Behaviour::bootstrap(bundle())]).await;
    let (_, access) = stranger.access();
    let error = find(&peer.access().0, &access, IMPATIENT).await.err().unwrap();
    assert!(matches!(error, Error::Http(HttpError::Tls { .. })), "{error:?}");
    assert_eq!(peer.authorizations(), [""; 0]);

    let trusting = Access { skip_verification: true, ..Access::default() };
    find(&peer.access().0, &trusting, PATIENT).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_way_leads_through_a_proxy() {
    let peer = Peer::start(vec![Behaviour::bootstrap(bundle())]).await;
    let proxy = peer::proxy(Some("Basic bWU6aHVzaA==")).await;
    let (endpoint, mut access) = peer.access();
    access.proxy = Some(format!("http://me:hush@{proxy}"));
    find(&endpoint, &access, PATIENT).await.unwrap();

    access.proxy = Some(format!("http://{proxy}"));
    let error = find(&endpoint, &access, IMPATIENT).await.err().unwrap();
    let told = chain(&error).to_string();
    assert!(told.contains("407"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_go_both_ways_through_the_tunnel() {
    let peer = Peer::start(vec![Behaviour::bootstrap(bundle())]).await;
    let (endpoint, access) = peer.access();
    let found = find(&endpoint, &access, PATIENT).await.unwrap();
    let (mut here, there) = tokio::io::duplex(1 << 10);
    let (input, output) = tokio::io::split(there);
    let tunnel = tokio::spawn({
        let endpoint = endpoint.clone();
        async move { connect(found, &endpoint, "10.0.0.5:22", input, output).await }
    });
    // More than all buffers on the path.
    let sent: Vec<u8> = (0..300_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let (mut read, mut write) = tokio::io::split(&mut here);
    let mut back = vec![0; sent.len()];
    let (sending, reading) = tokio::join!(write.write_all(&sent), read.read_exact(&mut back));
    sending.unwrap();
    reading.unwrap();
    assert_eq!(back, sent);
    drop(here);
    tunnel.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_is_not_allowed_is_told() {
    let peer = Peer::start(vec![Behaviour::bootstrap(bundle())]).await;
    let (endpoint, access) = peer.access();
    let found = find(&endpoint, &access, PATIENT).await.unwrap();
    let error = connect(found, &endpoint, "169.254.169.254:80", tokio::io::empty(), tokio::io::sink())
        .await
        .unwrap_err();
    assert!(error.is_denied(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_listens() {
    let port = landfall_testkit::free_port().unwrap();
    let endpoint: Endpoint = format!("https://127.0.0.1:{port}").parse().unwrap();
    let access = Access { skip_verification: true, ..Access::default() };
    let error = find(&endpoint, &access, IMPATIENT).await.err().unwrap();
    assert!(matches!(error, Error::Http(HttpError::Unreachable { .. })), "{error:?}");
}
