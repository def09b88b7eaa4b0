//! Hostile uploads and their outcome.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use landfall_evidence::bundle::{BundleWriter, Packing};
use landfall_hub::Holder;
use landfall_model::bundle::{BundleItem, ItemOutcome};
use landfall_model::envelope::Envelope;
use landfall_pki::SigningKey;
use landfall_testkit::eventually;

use crate::access::{token, with_tokens};
use crate::bed::{Answer, TestHub, ask, bundle, envelope, failed, no_dns, running};

const JSON: (&str, &str) = ("content-type", "application/json");

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Asserts that the hub is empty and still accepts a valid report.
#[track_caller]
fn unharmed(hub: &TestHub) {
    assert_eq!(hub.json("/api/v1/fleet")["total"], 0);
    assert_eq!(hub.unfinished(), 0, "nothing is left on the disk");
    hub.stored(&envelope("good", 1, running()));
}

#[track_caller]
fn refused(answer: &Answer, status: u16) {
    assert_eq!(answer.status, status, "{answer:?}");
    assert!(answer.head.contains("application/problem+json"), "{answer:?}");
    assert_eq!(answer.json()["retry"], false, "{answer:?}");
}

#[test]
fn one_a_bomb_of_a_report() {
    let hub = TestHub::start();
    let bomb = vec![b' '; 32 << 20];
    for (encoding, body) in [("gzip", gzip(&bomb)), ("zstd", zstd::bulk::compress(&bomb, 3).unwrap())] {
        for kind in ["application/json", "application/x-ndjson"] {
            let headers = [("content-type", kind), ("content-encoding", encoding)];
            refused(&hub.request("POST", "/api/v1/reports", &headers, &body), 413);
        }
    }
    unharmed(&hub);
}

#[test]
fn two_an_oversized_report() {
    let hub = TestHub::start();
    let mut report = no_dns();
    report.findings[0].evidence[0].text = "x".repeat(2 << 20);
    refused(&hub.post(&envelope("n1", 1, report)), 413);
    let mut titled = no_dns();
    titled.verdict.title = "x".repeat(5000);
    refused(&hub.post(&envelope("n1", 1, titled)), 413);
    let many = "{}\n".repeat(2000);
    refused(
        &hub.request("POST", "/api/v1/reports", &[("content-type", "application/x-ndjson")], many.as_bytes()),
        413,
    );
    unharmed(&hub);
}

#[test]
fn three_nonsense_and_deep_nesting() {
    let hub = TestHub::start();
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let json = |value: &_| serde_json::to_vec(value).unwrap();
    let mut wrong_type = serde_json::to_value(envelope("n1", 1, running())).unwrap();
    wrong_type["payloadType"] = "application/vnd.landfall.report.v99+json".into();
    let mut report = running();
    report.format = 99;
    let wrong_format = envelope("n1", 1, report);
    let mut no_sequence = envelope("n1", 1, running());
    no_sequence.sequence = 0;
    let deep_payload = Envelope::unsigned(deep.clone().into_bytes());
    for body in [
        b"".to_vec(),
        b"null".to_vec(),
        b"\xff\xfe\x00".to_vec(),
        deep.into_bytes(),
        serde_json::to_vec(&deep_payload).unwrap(),
        wrong_type.to_string().into_bytes(),
        json(&wrong_format),
        json(&no_sequence),
    ] {
        refused(&hub.request("POST", "/api/v1/reports", &[JSON], &body), 422);
    }
    refused(&hub.request("POST", "/api/v1/reports", &[JSON, ("content-encoding", "br")], b"{}"), 415);
    refused(&hub.request("POST", "/api/v1/reports", &[("content-type", "text/xml")], b"{}"), 415);
    unharmed(&hub);
}

