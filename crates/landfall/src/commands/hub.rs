use std::fs;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::{Args, Subcommand, ValueEnum};
use landfall_hub::{
    Afterwards, Bundles, CertificateFiles, ClientError, Config, ConfigError, ConnectProxy, Holder, HubError,
    Neighbours, Network, NodeName, ObjectPlace, Proxy, Pull, PullProxy, PulledAgent, PulledCluster, Server,
    ServerTlsFiles, StorePlace, Take, TakeNats, TakeObjects, TokenKey, WatchedRole,
};
use landfall_model::Secret;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::ask_hub::{self, AskHub};
use crate::exit::{Exit, Failure};
use crate::output;
use crate::runtime::{self, Signals};

/// Length of a new token key, in bytes.
const KEY_BYTES: usize = 32;
/// Explains how to get a key.
const KEY_HINT: &str =
    "name a new file with `--token-key` to create a key, or a file with at least 32 random bytes";
/// Start of files that contain another kind of key or a certificate.
const PEM: &[u8] = b"-----BEGIN ";

/// Show the fleet: ingest reports and bundles, serve the API and the web pages
///
/// On loopback no log-in is required. Any other address needs TLS (`--tls-cert`, `--tls-key`) and a way to authenticate callers:
/// tokens (`--token-key`), client certificates (`--client-ca`) or an authenticating proxy (`--proxy-from`).
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  landfall hub
  landfall hub --listen 0.0.0.0:8700 --tls-cert hub.crt --tls-key hub.key --token-key /etc/landfall/hub.key
  landfall hub --pull n1.corp --pull-ca ca.crt --pull-cert hub-viewer.crt --pull-key hub-viewer.key
  landfall hub --pull-cluster east=east.kubeconfig --pull-ca ca.crt --pull-cert hub-viewer.crt --pull-key hub-viewer.key
  landfall hub token node node-1 --token-key /etc/landfall/hub.key
  landfall hub token nodes worker- --days 365 --token-key /etc/landfall/hub.key
  landfall hub forget node-1 --hub https://hub.corp:8700 --ca hub-ca.crt --token-file ~/.landfall-token"
)]
pub(crate) struct Hub {
    #[command(subcommand)]
    command: Option<HubCommand>,

    #[command(flatten)]
    serve: Serve,
}

#[derive(Subcommand)]
enum HubCommand {
    Token(Token),
    Forget(Forget),
}

#[derive(Args)]
struct Serve {
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8700")]
    listen: SocketAddr,

    /// Where reports are kept: `sqlite:PATH` or `postgres://URL` [default: hub.db in the state folder]
    #[arg(long, value_name = "URL")]
    store: Option<String>,

    /// Where bundles are kept: `file:PATH`, `s3://URL`, `gs://URL` or `az://URL` [default: bundles in the state folder]
    #[arg(long, value_name = "URL")]
    objects: Option<String>,

    /// The certificate to serve TLS with, PEM; read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,

    /// The key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// Know callers by certificates of these authorities, PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    client_ca: Option<PathBuf>,

    /// Know callers by tokens sealed with the key in this file; made when it is missing
    #[arg(long, value_name = "FILE")]
    token_key: Option<PathBuf>,

    /// Trust the user names that a proxy at this address or range forwards (repeatable)
    #[arg(long, value_name = "ADDRESS")]
    proxy_from: Vec<String>,

    /// The header in which that proxy names the user
    #[arg(long, value_name = "NAME", default_value = "X-Remote-User")]
    proxy_header: String,

    /// How many days reports are kept
    #[arg(long, value_name = "DAYS", default_value_t = 30)]
    keep: u32,

    /// How many days bundles are kept
    #[arg(long, value_name = "DAYS", default_value_t = 14)]
    keep_bundles: u32,

    /// Maximum size of a bundle, in MiB
    #[arg(long, value_name = "MEBIBYTES", default_value_t = 512)]
    max_bundle: u32,

    /// Show the health of a gateway or tunnel, asked on the gateway's admin or the tunnel's health port: `NAME=URL`; may be repeated
    #[arg(long, value_name = "NAME=URL")]
    watch: Vec<String>,

    /// The authorities of these ports' certificates, PEM
    #[arg(long, value_name = "FILE", requires = "watch")]
    watch_ca: Option<PathBuf>,

    #[command(flatten)]
    pull: PullArguments,

    #[command(flatten)]
    take: TakeArguments,
}

