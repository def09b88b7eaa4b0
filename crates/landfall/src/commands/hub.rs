use std::fs;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand, ValueEnum};
use landfall_hub::{
    Bundles, Config, ConfigError, Holder, HubError, Neighbours, Network, ObjectPlace, Proxy, Pull,
    PulledAgent, Server, StorePlace, TlsFiles, TokenKey, WatchedRole,
};
use landfall_model::Secret;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::{Exit, Failure};
use crate::output;

/// Bytes of a new key for tokens.
const KEY_BYTES: usize = 32;

/// Show the fleet: take reports and bundles in, serve the API and the web page
///
/// On loopback nobody has to log in. Any other address needs TLS (`--tls-cert`, `--tls-key`) and a way to know callers:
/// tokens (`--token-key`), client certificates (`--client-ca`) or an authenticating proxy (`--proxy-from`).
#[derive(Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  landfall hub
  landfall hub --listen 0.0.0.0:8700 --tls-cert hub.crt --tls-key hub.key --token-key /etc/landfall/hub.key
  landfall hub --pull n1.corp --pull-ca ca.crt --pull-cert hub-viewer.crt --pull-key hub-viewer.key
  landfall hub token node node-1 --token-key /etc/landfall/hub.key"
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
}

#[derive(Args)]
struct Serve {
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8700")]
    listen: SocketAddr,

    /// Where reports are kept: `sqlite:PATH` or `postgres://URL` [default: hub.db in the state folder]
    #[arg(long, value_name = "URL")]
    store: Option<String>,

    /// Where bundles are kept: `file:PATH` or `s3://URL` [default: bundles in the state folder]
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

    /// Believe what a proxy at this address or range says about its users; may be repeated
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

    /// The largest bundle taken in, in MiB
    #[arg(long, value_name = "MEBIBYTES", default_value_t = 512)]
    max_bundle: u32,

    /// Show the health of a gateway or tunnel, asked on its admin port: `NAME=URL`; may be repeated
    #[arg(long, value_name = "NAME=URL")]
    watch: Vec<String>,

    /// The authorities of these admin ports' certificates, PEM
    #[arg(long, value_name = "FILE", requires = "watch")]
    watch_ca: Option<PathBuf>,

    #[command(flatten)]
    pull: PullArguments,
}

/// Agents to ask.
#[derive(Args)]
#[command(next_help_heading = "Fetching reports from agents that serve them")]
struct PullArguments {
    /// Ask this agent for its reports: `[NODE=]HOST[:PORT]`, 8710 unless told; may be repeated
    #[arg(long, value_name = "AGENT", requires = "pull_ca")]
    pull: Vec<String>,

    /// Ask those in this file too, one on a line; read again when it changes
    #[arg(long, value_name = "FILE", requires = "pull_ca")]
    pull_list: Option<PathBuf>,

    /// The authority of the agents' certificates, PEM
    #[arg(long, value_name = "FILE", requires = "pull_cert", requires = "pull_key")]
    pull_ca: Option<PathBuf>,

    /// The hub's certificate for agents, PEM: O=landfall:viewers
    #[arg(long, value_name = "FILE", requires = "pull_ca")]
    pull_cert: Option<PathBuf>,

    /// The key of that certificate, PEM
    #[arg(long, value_name = "FILE", requires = "pull_ca")]
    pull_key: Option<PathBuf>,

    /// How often each agent is asked, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pull_every: u32,

    /// Ask agents also for the signed reports other nodes left with them
    #[arg(long, requires = "pull_ca")]
    pull_neighbours: bool,

    /// Fetch a bundle from each node that fails
    #[arg(long, requires = "pull_ca")]
    pull_bundles: bool,
}

/// Make a token for a node, a viewer or an operator
#[derive(Args)]
struct Token {
    /// What its holder may do
    kind: Kind,

    /// The node's host name, or who the token is for
    name: String,

    /// The hub's key for tokens; made when it is missing
    #[arg(long = "token-key", value_name = "FILE")]
    key: PathBuf,

    /// How many days the token is good
    #[arg(long, value_name = "DAYS", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    days: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// Report as itself, nothing else
    Node,
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
            None => self.serve.run(),
        }
    }
}

// === impl Serve ===

impl Serve {
    fn run(self) -> Result<Exit, Failure> {
        let config = self.config()?;
        raise_descriptor_limit();
        let runtime = tokio::runtime::Runtime::new().context("start the runtime")?;
        runtime.block_on(async {
            let server = Server::bind(config).await.map_err(explain)?;
            let mut stderr = io::stderr();
            // Nobody is left to be told when standard error is closed.
            let _ = writeln!(stderr, "The hub listens on {}", server.address());
            let mut terminate = signal(SignalKind::terminate()).context("listen for signals")?;
            let mut interrupt = signal(SignalKind::interrupt()).context("listen for signals")?;
            server
                .serve(async {
                    tokio::select! {
                        _ = terminate.recv() => {}
                        _ = interrupt.recv() => {}
                    }
                })
                .await;
            Ok(Exit::Done)
        })
    }

