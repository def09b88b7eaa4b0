//! Malicious and misbehaving clients.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use hyper::{Method, Version};
use landfall_testkit::eventually;
use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::bed::{Bed, GATHER_TOKEN, LIMIT};
use crate::client::{Client, Identity};
use crate::stand_in::StandIn;

/// Reads until the gateway closes the connection, and panics if it does not.
#[track_caller]
fn until_closed(mut stream: &TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut got = Vec::new();
    // A connection that is closed with unread bytes is reset.
    if let Err(error) = stream.read_to_end(&mut got) {
        assert_ne!(error.kind(), ErrorKind::WouldBlock, "it is still waited for");
    }
    got
}

fn said(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    // The gateway may close the connection before it has read everything.
    let _ = stream.write_all(bytes);
    stream
}

fn is_alive(bed: &Bed) -> bool {
    bed.client(Identity::None).get(&bed.runtime, "/livez").status == 200
}

#[test]
fn slow_clients_do_not_stay() {
    let bed = Bed::without_api(|config| {
        config.patience.first = Duration::from_secs(2);
        config.patience.idle = Duration::from_secs(2);
    });
    let hello = hello(&bed.client(Identity::None));
    let held = [&b""[..], b"\x16", b"GE", b"SS", &hello[..40], &hello].map(|bytes| said(bed.address, bytes));
    // A request whose head never ends.
    let mut slow = bed.runtime.block_on(async {
        let mut stream = bed.client(Identity::None).connect(b"http/1.1").await;
        stream.write_all(b"GET /version HTTP/1.1\r\nHost: x\r\nX-Slow: ").await.unwrap();
        stream
    });
    for stream in &held {
        until_closed(stream);
    }
    let closed = bed.runtime.block_on(async {
        let mut got = Vec::new();
        tokio::time::timeout(LIMIT, slow.read_to_end(&mut got)).await
    });
    assert!(closed.is_ok(), "it is still waited for");
}

/// Returns the TLS hello of a client.
fn hello(client: &Client) -> Vec<u8> {
    let (mut connection, mut bytes) = (tls(client), Vec::new());
    connection.write_tls(&mut bytes).unwrap();
    bytes
}

fn tls(client: &Client) -> ClientConnection {
    ClientConnection::new(client.tls().into(), ServerName::try_from("localhost").unwrap()).unwrap()
}

