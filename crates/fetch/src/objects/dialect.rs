//! The protocols of object stores: all differences between S3 and Azure are behind this module.

use std::path::Path;

use jiff::Timestamp;
use landfall_model::Secret;

use super::credentials::{Access, CredentialsError, KeyPair};
use super::request::{Request, Signed};
use super::{azure, s3};

/// The protocol, and the scope of its signatures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    S3 { region: String },
    Azure { account: String },
}

/// Credentials with their scope.
pub(crate) enum Signer {
    S3 {
        keys: KeyPair,
        region: String,
    },
    Azure {
        access: Access,
        account: String,
    },
    /// A bearer token, without a signature. Google's S3 interface accepts it as well.
    Token(Secret<String>),
}

/// The hash with which a store verifies the content it received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    /// SHA-256, which is part of the signature.
    BySha256,
    /// MD5, which only detects accidents; the intended hash is verified before sending.
    ByMd5,
}

// === impl Dialect ===

impl Dialect {
    /// Reads the credentials again for each request, because temporary keys are renewed.
    pub(crate) fn signer(&self, credentials: &Path) -> Result<Signer, CredentialsError> {
        match self {
            Self::S3 { region } => {
                KeyPair::read(credentials).map(|keys| Signer::S3 { keys, region: region.clone() })
            }
            Self::Azure { account } => Access::read(credentials, account)
                .map(|access| Signer::Azure { access, account: account.clone() }),
        }
    }

    pub(crate) fn listing<'a>(&self, prefix: &'a str, next: Option<&'a str>) -> Vec<(&'static str, &'a str)> {
        match self {
            Self::S3 { .. } => s3::listing(prefix, next),
            Self::Azure { .. } => azure::listing(prefix, next),
        }
    }

    /// Returns whether a 404 with this code is about the object rather than a missing bucket. S3 has no code for an
    /// answer without a body.
    pub(crate) fn is_about_the_object(&self, code: &str) -> bool {
        match self {
            Self::S3 { .. } => code != "NoSuchBucket",
            Self::Azure { .. } => code == "BlobNotFound",
        }
    }
}

// === impl Signer ===

impl Signer {
    /// Returns whether an observer of one request could create others.
    pub(crate) fn shows_its_secret(&self) -> bool {
        matches!(self, Self::Azure { access: Access::Signature(_) | Access::Token(_), .. } | Self::Token(_))
    }

    pub(crate) fn checked(&self) -> Checked {
        match self {
            Self::S3 { .. } => Checked::BySha256,
            Self::Azure { .. } | Self::Token(_) => Checked::ByMd5,
        }
    }

    pub(crate) fn sign(self, request: &Request<'_>, now: Timestamp) -> Signed {
        match self {
            Self::S3 { keys, region } => s3::sign(request, keys, &region, now),
            Self::Azure { access, account } => azure::sign(request, access, &account, now),
            Self::Token(token) => {
                let mut headers = vec![("authorization", Secret::new(format!("Bearer {}", token.expose())))];
                let md5 = request.content.and_then(|content| content.md5.clone());
                headers.extend(md5.map(|md5| ("content-md5", Secret::new(md5))));
                Signed { headers, query: None, time: None }
            }
        }
    }
}
