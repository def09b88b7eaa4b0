//! TLS from files that change under us.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use landfall_model::chain;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::config::TlsFiles;

/// How often files are looked at. By content: the links by which kubelet swaps Secrets fool anything cleverer.
const LOOK_EVERY: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read `{}`", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("`{}` holds no usable PEM", path.display())]
    Pem { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("`{}` holds no usable certificate authority", path.display())]
    Authority { path: PathBuf },
    #[error("the certificate and its key cannot be used")]
    Unusable(#[source] rustls::Error),
}

/// TLS as the files stand.
#[derive(Debug)]
pub(crate) struct Tls {
    files: TlsFiles,
    current: RwLock<(Vec<Vec<u8>>, Arc<ServerConfig>)>,
}

// === impl Tls ===

impl Tls {
    pub(crate) fn load(files: TlsFiles) -> Result<Arc<Self>, TlsError> {
        let content = content(&files)?;
        let config = Arc::new(server(&files, &content)?);
        Ok(Arc::new(Self { files, current: RwLock::new((content, config)) }))
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).1)
    }

    /// Takes over what changes in the files, for ever. What cannot be used is logged, and the old goes on being served.
    pub(crate) async fn follow(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            match self.reload() {
                Ok(true) => {
                    tracing::info!(certificate = %self.files.certificate.display(), "Certificate reloaded.");
                }
                Ok(false) => {}
                Err(error) => tracing::warn!(error = %chain(&error), "Certificate not reloaded."),
            }
        }
    }

    fn reload(&self) -> Result<bool, TlsError> {
        let content = content(&self.files)?;
        if self.current.read().unwrap_or_else(PoisonError::into_inner).0 == content {
            return Ok(false);
        }
        let config = Arc::new(server(&self.files, &content)?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = (content, config);
        Ok(true)
    }
}

fn content(files: &TlsFiles) -> Result<Vec<Vec<u8>>, TlsError> {
    let paths = [Some(&files.certificate), Some(&files.key), files.client_authority.as_ref()];
    let read =
        |path: &PathBuf| std::fs::read(path).map_err(|source| TlsError::Read { path: path.clone(), source });
    paths.into_iter().flatten().map(read).collect()
}

fn server(files: &TlsFiles, content: &[Vec<u8>]) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Unusable)?;
    let builder = match (&files.client_authority, content.get(2)) {
        (Some(path), Some(pem)) => {
            let unusable = |_| TlsError::Authority { path: path.clone() };
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path, pem)? {
                roots.add(certificate).map_err(unusable)?;
            }
            // Others may come with a token; a certificate that is presented must be good.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|_| TlsError::Authority { path: path.clone() })?;
            builder.with_client_cert_verifier(verifier)
        }
        _ => builder.with_no_client_auth(),
    };
    let chain = certificates(&files.certificate, &content[0])?;
    let key = PrivateKeyDer::from_pem_slice(&content[1])
        .map_err(|source| TlsError::Pem { path: files.key.clone(), source })?;
    let mut config = builder.with_single_cert(chain, key).map_err(TlsError::Unusable)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// TLS of one who asks others: they are trusted by their authority, and may know us by a certificate and its key.
pub(crate) fn client(authority: &Path, identity: Option<(&Path, &Path)>) -> Result<ClientConfig, TlsError> {
    let read =
        |path: &Path| std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source });
    let mut roots = RootCertStore::empty();
    for root in certificates(authority, &read(authority)?)? {
        roots.add(root).map_err(|_| TlsError::Authority { path: authority.to_owned() })?;
    }
    if roots.is_empty() {
        return Err(TlsError::Authority { path: authority.to_owned() });
    }
    let builder =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(TlsError::Unusable)?
            .with_root_certificates(roots);
    let Some((certificate, key)) = identity else { return Ok(builder.with_no_client_auth()) };
    let chain = certificates(certificate, &read(certificate)?)?;
    let key_der = PrivateKeyDer::from_pem_slice(&read(key)?)
        .map_err(|source| TlsError::Pem { path: key.to_owned(), source })?;
    builder.with_client_auth_cert(chain, key_der).map_err(TlsError::Unusable)
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|source| TlsError::Pem { path: path.to_owned(), source })
}
