//! How a store is spoken to: everything in which S3 and Azure differ is behind this.

use std::path::Path;

use jiff::Timestamp;

use crate::credentials::{Access, CredentialsError, KeyPair};
use crate::request::{Request, Signed};
use crate::{azure, s3};

/// The protocol, and for whom a signature in it is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    S3 { region: String },
    Azure { account: String },
}

/// Credentials with what they are good for.
pub(crate) enum Signer {
    S3 { keys: KeyPair, region: String },
    Azure { access: Access, account: String },
}

/// By which hash a store knows whether it got what was meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    /// SHA-256, which is signed along.
    BySha256,
    /// MD5, which keeps accidents out; what was meant we look at ourselves.
    ByMd5,
}

// === impl Dialect ===

impl Dialect {
    /// Reads who we are, anew: keys that are lent are renewed.
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

    pub(crate) fn checked(&self) -> Checked {
        match self {
            Self::S3 { .. } => Checked::BySha256,
            Self::Azure { .. } => Checked::ByMd5,
        }
    }

    /// Whether a 404 with this code is about the object: a bucket that is missing is not an object that is. S3 has no code for
    /// an answer without a body.
    pub(crate) fn is_about_the_object(&self, code: &str) -> bool {
        match self {
            Self::S3 { .. } => code != "NoSuchBucket",
            Self::Azure { .. } => code == "BlobNotFound",
        }
    }
}

// === impl Signer ===

impl Signer {
    /// Whoever sees a request could make others.
    pub(crate) fn shows_its_secret(&self) -> bool {
        matches!(self, Self::Azure { access: Access::Signature(_), .. })
    }

    pub(crate) fn sign(self, request: &Request<'_>, now: Timestamp) -> Signed {
        match self {
            Self::S3 { keys, region } => s3::sign(request, keys, &region, now),
            Self::Azure { access, account } => azure::sign(request, access, &account, now),
        }
    }
}
