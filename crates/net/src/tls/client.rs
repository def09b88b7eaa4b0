//! Client-side TLS.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::{CertificateFiles, FileSnapshot, Reloading, TlsError, parse_chain, parse_key, provider, roots};

/// TLS settings of a client, as files.
#[derive(Clone, Debug, Default)]
pub struct ClientTls {
    /// Issuers of accepted server certificates; `None` means the host's CAs.
    pub ca: Option<PathBuf>,
    /// The client's own certificate.
    pub certificate: Option<CertificateFiles>,
    /// ALPN protocols, preferred first.
    pub protocols: Vec<Vec<u8>>,
}

/// The server certificates that a client accepts.
#[derive(Clone, Debug)]
pub enum ServerTrust {
    Roots(RootCertStore),
    /// Any certificate, by explicit request of the user. The handshake still proves that the peer has the key of its
    /// certificate.
    Insecure,
}

/// A client's certificate and key, as PEM text.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "contains a private key")]
pub struct Identity<'a> {
    pub certificate: &'a [u8],
    pub key: &'a [u8],
    /// Path of the certificate in errors; likewise the key's.
    pub certificate_path: &'a Path,
    pub key_path: &'a Path,
}

#[derive(Debug)]
struct InsecureVerifier(Arc<CryptoProvider>);

/// Builds a client's TLS configuration.
pub fn client_config(
    trust: ServerTrust,
    identity: Option<Identity<'_>>,
    protocols: &[&[u8]],
) -> Result<ClientConfig, TlsError> {
    let provider = provider();
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Settings)?;
    let builder = match trust {
        ServerTrust::Roots(roots) => builder.with_root_certificates(roots),
        ServerTrust::Insecure => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(InsecureVerifier(provider)))
        }
    };
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = parse_chain(identity.certificate_path, identity.certificate)?;
            let key = parse_key(identity.key_path, identity.key)?;
            let certificate = || identity.certificate_path.to_owned();
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|source| TlsError::Certificate { certificate: certificate(), source })?
        }
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}

/// Returns the CAs that the host trusts. Unreadable ones are skipped: one of hundreds does not matter.
pub fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

// === impl ClientTls ===

impl ClientTls {
    /// Reads the files once.
    pub fn read(&self) -> Result<ClientConfig, TlsError> {
        self.build(&FileSnapshot::read(&self.paths()))
    }

    /// Loads the settings and reloads them when a file changes.
    pub fn load(self) -> Result<Arc<Reloading<ClientConfig>>, TlsError> {
        Reloading::load(self.paths(), move |files| self.build(files))
    }

    /// Builds the configuration from files that the caller has read.
    pub fn build(&self, files: &FileSnapshot) -> Result<ClientConfig, TlsError> {
        let trusted = match &self.ca {
            Some(path) => roots(files, path)?,
            None => system_roots(),
        };
        if trusted.is_empty() {
            // Not an error: a connection without TLS needs none.
            tracing::warn!("no CA certificates found; every server certificate will be rejected");
        }
        let identity = match &self.certificate {
            None => None,
            Some(CertificateFiles { certificate, key }) => Some(Identity {
                certificate: files.get(certificate)?,
                key: files.get(key)?,
                certificate_path: certificate,
                key_path: key,
            }),
        };
        let protocols: Vec<&[u8]> = self.protocols.iter().map(Vec::as_slice).collect();
        client_config(ServerTrust::Roots(trusted), identity, &protocols)
    }

    fn paths(&self) -> Vec<PathBuf> {
        let own = self.certificate.iter().flat_map(CertificateFiles::paths);
        self.ca.iter().cloned().chain(own).collect()
    }
}

// === impl InsecureVerifier ===

impl ServerCertVerifier for InsecureVerifier {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
