use std::path::PathBuf;

use clap::{Args, ValueEnum};
use landfall_agent::carrier::Location;
use landfall_render::agent::{self, Settings};
use landfall_render::carriers::{BootstrapReport, Carriers, Events, Hub, Nats, Neighbour, Objects, Serve};

use super::{Folder, Program, Shape, authority, explain};
use crate::commands::agent_daemon::BUCKET_HINT;
use crate::commands::same_variants;
use crate::exit::{Exit, Failure};

/// Default namespace of a DaemonSet.
const NAMESPACE: &str = "landfall-agent";

/// Node agent, for one of four installation methods
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall render agent --for kubeadm --by image --hub https://hub.corp:8700 -o image
  landfall render agent --for capi --by first-boot --binary-url https://… --binary-sha256 … -o first-boot
  landfall render agent --for openshift --by daemon-set --image registry.example/landfall:0.1.0 -o agent
  landfall render agent --for kubeadm --by image --objects s3://fleet/prod --console /dev/ttyS0 -o image

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

    /// Namespace of the DaemonSet [default: `landfall-agent`]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,

    #[command(flatten)]
    program: Program,

    #[command(flatten)]
    target: Folder,

    #[command(flatten)]
    ways: Ways,
}

/// Where reports go and who may ask: the agent's own options, without the files each machine has for itself.
#[derive(Args)]
#[command(next_help_heading = "Carriers (docs/guides/carriers.md)")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own on the command line")]
struct Ways {
    /// Push reports to this hub: `https://HOST[:PORT]`
    #[arg(long, value_name = "URL")]
    hub: Option<String>,

    /// The authority of the hub's certificate, PEM
    #[arg(long, value_name = "FILE", requires = "hub")]
    hub_ca: Option<PathBuf>,

    /// Each machine has a token for the hub in /etc/landfall/hub.token
    #[arg(long, requires = "hub")]
    hub_token: bool,

    /// Each machine has a certificate for the hub in /etc/landfall/node.crt and node.key
    #[arg(long, requires = "hub")]
    hub_cert: bool,

    /// Put reports into this bucket (`s3://…`, `gs://…`, `az://…`); each machine has the key in /etc/landfall/bucket
    #[arg(long, value_name = "URL")]
    objects: Option<String>,

    /// The authority of the object store's certificate, PEM
    #[arg(long, value_name = "FILE", requires = "objects")]
    objects_ca: Option<PathBuf>,

    /// Send a CloudEvent for each report to this URL
    #[arg(long, value_name = "URL")]
    events: Option<String>,

    /// Each machine has the token for events in /etc/landfall/events.token
    #[arg(long, requires = "events")]
    events_token: bool,

    /// The authority of the receiver's certificate, PEM
    #[arg(long, value_name = "FILE", requires = "events")]
    events_ca: Option<PathBuf>,

    /// Publish reports to JetStream on this NATS server: `tls://HOST[:PORT]`
    #[arg(long, value_name = "URL")]
    nats: Option<String>,

    /// The subject; the node's name is added to it
    #[arg(long, value_name = "SUBJECT", requires = "nats")]
    nats_subject: Option<String>,

    /// Each machine has the login for NATS in /etc/landfall/nats
    #[arg(long, requires = "nats")]
    nats_login: bool,

    /// Each machine has a certificate for NATS in /etc/landfall/node.crt and node.key
    #[arg(long, requires = "nats")]
    nats_cert: bool,

    /// The authority of the NATS server's certificate, PEM
    #[arg(long, value_name = "FILE", requires = "nats")]
    nats_ca: Option<PathBuf>,

    /// Leave the last report with this node's agent; may be repeated; each machine has its certificate in
    /// /etc/landfall/node.crt and node.key
    #[arg(long, value_name = "HOST:PORT", requires = "neighbour_ca")]
    neighbour: Vec<String>,

    /// The authority of the neighbour's certificate, PEM
    #[arg(long, value_name = "FILE", requires = "neighbour")]
    neighbour_ca: Option<PathBuf>,

    /// Write verdicts into this `BootstrapReport` of the management cluster: `NAMESPACE/NAME`; each machine has the token in
    /// /etc/landfall/bootstrap-report.token
    #[arg(long, value_name = "NAMESPACE/NAME", requires_all = ["bootstrap_report_server", "bootstrap_report_ca"])]
    bootstrap_report: Option<String>,

