//! Requests and responses pass unmodified, have no time limit, and end when either side ends.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::{http1, http2};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use landfall_testkit::eventually;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::bed::{Bed, LIMIT};
use crate::client::{Client, Identity};
use crate::stand_in::StandIn;

const VERSIONS: [Version; 2] = [Version::HTTP_11, Version::HTTP_2];

pub(crate) fn before(stand_in: &StandIn, adjust: impl FnOnce(&mut landfall_gateway::config::Config)) -> Bed {
    let bed = Bed::without_api(|config| {
        stand_in.stand_in_for(config);
        adjust(config);
    });
    bed.wait_for_phase("local");
    bed
}

/// Sends one request on its own connection, which ends with the returned task.
async fn send<B>(
    client: &Client,
    version: Version,
    request: Request<B>,
) -> (Response<hyper::body::Incoming>, tokio::task::JoinHandle<()>)
where
    B: hyper::body::Body<Data = Bytes, Error = std::convert::Infallible> + Send + Unpin + 'static,
{
    if version == Version::HTTP_2 {
        let stream = TokioIo::new(client.connect(b"h2").await);
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        let running = tokio::spawn(async move { drop(connection.await) });
        (sender.send_request(request).await.unwrap(), running)
    } else {
        let stream = TokioIo::new(client.connect(b"http/1.1").await);
        let (mut sender, connection) = http1::handshake(stream).await.unwrap();
        let running = tokio::spawn(async move { drop(connection.await) });
        (sender.send_request(request).await.unwrap(), running)
    }
}

#[test]
fn trailers_go_both_ways() {
    let stand_in = StandIn::new();
    let bed = before(&stand_in, |_| {});
    for version in VERSIONS {
        let client = bed.client(Identity::None).version(version);
        let got = bed.runtime.block_on(async {
            let mut trailers = HeaderMap::new();
            trailers.insert("x-sum", HeaderValue::from_static("42"));
            let pieces = [Frame::data(Bytes::from_static(b"body")), Frame::trailers(trailers)];
            let frames =
                StreamBody::new(futures_util::stream::iter(pieces.map(Ok::<_, std::convert::Infallible>)));
            let client = client.clone().header("te", "trailers").header("trailer", "x-sum");
            let request = client.request(Method::POST, "/echo", "").map(|_| frames);
            let (answer, _running) = send(&client, version, request).await;
            tokio::time::timeout(LIMIT, answer.into_body().collect()).await.unwrap().unwrap()
        });
        let trailers = got.trailers().cloned().unwrap_or_default();
        assert_eq!(
            (trailers.get("x-sum"), trailers.get("x-check")),
            (Some(&HeaderValue::from_static("42")), Some(&HeaderValue::from_static("sum"))),
            "{version:?}"
        );
        assert_eq!(got.to_bytes(), "body", "{version:?}");
    }
}

#[test]
fn a_body_is_asked_for_before_it_is_sent() {
    let stand_in = StandIn::new();
    let bed = before(&stand_in, |_| {});
    let client = bed.client(Identity::None);
    let (permission, got) = bed.runtime.block_on(async {
        let mut stream = client.connect(b"http/1.1").await;
        let head = "POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 4\r\nConnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut permission = Vec::new();
        while !permission.ends_with(b"\r\n\r\n") {
            permission.push(tokio::time::timeout(LIMIT, stream.read_u8()).await.unwrap().unwrap());
        }
        stream.write_all(b"body").await.unwrap();
        let mut got = Vec::new();
        // A server may close without `close_notify` after its complete response.
        let _ = tokio::time::timeout(LIMIT, stream.read_to_end(&mut got)).await.unwrap();
        (permission, String::from_utf8_lossy(&got).into_owned())
    });
    assert_eq!(String::from_utf8_lossy(&permission), "HTTP/1.1 100 Continue\r\n\r\n");
    assert!(got.starts_with("HTTP/1.1 200") && got.contains("body"), "{got}");
}

