//! Gathering logs while no API server answers.

use hyper::{Method, Version};
use landfall_evidence::bundle::verify;
use landfall_pki::{Authority, Leaf, Purpose};

use crate::bed::{Bed, GATHER_TOKEN, LIMIT};
use crate::client::Identity;

const VERSIONS: [Version; 2] = [Version::HTTP_11, Version::HTTP_2];

#[test]
fn a_bundle_is_for_those_who_may() {
    let bed = Bed::without_api(|config| config.access.users = vec!["jane".to_owned()]);
    let stranger = Authority::new("somebody else's", 1).unwrap();
    let stranger = bed.files().issue(
        &stranger,
        "stranger",
        &Leaf::new("admin", Purpose::Call).organization("system:masters"),
    );
    for version in VERSIONS {
        for (identity, token, code) in [
            (Identity::None, None, 401),
            (Identity::None, Some(GATHER_TOKEN), 200),
            (Identity::None, Some("another-token-of-that-length"), 503),
            (bed.user("admin", "system:masters"), None, 200),
            (bed.user("jane", "developers"), None, 200),
            (bed.user("joe", "developers"), None, 403),
            (bed.user("joe", "developers"), Some(GATHER_TOKEN), 200),
            (Identity::Certificate(stranger.clone()), None, 401),
            (Identity::Certificate(stranger.clone()), Some(GATHER_TOKEN), 200),
        ] {
            let told = format!("{version:?} {identity:?} {token:?}");
            let mut client = bed.client(identity).version(version);
            if let Some(token) = token {
                client = client.bearer(token);
            }
            let got = client.get(&bed.runtime, "/bootstrap");
            assert_eq!(got.status, code, "{told}: {got:?}");
            if code == 200 {
                assert_eq!(got.header("content-type"), "application/gzip", "{told}");
                let verified = verify(&got.body[..]).unwrap();
                assert!(verified.manifest.is_some(), "{told}: a whole bundle");
            } else {
                assert_eq!(
                    (&got.json()["kind"], &got.json()["code"]),
                    (&"Status".into(), &code.into()),
                    "{told}"
                );
            }
        }
    }
    let audit = std::fs::read_to_string(bed.folder.path().join("audit.log")).unwrap();
    assert_eq!(audit.lines().count(), 18, "every decision is recorded: {audit}");
    assert!(!audit.contains(GATHER_TOKEN) && !audit.contains("another-token"), "no token is recorded");
}

#[test]
fn what_is_the_api_servers_is_unavailable_for_now() {
    let bed = Bed::without_api(|_| {});
    for version in VERSIONS {
        for path in
            ["/api/v1/namespaces", "/", "/bootstrapfoo", "/bootstrap/", "/bootstrap/other", "//bootstrap"]
        {
            let got =
                bed.client(bed.user("admin", "system:masters")).version(version).get(&bed.runtime, path);
            assert_eq!((got.status.as_u16(), got.header("retry-after")), (503, "1"), "{path}: {got:?}");
            assert_eq!(got.json()["reason"], "ServiceUnavailable", "{path}");
        }
        let got = bed.client(Identity::None).bearer(GATHER_TOKEN).version(version);
        let got = got.send(&bed.runtime, Method::POST, "/bootstrap", "{}");
        assert_eq!((got.status.as_u16(), got.header("allow")), (405, "GET, HEAD"));
    }
}

#[test]
fn report_identity_and_packing() {
    let bed = Bed::without_api(|_| {});
    let client = bed.client(Identity::None).bearer(GATHER_TOKEN);
    let identity = client.get(&bed.runtime, "/bootstrap/identity").json();
    assert_eq!(
        (&identity["node"]["hostname"], &identity["phase"]),
        (&"bootstrap-0".into(), &"no-api".into())
    );
    assert_eq!(identity["format"], 1);
    let report = client.get(&bed.runtime, "/bootstrap/report").json();
    assert!(report["verdict"]["state"].is_string(), "{report}");
    let packed = client.clone().header("Accept", "application/zstd").get(&bed.runtime, "/bootstrap");
    assert_eq!(packed.header("content-type"), "application/zstd");
    assert!(verify(&packed.body[..]).unwrap().manifest.is_some());
    let head = client.send(&bed.runtime, Method::HEAD, "/bootstrap", "");
    assert_eq!((head.status.as_u16(), head.header("content-type")), (200, "application/gzip"));
    // Any authenticated client may read the host's identity; anonymous clients may not.
    let jane = bed.client(bed.user("jane", "developers")).get(&bed.runtime, "/bootstrap/identity");
    assert_eq!(jane.status, 200);
    assert_eq!(bed.client(Identity::None).get(&bed.runtime, "/bootstrap/identity").status, 401);
}

#[test]
fn a_bundle_is_resumed_where_it_was_cut() {
    let bed = Bed::without_api(|_| {});
    let client = bed.client(Identity::None).bearer(GATHER_TOKEN);
    let whole = client.get(&bed.runtime, "/bootstrap");
    let tag = whole.header("etag").to_owned();
    let rest =
        client.clone().header("Range", "bytes=100-").header("If-Range", &tag).get(&bed.runtime, "/bootstrap");
    assert_eq!(rest.status, 206, "{rest:?}");
    assert_eq!(
        rest.header("content-range"),
        format!("bytes 100-{}/{}", whole.body.len() - 1, whole.body.len())
    );
    assert!(rest.body == whole.body[100..]);
    let other = client
        .header("Range", "bytes=100-")
        .header("If-Range", "\"another\"")
        .get(&bed.runtime, "/bootstrap");
    assert_eq!(other.status, 200, "of a bundle that is not there any more, a new one is made");
}