#[test]
fn four_scripts_in_what_a_node_says() {
    let hub = TestHub::start();
    let script = "\"><script>alert(1)</script><img src=x onerror=alert(2)>\u{202e}\u{1b}[2J";
    let mut report = failed("dns-resolution-failure", script, script);
    report.verdict.component = Some(script.to_owned());
    report.findings[0].fix = script.to_owned();
    report.findings[0].evidence[0].source = script.to_owned();
    report.sources[0].name = script.to_owned();
    report.sources[0].error = Some(script.to_owned());
    let mut envelope = envelope("n1", 1, report);
    envelope.node.os = Some(script.to_owned());
    envelope.node.provider_id = Some(script.to_owned());
    hub.stored(&envelope);
    let bytes = bundle("n1", &[script.to_owned()]);
    let digest = hub.request("POST", "/api/v1/nodes/n1/bundles", &[], &bytes).json()["digest"]
        .as_str()
        .unwrap()
        .to_owned();
    for path in [
        "/".to_owned(),
        "/nodes/n1".to_owned(),
        "/causes".to_owned(),
        "/search?q=alert".to_owned(),
        "/search?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E".to_owned(),
        "/?q=%22%3E%3Cscript%3E".to_owned(),
        format!("/logs/{digest}"),
        format!("/logs/{digest}?path=bootstrap/journals/kubelet.log"),
        format!("/logs/{digest}?q=%22%3E%3Cscript%3E"),
    ] {
        let answer = hub.get(&path);
        assert_eq!(answer.status, 200, "{path}");
        let page = answer.text();
        let scripts = page.matches("<script").count();
        assert_eq!(scripts, 1, "only our own script on {path}: {page}");
        assert!(
            !page.contains("<img") && !page.contains('\u{202e}') && !page.contains('\u{1b}'),
            "{path}: {page}"
        );
        let policy = "content-security-policy: default-src 'none'; style-src 'self'; script-src 'self';";
        assert!(answer.head.contains(policy), "{path}: {}", answer.head);
        assert!(answer.head.contains("x-content-type-options: nosniff"), "{path}");
    }
}

#[test]
fn five_a_replay() {
    let hub = TestHub::start();
    let first = envelope("n1", 1, no_dns());
    let second = envelope("n1", 2, running());
    hub.stored(&first);
    hub.stored(&second);
    // Repeating an old report changes nothing.
    for _ in 0..3 {
        assert_eq!(hub.post(&first).json()["outcome"], "duplicate");
    }
    // The same report under a new ID is late.
    let mut again = first.clone();
    again.id = crate::bed::new_id();
    assert_eq!(hub.post(&again).json()["outcome"], "late");
    let node = hub.json("/api/v1/nodes/n1");
    assert_eq!((node["state"].as_str(), node["sequence"].as_u64()), (Some("running"), Some(2)));
    // Another report under a known ID is rejected as a forgery.
    let mut forged = second.clone();
    forged.report = no_dns();
    refused(&hub.post(&forged), 409);
    let mut of_another = second;
    of_another.node.hostname = "n2".to_owned();
    refused(&hub.post(&of_another), 409);
}

#[test]
fn six_a_stolen_name_without_the_key() {
    let hub = TestHub::start();
    let (key, _) = SigningKey::generate().unwrap();
    let (thief, _) = SigningKey::generate().unwrap();
    let signed =
        |sequence: u64, key: &SigningKey| crate::bed::signed(envelope("n1", sequence, no_dns()), key);
    hub.stored(&signed(1, &key));
    refused(&hub.post(&envelope("n1", 2, running())), 403);
    refused(&hub.post(&signed(3, &thief)), 403);
    let mut changed = signed(4, &key);
    changed.report.verdict.title = "All is well".to_owned();
    refused(&hub.post(&changed), 403);
    let mut odd = signed(5, &key);
    odd.signatures[0].keyid = "zz".to_owned();
    refused(&hub.post(&odd), 422);
    hub.stored(&signed(6, &key));
    assert_eq!(hub.json("/api/v1/nodes/n1")["signed"], true);
}

