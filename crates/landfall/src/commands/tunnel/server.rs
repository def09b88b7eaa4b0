use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use landfall_cluster::Cluster;
use landfall_tunnel::config::{
    AgentLimits, CertificateFiles, Frontend, Mode, ServerConfig, ServerTlsFiles, Strategy, TlsPolicy,
    TlsVersion,
};
use landfall_tunnel::server::{self, Authenticate, LeaseSettings, ServerError, TokenReviews, labels};

use super::klog::{IgnoredByBoth, Klog, ignored};
use super::pflag::{boolean, duration};
use super::{cluster, file, listening, pair, until_told};
use crate::exit::{Exit, Failure};

/// Serve the API server's egress and the agents that carry it: a drop-in for `proxy-server`
///
/// Flags are upstream's. Two defaults differ: dead agents are detected within a minute, and every dial has a timeout.
#[derive(Args)]
#[command(
    version,
    args_override_self = true,
    after_help = "\
Examples:
  landfall tunnel server --mode=http-connect --uds-name=/run/konnectivity/server.sock --server-port=0 \\
    --cluster-cert=server.crt --cluster-key=server.key --cluster-ca-cert=ca.crt

Exit codes: 0 ended as asked · 1 failed · 64 wrong usage"
)]
#[expect(clippy::struct_field_names, reason = "the fields are upstream's flags")]
pub(super) struct Server {
    /// What the frontend speaks: `grpc` or `http-connect`
    #[arg(long, value_name = "MODE", default_value = "grpc")]
    mode: Mode,

    /// Port of the frontend; 0 with `--uds-name`
    #[arg(long, value_name = "PORT", default_value_t = 8090)]
    server_port: u16,

    /// Address of the frontend; empty: all
    #[arg(long, value_name = "ADDRESS", default_value = "", hide_default_value = true)]
    server_bind_address: String,

    /// Serve the frontend on this Unix socket instead of a port
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    uds_name: String,

    /// Replace a socket that is left over; one in use is never replaced
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "true", default_missing_value = "true", value_parser = boolean)]
    delete_existing_uds_file: bool,

    /// Mode of the Unix socket, as in `chmod`
    #[arg(long, value_name = "MODE", default_value = "770", value_parser = permissions)]
    uds_mode: u32,

    /// Certificate of the frontend
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    server_cert: String,

    /// Key of the frontend
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    server_key: String,

    /// Authority of the API server's client certificate
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    server_ca_cert: String,

    /// Port for agents
    #[arg(long, value_name = "PORT", default_value_t = 8091, value_parser = port())]
    agent_port: u16,

    /// Address for agents; empty: all
    #[arg(long, value_name = "ADDRESS", default_value = "", hide_default_value = true)]
    agent_bind_address: String,

    /// Certificate shown to agents
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    cluster_cert: String,

    /// Key of the certificate shown to agents
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    cluster_key: String,

    /// Authority of the agents' client certificates; without it they need none
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    cluster_ca_cert: String,

    /// Cipher suites of TLS 1.2, by Go's names; none: all that are safe
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    cipher_suites: Vec<String>,

    /// `VersionTLS12` or `VersionTLS13`; older versions are treated as 1.2
    #[arg(long, value_name = "VERSION", default_value = "VersionTLS12")]
    tls_min_version: TlsVersion,

    /// Namespace of the agents' service account; given, agents have to show its token
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    agent_namespace: String,

    /// The agents' service account
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    agent_service_account: String,

    /// What the agents' tokens have to be made for
    #[arg(long, value_name = "AUDIENCE", default_value = "", hide_default_value = true)]
    authentication_audience: String,

    /// Kubeconfig of the API server that reviews tokens and stores leases; empty: service account of this pod
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    kubeconfig: String,

    /// Keep a lease in the cluster, by which agents count servers, and clear away those of lost servers
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = boolean)]
    enable_lease_controller: bool,

    /// Namespace of the leases
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    lease_namespace: String,

    /// Labels of the leases
    #[arg(long, value_name = "LABELS", default_value = "k8s-app=konnectivity-server")]
    lease_label: String,

    /// Port for probes and metrics
    #[arg(long, value_name = "PORT", default_value_t = 8092, value_parser = port())]
    health_port: u16,

    /// Address for probes and metrics; empty: all
    #[arg(long, value_name = "ADDRESS", default_value = "", hide_default_value = true)]
    health_bind_address: String,

    /// Port for metrics and `landfall tunnel status`
    #[arg(long, value_name = "PORT", default_value_t = 8095, value_parser = port())]
    admin_port: u16,

    /// Address for metrics and `landfall tunnel status`; empty: 127.0.0.1
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    admin_bind_address: String,

    /// Idle time before an agent is pinged (upstream: 1h)
    #[arg(long, value_name = "DURATION", default_value = "35s", value_parser = duration)]
    keepalive_time: Duration,

    /// Idle time before a gRPC client is pinged
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration)]
    frontend_keepalive_time: Duration,

    /// Name of this server, different from all others' [default: a new UUID]
    #[arg(long, value_name = "ID", env = "PROXY_SERVER_ID", hide_env_values = true)]
    server_id: Option<String>,

    /// How many servers there are
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    server_count: u32,

    /// How agents are chosen, in order: `default`, `destHost`, `defaultRoute`
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "default")]
    proxy_strategies: Vec<Strategy>,

    /// Timeout of a dial (upstream: 0, unlimited; here 0 means 25s)
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = duration)]
    backend_dial_timeout: Duration,

    /// Maximum time that tunnels continue after a stop request
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = duration)]
    graceful_shutdown_timeout: Duration,

    /// Maximum pending dials per agent; further dials use other agents or fail (upstream: no limit)
    #[arg(long, value_name = "NUMBER", default_value_t = AgentLimits::DEFAULT_DIALS, value_parser = at_least_one)]
    max_dials_per_agent: usize,

    /// Maximum tunnels per agent; further dials use other agents or fail; 0: no limit
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    max_tunnels_per_agent: usize,

    #[command(flatten)]
    klog: Klog,

    #[command(flatten)]
    ignored: Ignored,
}

