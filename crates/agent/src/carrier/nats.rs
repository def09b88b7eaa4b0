//! NATS JetStream: each report is published under its id, so that a stream keeps one of it however often it comes, and
//! counts as brought when the stream has said that it is stored.

mod protocol;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use landfall_model::Secret;
use landfall_model::envelope::{Envelope, ReportId};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;

use self::protocol::{MAX_LINE, Said, acknowledged, said};
use super::hub::{HubError, tls};
use super::{Carrier, CarryError, NetworkError, node_name, runtime};

/// From the dial to the stream's word.
const PATIENCE: Duration = Duration::from_secs(20);
const PORT: u16 = 4222;
/// An acknowledgement is a line of JSON.
const MAX_ACKNOWLEDGEMENT: usize = 64 << 10;
/// What a server says before it says what is waited for.
const MAX_SAID: usize = 64;

/// A NATS server with JetStream.
#[expect(missing_debug_implementations, reason = "leads to credentials")]
pub struct Nats {
    host: String,
    port: u16,
    encrypted: bool,
    tls: Arc<ClientConfig>,
    subject: String,
    /// Read at each use. One line: a token. Two lines: a user and a password.
    login: Option<PathBuf>,
    runtime: Runtime,
}

#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    #[error("`{0}` is no address of a NATS server: `tls://HOST[:PORT]`, or `nats://` to this machine itself")]
    Address(String),
    #[error("`{0}` is no subject: names of letters, digits, `-` and `_`, with dots between them")]
    Subject(String),
    #[error("cannot use the TLS files")]
    Tls(#[source] HubError),
    #[error("cannot prepare the network")]
    Network(#[source] NetworkError),
}

#[derive(Debug, thiserror::Error)]
enum PublishError {
    #[error("cannot reach the NATS server at {host}:{port}")]
    Reach {
        host: String,
        port: u16,
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
    #[error("the report is larger than the {0} bytes the NATS server takes")]
    TooLarge(u64),
    #[error("the NATS server did not answer within {} s", PATIENCE.as_secs())]
    Late,
}

/// What a server says about itself.
struct Info {
    encrypts: bool,
    max_payload: u64,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}
type Wire = BufReader<Box<dyn Stream>>;

// === impl Nats ===

impl Nats {
    /// Publishes below `subject`, under the node's name.
    pub fn new(
        address: &str,
        subject: &str,
        authority: Option<&Path>,
        certificate: Option<(&Path, &Path)>,
        login: Option<PathBuf>,
    ) -> Result<Self, NatsError> {
        let invalid = || NatsError::Address(address.to_owned());
        let (scheme, place) = address.split_once("://").ok_or_else(invalid)?;
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| invalid())?),
            _ => (place, PORT),
        };
        let host = host.trim_matches(['[', ']']).to_owned();
        let encrypted = match scheme {
            "tls" => true,
            // A password in the clear is anybody's.
            "nats" if ["localhost", "127.0.0.1", "::1"].contains(&host.as_str()) => false,
            _ => return Err(invalid()),
        };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let good = |part: &str| !part.is_empty() && part.bytes().all(plain);
        if host.is_empty() || !subject.split('.').all(good) {
            return Err(if host.is_empty() { invalid() } else { NatsError::Subject(subject.to_owned()) });
        }
        let tls = Arc::new(tls(authority, certificate).map_err(NatsError::Tls)?);
        let runtime = runtime().map_err(NatsError::Network)?;
        Ok(Self { host, port, encrypted, tls, subject: subject.to_owned(), login, runtime })
    }

    async fn publish(&self, id: ReportId, envelope: &[u8]) -> Result<(), PublishError> {
        let (mut wire, info) = self.connect().await?;
        if envelope.len() as u64 > info.max_payload {
            return Err(PublishError::TooLarge(info.max_payload));
        }
        let subject = self.subject_of(envelope);
        // One inbox a connection; nobody else listens there.
        let inbox = format!("_INBOX.landfall.{}", id.to_string().replace('-', ""));
        let headers = format!("NATS/1.0\r\nNats-Msg-Id: {id}\r\n\r\n");
        let mut bytes = format!(
            "SUB {inbox} 1\r\nHPUB {subject} {inbox} {} {}\r\n{headers}",
            headers.len(),
            headers.len() + envelope.len()
        )
        .into_bytes();
        bytes.extend_from_slice(envelope);
        bytes.extend_from_slice(b"\r\n");
        send(&mut wire, &bytes).await?;
        for _ in 0..MAX_SAID {
            match listen(&mut wire).await? {
                Said::Ping => send(&mut wire, b"PONG\r\n").await?,
                Said::Message { headers, bytes } => {
                    let payload = payload(&mut wire, headers, bytes).await?;
                    return match acknowledged(&payload.0, &payload.1) {
                        Some(Ok(())) => Ok(()),
                        Some(Err(words)) => Err(PublishError::Said(words)),
                        None => Err(PublishError::NoStream(subject)),
                    };
                }
                Said::Error(words) => return Err(PublishError::Said(words)),
                Said::Pong | Said::Info(_) | Said::Fine => {}
            }
        }
        Err(PublishError::Odd)
    }

    /// Connects and logs in.
    async fn connect(&self) -> Result<(Wire, Info), PublishError> {
        let reach = |source| PublishError::Reach { host: self.host.clone(), port: self.port, source };
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(reach)?;
        let mut wire: Wire = BufReader::new(Box::new(stream));
        let Said::Info(info) = listen(&mut wire).await? else { return Err(PublishError::Odd) };
        let info = Info {
            encrypts: ["tls_required", "tls_available"].iter().any(|key| info[*key] == true),
            max_payload: info["max_payload"].as_u64().unwrap_or(1 << 20),
        };
        if self.encrypted {
            // Nothing may have been sent in the clear that is read as if it were not.
            if !info.encrypts || !wire.buffer().is_empty() {
                return Err(PublishError::Said("it does not encrypt".to_owned()));
            }
            let name =
                ServerName::try_from(self.host.clone()).map_err(|error| reach(io::Error::other(error)))?;
            let connector = TlsConnector::from(Arc::clone(&self.tls));
            let stream = connector.connect(name, wire.into_inner()).await.map_err(reach)?;
            wire = BufReader::new(Box::new(stream));
        }
        let mut login = json!({
            "verbose": false, "pedantic": false, "headers": true, "no_responders": true, "lang": "rust",
            "version": env!("CARGO_PKG_VERSION"), "name": "landfall-agent", "protocol": 1,
        });
        self.add_login(&mut login)?;
        let line = Secret::new(format!("CONNECT {login}\r\nPING\r\n").into_bytes());
        send(&mut wire, line.expose()).await?;
        for _ in 0..MAX_SAID {
            match listen(&mut wire).await? {
                Said::Pong => return Ok((wire, info)),
                Said::Error(words) => return Err(PublishError::Said(words)),
                Said::Ping => send(&mut wire, b"PONG\r\n").await?,
                Said::Info(_) | Said::Fine => {}
                Said::Message { .. } => return Err(PublishError::Odd),
            }
        }
        Err(PublishError::Odd)
    }

    fn add_login(&self, login: &mut Value) -> Result<(), PublishError> {
        let Some(path) = &self.login else { return Ok(()) };
        let failed = |source| PublishError::Login { path: path.clone(), source };
        let text = Secret::new(std::fs::read_to_string(path).map_err(failed)?);
        let mut lines = text.expose().lines().map(str::trim).filter(|line| !line.is_empty());
        match (lines.next(), lines.next()) {
            (Some(user), Some(password)) => {
                login["user"] = user.into();
                login["pass"] = password.into();
            }
            (Some(token), None) => login["auth_token"] = token.into(),
            _ => return Err(failed(io::Error::other("it is empty"))),
        }
        Ok(())
    }

    /// Below our subject, by the node's name: readers choose.
    fn subject_of(&self, envelope: &[u8]) -> String {
        let node = serde_json::from_slice::<Envelope>(envelope).map(|envelope| node_name(&envelope));
        format!("{}.{}", self.subject, node.unwrap_or_default().replace('.', "_"))
    }
}

