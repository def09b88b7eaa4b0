//! Keys, certificates and authorities, as their files stand, and what is judged by them.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use hyper::header::{HeaderName, HeaderValue};
use landfall_cluster::User;
use landfall_wire::{AskForCertificate, Calling, Files, Live, TlsError, calling, roots, serving};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, ServerConfig};
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::config::{Config, FrontProxy};
use crate::identity;
use crate::upstream::Pools;

/// Offered by clients that want this gateway and no API server.
pub const OWN_PROTOCOL: &[u8] = b"landfall/1";
const HTTP_2: &[u8] = b"h2";
const HTTP_1: &[u8] = b"http/1.1";
/// Shorter tokens can be guessed.
const MIN_TOKEN: usize = 16;

/// Everything that comes from files, at one moment.
pub(crate) struct Credentials {
    pub(crate) server: Arc<ServerConfig>,
    /// From when to when each certificate that is served is valid, in seconds of Unix time.
    served: Vec<RangeInclusive<i64>>,
    clients: Arc<dyn ClientCertVerifier>,
    front: Option<(FrontProxy, Arc<dyn ClientCertVerifier>)>,
    /// The hash of the gather token: comparing hashes tells nothing by the time it takes.
    gather_token: Option<[u8; 32]>,
    /// Connections made with these credentials; new credentials begin with none.
    pub(crate) pools: Pools,
}

/// What a client's certificate is worth.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    /// It showed none.
    Nobody,
    Known(Arc<KnownPeer>),
    /// It showed one of an authority that is not ours, one that is not valid now, or one that names nobody.
    Unknown {
        reason: String,
    },
    /// It showed a front proxy's: it would speak for others.
    FrontProxy,
    /// A valid one whose name cannot be forwarded unchanged.
    Unfit {
        reason: String,
    },
}

#[derive(Debug)]
pub(crate) struct KnownPeer {
    pub(crate) user: User,
    /// What makes an API server see this user; empty without front-proxy credentials.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// A front proxy's authority signed it too, so it may speak for nobody but itself here.
    pub(crate) could_speak_for_others: bool,
}

/// Loads everything and fails loudly when something does not fit together.
pub(crate) fn load(config: &Config) -> Result<Arc<Live<Credentials>>, TlsError> {
    let mut paths: Vec<PathBuf> =
        config.serving.iter().flat_map(|pair| [pair.certificate.clone(), pair.key.clone()]).collect();
    paths.extend([config.client_authority.clone(), config.upstream.authority.clone()]);
    if let Some(front) = &config.front_proxy {
        paths.extend([front.pair.certificate.clone(), front.pair.key.clone(), front.authority.clone()]);
    }
    paths.extend(config.gather_token.clone());
    let config = config.clone();
    Live::load(paths, move |files| Credentials::build(&config, files))
}

// === impl Credentials ===

impl Credentials {
    fn build(config: &Config, files: &Files) -> Result<Self, TlsError> {
        let ask = Arc::new(AskForCertificate::default());
        let server = serving(files, &config.serving, ask, &[HTTP_2, HTTP_1, OWN_PROTOCOL])?;
        let authority = &config.upstream.authority;
        let plain = calling(files, Calling { authority, certificate: None, protocols: &[] })?;
        let mut front = None;
        let mut fronted = None;
        if let Some(names) = &config.front_proxy {
            let certificate = Some(&names.pair);
            fronted = Some(calling(files, Calling { authority, certificate, protocols: &[] })?);
            front = Some((names.clone(), verifier(files, &names.authority)?));
        }
        let gather_token = match &config.gather_token {
            None => None,
            Some(path) => Some(token(path, files.get(path)?)?),
        };
        Ok(Self {
            server: Arc::new(server),
            served: config
                .serving
                .iter()
                .filter_map(|pair| lifetime(files.get(&pair.certificate).ok()?))
                .collect(),
            clients: verifier(files, &config.client_authority)?,
            front,
            gather_token,
            pools: Pools::new(
                &both(&plain),
                fronted.as_ref().map(both).as_ref(),
                &config.upstream.name,
                config.threads,
            ),
        })
    }

