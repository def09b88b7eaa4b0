use clap::Args;
use landfall_render::authority;
use landfall_render::hub::{self, Settings};

use super::{Certificates, Folder, Program, RunAs, Shape, explain, token};
use crate::exit::{Exit, Failure};

/// The hub: a unit for a machine, or a StatefulSet, with its certificate and the key of its tokens
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall render hub --for kubeadm --server hub.corp -o hub
  landfall render hub --for openshift --run-as pod --image registry.example/landfall:0.1.0 --server hub.corp -o hub")]
pub(super) struct Hub {
    #[command(flatten)]
    shape: Shape,

    /// A name or address the hub is reached at; may be repeated
    #[arg(long, value_name = "HOST", required = true)]
    server: Vec<String>,

    /// How the hub runs
    #[arg(long, value_enum, default_value_t = RunAs::Unit)]
    run_as: RunAs,

    /// The image that holds this program as `/landfall`, for a pod
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,

    /// Namespace of the pod
    #[arg(long, value_name = "NAME", default_value = "landfall-hub")]
    namespace: String,

    #[command(flatten)]
    program: Program,

    #[command(flatten)]
    certificates: Certificates,

    #[command(flatten)]
    target: Folder,
}

// === impl Hub ===

impl Hub {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        let settings = Settings {
            target: self.shape.kind.into(),
            run_as: self.run_as.into(),
            names: self.server,
            namespace: self.namespace,
            image: self.image,
            download: self.program.download(),
        };
        let Certificates { ca, days } = self.certificates;
        let signer = authority(ca.as_deref(), days).map_err(explain)?;
        let made = hub::credentials(&signer, &settings, token()?, days).map_err(explain)?;
        self.target.put(&hub::plan(&settings, &made, self.shape.format.into()).map_err(explain)?)
    }
}