/// The accounts whose tokens agents must present.
struct Tokens {
    namespace: String,
    account: String,
    audience: String,
}

/// Flags that only upstream needs
#[derive(Args)]
#[command(next_help_heading = "Without effect")]
struct Ignored {
    /// No effect: at most 16 questions are under way, and good tokens are remembered for a minute
    #[arg(long, value_name = "NUMBER")]
    kubeconfig_qps: Option<f32>,

    /// No effect: at most 16 questions are under way, and good tokens are remembered for a minute
    #[arg(long, value_name = "NUMBER")]
    kubeconfig_burst: Option<u32>,

    /// No effect: requests to the API server use JSON
    #[arg(long, value_name = "TYPE")]
    kube_api_content_type: Option<String>,

    #[command(flatten)]
    of_both: IgnoredByBoth,
}

// === impl Server ===

impl Server {
    pub(super) fn verbosity(&self) -> u8 {
        self.klog.verbosity()
    }

    pub(super) fn run(self) -> Result<Exit, Failure> {
        self.klog.complain();
        self.ignored.complain();
        let (tokens, lease) = (self.tokens()?, self.lease()?);
        let kubeconfig = file(&self.kubeconfig);
        let config = self.config()?;
        let runtime = landfall_tunnel::server_runtime().context("start the runtime")?;
        let done = runtime.block_on(async {
            let (mode, id) = (config.mode, config.server_id.clone());
            let cluster = match (&tokens, &lease) {
                (None, None) => None,
                _ => Some(cluster(kubeconfig.as_deref()).await?),
            };
            let authenticate = tokens.zip(cluster.clone()).map(|(tokens, cluster)| tokens.asked_of(cluster));
            let mut server = server::Server::bind(config, authenticate).await.map_err(unable)?;
            if let Some((settings, cluster)) = lease.zip(cluster) {
                server = server.keeping_a_lease(cluster, settings);
            }
            let frontend = server.frontend_address().map(|address| address.to_string());
            let agents = server.agent_address().map(|address| address.to_string()).unwrap_or_default();
            tracing::info!(server = id, ?mode, frontend, agents, "tunnel server listens");
            until_told(|stop| server.run(stop)).await?;
            Ok(Exit::Done)
        });
        runtime.shutdown_background();
        done
    }

    /// Returns the accepted accounts, if tokens are required.
    fn tokens(&self) -> Result<Option<Tokens>, Failure> {
        let flags = [&self.agent_namespace, &self.agent_service_account, &self.authentication_audience];
        if flags.iter().all(|flag| flag.is_empty()) {
            return Ok(None);
        }
        if flags.iter().any(|flag| flag.is_empty()) {
            let error = anyhow!("tokens cannot be checked: it is not said whose, or what for");
            let hint = "give `--agent-namespace`, `--agent-service-account` and `--authentication-audience`";
            return Err(Failure::usage(error, hint));
        }
        if !self.cluster_ca_cert.is_empty() {
            let error = anyhow!("agents cannot authenticate with both a token and a certificate");
            return Err(Failure::usage(error, "give `--agent-namespace` or `--cluster-ca-cert`, not both"));
        }
        let [namespace, account, audience] = flags.map(Clone::clone);
        Ok(Some(Tokens { namespace, account, audience }))
    }

    fn lease(&self) -> Result<Option<LeaseSettings>, Failure> {
        if !self.enable_lease_controller {
            return Ok(None);
        }
        let labels =
            labels(&self.lease_label).map_err(|error| Failure::usage(error, "correct `--lease-label`"))?;
        Ok(Some(LeaseSettings { namespace: self.lease_namespace.clone(), labels }))
    }

