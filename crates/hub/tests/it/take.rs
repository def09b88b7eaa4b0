//! Ingest from sources other than a push: accepted and rejected reports, and that each counts once.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use landfall_evidence::console::frame;
use landfall_fetch::objects::{Bucket, Source};
use landfall_hub::{Afterwards, Config, TakeNats, TakeObjects};
use landfall_net::nats::Connection;
use landfall_pki::SigningKey;
use landfall_testkit::{NatsServer, ObjectServer, ObjectStore, eventually, have};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};

use crate::bed::{Answer, SentReport, TestHub, envelope, no_dns, running, signed as sign};

const LIMIT: Duration = Duration::from_secs(60);

fn written(envelope: &SentReport) -> Vec<u8> {
    serde_json::to_vec(envelope).unwrap()
}

/// Returns the hub's report counter for this outcome.
fn count(hub: &TestHub, outcome: &str) -> u64 {
    let metrics = hub.get("/metrics").text();
    let name = format!("landfall_hub_reports_total{{outcome=\"{outcome}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or(0)
}

fn knows(hub: &TestHub, node: &str) -> Option<Value> {
    let answer = hub.get(&format!("/api/v1/nodes/{node}"));
    (answer.status == 200).then(|| answer.json())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn put(store: &ObjectStore, envelope: &SentReport) {
    let location = store.location("prod").parse().unwrap();
    let bucket = Bucket::open(location, store.credentials(), Some(&store.authority())).unwrap();
    let key = format!("reports/{}/{}.json", envelope.node.hostname, envelope.id);
    let bytes = written(envelope);
    runtime().block_on(bucket.put(&key, "application/json", Source::Bytes(&bytes))).unwrap();
}

fn from_objects(config: &mut Config, store: &ObjectStore, afterwards: Afterwards) {
    let (credentials, authority) = (store.credentials(), store.authority());
    let files = format!("credentials-file={}&ca-file={}", credentials.display(), authority.display());
    let place = format!("{}&{files}", store.location("prod"));
    config.take.objects = Some(TakeObjects::parse(&place, Duration::from_secs(1), afterwards).unwrap());
}

fn objects(store: &ObjectStore, node: &str) -> usize {
    store.objects(&format!("prod/reports/{node}")).unwrap().len()
}

#[test]
fn reports_in_a_bucket_are_taken_once_and_stay_there() {
    if !have(ObjectServer::Versitygw.needs()) {
        return;
    }
    let store = ObjectServer::Versitygw.start().unwrap();
    let (key, _) = SigningKey::generate().unwrap();
    let first = sign(envelope("n1", 1, running()), &key);
    put(&store, &first);
    // Unsigned and modified reports are rejected.
    put(&store, &envelope("n2", 1, no_dns()));
    let mut forged = sign(envelope("n3", 1, no_dns()), &key);
    forged.sequence = 9;
    put(&store, &forged);
    let hub = TestHub::with(|config| from_objects(config, &store, Afterwards::Kept));
    eventually("the report of the bucket", LIMIT, || knows(&hub, "n1")).unwrap();
    // A report that was already pushed counts as known.
    let second = sign(envelope("n1", 2, no_dns()), &key);
    hub.stored(&second);
    put(&store, &second);
    put(&store, &sign(envelope("n1", 3, running()), &key));
    eventually("the third", LIMIT, || knows(&hub, "n1").filter(|node| node["sequence"] == 3)).unwrap();
    eventually("both to be refused", LIMIT, || (count(&hub, "refused") == 2).then_some(())).unwrap();
    assert!(knows(&hub, "n2").is_none() && knows(&hub, "n3").is_none());
    assert_eq!(knows(&hub, "n1").unwrap()["reports"], 3);
    assert_eq!(count(&hub, "duplicate"), 0, "what the store has is not fetched again");
    assert_eq!(objects(&store, "n1"), 3);
}

#[test]
fn a_bucket_is_emptied_when_it_is_asked_for() {
    if !have(ObjectServer::Versitygw.needs()) {
        return;
    }
    let store = ObjectServer::Versitygw.start().unwrap();
    let (key, _) = SigningKey::generate().unwrap();
    put(&store, &sign(envelope("n1", 1, no_dns()), &key));
    put(&store, &envelope("n2", 1, no_dns()));
    let hub = TestHub::with(|config| from_objects(config, &store, Afterwards::Deleted));
    eventually("the bucket to be emptied", LIMIT, || (objects(&store, "n1") == 0).then_some(())).unwrap();
    assert!(knows(&hub, "n1").is_some());
    assert_eq!(objects(&store, "n2"), 1, "what is refused stays for whoever wants to know why");
}

#[test]
fn reports_on_a_stream_are_taken_once_whoever_asks() {
    if !have(NatsServer::NEEDS) {
        return;
    }
    let server = NatsServer::start().unwrap();
    let (key, _) = SigningKey::generate().unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(server.authority()).unwrap()).unwrap();
    let tls =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
    let tls = Arc::new(tls);
    let publish = |envelope: &SentReport| {
        let bytes = written(envelope);
        runtime().block_on(async {
            let place = server.url().parse().unwrap();
            let mut connection = Connection::open(&place, &tls, Some(&server.login()), "test").await.unwrap();
            let subject = format!("landfall.reports.{}", envelope.node.hostname);
            connection.publish(&subject, &envelope.id.to_string(), &bytes).await.unwrap();
        });
    };
    let from = |config: &mut Config| {
        // The first server does not exist.
        let servers = ["tls://127.0.0.1:1".to_owned(), server.url()];
        let mut nats = TakeNats::parse(&servers, "landfall.reports", "hub").unwrap();
        nats.authority = Some(server.authority());
        nats.login = Some(server.login());
        config.take.nats = Some(nats);
    };
    server.create_stream("REPORTS", "landfall.reports.>").unwrap();
    let first = sign(envelope("n1", 1, running()), &key);
    publish(&first);
    publish(&envelope("n2", 1, no_dns()));
    {
        let hub = TestHub::with(from);
        eventually("what was on the stream before", LIMIT, || knows(&hub, "n1")).unwrap();
        publish(&sign(envelope("n1", 2, no_dns()), &key));
        eventually("what comes later", LIMIT, || knows(&hub, "n1").filter(|node| node["sequence"] == 2))
            .unwrap();
        assert_eq!(count(&hub, "refused"), 1, "nobody signed it");
        let acknowledged = || server.pending("REPORTS", "hub").ok().filter(|pending| *pending == 0);
        eventually("everything to be settled", LIMIT, acknowledged).unwrap();
    }
    // A second hub with its own store and the same consumer receives only new messages.
    let hub = TestHub::with(from);
    publish(&sign(envelope("n1", 3, running()), &key));
    eventually("the third", LIMIT, || knows(&hub, "n1")).unwrap();
    assert_eq!(knows(&hub, "n1").unwrap()["reports"], 1);
    assert_eq!(count(&hub, "refused"), 0);
}

fn event(id: impl serde::Serialize, data: &Value) -> Value {
    json!({"specversion": "1.0", "type": "dev.landfall.report.v1", "source": "/landfall/nodes/n1", "id": id, "data": data})
}

fn post_event(hub: &TestHub, event: &Value) -> u16 {
    let kind = [("content-type", "application/cloudevents+json; charset=utf-8")];
    hub.request("POST", "/api/v1/events", &kind, event.to_string().as_bytes()).status
}

#[test]
fn an_event_is_believed_for_the_signed_report_in_it() {
    let hub = TestHub::start();
    let (key, _) = SigningKey::generate().unwrap();
    let first = sign(envelope("n1", 1, running()), &key);
    let structured = event(first.id, &json!({"envelope": first}));
    for _ in 0..2 {
        assert_eq!(post_event(&hub, &structured), 200);
    }
    let second = sign(envelope("n1", 2, no_dns()), &key);
    let (id, data) = (second.id.to_string(), json!({"envelope": second}).to_string());
    let headers = [
        ("content-type", "application/json"),
        ("ce-specversion", "1.0"),
        ("ce-type", "dev.landfall.report.v1"),
        ("ce-source", "/landfall/nodes/n1"),
        ("ce-id", id.as_str()),
    ];
    let binary = hub.request("POST", "/api/v1/events", &headers, data.as_bytes());
    assert_eq!((binary.status, binary.json()["outcome"].as_str()), (200, Some("stored")), "{binary:?}");
    assert_eq!(knows(&hub, "n1").unwrap()["reports"], 2);
    // A verdict without envelope, the ID of another report, a missing signature, and another key.
    let (other, _) = SigningKey::generate().unwrap();
    let bare = envelope("n1", 3, running());
    let stolen = sign(envelope("n1", 3, running()), &other);
    for (event, status) in [
        (event(second.id, &json!({"verdict": {"state": "failed"}})), 422),
        (event(first.id, &json!({"envelope": second})), 422),
        (event(bare.id, &json!({"envelope": bare})), 403),
        (event(stolen.id, &json!({"envelope": stolen})), 403),
        (json!({"specversion": "1.0"}), 422),
    ] {
        assert_eq!(post_event(&hub, &event), status, "{event}");
    }
    assert_eq!(hub.request("POST", "/api/v1/events", &[("content-type", "text/plain")], b"x").status, 422);
    // GET on the same path still serves the events of open pages.
    let table = hub.json("/api/v1/openapi.json");
    assert!(table["paths"]["/api/v1/events"]["get"].is_object());
}

#[test]
fn what_an_event_refers_to_is_read_from_the_hubs_own_bucket_and_nowhere_else() {
    if !have(ObjectServer::Versitygw.needs()) {
        return;
    }
    let store = ObjectServer::Versitygw.start().unwrap();
    let (key, _) = SigningKey::generate().unwrap();
    let report = sign(envelope("n1", 1, no_dns()), &key);
    put(&store, &report);
    let location = store.location("prod").parse().unwrap();
    let bucket = Bucket::open(location, store.credentials(), Some(&store.authority())).unwrap();
    let right = bucket.url(&format!("reports/n1/{}.json", report.id));
    // The interval is too long for the hub to list the bucket during the test.
    let hub = TestHub::with(|config| {
        from_objects(config, &store, Afterwards::Kept);
        config.take.objects.as_mut().unwrap().backoff =
            landfall_net::Backoff::millis::<3_600_000, 3_600_000>();
    });
    let refer = |hostname: &str, reference: &str| {
        let mut event = event(report.id, &json!({"node": {"hostname": hostname}}));
        event["dataref"] = reference.into();
        post_event(&hub, &event)
    };
    for (hostname, reference) in [
        ("n1", "https://127.0.0.1:1/latest/meta-data"),
        ("n1", "file:///etc/passwd"),
        ("n2", right.as_str()),
        ("../n1", right.as_str()),
        ("n1", right.replace("/prod/", "/other/").as_str()),
    ] {
        assert_eq!(refer(hostname, reference), 422, "{hostname} {reference}");
    }
    assert_eq!(refer("n1", &right), 200);
    assert_eq!(knows(&hub, "n1").unwrap()["reports"], 1);
    // A hub without a configured bucket does not fetch any object.
    let hub = TestHub::start();
    let mut event = event(report.id, &json!({"node": {"hostname": "n1"}}));
    event["dataref"] = right.into();
    assert_eq!(post_event(&hub, &event), 422);
}

#[test]
fn the_reports_on_a_console_are_taken_in() {
    let hub = TestHub::start();
    let (key, _) = SigningKey::generate().unwrap();
    let first = sign(envelope("n1", 1, running()), &key);
    let second = sign(envelope("n1", 2, no_dns()), &key);
    let pushed = hub.request("POST", "/api/v1/reports", &[], &written(&first));
    assert_eq!(pushed.status, 200, "{pushed:?}");
    let frames = |envelope: &SentReport| frame(&written(envelope)).unwrap().replace('\n', "\r\n");
    let unsigned = envelope("n1", 3, running());
    let (other, _) = SigningKey::generate().unwrap();
    let stolen = sign(envelope("n1", 4, running()), &other);
    let mut changed = sign(envelope("n1", 5, running()), &key);
    changed.sequence = 6;
    let refused: String = [&unsigned, &stolen, &changed].into_iter().map(frames).collect();
    let log = format!("[ 0.1] Linux\r\n{}noise\r\n{}{refused}", frames(&first), frames(&second));
    let answer = hub.request("POST", "/api/v1/console", &[], log.as_bytes());
    let results = answer.json();
    let outcome = |at: usize| results["results"][at]["outcome"].as_str().map(str::to_owned);
    assert_eq!(
        (outcome(0).as_deref(), outcome(1).as_deref()),
        (Some("duplicate"), Some("stored")),
        "{results}"
    );
    // Unsigned, signed by a key that is not the pinned one, and modified after signing.
    for (at, words) in [(2, "not signed"), (3, "not signed by the same key"), (4, "signature does not match")]
    {
        let problem = &results["results"][at]["problem"];
        assert_eq!(problem["status"], 403, "{results}");
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains(words)), "{problem}");
    }
    let node = knows(&hub, "n1").unwrap();
    assert_eq!((&node["reports"], &node["state"]), (&json!(2), &json!("failed")));
    assert_eq!(hub.request("POST", "/api/v1/console", &[], b"[ 0.1] Linux\r\n").status, 422);
}

