//! What the gateway is told: `/etc/landfall/gateway.toml`, drop-ins beside it, and the command line, in this order.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper::header::HeaderName;
use landfall_wire::Pair;
use serde::Deserialize;

pub use crate::network::Network;

/// Where the settings are unless told otherwise.
pub const DEFAULT_FILE: &str = "/etc/landfall/gateway.toml";
/// Nothing honest is larger.
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

/// What stands in the settings. Everything may be absent: what is not told is found (`layout`) or has a default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Settings {
    /// Addresses to listen on; port 6444 of all unless told, or 6445 beside k3s.
    pub listen: Option<Vec<SocketAddr>>,
    /// What is done with connections to the API; `auto` unless told.
    pub mode: Option<Mode>,
    /// What `/readyz` says when the local API server goes; `hold` unless told.
    pub readiness: Option<Readiness>,
    /// The root of the host whose files are looked for.
    pub root: Option<PathBuf>,
    /// Certificates of the API server, to be shown in its place; the first to those that ask for none.
    pub serving: Vec<PairSettings>,
    /// Whose clients the API server knows.
    pub client_authority: Option<PathBuf>,
    /// Who the gateway is to the API server when it forwards others' requests.
    pub front_proxy: FrontProxySettings,
    /// The API servers.
    pub upstream: UpstreamSettings,
    /// With the right to review tokens and access.
    pub kubeconfig: Option<PathBuf>,
    /// A file whose one line, as a bearer token, opens `/bootstrap`.
    pub gather_token: Option<PathBuf>,
    /// Who may gather while nobody can be asked.
    pub access: AccessSettings,
    /// The Unix socket of `landfall collector`; without it a collector is started.
    pub collector: Option<PathBuf>,
    /// Balancers that send a PROXY protocol header.
    pub proxy_protocol_from: Vec<Network>,
    /// The port whose connections are redirected here while that does good.
    pub redirect: Option<u16>,
    /// Tunnels by CONNECT, for SSH to nodes.
    pub tunnel: TunnelSettings,
    /// Where raw SSH on the API port goes; off unless told.
    pub ssh: Option<SocketAddr>,
    /// Where `/metrics`, `/livez` and `/readyz` are served; nowhere unless told.
    pub admin: Option<SocketAddr>,
    /// A file that gets a line of JSON for each request to own paths and each tunnel.
    pub audit_log: Option<PathBuf>,
    /// Connections served at the same time; 20000 unless told.
    pub max_connections: Option<usize>,
    /// Seconds for load balancers to notice that this gateway goes; 30 unless told.
    pub shutdown_delay: Option<u64>,
    /// Threads that serve connections; as many as there are processors unless told.
    pub threads: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Mode {
    /// `intercept` where identity can be kept exactly, else `splice`.
    Auto,
    /// Terminates TLS, forwards requests with the client's identity, and serves own paths.
    Intercept,
    /// Passes connections on as they are.
    Splice,
}

