//! The gateway on a control plane host: its unit and settings, and the clients that may connect and gather.

use std::fmt::Write as _;
use std::net::IpAddr;

use landfall_cluster::manifest;
use landfall_model::Secret;
use serde_json::json;

use crate::package::{HostFile, Machines, Package, Unit, filled};
use crate::{Download, Format, Plan, RenderError, Target, chart, names, objects};

const UNIT: &str = "landfall-gateway.service";
const SHIPPED: &str = include_str!("../../../dist/landfall-gateway.service");
/// The start line of the shipped unit. Its flags are in the settings file here.
const SHIPPED_START: &str = "ExecStart=/usr/local/bin/landfall gateway --redirect 6443 --audit-log /var/log/landfall/gateway-audit.log --admin 127.0.0.1:9444";
const SETTINGS: &str = "/etc/landfall/gateway.toml";
const GUARD: &str = "/etc/landfall/gateway-guard.nft";
/// A separate table: the gateway adds and removes its own one with the redirect rule.
const GUARD_TABLE: &str = "landfall_gateway_guard";
const TOKEN: &str = "/etc/landfall/gather-token";
const ROLE: &str = "landfall-bootstrap-gatherer";

#[expect(missing_debug_implementations, reason = "holds a token")]
pub struct Settings {
    pub target: Target,
    /// The port that is redirected to the gateway while the API is reachable through it.
    pub redirect: Option<u16>,
    /// Networks that may connect to the gateway's port; empty for all networks.
    pub networks: Vec<String>,
    /// A group whose members may gather while an API server authorizes requests.
    pub gatherers: Option<String>,
    /// Opens `/bootstrap` in every phase; not rendered for the installer's source.
    pub token: Secret<String>,
    pub download: Option<Download>,
}

pub fn plan(settings: &Settings, format: Format) -> Result<Plan, RenderError> {
    settings.check()?;
    let mut package = Package::new("landfall-gateway", "Access to logs of a bootstrap", settings.target);
    package.machines = Machines::ControlPlane;
    package.download.clone_from(&settings.download);
    // Files in the installer's source are the same for every cluster: one token would be valid for all of
    // them.
    let with_token = format != Format::Installer;
    package.files = vec![HostFile::open(SETTINGS, settings_file(settings, with_token))];
    if with_token {
        package.files.push(HostFile::secret(TOKEN, format!("{}\n", settings.token.expose())));
    }
    if let Some(guard) = guard(settings)? {
        package.files.push(HostFile::open(GUARD, guard));
        package.files.push(HostFile::open(format!("/etc/systemd/system/{UNIT}.d/10-guard.conf"), drop_in()));
    }
    package.units.push(Unit { name: UNIT, text: unit() });
    let mut group = settings.gatherers.clone();
    if format == Format::Helm && group.is_some() {
        package.values = chart::Values { gatherers: group, ..chart::Values::default() };
        group = Some(chart::GATHERERS.to_owned());
    }
    let values = [("NAME", json!(ROLE)), ("LABELS", objects::labels(ROLE)), ("GROUP", json!(group))];
    let rights = manifest::objects(include_str!("../files/gather-rights.yaml"), &values);
    package.objects.extend(["cluster-role", "cluster-role-binding"].into_iter().zip(rights));
    if group.is_none() {
        package.objects.pop();
    }
    package.plan(format)
}

fn unit() -> String {
    SHIPPED.replace(SHIPPED_START, "ExecStart=/usr/local/bin/landfall gateway")
}

fn settings_file(settings: &Settings, with_token: bool) -> String {
    let mut text = format!("listen = [\"[::]:{}\"]\n", settings.port());
    if let Some(port) = settings.redirect {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "redirect = {port}");
    }
    if with_token {
        let _ = writeln!(text, "gather_token = \"{TOKEN}\"");
    }
    text + "admin = \"127.0.0.1:9444\"\naudit_log = \"/var/log/landfall/gateway-audit.log\"\n"
}

/// Returns firewall rules for the gateway's own port. With a redirect, only connections to the API port are
/// accepted, so that the gateway's port is not a second entry point.
fn guard(settings: &Settings) -> Result<Option<String>, RenderError> {
    let mut families: [Vec<&str>; 2] = Default::default();
    for network in &settings.networks {
        let family = usize::from(matches!(names::network(network)?, IpAddr::V6(_)));
        families[family].push(network);
    }
    let mut rules = String::new();
    if settings.redirect.is_some() {
        rules += "    ct status & dnat == 0 counter drop comment \"it did not come for the API port\"\n";
    }
    if !settings.networks.is_empty() {
        for (word, networks) in ["ip", "ip6"].into_iter().zip(&families) {
            if !networks.is_empty() {
                let _ = writeln!(rules, "    {word} saddr {{ {} }} accept", networks.join(", "));
            }
        }
        rules += "    counter drop comment \"not from a network that may come\"\n";
    }
    if rules.is_empty() {
        return Ok(None);
    }
    let port = settings.port().to_string();
    let values = [("@UNIT@", UNIT), ("@TABLE@", GUARD_TABLE), ("@PORT@", &port), ("@RULES@", &rules)];
    Ok(Some(filled(include_str!("../files/gateway-guard.nft"), &values)))
}

fn drop_in() -> String {
    format!(
        "[Service]\n\
         ExecStartPre=/usr/sbin/nft --file {GUARD}\n\
         ExecStopPost=-/usr/sbin/nft delete table inet {GUARD_TABLE}\n"
    )
}

// === impl Settings ===

impl Settings {
    /// Returns the gateway's port, which differs for k3s: its load balancer uses 6444.
    fn port(&self) -> u16 {
        if self.target == Target::K3s { 6445 } else { 6444 }
    }

    fn check(&self) -> Result<(), RenderError> {
        if self.redirect == Some(0) || self.redirect == Some(self.port()) {
            let ports = format!("{}, {}", self.port(), self.redirect.unwrap_or(0));
            return Err(RenderError::Ports { ports });
        }
        if let Some(group) = &self.gatherers {
            let named = !group.trim().is_empty() && !group.chars().any(char::is_control);
            if !named || group == names::EVERYBODY {
                return Err(RenderError::Group { group: group.clone() });
            }
        }
        self.download.as_ref().map_or(Ok(()), Download::check)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_shipped_unit_is_known() {
        assert!(super::unit().contains("\nExecStart=/usr/local/bin/landfall gateway\n"));
    }
}
