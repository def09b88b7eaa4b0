//! TLS from files that change under us: certificates and authorities are rotated while we run.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use landfall_model::chain;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::config::{CallingFiles, ServingFiles, TlsPolicy, TlsVersion};

/// How often files are looked at. By content: the links by which kubelet swaps Secrets fool anything cleverer.
const LOOK_EVERY: Duration = Duration::from_secs(15);

const EXAMPLE_SUITE: &str = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384";
/// Suites that Go's servers can be told to accept and that are not offered here: they protect too little.
const NOT_OFFERED: [&str; 10] = [
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

/// What a busy link may have encrypted and not yet written: what is written at once. rustls' own limit is 64 KiB.
pub(crate) const TLS_WRITE: usize = 256 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read `{path}`")]
    Read { path: PathBuf, source: io::Error },
    #[error("`{path}` holds no usable PEM")]
    Pem { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("`{path}` holds no usable certificate authority")]
    Authority { path: PathBuf },
    #[error("the certificate `{certificate}` cannot be used")]
    Certificate { certificate: PathBuf, source: rustls::Error },
    #[error("the TLS settings cannot be used")]
    Settings(#[source] rustls::Error),
    #[error("`{0}` is not a cipher suite; hint: names are those of Go, such as `{EXAMPLE_SUITE}`")]
    Suite(String),
}

/// Which protocols a server offers in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alpn {
    /// Peers of gRPC insist on it.
    Http2,
    /// kube-apiserver's CONNECT client offers none, and must not be given HTTP/2.
    None,
}

/// A server's TLS, as its files stand.
#[derive(Debug)]
pub(crate) struct Serving {
    files: ServingFiles,
    alpn: Alpn,
    policy: TlsPolicy,
    current: RwLock<Current>,
}

#[derive(Debug)]
struct Current {
    content: Vec<Vec<u8>>,
    config: Arc<ServerConfig>,
}

/// A client's TLS, as its files stand now.
pub(crate) fn calling(files: &CallingFiles) -> Result<ClientConfig, TlsError> {
    let roots = roots(&files.authority, &read(&files.authority)?)?;
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Settings)?
        .with_root_certificates(roots);
    let mut config = match &files.certificate {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let (chain, key) = pair(certificate, &read(certificate)?, key, &read(key)?)?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|source| TlsError::Certificate { certificate: certificate.clone(), source })?
        }
    };
    config.alpn_protocols =
        files.alpn.iter().map(|name| name.as_bytes().to_vec()).chain([b"h2".to_vec()]).collect();
    Ok(config)
}

// === impl Serving ===

impl Serving {
    pub(crate) fn load(files: ServingFiles, alpn: Alpn, policy: &TlsPolicy) -> Result<Arc<Self>, TlsError> {
        let content = content(&files)?;
        let config = Arc::new(serving(&files, &content, alpn, policy)?);
        let current = RwLock::new(Current { content, config });
        Ok(Arc::new(Self { files, alpn, policy: policy.clone(), current }))
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).config)
    }

    /// Takes over what changed in the files. What cannot be used is logged, and the old goes on being served.
    pub(crate) fn reload(&self) {
        let unchanged = |content: &Vec<Vec<u8>>| {
            self.current.read().unwrap_or_else(PoisonError::into_inner).content == *content
        };
        let reloaded = content(&self.files).and_then(|content| {
            if unchanged(&content) {
                return Ok(None);
            }
            serving(&self.files, &content, self.alpn, &self.policy).map(|config| Some((content, config)))
        });
        match reloaded {
            Ok(None) => {}
            Ok(Some((content, config))) => {
                let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
                *current = Current { content, config: Arc::new(config) };
                tracing::info!(certificate = %self.files.certificate.display(), "certificate reloaded");
            }
            Err(error) => tracing::warn!(error = %chain(&error), "certificate not reloaded"),
        }
    }

    /// Looks at the files for ever.
    pub(crate) async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.reload();
        }
    }
}