#[test]
fn a_hello_byte_by_byte_or_in_three_records_is_a_hello() {
    let bed = Bed::without_api(|_| {});
    for pieces in [1, 3] {
        let (mut connection, mut hello) = (tls(&bed.client(Identity::None)), Vec::new());
        connection.write_tls(&mut hello).unwrap();
        let (head, message) = hello.split_at(5);
        let mut records = Vec::new();
        for piece in message.chunks(message.len().div_ceil(pieces)) {
            records.extend_from_slice(&head[..3]);
            records.extend(u16::try_from(piece.len()).unwrap().to_be_bytes());
            records.extend_from_slice(piece);
        }
        let mut stream = TcpStream::connect(bed.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        for byte in records {
            stream.write_all(&[byte]).unwrap();
        }
        let mut stream = rustls::Stream::new(&mut connection, &mut stream);
        stream.write_all(b"GET /livez HTTP/1.0\r\n\r\n").unwrap();
        let mut got = String::new();
        // A server may close without `close_notify` after its complete response.
        let _ = stream.read_to_string(&mut got);
        assert!(got.starts_with("HTTP/1.0 200"), "{pieces} pieces: {got}");
    }
}

#[test]
fn bad_tls_is_dropped_and_counted() {
    let bed = Bed::without_api(|_| {});
    let mut wrong = hello(&bed.client(Identity::None));
    // The protocol version inside the hello: an unknown one.
    (wrong[9], wrong[10]) = (0, 0);
    let mut cut = hello(&bed.client(Identity::None));
    cut.truncate(60);
    for bytes in [
        &wrong[..],
        b"\x16\x03\x01\0\x05\x02\0\0\0\0",
        b"\x16\x03\x01\xff\xff\x01",
        b"\x16\x03\x01\0\0",
        b"\x15\x03\x01\0\x02\x01\0",
        b"\x16\x03\x03\0\x04\x01\xff\xff\xff",
        b"\x80\x2e\x01\x03\x01",
        &vec![0xff; 40_000],
    ] {
        until_closed(&said(bed.address, bytes));
    }
    drop(said(bed.address, &cut));
    // A handshake that the client aborts after the hello, with an alert.
    let refusing = said(bed.address, &hello(&bed.client(Identity::None)));
    (&refusing).write_all(b"\x15\x03\x03\0\x02\x02\x30").unwrap();
    until_closed(&refusing);
    assert!(is_alive(&bed));
    let metrics = bed.metrics();
    let count = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{metrics}"));
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert!(count("landfall_gateway_failed_handshakes_total") >= 1, "{metrics}");
    assert!(count("landfall_gateway_connections_total{way=\"refused\"}") >= 6, "{metrics}");
}

#[test]
fn heads_that_are_too_large_are_refused() {
    let stand_in = StandIn::new();
    let bed = Bed::without_api(|config| stand_in.stand_in_for(config));
    bed.wait_for_phase("local");
    // As in kube-apiserver: a head of 500 KiB is accepted, one of 2 MiB is not.
    for (size, codes) in [(500 << 10, [200, 200]), (2 << 20, [431, 431])] {
        let value = "x".repeat(size);
        let request =
            format!("GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Large: {value}\r\n\r\n");
        let got = bed.client(Identity::None).raw(&bed.runtime, request.as_bytes());
        // The response may be lost with the connection while the client still sends.
        assert!(
            got.starts_with(&format!("HTTP/1.1 {} ", codes[0])) || codes[0] == 431 && got.is_empty(),
            "{size}: {}",
            &got[..got.len().min(200)]
        );
        let client = bed.client(Identity::None).version(Version::HTTP_2).header("x-large", &value);
        let got = client.try_get(&bed.runtime, "/version").map(|got| got.status.as_u16());
        assert!(got == Some(codes[1]) || codes[1] == 431 && got.is_none(), "{size} by HTTP/2: {got:?}");
    }
    let many: String = (0..5000).map(|number| format!("X-{number}: x\r\n")).collect();
    let request = format!("GET /version HTTP/1.1\r\nHost: x\r\n{many}\r\n");
    let got = bed.client(Identity::None).raw(&bed.runtime, request.as_bytes());
    assert!(got.is_empty() || got.starts_with("HTTP/1.1 431 "), "{got}");
    assert!(is_alive(&bed));
}

#[test]
fn one_connection_too_many_is_refused_and_the_next_is_not() {
    let bed = Bed::without_api(|config| config.max_connections = 3);
    let mut held: Vec<TcpStream> = (0..3).map(|_| said(bed.address, b"G")).collect();
    eventually("three connections", LIMIT, || {
        bed.metrics().contains("landfall_gateway_connections 3").then_some(())
    })
    .unwrap();
    assert_eq!(until_closed(&said(bed.address, b"")), b"");
    held.pop();
    eventually("room for one", LIMIT, || {
        let got = bed.client(Identity::None).try_get(&bed.runtime, "/livez")?;
        (got.status == 200).then_some(())
    })
    .unwrap();
}

#[test]
fn clients_that_do_not_read_hold_up_nobody_else() {
    let stand_in = StandIn::new();
    let bed = Bed::without_api(|config| {
        stand_in.stand_in_for(config);
        config.threads = 1;
    });
    bed.wait_for_phase("local");
    let client = bed.client(Identity::None);
    let _held = bed.runtime.block_on(async {
        let mut held = Vec::new();
        for _ in 0..8 {
            let mut stream = client.connect(b"http/1.1").await;
            stream.write_all(b"GET /bytes/1000000000 HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            held.push(stream);
        }
        held
    });
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let got = client.clone().version(version).send(&bed.runtime, Method::GET, "/version", "");
        assert_eq!(got.status, 200);
    }
}

/// Returns an HTTP/2 frame on stream `stream`.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&[a, b, c, kind, flags], &stream.to_be_bytes()[..], payload].concat()
}

/// Returns the gateway's frames (kind and payload) until it closes, in response to raw frames.
fn answers_to(bed: &Bed, frames: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let hello = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(SETTINGS, 0, 0, b"")].concat();
    let got = bed.runtime.block_on(async {
        let mut stream = bed.client(Identity::None).connect(b"h2").await;
        stream.write_all(&hello).await.unwrap();
        // The gateway may close the connection before it has read everything.
        let _ = stream.write_all(frames).await;
        let _ = stream.write_all(&frame(GOAWAY, 0, 0, &[0; 8])).await;
        let mut got = Vec::new();
        let _ = tokio::time::timeout(LIMIT, stream.read_to_end(&mut got)).await.unwrap();
        got
    });
    let (mut rest, mut answers) = (&got[..], Vec::new());
    while let Some((head, behind)) = rest.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some((payload, behind)) = behind.split_at_checked(length) else { break };
        answers.push((head[3], payload.to_vec()));
        rest = behind;
    }
    answers
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_STREAM_AND_HEADERS: u8 = 5;
/// HPACK block of `GET https://localhost/silent`.
const REQUEST: &[u8] = b"\x82\x87\x04\x07/silent\x01\x09localhost";