#[test]
fn clients_at_the_same_time_share_one_collection() {
    let bed = Bed::without_api(|_| {});
    let client = bed.client(Identity::None).bearer(GATHER_TOKEN);
    let begun = || -> u64 {
        let metrics = bed.metrics();
        let line = metrics.lines().find(|line| line.starts_with("landfall_gateway_gathers_total")).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    // On a loaded host all six may run sequentially, but not every time.
    let shared = (0..20).any(|_| {
        let before = begun();
        let tags: Vec<String> = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..6)
                .map(|_| scope.spawn(|| client.get(&bed.runtime, "/bootstrap").header("etag").to_owned()))
                .collect();
            readers.into_iter().map(|reader| reader.join().unwrap()).collect()
        });
        assert!(tags.iter().all(|tag| !tag.is_empty()));
        let collections = begun() - before;
        assert!((1..=6).contains(&collections), "{collections} collections for six clients");
        collections < 6
    });
    assert!(shared, "six clients made six collections, twenty times");
}

#[test]
fn probes_are_answered_whatever_they_leave_out() {
    let bed = Bed::without_api(|_| {});
    for (request, start, end) in [
        ("GET /readyz HTTP/1.0\r\n\r\n", "HTTP/1.0 200", "ok"),
        ("HEAD /readyz HTTP/1.0\r\n\r\n", "HTTP/1.0 200", "\r\n\r\n"),
        ("GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n", "HTTP/1.1 200", "ok"),
        ("GET /readyz?verbose HTTP/1.0\r\n\r\n", "HTTP/1.0 200", "readyz check passed\n"),
        ("GET /readyz/tls-certs HTTP/1.0\r\n\r\n", "HTTP/1.0 200", "ok"),
        ("GET /readyz/gather HTTP/1.0\r\n\r\n", "HTTP/1.0 200", "ok"),
        ("GET /readyz/nothing HTTP/1.0\r\n\r\n", "HTTP/1.0 404", "not found\n"),
    ] {
        let got = bed.client(Identity::None).raw(&bed.runtime, request.as_bytes());
        assert!(got.starts_with(start) && got.ends_with(end), "{request:?}: {got:?}");
    }
}

#[test]
fn who_speaks_no_tls_is_told_or_dropped() {
    use std::io::{Read as _, Write as _};
    let bed = Bed::without_api(|_| {});
    for (bytes, expected) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "HTTP/1.0 400 Bad Request"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", ""),
        (b"\0\0\0\0", ""),
    ] {
        let mut stream = std::net::TcpStream::connect(bed.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(bytes).unwrap();
        let mut got = Vec::new();
        // A connection that is dropped with unread bytes is reset.
        let _ = stream.read_to_end(&mut got);
        let got = String::from_utf8_lossy(&got).into_owned();
        assert!(
            if expected.is_empty() { got.is_empty() } else { got.starts_with(expected) },
            "{bytes:?}: {got:?}"
        );
    }
}

#[test]
fn a_gateway_that_nobody_watches_stops_at_once() {
    let mut bed = Bed::without_api(|config| config.patience.notice = LIMIT * 10);
    assert_eq!(bed.client(Identity::None).get(&bed.runtime, "/livez").status, 200);
    bed.stop();
    assert!(std::net::TcpStream::connect(bed.address).is_err(), "nothing listens any more");
}

#[test]
fn a_gateway_that_is_watched_turns_red_serves_on_and_then_sends_clients_away() {
    let mut bed = Bed::without_api(|config| config.patience.notice = std::time::Duration::from_secs(15));
    let client = bed.client(Identity::None).bearer(GATHER_TOKEN);
    assert_eq!(client.get(&bed.runtime, "/readyz").status, 200);
    let kept = bed.runtime.block_on(async {
        let stream = client.connect(b"http/1.1").await;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(stream)).await.unwrap();
        let closed = tokio::spawn(connection);
        let answer = sender.send_request(client.request(Method::GET, "/livez", "")).await.unwrap();
        http_body_util::BodyExt::collect(answer.into_body()).await.unwrap();
        (sender, closed)
    });
    bed.ask_to_stop();
    landfall_testkit::eventually("it to turn red", LIMIT, || {
        (client.get(&bed.runtime, "/readyz").status == 500).then_some(())
    })
    .unwrap();
    // Until load balancers have detected the shutdown, new clients are served and connected clients stay.
    assert_eq!(client.get(&bed.runtime, "/bootstrap/identity").status, 200);
    let (mut sender, closed) = kept;
    bed.runtime.block_on(async {
        let answer = sender.send_request(client.request(Method::GET, "/livez", "")).await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.headers().get("connection")), (200, None));
        http_body_util::BodyExt::collect(answer.into_body()).await.unwrap();
        tokio::time::timeout(LIMIT, closed).await.unwrap().unwrap().unwrap();
    });
    bed.stop();
    assert!(std::net::TcpStream::connect(bed.address).is_err(), "nothing listens any more");
}
