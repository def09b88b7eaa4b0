//! TLS for every role: settings from PEM files, reloaded when the files change.
//!
//! Certificates, keys and CAs are rotated while a process runs. Every role loads them here, so that they all reload the
//! same way, prefer the same cipher suites and report the same errors.

mod client;
mod policy;
mod reload;
mod server;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub use self::client::{ClientTls, Identity, ServerTrust, client_config, system_roots};
pub use self::policy::{TlsPolicy, TlsVersion};
pub use self::reload::{FileSnapshot, Reloading};
pub use self::server::{
    ClientAuth, ClientCertificates, ServerTlsFiles, ServerTlsOptions, client_verifier, server_config,
};

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read `{path}`")]
    Read { path: PathBuf, source: io::Error },
    #[error("`{path}` contains no valid PEM")]
    Pem { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("`{path}` contains no usable CA certificate")]
    Authority { path: PathBuf },
    #[error("the certificate `{certificate}` does not match its key or is not supported")]
    Certificate { certificate: PathBuf, source: rustls::Error },
    #[error("invalid TLS settings")]
    Settings(#[source] rustls::Error),
    #[error("no server certificate is configured")]
    NoCertificate,
    #[error("invalid `{path}`: {reason}")]
    Content { path: PathBuf, reason: String },
    #[error("invalid TLS version `{0}`; hint: `VersionTLS12`, `VersionTLS13`")]
    Version(String),
    #[error("invalid cipher suite `{0}`; hint: use Go's names, such as `{example}`", example = policy::EXAMPLE_SUITE)]
    Suite(String),
}

/// A certificate chain and its key, each in a PEM file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Returns the CA certificates in a PEM file; at least one.
pub fn roots(files: &FileSnapshot, path: &Path) -> Result<RootCertStore, TlsError> {
    parse_roots(path, files.get(path)?)
}

/// Returns the CA certificates in PEM text; at least one. `path` names the text in errors.
///
/// As in Go, unusable certificates beside a usable one are skipped, so that a CA bundle that Kubernetes accepts is
/// accepted here.
pub fn parse_roots(path: &Path, pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).map_while(Result::ok));
    if roots.is_empty() { Err(TlsError::Authority { path: path.to_owned() }) } else { Ok(roots) }
}

fn parse_chain(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|source| TlsError::Pem { path: path.to_owned(), source })
}

fn parse_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|source| TlsError::Pem { path: path.to_owned(), source })
}

/// Returns the default cipher suites. AES-128 is first, as in Go: 128 bits are sufficient, and it costs less per byte
/// than AES-256.
fn default_provider() -> CryptoProvider {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    let preferred = rustls::CipherSuite::TLS13_AES_128_GCM_SHA256;
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != preferred);
    provider
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(default_provider())
}

// === impl CertificateFiles ===

impl CertificateFiles {
    pub fn paths(&self) -> [PathBuf; 2] {
        [self.certificate.clone(), self.key.clone()]
    }
}

#[cfg(test)]
mod tests;
