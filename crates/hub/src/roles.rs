//! Health targets: gateways, tunnel servers and tunnel agents.
//!
//! The hub polls their health ports for readiness and metrics.

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use landfall_model::chain;
use serde::{Serialize, Serializer};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::client::{Client, ClientError};
use crate::config::ConfigError;

/// Interval between polls of every target.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Timeout of each request of a poll.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of health targets; all are polled concurrently.
pub(crate) const MAX_ROLES: usize = 64;
/// Maximum number of parsed metrics lines; a target has about 100.
const MAX_LINES: usize = 20_000;
/// Maximum length of a displayed reason.
const MAX_DETAIL: usize = 400;

/// Metrics shown on the page, and their labels there. Series with the same name are added up.
const FIGURES: &[(&str, &str)] = &[
    ("landfall_gateway_connections", "connections"),
    ("landfall_gateway_tunnels", "tunnels"),
    ("landfall_gateway_failed_handshakes_total", "failed handshakes"),
    ("landfall_gateway_denied_total", "denied"),
    ("konnectivity_network_proxy_server_ready_backend_connections", "agents"),
    ("konnectivity_network_proxy_server_established_connections", "tunnels"),
    ("konnectivity_network_proxy_server_pending_backend_dials", "dials waiting"),
    ("konnectivity_network_proxy_server_dial_failure_count", "failed dials"),
    ("konnectivity_network_proxy_agent_open_server_connections", "servers"),
    ("konnectivity_network_proxy_agent_known_server_count", "servers known"),
    ("konnectivity_network_proxy_agent_open_endpoint_connections", "tunnels"),
    ("konnectivity_network_proxy_agent_endpoint_dial_failure_total", "failed dials"),
];

/// A health target: `NAME=URL` of its health port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedRole {
    pub name: String,
    pub address: String,
}

/// Health of a target.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct RoleHealth {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) readiness: Readiness,
    /// Time of the last change of the readiness.
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub(crate) since: Timestamp,
    /// Time of the last poll.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub(crate) asked: Option<Timestamp>,
    /// Reason why the target is not ready.
    pub(crate) detail: String,
    /// Its metrics by label.
    #[serde(serialize_with = "by_caption")]
    #[cfg_attr(feature = "schema", schemars(with = "std::collections::BTreeMap<String, f64>"))]
    pub(crate) figures: Vec<(&'static str, f64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) enum Readiness {
    NotAsked,
    Ready,
    NotReady,
    Unreachable,
}

/// All health targets.
#[derive(Debug)]
pub(crate) struct Roles {
    authority: Option<PathBuf>,
    health: watch::Sender<Vec<RoleHealth>>,
}

/// Result of one poll of a target.
struct Seen {
    readiness: Readiness,
    detail: String,
    figures: Vec<(&'static str, f64)>,
}

// === impl WatchedRole ===

impl WatchedRole {
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let invalid = || ConfigError::Watch(text.to_owned());
        let (name, address) = text.split_once('=').ok_or_else(invalid)?;
        if name.is_empty() || name.len() > 100 || name.chars().any(char::is_control) {
            return Err(invalid());
        }
        Client::new(address, None, None).map_err(|_| invalid())?;
        Ok(Self { name: name.to_owned(), address: address.to_owned() })
    }
}

// === impl Roles ===

impl Roles {
    pub(crate) fn new(watched: Vec<WatchedRole>, authority: Option<PathBuf>) -> Self {
        let now = Timestamp::now();
        let unknown = |role: WatchedRole| RoleHealth {
            name: role.name,
            address: role.address,
            readiness: Readiness::NotAsked,
            since: now,
            asked: None,
            detail: String::new(),
            figures: Vec::new(),
        };
        Self { authority, health: watch::Sender::new(watched.into_iter().map(unknown).collect()) }
    }

    pub(crate) fn health(&self) -> Vec<RoleHealth> {
        self.health.borrow().clone()
    }

