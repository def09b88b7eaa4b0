//! The gateway's configuration: `/etc/landfall/gateway.toml`, its drop-ins, and the command line, in this order.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::HeaderName;
use landfall_net::{CertificateFiles, Network};
use serde::Deserialize;

/// The default configuration file.
pub const DEFAULT_FILE: &str = "/etc/landfall/gateway.toml";
/// Maximum size of a configuration file.
const MAX_SETTINGS: u64 = 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("read the settings `{path}`")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("the settings `{path}` are too large")]
    TooLarge { path: PathBuf },
    #[error("understand the settings `{path}`")]
    Parse { path: PathBuf, source: toml::de::Error },
    #[error("understand the settings of `{path}` and its drop-ins together")]
    Merged { path: PathBuf, source: toml::de::Error },
    #[error("{0}")]
    Incomplete(String),
    #[error("{0}")]
    Impossible(String),
}

/// The settings of a configuration file. Every field is optional; the gateway detects missing values (`layout`) or uses
/// their defaults.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Settings {
    /// Addresses to listen on. Default: port 6444 on all addresses, or 6445 on k3s hosts.
    pub listen: Option<Vec<SocketAddr>>,
    /// Handling of connections to the API. Default: `auto`.
    pub mode: Option<Mode>,
    /// Result of `/readyz` after the local API server has stopped. Default: `hold`.
    pub readiness: Option<Readiness>,
    /// The root directory of the host whose files are detected.
    pub root: Option<PathBuf>,
    /// Certificates of the API server that the gateway serves. Clients without a matching server name (SNI) get the
    /// first one.
    pub serving: Vec<PairSettings>,
    /// The CA of the API server's client certificates.
    pub client_authority: Option<PathBuf>,
    /// The front-proxy credentials with which the gateway forwards requests of authenticated clients.
    pub front_proxy: FrontProxySettings,
    /// The API servers.
    pub upstream: UpstreamSettings,
    /// A kubeconfig with permission to create TokenReviews and SubjectAccessReviews.
    pub kubeconfig: Option<PathBuf>,
    /// A file with one line: the bearer token that grants access to `/bootstrap`.
    pub gather_token: Option<PathBuf>,
    /// Users and groups that may gather while no API server is available to authorize them.
    pub access: AccessSettings,
    /// The Unix socket of `landfall collector`. Default: the gateway starts a collector.
    pub collector: Option<PathBuf>,
    /// Load balancers that send a PROXY protocol header.
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub proxy_protocol_from: Vec<Network>,
    /// The port to redirect to the gateway while the API is reachable through it.
    pub redirect: Option<u16>,
    /// Tunnels by CONNECT, for SSH to nodes.
    pub tunnel: TunnelSettings,
    /// Target of raw SSH connections to the API port. Default: none, SSH is refused.
    pub ssh: Option<SocketAddr>,
    /// Address of `/metrics`, `/livez` and `/readyz`. Default: none, they are not served.
    pub admin: Option<SocketAddr>,
    /// A file that gets one line of JSON for each request to the gateway's own paths and for each tunnel.
    pub audit_log: Option<PathBuf>,
    /// Maximum number of concurrent connections. Default: 20000.
    pub max_connections: Option<usize>,
    /// Seconds before shutdown during which load balancers can detect that this gateway stops. Default: 30.
    pub shutdown_delay: Option<u64>,
    /// Number of threads that serve connections. Default: the number of processors.
    pub threads: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Mode {
    /// Uses `intercept` where client identities can be forwarded exactly, otherwise `splice`.
    Auto,
    /// Terminates TLS, forwards requests with the client's identity, and serves own paths.
    Intercept,
    /// Passes connections through unmodified.
    Splice,
}

