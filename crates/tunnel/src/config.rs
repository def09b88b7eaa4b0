//! Configuration of server and agent. Names and defaults are those of upstream's flags, unless noted.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use landfall_net::{Backoff, InvalidBackoff};

pub use landfall_net::{CertificateFiles, ClientTls, ServerTlsFiles, TlsPolicy, TlsVersion};

use crate::identifiers::Identifiers;

/// Upstream has no limit for dials. kube-apiserver itself gives up after 30 s, so the default is slightly below.
pub const DEFAULT_DIAL_TIMEOUT: Duration = Duration::from_secs(25);
/// Upstream's default is one hour, for which dead peers stay in use. An upstream server permits one ping per 30 s, so
/// the default is slightly above.
pub const DEFAULT_KEEPALIVE: Duration = Duration::from_secs(35);

/// Growth of the pauses between calls, in percent.
const SYNC_GROWTH: u32 = 150;

/// Owner and group may use the frontend's socket.
pub const DEFAULT_UDS_PERMISSIONS: u32 = 0o770;

/// Configuration of `landfall tunnel server`.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// `--mode`
    pub mode: Mode,
    /// `--uds-name`, `--server-bind-address`, `--server-port`, `--server-cert`, `--server-key`, `--server-ca-cert`
    pub frontend: Frontend,
    /// `--agent-bind-address`
    pub agent_bind_address: IpAddr,
    /// `--agent-port`
    pub agent_port: u16,
    /// `--cluster-cert`, `--cluster-key`, `--cluster-ca-cert`; `None` disables TLS, for tests and sidecars only.
    pub agent_tls: Option<ServerTlsFiles>,
    /// `--cipher-suites`, `--tls-min-version`, for frontend and agents.
    pub tls_policy: TlsPolicy,
    /// `--health-bind-address`, `--health-port`; `None` disables the health port.
    pub health: Option<(IpAddr, u16)>,
    /// `--admin-bind-address`, `--admin-port`; `None` disables the admin port.
    pub admin: Option<(IpAddr, u16)>,
    /// `--keepalive-time`
    pub keepalive_time: Duration,
    /// `--frontend-keepalive-time`
    pub frontend_keepalive_time: Duration,
    /// `--server-id`
    pub server_id: String,
    /// `--server-count`
    pub server_count: u32,
    /// `--proxy-strategies`
    pub proxy_strategies: Vec<Strategy>,
    /// `--backend-dial-timeout`; 0 means the default.
    pub backend_dial_timeout: Duration,
    /// `--graceful-shutdown-timeout`
    pub graceful_shutdown_timeout: Duration,
    /// `--max-dials-per-agent`, `--max-tunnels-per-agent`
    pub limits: AgentLimits,
}

/// Limits for the load of one agent, which upstream does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentLimits {
    /// Pending dials.
    pub dials: usize,
    /// Open tunnels; `None` for no limit.
    pub tunnels: Option<usize>,
}

/// Listener for kube-apiserver.
#[derive(Clone, Debug)]
pub enum Frontend {
    Unix {
        path: PathBuf,
        /// `--delete-existing-uds-file`
        delete_existing: bool,
        /// `--uds-mode`; upstream's is always [`DEFAULT_UDS_PERMISSIONS`].
        permissions: u32,
    },
    Tcp {
        address: IpAddr,
        port: u16,
        /// Clients must authenticate with a certificate of this CA.
        tls: ServerTlsFiles,
    },
}

/// Protocol of the frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Grpc,
    HttpConnect,
}

/// Selection of an agent for a dial; several strategies apply in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    Default,
    DestHost,
    DefaultRoute,
}