#[test]
fn much_goes_through_in_pieces() {
    const MUCH: usize = 100 << 20;
    let stand_in = StandIn::new();
    let bed = before(&stand_in, |_| {});
    for version in VERSIONS {
        let client = bed.client(Identity::None).version(version);
        let count = bed.runtime.block_on(async {
            let request = client.request(Method::GET, &format!("/bytes/{MUCH}"), "");
            let (answer, _running) = send(&client, version, request).await;
            let (mut body, mut count) = (answer.into_body(), 0);
            while let Some(frame) = tokio::time::timeout(LIMIT, body.frame()).await.unwrap() {
                count += frame.unwrap().into_data().map_or(0, |data| data.len());
            }
            count
        });
        assert_eq!(count, MUCH, "{version:?}");
    }
}

#[test]
fn a_watch_may_be_silent_for_longer_than_a_client_may_be_idle() {
    const IDLE: Duration = Duration::from_secs(1);
    let stand_in = StandIn::new();
    let bed = before(&stand_in, |config| config.patience.idle = IDLE);
    for version in VERSIONS {
        let client = bed.client(Identity::None).version(version);
        bed.runtime.block_on(async {
            let (answer, _running) =
                send(&client, version, client.request(Method::GET, "/silent?watch=true", "")).await;
            let mut body = answer.into_body();
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "first");
            // The silent response neither continues nor ends.
            let nothing = tokio::time::timeout(IDLE * 4, body.frame()).await;
            assert!(nothing.is_err(), "{version:?}: {nothing:?}");
            stand_in.state.speak.notify_one();
            let last = tokio::time::timeout(LIMIT, body.frame()).await.unwrap();
            assert_eq!(last.unwrap().unwrap().into_data().unwrap(), "last", "{version:?}");
        });
    }
    // A client that sends no request is disconnected.
    let closed = bed.runtime.block_on(async {
        let mut stream = bed.client(Identity::None).connect(b"http/1.1").await;
        tokio::time::timeout(LIMIT, stream.read(&mut [0; 512])).await
    });
    assert!(closed.is_ok(), "an idle connection is closed");
}

#[test]
fn a_client_that_leaves_frees_the_api_server() {
    let stand_in = StandIn::new();
    let bed = before(&stand_in, |_| {});
    for version in VERSIONS {
        let client = bed.client(Identity::None).version(version);
        let running = bed.runtime.block_on(async {
            let (answer, running) =
                send(&client, version, client.request(Method::GET, "/silent?watch=true", "")).await;
            let mut body = answer.into_body();
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "first");
            running.abort_handle()
        });
        // The connection ends like that of a killed client.
        running.abort();
        let left = Instant::now();
        eventually("the API server to be free", LIMIT, || {
            (stand_in.state.silent.load(Ordering::SeqCst) == 0).then_some(())
        })
        .unwrap();
        assert!(left.elapsed() < Duration::from_secs(10), "{version:?}: it took {:?}", left.elapsed());
    }
    assert_eq!(stand_in.state.begun.load(Ordering::SeqCst), 2);
}

#[test]
fn what_belongs_to_one_hop_stays_there_and_the_rest_arrives() {
    let stand_in = StandIn::new();
    let bed = before(&stand_in, |_| {});
    for version in VERSIONS {
        let mut client = bed.client(Identity::None).version(version).header("x-mine", "1");
        if version != Version::HTTP_2 {
            client = client.header("Connection", "x-hop").header("X-Hop", "1").header("Keep-Alive", "5");
        }
        let got = client.header("X-Remote-User", "admin").get(&bed.runtime, "/echo");
        let names = got.header("x-names");
        assert!(names.contains("x-mine;") && names.contains("x-forwarded-for;"), "{version:?}: {names}");
        for name in ["x-hop;", "keep-alive;", "connection;", "x-remote-user;"] {
            assert!(!names.contains(name), "{version:?}: {names}");
        }
    }
}

/// Tests HTTP/2 only: in HTTP/1.1 the connection is closed while the client still sends, with or without a gateway.
#[test]
fn an_answer_that_comes_before_the_body_is_sent_on() {
    let stand_in = StandIn::new();
    let bed = before(&stand_in, |_| {});
    let client = bed.client(Identity::None).version(Version::HTTP_2);
    let got = client.send(&bed.runtime, Method::POST, "/refuse", &"x".repeat(8 << 20));
    assert_eq!((got.status.as_u16(), &got.body[..]), (403, &b"no"[..]));
    assert_eq!(client.get(&bed.runtime, "/version").status, 200, "the next request is nobody's rest");
}