    fn config(self) -> Result<Config, Failure> {
        let usage = |error: anyhow::Error, hint| Failure::new(error, hint).exit(Exit::Usage);
        let place = "name places such as `sqlite:/var/lib/landfall/hub.db` or `postgres://hub@db.example/landfall`, and \
                     `file:/var/lib/landfall/bundles` or `s3://bundles/hub?credentials-file=/etc/landfall/s3`";
        let store = match self.store {
            Some(text) => StorePlace::parse(&text).map_err(|error| usage(error.into(), place))?,
            None => StorePlace::Sqlite(state_folder()?.join("hub.db")),
        };
        let objects = match self.objects {
            Some(text) => ObjectPlace::parse(&text).map_err(|error| usage(error.into(), place))?,
            None => ObjectPlace::Folder(state_folder()?.join("bundles")),
        };
        let from = self.proxy_from.iter().map(|text| Network::parse(text)).collect::<Result<Vec<_>, _>>();
        let from = from
            .map_err(|error| usage(error.into(), "name the proxy's address, or the range it comes from"))?;
        let proxy = (!from.is_empty()).then_some(Proxy { from, header: self.proxy_header });
        if let Some(path) = &self.token_key {
            key(path)?;
        }
        let tls = self.tls_cert.zip(self.tls_key).map(|(certificate, key)| TlsFiles {
            certificate,
            key,
            client_authority: self.client_ca,
        });
        let watch = self.watch.iter().map(|text| WatchedRole::parse(text)).collect::<Result<Vec<_>, _>>();
        let watch = watch.map_err(|error| {
            usage(error.into(), "give it a name: `--watch gateway=http://10.0.0.10:9000`")
        })?;
        let pull = self.pull.pull().map_err(|error| {
            usage(error.into(), "name agents as `--pull n1.corp:8710`, or `--pull n1=10.0.0.4:8710`")
        })?;
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
        })
    }
}

// === impl PullArguments ===

impl PullArguments {
    fn pull(self) -> Result<Option<Pull>, ConfigError> {
        if self.pull.is_empty() && self.pull_list.is_none() {
            return Ok(None);
        }
        let (Some(authority), Some(certificate), Some(key)) = (self.pull_ca, self.pull_cert, self.pull_key)
        else {
            return Ok(None);
        };
        let agents = self.pull.iter().map(|text| PulledAgent::parse(text)).collect::<Result<_, _>>()?;
        Ok(Some(Pull {
            agents,
            list: self.pull_list,
            authority,
            certificate,
            key,
            every: Duration::from_secs(self.pull_every.into()),
            neighbours: if self.pull_neighbours { Neighbours::Asked } else { Neighbours::LeftAlone },
            bundles: if self.pull_bundles { Bundles::FetchedFromFailed } else { Bundles::LeftThere },
        }))
    }
}

// === impl Token ===

impl Token {
    fn run(self) -> Result<Exit, Failure> {
        let key = TokenKey::new(key(&self.key)?).context("use the key for tokens")?;
        let holder = match self.kind {
            Kind::Node => Holder::Node(self.name),
            Kind::Viewer => Holder::Viewer(self.name),
            Kind::Operator => Holder::Operator(self.name),
        };
        let lifetime = jiff::SignedDuration::from_hours(24 * i64::from(self.days));
        let expires = jiff::Timestamp::now().checked_add(lifetime).context("count the days")?;
        let token = key.issue(holder, expires);
        let token = token.map_err(|error| Failure::new(error, "use letters, digits, `.`, `-` and `_`"))?;
        output::print(&format!("{}\n", token.expose()))?;
        Ok(Exit::Done)
    }
}

/// Takes as many descriptors as are allowed: every node that reports may keep its connection, and shells allow 1024.
fn raise_descriptor_limit() {
    let most = getrlimit(Resource::Nofile).maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }) {
        tracing::debug!(%error, "The limit of descriptors stays.");
    }
}

/// Where the hub keeps what it is not told to keep elsewhere.
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

/// The key in this file; a new one when there is no file.
fn key(path: &Path) -> Result<Secret<Vec<u8>>, Failure> {
    let hint = "name a file only the hub's operators can read";
    let mut options = fs::OpenOptions::new();
    match options.write(true).create_new(true).mode(0o600).open(path) {
        Ok(mut file) => {
            let mut bytes = [0; KEY_BYTES];
            getrandom::fill(&mut bytes).context("draw a new key")?;
            let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
            written.with_context(|| format!("write `{}`", path.display()))?;
            Ok(Secret::new(text.into_bytes()))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let key = fs::read(path).with_context(|| format!("read `{}`", path.display()));
            key.map(Secret::new).map_err(|error| Failure::new(error, hint))
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
        HubError::PullTls(_) => {
            ("check the files of `--pull-ca`, `--pull-cert` and `--pull-key`", Exit::Failed)
        }
        HubError::Tls(_) => ("check the files of `--tls-cert`, `--tls-key` and `--client-ca`", Exit::Failed),
        HubError::ReadKey { .. } | HubError::Key(_) => {
            ("check the file of `--token-key`: at least 32 bytes that nobody can guess", Exit::Failed)
        }
        HubError::Catalogue(_) => ("this is a defect of the program: please report it", Exit::Failed),
    };
    Failure::new(error, hint).exit(exit)
}
