use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use landfall_model::Secret;

use crate::PkiError;

/// A key that signs what a machine says: Ed25519.
#[expect(missing_debug_implementations, reason = "holds a private key")]
pub struct SigningKey {
    pair: Ed25519KeyPair,
}

/// Whether `signature` is that of the holder of the public key `key` over `message`.
pub fn verify_signature(key: &[u8], message: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(&ED25519, key).verify(message, signature).is_ok()
}

// === impl SigningKey ===

impl SigningKey {
    /// A new key, and the PKCS #8 document to keep it in.
    pub fn generate() -> Result<(Self, Secret<Vec<u8>>), PkiError> {
        let pair = Ed25519KeyPair::generate().map_err(|_| PkiError::SigningKey)?;
        let document = pair.to_pkcs8v1().map_err(|_| PkiError::SigningKey)?;
        let document = Secret::new(document.as_ref().to_vec());
        Ok((Self { pair }, document))
    }

    pub fn from_pkcs8(document: &Secret<Vec<u8>>) -> Result<Self, PkiError> {
        let pair = Ed25519KeyPair::from_pkcs8(document.expose()).map_err(|_| PkiError::ReadSigningKey)?;
        Ok(Self { pair })
    }

    pub fn public_key(&self) -> Vec<u8> {
        self.pair.public_key().as_ref().to_vec()
    }

    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.pair.sign(message).as_ref().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_signed_is_recognised_and_nothing_else() {
        let (first, document) = SigningKey::generate().unwrap();
        let again = SigningKey::from_pkcs8(&document).unwrap();
        let (other, _) = SigningKey::generate().unwrap();
        let signature = again.sign(b"message");
        assert!(verify_signature(&first.public_key(), b"message", &signature));
        assert!(!verify_signature(&first.public_key(), b"massage", &signature));
        assert!(!verify_signature(&other.public_key(), b"message", &signature));
        assert!(!verify_signature(b"short", b"message", &signature));
        assert!(!verify_signature(&first.public_key(), b"message", b""));
        assert!(SigningKey::from_pkcs8(&Secret::new(b"nonsense".to_vec())).is_err());
    }
}
