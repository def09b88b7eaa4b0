//! Server-side TLS.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{
    ClientHello, NoClientAuth, ResolvesServerCert, ServerSessionMemoryCache, WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use super::{
    CertificateFiles, FileSnapshot, Reloading, TlsError, TlsPolicy, parse_chain, parse_key, provider, roots,
};

/// Resumable sessions. Each keeps its client's certificates in memory.
const SESSIONS: usize = 1024;

/// The files of a server with one certificate.
#[derive(Clone, Debug)]
pub struct ServerTlsFiles {
    pub certificate: CertificateFiles,
    /// Issuers of client certificates; `None` means that the server does not request one.
    pub client_ca: Option<PathBuf>,
}

/// Whether a server with a client CA rejects clients without a certificate in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    Required,
    Optional,
}

/// A server's TLS settings, with file contents taken from a [`FileSnapshot`].
#[derive(Clone, Copy, Debug)]
pub struct ServerTlsOptions<'a> {
    /// The server presents the certificate with the requested DNS name, or the first one.
    pub certificates: &'a [CertificateFiles],
    pub clients: ClientAuth<'a>,
    /// ALPN protocols, preferred first.
    pub protocols: &'a [&'a [u8]],
    pub policy: &'a TlsPolicy,
}

/// The client certificates that the handshake requires.
#[derive(Clone, Copy, Debug)]
pub enum ClientAuth<'a> {
    None,
    /// Any certificate or none; only possession of the key is verified. The server verifies the certificate later, when
    /// it can send an error response instead of closing the connection.
    Request,
    /// None, or one issued by this CA.
    Optional(&'a Path),
    /// One issued by this CA.
    Required(&'a Path),
}

/// Requests a client certificate and accepts any, after verifying that the client holds its key.
#[derive(Debug)]
struct RequestClientCert(Arc<CryptoProvider>);

#[derive(Debug)]
struct SniResolver(Vec<SniCertificate>);

#[derive(Debug)]
struct SniCertificate {
    names: Vec<String>,
    key: Arc<CertifiedKey>,
}

/// Builds a server's TLS configuration.
pub fn server_config(files: &FileSnapshot, options: &ServerTlsOptions<'_>) -> Result<ServerConfig, TlsError> {
    if options.certificates.is_empty() {
        return Err(TlsError::NoCertificate);
    }
    let clients: Arc<dyn ClientCertVerifier> = match options.clients {
        ClientAuth::None => Arc::new(NoClientAuth),
        ClientAuth::Request => Arc::new(RequestClientCert::default()),
        ClientAuth::Optional(ca) => verifier(files, ca, false)?,
        ClientAuth::Required(ca) => verifier(files, ca, true)?,
    };
    let provider = options.policy.provider()?;
    let served: Result<_, _> = options
        .certificates
        .iter()
        .map(|certificate| sni_certificate(files, certificate, &provider))
        .collect();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(options.policy.versions())
        .map_err(TlsError::Settings)?
        .with_client_cert_verifier(clients)
        .with_cert_resolver(Arc::new(SniResolver(served?)));
    config.alpn_protocols = options.protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config.session_storage = ServerSessionMemoryCache::new(SESSIONS);
    config.send_tls13_tickets = 1;
    Ok(config)
}

/// Returns a verifier for client certificates issued by the CA in this file.
pub fn client_verifier(files: &FileSnapshot, ca: &Path) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    verifier(files, ca, true)
}

fn verifier(
    files: &FileSnapshot,
    ca: &Path,
    required: bool,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(files, ca)?), provider());
    let builder = if required { builder } else { builder.allow_unauthenticated() };
    let verifier = builder.build().map_err(|_| TlsError::Authority { path: ca.to_owned() })?;
    Ok(verifier)
}

fn sni_certificate(
    files: &FileSnapshot,
    from: &CertificateFiles,
    provider: &CryptoProvider,
) -> Result<SniCertificate, TlsError> {
    let chain = parse_chain(&from.certificate, files.get(&from.certificate)?)?;
    let names = chain.first().map(dns_names).unwrap_or_default();
    let key = parse_key(&from.key, files.get(&from.key)?)?;
    let key = CertifiedKey::from_der(chain, key, provider)
        .map_err(|source| TlsError::Certificate { certificate: from.certificate.clone(), source })?;
    Ok(SniCertificate { names, key: Arc::new(key) })
}

/// Returns the DNS names of a certificate, in lower case. A certificate that cannot be parsed is served by default
/// only.
fn dns_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    let dns = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    };
    names.value.general_names.iter().filter_map(dns).collect()
}

// === impl ServerTlsFiles ===

impl ServerTlsFiles {
    /// Loads the files and reloads them when one changes. `protocols` are the ALPN protocols, preferred first.
    pub fn load(
        self,
        certificates: ClientCertificates,
        protocols: &'static [&'static [u8]],
        policy: TlsPolicy,
    ) -> Result<Arc<Reloading<ServerConfig>>, TlsError> {
        let paths = self.certificate.paths().into_iter().chain(self.client_ca.clone()).collect();
        Reloading::load(paths, move |files| {
            let clients = match &self.client_ca {
                None => ClientAuth::None,
                Some(ca) if certificates == ClientCertificates::Required => ClientAuth::Required(ca),
                Some(ca) => ClientAuth::Optional(ca),
            };
            let options = ServerTlsOptions {
                certificates: std::slice::from_ref(&self.certificate),
                clients,
                protocols,
                policy: &policy,
            };
            server_config(files, &options)
        })
    }
}

// === impl RequestClientCert ===

impl Default for RequestClientCert {
    fn default() -> Self {
        Self(provider())
    }
}

impl ClientCertVerifier for RequestClientCert {
    /// Empty: Go clients withhold a certificate whose issuer is not listed here.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

// === impl SniResolver ===

impl SniResolver {
    fn find(&self, name: Option<&str>) -> Option<&Arc<CertifiedKey>> {
        let covers = |served: &&SniCertificate| {
            name.is_some_and(|name| served.names.iter().any(|own| matches_name(own, name)))
        };
        self.0.iter().find(covers).or(self.0.first()).map(|served| &served.key)
    }
}

impl ResolvesServerCert for SniResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().map(str::to_ascii_lowercase);
        self.find(name.as_deref()).cloned()
    }
}

/// Returns whether a certificate's name, which may begin with `*.`, matches the requested name.
fn matches_name(own: &str, requested: &str) -> bool {
    match own.strip_prefix("*.") {
        Some(domain) => {
            requested.split_once('.').is_some_and(|(host, rest)| !host.is_empty() && rest == domain)
        }
        None => own == requested,
    }
}