fn content(files: &ServingFiles) -> Result<Vec<Vec<u8>>, TlsError> {
    let paths = [Some(&files.certificate), Some(&files.key), files.client_authority.as_ref()];
    paths.into_iter().flatten().map(|path| read(path)).collect()
}

fn serving(
    files: &ServingFiles,
    content: &[Vec<u8>],
    alpn: Alpn,
    policy: &TlsPolicy,
) -> Result<ServerConfig, TlsError> {
    let versions: &[_] = match policy.at_least {
        TlsVersion::Tls12 => &[&rustls::version::TLS13, &rustls::version::TLS12],
        TlsVersion::Tls13 => &[&rustls::version::TLS13],
    };
    let builder = ServerConfig::builder_with_provider(provider_for(policy)?)
        .with_protocol_versions(versions)
        .map_err(TlsError::Settings)?;
    let builder = match (&files.client_authority, content.get(2)) {
        (Some(path), Some(pem)) => {
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots(path, pem)?), provider())
                    .build()
                    .map_err(|_| TlsError::Authority { path: path.clone() })?;
            builder.with_client_cert_verifier(verifier)
        }
        _ => builder.with_no_client_auth(),
    };
    let (chain, key) = pair(&files.certificate, &content[0], &files.key, &content[1])?;
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|source| TlsError::Certificate { certificate: files.certificate.clone(), source })?;
    if alpn == Alpn::Http2 {
        config.alpn_protocols = vec![b"h2".to_vec()];
    }
    Ok(config)
}

/// The suites of TLS 1.3, and those of TLS 1.2 that the policy names.
fn provider_for(policy: &TlsPolicy) -> Result<Arc<rustls::crypto::CryptoProvider>, TlsError> {
    let mut provider = default_provider();
    if policy.cipher_suites.is_empty() {
        return Ok(Arc::new(provider));
    }
    let name = |suite: &rustls::SupportedCipherSuite| suite.suite().as_str().unwrap_or_default();
    // Go knows a shorter name of these two, and other names of those of TLS 1.3.
    let wanted: Vec<String> = policy
        .cipher_suites
        .iter()
        .map(|suite| match suite.as_str() {
            short if short.ends_with("_CHACHA20_POLY1305") => format!("{short}_SHA256"),
            "TLS_AES_128_GCM_SHA256" | "TLS_AES_256_GCM_SHA384" | "TLS_CHACHA20_POLY1305_SHA256" => {
                suite.replacen("TLS_", "TLS13_", 1)
            }
            other => other.to_owned(),
        })
        .collect();
    for suite in &wanted {
        if NOT_OFFERED.contains(&suite.as_str()) {
            tracing::warn!(suite, "cipher suite not offered: it protects too little");
        } else if !provider.cipher_suites.iter().any(|known| name(known) == suite) {
            return Err(TlsError::Suite(suite.clone()));
        }
    }
    provider
        .cipher_suites
        .retain(|suite| suite.tls13().is_some() || wanted.iter().any(|wanted| wanted == name(suite)));
    Ok(Arc::new(provider))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(default_provider())
}

/// Prefers what Go prefers: AES with 128 bits is as safe in practice, and costs less for each byte.
fn default_provider() -> rustls::crypto::CryptoProvider {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    let preferred = rustls::CipherSuite::TLS13_AES_128_GCM_SHA256;
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != preferred);
    provider
}

fn roots(path: &Path, pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, pem)? {
        roots.add(certificate).map_err(|_| TlsError::Authority { path: path.to_owned() })?;
    }
    if roots.is_empty() { Err(TlsError::Authority { path: path.to_owned() }) } else { Ok(roots) }
}

