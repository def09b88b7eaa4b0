//! A connection: handshake, login, and one request at a time.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use landfall_model::Secret;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::protocol::{MAX_LINE, Said, acknowledged, is_too_large, said};
use super::server::Server;

/// Timeout from the dial to the login, and from each request to its response.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// Error of a server for a message above its size limit, before it disconnects.
const TOO_LARGE: &str = "Maximum Payload Violation";
/// Maximum number of unrelated server messages before the expected one.
const MAX_SAID: usize = 64;
/// Maximum size of a buffered message: the largest report plus headers. Larger messages are skipped.
const MAX_MESSAGE: usize = (1 << 20) + (16 << 10);
/// Default limit of a server for messages, including headers.
const MAX_PAYLOAD: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    #[error("cannot reach the NATS server at {server}")]
    Reach {
        server: Server,
        #[source]
        source: io::Error,
    },
    #[error("cannot read the login for the NATS server in `{}`", path.display())]
    Login {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the connection to the NATS server broke")]
    Broken(#[source] io::Error),
    #[error("the NATS server does not speak as one")]
    Odd,
    #[error("the NATS server said: {0}")]
    Said(String),
    #[error("no stream takes the subject `{0}`")]
    NoStream(String),
    #[error("the message has {0} bytes, and that is more than the NATS server takes")]
    TooLarge(usize),
    #[error(
        "the message has {0} bytes, and that is more than the stream takes: its `max_msg_size` must be at least 1 MiB, or -1"
    )]
    TooLargeForStream(usize),
    #[error("the NATS server did not answer within {} s", .0.as_secs())]
    Late(Duration),
    #[error("the NATS server is too slow; connection closed")]
    GivenUp,
}

/// An authenticated connection.
#[expect(missing_debug_implementations, reason = "holds a connection")]
pub struct Connection {
    wire: Wire,
    max_payload: u64,
    /// Subject prefix of responses, on which only this connection listens.
    inbox: String,
    /// Number of requests so far: each has its own response subject.
    asked: u64,
    /// Whether a message was partially read. If its reader timed out, the rest must not be parsed as the server's next
    /// message.
    is_reading: bool,
}

/// A received message.
pub(crate) struct Came {
    pub(crate) subject: String,
    pub(crate) reply: Option<String>,
    pub(crate) headers: Vec<u8>,
    /// `None` for a message above the size limit.
    pub(crate) body: Option<Vec<u8>>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}
type Wire = BufReader<Box<dyn Stream>>;

// === impl Connection ===

impl Connection {
    /// Connects and authenticates. The file contains a token on one line, or a user and a password on two.
    pub async fn open(
        server: &Server,
        tls: &Arc<ClientConfig>,
        login: Option<&Path>,
        name: &str,
    ) -> Result<Self, NatsError> {
        let opened = tokio::time::timeout(PATIENCE, Self::greet(server, tls, login, name)).await;
        opened.unwrap_or(Err(NatsError::Late(PATIENCE)))
    }

    async fn greet(
        server: &Server,
        tls: &Arc<ClientConfig>,
        login: Option<&Path>,
        name: &str,
    ) -> Result<Self, NatsError> {
        let reach = |source| NatsError::Reach { server: server.clone(), source };
        let stream = TcpStream::connect((server.host.as_str(), server.port)).await.map_err(reach)?;
        let mut wire: Wire = BufReader::new(Box::new(stream));
        let Said::Info(info) = listen(&mut wire).await? else { return Err(NatsError::Odd) };
        if server.encrypted {
            let encrypts = ["tls_required", "tls_available"].iter().any(|key| info[*key] == true);
            // Plaintext data before the handshake must not be treated as encrypted.
            if !encrypts || !wire.buffer().is_empty() {
                return Err(NatsError::Said("it does not encrypt".to_owned()));
            }
            let name =
                ServerName::try_from(server.host.clone()).map_err(|error| reach(io::Error::other(error)))?;
            let connector = TlsConnector::from(Arc::clone(tls));
            let stream = connector.connect(name, wire.into_inner()).await.map_err(reach)?;
            wire = BufReader::new(Box::new(stream));
        }
        let mut words = json!({
            "verbose": false, "pedantic": false, "headers": true, "no_responders": true, "lang": "rust",
            "version": env!("CARGO_PKG_VERSION"), "name": name, "protocol": 1,
        });
        if let Some(path) = login {
            add_login(path, &mut words)?;
        }
        let mut random = [0; 12];
        getrandom::fill(&mut random).map_err(|error| NatsError::Broken(io::Error::other(error)))?;
        let inbox = format!("_INBOX.landfall.{}", hex::encode(random));
        let line = Secret::new(format!("CONNECT {words}\r\nSUB {inbox}.* 1\r\nPING\r\n").into_bytes());
        send(&mut wire, line.expose()).await?;
        let max_payload = max_payload(&info, server.encrypted);
        let mut connection = Self { wire, max_payload, inbox, asked: 0, is_reading: false };
        for _ in 0..MAX_SAID {
            match listen(&mut connection.wire).await? {
                Said::Pong => return Ok(connection),
                Said::Error(words) => return Err(NatsError::Said(words)),
                Said::Ping => send(&mut connection.wire, b"PONG\r\n").await?,
                Said::Info(_) | Said::Fine => {}
                Said::Message { .. } => return Err(NatsError::Odd),
            }
        }
        Err(NatsError::Odd)
    }

