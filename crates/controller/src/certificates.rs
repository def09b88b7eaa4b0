//! The check whether a certificate request is a node's own.
//!
//! The input is untrusted; the check does no I/O and rejects every doubtful case.
//!
//! A node that bootstraps again has lost its certificates and requests new ones. The first request uses a
//! bootstrap token, which does not identify the node. Three things prove the node. The controller itself took
//! the machine down in this period. The request names this node and no other. A serving certificate is
//! requested by the node itself, for addresses that the cluster knows.

use std::collections::BTreeSet;
use std::net::IpAddr;

use jiff::Timestamp;
use landfall_cluster::SigningRequest;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer;

pub const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub const SERVING_SIGNER: &str = "kubernetes.io/kubelet-serving";
const BOOTSTRAPPERS: &str = "system:bootstrappers";
const NODES: &str = "system:nodes";
/// Size limit: a request with a key of 16 Kbit and all addresses fits.
const MAX_REQUEST: usize = 64 * 1024;
/// Usages of every kubelet certificate, in addition to its purpose.
const COMMON_USAGES: [&str; 2] = ["digital signature", "key encipherment"];

/// The node that a request must belong to.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    pub node: &'a str,
    /// Time at which the node was taken down, and its deadline to return.
    pub from: Timestamp,
    pub until: Timestamp,
    /// Addresses of the node known to the cluster.
    pub addresses: &'a BTreeSet<String>,
    /// Users that may request a first certificate, in addition to members of `system:bootstrappers`.
    pub bootstrap_users: &'a [String],
}

/// Reason why a request is not the node's own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    #[error("it goes to the signer `{signer}`")]
    Signer { signer: String },
    #[error("it was made at another time than the node's")]
    Time,
    #[error("`{user}` does not ask for this node")]
    User { user: String },
    #[error("it cannot be read")]
    Unreadable,
    #[error("it is for `{subject}`")]
    Subject { subject: String },
    #[error("it asks for the use `{usage}`")]
    Usage { usage: String },
    #[error("it does not ask for the use it is made for")]
    NoUsage,
    #[error("it asks for `{name}`, by which the cluster does not know the node")]
    Name { name: String },
    #[error("it asks for no address")]
    NoName,
    #[error("it asks for something that certificates of nodes do not have")]
    Extension,
}

/// Returns the node name that a request claims, without verification.
pub fn claimed_node(request: &SigningRequest) -> Option<String> {
    let parts = parse(&request.request).ok()?;
    parts.common_name.strip_prefix("system:node:").map(str::to_owned)
}

/// Verifies that a request belongs to the expected node.
pub fn prove(request: &SigningRequest, expected: &Expected<'_>) -> Result<(), Foreign> {
    if request.created < expected.from || request.created > expected.until {
        return Err(Foreign::Time);
    }
    let name = format!("system:node:{}", expected.node);
    let is_member = |group: &str| request.groups.iter().any(|own| own == group);
    let is_node = request.user == name && is_member(NODES);
    let may_ask = match request.signer.as_str() {
        SERVING_SIGNER => is_node,
        CLIENT_SIGNER => {
            is_node || is_member(BOOTSTRAPPERS) || expected.bootstrap_users.contains(&request.user)
        }
        signer => return Err(Foreign::Signer { signer: signer.to_owned() }),
    };
    if !may_ask {
        return Err(Foreign::User { user: request.user.clone() });
    }
    let purpose = if request.signer == SERVING_SIGNER { "server auth" } else { "client auth" };
    let strange = |usage: &&String| usage.as_str() != purpose && !COMMON_USAGES.contains(&usage.as_str());
    if let Some(usage) = request.usages.iter().find(strange) {
        return Err(Foreign::Usage { usage: usage.clone() });
    }
    if !request.usages.iter().any(|usage| usage == purpose) {
        return Err(Foreign::NoUsage);
    }
    let parts = parse(&request.request)?;
    if parts.common_name != name || parts.organizations != [NODES] || parts.has_more {
        return Err(Foreign::Subject { subject: parts.subject });
    }
    match request.signer.as_str() {
        SERVING_SIGNER if parts.names.is_empty() => Err(Foreign::NoName),
        SERVING_SIGNER => match parts.names.into_iter().find(|name| !is_known(name, expected.addresses)) {
            Some(name) => Err(Foreign::Name { name }),
            None => Ok(()),
        },
        _ => match parts.names.into_iter().next() {
            Some(name) => Err(Foreign::Name { name }),
            None => Ok(()),
        },
    }
}

/// The content of a request.
struct Parts {
    subject: String,
    common_name: String,
    organizations: Vec<String>,
    /// The subject has attributes that a node's does not have.
    has_more: bool,
    names: Vec<String>,
}

fn parse(pem: &[u8]) -> Result<Parts, Foreign> {
    if pem.len() > MAX_REQUEST {
        return Err(Foreign::Unreadable);
    }
    let (rest, pem) = parse_x509_pem(pem).map_err(|_| Foreign::Unreadable)?;
    if !rest.iter().all(u8::is_ascii_whitespace) {
        return Err(Foreign::Unreadable);
    }
    let (rest, request) =
        X509CertificationRequest::from_der(&pem.contents).map_err(|_| Foreign::Unreadable)?;
    if !rest.is_empty() {
        return Err(Foreign::Unreadable);
    }
    let subject = &request.certification_request_info.subject;
    let text = |value: Result<&str, _>| {
        value.map(str::to_owned).map_err(|_: x509_parser::error::X509Error| Foreign::Unreadable)
    };
    let common: Vec<String> =
        subject.iter_common_name().map(|name| text(name.as_str())).collect::<Result<_, _>>()?;
    let organizations: Vec<String> =
        subject.iter_organization().map(|name| text(name.as_str())).collect::<Result<_, _>>()?;
    let count = subject.iter_attributes().count();
    let mut names = Vec::new();
    for extension in request.requested_extensions().into_iter().flatten() {
        match extension {
            ParsedExtension::SubjectAlternativeName(alternatives) => {
                for name in &alternatives.general_names {
                    names.push(general_name(name)?);
                }
            }
            ParsedExtension::KeyUsage(_) | ParsedExtension::ExtendedKeyUsage(_) => {}
            _ => return Err(Foreign::Extension),
        }
    }
    Ok(Parts {
        subject: subject.to_string(),
        has_more: common.len() != 1 || count != common.len() + organizations.len(),
        common_name: common.into_iter().next().unwrap_or_default(),
        organizations,
        names,
    })
}

fn general_name(name: &GeneralName<'_>) -> Result<String, Foreign> {
    match name {
        GeneralName::DNSName(name) => Ok((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let address = if let Ok(four) = <[u8; 4]>::try_from(*bytes) {
                IpAddr::from(four)
            } else if let Ok(sixteen) = <[u8; 16]>::try_from(*bytes) {
                IpAddr::from(sixteen)
            } else {
                return Err(Foreign::Unreadable);
            };
            Ok(address.to_string())
        }
        _ => Err(Foreign::Extension),
    }
}

/// Whether an address is known, regardless of its notation.
fn is_known(name: &str, addresses: &BTreeSet<String>) -> bool {
    match name.parse::<IpAddr>() {
        Ok(wanted) => addresses.iter().any(|address| address.parse() == Ok(wanted)),
        Err(_) => addresses.iter().any(|address| address.eq_ignore_ascii_case(name)),
    }
}

#[cfg(test)]
mod tests;
