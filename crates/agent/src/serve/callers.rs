//! Classification of the port's callers.

use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Groups with read permission: those of the hub, and the cluster's own administrators.
pub(super) const READERS: [&str; 3] = ["landfall:operators", "landfall:viewers", "system:masters"];
/// Group of the nodes, each of which may deliver its own report here.
const NODES: &str = "system:nodes";
const NODE_PREFIX: &str = "system:node:";

/// A caller by its client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    Reader,
    Node(String),
    Unauthorized,
}

// === impl Caller ===

impl Caller {
    /// Classifies the caller by the certificate's subject. The TLS handshake has verified the certificate.
    pub(super) fn of(certificate: &[u8]) -> Self {
        let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Self::Unauthorized };
        let subject = certificate.subject();
        let groups: Vec<&str> = subject.iter_organization().filter_map(|group| group.as_str().ok()).collect();
        let name = subject.iter_common_name().next().and_then(|name| name.as_str().ok()).unwrap_or_default();
        match name.strip_prefix(NODE_PREFIX) {
            _ if groups.iter().any(|group| READERS.contains(group)) => Self::Reader,
            Some(node) if groups.contains(&NODES) => Self::Node(node.to_owned()),
            _ => Self::Unauthorized,
        }
    }
}
