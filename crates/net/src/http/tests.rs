//! The client against servers that are slow, wrong, or hostile.

use landfall_pki::{Authority, Leaf, Purpose};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::{
    CertificateFiles, ClientAuth, ClientTls, FileSnapshot, ServerTlsOptions, TlsPolicy, server_config,
};

const SOON: Duration = Duration::from_secs(20);

/// A connection, and the server's end of it.
async fn connected() -> (Connection, DuplexStream) {
    let (ours, theirs) = duplex(1 << 20);
    (Connection::over(Box::new(ours), "peer:80".to_owned()).await.unwrap(), theirs)
}

/// Reads the head of a request.
async fn head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

/// Sends a GET request to a server that writes this, and returns the answer. The server keeps the connection open.
async fn asked(answer: &str) -> (Result<Answer, HttpError>, Connection, DuplexStream) {
    let (mut connection, mut server) = connected().await;
    let request = Request::get("/x").body(empty()).unwrap();
    let serve = async {
        let head = head(&mut server).await;
        assert_eq!(head, "GET /x HTTP/1.1\r\nhost: peer:80\r\n\r\n");
        server.write_all(answer.as_bytes()).await.unwrap();
    };
    let (answer, ()) = tokio::join!(connection.send(request, SOON), serve);
    (answer, connection, server)
}