fn pair(
    certificate: &Path,
    certificate_pem: &[u8],
    key: &Path,
    key_pem: &[u8],
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let chain = certificates(certificate, certificate_pem)?;
    let key = PrivateKeyDer::from_pem_slice(key_pem)
        .map_err(|source| TlsError::Pem { path: key.to_owned(), source })?;
    Ok((chain, key))
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|source| TlsError::Pem { path: path.to_owned(), source })
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(suites: &[&str]) -> Result<Vec<&'static str>, TlsError> {
        let cipher_suites = suites.iter().map(|name| (*name).to_owned()).collect();
        let provider = provider_for(&TlsPolicy { cipher_suites, ..TlsPolicy::default() })?;
        let of_tls12 = provider.cipher_suites.iter().filter(|suite| suite.tls13().is_none());
        Ok(of_tls12.filter_map(|suite| suite.suite().as_str()).collect())
    }

    #[test]
    fn suites_are_named_as_go_names_them() {
        assert_eq!(offered(&[]).unwrap().len(), 6);
        assert_eq!(offered(&[EXAMPLE_SUITE]).unwrap(), [EXAMPLE_SUITE]);
        let short = "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305";
        assert_eq!(offered(&[short]).unwrap(), ["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"]);
        // Known, but not offered; and one of TLS 1.3, which cannot be chosen.
        assert_eq!(offered(&[NOT_OFFERED[0], "TLS_AES_128_GCM_SHA256"]).unwrap(), [""; 0]);
        assert!(matches!(offered(&["TLS_ROT13"]), Err(TlsError::Suite(name)) if name == "TLS_ROT13"));
    }

    /// Shakes hands in memory, with a client that offers everything of TLS 1.2, or of both versions.
    fn shaken(policy: &TlsPolicy, client: &[&'static rustls::SupportedProtocolVersion]) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let authority = landfall_pki::Authority::new("suites", 1).unwrap();
        let leaf = landfall_pki::Leaf::new("server", landfall_pki::Purpose::Serve).names(["localhost"]);
        let issued = authority.issue(&leaf).unwrap();
        let file = |name: &str, content: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, content).unwrap();
            path
        };
        let files = ServingFiles {
            certificate: file("crt", &issued.certificate),
            key: file("key", issued.key.expose()),
            client_authority: None,
        };
        let serving = Serving::load(files, Alpn::None, policy).unwrap();
        let authority = file("ca", authority.certificate());
        let roots = roots(&authority, &read(&authority).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(client)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut server = rustls::ServerConnection::new(serving.config()).unwrap();
        let name = "localhost".try_into().unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut wire = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut wire).unwrap();
            }
            while !wire.is_empty() {
                let taken = server.read_tls(&mut &wire[..]).unwrap();
                wire.drain(..taken);
                server.process_new_packets().ok()?;
            }
            while server.wants_write() {
                server.write_tls(&mut wire).unwrap();
            }
            while !wire.is_empty() {
                let taken = client.read_tls(&mut &wire[..]).unwrap();
                wire.drain(..taken);
                client.process_new_packets().ok()?;
            }
        }
        server.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str()).map(str::to_owned)
    }

    #[test]
    fn the_suites_of_the_flags_are_those_of_the_handshake() {
        let (old, both): (&[_], &[_]) =
            (&[&rustls::version::TLS12], &[&rustls::version::TLS13, &rustls::version::TLS12]);
        let policy = |at_least, suite: &str| {
            let cipher_suites = Some(suite.to_owned()).filter(|name| !name.is_empty()).into_iter().collect();
            TlsPolicy { at_least, cipher_suites }
        };
        for suite in [EXAMPLE_SUITE, "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"] {
            assert_eq!(shaken(&policy(TlsVersion::Tls12, suite), old).as_deref(), Some(suite));
        }
        // The key is an elliptic curve's: a suite for RSA alone leaves nothing to agree on in TLS 1.2.
        let other = policy(TlsVersion::Tls12, "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256");
        assert_eq!(shaken(&other, old), None);
        assert!(shaken(&other, both).is_some_and(|suite| suite.starts_with("TLS13_")));
        let newest = policy(TlsVersion::Tls13, "");
        assert_eq!(shaken(&newest, old), None);
        assert!(shaken(&newest, both).is_some_and(|suite| suite.starts_with("TLS13_")));
    }
}
