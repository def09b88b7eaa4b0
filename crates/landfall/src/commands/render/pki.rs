use clap::Args;
use landfall_render::{authority, credentials, pki};

use super::{Certificates, Folder, explain};
use crate::exit::{Exit, Failure};

/// One bootstrap authority, and certificates for the tunnel's server and agents
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall render pki --server 10.0.0.5 --server bootstrap.example.org -o pki
  landfall render pki --server 10.0.0.5 --ca pki -o renewed")]
pub(super) struct Pki {
    /// An address or name agents reach the tunnel server at; may be repeated
    #[arg(long, value_name = "HOST", required = true)]
    server: Vec<String>,

    #[command(flatten)]
    certificates: Certificates,

    #[command(flatten)]
    target: Folder,
}

// === impl Pki ===

impl Pki {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        let Certificates { ca, days } = &self.certificates;
        let signer = authority(ca.as_deref(), *days).map_err(explain)?;
        let made = credentials(&signer, &self.server, *days).map_err(explain)?;
        self.target.put(&pki(&signer, &made, ca.is_none()))
    }
}
