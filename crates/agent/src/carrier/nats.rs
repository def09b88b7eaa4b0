//! A carrier to NATS JetStream.
//!
//! Each report is published under its ID, so that the stream stores it once however often it is sent. It
//! counts as delivered when the stream has acknowledged that it is stored.

use std::path::{Path, PathBuf};

use landfall_model::envelope::ReportId;
use landfall_net::TlsError;
use landfall_net::nats::{Connection, InvalidServer, NatsError, Server, is_subject};
use tokio::runtime::Runtime;

use super::line::Tls;
use super::{Carrier, CarryError, NetworkError, message, node_name, runtime};

/// A carrier to a NATS server with JetStream.
#[expect(missing_debug_implementations, reason = "leads to credentials")]
pub struct Nats {
    server: Server,
    tls: Tls,
    subject: String,
    /// Read for each connection. One line is a token; two lines are a user and a password.
    login: Option<PathBuf>,
    runtime: Runtime,
}

#[derive(Debug, thiserror::Error)]
pub enum NatsWayError {
    #[error("cannot find the server")]
    Server(#[source] InvalidServer),
    #[error("invalid subject `{0}`: must be names of letters, digits, `-` and `_`, separated by dots")]
    Subject(String),
    #[error("cannot prepare the network")]
    Network(#[source] NetworkError),
}

#[derive(Debug, thiserror::Error)]
enum PublishError {
    #[error("cannot use the TLS files for NATS")]
    Tls(#[source] TlsError),
    #[error(transparent)]
    Nats(NatsError),
}

// === impl Nats ===

impl Nats {
    /// Creates a carrier that publishes below `subject`, under the node's name.
    pub fn new(
        address: &str,
        subject: &str,
        authority: Option<&Path>,
        certificate: Option<(&Path, &Path)>,
        login: Option<PathBuf>,
    ) -> Result<Self, NatsWayError> {
        let server = address.parse().map_err(NatsWayError::Server)?;
        if !is_subject(subject) {
            return Err(NatsWayError::Subject(subject.to_owned()));
        }
        let tls = Tls::new(authority, certificate);
        let runtime = runtime().map_err(NatsWayError::Network)?;
        Ok(Self { server, tls, subject: subject.to_owned(), login, runtime })
    }

    async fn publish(&self, id: ReportId, envelope: &[u8]) -> Result<(), PublishError> {
        let tls = self.tls.current().map_err(PublishError::Tls)?;
        let login = self.login.as_deref();
        let connection = Connection::open(&self.server, &tls, login, "landfall-agent").await;
        let mut connection = connection.map_err(PublishError::Nats)?;
        let published = connection.publish(&self.subject_of(envelope), &id.to_string(), envelope).await;
        published.map_err(PublishError::Nats)
    }

    /// Returns the subject for the envelope's node, so that subscribers can select nodes.
    fn subject_of(&self, envelope: &[u8]) -> String {
        let node = message(envelope).map(|message| node_name(&message));
        format!("{}.{}", self.subject, node.unwrap_or_default().replace('.', "_"))
    }
}

impl Carrier for Nats {
    fn name(&self) -> &'static str {
        "nats"
    }

    fn carry(&mut self, id: ReportId, envelope: &[u8]) -> Result<(), CarryError> {
        self.runtime.block_on(self.publish(id, envelope)).map_err(|error| match error {
            PublishError::Nats(NatsError::TooLarge(_) | NatsError::TooLargeForStream(_)) => {
                CarryError::Never(Box::new(error))
            }
            error => CarryError::Later(Box::new(error)),
        })
    }
}
