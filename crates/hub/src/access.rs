//! Authentication and authorization of callers.
//!
//! A caller is identified by the first of: a client certificate, a token (header or cookie), the user named by a
//! trusted proxy. An invalid credential is rejected, even if another one would suffice.
//!
//! A hub without any configured credential is only possible on loopback; every client of the socket is then an
//! operator. The `Host` header must therefore be a loopback name. Otherwise any web page in a browser on this
//! machine could reach the hub under a DNS name of its own.

use std::net::IpAddr;

use jiff::Timestamp;
use landfall_net::Network;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::name::NodeName;
use crate::token::{Holder, TokenError, TokenKey};

/// Organization of operator certificates, which permit every operation.
const OPERATORS: &str = "landfall:operators";
/// Organization of viewer certificates, which permit every read.
const VIEWERS: &str = "landfall:viewers";
/// Organization of the node certificates that Kubernetes issues.
const NODES: &str = "system:nodes";
const NODE_PREFIX: &str = "system:node:";

/// Default host names of machines without a name. Many machines with a shared token have one of them.
const NAMELESS: [&str; 3] = ["localhost", "localhost.localdomain", "unknown"];

/// The configured methods of authentication.
#[derive(Default)]
pub(crate) struct Access {
    pub tokens: Option<TokenKey>,
    /// Whether client certificates are requested. The TLS layer verifies them against the configured CA.
    pub certificates: bool,
    pub proxy: Option<Proxy>,
}

/// A proxy that authenticates users and names them in a header.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// Addresses of the proxy.
    pub from: Vec<Network>,
    /// The header with the name of the user.
    pub header: String,
}

/// The credentials and the origin of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Presented<'a> {
    pub peer: Option<IpAddr>,
    /// The verified client certificate in DER form.
    pub certificate: Option<&'a [u8]>,
    pub token: Option<&'a str>,
    pub proxy_user: Option<&'a str>,
    pub host: Option<&'a str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Caller {
    /// A client on loopback, of a hub that requires no credential.
    Anyone,
    Node(NodeName),
    /// One of many machines that share a token; only its key identifies the node.
    Nodes {
        prefix: String,
        /// Fingerprint of the token.
        token: [u8; 32],
    },
    Viewer(String),
    Operator(String),
}

