//! The bootstrap CA and its certificates, each for a single purpose.

use std::fs;
use std::path::{Path, PathBuf};

use landfall_model::Secret;
use landfall_pki::{Authority, KeyedCertificate, Leaf, Purpose};

use crate::{Plan, RenderError, names};

/// Days by which the CA outlives its certificates, so that they can be renewed before both expire.
const AUTHORITY_OUTLIVES_DAYS: u32 = 23;
/// Limit of the validity: a bootstrap takes hours, and one year indicates a certificate for another purpose.
const MAX_DAYS: u32 = 365;
/// The maximum length of an X.509 common name.
const MAX_PERSON: usize = 64;

/// Credentials of both ends of the tunnel.
#[expect(missing_debug_implementations, reason = "holds private keys")]
pub struct Credentials {
    pub authority: String,
    pub server: KeyedCertificate,
    pub agent: KeyedCertificate,
}

/// A user or component with a certificate of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    role: Role,
    name: String,
    /// Additional names and addresses of an agent's port.
    hosts: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// A node's agent as the server of its port.
    Agent,
    /// A node as a client of hubs, peers and NATS.
    Node,
    Operator,
    Viewer,
}

/// Returns the CA in `folder` (`ca.crt`, `ca.key`), or a new one.
pub fn authority(folder: Option<&Path>, days: u32) -> Result<Authority, RenderError> {
    check_days(days)?;
    let Some(folder) = folder else {
        return Ok(Authority::new("landfall-bootstrap", days + AUTHORITY_OUTLIVES_DAYS)?);
    };
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read_to_string(&path).map_err(|source| RenderError::Read { path, source })
    };
    let certificates = read("ca.crt")?;
    let (own, others) = first(&certificates);
    // Additional CAs in the file stay trusted until they expire.
    let authority = Authority::from_pem(own, Secret::new(read("ca.key")?))?.beside(others)?;
    if authority.has_expired()? {
        return Err(RenderError::Expired { folder: folder.to_owned() });
    }
    // A certificate is not valid after its CA has expired, whatever its own dates are.
    let left = authority.days_left()?;
    if left < i64::from(days) {
        return Err(RenderError::Outlives { folder: folder.to_owned(), left, days });
    }
    Ok(authority)
}

pub(crate) fn check_days(days: u32) -> Result<(), RenderError> {
    if (1..=MAX_DAYS).contains(&days) { Ok(()) } else { Err(RenderError::Days { days }) }
}

/// Returns a certificate of the tunnel server for these names, and one of its agents.
pub fn credentials(authority: &Authority, hosts: &[String], days: u32) -> Result<Credentials, RenderError> {
    hosts.iter().try_for_each(|host| names::host(host))?;
    let server = Leaf::new("landfall-tunnel-server", Purpose::Serve).names(hosts.iter().cloned()).days(days);
    let agent = Leaf::new("landfall-tunnel-agent", Purpose::Call).days(days);
    Ok(Credentials {
        authority: authority.certificate().to_owned(),
        server: authority.issue(&server)?,
        agent: authority.issue(&agent)?,
    })
}

/// Returns the certificates of these identities, each with its path without an extension.
pub fn leaves(
    authority: &Authority,
    identities: &[Identity],
    days: u32,
) -> Result<Vec<(PathBuf, KeyedCertificate)>, RenderError> {
    let issue = |identity: &Identity| Ok((identity.place(), authority.issue(&identity.leaf(days))?));
    identities.iter().map(issue).collect()
}

/// Returns the CA and its certificates as files. The key of an existing CA is not written again.
pub fn pki(
    authority: &Authority,
    tunnel: Option<&Credentials>,
    leaves: &[(PathBuf, KeyedCertificate)],
    new: bool,
) -> Plan {
    let mut plan = Plan::default();
    plan.add("ca.crt", 0o644, authority.certificate());
    if new {
        plan.add_secret("ca.key", authority.key().expose().clone());
    }
    let tunnel = tunnel.into_iter().flat_map(|tunnel| {
        [("tunnel-server", &tunnel.server), ("tunnel-agent", &tunnel.agent)]
            .map(|(name, pair)| (Path::new(name), pair))
    });
    for (place, pair) in tunnel.chain(leaves.iter().map(|(place, pair)| (place.as_path(), pair))) {
        plan.add(place.with_added_extension("crt"), 0o644, pair.certificate.clone());
        plan.add_secret(place.with_added_extension("key"), pair.key.expose().clone());
    }
    plan
}

/// Splits a PEM file after its first certificate.
fn first(certificates: &str) -> (&str, &str) {
    const END: &str = "-----END CERTIFICATE-----";
    let Some((own, others)) = certificates.split_once(END) else { return (certificates, "") };
    // Includes the line end.
    let line = usize::from(others.starts_with('\n'));
    certificates.split_at(own.len() + END.len() + line)
}

// === impl Identity ===

