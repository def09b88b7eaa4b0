use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use landfall_render::tunnel::{self, Settings};
use landfall_render::{Plan, RenderError, authority, credentials, pki, script};

use crate::exit::{Exit, Failure};
use crate::output;

/// Write the files a bootstrap plane is installed from
#[derive(Args)]
pub(crate) struct Render {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Pki(Pki),
    Tunnel(Tunnel),
}

/// One bootstrap authority, and certificates for the tunnel's server and agents
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall render pki --server 10.0.0.5 --server bootstrap.example.org -o pki
  landfall render pki --server 10.0.0.5 --ca pki -o renewed")]
struct Pki {
    /// An address or name agents reach the tunnel server at; may be repeated
    #[arg(long, value_name = "HOST", required = true)]
    server: Vec<String>,

    #[command(flatten)]
    certificates: Certificates,

    #[command(flatten)]
    target: Folder,
}

/// The tunnel: server and egress configuration for the bootstrap host, agents for the cluster
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall render tunnel --for openshift --server 10.0.0.5 --image registry.example/landfall:0.1.0 -o tunnel
  landfall render tunnel --for kubeadm --server 10.0.0.5 --image … --format kustomize -o tunnel --dry-run
  landfall render tunnel --for kubeadm --server 10.0.0.5 --image … --teardown

docs/guides/render.md says where the files go.")]
struct Tunnel {
    /// The kind of bootstrap host
    #[arg(long = "for", value_name = "KIND", value_enum)]
    kind: Kind,

    /// The address or name at which nodes reach the bootstrap host
    #[arg(long, value_name = "HOST")]
    server: String,

    /// The image that holds this program as `/landfall`
    #[arg(long, value_name = "IMAGE")]
    image: String,

    /// How the server runs [default: `unit` on k3s, else `pod`]
    #[arg(long, value_enum)]
    run_as: Option<RunAs>,

    /// How the files are wrapped
    #[arg(long, value_enum, default_value_t = Format::Yaml)]
    format: Format,

    /// Namespace of the agents
    #[arg(long, value_name = "NAME", default_value = "landfall-bootstrap")]
    namespace: String,

    /// Port for agents
    #[arg(long, value_name = "PORT", default_value_t = 8091)]
    agent_port: u16,

    /// Print the script that takes everything away again, in order, and end
    #[arg(long)]
    teardown: bool,

    #[command(flatten)]
    certificates: Certificates,

    #[command(flatten)]
    target: Folder,
}

#[derive(Args)]
struct Certificates {
    /// A folder with `ca.crt` and `ca.key` to sign with [default: a new authority]
    #[arg(long, value_name = "DIR")]
    ca: Option<PathBuf>,

    /// How many days certificates are good
    #[arg(long, value_name = "DAYS", default_value_t = 7)]
    days: u32,
}

#[derive(Args)]
struct Folder {
    /// The folder to write to
    #[arg(short, long, value_name = "DIR", default_value = ".")]
    output: PathBuf,

    /// Print what would be written, without secrets
    #[arg(long)]
    dry_run: bool,

    /// Replace files that are there already
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// The bootstrap machine of `openshift-install`
    Openshift,
    /// A control plane of kubeadm
    Kubeadm,
    /// A server of k3s
    K3s,
}

#[derive(Clone, Copy, ValueEnum)]
enum RunAs {
    /// A static pod
    Pod,
    /// A unit of systemd
    Unit,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// Files by their place on the host, and manifests
    Yaml,
    /// The same, with a kustomize base
    Kustomize,
    /// One Ignition configuration for the host
    Ignition,
    /// Files by their place on the host, and a Helm chart
    Helm,
}

// === impl Render ===

impl Render {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        match self.what {
            What::Pki(pki) => pki.run(),
            What::Tunnel(tunnel) => tunnel.run(),
        }
    }
}

// === impl Pki ===

impl Pki {
    fn run(self) -> Result<Exit, Failure> {
        let Certificates { ca, days } = &self.certificates;
        let signer = authority(ca.as_deref(), *days).map_err(explain)?;
        let made = credentials(&signer, &self.server, *days).map_err(explain)?;
        self.target.put(&pki(&signer, &made, ca.is_none()))
    }
}

// === impl Tunnel ===

impl Tunnel {
    fn run(self) -> Result<Exit, Failure> {
        let mut settings = Settings::new(self.kind.into(), self.server, self.image);
        settings.namespace = self.namespace;
        settings.agent_port = self.agent_port;
        settings.run_as = self.run_as.map_or(settings.run_as, Into::into);
        settings.check().map_err(explain)?;
        if self.teardown {
            output::print(&script(&settings))?;
            return Ok(Exit::Done);
        }
        let Certificates { ca, days } = self.certificates;
        let signer = authority(ca.as_deref(), days).map_err(explain)?;
        let made = credentials(&signer, std::slice::from_ref(&settings.server), days).map_err(explain)?;
        self.target.put(&tunnel::plan(&settings, &made, self.format.into()).map_err(explain)?)
    }
}

// === impl Folder ===

impl Folder {
    fn put(&self, plan: &Plan) -> Result<Exit, Failure> {
        let folder = &self.output;
        if self.dry_run {
            output::print(&plan.show())?;
            return Ok(Exit::Done);
        }
        plan.write(folder, self.force).map_err(explain)?;
        let names: String =
            plan.files.iter().map(|file| format!("{}\n", folder.join(&file.path).display())).collect();
        output::print(&names)?;
        Ok(Exit::Done)
    }
}

fn explain(error: RenderError) -> Failure {
    match &error {
        RenderError::Namespace { .. } => {
            Failure::usage(error, "at most 63 lower case letters, digits and `-` inside")
        }
        RenderError::Image { .. } => Failure::usage(error, "such as `registry.example/landfall:0.1.0`"),
        RenderError::Address { .. } => {
            Failure::usage(error, "an address such as `10.0.0.5`, or a name in lower case")
        }
        RenderError::Days { .. } => Failure::usage(error, "choose 1 to 365 with `--days`"),
        RenderError::Ports { .. } => Failure::usage(error, "8092 and 8095 are taken; choose another port"),
        RenderError::Expired { .. } => Failure::new(error, "leave out `--ca` to have a new authority made"),
        RenderError::Read { .. } => {
            Failure::new(error, "`--ca` needs a folder with `ca.crt` and `ca.key` that you may read")
        }
        RenderError::Pki(_) => Failure::new(error, "check `--server` and the files in `--ca`"),
        RenderError::Exists { .. } => {
            Failure::new(error, "choose another folder, or replace files with `--force`")
        }
        RenderError::Folder { .. } | RenderError::Write(_) => {
            Failure::new(error, "choose a folder you may write to with `-o`")
        }
        RenderError::Yaml(_) => Failure::new(error, "this is a defect of the program: please report it"),
    }
}

// === impl Kind ===

impl From<Kind> for tunnel::Target {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Openshift => Self::Openshift,
            Kind::Kubeadm => Self::Kubeadm,
            Kind::K3s => Self::K3s,
        }
    }
}

// === impl RunAs ===

impl From<RunAs> for tunnel::RunAs {
    fn from(run_as: RunAs) -> Self {
        match run_as {
            RunAs::Pod => Self::Pod,
            RunAs::Unit => Self::Unit,
        }
    }
}

// === impl Format ===

impl From<Format> for landfall_render::Format {
    fn from(format: Format) -> Self {
        match format {
            Format::Yaml => Self::Yaml,
            Format::Kustomize => Self::Kustomize,
            Format::Ignition => Self::Ignition,
            Format::Helm => Self::Helm,
        }
    }
}
