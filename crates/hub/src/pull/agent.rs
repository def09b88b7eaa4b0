//! Address of an agent, and the nodes for which it may report.

use std::fmt;

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::config::ConfigError;
use crate::name::NodeName;

/// Default port of agents.
const PORT: u16 = 8710;
/// Maximum number of names read from a certificate.
const MAX_NAMES: usize = 32;

/// A polled agent: `[NODE=]HOST[:PORT]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PulledAgent {
    /// The cluster whose API server forwards connections to the agent.
    pub(super) cluster: Option<String>,
    /// The node for which it reports, if its certificate does not name the node.
    node: Option<NodeName>,
    pub(super) host: String,
    pub(super) port: u16,
}

// === impl PulledAgent ===

impl PulledAgent {
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let invalid = || ConfigError::Pull(text.to_owned());
        let (node, place) = match text.split_once('=') {
            Some((node, place)) => (Some(NodeName::new(node).map_err(|_| invalid())?), place),
            None => (None, text),
        };
        let (host, port) = match place.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, "")) => (address, None),
            Some((address, rest)) => (address, Some(rest.strip_prefix(':').ok_or_else(invalid)?)),
            None => match place.rsplit_once(':') {
                Some((host, _)) if host.contains(':') => (place, None),
                Some((host, port)) => (host, Some(port)),
                None => (place, None),
            },
        };
        let port = port.map_or(Ok(PORT), str::parse).map_err(|_| invalid())?;
        // Only names that a certificate can contain are accepted.
        rustls::pki_types::ServerName::try_from(host).map_err(|_| invalid())?;
        if port == 0 { Err(invalid()) } else { Ok(Self { cluster: None, node, host: host.to_owned(), port }) }
    }

    /// Creates the agent of a cluster's node. Its certificate must be valid for the node's name.
    pub(super) fn within(cluster: &str, node: &NodeName) -> Self {
        let host = node.to_string();
        Self { cluster: Some(cluster.to_owned()), node: Some(node.clone()), host, port: PORT }
    }

    /// Returns `HOST:PORT`.
    pub(super) fn place(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Returns the nodes for which the agent may report. These are the configured node, or else those of its host
    /// name and its certificate. A node of a cluster may prefix its name with the cluster's
    /// (`/etc/landfall/cluster`), if the hub uses the same name for the cluster.
    pub(super) fn names(&self, certificate: &[u8]) -> Vec<NodeName> {
        if let Some(node) = &self.node {
            let within =
                self.cluster.as_ref().and_then(|cluster| NodeName::new(format!("{cluster}.{node}")).ok());
            return [node.clone()].into_iter().chain(within).collect();
        }
        let mut names: Vec<NodeName> = NodeName::new(self.host.as_str()).into_iter().collect();
        if let Ok((_, certificate)) = X509Certificate::from_der(certificate)
            && let Ok(Some(alternative)) = certificate.subject_alternative_name()
        {
            let dns = alternative.value.general_names.iter().filter_map(|name| match name {
                GeneralName::DNSName(name) => NodeName::new(*name).ok(),
                _ => None,
            });
            names.extend(dns.take(MAX_NAMES));
        }
        names
    }
}

impl fmt::Display for PulledAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.cluster, &self.node) {
            (Some(cluster), _) => write!(f, "{cluster}/")?,
            (None, Some(node)) => write!(f, "{node}=")?,
            (None, None) => {}
        }
        f.write_str(&self.place())
    }
}

/// Parses a list with one agent per line. Empty lines and lines that begin with `#` are ignored.
pub(super) fn read_list(text: &str) -> Result<Vec<PulledAgent>, ConfigError> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(PulledAgent::parse).collect()
}

#[cfg(test)]
mod tests {
    use landfall_pki::{Authority, Leaf, Purpose};
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;

    use super::*;

    #[test]
    fn an_agent_is_a_host_with_or_without_a_port_and_a_name() {
        for (text, shown) in [
            ("n1.corp", "n1.corp:8710"),
            ("n1.corp:99", "n1.corp:99"),
            ("n1=10.0.0.4:99", "n1=10.0.0.4:99"),
            ("fd00::1", "[fd00::1]:8710"),
            ("n1=[fd00::1]:99", "n1=[fd00::1]:99"),
        ] {
            assert_eq!(PulledAgent::parse(text).unwrap().to_string(), shown);
        }
        for bad in [
            "",
            "=n1",
            "n1=",
            "a b",
            "n1:0",
            "n1:x",
            "n1:99999",
            "https://n1",
            "[fd00::1]x",
            "../n=h",
            "n1/x",
        ] {
            assert!(PulledAgent::parse(bad).is_err(), "{bad:?}");
        }
        let listed = read_list("# the east\n\n  n1.corp \nn2=10.0.0.2\n").unwrap();
        assert_eq!(listed.len(), 2);
        assert!(read_list("n1\nno such\n").is_err(), "half a list is none");
    }

    #[test]
    fn it_speaks_for_the_node_it_is_named_as_or_the_names_of_its_certificate() {
        let authority = Authority::new("test", 2).unwrap();
        let leaf = Leaf::new("agent", Purpose::Serve).names(["n1", "n1.corp", "10.0.0.4"]);
        let pem = authority.issue(&leaf).unwrap().certificate;
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let names = |text: &str| -> Vec<String> {
            let names = PulledAgent::parse(text).unwrap().names(&der);
            names.iter().map(ToString::to_string).collect()
        };
        assert_eq!(names("10.0.0.4"), ["10.0.0.4", "n1", "n1.corp"]);
        assert_eq!(names("n7=10.0.0.4"), ["n7"]);
    }

    #[test]
    fn the_node_of_a_cluster_may_name_its_cluster_and_no_other() {
        let agent = PulledAgent::within("prod", &NodeName::new("worker-0").unwrap());
        let names: Vec<String> = agent.names(&[]).iter().map(ToString::to_string).collect();
        assert_eq!(names, ["worker-0", "prod.worker-0"]);
    }
}
