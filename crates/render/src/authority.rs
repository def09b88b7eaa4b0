//! One bootstrap authority, and certificates that are each good for one thing.

use std::fs;
use std::path::Path;

use landfall_model::Secret;
use landfall_pki::{Authority, KeyedCertificate, Leaf, Purpose};

use crate::{Plan, RenderError, names};

/// The authority outlives what it signs by this much, so that certificates can be renewed before both end.
const AUTHORITY_OUTLIVES_DAYS: u32 = 23;
/// A bootstrap takes hours; whoever needs a year means another kind of certificate.
const MAX_DAYS: u32 = 365;

/// What the tunnel's two ends prove themselves with.
#[expect(missing_debug_implementations, reason = "holds private keys")]
pub struct Credentials {
    pub authority: String,
    pub server: KeyedCertificate,
    pub agent: KeyedCertificate,
}

/// The authority in `folder` (`ca.crt`, `ca.key`), or a new one.
pub fn authority(folder: Option<&Path>, days: u32) -> Result<Authority, RenderError> {
    if !(1..=MAX_DAYS).contains(&days) {
        return Err(RenderError::Days { days });
    }
    let Some(folder) = folder else {
        return Ok(Authority::new("landfall-bootstrap", days + AUTHORITY_OUTLIVES_DAYS)?);
    };
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read_to_string(&path).map_err(|source| RenderError::Read { path, source })
    };
    let authority = Authority::from_pem(&read("ca.crt")?, Secret::new(read("ca.key")?))?;
    if authority.has_expired()? {
        return Err(RenderError::Expired { folder: folder.to_owned() });
    }
    // A certificate ends with its authority, whatever it says itself.
    let left = authority.days_left()?;
    if left < i64::from(days) {
        return Err(RenderError::Outlives { folder: folder.to_owned(), left, days });
    }
    Ok(authority)
}

/// A server's certificate for these names, and an agent's.
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

/// The authority and its certificates as files. An authority that was given stays where it is.
pub fn pki(authority: &Authority, credentials: &Credentials, new: bool) -> Plan {
    let mut plan = Plan::default();
    plan.add("ca.crt", 0o644, authority.certificate());
    if new {
        plan.add_secret("ca.key", authority.key().expose().clone());
    }
    for (name, pair) in [("tunnel-server", &credentials.server), ("tunnel-agent", &credentials.agent)] {
        plan.add(format!("{name}.crt"), 0o644, pair.certificate.clone());
        plan.add_secret(format!("{name}.key"), pair.key.expose().clone());
    }
    plan
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
        pki(&first, &made, true).write(folder.path(), false).unwrap();
        let second = authority(Some(folder.path()), 7).unwrap();
        assert_eq!(first.certificate(), second.certificate());
        assert!(pki(&second, &made, false).files.iter().all(|file| file.path != Path::new("ca.key")));

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
}