    /// Judges a certificate chain as kube-apiserver would, now.
    pub(crate) fn judge(&self, chain: Option<&[CertificateDer<'static>]>) -> Peer {
        let Some((leaf, others)) = chain.and_then(<[_]>::split_first) else { return Peer::Nobody };
        let now = UnixTime::now();
        let by_front =
            self.front.as_ref().is_some_and(|(_, front)| front.verify_client_cert(leaf, others, now).is_ok());
        if let Err(error) = self.clients.verify_client_cert(leaf, others, now) {
            return if by_front { Peer::FrontProxy } else { Peer::Unknown { reason: error.to_string() } };
        }
        let unfit = |error: identity::UnfitError| Peer::Unfit { reason: error.to_string() };
        let user = match identity::user(leaf) {
            Ok(Some(user)) => user,
            Ok(None) => return Peer::Unknown { reason: "the certificate names nobody".to_owned() },
            Err(error) => return unfit(error),
        };
        let headers =
            self.front.as_ref().map_or(Ok(Vec::new()), |(names, _)| identity::headers(&user, names));
        match headers {
            Ok(headers) => {
                Peer::Known(Arc::new(KnownPeer { user, headers, could_speak_for_others: by_front }))
            }
            Err(error) => unfit(error),
        }
    }

    /// Whether anybody who checks dates would speak to this gateway now.
    pub(crate) fn serves_a_valid_certificate(&self) -> bool {
        let now = i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX);
        self.served.iter().any(|lifetime| lifetime.contains(&now))
    }

    pub(crate) fn is_gather_token(&self, token: &str) -> bool {
        self.gather_token.is_some_and(|own| own == digest(token.as_bytes()))
    }
}

/// When the first certificate of a file is valid.
fn lifetime(pem: &[u8]) -> Option<RangeInclusive<i64>> {
    let leaf = CertificateDer::from_pem_slice(pem).ok()?;
    let (_, certificate) = X509Certificate::from_der(&leaf).ok()?;
    let validity = certificate.validity();
    Some(validity.not_before.timestamp()..=validity.not_after.timestamp())
}

fn verifier(files: &Files, path: &std::path::Path) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(files, path)?), provider)
        .build()
        .map_err(|_| TlsError::Authority { path: path.to_owned() })?;
    Ok(verifier)
}

fn token(path: &std::path::Path, content: &[u8]) -> Result<[u8; 32], TlsError> {
    let token = content.trim_ascii();
    if token.len() < MIN_TOKEN || !token.iter().all(u8::is_ascii_graphic) {
        let reason = format!("a gather token is one line of at least {MIN_TOKEN} printable characters");
        return Err(TlsError::Content { path: path.to_owned(), reason });
    }
    Ok(digest(token))
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// The same calling, by HTTP/1.1 and by HTTP/2.
fn both(config: &ClientConfig) -> [Arc<ClientConfig>; 2] {
    [HTTP_1, HTTP_2].map(|protocol| {
        let mut config = config.clone();
        config.alpn_protocols = vec![protocol.to_vec()];
        Arc::new(config)
    })
}

#[cfg(test)]
mod tests {
    use landfall_pki::{Authority, Leaf, Purpose};

    use super::*;

    #[test]
    fn the_days_of_a_certificate_are_read() {
        let authority = Authority::new("test", 30).unwrap();
        let issued = authority.issue(&Leaf::new("api", Purpose::Serve).days(2)).unwrap();
        let lifetime = lifetime(issued.certificate.as_bytes()).unwrap();
        let now = i64::try_from(UnixTime::now().as_secs()).unwrap();
        assert!(lifetime.contains(&now) && !lifetime.contains(&(now + 3 * 86_400)), "{lifetime:?}");
        assert_eq!(super::lifetime(b"no certificate"), None);
    }
}