/// An operation that requires authorization.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wish<'a> {
    See,
    /// Report as this node.
    Report(&'a NodeName),
    /// Report as this node with a signature by its key.
    Enrol(&'a NodeName),
    /// Create tokens and delete nodes.
    Operate,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Denied {
    #[error("a credential is needed: a token, a client certificate or a login at the proxy")]
    NoCredential,
    #[error("invalid or expired token")]
    Token(#[source] TokenError),
    #[error("the certificate names neither a node nor an operator nor a viewer")]
    Certificate,
    #[error("the user's name from the proxy cannot be used")]
    ProxyUser,
    #[error("this hub is reached by a loopback name only")]
    Host,
    #[error("this caller may not do that: it takes the token or certificate of {0}")]
    NotAllowed(&'static str),
    #[error("node `{caller}` may not report as `{claimed}`")]
    OtherNode { caller: String, claimed: String },
    #[error("this token is for nodes whose names begin with `{prefix}`, not for `{claimed}`")]
    OtherPrefix { prefix: String, claimed: String },
    #[error("`{0}` is what machines are called that have no name yet; the report that follows will tell it")]
    Nameless(String),
    #[error(
        "many nodes share this token: a bundle is sent by its digest, after the node's first report, and signed with the same \
         key (`landfall-signature`); anything else needs a token of the node's own"
    )]
    Unproven,
}

// === impl Access ===

impl Access {
    /// Returns whether callers must present a credential.
    pub(crate) fn demands_credential(&self) -> bool {
        self.tokens.is_some() || self.certificates || self.proxy.is_some()
    }

    pub(crate) fn identify(&self, presented: Presented<'_>, now: Timestamp) -> Result<Caller, Denied> {
        if !self.demands_credential() {
            return if presented.host.is_some_and(is_loopback_name) {
                Ok(Caller::Anyone)
            } else {
                Err(Denied::Host)
            };
        }
        if let Some(certificate) = presented.certificate.filter(|_| self.certificates) {
            return holder_of(certificate).ok_or(Denied::Certificate);
        }
        if let (Some(token), Some(key)) = (presented.token, &self.tokens) {
            return match key.check(token, now).map_err(Denied::Token)? {
                Holder::Node(name) => {
                    NodeName::new(name).map(Caller::Node).map_err(|_| Denied::Token(TokenError::Name))
                }
                Holder::Nodes(prefix) => Ok(Caller::Nodes { prefix, token: TokenKey::fingerprint(token) }),
                Holder::Viewer(name) => Ok(Caller::Viewer(name)),
                Holder::Operator(name) => Ok(Caller::Operator(name)),
            };
        }
        if let (Some(user), Some(proxy), Some(peer)) = (presented.proxy_user, &self.proxy, presented.peer)
            && proxy.from.iter().any(|network| network.contains(peer))
        {
            return if NodeName::new(user.replace('@', ".")).is_ok() {
                Ok(Caller::Operator(user.to_owned()))
            } else {
                Err(Denied::ProxyUser)
            };
        }
        Err(Denied::NoCredential)
    }
}

// === impl Caller ===

impl Caller {
    /// Rejects callers that may not report for any node, before the request is read or queued.
    pub(crate) fn may_report(&self) -> Result<(), Denied> {
        match self {
            Self::Viewer(_) => Err(Denied::NotAllowed("a node")),
            Self::Anyone | Self::Operator(_) | Self::Node(_) | Self::Nodes { .. } => Ok(()),
        }
    }

    pub(crate) fn may(&self, wish: Wish<'_>) -> Result<(), Denied> {
        match (self, wish) {
            (Self::Anyone | Self::Operator(_), _) | (Self::Viewer(_), Wish::See) => Ok(()),
            (Self::Node(own), Wish::Report(claimed)) if own == claimed => Ok(()),
            (Self::Node(own), Wish::Report(claimed)) => {
                Err(Denied::OtherNode { caller: own.to_string(), claimed: claimed.to_string() })
            }
            (Self::Nodes { prefix, .. }, Wish::Enrol(claimed)) => may_enrol(prefix, claimed),
            (Self::Nodes { prefix, .. }, Wish::Report(claimed)) => {
                may_enrol(prefix, claimed).and(Err(Denied::Unproven))
            }
            (Self::Viewer(_) | Self::Node(_) | Self::Nodes { .. }, wish) => {
                Err(Denied::NotAllowed(match wish {
                    Wish::See => "a viewer or an operator",
                    Wish::Report(_) | Wish::Enrol(_) => "the node",
                    Wish::Operate => "an operator",
                }))
            }
        }
    }
}

/// Checks whether a token with this prefix covers the claimed name.
fn may_enrol(prefix: &str, claimed: &NodeName) -> Result<(), Denied> {
    let name = claimed.as_str();
    // The cluster's name may precede the node's.
    let ends =
        |none: &str| name.strip_suffix(none).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    if !name.starts_with(prefix) {
        Err(Denied::OtherPrefix { prefix: prefix.to_owned(), claimed: claimed.to_string() })
    } else if NAMELESS.into_iter().any(ends) {
        Err(Denied::Nameless(claimed.to_string()))
    } else {
        Ok(())
    }
}

/// Returns whether a `Host` header names this machine by loopback.
pub(crate) fn is_loopback_name(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn holder_of(certificate: &[u8]) -> Option<Caller> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?;
    let mut organizations = subject.iter_organization().filter_map(|value| value.as_str().ok());
    organizations.find_map(|organization| match organization {
        OPERATORS => Some(Caller::Operator(name.to_owned())),
        VIEWERS => Some(Caller::Viewer(name.to_owned())),
        NODES => NodeName::new(name.strip_prefix(NODE_PREFIX)?).ok().map(Caller::Node),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use landfall_model::Secret;
    use landfall_pki::{Authority, Leaf, Purpose};

    use super::*;

    fn now() -> Timestamp {
        Timestamp::from_second(1000).unwrap()
    }

    fn tokens() -> TokenKey {
        TokenKey::new(Secret::new(vec![7; 32])).unwrap()
    }

    #[test]
    fn on_loopback_anybody_may_but_not_through_a_foreign_name() {
        let access = Access::default();
        for host in ["localhost", "localhost:8700", "127.0.0.1:8700", "[::1]:8700", "127.8.8.8"] {
            let caller = access.identify(Presented { host: Some(host), ..Presented::default() }, now());
            assert_eq!(caller.unwrap(), Caller::Anyone, "{host}");
        }
        for host in [None, Some("evil.example"), Some("localhost.evil.example:80"), Some("10.0.0.1")] {
            assert!(matches!(
                access.identify(Presented { host, ..Presented::default() }, now()),
                Err(Denied::Host)
            ));
        }
    }

    #[test]
    fn a_node_may_report_as_itself_and_nothing_else() {
        let node = |name: &str| NodeName::new(name).unwrap();
        let caller = Caller::Node(node("n1"));
        assert!(caller.may(Wish::Report(&node("n1"))).is_ok());
        assert!(matches!(caller.may(Wish::Report(&node("n2"))), Err(Denied::OtherNode { .. })));
        assert!(caller.may(Wish::See).is_err() && caller.may(Wish::Operate).is_err());
        let viewer = Caller::Viewer("v".to_owned());
        assert!(viewer.may(Wish::See).is_ok() && viewer.may(Wish::Operate).is_err());
        assert!(viewer.may(Wish::Report(&node("n1"))).is_err());
    }

    #[test]
    fn a_bad_token_is_refused_even_where_something_else_would_do() {
        let access = Access {
            tokens: Some(tokens()),
            proxy: Some(Proxy { from: vec!["10.0.0.0/8".parse().unwrap()], header: "x-user".to_owned() }),
            certificates: false,
        };
        let peer = Some("10.1.2.3".parse().unwrap());
        let through_proxy = Presented { peer, proxy_user: Some("ann@example.com"), ..Presented::default() };
        assert_eq!(
            access.identify(through_proxy, now()).unwrap(),
            Caller::Operator("ann@example.com".to_owned())
        );
        let with_bad_token = Presented { token: Some("landfall.x.y"), ..through_proxy };
        assert!(matches!(access.identify(with_bad_token, now()), Err(Denied::Token(_))));
        let from_elsewhere = Presented { peer: Some("192.0.2.1".parse().unwrap()), ..through_proxy };
        assert!(matches!(access.identify(from_elsewhere, now()), Err(Denied::NoCredential)));
    }

    #[test]
    fn certificates_tell_nodes_from_operators() {
        let authority = Authority::new("test", 1).unwrap();
        let access = Access { certificates: true, ..Access::default() };
        for (name, organization, expected) in [
            ("system:node:n1", "system:nodes", Some(Caller::Node(NodeName::new("n1").unwrap()))),
            ("ann", "landfall:operators", Some(Caller::Operator("ann".to_owned()))),
            ("ben", "landfall:viewers", Some(Caller::Viewer("ben".to_owned()))),
            ("n1", "system:nodes", None),
            ("eve", "system:masters", None),
        ] {
            let pem = authority
                .issue(&Leaf::new(name, Purpose::Call).organization(organization))
                .unwrap()
                .certificate;
            let der = x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap().1.contents;
            let presented = Presented { certificate: Some(&der), ..Presented::default() };
            assert_eq!(access.identify(presented, now()).ok(), expected, "{name}");
        }
    }
}
