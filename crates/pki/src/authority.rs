use landfall_model::Secret;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData as _,
};
use time::{Duration, OffsetDateTime};

use crate::{KeyedCertificate, Leaf, PkiError};

/// Certificates are valid from shortly before their creation, so that nodes with a slow clock accept them.
const BACKDATE: Duration = Duration::minutes(5);
const PEM_BEGINS: &str = "-----BEGIN CERTIFICATE-----";
const PEM_ENDS: &str = "-----END CERTIFICATE-----";

/// A CA that issues [`Leaf`] certificates.
#[expect(missing_debug_implementations, reason = "holds a private key")]
pub struct Authority {
    certificate: String,
    key: Secret<String>,
    issuer: Issuer<'static, KeyPair>,
}

/// Creates a key pair without a certificate (PEM private key, PEM public key). Such a pair signs service account
/// tokens.
pub fn signing_key() -> Result<(Secret<String>, String), PkiError> {
    let key = KeyPair::generate().map_err(PkiError::Key)?;
    Ok((Secret::new(key.serialize_pem()), key.public_key_pem()))
}

// === impl Authority ===

impl Authority {
    /// Creates a self-signed CA that can sign leaf certificates but no further CAs.
    pub fn new(common_name: &str, days: u32) -> Result<Self, PkiError> {
        let key = KeyPair::generate().map_err(PkiError::Key)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        set_lifetime(&mut params, days)?;
        let certificate = params
            .self_signed(&key)
            .map_err(|source| PkiError::Sign { subject: common_name.to_owned(), source })?
            .pem();
        Self::from_pem(&certificate, Secret::new(key.serialize_pem()))
    }

    /// Loads an existing CA. Clients would reject certificates of one that cannot sign, or with the key of another CA,
    /// so both are errors.
    pub fn from_pem(certificate: &str, key: Secret<String>) -> Result<Self, PkiError> {
        let pair = KeyPair::from_pem(key.expose()).map_err(PkiError::ReadKey)?;
        let public = pair.subject_public_key_info();
        let issuer = Issuer::from_ca_cert_pem(certificate, pair).map_err(PkiError::ReadAuthority)?;
        let (_, pem) =
            x509_parser::pem::parse_x509_pem(certificate.as_bytes()).map_err(|_| PkiError::Certificate)?;
        let parsed = pem.parse_x509().map_err(|_| PkiError::Certificate)?;
        let signs = match parsed.key_usage() {
            Ok(usage) => usage.is_none_or(|usage| usage.value.key_cert_sign()),
            Err(_) => return Err(PkiError::Certificate),
        };
        if !parsed.is_ca() || !signs {
            return Err(PkiError::NoAuthority);
        }
        if parsed.public_key().raw != public {
            return Err(PkiError::ForeignKey);
        }
        Ok(Self { certificate: certificate.to_owned(), key, issuer })
    }

    /// Returns its own certificate first, then those of the other trusted CAs.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Adds other trusted CAs, while certificates they signed are still in use. It skips CAs that have expired or are
    /// trusted already.
    pub fn beside(mut self, others: &str) -> Result<Self, PkiError> {
        for pem in certificates(others) {
            let (_, parsed) =
                x509_parser::pem::parse_x509_pem(pem.as_bytes()).map_err(|_| PkiError::Certificate)?;
            let parsed = parsed.parse_x509().map_err(|_| PkiError::Certificate)?;
            if !parsed.is_ca() {
                return Err(PkiError::NoAuthority);
            }
            let expired = parsed.validity().not_after.to_datetime() <= OffsetDateTime::now_utc();
            if !expired && !self.certificate.contains(pem) {
                self.certificate = format!("{}\n{pem}\n", self.certificate.trim_end());
            }
        }
        Ok(self)
    }

    /// Returns the time after which all its signatures are invalid.
    pub fn expires(&self) -> Result<OffsetDateTime, PkiError> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(self.certificate.as_bytes())
            .map_err(|_| PkiError::Certificate)?;
        let certificate = pem.parse_x509().map_err(|_| PkiError::Certificate)?;
        Ok(certificate.validity().not_after.to_datetime())
    }

    pub fn has_expired(&self) -> Result<bool, PkiError> {
        Ok(self.expires()? <= OffsetDateTime::now_utc())
    }

    /// Returns the number of full days of its remaining validity.
    pub fn days_left(&self) -> Result<i64, PkiError> {
        Ok((self.expires()? - OffsetDateTime::now_utc()).whole_days())
    }

    /// Returns the CA's own key. It stays where certificates are issued; only components that sign, such as
    /// kube-controller-manager, get it.
    pub fn key(&self) -> &Secret<String> {
        &self.key
    }

    pub fn issue(&self, leaf: &Leaf) -> Result<KeyedCertificate, PkiError> {
        let key = KeyPair::generate().map_err(PkiError::Key)?;
        let mut params = leaf.params()?;
        set_lifetime(&mut params, leaf.lifetime_days())?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(|source| PkiError::Sign { subject: leaf.common_name().to_owned(), source })?;
        Ok(KeyedCertificate { certificate: certificate.pem(), key: Secret::new(key.serialize_pem()) })
    }
}

/// Returns each certificate of a PEM file.
fn certificates(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices(PEM_BEGINS).filter_map(|(begin, _)| {
        let rest = &text[begin..];
        rest.find(PEM_ENDS).map(|end| &rest[..end + PEM_ENDS.len()])
    })
}

