use std::path::PathBuf;

use clap::{Args, ValueEnum};
use landfall_render::agent::{self, Hub, Settings};

use super::{Folder, Program, Shape, explain, read};
use crate::exit::{Exit, Failure};

/// The node agent, by one of the four ways it comes to a machine
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall render agent --for kubeadm --by image --hub https://hub.corp:8700 -o image
  landfall render agent --for capi --by first-boot --binary-url https://… --binary-sha256 … -o first-boot
  landfall render agent --for openshift --by daemon-set --image registry.example/landfall:0.1.0 -o agent

docs/guides/render.md says where the files go.")]
pub(super) struct Agent {
    #[command(flatten)]
    shape: Shape,

    /// How the agent comes to the machine
    #[arg(long, value_enum)]
    by: Way,

    /// The image that holds this program as `/landfall`, for pods
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,

    /// The hub reports go to
    #[arg(long, value_name = "URL")]
    hub: Option<String>,

    /// The authority of the hub's certificate, PEM
    #[arg(long, value_name = "FILE", requires = "hub")]
    hub_ca: Option<PathBuf>,

    /// Each machine has a token for the hub in /etc/landfall/hub.token
    #[arg(long, requires = "hub")]
    hub_token: bool,

    /// Namespace of the DaemonSet
    #[arg(long, value_name = "NAME", default_value = "landfall-agent")]
    namespace: String,

    #[command(flatten)]
    program: Program,

    #[command(flatten)]
    target: Folder,
}

#[derive(Clone, Copy, ValueEnum)]
enum Way {
    /// In the image, switched on by a preset
    Image,
    /// Fetched and verified by the first boot: a snippet of cloud-init, or Ignition
    FirstBoot,
    /// A static pod
    Pod,
    /// A DaemonSet
    DaemonSet,
}

// === impl Agent ===

impl Agent {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        let authority = self.hub_ca.as_deref().map(read).transpose()?;
        let token = self.hub_token;
        let settings = Settings {
            target: self.shape.kind.into(),
            way: self.by.into(),
            hub: self.hub.map(|url| Hub { url, authority, token }),
            image: self.image,
            namespace: self.namespace,
            download: self.program.download(),
        };
        self.target.put(&agent::plan(&settings, self.shape.format.into()).map_err(explain)?)
    }
}

// === impl Way ===

impl From<Way> for agent::Way {
    fn from(way: Way) -> Self {
        match way {
            Way::Image => Self::Image,
            Way::FirstBoot => Self::FirstBoot,
            Way::Pod => Self::Pod,
            Way::DaemonSet => Self::DaemonSet,
        }
    }
}