/// Agents to ask.
#[derive(Args)]
#[command(next_help_heading = "Fetching reports from agents that serve them")]
struct PullArguments {
    /// Poll this agent for its reports: `[NODE=]HOST[:PORT]` [default port: 8710] (repeatable)
    #[arg(long, value_name = "AGENT", requires = "pull_ca")]
    pull: Vec<String>,

    /// Ask those in this file too, one on a line; read again when it changes
    #[arg(long, value_name = "FILE", requires = "pull_ca")]
    pull_list: Option<PathBuf>,

    /// Ask the nodes of this workload cluster, through its API server: `[NAME=]KUBECONFIG`; may be repeated
    ///
    /// Each node is polled on its own loopback, port 8710, by forwarding that port through a pod that shares the node's network. The
    /// kubeconfig's user needs `list` on nodes; and in `kube-system` (or `landfall-agent`) `list` on pods and `get` and `create` on
    /// pods/portforward. The file is read again when it changes. Nodes that name their cluster (`/etc/landfall/cluster`) must
    /// name it NAME.
    #[arg(long, value_name = "CLUSTER", requires = "pull_ca")]
    pull_cluster: Vec<String>,

    /// Reach the agents of `--pull` and `--pull-list` through this proxy, by CONNECT
    ///
    /// `http://[USER:PASSWORD@]HOST:PORT`, `https://HOST:PORT` or `unix:///PATH`: a company's, or the frontend of a tunnel's
    /// server in mode `http-connect`. TLS to the agent is inside.
    #[arg(long, value_name = "URL", requires = "pull_ca")]
    pull_proxy: Option<String>,

    /// The authority of an https proxy's certificate, PEM
    #[arg(long, value_name = "FILE", requires = "pull_proxy")]
    pull_proxy_ca: Option<PathBuf>,

    /// The hub's certificate for that proxy, PEM
    #[arg(long, value_name = "FILE", requires = "pull_proxy_key", requires = "pull_proxy_ca")]
    pull_proxy_cert: Option<PathBuf>,

    /// The key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "pull_proxy_cert")]
    pull_proxy_key: Option<PathBuf>,

    /// The authority of the agents' certificates, PEM
    #[arg(long, value_name = "FILE", requires = "pull_cert", requires = "pull_key")]
    pull_ca: Option<PathBuf>,

    /// The hub's certificate for agents, PEM: O=landfall:viewers
    #[arg(long, value_name = "FILE", requires = "pull_ca")]
    pull_cert: Option<PathBuf>,

    /// The key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "pull_ca")]
    pull_key: Option<PathBuf>,

    /// Interval between polls of an agent, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pull_every: u32,

    /// Ask agents also for the signed reports other nodes left with them
    #[arg(long, requires = "pull_ca")]
    pull_neighbours: bool,

    /// Fetch a bundle from each node that fails
    #[arg(long, requires = "pull_ca")]
    pull_bundles: bool,
}

/// Where agents leave reports.
#[derive(Args)]
#[command(next_help_heading = "Taking signed reports that agents left elsewhere")]
#[expect(clippy::struct_field_names, reason = "the options are named after them")]
struct TakeArguments {
    /// Take reports from the bucket of agents' `--objects`: `s3://BUCKET/PREFIX?credentials-file=FILE[&ca-file=FILE]`
    #[arg(long, value_name = "URL")]
    take_objects: Option<String>,

    /// Interval between reads of that bucket, in seconds
    #[arg(long, value_name = "SECONDS", requires = "take_objects", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    take_objects_every: u32,

    /// Delete reports from that bucket once they are stored
    #[arg(long, requires = "take_objects")]
    take_objects_delete: bool,

    /// Take reports from JetStream on this NATS server: `tls://HOST[:PORT]`; may be repeated for servers of one cluster
    #[arg(long, value_name = "URL")]
    take_nats: Vec<String>,

    /// The subject that agents publish below
    #[arg(long, value_name = "SUBJECT", requires = "take_nats", default_value = "landfall.reports")]
    take_nats_subject: String,

    /// The durable consumer that remembers what was taken; hubs with one store share it
    #[arg(long, value_name = "NAME", requires = "take_nats", default_value = "landfall-hub")]
    take_nats_durable: String,

    /// The file with the login for NATS: a token, or a user and a password on two lines; read at each use
    #[arg(long, value_name = "FILE", requires = "take_nats")]
    take_nats_login: Option<PathBuf>,

    /// The authority of the NATS server's certificate, PEM [default: those of this machine]
    #[arg(long, value_name = "FILE", requires = "take_nats")]
    take_nats_ca: Option<PathBuf>,