/// What `/readyz` says when the local API server goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Readiness {
    /// Stay behind the load balancer, reachable for `/bootstrap`, as long as nobody is served worse by that.
    Hold,
    /// Go when the local API server goes.
    Leave,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PairSettings {
    /// PEM file.
    pub certificate: PathBuf,
    /// PEM file.
    pub key: PathBuf,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FrontProxySettings {
    /// The front proxy's client certificate, PEM file.
    pub certificate: Option<PathBuf>,
    /// Its key, PEM file.
    pub key: Option<PathBuf>,
    /// The authority the API server was given with `--requestheader-client-ca-file`.
    pub authority: Option<PathBuf>,
    /// As the API server's `--requestheader-username-headers` has them.
    pub username_headers: Vec<String>,
    /// As `--requestheader-group-headers` has them.
    pub group_headers: Vec<String>,
    /// As `--requestheader-extra-headers-prefix` has them.
    pub extra_header_prefixes: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct UpstreamSettings {
    /// The API server of this machine; `127.0.0.1:6443` unless told.
    pub local: Option<SocketAddr>,
    /// Those that outlive the bootstrap; found through the cluster unless told.
    pub permanent: Vec<SocketAddr>,
    /// Whose certificates API servers show.
    pub authority: Option<PathBuf>,
    /// A name every API server's certificate bears; `kubernetes.default.svc` unless told.
    pub name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AccessSettings {
    /// Users who may, by the name of their certificate.
    pub users: Vec<String>,
    /// Groups whose members may, beside `system:masters`.
    pub groups: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TunnelSettings {
    /// Where tunnels may go; none: the control plane nodes the cluster names.
    pub networks: Vec<Network>,
    /// Ports tunnels may go to; 22 and 8710 unless told.
    pub ports: Vec<u16>,
    /// Tunnels open at the same time; 16 unless told.
    pub max_tunnels: Option<usize>,
}

/// The gateway's configuration: complete, and the same for as long as it runs.
#[derive(Clone, Debug)]
pub struct Config {
    pub listen: Vec<SocketAddr>,
    pub mode: Mode,
    pub readiness: Readiness,
    pub root: PathBuf,
    /// The first is shown to clients that ask for none.
    pub serving: Vec<Pair>,
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
    /// Files that say that the permanent control plane has taken over.
    pub finished_markers: Vec<PathBuf>,
}

/// How long is waited for others.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For a client to say what it wants, and to shake hands.
    pub first: Duration,
    /// For the next request of a client, and for the head of one. An answer may be silent for ever: watches are.
    pub idle: Duration,
    /// For load balancers to notice, at the end, that this machine should get no more connections.
    pub notice: Duration,
    /// For requests to finish after that.
    pub finish: Duration,
}

#[derive(Clone, Debug)]
pub struct FrontProxy {
    pub pair: Pair,
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

/// Where logs come from: always another process, which knows no key of the front proxy.
#[derive(Clone, Debug)]
pub enum Collector {
    /// Started and kept alive by the gateway.
    Started { program: PathBuf },
    /// Run by somebody else, such as on the host of the gateway's container.
    Socket(PathBuf),
}

/// Reads a file and the drop-ins in `FILE.d/*.toml`, in the order of their names. A file that was not asked for by
/// name may be missing.
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

/// Later files win; tables are merged, everything else is replaced.
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
    /// Refuses what is understood and cannot be meant.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let front = &self.front_proxy;
        let ports = self.listen.iter().flatten().map(SocketAddr::port);
        let wrong = if self.listen.as_ref().is_some_and(Vec::is_empty) {
            "`listen` names no address"
        } else if self.redirect == Some(0) || self.tunnel.ports.contains(&0) {
            "`redirect` and `tunnel.ports` take ports from 1 on"
        } else if self.redirect.is_some_and(|redirect| ports.clone().any(|port| port == redirect)) {
            "`redirect` is a port of `listen`"
        } else if self.max_connections == Some(0) {
            "`max_connections` lets nobody in"
        } else if front.certificate.is_some() != front.key.is_some() {
            "`front_proxy` has only one of `certificate` and `key`"
        } else if ![&front.username_headers, &front.group_headers, &front.extra_header_prefixes]
            .into_iter()
            .flatten()
            .all(|name| HeaderName::from_bytes(name.as_bytes()).is_ok())
        {
            // An empty prefix would be every header's.
            "`front_proxy` names what can be no header"
        } else {
            return front.missing().map_or(Ok(()), |path| {
                let path = path.display();
                Err(ConfigError::Impossible(format!("`front_proxy` names `{path}`, which is no file")))
            });
        };
        Err(ConfigError::Impossible(wrong.to_owned()))
    }
}

// === impl FrontProxySettings ===

impl FrontProxySettings {
    /// A file that is named and not there: going on without it would be another mode than was meant.
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
            // kube-apiserver closes what is idle for 90 s.
            idle: Duration::from_secs(95),
            // The slowest balancer of the field looks every ten seconds and believes the third look.
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
                "`/none.crt`, which is no file",
            ),
            ("[front_proxy]\nauthority = \"/none.crt\"", "`/none.crt`, which is no file"),
            ("[front_proxy]\nusername_headers = [\"X User\"]", "no header"),
            ("[front_proxy]\nextra_header_prefixes = [\"\"]", "no header"),
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
