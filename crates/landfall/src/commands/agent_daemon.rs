//! `landfall agent` without `--once`: the arguments of the daemon and their conversion.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use landfall_agent::carrier::{
    BootstrapReport, Bundle, Carrier, Console, Credentials, Events, Folder, Hub, Location, Maker, Nats,
    Neighbour, ObjectStore,
};
use landfall_agent::{Agent, AgentError, CertificateFiles, Config, Serve, every_address};

use crate::exit::{Exit, Failure};

/// Explains the notation of a bucket.
pub(crate) const BUCKET_HINT: &str = "write it as `s3://BUCKET/PREFIX?region=NAME`, `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX?account=NAME`";

/// This binary, even if its file was replaced meanwhile.
const PROGRAM: &str = "/proc/self/exe";

/// Options of the daemon; `--once` ignores them.
#[derive(Args)]
#[command(next_help_heading = "Following the boot (without --once)")]
pub(crate) struct Daemon {
    /// Directory for the last report and undelivered reports
    #[arg(long, value_name = "DIR", default_value = "/var/lib/landfall/agent", conflicts_with = "once")]
    state: PathBuf,

    /// Push reports to this hub: `https://HOST[:PORT]`
    #[arg(long, value_name = "URL", conflicts_with = "once")]
    hub: Option<String>,

    /// The authority of the hub's certificate, PEM; read again when it changes [default: those of this machine]
    #[arg(long, value_name = "FILE", requires = "hub")]
    hub_ca: Option<PathBuf>,

    /// The file with this node's token for the hub; read at each use
    #[arg(long, value_name = "FILE", requires = "hub")]
    hub_token: Option<PathBuf>,

    /// This node's certificate for the hub, PEM; read again when it changes
    #[arg(long, value_name = "FILE", requires = "hub", requires = "hub_key")]
    hub_cert: Option<PathBuf>,

    /// The key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "hub_cert")]
    hub_key: Option<PathBuf>,

    /// Do not send a bundle of logs to the hub when this node fails or hangs
    #[arg(long, requires = "hub")]
    no_bundle: bool,

    /// Write each report into this directory, for another process to collect
    #[arg(long, value_name = "DIR", conflicts_with = "once")]
    report_folder: Option<PathBuf>,

    #[command(flatten)]
    port: PortArguments,

    #[command(flatten)]
    ways: WayArguments,
}

/// The port for requests.
#[derive(Args)]
#[command(next_help_heading = "Port for requests (without --once)")]
struct PortArguments {
    /// Serve `/report`, `/bundle` and `/livez` to operators, viewers and administrators: `[ADDRESS:]PORT`, 8710 by convention
    #[arg(
        long,
        value_name = "ADDRESS",
        value_parser = listen_address,
        conflicts_with = "once",
        requires_all = ["serve_cert", "serve_key", "serve_client_ca"]
    )]
    serve: Option<SocketAddr>,

    /// Server certificate (PEM); reloaded when the files change
    #[arg(long, value_name = "FILE", requires = "serve")]
    serve_cert: Option<PathBuf>,

    /// The key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "serve")]
    serve_key: Option<PathBuf>,

    /// The authority whose certificates may ask, PEM: O=landfall:operators, landfall:viewers or system:masters
    #[arg(long, value_name = "FILE", requires = "serve")]
    serve_client_ca: Option<PathBuf>,
}

/// Other carriers.
#[derive(Args)]
#[command(next_help_heading = "Other carriers (without --once)")]
struct WayArguments {
    /// Put reports into this bucket: `s3://BUCKET[/PREFIX][?region=R&endpoint=URL]`, `gs://BUCKET[/PREFIX]`,
    /// `az://CONTAINER[/PREFIX]?account=NAME[&endpoint=URL]`
    #[arg(long, value_name = "URL", conflicts_with = "once", requires = "ObjectsIdentity")]
    objects: Option<String>,

    /// The file with the key for the bucket, as Amazon's tools have it, or with Azure's connection string; read at each use
    #[arg(long, value_name = "FILE", requires = "objects", group = "ObjectsIdentity")]
    objects_credentials: Option<PathBuf>,

    /// Use the identity that the cloud has given this machine or workload: an instance or pod role of AWS, a managed or
    /// workload identity of Azure, a service account of Google
    #[arg(long, requires = "objects", group = "ObjectsIdentity")]
    objects_cloud_identity: bool,

    /// The authority of the object store's certificate, PEM [default: those of this machine]
    #[arg(long, value_name = "FILE", requires = "objects")]
    objects_ca: Option<PathBuf>,