    /// The hub's certificate for the NATS server, PEM
    #[arg(long, value_name = "FILE", requires = "take_nats", requires = "take_nats_key")]
    take_nats_cert: Option<PathBuf>,

    /// The key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "take_nats_cert")]
    take_nats_key: Option<PathBuf>,
}

/// Make a token for a node, for many nodes, for a viewer or for an operator
#[derive(Args)]
struct Token {
    /// What its holder may do
    kind: Kind,

    /// The node's host name, or who the token is for; for `nodes` how their names begin [default: any]
    #[arg(required_if_eq_any([("kind", "node"), ("kind", "viewer"), ("kind", "operator")]))]
    name: Option<String>,

    /// The hub's key for tokens; made when it is missing
    #[arg(long = "token-key", value_name = "FILE")]
    key: PathBuf,

    /// Validity of the token, in days
    #[arg(long, value_name = "DAYS", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

/// Delete nodes with their reports and bundles: machines that are gone, or were reinstalled and have another key
#[derive(Args)]
#[command(mut_arg("token_file", |arg| arg.help("A file with a token of an operator")))]
#[command(mut_arg("client_certificate", |arg| arg.help("Client certificate of an operator (PEM)")))]
#[command(after_help = "\
Exit codes: 0 forgotten · 1 failed, or the hub does not know one of them · 69 the hub cannot be reached · 77 it refused")]
struct Forget {
    /// The nodes, as the board names them
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,

    #[command(flatten)]
    hub: AskHub,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// Report as itself, nothing else
    Node,
    /// The same for many machines that share the token: each is known by its key
    Nodes,
    /// See everything
    Viewer,
    /// See and do everything
    Operator,
}

// === impl Hub ===

impl Hub {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        match self.command {
            Some(HubCommand::Token(token)) => token.run(),
            Some(HubCommand::Forget(forget)) => forget.run(),
            None => self.serve.run(),
        }
    }
}

// === impl Serve ===

impl Serve {
    fn run(self) -> Result<Exit, Failure> {
        let config = self.config()?;
        raise_descriptor_limit();
        runtime::multi_threaded()?.block_on(async {
            let server = Server::bind(config).await.map_err(explain)?;
            let mut stderr = io::stderr();
            // Errors are ignored: standard error may be closed.
            let _ = writeln!(stderr, "The hub listens on {}", server.address());
            let mut signals = Signals::new()?;
            server.serve(async { signals.next().await }).await;
            Ok(Exit::Done)
        })
    }

    fn config(self) -> Result<Config, Failure> {
        let usage = |error: anyhow::Error, hint| Failure::new(error, hint).exit(Exit::Usage);
        let place = "name places such as `sqlite:/var/lib/landfall/hub.db` or `postgres://hub@db.example/landfall`, and \
                     `file:/var/lib/landfall/bundles`, `s3://bundles/hub?credentials-file=/etc/landfall/s3` or \
                     `az://bundles/hub?account=fleet&credentials-file=/etc/landfall/azure`";
        let store = match self.store {
            Some(text) => StorePlace::parse(&text).map_err(|error| usage(error.into(), place))?,
            None => StorePlace::Sqlite(state_folder()?.join("hub.db")),
        };
        let objects = match self.objects {
            Some(text) => ObjectPlace::parse(&text).map_err(|error| usage(error.into(), place))?,
            None => ObjectPlace::Folder(state_folder()?.join("bundles")),
        };
        let from = self.proxy_from.iter().map(|text| text.parse()).collect::<Result<Vec<Network>, _>>();
        let from = from
            .map_err(|error| usage(error.into(), "name the proxy's address, or the range it comes from"))?;
        let proxy = (!from.is_empty()).then_some(Proxy { from, header: self.proxy_header });
        if let Some(path) = &self.token_key {
            key(path)?;
        }
        let tls = self.tls_cert.zip(self.tls_key).map(|(certificate, key)| ServerTlsFiles {
            certificate: CertificateFiles { certificate, key },
            client_ca: self.client_ca,
        });
        let watch = self.watch.iter().map(|text| WatchedRole::parse(text)).collect::<Result<Vec<_>, _>>();
        let watch = watch.map_err(|error| {
            usage(error.into(), "give it a name: `--watch gateway=http://10.0.0.10:9000`")
        })?;
        let pull = self.pull.pull().map_err(|error| {
            usage(error.into(), "name agents as `--pull n1.corp:8710`, or `--pull n1=10.0.0.4:8710`; clusters as `--pull-cluster east=east.kubeconfig`")
        })?;
        let take = self.take.take()?;
        let days = |days: u32| Duration::from_secs(u64::from(days) * 86_400);
        Ok(Config {
            listen: self.listen,
            store,
            objects,
            tls,
            token_key: self.token_key,
            proxy,
            keep: days(self.keep),
            keep_bundles: days(self.keep_bundles),
            max_bundle: u64::from(self.max_bundle) << 20,
            watch,
            watch_authority: self.watch_ca,
            pull,
            take,
        })
    }
}