/// Configuration of `landfall tunnel agent`.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// `--proxy-server-host`: one name or address, or a comma-separated list.
    pub proxy_server_host: String,
    /// `--proxy-server-port`
    pub proxy_server_port: u16,
    /// `--ca-cert`, `--agent-cert`, `--agent-key`, `--alpn-proto` and `h2`. `None` disables TLS, for tests and sidecars
    /// only.
    pub tls: Option<ClientTls>,
    /// `--agent-id`
    pub agent_id: String,
    /// `--agent-identifiers`
    pub agent_identifiers: Identifiers,
    /// `--health-server-host`, `--health-server-port`; `None` disables the health port.
    pub health: Option<(IpAddr, u16)>,
    /// `--admin-bind-address`, `--admin-server-port`; `None` disables the admin port.
    pub admin: Option<(IpAddr, u16)>,
    /// `--sync-interval`, `--sync-interval-cap`; see [`AgentConfig::sync`].
    pub sync: Backoff,
    /// `--sync-forever`
    pub sync_forever: bool,
    /// `--keepalive-time`
    pub keepalive_time: Duration,
    /// `--service-account-token-path`
    pub service_account_token_path: Option<PathBuf>,
    /// Time for open tunnels to finish after the first stop signal. Upstream waits without limit.
    pub drain_timeout: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("`{0}` is not a proxy strategy; hint: `default`, `destHost`, `defaultRoute`")]
    Strategy(String),
    #[error("`{0}` is not a mode; hint: `grpc`, `http-connect`")]
    Mode(String),
}

// === impl ServerConfig ===

impl ServerConfig {
    /// Returns upstream's defaults; frontend and server ID have none.
    pub fn new(frontend: Frontend, server_id: String) -> Self {
        Self {
            mode: Mode::Grpc,
            frontend,
            agent_bind_address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            agent_port: 8091,
            agent_tls: None,
            tls_policy: TlsPolicy::default(),
            health: None,
            admin: None,
            keepalive_time: DEFAULT_KEEPALIVE,
            frontend_keepalive_time: Duration::from_secs(3600),
            server_id,
            server_count: 1,
            proxy_strategies: vec![Strategy::Default],
            backend_dial_timeout: DEFAULT_DIAL_TIMEOUT,
            graceful_shutdown_timeout: Duration::ZERO,
            limits: AgentLimits::default(),
        }
    }
}

// === impl AgentConfig ===

impl AgentConfig {
    /// Returns the pauses between calls while servers are missing. A lower cap is raised to the interval.
    pub fn sync(interval: Duration, cap: Duration) -> Result<Backoff, InvalidBackoff> {
        Ok(Backoff::new(interval, cap.max(interval))?.growing::<SYNC_GROWTH>())
    }

    /// Returns upstream's defaults; the agent ID has none.
    pub fn new(agent_id: String) -> Self {
        Self {
            proxy_server_host: "127.0.0.1".to_owned(),
            proxy_server_port: 8091,
            tls: None,
            agent_id,
            agent_identifiers: Identifiers::default(),
            health: None,
            admin: None,
            sync: Backoff::millis::<1000, 10_000>().growing::<SYNC_GROWTH>(),
            sync_forever: false,
            keepalive_time: DEFAULT_KEEPALIVE,
            service_account_token_path: None,
            drain_timeout: Duration::from_secs(25),
        }
    }
}

impl AgentConfig {
    /// Returns the configured names and addresses of servers.
    pub(crate) fn server_names(&self) -> impl Iterator<Item = &str> {
        self.proxy_server_host.split(',').map(str::trim).filter(|name| !name.is_empty())
    }
}

// === impl AgentLimits ===

impl AgentLimits {
    /// An agent with more pending dials will not respond in time.
    pub const DEFAULT_DIALS: usize = 4096;
}

impl Default for AgentLimits {
    fn default() -> Self {
        Self { dials: Self::DEFAULT_DIALS, tunnels: None }
    }
}

// === impl Strategy ===

impl Strategy {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::DestHost => "destHost",
            Self::DefaultRoute => "defaultRoute",
        }
    }
}

impl std::str::FromStr for Strategy {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        match text {
            "default" => Ok(Self::Default),
            "destHost" => Ok(Self::DestHost),
            "defaultRoute" => Ok(Self::DefaultRoute),
            other => Err(ConfigError::Strategy(other.to_owned())),
        }
    }
}

// === impl Mode ===

impl std::str::FromStr for Mode {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        match text {
            "grpc" => Ok(Self::Grpc),
            "http-connect" => Ok(Self::HttpConnect),
            other => Err(ConfigError::Mode(other.to_owned())),
        }
    }
}
