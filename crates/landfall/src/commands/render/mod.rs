//! `landfall render`: one file per role, and shared helpers.

mod agent;
mod controller;
mod gateway;
mod hub;
mod in_place;
mod pki;
mod tunnel;

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use landfall_model::Secret;
use landfall_render::{Download, Plan, RenderError, Target};

use crate::commands::same_variants;
use crate::exit::{Exit, Failure};
use crate::output;

/// Length of a generated token or key, in bytes.
const TOKEN_BYTES: usize = 32;

/// Size limit for a CA and its intermediates; a ConfigMap with all of them stays far below its limit of 1 MiB.
const MAX_AUTHORITY: u64 = 128 * 1024;

/// Write the files a bootstrap plane is installed from
#[derive(Args)]
pub(crate) struct Render {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Pki(pki::Pki),
    Tunnel(tunnel::Tunnel),
    Gateway(gateway::Gateway),
    Agent(Box<agent::Agent>),
    InPlace(in_place::InPlace),
    Controller(controller::Controller),
    Hub(hub::Hub),
}

/// Options of most roles.
#[derive(Args)]
struct Shape {
    /// The kind of host or cluster
    #[arg(long = "for", value_name = "KIND", value_enum)]
    kind: Kind,

    /// How the files are wrapped
    #[arg(long, value_enum, default_value_t = Format::Yaml)]
    format: Format,
}

#[derive(Args)]
struct Certificates {
    /// A folder with `ca.crt` and `ca.key` to sign with [default: a new authority]
    #[arg(long, value_name = "DIR")]
    ca: Option<PathBuf>,

    /// Validity of certificates, in days
    #[arg(long, value_name = "DAYS", default_value_t = 7)]
    days: u32,
}

/// Where a host gets the program from.
#[derive(Args)]
struct Program {
    /// Where hosts fetch the program
    #[arg(long, value_name = "URL", requires = "binary_sha256")]
    binary_url: Option<String>,

    /// The program's SHA-256 hash; what has another one is not run
    #[arg(long, value_name = "HASH", requires = "binary_url")]
    binary_sha256: Option<String>,
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
    /// OpenShift host
    Openshift,
    /// kubeadm host
    Kubeadm,
    /// k3s host
    K3s,
    /// Cluster API machine with kubeadm
    Capi,
}

#[derive(Clone, Copy, ValueEnum)]
enum RunAs {
    /// A pod: a static one for the tunnel, one of a StatefulSet or Deployment for the hub
    Pod,
    /// systemd unit
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
    /// Files by their place in the source of the OpenShift installer
    Installer,
}

// === impl Render ===

impl Render {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        match self.what {
            What::Pki(pki) => pki.run(),
            What::Tunnel(tunnel) => tunnel.run(),
            What::Gateway(gateway) => gateway.run(),
            What::Agent(agent) => agent.run(),
            What::InPlace(in_place) => in_place.run(),
            What::Controller(controller) => controller.run(),
            What::Hub(hub) => hub.run(),
        }
    }
}

// === impl Program ===

impl Program {
    fn download(self) -> Option<Download> {
        self.binary_url.zip(self.binary_sha256).map(|(url, sha256)| Download { url, sha256 })
    }
}

// === impl Folder ===

