use http_body_util::{Empty, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::task::JoinHandle;

use super::connection::Opened;
use super::stall::StallGuard;
use super::*;

const PAGE: usize = 4 << 20;
const RATE: usize = 60_000;
const IDLE: Duration = Duration::from_secs(30);
const LIMITS: Limits = Limits {
    connections: 4,
    first_request: Duration::from_secs(10),
    idle: IDLE,
    stalled_write: IDLE,
    head: 16 << 10,
    body_rate: RATE,
    drain: Duration::from_secs(10),
};

/// A handler with a large page, a slow response, and a response that leaves the request body unread for as long.
struct Pages {
    keep_alive: bool,
    lifetime: Option<Duration>,
}

impl Handler for Pages {
    type State = ();

    fn open(&self, _: Peer) -> Option<Session<()>> {
        let (keep_alive, lifetime) = (self.keep_alive, self.lifetime);
        Some(Session { lifetime, keep_alive, ..Session::new(()) })
    }

    fn handle<'h>(&'h self, _: &'h Arc<()>, request: Request<RequestBody>) -> ResponseFuture<'h> {
        Box::pin(async move {
            match request.uri().path() {
                "/" => text_response(StatusCode::OK, "here"),
                "/page" => text_response(StatusCode::OK, vec![b'x'; PAGE]),
                "/long" | "/held" => {
                    tokio::time::sleep(IDLE * 5).await;
                    text_response(StatusCode::OK, "done")
                }
                "/upload" => match request.into_body().collect().await {
                    Ok(body) => text_response(StatusCode::OK, format!("{} bytes", body.to_bytes().len())),
                    Err(error) => text_response(StatusCode::REQUEST_TIMEOUT, error.to_string()),
                },
                _ => text_response(StatusCode::NOT_FOUND, ""),
            }
        })
    }
}

/// Returns the client's end of a served connection, and the task that serves it.
fn connect(handler: Pages, ended: &watch::Sender<()>) -> (DuplexStream, JoinHandle<()>) {
    open(handler, ended, false)
}

fn open(handler: Pages, ended: &watch::Sender<()>, is_http2: bool) -> (DuplexStream, JoinHandle<()>) {
    let (client, server) = tokio::io::duplex(4096);
    let connection = Connection {
        handler: Arc::new(handler),
        limits: LIMITS,
        first_request: FirstRequest::default(),
        ended: ended.subscribe(),
    };
    let peer = Peer { address: None, certificate: None, uid: None };
    let opened = Opened { stream: Box::new(StallGuard::new(server, IDLE)), peer, is_http2 };
    (client, tokio::spawn(connection.serve(opened)))
}

fn pages() -> Pages {
    Pages { keep_alive: true, lifetime: None }
}

async fn ends_within(serving: JoinHandle<()>, limit: Duration) {
    tokio::time::timeout(limit, serving).await.expect("the connection stays open").unwrap();
}

async fn http2(stream: DuplexStream) -> SendRequest<Empty<Bytes>> {
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    // Answers pings while it runs.
    tokio::spawn(connection);
    sender
}

fn get(path: &str) -> Request<Empty<Bytes>> {
    Request::get(format!("http://localhost{path}")).body(Empty::new()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn http1_client_that_reads_nothing_is_disconnected() {
    let ended = watch::Sender::new(());
    let (mut client, serving) = connect(pages(), &ended);
    client.write_all(b"GET /page HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let started = Instant::now();
    ends_within(serving, IDLE * 3).await;
    assert!(started.elapsed() >= IDLE);
}

#[tokio::test(start_paused = true)]
async fn http1_slow_reader_gets_the_complete_response() {
    let ended = watch::Sender::new(());
    let (mut client, serving) = connect(pages(), &ended);
    client.write_all(b"GET /page HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut piece = vec![0; 64 << 10];
    let mut read = 0;
    loop {
        tokio::time::sleep(IDLE * 2 / 3).await;
        match client.read(&mut piece).await.unwrap() {
            0 => break,
            count => read += count,
        }
    }
    assert!(read > PAGE, "{read}");
    ends_within(serving, IDLE).await;
}

#[tokio::test(start_paused = true)]
async fn http1_slow_request_head_is_disconnected() {
    let ended = watch::Sender::new(());
    let (mut client, serving) = connect(pages(), &ended);
    let trickle = async {
        for byte in b"GET / HTTP/1.1\r\nhost: localhost\r\nx-padding: xxxxxxxxxxxxxxxx\r\n".iter().cycle() {
            if client.write_all(&[*byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    };
    let ((), ()) = tokio::join!(trickle, ends_within(serving, IDLE * 3));
}

#[tokio::test(start_paused = true)]
async fn http1_connection_without_keep_alive_ends_after_one_response() {
    let ended = watch::Sender::new(());
    let (mut client, serving) = connect(Pages { keep_alive: false, ..pages() }, &ended);
    client.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut response = String::new();
    client.read_to_string(&mut response).await.unwrap();
    assert!(response.ends_with("here"), "{response}");
    ends_within(serving, Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn connection_ends_with_its_lifetime() {
    let ended = watch::Sender::new(());
    let lifetime = Some(Duration::from_secs(20));
    let (mut client, serving) = connect(Pages { lifetime, ..pages() }, &ended);
    client.write_all(b"GET /long HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    ends_within(serving, Duration::from_secs(21)).await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_completes_the_request_in_progress() {
    let ended = watch::Sender::new(());
    let (mut client, serving) = connect(pages(), &ended);
    client.write_all(b"GET /long HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    ended.send_replace(());
    let mut response = String::new();
    client.read_to_string(&mut response).await.unwrap();
    assert!(response.ends_with("done"), "{response}");
    ends_within(serving, Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn http2_pings_do_not_keep_a_connection_open() {
    let ended = watch::Sender::new(());
    let (client, serving) = open(pages(), &ended, true);
    let mut sender = http2(client).await;
    assert_eq!(sender.send_request(get("/nowhere")).await.unwrap().status(), 404);
    ends_within(serving, IDLE * 3).await;
}

/// Tests that data beyond the window is not sent.
#[tokio::test(start_paused = true)]
async fn http2_unread_request_bodies_are_bounded() {
    let ended = watch::Sender::new(());
    let (client, serving) = open(pages(), &ended, true);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(client)).await.unwrap();
    tokio::spawn(connection);
    let sent = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let pieces = futures_util::stream::repeat_with(move || {
        counter.fetch_add(1024, std::sync::atomic::Ordering::Relaxed);
        Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from_static(&[b'x'; 1024])))
    });
    let request = Request::get("http://localhost/held").body(StreamBody::new(pieces)).unwrap();
    let response = tokio::time::timeout(IDLE, sender.send_request(request)).await;
    assert!(response.is_err(), "the handler is still at work");
    let sent = sent.load(std::sync::atomic::Ordering::Relaxed);
    assert!((100_000..300_000).contains(&sent), "{sent}");
    drop((response, sender));
    ends_within(serving, IDLE * 10).await;
}

#[tokio::test(start_paused = true)]
async fn http2_client_that_reads_nothing_is_disconnected() {
    let ended = watch::Sender::new(());
    let (client, serving) = open(pages(), &ended, true);
    let mut sender = http2(client).await;
    let response = sender.send_request(get("/page")).await.unwrap();
    ends_within(serving, IDLE * 4).await;
    drop(response);
}

#[tokio::test(start_paused = true)]
async fn http2_handler_at_work_is_not_idle() {
    let ended = watch::Sender::new(());
    let (client, serving) = open(pages(), &ended, true);
    let mut sender = http2(client).await;
    let response = sender.send_request(get("/long")).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "done");
    ends_within(serving, IDLE * 3).await;
}

async fn ask(stream: &mut TcpStream) -> String {
    stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut piece = [0; 1024];
    let read = tokio::time::timeout(LIMITS.first_request, stream.read(&mut piece)).await;
    String::from_utf8_lossy(&piece[..read.expect("a response in time").unwrap()]).into_owned()
}

#[tokio::test]
async fn silent_connections_do_not_block_others() {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.address();
    tokio::spawn(serve(Accept::Tcp(listener), LIMITS, Arc::new(pages()), std::future::pending()));
    let mut active = TcpStream::connect(address).await.unwrap();
    assert!(ask(&mut active).await.ends_with("here"));
    let mut silent = Vec::new();
    for _ in 0..LIMITS.connections * 2 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    assert!(ask(&mut TcpStream::connect(address).await.unwrap()).await.ends_with("here"));
    assert!(ask(&mut active).await.ends_with("here"), "connections with a request are not evicted");
}

/// Uploads a body of which `bytes` arrive every 10 s, and returns the response and its time.
async fn upload(bytes: usize, times: usize, length: usize) -> (String, Duration) {
    let ended = watch::Sender::new(());
    let (mut client, serving) = connect(pages(), &ended);
    let started = Instant::now();
    let head = "POST /upload HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length";
    let head = format!("{head}: {length}\r\n\r\n");
    client.write_all(head.as_bytes()).await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(client);
    let sending = async {
        for _ in 0..times {
            tokio::time::sleep(Duration::from_secs(10)).await;
            if writer.write_all(&vec![b'x'; bytes]).await.is_err() {
                return;
            }
        }
    };
    let mut response = String::new();
    let (_, ()) = tokio::join!(reader.read_to_string(&mut response), sending);
    let elapsed = started.elapsed();
    drop((reader, writer));
    ends_within(serving, IDLE).await;
    (response, elapsed)
}

#[tokio::test(start_paused = true)]
async fn slow_upload_is_rejected_after_a_minute() {
    let (response, elapsed) = upload(1, 1000, 1000).await;
    assert!(response.contains("the client sent less than"), "{response}");
    assert!((60..=80).contains(&elapsed.as_secs()), "{elapsed:?}");
    // A fast start does not extend the deadline of the next minute.
    let (response, elapsed) = upload(RATE, 1, 10 * RATE).await;
    assert!(response.contains("the client sent less than"), "{response}");
    assert!((120..=130).contains(&elapsed.as_secs()), "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn slow_upload_above_the_minimum_rate_is_accepted() {
    let (response, _) = upload(RATE / 5, 100, 20 * RATE).await;
    assert!(response.ends_with("1200000 bytes"), "{response}");
    let (response, _) = upload(1, 3, 3).await;
    assert!(response.ends_with("3 bytes"), "complete within a minute: {response}");
}
