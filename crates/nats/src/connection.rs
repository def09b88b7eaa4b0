//! A connection: the greeting, the login, and one question at a time.

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

use crate::protocol::{MAX_LINE, Said, acknowledged, said};
use crate::server::Server;

/// From the dial to the login, and from each question to its answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// What a server says before it says what is waited for.
const MAX_SAID: usize = 64;
/// The largest message that is held; larger ones are read over.
const MAX_MESSAGE: usize = 2 << 20;
/// Messages a server takes when it does not say.
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
    #[error("the message is larger than the {0} bytes the NATS server takes")]
    TooLarge(u64),
    #[error("the NATS server did not answer within {} s", .0.as_secs())]
    Late(Duration),
}

/// A connection that is logged in.
#[expect(missing_debug_implementations, reason = "holds a connection")]
pub struct Connection {
    wire: Wire,
    max_payload: u64,
    /// Answers come to subjects below it; nobody else listens there.
    inbox: String,
    /// Questions asked so far: each has a subject of its own for its answer.
    asked: u64,
}

/// A message as it came.
pub(crate) struct Came {
    pub(crate) subject: String,
    pub(crate) reply: Option<String>,
    pub(crate) headers: Vec<u8>,
    /// Nothing when it was too large to be held.
    pub(crate) body: Option<Vec<u8>>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}
type Wire = BufReader<Box<dyn Stream>>;

// === impl Connection ===

impl Connection {
    /// Connects and logs in. The file holds a token on one line, or a user and a password on two.
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
            // Nothing may have been sent in the clear that is read as if it were not.
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
        let inbox: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let inbox = format!("_INBOX.landfall.{inbox}");
        let line = Secret::new(format!("CONNECT {words}\r\nSUB {inbox}.* 1\r\nPING\r\n").into_bytes());
        send(&mut wire, line.expose()).await?;
        let max_payload = info["max_payload"].as_u64().unwrap_or(MAX_PAYLOAD);
        let mut connection = Self { wire, max_payload, inbox, asked: 0 };
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

    /// Publishes under an id, by which a stream knows it when it comes again; done when a stream has said that it is stored.
    pub async fn publish(&mut self, subject: &str, id: &str, body: &[u8]) -> Result<(), NatsError> {
        if body.len() as u64 > self.max_payload {
            return Err(NatsError::TooLarge(self.max_payload));
        }
        let headers = format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n");
        let published = async {
            let reply = self.next_reply();
            let (head, all) = (headers.len(), headers.len() + body.len());
            let mut bytes = format!("HPUB {subject} {reply} {head} {all}\r\n{headers}").into_bytes();
            bytes.extend_from_slice(body);
            bytes.extend_from_slice(b"\r\n");
            send(&mut self.wire, &bytes).await?;
            self.came(&reply).await
        };
        let came = tokio::time::timeout(PATIENCE, published).await;
        let came = came.unwrap_or(Err(NatsError::Late(PATIENCE)))?;
        match acknowledged(&came.headers, &came.body.unwrap_or_default()) {
            Some(Ok(())) => Ok(()),
            Some(Err(words)) => Err(NatsError::Said(words)),
            None => Err(NatsError::NoStream(subject.to_owned())),
        }
    }

    /// Asks JetStream; its answer as JSON, which may be an error of its own.
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

    /// Publishes without being told what became of it.
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

    /// A subject for the next answer.
    pub(crate) fn next_reply(&mut self) -> String {
        self.asked += 1;
        format!("{}.{}", self.inbox, self.asked)
    }

    /// The next message, answered pings aside. The caller has the deadline.
    pub(crate) async fn next(&mut self) -> Result<Came, NatsError> {
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

    /// The answer to this question; late answers to others are passed over.
    async fn came(&mut self, reply: &str) -> Result<Came, NatsError> {
        for _ in 0..MAX_SAID {
            let came = self.next().await?;
            if came.subject == reply {
                return Ok(came);
            }
        }
        Err(NatsError::Odd)
    }

    /// The headers and the body of a message, with the line end behind it.
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

/// The next line of the server.
async fn listen(wire: &mut Wire) -> Result<Said, NatsError> {
    let mut line = Vec::new();
    let read = wire.take(MAX_LINE).read_until(b'\n', &mut line).await.map_err(NatsError::Broken)?;
    if read == 0 {
        return Err(NatsError::Broken(io::ErrorKind::UnexpectedEof.into()));
    }
    said(&line).ok_or(NatsError::Odd)
}
