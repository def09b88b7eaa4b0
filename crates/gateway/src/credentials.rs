//! Keys, certificates and CAs from their current files, and decisions based on them.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use hyper::header::{HeaderName, HeaderValue};
use landfall_cluster::User;
use landfall_net::{
    CertificateFiles, ClientAuth, ClientTls, FileSnapshot, Reloading, ServerTlsOptions, TlsError, TlsPolicy,
    client_verifier, server_config,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, ServerConfig};
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::config::{Config, FrontProxy};
use crate::identity;
use crate::upstream::Pools;

/// ALPN protocol of clients that want this gateway and no API server.
pub const OWN_PROTOCOL: &[u8] = b"landfall/1";
const HTTP_2: &[u8] = b"h2";
const HTTP_1: &[u8] = b"http/1.1";
/// Minimum length of the gather token; shorter ones can be guessed.
const MIN_TOKEN: usize = 16;

/// The content of all credential files at one time.
pub(crate) struct Credentials {
    pub(crate) server: Arc<ServerConfig>,
    /// Validity period of each certificate that is served, in seconds of Unix time.
    served: Vec<RangeInclusive<i64>>,
    clients: Arc<dyn ClientCertVerifier>,
    front: Option<(FrontProxy, Arc<dyn ClientCertVerifier>)>,
    /// The hash of the gather token: comparing hashes leaks nothing through timing.
    gather_token: Option<[u8; 32]>,
    /// Connections made with these credentials; new credentials start with none.
    pub(crate) pools: Pools,
}

/// Result of verifying a client's certificate.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    /// The client presented no certificate.
    Nobody,
    Known(Arc<KnownPeer>),
    /// The certificate is from an unknown CA, not valid now, or contains no user name.
    Unknown {
        reason: String,
    },
    /// The certificate of a front proxy, which would forward identities of other users.
    FrontProxy,
    /// A valid certificate whose user name cannot be forwarded unchanged.
    Unfit {
        reason: String,
    },
}

#[derive(Debug)]
pub(crate) struct KnownPeer {
    pub(crate) user: User,
    /// Headers that forward this user to an API server; empty without front-proxy credentials.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// The front-proxy CA issued the certificate, too. The gateway then rejects identity headers of this client.
    pub(crate) could_speak_for_others: bool,
}

/// Loads all files and returns an error when they are inconsistent.
pub(crate) fn load(config: &Config) -> Result<Arc<Reloading<Credentials>>, TlsError> {
    let mut paths: Vec<PathBuf> =
        config.serving.iter().flat_map(|pair| [pair.certificate.clone(), pair.key.clone()]).collect();
    paths.extend([config.client_authority.clone(), config.upstream.authority.clone()]);
    if let Some(front) = &config.front_proxy {
        paths.extend([front.pair.certificate.clone(), front.pair.key.clone(), front.authority.clone()]);
    }
    paths.extend(config.gather_token.clone());
    let config = config.clone();
    Reloading::load(paths, move |files| Credentials::build(&config, files))
}

// === impl Credentials ===

impl Credentials {
    fn build(config: &Config, files: &FileSnapshot) -> Result<Self, TlsError> {
        let server = server_config(
            files,
            &ServerTlsOptions {
                certificates: &config.serving,
                clients: ClientAuth::Request,
                protocols: &[HTTP_2, HTTP_1, OWN_PROTOCOL],
                policy: &TlsPolicy::default(),
            },
        )?;
        let upstream = |certificate: Option<CertificateFiles>| {
            let ca = Some(config.upstream.authority.clone());
            ClientTls { ca, certificate, protocols: Vec::new() }.build(files)
        };
        let plain = upstream(None)?;
        let mut front = None;
        let mut fronted = None;
        if let Some(names) = &config.front_proxy {
            fronted = Some(upstream(Some(names.pair.clone()))?);
            front = Some((names.clone(), client_verifier(files, &names.authority)?));
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
            clients: client_verifier(files, &config.client_authority)?,
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

    /// Verifies a certificate chain as of now, by the rules of kube-apiserver.
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
            Ok(None) => return Peer::Unknown { reason: "the certificate names no user".to_owned() },
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

    /// Returns whether any served certificate is valid now, so that clients that check dates can connect.
    pub(crate) fn serves_a_valid_certificate(&self) -> bool {
        let now = i64::try_from(UnixTime::now().as_secs()).unwrap_or(i64::MAX);
        self.served.iter().any(|lifetime| lifetime.contains(&now))
    }

    pub(crate) fn is_gather_token(&self, token: &str) -> bool {
        self.gather_token.is_some_and(|own| own == digest(token.as_bytes()))
    }
}

/// Returns the validity period of the first certificate in a file.
fn lifetime(pem: &[u8]) -> Option<RangeInclusive<i64>> {
    let leaf = CertificateDer::from_pem_slice(pem).ok()?;
    let (_, certificate) = X509Certificate::from_der(&leaf).ok()?;
    let validity = certificate.validity();
    Some(validity.not_before.timestamp()..=validity.not_after.timestamp())
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

/// Returns the client configuration for HTTP/1.1 and for HTTP/2.
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
