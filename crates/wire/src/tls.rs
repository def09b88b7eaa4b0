//! TLS from files that change under us: certificates and authorities are rotated while we run.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use landfall_model::{Secret, chain};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert, ServerSessionMemoryCache};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
};
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// How often files are looked at. By content: the links by which kubelet swaps Secrets fool anything cleverer.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// Sessions that may be resumed. Each keeps its client's certificates.
const SESSIONS: usize = 1024;
/// No certificate or key file of this world is larger; a device or a log would be.
const MAX_FILE: u64 = 4 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read `{path}`")]
    Read { path: PathBuf, source: io::Error },
    #[error("`{path}` holds no usable PEM")]
    Pem { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("`{path}` holds no usable certificate authority")]
    Authority { path: PathBuf },
    #[error("the certificate `{certificate}` cannot be used with its key")]
    Certificate { certificate: PathBuf, source: rustls::Error },
    #[error("the TLS settings cannot be used")]
    Settings(#[source] rustls::Error),
    #[error("there is no certificate to serve")]
    NothingToServe,
    #[error("`{path}` cannot be used: {reason}")]
    Content { path: PathBuf, reason: String },
}

/// A certificate with its key, in PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Files as they stood at one moment.
#[expect(missing_debug_implementations, reason = "holds private keys")]
pub struct Files(Vec<(PathBuf, io::Result<Secret<Vec<u8>>>)>);

type Build<T> = dyn Fn(&Files) -> Result<T, TlsError> + Send + Sync;

/// Something made from files, made anew when they change.
pub struct Live<T> {
    paths: Vec<PathBuf>,
    build: Box<Build<T>>,
    current: RwLock<Current<T>>,
}

struct Current<T> {
    digest: [u8; 32],
    value: Arc<T>,
}

/// How a client calls.
#[derive(Clone, Copy, Debug)]
pub struct Calling<'a> {
    /// Whose servers it believes.
    pub authority: &'a Path,
    /// What it shows when asked.
    pub certificate: Option<&'a Pair>,
    pub protocols: &'a [&'a [u8]],
}

/// Asks clients for a certificate, takes any or none, and makes sure that its sender holds the key. Whose it is and what
/// it is worth is judged later, by somebody who can answer with more than a broken connection.
#[derive(Debug)]
pub struct AskForCertificate(Arc<CryptoProvider>);

#[derive(Debug)]
struct ByName(Vec<Served>);

#[derive(Debug)]
struct Served {
    names: Vec<String>,
    key: Arc<CertifiedKey>,
}

/// A server's TLS: the pair whose certificate bears the name a client asks for, else the first.
pub fn serving(
    files: &Files,
    pairs: &[Pair],
    ask: Arc<dyn ClientCertVerifier>,
    protocols: &[&[u8]],
) -> Result<ServerConfig, TlsError> {
    if pairs.is_empty() {
        return Err(TlsError::NothingToServe);
    }
    let provider = provider();
    let served: Result<_, _> = pairs.iter().map(|pair| serve(files, pair, &provider)).collect();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Settings)?
        .with_client_cert_verifier(ask)
        .with_cert_resolver(Arc::new(ByName(served?)));
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config.session_storage = ServerSessionMemoryCache::new(SESSIONS);
    config.send_tls13_tickets = 1;
    Ok(config)
}

/// A client's TLS.
pub fn calling(files: &Files, calling: Calling<'_>) -> Result<ClientConfig, TlsError> {
    calling_whom(files, roots(files, calling.authority)?, calling.certificate, calling.protocols)
}

/// The TLS of a client that believes servers of these authorities, wherever they come from.
pub fn calling_whom(
    files: &Files,
    roots: RootCertStore,
    certificate: Option<&Pair>,
    protocols: &[&[u8]],
) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Settings)?
        .with_root_certificates(roots);
    let mut config = match certificate {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let chain = certificates(&pair.certificate, files.get(&pair.certificate)?)?;
            let key = key(&pair.key, files.get(&pair.key)?)?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|source| TlsError::Certificate { certificate: pair.certificate.clone(), source })?
        }
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(config)
}

/// The authorities in a file; at least one.
pub fn roots(files: &Files, path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, files.get(path)?)? {
        roots.add(certificate).map_err(|_| TlsError::Authority { path: path.to_owned() })?;
    }
    if roots.is_empty() { Err(TlsError::Authority { path: path.to_owned() }) } else { Ok(roots) }
}