#[tokio::test]
async fn rejection_reports_status_and_reason() {
    let long = "x".repeat(2 * MAX_REASON);
    for (kind, body, expected) in [
        ("403 Forbidden", r#"{"detail": "not\u001b for you"}"#, "403 Forbidden: not for you"),
        ("409 Conflict", r#"{"kind": "Status", "message": "exists"}"#, "409 Conflict: exists"),
        (
            "503 Service Unavailable",
            "[+]ping ok\n\n[-]store failed\n",
            "503 Service Unavailable: [+]ping ok; [-]store failed",
        ),
        ("502 Bad Gateway", "<html>nginx</html>", "502 Bad Gateway: Bad Gateway"),
        ("404 Not Found", "", "404 Not Found: Not Found"),
        (
            "500 Internal Server Error",
            &long,
            &format!("500 Internal Server Error: {}", "x".repeat(MAX_REASON)),
        ),
    ] {
        let length = body.len();
        let (answer, ..) = asked(&format!("HTTP/1.1 {kind}\r\ncontent-length: {length}\r\n\r\n{body}")).await;
        let error = answer.unwrap().success(SOON).await.unwrap_err();
        assert_eq!(error.to_string(), format!("peer:80 answered {expected}"));
    }
}

#[tokio::test(start_paused = true)]
async fn stalled_head_times_out() {
    let (answer, ..) = asked("HTTP/1.1 200 OK\r\ncontent-le").await;
    assert!(matches!(answer, Err(HttpError::Late { within: SOON, .. })), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn stalled_body_times_out() {
    let half = "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf";
    let (answer, _connection, _server) = asked(half).await;
    let error = answer.unwrap().bytes(1 << 20, SOON).await.unwrap_err();
    assert!(matches!(error, HttpError::Late { .. }), "{error:?}");

    let (answer, _connection, _server) = asked(half).await;
    let mut answer = answer.unwrap();
    assert_eq!(answer.piece(SOON).await.unwrap().unwrap(), "half");
    assert!(matches!(answer.piece(SOON).await, Err(HttpError::Late { .. })));
}

/// Each byte comes in time, but the answer does not end.
#[tokio::test(start_paused = true)]
async fn dripped_body_times_out() {
    let (answer, _connection, mut server) = asked("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n").await;
    let drip = async {
        while server.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let began = tokio::time::Instant::now();
    let error = tokio::select! {
        read = answer.unwrap().bytes(1 << 20, SOON) => read.unwrap_err(),
        () = drip => panic!("the connection broke"),
    };
    assert!(matches!(error, HttpError::Late { .. }), "{error:?}");
    assert_eq!(began.elapsed(), SOON);
}

#[tokio::test]
async fn oversized_answer_is_rejected() {
    let endless = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(5000));
    for answer in ["HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n", &endless] {
        let (answer, ..) = asked(answer).await;
        let error = answer.unwrap().bytes(4000, SOON).await.unwrap_err();
        assert!(matches!(error, HttpError::TooLarge { limit: 4000, .. }), "{error:?}");
    }
}

#[tokio::test]
async fn truncated_answer_and_other_protocols_are_told_apart() {
    let (answer, connection, server) = asked("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf").await;
    drop(server);
    let error = answer.unwrap().bytes(1 << 20, SOON).await.unwrap_err();
    assert!(matches!(error, HttpError::Broken { .. }), "{error:?}");
    drop(connection);

    let (answer, ..) = asked("SSH-2.0-OpenSSH_9.2\r\n").await;
    let error = answer.unwrap_err().to_string();
    assert_eq!(error, "peer:80 does not answer in HTTP, or requires TLS (`https://`)");
}

#[tokio::test]
async fn file_is_streamed_and_must_keep_its_length() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let content: Vec<u8> = (0..300_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    std::fs::write(&path, &content).unwrap();
    for (length, is_whole) in [(content.len(), true), (content.len() - 1, true), (content.len() + 1, false)] {
        let body = file(File::open(&path).unwrap(), length as u64).collect().await;
        assert_eq!(body.is_ok(), is_whole, "{length}");
        if let Ok(body) = body {
            assert_eq!(body.to_bytes(), content[..length]);
        }
    }
}

#[tokio::test]
async fn closed_port_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let request = Request::get("/").body(empty()).unwrap();
    let limits = Limits { within: SOON, answer: 100 };
    let error = exchange(&Server::parse(&url).unwrap(), None, request, limits).await.unwrap_err();
    assert!(matches!(error, HttpError::Unreachable { .. }), "{error:?}");
}

/// Returns the error of a request to a TLS server of `ours` that requires a client certificate.
async fn refused(ours: &Authority, trusted: &Authority, name: &str) -> HttpError {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let leaf = ours.issue(&Leaf::new("server", Purpose::Peer).names(["localhost"])).unwrap();
    std::fs::write(path("ca"), ours.certificate()).unwrap();
    std::fs::write(path("trusted"), trusted.certificate()).unwrap();
    std::fs::write(path("crt"), leaf.certificate).unwrap();
    std::fs::write(path("key"), leaf.key.expose()).unwrap();
    let ca = path("ca");
    let options = ServerTlsOptions {
        certificates: &[CertificateFiles { certificate: path("crt"), key: path("key") }],
        clients: ClientAuth::Required(&ca),
        protocols: &[],
        policy: &TlsPolicy::default(),
    };
    let files = FileSnapshot::read(&[ca.clone(), path("crt"), path("key")]);
    let config = Arc::new(server_config(&files, &options).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = async {
        let (stream, _) = listener.accept().await.unwrap();
        assert!(TlsAcceptor::from(config).accept(stream).await.is_err());
    };
    let client = ClientTls { ca: Some(path("trusted")), ..ClientTls::default() }.read().unwrap();
    let server = Server { encrypted: true, host: name.to_owned(), port };
    let request = Request::get("/").body(empty()).unwrap();
    let limits = Limits { within: SOON, answer: 100 };
    tokio::join!(exchange(&server, Some(Arc::new(client)), request, limits), serve).0.unwrap_err()
}

#[tokio::test]
async fn tls_failures_are_told_apart() {
    let (ours, other) = (Authority::new("ours", 1).unwrap(), Authority::new("other", 1).unwrap());
    let untrusted = refused(&ours, &other, "localhost").await;
    assert!(matches!(untrusted, HttpError::Tls { .. }), "{untrusted:?}");
    let misnamed = refused(&ours, &ours, "127.0.0.1").await;
    assert!(matches!(misnamed, HttpError::Tls { .. }), "{misnamed:?}");
    let stranger = refused(&ours, &ours, "localhost").await;
    assert!(matches!(stranger, HttpError::CertificateRejected { .. }), "{stranger:?}");
}

#[test]
fn parses_addresses_of_servers() {
    for (url, encrypted, host, authority, is_loopback) in [
        ("https://[fd00::5]:8700", true, "fd00::5", "[fd00::5]:8700", false),
        ("https://hub.corp", true, "hub.corp", "hub.corp:443", false),
        ("http://127.0.0.1:8700/", false, "127.0.0.1", "127.0.0.1:8700", true),
        ("http://[::1]", false, "::1", "[::1]:80", true),
        ("http://localhost", false, "localhost", "localhost:80", true),
    ] {
        let server = Server::parse(url).unwrap();
        assert_eq!(
            (server.encrypted, server.host.as_str(), server.is_loopback()),
            (encrypted, host, is_loopback)
        );
        assert_eq!(server.to_string(), authority);
    }
    for bad in ["", "hub.corp:8700", "ftp://hub.corp", "https://", "/path"] {
        assert_eq!(Server::parse(bad), None, "{bad}");
    }
}
