//! Verification of an API endpoint's certificate chain against the CAs in the machine's configuration,
//! including failures caused by a wrong clock. The wording is Go's, which the node's components use.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, RootCertStore};

use super::certificates;
use super::endpoints::{self, Endpoint};
use crate::collect::host::Host;

const MAX_FILE: u64 = 1 << 20;

/// Maximum number of CA certificates: a cluster has one, or two during rotation.
const MAX_AUTHORITIES: usize = 32;

/// The CA certificates in this machine's kubeconfigs.
#[derive(Debug, Default)]
pub(super) struct Trust {
    authorities: Vec<CertificateDer<'static>>,
}

// === impl Trust ===

impl Trust {
    pub(super) fn of(host: &Host, deadline: Instant) -> Self {
        let mut trust = Self::default();
        for path in endpoints::api_files(host, deadline) {
            let Ok(content) = host.read(&path, MAX_FILE) else { continue };
            let text = String::from_utf8_lossy(&content);
            for (_, pem) in certificates::fields(&text, &["certificate-authority-data"]) {
                trust.add(&pem);
            }
            let named = text.lines().filter_map(|line| line.trim().strip_prefix("certificate-authority:"));
            for file in named {
                let content = host.read(file.trim().trim_matches('"'), MAX_FILE).unwrap_or_default();
                trust.add(&String::from_utf8_lossy(&content));
            }
        }
        trust
    }

    fn add(&mut self, pem: &str) {
        self.authorities.extend(certificates::in_pem(pem).into_iter().map(CertificateDer::from));
        self.authorities.truncate(MAX_AUTHORITIES);
    }

    /// Returns the error that a program on this machine would report for the chain at `now`, and whether it
    /// would also fail by the peer's clock.
    pub(super) fn verdict(
        &self,
        target: &Endpoint,
        chain: &[CertificateDer<'_>],
        now: Timestamp,
        theirs: Option<Timestamp>,
    ) -> String {
        let Some((leaf, rest)) = chain.split_first() else { return String::new() };
        if self.authorities.is_empty() {
            return format!("{target}: chain not checked: no kubeconfig here names an authority\n");
        }
        let check = |time: Timestamp| self.check(target, leaf, rest, time);
        let error = match check(now) {
            Ok(()) => {
                return format!("{target}: chain signed by an authority of this machine's kubeconfig\n");
            }
            Err(error) => error,
        };
        let mut text = format!("{target}: tls: failed to verify certificate: {error}\n");
        if let Some(theirs) = theirs.filter(|theirs| check(*theirs).is_ok()) {
            text += &format!(
                "{target}: clock skew: by its own clock ({theirs}) the chain is valid, by this machine's ({now}) it is not\n"
            );
        }
        text
    }

    fn check(
        &self,
        target: &Endpoint,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        time: Timestamp,
    ) -> Result<(), String> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.authorities.iter().cloned());
        let provider: Arc<CryptoProvider> = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        let verifier = verifier.map_err(|error| error.to_string())?;
        let name = ServerName::try_from(target.host.clone()).map_err(|error| error.to_string())?;
        let seconds = u64::try_from(time.as_second()).unwrap_or(0);
        let time = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        match verifier.verify_server_cert(leaf, rest, &name, &[], time) {
            Ok(_) => Ok(()),
            Err(rustls::Error::InvalidCertificate(error)) => Err(in_words(target, &error)),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn in_words(target: &Endpoint, error: &CertificateError) -> String {
    match error {
        CertificateError::UnknownIssuer => "x509: certificate signed by unknown authority".to_owned(),
        // The CA was recreated with the same name, as by a second `kubeadm init`.
        CertificateError::BadSignature => {
            "x509: certificate signed by unknown authority (one of the same name with another key)".to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("x509: certificate is not valid for {}", target.host)
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "x509: certificate has expired or is not yet valid: it has expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "x509: certificate has expired or is not yet valid: it is not valid yet".to_owned()
        }
        other => format!("x509: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use landfall_pki::{Authority, Leaf, Purpose};

    use super::*;

    #[test]
    fn the_verdict_tells_authority_name_and_clock_apart() {
        let authority = Authority::new("cluster-ca", 30).unwrap();
        let stranger = Authority::new("cluster-ca", 30).unwrap();
        let leaf = authority.issue(&Leaf::new("api", Purpose::Serve).names(["api.example"])).unwrap();
        let chain: Vec<CertificateDer<'_>> =
            certificates::in_pem(&leaf.certificate).into_iter().map(CertificateDer::from).collect();
        let trust = |pem: &str| {
            let mut trust = Trust::default();
            trust.add(pem);
            trust
        };
        let target = |host: &str| Endpoint { host: host.to_owned(), port: 6443 };
        let (api, now) = (target("api.example"), Timestamp::now());
        let ours = trust(authority.certificate());
        assert!(ours.verdict(&api, &chain, now, None).contains("signed by an authority"));
        let told = trust(stranger.certificate()).verdict(&api, &chain, now, None);
        assert!(told.ends_with("unknown authority (one of the same name with another key)\n"), "{told}");
        let other = Authority::new("other-ca", 30).unwrap();
        let told = trust(other.certificate()).verdict(&api, &chain, now, None);
        assert!(told.ends_with("x509: certificate signed by unknown authority\n"), "{told}");
        let told = ours.verdict(&target("other.example"), &chain, now, None);
        assert!(told.contains("not valid for other.example"), "{told}");
        let past = Timestamp::from_second(1_000_000_000).unwrap();
        let told = ours.verdict(&api, &chain, past, Some(now));
        assert!(
            told.contains("it is not valid yet") && told.contains("clock skew: by its own clock"),
            "{told}"
        );
        let told = ours.verdict(&api, &chain, past, Some(past));
        assert!(!told.contains("clock skew"), "{told}");
        assert!(Trust::default().verdict(&api, &chain, now, None).contains("not checked"));
    }
}