#[test]
fn seven_names_that_are_paths_or_markup() {
    let hub = TestHub::start();
    for name in
        ["", "../../etc/passwd", "a/b", "<b>", "a b", "n1\r\nx", &"n".repeat(300), "-rf", "\u{202e}n1"]
    {
        refused(&hub.post(&envelope(name, 1, running())), 422);
    }
    for path in ["/api/v1/nodes/..%2f..%2fx", "/api/v1/nodes/%3Cb%3E", "/nodes/a%2fb", "/api/v1/nodes/%ff"] {
        assert!(matches!(hub.get(path).status, 400 | 404), "{path}");
    }
    for digest in ["..%2f..%2fhub.db", "%2e%2e", "aa", &"f".repeat(64)] {
        assert_eq!(hub.get(&format!("/api/v1/bundles/{digest}/content")).status, 404, "{digest}");
    }
    unharmed(&hub);
}

#[test]
fn eight_bundles_that_are_none() {
    let hub = TestHub::start();
    let good = bundle("n1", &["a line".to_owned()]);
    let post = |body: &[u8]| hub.request("POST", "/api/v1/nodes/n1/bundles", &[], body);
    refused(&post(b""), 422);
    refused(&post(b"not packed at all"), 422);
    refused(&post(&gzip(b"packed, and no archive")), 422);
    // A bundle of another node.
    refused(&post(&bundle("n2", &["a line".to_owned()])), 422);
    // A bundle whose digest differs from the announced one.
    let announced = format!("/api/v1/nodes/n1/bundles/{}", "0".repeat(64));
    refused(&hub.request("PUT", &announced, &[], &good), 422);
    // A file that was changed after it was collected.
    let mut content = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::MultiGzDecoder::new(good.as_slice()), &mut content)
        .unwrap();
    let at = content.windows(6).position(|window| window == b"a line").unwrap();
    content[at] = b'A';
    refused(&post(&gzip(&content)), 422);
    // A foreign archive with a symbolic link that points out of it.
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    archive.append_link(&mut header, "log-bundle-1/x", "/etc/passwd").unwrap();
    refused(&post(&gzip(&archive.into_inner().unwrap())), 422);
    unharmed(&hub);
}

#[test]
fn nine_bundles_that_are_bombs() {
    let hub = TestHub::start();
    let post = |body: &[u8]| hub.request("POST", "/api/v1/nodes/n1/bundles", &[], body);
    // Above the compressed size limit.
    refused(&post(&vec![b'x'; 9 << 20]), 413);
    // An extended header that claims 4 GiB: the hub never allocates that size.
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::XHeader);
    header.set_size(4 << 30);
    header.set_cksum();
    let mut archive = header.as_bytes().to_vec();
    archive.extend(std::iter::repeat_n(b'x', 8 << 20));
    refused(&post(&gzip(&archive)), 422);
    // Frames that would decompress to 16 GiB of zeros: not an archive, and not read to its end.
    let frame = zstd::bulk::compress(&vec![0; 64 << 20], 3).unwrap();
    let bomb = frame.repeat(256);
    assert!(bomb.len() < 8 << 20, "{}", bomb.len());
    refused(&post(&bomb), 422);
    // Records and paths that compress to almost nothing but would be stored or returned many times.
    let one = |path: &str, kinds: u64| {
        let started = jiff::Timestamp::UNIX_EPOCH;
        let mut bundle =
            BundleWriter::new(Vec::new(), Packing::Zstd, "1", crate::bed::identity("n1"), started);
        let mut item =
            BundleItem::without_file(path.to_owned(), "journal".to_owned(), ItemOutcome::Collected);
        item.redactions = (0..kinds).map(|kind| (format!("{kind:x}"), 1)).collect();
        bundle.add(item, b"a line\n").unwrap();
        bundle.finish(started).unwrap().out
    };
    let many = post(&one("a.log", 12_000));
    refused(&many, 422);
    assert!(many.text().contains("the record of a file has more than 16384 bytes"), "{many:?}");
    let long = post(&one(&"p".repeat(60_000), 0));
    refused(&long, 422);
    assert!(long.text().contains("more than"), "{long:?}");
    unharmed(&hub);
}

