//! NATS JetStream: each report is published under its id, so that a stream keeps one of it however often it comes, and
//! counts as brought when the stream has said that it is stored.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use landfall_model::envelope::{Envelope, ReportId};
use landfall_nats::{Connection, InvalidServer, NatsError, Server, is_subject};
use landfall_wire::{Live, TlsError};
use rustls::ClientConfig;
use tokio::runtime::Runtime;

use super::line::tls;
use super::{Carrier, CarryError, NetworkError, node_name, runtime};

/// A NATS server with JetStream.
#[expect(missing_debug_implementations, reason = "leads to credentials")]
pub struct Nats {
    server: Server,
    tls: Arc<Live<ClientConfig>>,
    subject: String,
    /// Read at each use. One line: a token. Two lines: a user and a password.
    login: Option<PathBuf>,
    runtime: Runtime,
}

#[derive(Debug, thiserror::Error)]
pub enum NatsWayError {
    #[error("cannot find the server")]
    Server(#[source] InvalidServer),
    #[error("`{0}` is no subject: names of letters, digits, `-` and `_`, with dots between them")]
    Subject(String),
    #[error("cannot use the TLS files")]
    Tls(#[source] TlsError),
    #[error("cannot prepare the network")]
    Network(#[source] NetworkError),
}

// === impl Nats ===

impl Nats {
    /// Publishes below `subject`, under the node's name.
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
        let tls = tls(authority, certificate).map_err(NatsWayError::Tls)?;
        let runtime = runtime().map_err(NatsWayError::Network)?;
        Ok(Self { server, tls, subject: subject.to_owned(), login, runtime })
    }

    async fn publish(&self, id: ReportId, envelope: &[u8]) -> Result<(), NatsError> {
        self.tls.reload();
        let login = self.login.as_deref();
        let mut connection = Connection::open(&self.server, &self.tls.get(), login, "landfall-agent").await?;
        connection.publish(&self.subject_of(envelope), &id.to_string(), envelope).await
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
        self.runtime.block_on(self.publish(id, envelope)).map_err(|error| match error {
            NatsError::TooLarge(_) => CarryError::Never(Box::new(error)),
            error => CarryError::Later(Box::new(error)),
        })
    }
}
