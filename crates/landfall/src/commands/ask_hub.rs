//! The hub and the credentials for it: arguments that all commands with a hub share.

use std::io;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use landfall_hub::{Client, ClientError};
use landfall_model::Secret;
use landfall_net::http::HttpError;

use crate::exit::{Exit, Failure};

#[derive(Args)]
pub(super) struct AskHub {
    /// The hub's address
    #[arg(long, value_name = "URL", env = "LANDFALL_HUB", default_value = "http://127.0.0.1:8700")]
    hub: String,

    /// The authority that issued the hub's certificate, PEM
    #[arg(long, value_name = "FILE", env = "LANDFALL_HUB_CA")]
    ca: Option<PathBuf>,

    /// A file with a token of a viewer or operator
    #[arg(long, value_name = "FILE", env = "LANDFALL_HUB_TOKEN_FILE")]
    token_file: Option<PathBuf>,

    /// Client certificate of a viewer or operator (PEM)
    #[arg(long, value_name = "FILE", env = "LANDFALL_HUB_CLIENT_CERTIFICATE", requires = "client_key")]
    client_certificate: Option<PathBuf>,

    /// The key of the certificate, PEM
    #[arg(long, value_name = "FILE", env = "LANDFALL_HUB_CLIENT_KEY", requires = "client_certificate")]
    client_key: Option<PathBuf>,
}

// === impl AskHub ===

impl AskHub {
    pub(super) fn client(&self) -> Result<Client, Failure> {
        let token = self.token_file.as_ref().map(|path| {
            let token = std::fs::read_to_string(path).with_context(|| format!("read `{}`", path.display()));
            token.map(Secret::new).map_err(|error| Failure::new(error, "name the file that holds your token"))
        });
        let client = Client::new(&self.hub, self.ca.clone(), token.transpose()?).map_err(explain)?;
        Ok(client.with_certificate(self.client_certificate.clone().zip(self.client_key.clone())))
    }
}

/// A server answers there, but the TLS handshake fails.
fn untrusted(error: &io::Error) -> &'static str {
    if error.to_string().starts_with("invalid peer certificate") {
        "its certificate is not trusted: name the authority that issued it with `--ca`, and the hub by a name that is in it"
    } else {
        "does it speak plain HTTP? name it by `http://`, or by the port that speaks TLS"
    }
}

/// Adds a hint to an error of the hub.
pub(super) fn explain(error: ClientError) -> Failure {
    let (hint, exit) = match &error {
        ClientError::Address(_) => ("name it with `--hub`, such as `http://127.0.0.1:8700`", Exit::Usage),
        ClientError::Clear(_) => ("name the hub by its `https://` address", Exit::Usage),
        ClientError::Tls(_) => (
            "give PEM files: the hub's CA with `--ca`, a matching pair with `--client-certificate` and `--client-key`",
            Exit::Failed,
        ),
        ClientError::Http(HttpError::CertificateRejected { .. }) => {
            ("use an unexpired client certificate issued by the hub's `--client-ca`", Exit::NotPermitted)
        }
        ClientError::Refused { status: 401 | 403, .. } => (
            "name a token of a viewer or operator with `--token-file`, or a certificate with `--client-certificate`",
            Exit::NotPermitted,
        ),
        ClientError::Refused { .. } | ClientError::Http(HttpError::TooLarge { .. }) => {
            ("look into the hub's log", Exit::Failed)
        }
        ClientError::Http(HttpError::Tls { source, .. }) => (untrusted(source), Exit::Unavailable),
        ClientError::Http(HttpError::NotHttp { .. }) => (
            "does it want TLS? name it by its `https://` address, and its authority with `--ca`",
            Exit::Unavailable,
        ),
        ClientError::Http(_) => {
            ("is the hub running? name it with `--hub`, and its authority with `--ca`", Exit::Unavailable)
        }
    };
    Failure::new(error, hint).exit(exit)
}
