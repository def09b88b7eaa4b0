//! Timeouts of polls, with a simulated clock.

use std::sync::Mutex;

use futures_util::StreamExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use super::talk::{BUNDLE_PAUSE, COLLECTING};
use super::*;
use crate::access::Access;
use crate::bundles::{BundleLimits, LEAST};
use crate::objects::Objects;
use crate::roles::Roles;
use crate::store::SqliteStore;

/// Just within the timeout of every single response.
const PAUSE: Duration = Duration::from_secs(14);

/// The agent's end of a connection: it sends the given responses and records the requests.
async fn speak(
    mut stream: DuplexStream,
    asked: &Mutex<Vec<String>>,
    answer: impl Fn(&str) -> (Duration, String),
) {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let Ok(byte) = stream.read_u8().await else { return };
            head.push(byte);
        }
        let path = String::from_utf8_lossy(&head).split(' ').nth(1).unwrap_or_default().to_owned();
        let (pause, text) = answer(&path);
        asked.lock().unwrap().push(path);
        tokio::time::sleep(pause).await;
        if stream.write_all(text.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn answer(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn hub(folder: &Path) -> Hub {
    let store = Arc::new(SqliteStore::open(&folder.join("hub.db")).unwrap());
    let objects = Objects::folder(&folder.join("bundles")).unwrap();
    let limits = BundleLimits { packed: 1 << 20 };
    Hub::new(store, objects, Access::default(), limits, Roles::new(Vec::new(), None)).unwrap()
}

fn question() -> Question {
    Question {
        agent: PulledAgent::parse("n1").unwrap(),
        way: Way::Direct,
        tls: Arc::new(
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(rustls::RootCertStore::empty())
                .with_no_client_auth(),
        ),
        said: HashMap::new(),
        neighbours: Neighbours::Asked,
        bundles: Bundles::LeftThere,
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_answers_each_question_just_in_time_does_not_keep_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let hub = hub(folder.path());
    let names: Vec<String> = (0..MAX_NEIGHBOURS).map(|number| format!("n{number}")).collect();
    let list = serde_json::json!({ "nodes": names }).to_string();
    let (ours, theirs) = tokio::io::duplex(4096);
    let asked = Mutex::new(Vec::new());
    let mut line = Line::over(Box::new(ours), "n1:8710".to_owned()).await.unwrap();
    let began = Instant::now();
    let told = tokio::select! {
        told = async { question().neighbours(&hub, &mut line).await } => told,
        () = speak(theirs, &asked, |path| match path {
            "/neighbours" => (PAUSE, answer("200 OK", &list)),
            _ => (PAUSE, answer("404 Not Found", "")),
        }) => panic!("the line broke"),
    };
    assert!(matches!(told, Err(PullError::Long)), "{told:?}");
    assert_eq!(began.elapsed().as_secs(), NEIGHBOURS_PATIENCE.as_secs());
    // The list and three neighbors within 56 s, and an unfinished request for a fourth.
    assert_eq!(asked.lock().unwrap().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_quick_is_heard_to_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let hub = hub(folder.path());
    let (ours, theirs) = tokio::io::duplex(4096);
    let asked = Mutex::new(Vec::new());
    let mut line = Line::over(Box::new(ours), "n1:8710".to_owned()).await.unwrap();
    let told = tokio::select! {
        told = async { question().neighbours(&hub, &mut line).await } => told,
        () = speak(theirs, &asked, |path| match path {
            "/neighbours" => (PAUSE, answer("200 OK", r#"{"nodes": ["n2", "n3"]}"#)),
            _ => (PAUSE, answer("404 Not Found", "")),
        }) => panic!("the line broke"),
    };
    assert!(told.is_ok(), "{told:?}");
    assert_eq!(*asked.lock().unwrap(), ["/neighbours", "/neighbours/n2/report", "/neighbours/n3/report"]);
}

/// An invalid report fails again although it is not parsed again, and the neighbors' reports are fetched.
#[tokio::test]
async fn an_agent_that_says_the_same_nonsense_again_is_asked_in_vain_again() {
    let folder = tempfile::tempdir().unwrap();
    let hub = hub(folder.path());
    let (ours, theirs) = tokio::io::duplex(4096);
    let asked = Mutex::new(Vec::new());
    let mut line = Line::over(Box::new(ours), "n1:8710".to_owned()).await.unwrap();
    let bundling = tokio::sync::Semaphore::new(1);
    let mut book = Book::default();
    let agent = PulledAgent::parse("n1").unwrap();
    book.write(Some(vec![agent.clone()]));
    let asking = async {
        let mut question = question();
        for time in 1..=3 {
            let result = question.hear(&hub, &mut line, &bundling).await;
            assert!(result.is_err(), "{time}");
            let said = std::mem::take(&mut question.said);
            book.learn(&hub, Told { agent: agent.clone(), said, result }, &Backoff::millis::<1000, 1000>());
            assert_eq!(book.pages[&agent].failed, time);
            question.said = book.pages[&agent].said.clone();
        }
    };
    tokio::select! {
        () = asking => {}
        () = speak(theirs, &asked, |path| match path {
            "/report" => (Duration::ZERO, answer("200 OK", "<html>It works!</html>")),
            "/neighbours" => (Duration::ZERO, answer("200 OK", r#"{"nodes": ["n2"]}"#)),
            _ => (Duration::ZERO, answer("404 Not Found", "")),
        }) => panic!("the line broke"),
    }
    let asked = asked.into_inner().unwrap();
    assert_eq!(asked.iter().filter(|path| *path == "/neighbours/n2/report").count(), 3, "{asked:?}");
}

/// A node that loses power during a download does not close the connection.
#[tokio::test(start_paused = true)]
async fn a_bundle_that_stops_coming_is_given_up() {
    let (ours, theirs) = tokio::io::duplex(4096);
    let asked = Mutex::new(Vec::new());
    let line = Line::over(Box::new(ours), "n1:8710".to_owned()).await.unwrap();
    let half = "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf".to_owned();
    let began = Instant::now();
    let listening = async {
        let mut pieces = line.bundle().await.unwrap();
        assert_eq!(pieces.next().await.unwrap().unwrap(), "half");
        pieces.next().await.unwrap().unwrap_err()
    };
    let error = tokio::select! {
        error = listening => error,
        () = speak(theirs, &asked, |_| (Duration::ZERO, half.clone())) => panic!("the line broke"),
    };
    assert!(matches!(error, TalkError::Silent), "{error:?}");
    assert_eq!(began.elapsed().as_secs(), BUNDLE_PAUSE.as_secs());
}

/// Sends this many bytes of a bundle every 30 s, `times` times. Returns the result and the duration of the download.
async fn every_half_minute(bytes: usize, times: usize) -> (Result<usize, TalkError>, Duration) {
    let (ours, mut theirs) = tokio::io::duplex(2 * LEAST);
    let line = Line::over(Box::new(ours), "n1:8710".to_owned()).await.unwrap();
    let sending = async {
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            asked.push(theirs.read_u8().await.unwrap());
        }
        let length = bytes * times;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
        theirs.write_all(head.as_bytes()).await.unwrap();
        for _ in 0..times {
            tokio::time::sleep(Duration::from_secs(30)).await;
            if theirs.write_all(&vec![b'x'; bytes]).await.is_err() {
                break;
            }
        }
    };
    let listening = async {
        let mut pieces = line.bundle().await.unwrap();
        let mut came = 0;
        while let Some(piece) = pieces.next().await {
            came += piece?.len();
        }
        Ok(came)
    };
    let began = Instant::now();
    let listening = async { (listening.await, began.elapsed()) };
    tokio::join!(listening, sending).0
}

#[tokio::test(start_paused = true)]
async fn a_bundle_that_comes_by_drops_does_not_keep_its_place() {
    let (heard, took) = every_half_minute(1, 60).await;
    assert!(matches!(heard, Err(TalkError::Slow)), "{heard:?}");
    assert_eq!(took.as_secs(), COLLECTING.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_bundle_that_is_slow_to_be_collected_comes_whole() {
    let (heard, took) = every_half_minute(LEAST, 60).await;
    assert_eq!((heard.unwrap(), took.as_secs()), (60 * LEAST, 1800));
    let (heard, _) = every_half_minute(1, 5).await;
    assert_eq!(heard.unwrap(), 5, "little comes of a machine in trouble, and late");
}

#[tokio::test]
async fn a_bundle_that_is_refused_is_refused_with_its_reason() {
    let (ours, theirs) = tokio::io::duplex(4096);
    let asked = Mutex::new(Vec::new());
    let line = Line::over(Box::new(ours), "n1:8710".to_owned()).await.unwrap();
    let refused = tokio::select! {
        refused = line.bundle() => refused.map(drop).unwrap_err(),
        () = speak(theirs, &asked, |_| (Duration::ZERO, answer("429 Too Many Requests", "a bundle is being made\n"))) => {
            panic!("the line broke")
        }
    };
    assert_eq!(refused.to_string(), "n1:8710 answered 429 Too Many Requests: a bundle is being made");
}