fn serve(files: &Files, pair: &Pair, provider: &CryptoProvider) -> Result<Served, TlsError> {
    let chain = certificates(&pair.certificate, files.get(&pair.certificate)?)?;
    let names = chain.first().map(names).unwrap_or_default();
    let key = key(&pair.key, files.get(&pair.key)?)?;
    let key = CertifiedKey::from_der(chain, key, provider)
        .map_err(|source| TlsError::Certificate { certificate: pair.certificate.clone(), source })?;
    Ok(Served { names, key: Arc::new(key) })
}

/// The DNS names of a certificate, in lower case. One that cannot be read has none, and is served by default only.
fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return Vec::new() };
    let dns = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    };
    names.value.general_names.iter().filter_map(dns).collect()
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|source| TlsError::Pem { path: path.to_owned(), source })
}

fn key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|source| TlsError::Pem { path: path.to_owned(), source })
}

// === impl Files ===

impl Files {
    fn read(paths: &[PathBuf]) -> Self {
        Self(paths.iter().map(|path| (path.clone(), read(path).map(Secret::new))).collect())
    }

    /// The content of a file that must be there.
    pub fn get(&self, path: &Path) -> Result<&[u8], TlsError> {
        let found = self.0.iter().find(|(known, _)| known == path);
        let failed = |source: io::Error| TlsError::Read { path: path.to_owned(), source };
        match found {
            Some((_, Ok(content))) => Ok(content.expose()),
            Some((_, Err(error))) => Err(failed(io::Error::new(error.kind(), error.to_string()))),
            None => Err(failed(io::ErrorKind::NotFound.into())),
        }
    }

    fn digest(&self) -> [u8; 32] {
        let mut all = Sha256::new();
        for (path, content) in &self.0 {
            all.update(path.as_os_str().as_encoded_bytes());
            match content {
                Ok(content) => all.update(Sha256::digest(content.expose())),
                Err(error) => all.update(error.to_string()),
            }
        }
        all.finalize().into()
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut content = Vec::new();
    let read = std::fs::File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut content)?;
    if read as u64 > MAX_FILE { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(content) }
}

// === impl Live ===

impl<T: Send + Sync + 'static> Live<T> {
    pub fn load(
        paths: Vec<PathBuf>,
        build: impl Fn(&Files) -> Result<T, TlsError> + Send + Sync + 'static,
    ) -> Result<Arc<Self>, TlsError> {
        let files = Files::read(&paths);
        let current = Current { digest: files.digest(), value: Arc::new(build(&files)?) };
        Ok(Arc::new(Self { paths, build: Box::new(build), current: RwLock::new(current) }))
    }

    pub fn get(&self) -> Arc<T> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).value)
    }

    /// Takes over what changed in the files. What cannot be used is logged, and the old goes on being used.
    pub fn reload(&self) {
        let files = Files::read(&self.paths);
        let digest = files.digest();
        if self.current.read().unwrap_or_else(PoisonError::into_inner).digest == digest {
            return;
        }
        match (self.build)(&files) {
            Ok(value) => {
                let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
                *current = Current { digest, value: Arc::new(value) };
                tracing::info!(first = ?self.paths.first(), "certificates reloaded");
            }
            Err(error) => tracing::warn!(error = %chain(&error), "certificates not reloaded"),
        }
    }

    /// Looks at the files for ever.
    pub async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let live = Arc::clone(&self);
            // A disk that hangs must not hold up connections.
            if tokio::task::spawn_blocking(move || live.reload()).await.is_err() {
                return;
            }
        }
    }
}

impl<T> fmt::Debug for Live<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("paths", &self.paths).finish_non_exhaustive()
    }
}

// === impl AskForCertificate ===

impl Default for AskForCertificate {
    fn default() -> Self {
        Self(provider())
    }
}

impl ClientCertVerifier for AskForCertificate {
    /// Empty on purpose: clients written in Go keep back a certificate whose issuer is not named here.
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

// === impl ByName ===

impl ByName {
    fn find(&self, name: Option<&str>) -> Option<&Arc<CertifiedKey>> {
        let bears =
            |served: &&Served| name.is_some_and(|name| served.names.iter().any(|own| fits(own, name)));
        self.0.iter().find(bears).or(self.0.first()).map(|served| &served.key)
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().map(str::to_ascii_lowercase);
        self.find(name.as_deref()).cloned()
    }
}

/// Whether a certificate's name, which may begin with `*.`, is the name a client asks for.
fn fits(own: &str, asked: &str) -> bool {
    match own.strip_prefix("*.") {
        Some(domain) => asked.split_once('.').is_some_and(|(host, rest)| !host.is_empty() && rest == domain),
        None => own == asked,
    }
}

#[cfg(test)]
mod tests {
    use landfall_pki::{Authority, Leaf, Purpose};
    use rustls::pki_types::ServerName;
    use rustls::{ClientConnection, ServerConnection};