fn set_lifetime(params: &mut CertificateParams, days: u32) -> Result<(), PkiError> {
    let now = OffsetDateTime::now_utc();
    params.not_before = now - BACKDATE;
    params.not_after = now.checked_add(Duration::days(i64::from(days))).ok_or(PkiError::Lifetime { days })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Purpose;
    use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

    fn der(pem: &str) -> Vec<u8> {
        x509_parser::pem::parse_x509_pem(pem.as_bytes()).unwrap().1.contents
    }

    #[test]
    fn a_leaf_carries_its_identity_names_and_single_purpose() {
        let authority = Authority::new("test CA", 30).unwrap();
        let leaf = Leaf::new("system:node:n1", Purpose::Serve)
            .organization("system:nodes")
            .names(["api.example", "10.0.0.1", "::1"])
            .days(1);
        let issued = der(&authority.issue(&leaf).unwrap().certificate);
        let (_, certificate) = X509Certificate::from_der(&issued).unwrap();

        assert_eq!(certificate.subject().to_string(), "CN=system:node:n1, O=system:nodes");
        let usage = certificate.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.server_auth && !usage.client_auth);
        let names = &certificate.subject_alternative_name().unwrap().unwrap().value.general_names;
        assert!(matches!(
            names[..],
            [
                GeneralName::DNSName("api.example"),
                GeneralName::IPAddress(&[10, 0, 0, 1]),
                GeneralName::IPAddress(_)
            ]
        ));
        assert!(certificate.validity().time_to_expiration().unwrap() <= Duration::days(1));
        assert!(!certificate.is_ca());
    }

    #[test]
    fn an_authority_read_back_still_signs_for_the_same_name() {
        let first = Authority::new("test CA", 30).unwrap();
        let key = Secret::new(first.key().expose().clone());
        let second = Authority::from_pem(first.certificate(), key).unwrap();
        let issued = der(&second.issue(&Leaf::new("client", Purpose::Call)).unwrap().certificate);
        let (_, leaf) = X509Certificate::from_der(&issued).unwrap();
        let root = der(first.certificate());
        let (_, root) = X509Certificate::from_der(&root).unwrap();
        assert_eq!(leaf.issuer(), root.subject());
        assert!(root.is_ca());
    }

    #[test]
    fn an_authority_knows_when_it_expires() {
        let authority = Authority::new("test CA", 30).unwrap();
        let left = authority.expires().unwrap() - OffsetDateTime::now_utc();
        assert!(left > Duration::days(29) && left <= Duration::days(30), "{left}");
        assert!(!authority.has_expired().unwrap());
        assert!(Authority::new("test CA", 0).unwrap().has_expired().unwrap());
    }

    #[test]
    fn an_old_authority_is_trusted_beside_a_new_one_until_it_expires() {
        let old = Authority::new("old", 30).unwrap();
        let expired = Authority::new("expired", 0).unwrap();
        let both = format!("{}{}", old.certificate(), expired.certificate());
        let new = Authority::new("new", 30).unwrap();
        let alone = new.certificate().to_owned();
        let new = new.beside(&both).unwrap().beside(&both).unwrap();
        let trusted: Vec<&str> = certificates(new.certificate()).collect();
        assert_eq!(trusted, [alone.trim_end(), old.certificate().trim_end()]);
        // After loading it again, it still signs as the new CA.
        let key = Secret::new(new.key().expose().clone());
        let read = Authority::from_pem(new.certificate(), key).unwrap();
        let issued = der(&read.issue(&Leaf::new("client", Purpose::Call)).unwrap().certificate);
        let (_, leaf) = X509Certificate::from_der(&issued).unwrap();
        assert_eq!(leaf.issuer().to_string(), "CN=new");
        let leaf = new.issue(&Leaf::new("x", Purpose::Serve)).unwrap();
        assert!(matches!(new.beside(&leaf.certificate), Err(PkiError::NoAuthority)));
    }

    #[test]
    fn impossible_requests_are_refused_with_their_reason() {
        let authority = Authority::new("test CA", 30).unwrap();
        let bad_name = authority.issue(&Leaf::new("x", Purpose::Serve).names(["höst"]));
        assert!(matches!(bad_name, Err(PkiError::Name { name, .. }) if name == "höst"));
        assert!(matches!(Authority::new("x", u32::MAX), Err(PkiError::Lifetime { .. })));
        assert!(matches!(
            Authority::from_pem("nonsense", Secret::new("nonsense".into())),
            Err(PkiError::ReadKey(_))
        ));
    }

    #[test]
    fn an_authority_signs_and_has_its_own_key() {
        let authority = Authority::new("test CA", 30).unwrap();
        let leaf = authority.issue(&Leaf::new("x", Purpose::Serve)).unwrap();
        let read = |certificate: &str, key: &Secret<String>| {
            Authority::from_pem(certificate, Secret::new(key.expose().clone())).err()
        };
        assert!(matches!(read(authority.certificate(), &leaf.key), Some(PkiError::ForeignKey)));
        assert!(matches!(read(&leaf.certificate, &leaf.key), Some(PkiError::NoAuthority)));
        assert!(read(authority.certificate(), authority.key()).is_none());
    }
}