    /// Publishes a message under an ID, by which a stream detects duplicates. Returns once a stream has confirmed that
    /// it is stored.
    pub async fn publish(&mut self, subject: &str, id: &str, body: &[u8]) -> Result<(), NatsError> {
        let headers = format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n");
        let (head, all) = (headers.len(), headers.len() + body.len());
        if all as u64 > self.max_payload {
            return Err(NatsError::TooLarge(all));
        }
        let published = async {
            let reply = self.next_reply();
            let mut bytes = format!("HPUB {subject} {reply} {head} {all}\r\n{headers}").into_bytes();
            bytes.extend_from_slice(body);
            bytes.extend_from_slice(b"\r\n");
            let sent = send(&mut self.wire, &bytes).await;
            let came = self.came(&reply).await;
            // A server that rejects a message reports the reason and then disconnects while the message is still being
            // sent.
            if matches!(came, Err(NatsError::Said(_))) { came } else { sent.and(came) }
        };
        let came = tokio::time::timeout(PATIENCE, published).await;
        let came = came.unwrap_or(Err(NatsError::Late(PATIENCE))).map_err(|error| match error {
            NatsError::Said(words) if words.eq_ignore_ascii_case(TOO_LARGE) => NatsError::TooLarge(all),
            error => error,
        })?;
        let answer = came.body.unwrap_or_default();
        match acknowledged(&came.headers, &answer) {
            Some(Ok(())) => Ok(()),
            Some(Err(_)) if is_too_large(&answer) => Err(NatsError::TooLargeForStream(all)),
            Some(Err(words)) => Err(NatsError::Said(words)),
            None => Err(NatsError::NoStream(subject.to_owned())),
        }
    }

    /// Sends a request to JetStream and returns its JSON response, which may contain an error.
    pub(crate) async fn ask(&mut self, subject: &str, question: &Value) -> Result<Value, NatsError> {
        let asked = async {
            let reply = self.next_reply();
            self.say(subject, Some(&reply), question.to_string().as_bytes()).await?;
            self.came(&reply).await
        };
        let came = tokio::time::timeout(PATIENCE, asked).await;
        let came = came.unwrap_or(Err(NatsError::Late(PATIENCE)))?;
        if came.headers.starts_with(b"NATS/1.0 503") {
            return Err(NatsError::Said("it has no JetStream, or this login may not use it".to_owned()));
        }
        serde_json::from_slice(&came.body.unwrap_or_default()).map_err(|_| NatsError::Odd)
    }

    /// Publishes without waiting for a result.
    pub(crate) async fn say(
        &mut self,
        subject: &str,
        reply: Option<&str>,
        body: &[u8],
    ) -> Result<(), NatsError> {
        let reply = reply.map(|reply| format!("{reply} ")).unwrap_or_default();
        let mut bytes = format!("PUB {subject} {reply}{}\r\n", body.len()).into_bytes();
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(b"\r\n");
        send(&mut self.wire, &bytes).await
    }

    /// Returns the subject for the next response.
    pub(crate) fn next_reply(&mut self) -> String {
        self.asked += 1;
        format!("{}.{}", self.inbox, self.asked)
    }

    /// Returns the next message and answers pings. The caller sets the timeout; after a timeout, the connection returns
    /// no further message.
    pub(crate) async fn next(&mut self) -> Result<Came, NatsError> {
        if std::mem::replace(&mut self.is_reading, true) {
            return Err(NatsError::GivenUp);
        }
        let came = self.read().await;
        self.is_reading = false;
        came
    }

    async fn read(&mut self) -> Result<Came, NatsError> {
        loop {
            match listen(&mut self.wire).await? {
                Said::Ping => send(&mut self.wire, b"PONG\r\n").await?,
                Said::Message { subject, reply, headers, bytes } => {
                    return self.payload(subject, reply, headers, bytes).await;
                }
                Said::Error(words) => return Err(NatsError::Said(words)),
                Said::Pong | Said::Info(_) | Said::Fine => {}
            }
        }
    }