#[test]
fn ten_requests_that_never_end_and_other_sites() {
    let hub = TestHub::start();
    // Incomplete heads and missing bodies do not block other clients.
    let mut lingering = Vec::new();
    for number in 0..200 {
        let mut stream = TcpStream::connect(hub.address).unwrap();
        let head = "POST /api/v1/reports HTTP/1.1\r\nhost: localhost\r\n";
        let more = if number % 2 == 0 { "x-a: b" } else { "content-length: 1000000\r\n\r\n{" };
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(more.as_bytes()).unwrap();
        lingering.push(stream);
    }
    // An endless head is rejected instead of buffered.
    let endless = "x".repeat(1 << 20);
    let answer = ask(hub.address, "GET", "/", &[("x-long", &endless)], b"");
    assert!(matches!(answer.status, 0 | 431), "{}", answer.status);
    // A page of another site, in a browser on this machine.
    let body = serde_json::to_vec(&envelope("n1", 1, running())).unwrap();
    let cross = [JSON, ("sec-fetch-site", "cross-site"), ("origin", "https://evil.example")];
    refused(&hub.request("POST", "/api/v1/reports", &cross, &body), 403);
    let rebound = [JSON, ("host", "evil.example:8700")];
    refused(&hub.request("POST", "/api/v1/reports", &rebound, &body), 421);
    assert_eq!(hub.request("GET", "/", &[("host", "evil.example")], b"").status, 421);
    unharmed(&hub);
}

/// The login page accepts data from unauthenticated clients.
#[test]
fn eleven_logins_that_never_end() {
    let hub = TestHub::start();
    // More than the budget of unauthenticated clients, and far less than that of the nodes.
    let lingering: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(hub.address).unwrap();
            let head = "POST /login HTTP/1.1\r\nhost: localhost\r\ncontent-length: 8000\r\n\r\n";
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&[b'x'; 7000]).unwrap();
            stream.set_nonblocking(true).unwrap();
            stream
        })
        .collect();
    let sent_away = |mut stream: &TcpStream| {
        let mut answer = [0; 64];
        let length = std::io::Read::read(&mut stream, &mut answer).unwrap_or(0);
        Answer::parse(&answer[..length]).status == 503
    };
    eventually("some of them to be sent away", Duration::from_secs(60), || {
        lingering.iter().any(sent_away).then_some(())
    })
    .unwrap();
    unharmed(&hub);
}

/// Large reports of one token that miss only their last byte.
#[test]
fn twelve_reports_that_never_end() {
    let hub = with_tokens();
    let headers = |node: &str| token(Holder::Node(node.to_owned()));
    let thief = headers("n1");
    // More than the budget allows.
    let mut lingering: Vec<TcpStream> = (0..70)
        .map(|_| {
            let mut stream = TcpStream::connect(hub.address).unwrap();
            let head = "POST /api/v1/reports HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1048576\r\n";
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(format!("authorization: {thief}\r\n\r\n").as_bytes()).unwrap();
            // A rejected client cannot send the complete body.
            let _ = stream.write_all(&vec![b' '; (1 << 20) - 1]);
            stream.set_nonblocking(true).unwrap();
            stream
        })
        .collect();
    let sent_away = |mut stream: &TcpStream| {
        let read = std::io::Read::read(&mut stream, &mut [0; 64]);
        !read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    };
    eventually("some of them to be sent away", Duration::from_secs(60), || {
        lingering.retain(|stream| !sent_away(stream));
        (lingering.len() <= 64).then_some(())
    })
    .unwrap();
    // A report of another node, too large to arrive in one chunk.
    let mut report = no_dns();
    report.findings[0].evidence[0].text = "x".repeat(500 << 10);
    let body = serde_json::to_vec(&envelope("n2", 1, report)).unwrap();
    let answer =
        hub.request("POST", "/api/v1/reports", &[JSON, ("authorization", headers("n2").as_str())], &body);
    assert_eq!(answer.status, 200, "{answer:?}");
}
