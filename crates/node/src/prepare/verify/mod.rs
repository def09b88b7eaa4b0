//! Signature verification of lists of images.

pub mod openpgp;

use super::request::Trust;

/// Returns the signers of a document, or the reason why no trusted key signed it.
pub trait ManifestVerifier: Send + Sync {
    /// Returns the fingerprints of the trusted primary keys that signed exactly these bytes.
    fn verify(&self, content: &[u8], signature: &[u8]) -> Result<Vec<String>, VerifyError>;
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    #[error("the keyring cannot be read: {reason}")]
    Keyring { reason: String },
    #[error("`{text}` is not the fingerprint of an OpenPGP key")]
    Fingerprint { text: String },
    #[error("the signature cannot be read: {reason}")]
    Signature { reason: String },
    #[error("{valid} of {needed} required signatures are valid: {reasons}")]
    TooFew { valid: usize, needed: usize, reasons: String },
}

/// Conditions beyond the mathematics of a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Primary keys that may sign, as lower-case hexadecimal digits; empty allows every key in the keyring.
    pub fingerprints: Vec<String>,
    /// Number of different primary keys that must have signed.
    pub threshold: usize,
    /// Seconds since 1970.
    pub now: u64,
}

// === impl Policy ===

impl Policy {
    pub fn new(trust: &Trust, now: u64) -> Result<Self, VerifyError> {
        let fingerprints: Result<Vec<String>, VerifyError> = trust
            .fingerprints
            .iter()
            .map(|text| {
                let hex: String = text.chars().filter(|c| !c.is_whitespace() && *c != ':').collect();
                let hex = hex.strip_prefix("0x").unwrap_or(&hex).to_ascii_lowercase();
                // A short ID matches more than one key, so only complete fingerprints count.
                let whole = matches!(hex.len(), 40 | 64) && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
                if whole { Ok(hex) } else { Err(VerifyError::Fingerprint { text: text.clone() }) }
            })
            .collect();
        Ok(Self { fingerprints: fingerprints?, threshold: trust.threshold.max(1), now })
    }
}
