use std::time::Duration;

use anyhow::{Context as _, anyhow};
use clap::Args;
use landfall_cluster::LeaseQuery;
use landfall_tunnel::agent::CountSource;
use landfall_tunnel::config::{AgentConfig, CertificateFiles, ClientTls};
use landfall_tunnel::{Identifiers, Unknown, agent};

use super::klog::{IgnoredByBoth, Klog, ignored};
use super::pflag::{boolean, duration};
use super::server::port;
use super::{cluster, file, listening, pair, until_told};
use crate::exit::{Exit, Failure};

/// Dial endpoints for the tunnel's servers: a drop-in for `proxy-agent`
///
/// Flags are upstream's. Two defaults differ: a dead server is noticed within a minute, and a request to stop ends the
/// agent once its tunnels have ended, or `--drain-timeout` has.
#[derive(Args)]
#[command(
    version,
    args_override_self = true,
    after_help = "\
Examples:
  landfall tunnel agent --proxy-server-host=tunnel.example --ca-cert=ca.crt \\
    --agent-cert=agent.crt --agent-key=agent.key
  landfall tunnel agent --proxy-server-host=tunnel.example --ca-cert=ca.crt \\
    --service-account-token-path=/var/run/secrets/tokens/konnectivity-agent-token

Exit codes: 0 ended as asked · 1 failed · 64 wrong usage"
)]
#[expect(clippy::struct_field_names, reason = "the fields are upstream's flags")]
pub(super) struct Agent {
    /// Where the servers are reached: a name or an address, or several with commas; all their addresses are called in turn
    #[arg(long, value_name = "HOSTS", default_value = "127.0.0.1")]
    proxy_server_host: String,

    /// Port of the servers
    #[arg(long, value_name = "PORT", default_value_t = 8091, value_parser = port())]
    proxy_server_port: u16,

    /// Authority of the servers' certificates
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    ca_cert: String,

    /// Certificate shown to the servers
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    agent_cert: String,

    /// Key of the certificate shown to the servers
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    agent_key: String,

    /// Protocols offered before `h2` in the handshake, for proxies that choose by them
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    alpn_proto: Vec<String>,

    /// File with the token for the servers, read again for each connection
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    service_account_token_path: String,

    /// Name of this agent [default: a new UUID]
    #[arg(long, value_name = "ID", env = "PROXY_AGENT_ID", hide_env_values = true)]
    agent_id: Option<String>,

    /// What this agent can reach, as a URL's query: `ipv4`, `ipv6`, `host`, `cidr`, `default-route`
    #[arg(long, value_name = "QUERY", default_value = "", hide_default_value = true, value_parser = identifiers)]
    agent_identifiers: Identifiers,

    /// Port for probes and metrics
    #[arg(long, value_name = "PORT", default_value_t = 8093, value_parser = port())]
    health_server_port: u16,

    /// Address for probes and metrics; empty: all
    #[arg(long, value_name = "ADDRESS", default_value = "", hide_default_value = true)]
    health_server_host: String,

    /// Port for `landfall tunnel status`
    #[arg(long, value_name = "PORT", default_value_t = 8094, value_parser = port())]
    admin_server_port: u16,

    /// Address for `landfall tunnel status`; empty: all
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    admin_bind_address: String,

    /// First pause between calls while servers are missing
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    sync_interval: Duration,

    /// Longest pause between calls while servers are missing
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    sync_interval_cap: Duration,

    /// Continue to connect when all servers are connected, to discover new ones
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = boolean)]
    sync_forever: bool,

    /// Learn from the servers' leases how many there are
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = boolean)]
    count_server_leases: bool,

    /// Namespace of the leases
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    lease_namespace: String,

    /// Labels of the leases, as `kubectl -l` takes them
    #[arg(
        long,
        alias = "lease-label-selector",
        value_name = "LABELS",
        default_value = "k8s-app=konnectivity-server"
    )]
    lease_label: String,

    /// Whether leases count alone (`default`), or the larger of what leases and servers say (`max`)
    #[arg(long, value_name = "SOURCE", default_value = "default")]
    server_count_source: CountSource,

    /// How the API server is reached that keeps the leases; empty: as this pod's account
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    kubeconfig: String,

    /// Idle time before a server is pinged (upstream: 1h)
    #[arg(long, value_name = "DURATION", default_value = "35s", value_parser = duration)]
    keepalive_time: Duration,

    /// Maximum time that tunnels continue after a stop request (upstream: unlimited)
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = duration)]
    drain_timeout: Duration,

    #[command(flatten)]
    klog: Klog,

    #[command(flatten)]
    ignored: Ignored,
}