    /// Returns the response to a request; late responses to others are ignored.
    async fn came(&mut self, reply: &str) -> Result<Came, NatsError> {
        for _ in 0..MAX_SAID {
            let came = self.next().await?;
            if came.subject == reply {
                return Ok(came);
            }
        }
        Err(NatsError::Odd)
    }

    /// Reads the headers and the body of a message, and the line end after it.
    async fn payload(
        &mut self,
        subject: String,
        reply: Option<String>,
        headers: usize,
        bytes: usize,
    ) -> Result<Came, NatsError> {
        if bytes > MAX_MESSAGE {
            let mut rest = (&mut self.wire).take(bytes as u64 + 2);
            let passed =
                tokio::io::copy(&mut rest, &mut tokio::io::sink()).await.map_err(NatsError::Broken)?;
            return if passed == bytes as u64 + 2 {
                Ok(Came { subject, reply, headers: Vec::new(), body: None })
            } else {
                Err(NatsError::Broken(io::ErrorKind::UnexpectedEof.into()))
            };
        }
        let mut head = vec![0; bytes + 2];
        self.wire.read_exact(&mut head).await.map_err(NatsError::Broken)?;
        head.truncate(bytes);
        let body = head.split_off(headers);
        Ok(Came { subject, reply, headers: head, body: Some(body) })
    }
}

/// Returns the server's limit for messages. An attacker can modify the plaintext INFO that precedes TLS, and reports
/// above a small limit would be dropped. For encrypted connections, the limit is therefore at least the default. A
/// server with a lower limit then rejects the message over the encrypted connection.
fn max_payload(info: &Value, is_encrypted: bool) -> u64 {
    let said = info["max_payload"].as_u64().unwrap_or(MAX_PAYLOAD);
    if is_encrypted { said.max(MAX_PAYLOAD) } else { said }
}

fn add_login(path: &Path, words: &mut Value) -> Result<(), NatsError> {
    let failed = |source| NatsError::Login { path: path.to_owned(), source };
    let text = Secret::new(std::fs::read_to_string(path).map_err(failed)?);
    let mut lines = text.expose().lines().map(str::trim).filter(|line| !line.is_empty());
    match (lines.next(), lines.next()) {
        (Some(user), Some(password)) => {
            words["user"] = user.into();
            words["pass"] = password.into();
        }
        (Some(token), None) => words["auth_token"] = token.into(),
        _ => return Err(failed(io::Error::other("it is empty"))),
    }
    Ok(())
}

async fn send(wire: &mut Wire, bytes: &[u8]) -> Result<(), NatsError> {
    let stream = wire.get_mut();
    stream.write_all(bytes).await.map_err(NatsError::Broken)?;
    stream.flush().await.map_err(NatsError::Broken)
}

/// Reads the next line of the server.
async fn listen(wire: &mut Wire) -> Result<Said, NatsError> {
    let mut line = Vec::new();
    let read = wire.take(MAX_LINE).read_until(b'\n', &mut line).await.map_err(NatsError::Broken)?;
    if read == 0 {
        return Err(NatsError::Broken(io::ErrorKind::UnexpectedEof.into()));
    }
    said(&line).ok_or(NatsError::Odd)
}

#[cfg(test)]
pub(crate) mod tests {
    use landfall_testkit::{NatsServer, have};
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;
    use tokio::io::DuplexStream;

    use super::*;

    /// Returns an authenticated connection, and the server's end of it.
    pub(crate) fn pair() -> (Connection, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(4 << 10);
        let wire: Wire = BufReader::new(Box::new(ours));
        let inbox = "_INBOX.x".to_owned();
        (Connection { wire, max_payload: MAX_PAYLOAD, inbox, asked: 0, is_reading: false }, theirs)
    }

    #[test]
    fn on_a_protected_line_nobody_else_makes_messages_small() {
        for (info, on_loopback, encrypted) in [
            (json!({}), MAX_PAYLOAD, MAX_PAYLOAD),
            (json!({"max_payload": -1}), MAX_PAYLOAD, MAX_PAYLOAD),
            (json!({"max_payload": 1}), 1, MAX_PAYLOAD),
            (json!({"max_payload": 8 << 20}), 8 << 20, 8 << 20),
        ] {
            assert_eq!(
                (max_payload(&info, false), max_payload(&info, true)),
                (on_loopback, encrypted),
                "{info}"
            );
        }
    }