    fn config(self) -> Result<ServerConfig, Failure> {
        let frontend = self.frontend()?;
        let Some((certificate, key)) =
            pair("`--cluster-cert` and `--cluster-key`", &self.cluster_cert, &self.cluster_key)?
        else {
            let error = anyhow!("agents cannot be served without a certificate");
            return Err(Failure::usage(error, "give `--cluster-cert` and `--cluster-key`"));
        };
        let admin = if self.admin_bind_address.is_empty() { "127.0.0.1" } else { &self.admin_bind_address };
        let health = listening("health-bind-address", &self.health_bind_address)?;
        Ok(ServerConfig {
            mode: self.mode,
            agent_bind_address: listening("agent-bind-address", &self.agent_bind_address)?,
            agent_port: self.agent_port,
            agent_tls: Some(ServerTlsFiles {
                certificate: CertificateFiles { certificate, key },
                client_ca: file(&self.cluster_ca_cert),
            }),
            tls_policy: TlsPolicy { min_version: self.tls_min_version, cipher_suites: self.cipher_suites },
            health: Some((health, self.health_port)),
            admin: Some((listening("admin-bind-address", admin)?, self.admin_port)),
            keepalive_time: self.keepalive_time,
            frontend_keepalive_time: self.frontend_keepalive_time,
            server_count: self.server_count,
            proxy_strategies: self.proxy_strategies,
            backend_dial_timeout: self.backend_dial_timeout,
            graceful_shutdown_timeout: self.graceful_shutdown_timeout,
            limits: AgentLimits {
                dials: self.max_dials_per_agent,
                tunnels: Some(self.max_tunnels_per_agent).filter(|limit| *limit > 0),
            },
            ..ServerConfig::new(
                frontend,
                self.server_id.filter(|id| !id.is_empty()).unwrap_or_else(landfall_tunnel::unique_id),
            )
        })
    }

    fn frontend(&self) -> Result<Frontend, Failure> {
        let files = [&self.server_cert, &self.server_key, &self.server_ca_cert].map(|name| file(name));
        if let Some(path) = file(&self.uds_name) {
            if self.server_port != 0 {
                let error =
                    anyhow!("`--uds-name` is given together with `--server-port={}`", self.server_port);
                return Err(Failure::usage(error, "give `--server-port=0`: the frontend is the socket"));
            }
            if files.iter().any(Option::is_some) {
                let error = anyhow!("`--uds-name` is given together with a certificate of the frontend");
                return Err(Failure::usage(
                    error,
                    "leave out `--server-cert`, `--server-key` and `--server-ca-cert`",
                ));
            }
            let delete_existing = self.delete_existing_uds_file;
            return Ok(Frontend::Unix { path, delete_existing, permissions: self.uds_mode });
        }
        let [Some(certificate), Some(key), Some(authority)] = files else {
            let error = anyhow!("the frontend's port cannot be served without certificates");
            return Err(Failure::usage(
                error,
                "give `--server-cert`, `--server-key` and `--server-ca-cert`, or `--uds-name` and `--server-port=0`",
            ));
        };
        if self.server_port == 0 {
            let error = anyhow!("`--server-port=0` is given without `--uds-name`");
            return Err(Failure::usage(error, "name a port, or a Unix socket"));
        }
        let address = listening("server-bind-address", &self.server_bind_address)?;
        let tls =
            ServerTlsFiles { certificate: CertificateFiles { certificate, key }, client_ca: Some(authority) };
        Ok(Frontend::Tcp { address, port: self.server_port, tls })
    }
}

fn unable(error: ServerError) -> Failure {
    let hint = match &error {
        ServerError::ListenForAgents { .. } => {
            "choose an address and a free port: `--agent-bind-address`, `--agent-port`"
        }
        ServerError::Listen { .. } => {
            "choose addresses and free ports: `--server-port`, `--health-port`, `--admin-port`"
        }
        ServerError::ListenUnix { .. } => "the folder of `--uds-name` has to exist, and to be ours to write",
        ServerError::InUse { .. } => "stop the other server first",
        ServerError::NotASocket { .. } => "choose another place with `--uds-name`: only a socket is replaced",
        ServerError::AgentTls(_) => {
            "check `--cluster-cert`, `--cluster-key`, `--cluster-ca-cert`, `--cipher-suites`"
        }
        ServerError::FrontendTls(_) => {
            "check `--server-cert`, `--server-key`, `--server-ca-cert`, `--cipher-suites`"
        }
    };
    Failure::new(error, hint)
}

/// Rejects port 0: clients must know the port, so it cannot be assigned at random.
pub(super) fn port() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..)
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "hint: a number from 1 on".to_owned())
}

fn permissions(text: &str) -> Result<u32, String> {
    let bits = u32::from_str_radix(text, 8).ok().filter(|bits| *bits <= 0o777);
    bits.ok_or_else(|| "hint: three octal digits, such as `770`".to_owned())
}

// === impl Tokens ===

impl Tokens {
    fn asked_of(self, cluster: Cluster) -> Arc<dyn Authenticate> {
        Arc::new(TokenReviews::new(cluster, &self.namespace, &self.account, self.audience))
    }
}

// === impl Ignored ===

impl Ignored {
    fn complain(&self) {
        ignored(&[
            ("kubeconfig-qps", self.kubeconfig_qps.is_some()),
            ("kubeconfig-burst", self.kubeconfig_burst.is_some()),
            ("kube-api-content-type", self.kube_api_content_type.is_some()),
        ]);
        self.of_both.complain();
    }
}
