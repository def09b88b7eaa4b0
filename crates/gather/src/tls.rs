//! TLS as a client of the endpoint.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::connection::Speaks;
use crate::{Access, Error};

/// Offered first: a gateway that passes TLS through untouched answers this one itself. An API server does not know it and
/// takes the next.
const GATEWAY: &[u8] = b"landfall/1";
const HTTP: &[u8] = b"http/1.1";

/// Takes any certificate, because the user said so. Signatures are still checked: whoever answers owns the key of the
/// certificate shown.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

pub(crate) fn client(access: &Access, speaks: Speaks) -> Result<ClientConfig, Error> {
    let failed =
        |what: &str, error: &dyn std::fmt::Display| Error::Credentials { what: format!("{what}: {error}") };
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| failed("protocol versions", &error))?;
    let builder = if access.skip_verification {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)))
    } else {
        builder.with_root_certificates(roots(access.authority.as_deref())?)
    };
    let mut config = match &access.identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = CertificateDer::pem_slice_iter(&identity.certificate).collect::<Result<Vec<_>, _>>();
            let chain = chain.map_err(|error| failed("the client certificate is no PEM", &error))?;
            let key = PrivateKeyDer::from_pem_slice(identity.key.expose())
                .map_err(|error| failed("the client key is no PEM", &error))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| failed("the client certificate and its key", &error))?
        }
    };
    config.alpn_protocols = match speaks {
        Speaks::Gateway => vec![GATEWAY.to_vec(), HTTP.to_vec()],
        Speaks::ApiServer => vec![HTTP.to_vec()],
    };
    Ok(config)
}

fn roots(authority: Option<&[u8]>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    match authority {
        Some(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let what = |error: &dyn std::fmt::Display| Error::Credentials {
                    what: format!("the certificate authority is not usable: {error}"),
                };
                let certificate = certificate.map_err(|error| what(&error))?;
                roots.add(certificate).map_err(|error| what(&error))?;
            }
        }
        None => {
            // One broken file among hundreds does not matter; none at all does.
            for certificate in rustls_native_certs::load_native_certs().certs {
                let _ = roots.add(certificate);
            }
        }
    }
    if roots.is_empty() {
        let what = "there is no certificate authority to trust the endpoint by".to_owned();
        return Err(Error::Credentials { what });
    }
    Ok(roots)
}

// === impl Anybody ===

impl ServerCertVerifier for Anybody {
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