    #[tokio::test]
    async fn headers_count() {
        let (mut connection, theirs) = pair();
        drop(theirs);
        let headers = "NATS/1.0\r\nNats-Msg-Id: id\r\n\r\n".len();
        let largest = usize::try_from(MAX_PAYLOAD).unwrap() - headers;
        let refused = connection.publish("s", "id", &vec![b'x'; largest + 1]).await.unwrap_err();
        assert!(matches!(refused, NatsError::TooLarge(bytes) if bytes == largest + 1 + headers), "{refused}");
        let sent = connection.publish("s", "id", &vec![b'x'; largest]).await.unwrap_err();
        assert!(matches!(sent, NatsError::Broken(_)), "{sent}");
    }

    /// Tests that a server or account with a lower limit than announced can disconnect before everything was sent.
    #[tokio::test]
    async fn a_server_that_finds_a_message_too_large_is_believed() {
        let (mut connection, mut theirs) = pair();
        let body = vec![b'x'; 100 << 10];
        let hangs_up = async move {
            theirs.write_all(b"-ERR 'Maximum Payload Violation'\r\n").await.unwrap();
            assert!(theirs.read(&mut [0; 100]).await.unwrap() > 0);
        };
        let (refused, ()) = tokio::join!(connection.publish("s", "id", &body), hangs_up);
        assert!(matches!(refused, Err(NatsError::TooLarge(_))), "{refused:?}");
    }

    /// Tests the error for a single message: smaller ones can still be published.
    #[tokio::test]
    async fn a_stream_that_finds_a_message_too_large_is_believed() {
        let (mut connection, mut theirs) = pair();
        let answers = async move {
            assert!(theirs.read(&mut [0; 100]).await.unwrap() > 0);
            let answer = r#"{"error":{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"},"stream":"R","seq":0}"#;
            let line = format!("MSG _INBOX.x.1 1 {}\r\n{answer}\r\n", answer.len());
            theirs.write_all(line.as_bytes()).await.unwrap();
        };
        let (refused, ()) = tokio::join!(connection.publish("s", "id", b"body"), answers);
        assert!(matches!(refused, Err(NatsError::TooLargeForStream(_))), "{refused:?}");
    }

    /// Tests an announced limit above the server's actual one.
    #[tokio::test]
    async fn the_real_server_tells_that_a_message_is_too_large() {
        if !have(NatsServer::NEEDS) {
            return;
        }
        let server = NatsServer::start().unwrap();
        server.create_stream("R", "reports.>").unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(server.authority()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (place, tls, login) = (server.url().parse().unwrap(), Arc::new(tls), server.login());
        for (bytes, is_taken) in [(1000 << 10, true), (1 << 20, false), (16 << 20, false)] {
            let mut connection = Connection::open(&place, &tls, Some(&login), "test").await.unwrap();
            connection.max_payload = u64::MAX;
            match connection.publish("reports.n1", "id", &vec![b'x'; bytes]).await {
                Ok(()) => assert!(is_taken, "{bytes}"),
                Err(error) => {
                    assert!(!is_taken && matches!(error, NatsError::TooLarge(_)), "{bytes}: {error:?}");
                }
            }
        }
        // The limit of a stream may be below that of its server.
        let mut connection = Connection::open(&place, &tls, Some(&login), "test").await.unwrap();
        let narrow = json!({"name": "N", "subjects": ["narrow.>"], "storage": "file", "max_msg_size": 1000});
        let made = connection.ask("$JS.API.STREAM.CREATE.N", &narrow).await.unwrap();
        assert!(made["error"].is_null(), "{made}");
        connection.publish("narrow.n1", "small", &[b'x'; 500]).await.unwrap();
        let refused = connection.publish("narrow.n1", "large", &[b'x'; 2000]).await;
        assert!(matches!(refused, Err(NatsError::TooLargeForStream(_))), "{refused:?}");
        connection.publish("narrow.n1", "next", &[b'x'; 500]).await.unwrap();
    }

    /// Tests the rest of a message after its reader timed out. Senders control the content of messages, so it must not
    /// be parsed.
    #[tokio::test(start_paused = true)]
    async fn the_rest_of_a_message_is_not_what_a_server_says() {
        let (mut connection, mut theirs) = pair();
        theirs.write_all(b"MSG _INBOX.x.1 1 50\r\nhalf").await.unwrap();
        assert!(tokio::time::timeout(PATIENCE, connection.next()).await.is_err());
        theirs.write_all(b"\r\nMSG _INBOX.x.1 1 forged 0\r\n\r\n").await.unwrap();
        assert!(matches!(connection.next().await, Err(NatsError::GivenUp)));
    }
}
