use clap::Args;
use landfall_render::gateway::{self, Settings};

use super::{Folder, Program, Shape, explain, token};
use crate::exit::{Exit, Failure};

/// The gateway: unit, settings and firewall for a control plane host, and who may gather
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall render gateway --for kubeadm -o gateway
  landfall render gateway --for openshift --format ignition --binary-url https://… --binary-sha256 … -o gateway
  landfall render gateway --for kubeadm --allow 10.0.0.0/8 --gatherers support -o gateway --dry-run

docs/guides/render.md says where the files go.")]
pub(super) struct Gateway {
    #[command(flatten)]
    shape: Shape,

    /// API port whose connections are redirected to the gateway while that helps; 0 for none
    #[arg(long, value_name = "PORT", default_value_t = 6443)]
    redirect: u16,

    /// Only let clients of this network to the gateway; may be repeated
    #[arg(long, value_name = "NETWORK")]
    allow: Vec<String>,

    /// Let members of this group gather
    #[arg(long, value_name = "GROUP")]
    gatherers: Option<String>,

    #[command(flatten)]
    program: Program,

    #[command(flatten)]
    target: Folder,
}

// === impl Gateway ===

impl Gateway {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        let settings = Settings {
            target: self.shape.kind.into(),
            redirect: (self.redirect != 0).then_some(self.redirect),
            networks: self.allow,
            gatherers: self.gatherers,
            token: token()?,
            download: self.program.download(),
        };
        self.target.put(&gateway::plan(&settings, self.shape.format.into()).map_err(explain)?)
    }
}