// === impl PullArguments ===

impl PullArguments {
    fn pull(self) -> Result<Option<Pull>, ConfigError> {
        if self.pull.is_empty() && self.pull_list.is_none() && self.pull_cluster.is_empty() {
            return Ok(None);
        }
        let (Some(authority), Some(certificate), Some(key)) = (self.pull_ca, self.pull_cert, self.pull_key)
        else {
            return Ok(None);
        };
        let agents = self.pull.iter().map(|text| PulledAgent::parse(text)).collect::<Result<_, _>>()?;
        let clusters =
            self.pull_cluster.iter().map(|text| PulledCluster::parse(text)).collect::<Result<_, _>>()?;
        let proxy = self
            .pull_proxy
            .as_deref()
            .map(ConnectProxy::parse)
            .transpose()
            .map_err(ConfigError::PullProxy)?;
        let proxy = proxy.map(|proxy| PullProxy {
            proxy,
            authority: self.pull_proxy_ca,
            certificate: self.pull_proxy_cert,
            key: self.pull_proxy_key,
        });
        Ok(Some(Pull {
            agents,
            list: self.pull_list,
            proxy,
            clusters,
            authority,
            certificate,
            key,
            backoff: Pull::backoff(Duration::from_secs(self.pull_every.into()))?,
            neighbours: if self.pull_neighbours { Neighbours::Asked } else { Neighbours::LeftAlone },
            bundles: if self.pull_bundles { Bundles::FetchedFromFailed } else { Bundles::LeftThere },
        }))
    }
}

// === impl TakeArguments ===

impl TakeArguments {
    fn take(self) -> Result<Take, Failure> {
        let usage = |error: ConfigError, hint| Failure::new(error, hint).exit(Exit::Usage);
        let hint = "name it as `s3://fleet/prod?credentials-file=/etc/landfall/bucket`";
        let (every, delete) = (Duration::from_secs(self.take_objects_every.into()), self.take_objects_delete);
        let afterwards = if delete { Afterwards::Deleted } else { Afterwards::Kept };
        let objects = self.take_objects.map(|text| TakeObjects::parse(&text, every, afterwards)).transpose();
        let objects = objects.map_err(|error| usage(error, hint))?;
        if self.take_nats.is_empty() {
            return Ok(Take { objects, nats: None });
        }
        let mut nats = TakeNats::parse(&self.take_nats, &self.take_nats_subject, &self.take_nats_durable)
            .map_err(|error| {
                usage(error, "name servers as `tls://nats.corp:4222`, and subjects as agents do")
            })?;
        nats.authority = self.take_nats_ca;
        nats.certificate = self.take_nats_cert.zip(self.take_nats_key);
        nats.login = self.take_nats_login;
        Ok(Take { objects, nats: Some(nats) })
    }
}

// === impl Token ===

impl Token {
    fn run(self) -> Result<Exit, Failure> {
        let name = self.name.unwrap_or_default();
        // Checked before a key is created for it.
        if !name.is_empty() {
            NodeName::new(name.as_str()).map_err(|error| {
                Failure::usage(
                    error,
                    "names of holders are as those of nodes: `landfall hub token viewer ann`",
                )
            })?;
        }
        let key = TokenKey::new(key(&self.key)?);
        let key = key.map_err(|error| Failure::new(error, KEY_HINT))?;
        let holder = match self.kind {
            Kind::Node => Holder::Node(name),
            Kind::Nodes => Holder::Nodes(name),
            Kind::Viewer => Holder::Viewer(name),
            Kind::Operator => Holder::Operator(name),
        };
        let lifetime = jiff::SignedDuration::from_hours(24 * i64::from(self.days));
        let expires = jiff::Timestamp::now().checked_add(lifetime).context("count the days")?;
        let token = key.issue(holder, expires);
        let token = token.map_err(|error| Failure::usage(error, "use letters, digits, `.`, `-` and `_`"))?;
        output::print(&format!("{}\n", token.expose()))?;
        Ok(Exit::Done)
    }
}

// === impl Forget ===

