//! Keys and certificates: bytes in, bytes out. This crate accesses neither files nor sockets.
//!
//! A certificate has one purpose. An [`Authority`] issues short-lived leaf certificates for servers, for clients, or
//! for both (between equals, such as etcd members). [`signing_key`] creates the key pairs that sign service account
//! tokens, and a [`SigningKey`] signs the reports of a host.

mod authority;
mod envelope;
mod leaf;
mod signature;

pub use authority::{Authority, signing_key};
pub use envelope::verify_envelope;
pub use leaf::{Leaf, Purpose};
pub use signature::{SigningKey, verify_signature};

use landfall_model::Secret;

/// A certificate with its private key, both PEM.
#[expect(missing_debug_implementations, reason = "holds a private key")]
pub struct KeyedCertificate {
    pub certificate: String,
    pub key: Secret<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("cannot make a private key")]
    Key(#[source] rcgen::Error),
    #[error("`{name}` is neither a DNS name nor an IP address")]
    Name { name: String, source: rcgen::Error },
    #[error("cannot sign the certificate of `{subject}`")]
    Sign { subject: String, source: rcgen::Error },
    #[error("cannot read the certificate authority's certificate")]
    ReadAuthority(#[source] rcgen::Error),
    #[error("cannot parse the CA certificate")]
    Certificate,
    #[error("not a CA certificate")]
    NoAuthority,
    #[error("the private key is not that of the authority's certificate")]
    ForeignKey,
    #[error("cannot read the certificate authority's private key")]
    ReadKey(#[source] rcgen::Error),
    #[error("a lifetime of {days} days leaves the calendar")]
    Lifetime { days: u32 },
    #[error("cannot make a signing key")]
    SigningKey,
    #[error("not an Ed25519 key in PKCS #8")]
    ReadSigningKey,
}
