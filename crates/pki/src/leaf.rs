use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyUsagePurpose};

use crate::PkiError;

/// The purpose of a certificate. A stolen certificate for one purpose is useless for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Proves a server's names to its clients.
    Serve,
    /// Proves a client's identity to a server.
    Call,
    /// Both, for members of a group of equals.
    Peer,
}

/// A certificate to be issued.
#[derive(Clone, Debug)]
pub struct Leaf {
    common_name: String,
    purpose: Purpose,
    organization: Option<String>,
    names: Vec<String>,
    days: u32,
}

// === impl Leaf ===

impl Leaf {
    /// Default lifetime of leaf certificates: sufficient for the longest bootstrap, and short enough to make theft
    /// unattractive.
    const DEFAULT_DAYS: u32 = 7;

    pub fn new(common_name: impl Into<String>, purpose: Purpose) -> Self {
        Self {
            common_name: common_name.into(),
            purpose,
            organization: None,
            names: Vec::new(),
            days: Self::DEFAULT_DAYS,
        }
    }

    /// Sets the organization, which Kubernetes interprets as a group.
    #[must_use]
    pub fn organization(mut self, organization: impl Into<String>) -> Self {
        self.organization = Some(organization.into());
        self
    }

    /// Sets the DNS names and IP addresses for which the certificate is valid.
    #[must_use]
    pub fn names<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.names.extend(names.into_iter().map(Into::into));
        self
    }

    #[must_use]
    pub fn days(mut self, days: u32) -> Self {
        self.days = days;
        self
    }

    pub(crate) fn common_name(&self) -> &str {
        &self.common_name
    }

    pub(crate) fn lifetime_days(&self) -> u32 {
        self.days
    }

    pub(crate) fn params(&self) -> Result<CertificateParams, PkiError> {
        let mut params = CertificateParams::default();
        for name in &self.names {
            let parsed = CertificateParams::new([name.clone()])
                .map_err(|source| PkiError::Name { name: name.clone(), source })?;
            params.subject_alt_names.extend(parsed.subject_alt_names);
        }
        params.distinguished_name.push(DnType::CommonName, self.common_name.as_str());
        if let Some(organization) = &self.organization {
            params.distinguished_name.push(DnType::OrganizationName, organization.as_str());
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match self.purpose {
            Purpose::Serve => vec![ExtendedKeyUsagePurpose::ServerAuth],
            Purpose::Call => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Purpose::Peer => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.use_authority_key_identifier_extension = true;
        Ok(params)
    }
}