impl Forget {
    fn run(self) -> Result<Exit, Failure> {
        let names = self.nodes.into_iter().map(NodeName::new).collect::<Result<Vec<_>, _>>();
        let names = names.map_err(|error| Failure::usage(error, "name nodes as the board does"))?;
        let client = self.hub.client()?;
        runtime::single_threaded()?.block_on(async {
            for name in &names {
                client.delete(&format!("/api/v1/nodes/{name}")).await.map_err(|error| match error {
                    ClientError::Refused { status: 404, .. } => {
                        Failure::new(error, "`landfall status` shows the nodes the hub knows")
                    }
                    // Other commands that query a hub only read.
                    ClientError::Refused { status: 401 | 403, .. } => {
                        let hint = "name a token of an operator with `--token-file`, or a certificate with `--client-certificate`";
                        Failure::new(error, hint).exit(Exit::NotPermitted)
                    }
                    error => ask_hub::explain(error),
                })?;
                output::say(&format!("Forgot {name}"));
            }
            Ok(Exit::Done)
        })
    }
}

/// Raises the limit for open files to the maximum: every reporting node may keep its connection, and shells allow
/// only 1024.
fn raise_descriptor_limit() {
    let most = getrlimit(Resource::Nofile).maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }) {
        tracing::debug!(%error, "The limit of descriptors stays.");
    }
}

/// Returns the default directory of the hub's state.
fn state_folder() -> Result<PathBuf, Failure> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = if let Some(given) = variable("STATE_DIRECTORY") {
        given
    } else if rustix::process::geteuid().is_root() {
        PathBuf::from("/var/lib/landfall/hub")
    } else if let Some(state) = variable("XDG_STATE_HOME") {
        state.join("landfall")
    } else {
        let home = variable("HOME").context("find your home folder");
        let home = home.map_err(|error| Failure::new(error, "name places with `--store` and `--objects`"))?;
        home.join(".local/state/landfall")
    };
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    let made = made.with_context(|| format!("make the folder `{}`", folder.display()));
    made.map_err(|error| Failure::new(error, "name places you may write to with `--store` and `--objects`"))?;
    Ok(folder)
}

/// Reads the key from this file, or creates a new one if the file does not exist.
fn key(path: &Path) -> Result<Secret<Vec<u8>>, Failure> {
    let hint = "name a file only the hub's operators can read";
    let mut options = fs::OpenOptions::new();
    match options.write(true).create_new(true).mode(0o600).open(path) {
        Ok(mut file) => {
            let mut bytes = [0; KEY_BYTES];
            getrandom::fill(&mut bytes).context("draw a new key")?;
            let text = hex::encode(bytes);
            let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
            written.with_context(|| format!("write `{}`", path.display()))?;
            Ok(Secret::new(text.into_bytes()))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let key = fs::read(path).with_context(|| format!("read `{}`", path.display()));
            let key = key.map_err(|error| Failure::new(error, hint))?;
            // Every reader of a certificate could issue tokens with it.
            if key.windows(PEM.len()).any(|part| part == PEM) {
                let error = anyhow!("`{}` holds a certificate or a key for something else", path.display());
                return Err(Failure::new(error, KEY_HINT));
            }
            Ok(Secret::new(key))
        }
        Err(error) => {
            let error = anyhow::Error::from(error).context(format!("make `{}`", path.display()));
            Err(Failure::new(error, hint))
        }
    }
}

fn explain(error: HubError) -> Failure {
    let (hint, exit) = match &error {
        HubError::Config(_) => {
            ("listen on `127.0.0.1:8700`, or add `--tls-cert`, `--tls-key` and `--token-key`", Exit::Usage)
        }
        HubError::Listen { .. } => {
            ("is another hub running? choose another address with `--listen`", Exit::Failed)
        }
        HubError::Store(_) | HubError::Objects(_) => {
            ("name places that can be reached and written to with `--store` and `--objects`", Exit::Failed)
        }
        HubError::NatsTls(_) => {
            ("check the files of `--take-nats-ca`, `--take-nats-cert` and `--take-nats-key`", Exit::Failed)
        }
        HubError::Bucket(_) => ("check the files that `--take-objects` names", Exit::Failed),
        HubError::PullTls(_) => {
            ("check the files of `--pull-ca`, `--pull-cert` and `--pull-key`", Exit::Failed)
        }
        HubError::Tls(_) => ("check the files of `--tls-cert`, `--tls-key` and `--client-ca`", Exit::Failed),
        HubError::ReadKey { .. } | HubError::Key(_) => (KEY_HINT, Exit::Failed),
        HubError::Catalogue(_) => ("this is a defect of the program: please report it", Exit::Failed),
    };
    Failure::new(error, hint).exit(exit)
}