/// Result of `/readyz` after the local API server has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Readiness {
    /// Stay in the load balancer, reachable for `/bootstrap`, as long as this does not make the API less available.
    Hold,
    /// Leave the load balancer when the local API server stops.
    Leave,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PairSettings {
    /// Path of a PEM file.
    pub certificate: PathBuf,
    /// Path of a PEM file.
    pub key: PathBuf,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FrontProxySettings {
    /// Path of the front proxy's client certificate (PEM).
    pub certificate: Option<PathBuf>,
    /// Path of its private key (PEM).
    pub key: Option<PathBuf>,
    /// The CA that the API server has as `--requestheader-client-ca-file`.
    pub authority: Option<PathBuf>,
    /// Values of the API server's `--requestheader-username-headers`.
    pub username_headers: Vec<String>,
    /// Values of `--requestheader-group-headers`.
    pub group_headers: Vec<String>,
    /// Values of `--requestheader-extra-headers-prefix`.
    pub extra_header_prefixes: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UpstreamSettings {
    /// The API server of this host. Default: `127.0.0.1:6443`.
    pub local: Option<SocketAddr>,
    /// API servers of the permanent control plane. Default: detected through the cluster.
    pub permanent: Vec<SocketAddr>,
    /// The CA of the API servers' certificates.
    pub authority: Option<PathBuf>,
    /// A name that the certificate of every API server contains. Default: `kubernetes.default.svc`.
    pub name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AccessSettings {
    /// Permitted users, by the name in their certificate.
    pub users: Vec<String>,
    /// Permitted groups, in addition to `system:masters`.
    pub groups: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TunnelSettings {
    /// Permitted destinations of tunnels. Default: the control plane nodes of the cluster.
    #[cfg_attr(feature = "schema", schemars(with = "Vec<String>"))]
    pub networks: Vec<Network>,
    /// Permitted destination ports of tunnels. Default: 22 and 8710.
    pub ports: Vec<u16>,
    /// Maximum number of concurrent tunnels. Default: 16.
    pub max_tunnels: Option<usize>,
}

/// The complete configuration of the gateway, constant while it runs.
#[derive(Clone, Debug)]
pub struct Config {
    pub listen: Vec<SocketAddr>,
    pub mode: Mode,
    pub readiness: Readiness,
    pub root: PathBuf,
    /// Clients without a matching server name (SNI) get the first certificate.
    pub serving: Vec<CertificateFiles>,
    pub client_authority: PathBuf,
    pub front_proxy: Option<FrontProxy>,
    pub upstream: Upstream,
    pub kubeconfig: Option<PathBuf>,
    pub gather_token: Option<PathBuf>,
    pub access: AccessSettings,
    pub collector: Collector,
    pub proxy_protocol_from: Vec<Network>,
    pub redirect: Option<u16>,
    pub tunnel: Tunnel,
    pub ssh: Option<SocketAddr>,
    pub admin: Option<SocketAddr>,
    pub audit_log: Option<PathBuf>,
    pub max_connections: usize,
    pub threads: usize,
    pub patience: Patience,
    /// Files that exist once the permanent control plane has taken over.
    pub finished_markers: Vec<PathBuf>,
}

/// Timeouts of the gateway.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For the first bytes of a client, and for its TLS handshake.
    pub first: Duration,
    /// For the next request of a client, and for the head of a request. Responses have no idle timeout, because watches
    /// may stay silent.
    pub idle: Duration,
    /// For load balancers to detect, on shutdown, that this gateway accepts no more connections.
    pub notice: Duration,
    /// For requests to finish after that.
    pub finish: Duration,
}

#[derive(Clone, Debug)]
pub struct FrontProxy {
    pub pair: CertificateFiles,
    pub authority: PathBuf,
    pub username_headers: Vec<String>,
    pub group_headers: Vec<String>,
    pub extra_header_prefixes: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct Upstream {
    pub local: SocketAddr,
    pub permanent: Vec<SocketAddr>,
    pub authority: PathBuf,
    pub name: String,
}

#[derive(Clone, Debug)]
pub struct Tunnel {
    pub networks: Vec<Network>,
    pub ports: Vec<u16>,
    pub max_tunnels: usize,
}

/// Source of the logs: always another process, which has no access to the key of the front proxy.
#[derive(Clone, Debug)]
pub enum Collector {
    /// A collector that the gateway starts and supervises.
    Started { program: PathBuf },
    /// An existing collector, such as on the host of the gateway's container.
    Socket(PathBuf),
}

/// Reads a file and the drop-ins in `FILE.d/*.toml`, in the order of their names. Only the default file may be missing.
pub fn read(path: Option<&Path>) -> Result<Settings, ConfigError> {
    let file = path.unwrap_or(Path::new(DEFAULT_FILE));
    let mut merged = toml::Table::new();
    match table(file) {
        Ok(table) => merge(&mut merged, table),
        Err(ConfigError::Read { source, .. })
            if path.is_none() && source.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut folder = file.as_os_str().to_owned();
    folder.push(".d");
    let folder = PathBuf::from(folder);
    let mut drop_ins: Vec<PathBuf> = match std::fs::read_dir(&folder) {
        Ok(entries) => entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(source) => return Err(ConfigError::Read { path: folder, source }),
    };
    drop_ins.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    drop_ins.sort_unstable();
    for path in drop_ins {
        merge(&mut merged, table(&path)?);
    }
    Settings::deserialize(merged).map_err(|source| ConfigError::Merged { path: file.to_owned(), source })
}

fn table(path: &Path) -> Result<toml::Table, ConfigError> {
    let failed = |source| ConfigError::Read { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(failed)?.len() > MAX_SETTINGS {
        return Err(ConfigError::TooLarge { path: path.to_owned() });
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    text.parse().map_err(|source| ConfigError::Parse { path: path.to_owned(), source })
}

/// Merges tables; later files replace all other values.
fn merge(into: &mut toml::Table, from: toml::Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => merge(old, new),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

// === impl Settings ===

impl Settings {
    /// Rejects settings that parse but are inconsistent.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let front = &self.front_proxy;
        let ports = self.listen.iter().flatten().map(SocketAddr::port);
        let wrong = if self.listen.as_ref().is_some_and(Vec::is_empty) {
            "`listen` contains no address"
        } else if self.redirect == Some(0) || self.tunnel.ports.contains(&0) {
            "`redirect` and `tunnel.ports` take ports from 1 on"
        } else if self.redirect.is_some_and(|redirect| ports.clone().any(|port| port == redirect)) {
            "`redirect` is a port of `listen`"
        } else if self.max_connections == Some(0) {
            "`max_connections` must be at least 1"
        } else if front.certificate.is_some() != front.key.is_some() {
            "`front_proxy` has only one of `certificate` and `key`"
        } else if ![&front.username_headers, &front.group_headers, &front.extra_header_prefixes]
            .into_iter()
            .flatten()
            .all(|name| HeaderName::from_bytes(name.as_bytes()).is_ok())
        {
            // An empty prefix would match every header.
            "`front_proxy` contains an invalid header name"
        } else {
            return front.missing().map_or(Ok(()), |path| {
                let path = path.display();
                Err(ConfigError::Impossible(format!("`front_proxy` names `{path}`, which is not a file")))
            });
        };
        Err(ConfigError::Impossible(wrong.to_owned()))
    }
}

// === impl FrontProxySettings ===

impl FrontProxySettings {
    /// Returns the first configured file that does not exist. Ignoring it would change the mode of the gateway
    /// silently.
    fn missing(&self) -> Option<&Path> {
        let named = [&self.certificate, &self.key, &self.authority].into_iter().flatten();
        named.map(PathBuf::as_path).find(|path| !path.is_file())
    }
}

// === impl Patience ===

impl Default for Patience {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(10),
            // kube-apiserver closes connections that are idle for 90 s.
            idle: Duration::from_secs(95),
            // The slowest common load balancer probes every 10 s and needs three failed probes.
            notice: Duration::from_secs(30),
            finish: Duration::from_secs(25),
        }
    }
}

// === impl Tunnel ===

impl Tunnel {
    pub(crate) fn allows(&self, address: IpAddr, port: u16, nodes: &[IpAddr]) -> bool {
        let address = address.to_canonical();
        self.ports.contains(&port)
            && crate::network::is_ordinary(address)
            && (nodes.contains(&address) || self.networks.iter().any(|network| network.contains(address)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_ins_win_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gateway.toml");
        let drop_ins = folder.path().join("gateway.toml.d");
        std::fs::create_dir(&drop_ins).unwrap();
        std::fs::write(&file, "mode = \"splice\"\n[access]\nusers = [\"a\"]\ngroups = [\"g\"]\n").unwrap();
        std::fs::write(drop_ins.join("20.toml"), "mode = \"intercept\"").unwrap();
        std::fs::write(
            drop_ins.join("10.toml"),
            "mode = \"auto\"\nredirect = 6443\n[access]\nusers = [\"b\"]",
        )
        .unwrap();
        std::fs::write(drop_ins.join("notes.txt"), "not TOML").unwrap();
        let settings = read(Some(&file)).unwrap();
        assert_eq!(settings.mode, Some(Mode::Intercept));
        assert_eq!(settings.redirect, Some(6443));
        assert_eq!(
            (settings.access.users, settings.access.groups),
            (vec!["b".to_owned()], vec!["g".to_owned()])
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gateway.toml");
        let there = file.display();
        let pair = format!("[front_proxy]\ncertificate = \"{there}\"\nkey = \"{there}\"\n");
        let checked = |text: &str| {
            std::fs::write(&file, text).unwrap();
            read(Some(&file)).unwrap().check().map_err(|error| error.to_string())
        };
        for (text, expected) in [
            ("listen = []", "`listen`"),
            ("redirect = 0", "ports from 1 on"),
            ("listen = [\"[::]:6443\"]\nredirect = 6443", "a port of `listen`"),
            ("max_connections = 0", "`max_connections`"),
            ("[tunnel]\nports = [22, 0]", "ports from 1 on"),
            (&format!("[front_proxy]\ncertificate = \"{there}\""), "only one of"),
            (
                "[front_proxy]\ncertificate = \"/none.crt\"\nkey = \"/none.key\"",
                "`/none.crt`, which is not a file",
            ),
            ("[front_proxy]\nauthority = \"/none.crt\"", "`/none.crt`, which is not a file"),
            ("[front_proxy]\nusername_headers = [\"X User\"]", "invalid header name"),
            ("[front_proxy]\nextra_header_prefixes = [\"\"]", "invalid header name"),
        ] {
            let error = checked(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        for good in ["", "listen = [\"[::]:6444\"]\nredirect = 6443", "[tunnel]\nmax_tunnels = 0", &pair] {
            assert_eq!(checked(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gateway.toml");
        std::fs::write(&file, "listen = [\"nowhere\"]").unwrap();
        let error = read(Some(&file)).unwrap_err();
        assert!(landfall_model::chain(&error).to_string().contains("listen"));
        assert!(matches!(read(Some(&folder.path().join("none.toml"))), Err(ConfigError::Read { .. })));
    }
}
