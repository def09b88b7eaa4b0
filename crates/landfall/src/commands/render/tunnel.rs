use clap::Args;
use landfall_render::tunnel::{self, Settings};
use landfall_render::{Completion, RenderError, authority, credentials, script};

use super::{Certificates, Folder, Format, Program, RunAs, Shape, explain};
use crate::exit::{Exit, Failure};
use crate::output;

/// Value in place of an address: the host determines it.
const AUTO: &str = "auto";

/// The tunnel: server and egress configuration for the bootstrap host, agents for the cluster
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall render tunnel --for openshift --server 10.0.0.5 --image registry.example/landfall:0.1.0 -o tunnel
  landfall render tunnel --for openshift --server auto --image … --format ignition -o tunnel
  landfall render tunnel --for kubeadm --server 10.0.0.5 --image … --format kustomize -o tunnel --dry-run
  landfall render tunnel --for kubeadm --server 10.0.0.5 --image … --teardown
  landfall render tunnel --for kubeadm --server 10.0.0.5 --image … --complete-when config-map -o tunnel

docs/guides/render.md says where the files go.")]
pub(super) struct Tunnel {
    #[command(flatten)]
    shape: Shape,

    /// The address or name at which nodes reach the bootstrap host. `auto`: the host finds its own address and makes its
    /// certificates (only OpenShift) [default with `--format installer`: `auto`]
    #[arg(long, value_name = "HOST")]
    server: Option<String>,

    /// The image that holds this program as `/landfall`
    #[arg(long, value_name = "IMAGE")]
    image: String,

    /// How the server runs [default: `unit` on k3s, else `pod`]
    #[arg(long, value_enum)]
    run_as: Option<RunAs>,

    /// Namespace of the agents
    #[arg(long, value_name = "NAME", default_value = "landfall-bootstrap")]
    namespace: String,

    /// Port for agents
    #[arg(long, value_name = "PORT", default_value_t = 8091)]
    agent_port: u16,

    /// Print the script that removes everything, in order, and exit
    #[arg(long, conflicts_with_all = ["output", "dry_run", "force"])]
    teardown: bool,

    /// Signal that the bootstrap is complete and the tunnel can be removed: `config-map`, `event` or `marker`, each also with
    /// its place as `=NAMESPACE/NAME` or `=PATH`. A service on the host waits for it, and so does the script
    #[arg(long, value_name = "WHAT")]
    complete_when: Option<String>,

    #[command(flatten)]
    program: Program,

    #[command(flatten)]
    certificates: Certificates,

    #[command(flatten)]
    target: Folder,
}

// === impl Tunnel ===

impl Tunnel {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        let mut settings = Settings::new(self.shape.kind.into(), "", self.image);
        let own_address = match &self.server {
            Some(server) => server == AUTO,
            None => matches!(self.shape.format, Format::Installer),
        };
        settings.server = self.server.filter(|_| !own_address);
        settings.namespace = self.namespace;
        settings.agent_port = self.agent_port;
        settings.run_as = self.run_as.map_or(settings.run_as, Into::into);
        let completion = self.complete_when.map(|text| Completion::parse(&text, settings.target));
        settings.completion = completion.transpose().map_err(explain)?;
        settings.download = self.program.download();
        settings.check().map_err(explain)?;
        if self.teardown {
            output::print(&script(&settings))?;
            return Ok(Exit::Done);
        }
        let Certificates { ca, days } = self.certificates;
        let format = self.shape.format.into();
        if own_address {
            if ca.is_some() {
                return Err(explain(RenderError::OwnAuthority));
            }
            return self.target.put(&tunnel::plan_of_own_address(&settings, days, format).map_err(explain)?);
        }
        let signer = authority(ca.as_deref(), days).map_err(explain)?;
        let made = credentials(&signer, settings.server.as_slice(), days).map_err(explain)?;
        self.target.put(&tunnel::plan(&settings, &made, format).map_err(explain)?)
    }
}