    /// Send a CloudEvent for each report to this URL; with `--objects` it says where the whole report is, else it holds it
    #[arg(long, value_name = "URL", conflicts_with = "once")]
    events: Option<String>,

    /// The file with the bearer token for events; read at each use
    #[arg(long, value_name = "FILE", requires = "events")]
    events_token: Option<PathBuf>,

    /// The authority of the receiver's certificate, PEM [default: those of this machine]
    #[arg(long, value_name = "FILE", requires = "events")]
    events_ca: Option<PathBuf>,

    /// Publish reports to JetStream on this NATS server: `tls://HOST[:PORT]`
    #[arg(long, value_name = "URL", conflicts_with = "once")]
    nats: Option<String>,

    /// The subject; the node's name is added to it
    #[arg(long, value_name = "SUBJECT", requires = "nats", default_value = "landfall.reports")]
    nats_subject: String,

    /// The file with the login for NATS: a token, or a user and a password on two lines; read at each use
    #[arg(long, value_name = "FILE", requires = "nats")]
    nats_login: Option<PathBuf>,

    /// The authority of the NATS server's certificate, PEM [default: those of this machine]
    #[arg(long, value_name = "FILE", requires = "nats")]
    nats_ca: Option<PathBuf>,

    /// This node's certificate for the NATS server, PEM
    #[arg(long, value_name = "FILE", requires = "nats", requires = "nats_key")]
    nats_cert: Option<PathBuf>,

    /// The key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "nats_cert")]
    nats_key: Option<PathBuf>,

    /// Leave the last report with the agent of this peer, which serves it: `HOST:PORT` (repeatable; one is enough)
    #[arg(
        long,
        value_name = "HOST:PORT",
        conflicts_with = "once",
        requires_all = ["neighbour_ca", "neighbour_cert", "neighbour_key"]
    )]
    neighbour: Vec<String>,

    /// The authority of the neighbour's certificate, PEM
    #[arg(long, value_name = "FILE", requires = "neighbour")]
    neighbour_ca: Option<PathBuf>,

    /// This node's certificate, PEM: O=system:nodes, CN=system:node:NAME
    #[arg(long, value_name = "FILE", requires = "neighbour")]
    neighbour_cert: Option<PathBuf>,

    /// The key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "neighbour")]
    neighbour_key: Option<PathBuf>,

    /// Write verdicts into this `BootstrapReport` of the management cluster: `NAMESPACE/NAME`
    #[arg(
        long,
        value_name = "NAMESPACE/NAME",
        conflicts_with = "once",
        requires_all = ["bootstrap_report_server", "bootstrap_report_ca", "bootstrap_report_token"]
    )]
    bootstrap_report: Option<String>,

    /// The API server of that cluster: `https://HOST[:PORT]`
    #[arg(long, value_name = "URL", requires = "bootstrap_report")]
    bootstrap_report_server: Option<String>,

    /// The authority of that API server's certificate, PEM
    #[arg(long, value_name = "FILE", requires = "bootstrap_report")]
    bootstrap_report_ca: Option<PathBuf>,

    /// The file with the token that may write this one object; read at each use
    #[arg(long, value_name = "FILE", requires = "bootstrap_report")]
    bootstrap_report_token: Option<PathBuf>,

    /// Write reports to this serial console, such as `/dev/ttyS0`; `landfall diagnose` finds them in what it captured
    #[arg(long, value_name = "DEVICE", conflicts_with = "once")]
    console: Option<PathBuf>,
}

// === impl Daemon ===

impl Daemon {
    pub(crate) fn run(self, root: &Path) -> Result<Exit, Failure> {
        let mut carriers: Vec<Box<dyn Carrier>> = Vec::new();
        if let Some(address) = &self.hub {
            let certificate = self.hub_cert.as_deref().zip(self.hub_key.as_deref());
            let (authority, token) = (self.hub_ca.as_deref(), self.hub_token);
            let hint = "name the hub as `https://HOST:8700`; `http://` is for one on this machine only";
            let hub = Hub::new(address, authority, token.clone(), certificate);
            carriers.push(Box::new(hub.map_err(|error| Failure::usage(error, hint))?));
            if !self.no_bundle {
                let maker = Maker { program: PROGRAM.into(), root: root.to_owned() };
                let bundle = Bundle::new(address, authority, token, certificate, maker, self.state.clone());
                carriers.push(Box::new(bundle.map_err(|error| Failure::usage(error, hint))?));
            }
        }
        if let Some(folder) = self.report_folder {
            carriers.push(Box::new(Folder::new(folder)));
        }
        self.ways.add_to(&mut carriers)?;
        let serve = self.port.serve();
        let config = Config { root: root.to_owned(), state: self.state, carriers, serve };
        Agent::open(config).and_then(Agent::run).map(|()| Exit::Done).map_err(explain)
    }
}

