use clap::Args;
use landfall_render::in_place::{self, Settings};

use super::{Folder, Format, Kind, explain};
use crate::exit::{Exit, Failure};

/// Re-bootstrapping in place: the DaemonSet that works on labelled nodes, and just the rights it needs
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall render in-place --for openshift --image registry.example/landfall:0.1.0 --node worker-1 --node worker-2 -o in-place
  landfall render in-place --for kubeadm --image … --node worker-1 --format kustomize -o in-place --dry-run")]
pub(super) struct InPlace {
    /// The kind of cluster
    #[arg(long = "for", value_name = "KIND", value_enum)]
    kind: Kind,

    /// The image that holds this program as `/landfall`
    #[arg(long, value_name = "IMAGE")]
    image: String,

    /// A node it is for: rights are given by name; may be repeated
    #[arg(long, value_name = "NAME", required = true)]
    node: Vec<String>,

    /// How the files are wrapped
    #[arg(long, value_enum, default_value_t = Format::Yaml)]
    format: Format,

    #[command(flatten)]
    target: Folder,
}

// === impl InPlace ===

impl InPlace {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        let settings = Settings { target: self.kind.into(), image: self.image, nodes: self.node };
        self.target.put(&in_place::plan(&settings, self.format.into()).map_err(explain)?)
    }
}