    /// The API server of that cluster: `https://HOST[:PORT]`
    #[arg(long, value_name = "URL", requires = "bootstrap_report")]
    bootstrap_report_server: Option<String>,

    /// The authority of that API server's certificate, PEM
    #[arg(long, value_name = "FILE", requires = "bootstrap_report")]
    bootstrap_report_ca: Option<PathBuf>,

    /// Write reports to this serial console, such as `/dev/ttyS0`
    #[arg(long, value_name = "DEVICE")]
    console: Option<String>,

    /// Let operators ask on `[ADDRESS:]PORT`, 8710 by convention; each machine has a certificate in /etc/landfall/agent.crt and agent.key
    #[arg(long, value_name = "ADDRESS", requires = "serve_client_ca")]
    serve: Option<String>,

    /// The authority whose certificates may ask, PEM
    #[arg(long, value_name = "FILE", requires = "serve")]
    serve_client_ca: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Way {
    /// In the image, switched on by a preset
    Image,
    /// Fetched and verified by the first boot: a snippet of cloud-init, or Ignition (on OpenShift always)
    FirstBoot,
    /// A static pod
    Pod,
    /// A DaemonSet
    DaemonSet,
}

// === impl Agent ===

impl Agent {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        if self.image.is_some() && matches!(self.by, Way::Image | Way::FirstBoot) {
            let error = anyhow::anyhow!("`--image` is for pods, and this agent is a unit of its machine");
            return Err(Failure::usage(error, "leave it out, or choose `--by pod` or `--by daemon-set`"));
        }
        if self.namespace.is_some() && !matches!(self.by, Way::DaemonSet) {
            let error = anyhow::anyhow!("`--namespace` is the DaemonSet's");
            return Err(Failure::usage(error, "leave it out, or choose `--by daemon-set`"));
        }
        let settings = Settings {
            target: self.shape.kind.into(),
            way: self.by.into(),
            carriers: self.ways.carriers()?,
            image: self.image,
            namespace: self.namespace.unwrap_or_else(|| NAMESPACE.to_owned()),
            download: self.program.download(),
        };
        self.target.put(&agent::plan(&settings, self.shape.format.into()).map_err(explain)?)
    }
}

// === impl Ways ===

impl Ways {
    fn carriers(self) -> Result<Carriers, Failure> {
        let pem = |path: Option<PathBuf>| path.as_deref().map(authority).transpose();
        let (hub_ca, events_ca, nats_ca) = (pem(self.hub_ca)?, pem(self.events_ca)?, pem(self.nats_ca)?);
        let (objects_ca, serve_ca) = (pem(self.objects_ca)?, pem(self.serve_client_ca)?);
        let (neighbour_ca, report_ca) = (pem(self.neighbour_ca)?, pem(self.bootstrap_report_ca)?);
        if let Some(url) = &self.objects {
            url.parse::<Location>().map_err(|error| Failure::usage(error, BUCKET_HINT))?;
        }
        Ok(Carriers {
            hub: self.hub.map(|url| Hub {
                url,
                authority: hub_ca,
                token: self.hub_token,
                certificate: self.hub_cert,
            }),
            objects: self.objects.map(|url| Objects { url, authority: objects_ca }),
            events: self.events.map(|url| Events { url, authority: events_ca, token: self.events_token }),
            nats: self.nats.map(|url| Nats {
                url,
                subject: self.nats_subject,
                authority: nats_ca,
                login: self.nats_login,
                certificate: self.nats_cert,
            }),
            neighbour: neighbour_ca
                .filter(|_| !self.neighbour.is_empty())
                .map(|authority| Neighbour { places: self.neighbour, authority }),
            bootstrap_report: self
                .bootstrap_report
                .zip(self.bootstrap_report_server.zip(report_ca))
                .map(|(object, (server, authority))| BootstrapReport { object, server, authority }),
            console: self.console,
            serve: self
                .serve
                .zip(serve_ca)
                .map(|(address, client_authority)| Serve { address, client_authority }),
        })
    }
}

same_variants!(Way => agent::Way { Image, FirstBoot, Pod, DaemonSet });
