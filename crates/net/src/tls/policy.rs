//! TLS versions and cipher suites that a server accepts, in the names of Go's flags.

use std::sync::Arc;

use rustls::SupportedProtocolVersion;
use rustls::crypto::CryptoProvider;

use super::{TlsError, default_provider};

pub(super) const EXAMPLE_SUITE: &str = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384";
/// Suites that Go servers can be configured to accept and that rustls omits as too weak.
const WEAK_SUITES: [&str; 10] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
];

static TLS13_ONLY: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS13];

/// Versions and cipher suites that a server accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsPolicy {
    pub min_version: TlsVersion,
    /// Cipher suites for TLS 1.2; empty means all supported ones. All suites of TLS 1.3 are always accepted.
    pub cipher_suites: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsVersion {
    #[default]
    Tls12,
    Tls13,
}

// === impl TlsPolicy ===

impl TlsPolicy {
    pub(super) fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        match self.min_version {
            TlsVersion::Tls12 => rustls::ALL_VERSIONS,
            TlsVersion::Tls13 => &TLS13_ONLY,
        }
    }

    pub(super) fn provider(&self) -> Result<Arc<CryptoProvider>, TlsError> {
        let mut provider = default_provider();
        if self.cipher_suites.is_empty() {
            return Ok(Arc::new(provider));
        }
        let name = |suite: &rustls::SupportedCipherSuite| suite.suite().as_str().unwrap_or_default();
        let allowed: Vec<String> = self.cipher_suites.iter().map(|suite| rustls_name(suite)).collect();
        for suite in &allowed {
            if WEAK_SUITES.contains(&suite.as_str()) {
                tracing::warn!(suite, "weak cipher suite ignored");
            } else if !provider.cipher_suites.iter().any(|known| name(known) == suite) {
                return Err(TlsError::Suite(suite.clone()));
            }
        }
        provider
            .cipher_suites
            .retain(|suite| suite.tls13().is_some() || allowed.iter().any(|allowed| allowed == name(suite)));
        Ok(Arc::new(provider))
    }
}

/// Returns the rustls name of a suite. Go abbreviates two suites of TLS 1.2 and uses other names for those of TLS 1.3.
fn rustls_name(suite: &str) -> String {
    match suite {
        short if short.ends_with("_CHACHA20_POLY1305") => format!("{short}_SHA256"),
        "TLS_AES_128_GCM_SHA256" | "TLS_AES_256_GCM_SHA384" | "TLS_CHACHA20_POLY1305_SHA256" => {
            suite.replacen("TLS_", "TLS13_", 1)
        }
        other => other.to_owned(),
    }
}

// === impl TlsVersion ===

impl std::str::FromStr for TlsVersion {
    type Err = TlsError;

    /// Parses Go's names. Versions before 1.2 are not supported; they mean 1.2.
    fn from_str(text: &str) -> Result<Self, TlsError> {
        match text {
            "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" => Ok(Self::Tls12),
            "VersionTLS13" => Ok(Self::Tls13),
            other => Err(TlsError::Version(other.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(suites: &[&str]) -> Result<Vec<&'static str>, TlsError> {
        let cipher_suites = suites.iter().map(|name| (*name).to_owned()).collect();
        let provider = TlsPolicy { cipher_suites, ..TlsPolicy::default() }.provider()?;
        let of_tls12 = provider.cipher_suites.iter().filter(|suite| suite.tls13().is_none());
        Ok(of_tls12.filter_map(|suite| suite.suite().as_str()).collect())
    }

    #[test]
    fn cipher_suites_use_go_names() {
        assert_eq!(accepted(&[]).unwrap().len(), 6);
        assert_eq!(accepted(&[EXAMPLE_SUITE]).unwrap(), [EXAMPLE_SUITE]);
        let short = "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305";
        assert_eq!(accepted(&[short]).unwrap(), ["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"]);
        // A weak suite is ignored, and suites of TLS 1.3 cannot be selected.
        assert_eq!(accepted(&[WEAK_SUITES[0], "TLS_AES_128_GCM_SHA256"]).unwrap(), [""; 0]);
        assert!(matches!(accepted(&["TLS_ROT13"]), Err(TlsError::Suite(name)) if name == "TLS_ROT13"));
    }
}