/// Flags that only upstream needs
#[derive(Args)]
#[command(next_help_heading = "Without effect")]
struct Ignored {
    /// No effect: requests to the API server use JSON
    #[arg(long, value_name = "TYPE")]
    kube_api_content_type: Option<String>,

    /// No effect: a lost connection is noticed at once
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    probe_interval: Option<Duration>,

    #[command(flatten)]
    of_both: IgnoredByBoth,
}

// === impl Agent ===

impl Agent {
    pub(super) fn verbosity(&self) -> u8 {
        self.klog.verbosity()
    }

    pub(super) fn run(self) -> Result<Exit, Failure> {
        self.klog.complain();
        self.ignored.complain();
        let source = self.server_count_source;
        let leases = self.count_server_leases.then(|| LeaseQuery {
            namespace: self.lease_namespace.clone(),
            selector: self.lease_label.clone(),
        });
        let kubeconfig = file(&self.kubeconfig);
        let config = self.config()?;
        let runtime = landfall_tunnel::agent_runtime().context("start the runtime")?;
        let done = runtime.block_on(async {
            let (id, server, port) =
                (config.agent_id.clone(), config.proxy_server_host.clone(), config.proxy_server_port);
            let mut agent = agent::Agent::bind(config).await.map_err(|error| {
                Failure::new(
                    error,
                    "choose addresses and free ports: `--health-server-port`, `--admin-server-port`",
                )
            })?;
            if let Some(query) = leases {
                agent = agent.counting_leases(cluster(kubeconfig.as_deref()).await?, query, source);
            }
            tracing::info!(agent = id, server, port, "tunnel agent starts");
            until_told(|stop| agent.run(stop)).await?;
            Ok(Exit::Done)
        });
        runtime.shutdown_background();
        done
    }

    fn config(self) -> Result<AgentConfig, Failure> {
        let certificate = pair("`--agent-cert` and `--agent-key`", &self.agent_cert, &self.agent_key)?;
        let Some(authority) = file(&self.ca_cert) else {
            let error = anyhow!("the servers' certificates cannot be checked without their authority");
            return Err(Failure::usage(error, "give `--ca-cert`"));
        };
        let certificate = certificate.map(|(certificate, key)| CertificateFiles { certificate, key });
        let offered = self.alpn_proto.into_iter().map(String::into_bytes);
        let tls = ClientTls {
            ca: Some(authority),
            certificate,
            protocols: offered.chain([b"h2".to_vec()]).collect(),
        };
        tls.read()
            .map_err(|error| Failure::new(error, "check `--ca-cert`, `--agent-cert`, `--agent-key`"))?;
        let health = listening("health-server-host", &self.health_server_host)?;
        let admin = listening("admin-bind-address", &self.admin_bind_address)?;
        Ok(AgentConfig {
            proxy_server_host: self.proxy_server_host,
            proxy_server_port: self.proxy_server_port,
            tls: Some(tls),
            agent_identifiers: self.agent_identifiers,
            health: Some((health, self.health_server_port)),
            admin: Some((admin, self.admin_server_port)),
            sync: AgentConfig::sync(self.sync_interval, self.sync_interval_cap)
                .map_err(|error| Failure::usage(error, "change `--sync-interval`, such as to `1s`"))?,
            sync_forever: self.sync_forever,
            keepalive_time: self.keepalive_time,
            service_account_token_path: file(&self.service_account_token_path),
            drain_timeout: self.drain_timeout,
            ..AgentConfig::new(
                self.agent_id.filter(|id| !id.is_empty()).unwrap_or_else(landfall_tunnel::unique_id),
            )
        })
    }
}

fn identifiers(text: &str) -> Result<Identifiers, landfall_tunnel::IdentifierError> {
    Identifiers::parse(text, Unknown::Refused)
}

// === impl Ignored ===

impl Ignored {
    fn complain(&self) {
        ignored(&[
            ("kube-api-content-type", self.kube_api_content_type.is_some()),
            ("probe-interval", self.probe_interval.is_some()),
        ]);
        self.of_both.complain();
    }
}
