//! What server and agent can be told. Names and defaults are those of upstream's flags, unless noted.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use crate::identifiers::Identifiers;
use crate::tls::TlsError;

/// Upstream leaves dials unbounded; kube-apiserver itself gives up after 30 s, so a little less is as patient.
pub const DEFAULT_DIAL_TIMEOUT: Duration = Duration::from_secs(25);
/// Upstream looks after an hour, so that dead peers stay in use for an hour. An upstream server does not allow more
/// than one question in 30 s, so a little more is safe.
pub const DEFAULT_KEEPALIVE: Duration = Duration::from_secs(35);

/// The owner and the group may use the frontend's socket.
pub const DEFAULT_UDS_PERMISSIONS: u32 = 0o770;

/// `landfall tunnel server`.
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
    /// `--cluster-cert`, `--cluster-key`, `--cluster-ca-cert`; none means no TLS, for tests and sidecars only.
    pub agent_tls: Option<ServingFiles>,
    /// `--cipher-suites`, `--tls-min-version`, for both of the above.
    pub tls_policy: TlsPolicy,
    /// `--health-bind-address`, `--health-port`; none serves no health.
    pub health: Option<(IpAddr, u16)>,
    /// `--admin-bind-address`, `--admin-port`; none serves no administrators.
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

/// What one agent is asked to carry. Upstream knows no such limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentLimits {
    /// Dials without an answer.
    pub dials: usize,
    /// Open tunnels; none: as many as there are.
    pub tunnels: Option<usize>,
}

/// Where kube-apiserver comes in.
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
        /// Clients must show a certificate of this authority.
        tls: ServingFiles,
    },
}

/// What the frontend speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Grpc,
    HttpConnect,
}

/// How an agent is chosen for a dial; several are tried in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    Default,
    DestHost,
    DefaultRoute,
}

/// A server's certificate and whose clients it believes.
#[derive(Clone, Debug)]
pub struct ServingFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// None: clients need no certificate.
    pub client_authority: Option<PathBuf>,
}

/// What a server accepts in a handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsPolicy {
    pub at_least: TlsVersion,
    /// Names of suites for TLS 1.2; none means all that are safe. TLS 1.3 has only safe ones.
    pub cipher_suites: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsVersion {
    #[default]
    Tls12,
    Tls13,
}

/// `landfall tunnel agent`.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// `--proxy-server-host`: one name or address, or several with commas between them.
    pub proxy_server_host: String,
    /// `--proxy-server-port`
    pub proxy_server_port: u16,
    /// `--ca-cert`, `--agent-cert`, `--agent-key`, `--alpn-proto`; none means no TLS, for tests and sidecars only.
    pub tls: Option<CallingFiles>,
    /// `--agent-id`
    pub agent_id: String,
    /// `--agent-identifiers`
    pub agent_identifiers: Identifiers,
    /// `--health-server-host`, `--health-server-port`; none serves no health.
    pub health: Option<(IpAddr, u16)>,
    /// `--admin-bind-address`, `--admin-server-port`; none serves no administrators.
    pub admin: Option<(IpAddr, u16)>,
    /// `--sync-interval`
    pub sync_interval: Duration,
    /// `--sync-interval-cap`
    pub sync_interval_cap: Duration,
    /// `--sync-forever`
    pub sync_forever: bool,
    /// `--keepalive-time`
    pub keepalive_time: Duration,
    /// `--service-account-token-path`
    pub service_account_token_path: Option<PathBuf>,
    /// How long tunnels may go on after the first request to stop. Upstream waits for ever.
    pub drain_timeout: Duration,
}

/// A client's trust and its certificate.
#[derive(Clone, Debug)]
pub struct CallingFiles {
    pub authority: PathBuf,
    /// Certificate and key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Offered before `h2`.
    pub alpn: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("`{0}` is not a proxy strategy; hint: `default`, `destHost`, `defaultRoute`")]
    Strategy(String),
    #[error("`{0}` is not a mode; hint: `grpc`, `http-connect`")]
    Mode(String),
    #[error("`{0}` is not a TLS version; hint: `VersionTLS12`, `VersionTLS13`")]
    TlsVersion(String),
}

// === impl ServerConfig ===

impl ServerConfig {
    /// Upstream's defaults, for a frontend and an identity that have none.
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
    /// Upstream's defaults, for an identity that has none.
    pub fn new(agent_id: String) -> Self {
        Self {
            proxy_server_host: "127.0.0.1".to_owned(),
            proxy_server_port: 8091,
            tls: None,
            agent_id,
            agent_identifiers: Identifiers::default(),
            health: None,
            admin: None,
            sync_interval: Duration::from_secs(1),
            sync_interval_cap: Duration::from_secs(10),
            sync_forever: false,
            keepalive_time: DEFAULT_KEEPALIVE,
            service_account_token_path: None,
            drain_timeout: Duration::from_secs(25),
        }
    }
}

impl AgentConfig {
    /// The names and addresses under which servers are called.
    pub(crate) fn server_names(&self) -> impl Iterator<Item = &str> {
        self.proxy_server_host.split(',').map(str::trim).filter(|name| !name.is_empty())
    }
}

// === impl AgentLimits ===

impl AgentLimits {
    /// An agent this far behind is not going to answer in time.
    pub const DEFAULT_DIALS: usize = 4096;
}

impl Default for AgentLimits {
    fn default() -> Self {
        Self { dials: Self::DEFAULT_DIALS, tunnels: None }
    }
}

// === impl CallingFiles ===

impl CallingFiles {
    /// Whether they can be used as they stand now. They are read again for each call.
    pub fn check(&self) -> Result<(), TlsError> {
        crate::tls::calling(self).map(|_| ())
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

// === impl TlsVersion ===

impl std::str::FromStr for TlsVersion {
    type Err = ConfigError;

    /// As Go names them. What is older than 1.2 is not spoken here: whoever asks for it gets 1.2.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        match text {
            "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" => Ok(Self::Tls12),
            "VersionTLS13" => Ok(Self::Tls13),
            other => Err(ConfigError::TlsVersion(other.to_owned())),
        }
    }
}