/// Sends a request whose body arrives in two chunks, and returns the response.
fn in_two_pieces(hub: &TestHub, path: &str, body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(hub.address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    .into_bytes();
    let (first, second) = body.split_at(body.len() / 2);
    for piece in [first, second, b""] {
        request.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        request.extend_from_slice(piece);
        request.extend_from_slice(b"\r\n");
    }
    stream.write_all(&request).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    Answer::parse(&answer)
}

/// Sends a console of the maximum size without its last bytes.
fn stalled_console(hub: &TestHub) -> TcpStream {
    const LARGEST: usize = 16 << 20;
    let mut stream = TcpStream::connect(hub.address).unwrap();
    let head =
        format!("POST /api/v1/console HTTP/1.1\r\nhost: localhost\r\ncontent-length: {LARGEST}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    // The hub rejects an excess console before it is completely written.
    let _ = stream.write_all(&vec![b'x'; LARGEST - 1000]);
    stream
}

#[test]
fn consoles_that_stall_leave_the_room_of_reports_alone() {
    let hub = TestHub::start();
    let large = vec![b'x'; 1 << 20];
    let mut stalled = Vec::new();
    let is_full = || {
        // All consoles of one caller share a budget: accepting one can reject another.
        stalled.push(stalled_console(&hub));
        (in_two_pieces(&hub, "/api/v1/console", &large).status == 503).then_some(())
    };
    eventually("their part of the room of consoles to be full", LIMIT, is_full).unwrap();
    let report = serde_json::to_vec(&envelope("n1", 1, running())).unwrap();
    let answer = in_two_pieces(&hub, "/api/v1/reports", &report);
    assert_eq!(answer.status, 200, "{answer:?}");
    drop(stalled);
}

/// An operator may report for every node, but other parties write the reports that an operator forwards.
#[test]
fn who_passes_reports_on_takes_over_no_node_that_does_not_sign() {
    let hub = TestHub::start();
    hub.stored(&envelope("n1", 1, running()));
    let (key, _) = SigningKey::generate().unwrap();
    let report = sign(envelope("n1", 2, no_dns()), &key);
    assert_eq!(post_event(&hub, &event(report.id, &json!({"envelope": report}))), 403);
    let log = frame(&written(&report)).unwrap();
    let answer = hub.request("POST", "/api/v1/console", &[], log.as_bytes()).json();
    assert_eq!(answer["results"][0]["problem"]["status"], 403, "{answer}");
    assert_eq!(knows(&hub, "n1").unwrap()["state"], "running");
}

/// Any writer of the bucket can put any object there.
#[test]
fn odd_objects_in_a_bucket_keep_nobody_out() {
    if !have(ObjectServer::Versitygw.needs()) {
        return;
    }
    let store = ObjectServer::Versitygw.start().unwrap();
    let (key, _) = SigningKey::generate().unwrap();
    let location = store.location("prod").parse().unwrap();
    let bucket = Bucket::open(location, store.credentials(), Some(&store.authority())).unwrap();
    for folder in ["-x", "a b", "n1"] {
        let name = format!("reports/{folder}/{}.json", crate::bed::new_id());
        runtime().block_on(bucket.put(&name, "application/json", Source::Bytes(b"no report"))).unwrap();
    }
    put(&store, &sign(envelope("n1", 1, no_dns()), &key));
    let hub = TestHub::with(|config| from_objects(config, &store, Afterwards::Kept));
    eventually("the report behind them", LIMIT, || knows(&hub, "n1")).unwrap();
    put(&store, &sign(envelope("n1", 2, running()), &key));
    eventually("the next", LIMIT, || knows(&hub, "n1").filter(|node| node["sequence"] == 2)).unwrap();
    assert_eq!(count(&hub, "refused"), 1, "what is in no node's folder is not even fetched");
}

/// Forwarding reports requires a credential as well.
#[test]
fn strangers_pass_nothing_on() {
    let folder = tempfile::tempdir().unwrap();
    let key_file = folder.path().join("tokens.key");
    std::fs::write(&key_file, [7; 32]).unwrap();
    let hub = TestHub::with(|config| config.token_key = Some(key_file.clone()));
    let token = |holder| {
        let key = landfall_hub::TokenKey::new(landfall_model::Secret::new(vec![7; 32])).unwrap();
        let expires = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
        format!("Bearer {}", key.issue(holder, expires).unwrap().expose())
    };
    let (key, _) = SigningKey::generate().unwrap();
    let report = sign(envelope("n1", 1, running()), &key);
    let event = event(report.id, &json!({"envelope": report})).to_string();
    let post = |path: &str, token: Option<&str>| {
        let mut headers = vec![("content-type", "application/cloudevents+json")];
        headers.extend(token.map(|token| ("authorization", token)));
        hub.request("POST", path, &headers, event.as_bytes()).status
    };
    assert_eq!((post("/api/v1/events", None), post("/api/v1/console", None)), (401, 401));
    let node = |name: &str| token(landfall_hub::Holder::Node(name.to_owned()));
    assert_eq!(post("/api/v1/events", Some(&node("n2"))), 403);
    let viewer = token(landfall_hub::Holder::Viewer("v".to_owned()));
    assert_eq!(post("/api/v1/events", Some(&viewer)), 403);
    assert_eq!(post("/api/v1/console", Some(&viewer)), 403, "whatever stands on it");
    assert_eq!(post("/api/v1/events", Some(&node("n1"))), 200);
}