impl Folder {
    fn put(&self, plan: &Plan) -> Result<Exit, Failure> {
        let folder = &self.output;
        plan.check().map_err(explain)?;
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

/// Returns an unpredictable text.
fn token() -> Result<Secret<String>, Failure> {
    let mut bytes = [0; TOKEN_BYTES];
    getrandom::fill(&mut bytes).context("draw a token")?;
    Ok(Secret::new(hex::encode(bytes)))
}

/// Reads the certificates of a CA. An invalid file would otherwise fail in the agent on every machine.
fn authority(path: &Path) -> Result<String, Failure> {
    let hint = "name a PEM file with certificates that you may read";
    let read = || -> anyhow::Result<String> {
        let length = std::fs::metadata(path)?.len();
        anyhow::ensure!(
            length <= MAX_AUTHORITY,
            "it has {length} bytes; certificates have at most {MAX_AUTHORITY}"
        );
        let text = std::fs::read_to_string(path)?;
        anyhow::ensure!(text.contains("-----BEGIN CERTIFICATE-----"), "it contains no certificate");
        anyhow::ensure!(!text.contains("PRIVATE KEY-----"), "there is a private key in it");
        Ok(text)
    };
    let text = read().with_context(|| format!("read `{}`", path.display()));
    text.map_err(|error| Failure::new(error, hint))
}

fn explain(error: RenderError) -> Failure {
    let hint = match &error {
        RenderError::Namespace { .. } => "at most 63 lower case letters, digits and `-` inside",
        RenderError::SharedNamespace { .. } => "give the agents a namespace of their own with `--namespace`",
        RenderError::Object { .. } => "at most 253 lower case letters, digits, `-` and `.` inside",
        RenderError::Selector { .. } => {
            "as `kubectl get nodes -l` takes it, such as `pool=edge,!spare`; names and values have at most 63 letters"
        }
        RenderError::HubOfCapi => {
            "choose `--run-as pod` for the management cluster, or `--for kubeadm` for a machine of its own"
        }
        RenderError::Completion { .. } => {
            "`config-map`, `event` or `marker`, with `=NAMESPACE/NAME` or `=PATH`; a marker has no usual place with kubeadm and k3s"
        }
        RenderError::Image { .. } => {
            "such as `registry.example/landfall:0.1.0`; at most 255 letters, and 128 of a tag"
        }
        RenderError::Address { .. } => {
            "an address others can reach, such as `10.0.0.5`, or a name in lower case with at most 63 letters between dots and 253 in all"
        }
        RenderError::Days { .. } => "choose 1 to 365 with `--days`",
        RenderError::Ports { .. } => {
            "choose another port; 6443 is the API server's, 6444 the gateway's (6445 beside k3s), 8092 to 8095 are the tunnel's"
        }
        RenderError::LowPort { .. } => {
            "choose one from 1024 on with `--agent-port`: the server runs without the right to those below"
        }
        RenderError::Node { .. } => {
            "as `kubectl get nodes` shows it: at most 63 letters between dots, and 235 in all"
        }
        RenderError::Network { .. } => {
            "write its first address and its length, such as `10.0.0.0/8` or `fd00::/8`; a single machine is `10.0.0.5/32`"
        }
        RenderError::Url { .. } => "such as `https://HOST/PATH`, without blanks, quotes and logins",
        RenderError::InTheClear { .. } => "use `https://`; `http://` only to the machine itself",
        RenderError::Nats { .. } => "such as `tls://nats.example:4222`; `nats://` only to the machine itself",
        RenderError::Subject { .. } => {
            "names with dots between them and without wildcards, such as `landfall.reports`"
        }
        RenderError::Neighbour { .. } => "such as `10.0.0.4:8710`",
        RenderError::Report { .. } => "such as `team-a/edge-7k2x9`, the Machine's",
        RenderError::Leaf { .. } => {
            "`agent=NAME[,HOST…]`, `node=NAME`, `operator=NAME` or `viewer=NAME`, such as `--leaf operator=ann`; names of people have at most 64 letters, digits, `-`, `.`, `_` and `@`"
        }
        RenderError::Collision { .. } => "request each `--leaf` once, and do not name one `ca.crt`",
        RenderError::Store { .. } => {
            "`postgres://…` and `s3://…`, with whole paths in `password-file=`, `credentials-file=` and `ca-file=`"
        }
        RenderError::Replicas { .. } => {
            "choose 1 to 50 pods with `--run-as pod`, `--store` and `--objects`; a hub that keeps everything beside itself is one"
        }
        RenderError::Port { .. } => {
            "such as `:8710` or `10.0.0.4:8710`; ports below 1024 are not the agent's"
        }
        RenderError::Console { .. } => "a device such as `/dev/ttyS0`",
        RenderError::ConsoleOfPod => "choose `--by image` or `--by first-boot`, or leave out `--console`",
        RenderError::DownloadOfPod => {
            "leave out `--binary-url`; it is for units: `--run-as unit`, or an agent `--by image` or `--by first-boot`"
        }
        RenderError::Hash { .. } => "64 hexadecimal digits in lower case, as `sha256sum` prints them",
        RenderError::IgnitionOfCapi => {
            "leave out `--format`: files go into the object that configures the machines"
        }
        RenderError::ImageOfCapi => {
            "build the image with `--for kubeadm`; for images you do not build there is `--by first-boot`"
        }
        RenderError::Group { .. } => "a group that the cluster knows, such as `--gatherers support`",
        RenderError::Combination { .. } => {
            "leave out `--format`, or choose another; docs/guides/render.md says which go with `--for`, `--by` and `--run-as`"
        }
        RenderError::Missing { .. } => {
            "pods need `--image`, tunnels `--server`, first boots `--binary-url` and `--binary-sha256`"
        }
        RenderError::OwnAddress => "name the address with `--server`, or choose `--for openshift`",
        RenderError::OwnAuthority => "leave out `--ca`, or name the address with `--server`",
        RenderError::KeysInSource => "leave out `--server`: each bootstrap host then makes keys of its own",
        RenderError::Snippet { .. } => {
            "shorten `--binary-url`, and configure further carriers in the image or with `--format ignition`"
        }
        RenderError::Expired { .. } => "leave out `--ca` to have a new authority made",
        RenderError::Outlives { .. } => {
            "choose fewer `--days`, or leave out `--ca` to have a new authority made"
        }
        RenderError::Read { .. } => "`--ca` needs a folder with `ca.crt` and `ca.key` that you may read",
        RenderError::Pki(_) => "check `--server` and the files in `--ca` and `--add-ca`",
        RenderError::Exists { .. } => "choose another folder, or replace files with `--force`",
        RenderError::Folder { .. } | RenderError::Write(_) => "choose a folder you may write to with `-o`",
        RenderError::Yaml(_) => "this is a defect of the program: please report it",
    };
    // The others are the fault of the arguments.
    let is_failure = matches!(
        error,
        RenderError::Expired { .. }
            | RenderError::Read { .. }
            | RenderError::Pki(_)
            | RenderError::Exists { .. }
            | RenderError::Folder { .. }
            | RenderError::Write(_)
            | RenderError::Yaml(_)
    );
    if is_failure { Failure::new(error, hint) } else { Failure::usage(error, hint) }
}

same_variants!(Kind => Target { Openshift, Kubeadm, K3s, Capi });
same_variants!(RunAs => landfall_render::tunnel::RunAs { Pod, Unit });
same_variants!(Format => landfall_render::Format { Yaml, Kustomize, Ignition, Helm, Installer });