impl Carrier for Nats {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn carry(&mut self, id: ReportId, envelope: &[u8]) -> Result<(), CarryError> {
        let published = async { tokio::time::timeout(PATIENCE, self.publish(id, envelope)).await };
        match self.runtime.block_on(published) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error @ PublishError::TooLarge(_))) => Err(CarryError::Never(Box::new(error))),
            Ok(Err(error)) => Err(CarryError::Later(Box::new(error))),
            Err(_) => Err(CarryError::Later(Box::new(PublishError::Late))),
        }
    }
}

async fn send(wire: &mut Wire, bytes: &[u8]) -> Result<(), PublishError> {
    let stream = wire.get_mut();
    stream.write_all(bytes).await.map_err(PublishError::Broken)?;
    stream.flush().await.map_err(PublishError::Broken)
}

/// The next line of the server.
async fn listen(wire: &mut Wire) -> Result<Said, PublishError> {
    let mut line = Vec::new();
    let read = wire.take(MAX_LINE).read_until(b'\n', &mut line).await.map_err(PublishError::Broken)?;
    if read == 0 {
        return Err(PublishError::Broken(io::ErrorKind::UnexpectedEof.into()));
    }
    said(&line).ok_or(PublishError::Odd)
}

/// The headers and the body of a message, with the line end behind it.
async fn payload(wire: &mut Wire, headers: usize, bytes: usize) -> Result<(Vec<u8>, Vec<u8>), PublishError> {
    if bytes > MAX_ACKNOWLEDGEMENT {
        return Err(PublishError::Odd);
    }
    let mut head = vec![0; bytes + 2];
    wire.read_exact(&mut head).await.map_err(PublishError::Broken)?;
    head.truncate(bytes);
    let body = head.split_off(headers);
    Ok((head, body))
}
