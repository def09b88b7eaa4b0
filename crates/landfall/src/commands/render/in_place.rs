use clap::Args;
use landfall_render::in_place::{self, Settings};

use super::{Folder, Shape, explain};
use crate::exit::{Exit, Failure};

/// Re-bootstrapping in place: the DaemonSet that works on labelled nodes, and just the rights it needs
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall render in-place --for openshift --image registry.example/landfall:0.1.0 --node worker-1 --node worker-2 -o in-place
  landfall render in-place --for kubeadm --image … --node worker-1 --format kustomize -o in-place --dry-run")]
pub(super) struct InPlace {
    #[command(flatten)]
    shape: Shape,

    /// The image that holds this program as `/landfall`
    #[arg(long, value_name = "IMAGE")]
    image: String,

    /// A node it is for: rights are given by name; may be repeated
    #[arg(long, value_name = "NAME", required = true)]
    node: Vec<String>,

    #[command(flatten)]
    target: Folder,
}

// === impl InPlace ===

impl InPlace {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        let settings = Settings { target: self.shape.kind.into(), image: self.image, nodes: self.node };
        self.target.put(&in_place::plan(&settings, self.shape.format.into()).map_err(explain)?)
    }
}
