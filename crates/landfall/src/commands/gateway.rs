use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use landfall_gateway::GatewayError;
use landfall_gateway::config::{self, ConfigError, Settings};
use landfall_gateway::layout::{self, Chosen};

use super::tunnel::until_told;
use crate::commands::same_variants;
use crate::exit::{Exit, Failure};

/// Observing API servers, collecting and token reviews need little CPU time.
const OWN_THREADS: usize = 2;

/// Serve the API endpoint: `/bootstrap` here, everything else to the API server
///
/// Finds the certificates of an OpenShift bootstrap host, of kubeadm and of k3s by itself and says what it chose.
#[derive(Args)]
#[command(after_help = "\
Examples:
  landfall gateway
  landfall gateway --mode splice --listen 0.0.0.0:6443 --upstream 127.0.0.1:7443
  curl --cert admin.crt --key admin.key https://api.example.org:6443/bootstrap -o bundle.tar.gz

Settings are read from /etc/landfall/gateway.toml and gateway.toml.d/*.toml; flags override them. docs/guides/gateway.md lists all.")]
pub(crate) struct Gateway {
    /// Settings; drop-ins are in FILE.d [default: /etc/landfall/gateway.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Where to listen; may be given several times [default: port 6444 of every address]
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<SocketAddr>,

    /// Handling of TLS connections
    #[arg(long, value_enum)]
    mode: Option<Mode>,

    /// Response to load balancers when the local API server stops
    #[arg(long, value_enum)]
    readiness: Option<Readiness>,

    /// The local API server [default: 127.0.0.1:6443]
    #[arg(long, value_name = "ADDRESS")]
    upstream: Option<SocketAddr>,

    /// Redirect this port to the gateway while the API is reachable through it
    #[arg(long, value_name = "PORT")]
    redirect: Option<u16>,

    /// The socket of a `landfall collector`; without it one is started
    #[arg(long, value_name = "PATH")]
    collector: Option<PathBuf>,

    /// A file with a token that opens `/bootstrap`
    #[arg(long, value_name = "FILE")]
    gather_token: Option<PathBuf>,

    /// Where metrics are served, in clear
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<SocketAddr>,

    /// Where decisions about `/bootstrap` are written, one JSON object a line
    #[arg(long, value_name = "FILE")]
    audit_log: Option<PathBuf>,

    /// The machine's root folder: `/`, or a container's `/host`
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,

    /// Print the effective choices with reasons, check the named files, and exit
    #[arg(long)]
    check: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    /// Intercept where every client's identity can be kept, else splice
    Auto,
    /// Terminate TLS and forward with identity kept
    Intercept,
    /// Pass TLS on untouched while an API server answers
    Splice,
}

#[derive(Clone, Copy, ValueEnum)]
enum Readiness {
    /// Stay, reachable for `/bootstrap`
    Hold,
    /// Go when the local API server goes
    Leave,
}

// === impl Gateway ===

impl Gateway {
    pub(crate) fn run(self) -> Result<Exit, Failure> {
        let settings = config::read(self.config.as_deref()).map_err(explain_settings)?;
        let check = self.check;
        let program = std::env::current_exe().context("find this program")?;
        let Chosen { config, reasons } =
            layout::choose(self.over(settings), program).map_err(explain_settings)?;
        for reason in &reasons {
            tracing::info!(reason, "chosen");
            // Errors are ignored: standard error may be closed.
            let _ = writeln!(std::io::stderr(), "{reason}");
        }
        if check {
            landfall_gateway::check(&config).map_err(explain)?;
            return Ok(Exit::Done);
        }
        // Connections have their own threads; this runtime is for everything else.
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(OWN_THREADS).enable_all().build();
        runtime.context("start the runtime")?.block_on(async {
            let bound = landfall_gateway::bind(config).map_err(explain)?;
            bound.check().await.map_err(explain)?;
            for address in bound.addresses() {
                let _ = writeln!(std::io::stderr(), "listening on {address}");
            }
            until_told(|stop| bound.run(async move { stop.cancelled().await })).await?;
            Ok::<_, Failure>(())
        })?;
        Ok(Exit::Done)
    }

    /// Overrides settings by values of the command line.
    fn over(self, mut settings: Settings) -> Settings {
        if !self.listen.is_empty() {
            settings.listen = Some(self.listen);
        }
        settings.mode = self.mode.map(Into::into).or(settings.mode);
        settings.readiness = self.readiness.map(Into::into).or(settings.readiness);
        settings.upstream.local = self.upstream.or(settings.upstream.local);
        settings.redirect = self.redirect.or(settings.redirect);
        settings.collector = self.collector.or(settings.collector);
        settings.gather_token = self.gather_token.or(settings.gather_token);
        settings.admin = self.admin.or(settings.admin);
        settings.audit_log = self.audit_log.or(settings.audit_log);
        settings.root = self.root.or(settings.root);
        settings
    }
}

fn explain_settings(error: ConfigError) -> Failure {
    let hint = match &error {
        ConfigError::Incomplete(_) => "run it on a control plane host, or name the files in the settings",
        _ => "correct the file; docs/guides/gateway.md lists all settings",
    };
    Failure::new(error, hint)
}

fn explain(error: GatewayError) -> Failure {
    let hint = match &error {
        GatewayError::Credentials(_) => "run as root, and check the files named above",
        GatewayError::Listen { .. } => "choose another address with `--listen` or `--admin`",
        GatewayError::Redirect(_) => {
            "run as root with the package `nftables` installed, or leave out `--redirect`"
        }
        GatewayError::Threads(_) => "set `threads` lower, or allow this user more processes",
        GatewayError::Audit { .. } => "choose another file with `--audit-log`",
        GatewayError::Collector(_) => {
            "run `landfall collector` yourself and name its socket with `--collector`"
        }
    };
    Failure::new(error, hint)
}

same_variants!(Mode => config::Mode { Auto, Intercept, Splice });
same_variants!(Readiness => config::Readiness { Hold, Leave });