// === impl PortArguments ===

impl PortArguments {
    fn serve(self) -> Option<Serve> {
        let (certificate, key) = (self.serve_cert?, self.serve_key?);
        let certificate = CertificateFiles { certificate, key };
        Some(Serve { address: self.serve?, certificate, client_authority: self.serve_client_ca? })
    }
}

/// Parses a listen address; `PORT` alone means every address.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let port = |text: &str| text.strip_prefix(':').unwrap_or(text).parse::<u16>().ok();
    match port(text) {
        Some(port) => Ok(every_address(port)),
        None => text.parse().map_err(|_| "an address is `PORT`, `IP:PORT` or `[IPV6]:PORT`".to_owned()),
    }
}

// === impl WayArguments ===

impl WayArguments {
    fn add_to(&self, carriers: &mut Vec<Box<dyn Carrier>>) -> Result<(), Failure> {
        let bucket = || -> Result<Option<ObjectStore>, Failure> {
            let Some(url) = &self.objects else { return Ok(None) };
            let credentials = self.objects_credentials.clone().map_or(Credentials::Cloud, Credentials::File);
            let location = url.parse::<Location>();
            let location = location.map_err(|error| Failure::usage(error, BUCKET_HINT))?;
            let store = ObjectStore::new(location, credentials, self.objects_ca.clone());
            store
                .map(Some)
                .map_err(|error| Failure::new(error, "check whether the machine is out of threads"))
        };
        if let Some(store) = bucket()? {
            carriers.push(Box::new(store));
        }
        if let Some(url) = &self.events {
            let events = Events::new(url, self.events_ca.clone(), self.events_token.clone(), bucket()?);
            let hint = "name the receiver as `https://HOST/PATH`";
            carriers.push(Box::new(events.map_err(|error| Failure::usage(error, hint))?));
        }
        if let Some(address) = &self.nats {
            let certificate = self.nats_cert.as_deref().zip(self.nats_key.as_deref());
            let (authority, login) = (self.nats_ca.as_deref(), self.nats_login.clone());
            let nats = Nats::new(address, &self.nats_subject, authority, certificate, login);
            let hint = "name the server as `tls://HOST:4222`, and a subject such as `landfall.reports`";
            carriers.push(Box::new(nats.map_err(|error| Failure::usage(error, hint))?));
        }
        let pair = self.neighbour_cert.as_deref().zip(self.neighbour_key.as_deref());
        if let (false, Some(authority), Some(pair)) = (self.neighbour.is_empty(), &self.neighbour_ca, pair) {
            let neighbour = Neighbour::new(&self.neighbour, authority, pair);
            let hint = "name the neighbour as `HOST:8710`";
            carriers.push(Box::new(neighbour.map_err(|error| Failure::usage(error, hint))?));
        }
        if let (Some(object), Some(server), Some(authority), Some(token)) = (
            &self.bootstrap_report,
            &self.bootstrap_report_server,
            &self.bootstrap_report_ca,
            &self.bootstrap_report_token,
        ) {
            let object = BootstrapReport::new(server, authority, token.clone(), object);
            let hint = "name the object as `NAMESPACE/NAME` and the API server as `https://HOST:6443`";
            carriers.push(Box::new(object.map_err(|error| Failure::usage(error, hint))?));
        }
        if let Some(device) = &self.console {
            carriers.push(Box::new(Console::new(device.clone())));
        }
        Ok(())
    }
}

fn explain(error: AgentError) -> Failure {
    let hint = match &error {
        AgentError::Rules(_) => "this is a defect of the program: please report it",
        AgentError::Root { .. } => "name the folder that holds the machine's `etc` and `var` with `--root`",
        AgentError::State { .. } | AgentError::Keep(_) | AgentError::Spool { .. } => {
            "run as root, or name a folder you may write to with `--state`"
        }
        AgentError::Held { .. } => {
            "stop the other one (`systemctl stop landfall-agent`), or name another folder with `--state`"
        }
        AgentError::Thread(_) => "look at the limits of this process",
    };
    let held = matches!(error, AgentError::Held { .. });
    Failure::new(error, hint).exit(if held { Exit::TryLater } else { Exit::Failed })
}