impl Identity {
    /// Parses `agent=NAME[,HOST…]`, `node=NAME`, `operator=NAME` or `viewer=NAME`.
    pub fn parse(text: &str) -> Result<Self, RenderError> {
        let invalid = || RenderError::Leaf { text: text.to_owned() };
        let (role, names) = text.split_once('=').ok_or_else(invalid)?;
        let mut names = names.split(',').map(str::to_owned);
        let name = names.next().ok_or_else(invalid)?;
        let hosts: Vec<String> = names.collect();
        let role = match role {
            "agent" => Role::Agent,
            "node" => Role::Node,
            "operator" => Role::Operator,
            "viewer" => Role::Viewer,
            _ => return Err(invalid()),
        };
        let good = match role {
            Role::Agent => {
                names::host(&name)?;
                hosts.iter().try_for_each(|host| names::host(host))?;
                true
            }
            Role::Node => {
                names::node(&name, "")?;
                hosts.is_empty()
            }
            Role::Operator | Role::Viewer => is_person(&name) && hosts.is_empty(),
        };
        if good { Ok(Self { role, name, hosts }) } else { Err(invalid()) }
    }

    /// Returns a certificate with the subject and purpose that its verifiers expect.
    fn leaf(&self, days: u32) -> Leaf {
        let leaf = match self.role {
            Role::Agent => {
                let hosts = std::iter::once(&self.name).chain(&self.hosts).cloned();
                Leaf::new(&self.name, Purpose::Serve).names(hosts)
            }
            Role::Node => {
                Leaf::new(format!("system:node:{}", self.name), Purpose::Call).organization("system:nodes")
            }
            Role::Operator => Leaf::new(&self.name, Purpose::Call).organization("landfall:operators"),
            Role::Viewer => Leaf::new(&self.name, Purpose::Call).organization("landfall:viewers"),
        };
        leaf.days(days)
    }

    /// Returns the path: a directory per name, with the file names used on machines.
    fn place(&self) -> PathBuf {
        let role = match self.role {
            Role::Agent => "agent",
            Role::Node => "node",
            Role::Operator => "operator",
            Role::Viewer => "viewer",
        };
        Path::new(&self.name).join(role)
    }
}

/// Whether the name of a user or component is also a valid directory name.
fn is_person(name: &str) -> bool {
    (1..=MAX_PERSON).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-._@".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_is_used_again_until_it_expires() {
        let folder = tempfile::tempdir().unwrap();
        let first = authority(None, 7).unwrap();
        let names = ["10.0.0.1".to_owned()];
        let made = credentials(&first, &names, 7).unwrap();
        pki(&first, Some(&made), &[], true).write(folder.path(), false).unwrap();
        let second = authority(Some(folder.path()), 7).unwrap();
        assert_eq!(first.certificate(), second.certificate());
        assert!(
            pki(&second, Some(&made), &[], false).files.iter().all(|file| file.path != Path::new("ca.key"))
        );

        let expired = Authority::new("old", 0).unwrap();
        fs::write(folder.path().join("ca.crt"), expired.certificate()).unwrap();
        fs::write(folder.path().join("ca.key"), expired.key().expose()).unwrap();
        assert!(matches!(authority(Some(folder.path()), 7), Err(RenderError::Expired { .. })));
    }

    #[test]
    fn no_certificate_outlives_its_authority() {
        let folder = tempfile::tempdir().unwrap();
        let near = Authority::new("near its end", 5).unwrap();
        fs::write(folder.path().join("ca.crt"), near.certificate()).unwrap();
        fs::write(folder.path().join("ca.key"), near.key().expose()).unwrap();
        let error = authority(Some(folder.path()), 7).err().unwrap();
        assert!(matches!(error, RenderError::Outlives { left: 4, days: 7, .. }), "{error}");
        assert!(authority(Some(folder.path()), 4).is_ok());
    }

    #[test]
    fn impossible_lifetimes_and_missing_folders_are_refused() {
        assert!(matches!(authority(None, 0), Err(RenderError::Days { days: 0 })));
        assert!(matches!(authority(None, 4000), Err(RenderError::Days { .. })));
        assert!(matches!(authority(Some(Path::new("/nowhere")), 7), Err(RenderError::Read { .. })));
    }

    #[test]
    fn what_is_no_identity_is_refused() {
        for good in ["agent=n1", "agent=10.0.0.4,n1.corp", "node=n1.corp", "operator=ann@corp", "viewer=hub"]
        {
            assert!(Identity::parse(good).is_ok(), "{good}");
        }
        for bad in [
            "agent",
            "agent=",
            "agent=n1,",
            "agent=../n1",
            "node=n1,n2",
            "node=N1",
            "operator=",
            "operator=../a",
            "operator=.a",
            "viewer=a b",
            "master=a",
            "=a",
        ] {
            assert!(Identity::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_has_all_its_certificates_in_one_folder() {
        let authority = authority(None, 7).unwrap();
        let identities =
            ["agent=n1,n1.corp", "node=n1", "viewer=hub"].map(|text| Identity::parse(text).unwrap());
        let made = leaves(&authority, &identities, 7).unwrap();
        let plan = pki(&authority, None, &made, true);
        let paths: Vec<_> = plan.files.iter().map(|file| file.path.to_str().unwrap()).collect();
        let of = [
            "n1/agent.crt",
            "n1/agent.key",
            "n1/node.crt",
            "n1/node.key",
            "hub/viewer.crt",
            "hub/viewer.key",
        ];
        assert_eq!(paths, [&["ca.crt", "ca.key"][..], &of].concat());
    }
}