    /// Polls all targets forever.
    pub(crate) async fn look(&self) {
        let addresses: Vec<String> = self.health().into_iter().map(|role| role.address).collect();
        if addresses.is_empty() {
            return std::future::pending().await;
        }
        loop {
            let mut round = JoinSet::new();
            for (place, address) in addresses.iter().enumerate() {
                let client = Client::new(address, self.authority.clone(), None);
                round.spawn(async move { (place, Seen::ask(client).await) });
            }
            while let Some(answer) = round.join_next().await {
                let Ok((place, seen)) = answer else { continue };
                self.health.send_modify(|roles| {
                    if let Some(role) = roles.get_mut(place) {
                        role.learn(seen, Timestamp::now());
                    }
                });
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

// === impl RoleHealth ===

impl RoleHealth {
    fn learn(&mut self, seen: Seen, now: Timestamp) {
        if self.readiness != seen.readiness {
            tracing::info!(role = self.name, readiness = ?seen.readiness, "The readiness of a role changed.");
            self.since = now;
        }
        self.readiness = seen.readiness;
        self.asked = Some(now);
        self.detail = seen.detail;
        self.figures = seen.figures;
    }
}

// === impl Seen ===

impl Seen {
    async fn ask(client: Result<Client, ClientError>) -> Self {
        let Ok(client) = client.map(|client| client.within(PATIENCE)) else {
            return Self::without_figures(Readiness::Unreachable, "its address cannot be used".to_owned());
        };
        let (readiness, detail) = match client.get("/readyz").await {
            Ok(_) => (Readiness::Ready, String::new()),
            // A tunnel's admin port serves metrics only.
            Err(ClientError::Refused { status: 404, .. }) => {
                let detail = "this port has no `/readyz`: of a gateway name the admin port, of a tunnel the health port";
                (Readiness::NotReady, detail.to_owned())
            }
            Err(ClientError::Refused { status, detail }) => {
                (Readiness::NotReady, format!("{status}: {}", failing(&detail)))
            }
            Err(error) => {
                return Self::without_figures(Readiness::Unreachable, short(&chain(&error).to_string()));
            }
        };
        // Missing metrics do not affect the readiness.
        let metrics = client.get("/metrics").await.unwrap_or_default();
        Self { readiness, detail, figures: figures(&String::from_utf8_lossy(&metrics)) }
    }

    fn without_figures(readiness: Readiness, detail: String) -> Self {
        Self { readiness, detail, figures: Vec::new() }
    }
}

fn by_caption<S: Serializer>(figures: &[(&'static str, f64)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(figures.iter().copied())
}

/// Returns the failing checks of a list of checks, which the client has joined to one line.
fn failing(detail: &str) -> String {
    let failed: Vec<&str> = detail.split("; ").filter_map(|check| check.strip_prefix("[-]")).collect();
    short(&if failed.is_empty() { detail.to_owned() } else { failed.join("; ") })
}

fn short(text: &str) -> String {
    text.chars().take(MAX_DETAIL).collect()
}

/// Returns the displayed metrics of a metrics page, in the order of [`FIGURES`].
fn figures(page: &str) -> Vec<(&'static str, f64)> {
    let mut sums = vec![None; FIGURES.len()];
    for line in page.lines().take(MAX_LINES) {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let name = series.split_once('{').map_or(series, |(name, _)| name);
        let place = FIGURES.iter().position(|(known, _)| *known == name);
        if let (Some(place), Ok(value)) = (place, value.parse::<f64>())
            && value.is_finite()
        {
            *sums[place].get_or_insert(0.0) += value;
        }
    }
    FIGURES.iter().zip(sums).filter_map(|((_, caption), sum)| Some((*caption, sum?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_added_up_and_nonsense_is_left_out() {
        let page = "# HELP landfall_gateway_connections Connections\nlandfall_gateway_connections 7\n\
                    konnectivity_network_proxy_server_dial_failure_count{reason=\"a b\"} 2\n\
                    konnectivity_network_proxy_server_dial_failure_count{reason=\"c\"} 3\n\
                    landfall_gateway_tunnels many\n\u{0}\n other 1\n";
        assert_eq!(figures(page), [("connections", 7.0), ("failed dials", 5.0)]);
    }

    #[test]
    fn a_role_is_a_name_and_an_address() {
        let role = WatchedRole::parse("gateway east=http://10.0.0.1:9000").unwrap();
        assert_eq!((role.name.as_str(), role.address.as_str()), ("gateway east", "http://10.0.0.1:9000"));
        for bad in ["", "http://x:1", "=http://x:1", "a=ftp://x", "a=", "a\n=http://x:1"] {
            assert!(WatchedRole::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn of_many_checks_those_that_fail_are_told() {
        assert_eq!(
            failing("[+]ping ok; [-]server-connected failed: no servers connected"),
            "server-connected failed: no servers connected"
        );
        assert_eq!(failing("Service Unavailable"), "Service Unavailable");
    }
}
