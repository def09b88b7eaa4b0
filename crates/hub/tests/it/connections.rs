//! Persistent connections, which are idle between two reports.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::bed::{TestHub, envelope, running};

/// A persistent connection with the bytes received and not yet parsed.
struct Kept {
    stream: TcpStream,
    came: Vec<u8>,
}

// === impl Kept ===

impl Kept {
    fn open(hub: &TestHub) -> Self {
        let stream = TcpStream::connect(hub.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        Self { stream, came: Vec::new() }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Returns the head and the body of the next response, or `None` if the hub closed the connection.
    fn answer(&mut self) -> Option<(String, String)> {
        loop {
            if let Some(end) = self.came.windows(4).position(|window| window == b"\r\n\r\n") {
                let head = String::from_utf8(self.came[..end].to_vec()).unwrap();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
                let whole = end + 4 + length.parse::<usize>().unwrap();
                if self.came.len() >= whole {
                    let body = String::from_utf8_lossy(&self.came[end + 4..whole]).into_owned();
                    self.came.drain(..whole);
                    return Some((head, body));
                }
            }
            let mut piece = [0; 4096];
            match self.stream.read(&mut piece) {
                Ok(0) | Err(_) => return None,
                Ok(read) => self.came.extend_from_slice(&piece[..read]),
            }
        }
    }

    #[track_caller]
    fn stored(&mut self) {
        let (head, body) = self.answer().unwrap();
        assert!(head.starts_with("HTTP/1.1 200") && body.contains("stored"), "{head}\n{body}");
        assert!(!head.contains("connection: close"), "{head}");
    }
}

fn report(sequence: u64, headers: &str) -> Vec<u8> {
    let body = serde_json::to_string(&envelope("n1", sequence, running())).unwrap();
    let length = body.len();
    format!(
        "POST /api/v1/reports HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

fn page(headers: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n").into_bytes()
}

#[test]
fn a_kept_connection_takes_whatever_comes_next() {
    let hub = TestHub::start();
    let mut kept = Kept::open(&hub);
    for sequence in 1..=3 {
        kept.send(&report(sequence, ""));
        kept.stored();
    }
    // Two requests in one write, and the beginning of a third, whose rest follows.
    let third = report(6, "");
    kept.send(&[report(4, ""), report(5, ""), third[..1].to_vec()].concat());
    kept.stored();
    kept.stored();
    kept.send(&third[1..100]);
    kept.send(&third[100..]);
    kept.stored();
    kept.send(&[page(""), report(7, "")].concat());
    let (head, body) = kept.answer().unwrap();
    assert!(head.starts_with("HTTP/1.1 200") && body.contains("n1"), "{head}");
    kept.stored();
    assert_eq!(hub.json("/api/v1/nodes/n1")["reports"], 7);
}

#[test]
fn who_asks_for_the_end_gets_it() {
    let hub = TestHub::start();
    let mut kept = Kept::open(&hub);
    kept.send(&report(1, ""));
    kept.stored();
    kept.send(&report(2, "connection: close\r\n"));
    let (head, _) = kept.answer().unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(kept.answer().is_none(), "it was asked to close");
    let mut old = Kept::open(&hub);
    old.send(String::from_utf8(report(3, "")).unwrap().replacen("HTTP/1.1", "HTTP/1.0", 1).as_bytes());
    assert!(old.answer().is_some());
    assert!(old.answer().is_none(), "before 1.1 a connection is not kept");
}

#[test]
fn what_follows_a_refused_head_is_not_taken_for_a_request() {
    let hub = TestHub::start();
    let mut kept = Kept::open(&hub);
    kept.send(&report(1, ""));
    kept.stored();
    // Rejected by its content type before its body is read. The body is built to look like a request.
    let inner = report(2, "");
    let outer = format!(
        "POST /api/v1/reports HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n",
        inner.len() + 100_000
    );
    kept.send(&[outer.as_bytes(), &inner].concat());
    let (head, _) = kept.answer().unwrap();
    assert!(head.starts_with("HTTP/1.1 415"), "{head}");
    let _ = kept.stream.write_all(&vec![b'x'; 100_000]);
    while let Some((head, _)) = kept.answer() {
        assert!(!head.starts_with("HTTP/1.1 200"), "{head}");
    }
    assert_eq!(hub.json("/api/v1/nodes/n1")["reports"], 1);
}

#[test]
fn resting_connections_do_not_keep_a_hub_from_ending() {
    let hub = TestHub::start();
    let mut resting: Vec<Kept> = (0..20).map(|_| Kept::open(&hub)).collect();
    for (kept, sequence) in resting.iter_mut().zip(1..) {
        kept.send(&report(sequence, ""));
        kept.stored();
    }
    drop(hub);
    for kept in &mut resting {
        assert!(kept.answer().is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http_2_is_spoken_too() {
    let hub = tokio::task::spawn_blocking(TestHub::start).await.unwrap();
    let stream = tokio::net::TcpStream::connect(hub.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for _ in 0..2 {
        let request = hyper::Request::get(format!("http://localhost:{}/api/v1/fleet", hub.address.port()));
        let answer = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), 200);
    }
    drop(sender);
    tokio::task::spawn_blocking(move || drop(hub)).await.unwrap();
}

/// curl before version 8 reports a broken stream instead of the response if the server stops reading the request.
#[tokio::test(flavor = "multi_thread")]
async fn over_http_2_what_is_refused_is_taken_in_so_that_the_answer_is_read() {
    let hub = tokio::task::spawn_blocking(TestHub::start).await.unwrap();
    let stream = tokio::net::TcpStream::connect(hub.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let at = |path: &str| format!("http://localhost:{}{path}", hub.address.port());
    let (pieces, body) = tokio::sync::mpsc::channel::<Result<Frame<Bytes>, std::io::Error>>(1);
    let body = futures_util::stream::unfold(body, |mut body| async move { Some((body.recv().await?, body)) });
    let request = hyper::Request::post(at("/api/v1/reports")).header("content-type", "text/plain");
    let request = request.body(StreamBody::new(body).boxed()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!(answer.status(), 415);
    assert!(!answer.into_body().collect().await.unwrap().to_bytes().is_empty());
    // The response to another request shows that the hub has processed the first one.
    for _ in 0..10 {
        let asked = hyper::Request::get(at("/livez"));
        let asked = asked.body(Empty::new().map_err(|never| match never {}).boxed()).unwrap();
        assert_eq!(sender.send_request(asked).await.unwrap().status(), 200);
        let piece = pieces.send(Ok(Frame::data(Bytes::from_static(&[b'x'; 4096])))).await;
        assert!(piece.is_ok(), "the upload was cut off after its answer");
    }
    drop((pieces, sender));
    tokio::task::spawn_blocking(move || drop(hub)).await.unwrap();
}
