use std::path::PathBuf;

use clap::Args;
use landfall_render::{Identity, RenderError, credentials, leaves, pki};

use super::{Certificates, Folder, authority, explain};
use crate::exit::{Exit, Failure};

/// Bootstrap CA, and certificates for a single purpose each
///
/// `--server` makes those of the tunnel's two ends. `--leaf` makes others, in a folder of the name:
/// `agent=NAME[,HOST…]` for `landfall agent --serve`, with the names and addresses of its port;
/// `node=NAME` for what a node says (`O=system:nodes`, `CN=system:node:NAME`);
/// `operator=NAME` and `viewer=NAME` for those who ask (`O=landfall:operators`, `O=landfall:viewers`).
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall render pki --server 10.0.0.5 --server bootstrap.example.org -o pki
  landfall render pki --leaf agent=n1.corp,10.0.0.4 --leaf node=n1.corp --leaf operator=ann --leaf viewer=hub -o pki
  landfall render pki --server 10.0.0.5 --ca pki -o renewed
  landfall render pki --server 10.0.0.5 --add-ca pki/ca.crt -o next")]
pub(super) struct Pki {
    /// An address or name agents reach the tunnel server at; may be repeated
    #[arg(long, value_name = "HOST", required_unless_present = "leaf")]
    server: Vec<String>,

    /// A certificate for one purpose; may be repeated
    #[arg(long, value_name = "ROLE=NAME")]
    leaf: Vec<String>,

    /// Trust the authorities in this file as well, PEM: `ca.crt` then holds them behind the new one; may be repeated
    #[arg(long, value_name = "FILE")]
    add_ca: Vec<PathBuf>,

    #[command(flatten)]
    certificates: Certificates,

    #[command(flatten)]
    target: Folder,
}

// === impl Pki ===

impl Pki {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        let identities: Result<Vec<_>, _> = self.leaf.iter().map(|text| Identity::parse(text)).collect();
        let identities = identities.map_err(explain)?;
        let Certificates { ca, days } = &self.certificates;
        let mut signer = landfall_render::authority(ca.as_deref(), *days).map_err(explain)?;
        for path in &self.add_ca {
            signer = signer.beside(&authority(path)?).map_err(|error| explain(RenderError::Pki(error)))?;
        }
        let tunnel = (!self.server.is_empty()).then(|| credentials(&signer, &self.server, *days));
        let tunnel = tunnel.transpose().map_err(explain)?;
        let leaves = leaves(&signer, &identities, *days).map_err(explain)?;
        self.target.put(&pki(&signer, tunnel.as_ref(), &leaves, ca.is_none()))
    }
}