#[test]
fn streams_opened_and_reset_at_once_end_the_connection() {
    const CALM_DOWN: u8 = 11;
    let stand_in = StandIn::new();
    let bed = crate::traffic::before(&stand_in, |_| {});
    let mut frames = Vec::new();
    for stream in (1..20_001).step_by(2) {
        frames.extend(frame(HEADERS, END_STREAM_AND_HEADERS, stream, REQUEST));
        frames.extend(frame(RST_STREAM, 0, stream, &[0, 0, 0, 8]));
    }
    let answers = answers_to(&bed, &frames);
    let told = answers.iter().find(|(kind, _)| *kind == GOAWAY).map(|(_, payload)| payload[7]);
    assert_eq!(told, Some(CALM_DOWN), "{answers:?}");
    assert!(is_alive(&bed));
    eventually("the API server to be free", LIMIT, || {
        (stand_in.state.silent.load(std::sync::atomic::Ordering::SeqCst) == 0).then_some(())
    })
    .unwrap();
}

#[test]
fn headers_of_another_version_do_not_reach_the_api_server() {
    const PROTOCOL_ERROR: [u8; 4] = [0, 0, 0, 1];
    let stand_in = StandIn::new();
    let bed = crate::traffic::before(&stand_in, |_| {});
    for extra in [&b"\x00\x11transfer-encoding\x07chunked"[..], b"\x00\x0aconnection\x05close"] {
        let request = frame(HEADERS, END_STREAM_AND_HEADERS, 1, &[REQUEST, extra].concat());
        let answers = answers_to(&bed, &request);
        assert!(answers.contains(&(RST_STREAM, PROTOCOL_ERROR.to_vec())), "{answers:?}");
    }
    assert_eq!(stand_in.state.begun.load(std::sync::atomic::Ordering::SeqCst), 0);
}

#[test]
fn proxy_headers_are_believed_from_listed_networks_only() {
    const CLAIM: &str = "PROXY TCP4 203.0.113.7 127.0.0.1 4711 6443\r\n";
    let listed = Bed::without_api(|config| config.proxy_protocol_from = vec!["127.0.0.0/8".parse().unwrap()]);
    let mut version_2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    version_2.extend([203, 0, 113, 7, 127, 0, 0, 1, 0x12, 0x67, 0x19, 0x2b]);
    let ask = |bed: &Bed, header: &[u8]| {
        let client = bed.client(Identity::None);
        let (mut connection, mut stream) = (tls(&client), said(bed.address, header));
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut stream = rustls::Stream::new(&mut connection, &mut stream);
        let request = format!(
            "GET /bootstrap/report HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {GATHER_TOKEN}\r\n\r\n"
        );
        // The gateway may close the connection before it has read everything.
        let _ = stream.write_all(request.as_bytes());
        let mut got = String::new();
        let _ = stream.read_to_string(&mut got);
        got
    };
    for header in [CLAIM.as_bytes(), &version_2] {
        let got = ask(&listed, header);
        assert!(got.starts_with("HTTP/1.1 200"), "{header:?}: {got}");
    }
    let audit = std::fs::read_to_string(listed.folder.path().join("audit.log")).unwrap();
    assert_eq!(audit.matches("\"client\":\"203.0.113.7:4711\"").count(), 2, "{audit}");
    for header in [
        &b"PROXY TCP4 203.0.113.7\r\n"[..],
        b"PROXY TCP4 fd00::1 fd00::2 1 2\r\n",
        b"PROXY UNKNOWN",
        &[b"PROXY TCP4 ".as_slice(), &[b'1'; 300]].concat(),
        &version_2[..20],
        b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\x0c",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff",
        b"",
    ] {
        let got = ask(&listed, header);
        assert!(got.is_empty(), "{header:?}: {got}");
    }
    let unlisted =
        Bed::without_api(|config| config.proxy_protocol_from = vec!["192.0.2.0/24".parse().unwrap()]);
    for header in [CLAIM.as_bytes(), &version_2] {
        assert!(ask(&unlisted, header).is_empty(), "who is not listed claims nothing");
    }
    assert!(ask(&unlisted, b"").starts_with("HTTP/1.1 200"));
    let audit = std::fs::read_to_string(unlisted.folder.path().join("audit.log")).unwrap();
    assert!(!audit.contains("203.0.113.7"), "{audit}");
}