    use super::*;

    struct Folder(tempfile::TempDir, Authority);

    impl Folder {
        fn new() -> Self {
            let folder = Self(tempfile::tempdir().unwrap(), Authority::new("test", 1).unwrap());
            std::fs::write(folder.path("ca.crt"), folder.1.certificate()).unwrap();
            folder
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn issue(&self, name: &str, names: &[&str]) -> Pair {
            let leaf = Leaf::new(name, Purpose::Peer).names(names.iter().copied());
            let issued = self.1.issue(&leaf).unwrap();
            let pair = Pair {
                certificate: self.path(&format!("{name}.crt")),
                key: self.path(&format!("{name}.key")),
            };
            std::fs::write(&pair.certificate, issued.certificate).unwrap();
            std::fs::write(&pair.key, issued.key.expose()).unwrap();
            pair
        }
    }

    fn live(pairs: &[Pair]) -> Arc<Live<ServerConfig>> {
        let paths = pairs.iter().flat_map(|pair| [pair.certificate.clone(), pair.key.clone()]).collect();
        let pairs = pairs.to_vec();
        Live::load(paths, move |files| {
            serving(files, &pairs, Arc::new(AskForCertificate::default()), &[b"h2"])
        })
        .unwrap()
    }

    /// A handshake in memory: the certificates each side saw.
    fn shake(
        server: Arc<ServerConfig>,
        client: ClientConfig,
        name: &'static str,
    ) -> (CertificateDer<'static>, usize) {
        let mut server = ServerConnection::new(server).unwrap();
        let mut client =
            ClientConnection::new(Arc::new(client), ServerName::try_from(name).unwrap()).unwrap();
        for _ in 0..10 {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut bytes.as_slice()).unwrap();
            server.process_new_packets().unwrap();
            let mut bytes = Vec::new();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut bytes.as_slice()).unwrap();
            client.process_new_packets().unwrap();
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        (client.peer_certificates().unwrap()[0].clone(), server.peer_certificates().map_or(0, <[_]>::len))
    }

    #[test]
    fn the_pair_with_the_name_is_served_and_a_stranger_is_heard() {
        let folder = Folder::new();
        let pairs = [
            folder.issue("service", &["kubernetes", "127.0.0.1"]),
            folder.issue("lb", &["api.example.org", "*.apps.example.org"]),
        ];
        let server = live(&pairs);
        let stranger = Folder::new().issue("stranger", &[]);
        let (calling_files, authority) = (Files::read(&[folder.path("ca.crt")]), folder.path("ca.crt"));
        let [service, lb] = pairs.map(|pair| CertificateDer::from_pem_file(pair.certificate).unwrap());
        for (name, expected) in [
            ("kubernetes", &service),
            ("api.example.org", &lb),
            ("API.example.org", &lb),
            ("console.apps.example.org", &lb),
            ("127.0.0.1", &service),
        ] {
            let calls = Calling { authority: &authority, certificate: None, protocols: &[b"h2"] };
            let (seen, clients) = shake(server.get(), calling(&calling_files, calls).unwrap(), name);
            assert_eq!((&seen, clients), (expected, 0), "{name}");
        }
        // A certificate nobody here knows does not break the handshake: it is judged later.
        drop(stranger);
        let outside = Folder::new();
        let pair = outside.issue("stranger", &[]);
        let files = Files::read(&[authority.clone(), pair.certificate.clone(), pair.key.clone()]);
        let calls = Calling { authority: &authority, certificate: Some(&pair), protocols: &[b"h2"] };
        assert_eq!(shake(server.get(), calling(&files, calls).unwrap(), "kubernetes").1, 1);
    }

    #[test]
    fn changed_files_are_taken_over_and_broken_ones_are_not() {
        let folder = Folder::new();
        let pair = folder.issue("service", &["kubernetes"]);
        let server = live(std::slice::from_ref(&pair));
        let first = server.get();
        server.reload();
        assert!(Arc::ptr_eq(&first, &server.get()));
        let renewed = folder.issue("service", &["kubernetes"]);
        server.reload();
        let second = server.get();
        assert!(!Arc::ptr_eq(&first, &second));
        std::fs::write(&renewed.key, "no key").unwrap();
        server.reload();
        assert!(Arc::ptr_eq(&second, &server.get()));
    }

    #[test]
    fn without_a_certificate_nothing_is_served() {
        let none = serving(&Files::read(&[]), &[], Arc::new(AskForCertificate::default()), &[]);
        assert!(matches!(none, Err(TlsError::NothingToServe)));
    }
}
