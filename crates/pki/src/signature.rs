use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use landfall_model::Secret;

use crate::PkiError;

/// An Ed25519 key that signs the reports of a host.
#[expect(missing_debug_implementations, reason = "holds a private key")]
pub struct SigningKey {
    pair: Ed25519KeyPair,
}

/// The points of Ed25519 whose order divides eight, as encoded y coordinates; each stands for both signs of x. For such
/// a key, signatures that are valid for any message can be created without a secret. The list is that of libsodium
/// (`ge25519_has_small_order`) and of "Taming the many EdDSAs" (Chalkias, Garillot, Nikolaenko 2020). It omits the
/// encodings of y that [`is_canonical`] rejects.
const SMALL_ORDER: [[u8; 32]; 5] = [
    // Order 4: y = 0.
    [0; 32],
    // The neutral element: y = 1.
    {
        let mut one = [0; 32];
        one[0] = 1;
        one
    },
    // Order 2: y = -1.
    {
        let mut minus_one = [0xff; 32];
        (minus_one[0], minus_one[31]) = (0xec, 0x7f);
        minus_one
    },
    // Order 8.
    [
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5,
        0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05,
    ],
    [
        0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f, 0x2a,
        0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a,
    ],
];

/// Returns whether `signature` is a valid signature of `message` by the public key `key`. Keys of small order are
/// rejected, because signatures for them need no secret key.
pub fn verify_signature(key: &[u8], message: &[u8], signature: &[u8]) -> bool {
    is_somebodys(key) && UnparsedPublicKey::new(&ED25519, key).verify(message, signature).is_ok()
}

/// Returns whether a key is canonical and belongs to a secret key.
fn is_somebodys(key: &[u8]) -> bool {
    let Ok(mut y) = <[u8; 32]>::try_from(key) else { return false };
    // The sign of x.
    y[31] &= 0x7f;
    is_canonical(&y) && !SMALL_ORDER.contains(&y)
}

/// Returns whether y is below 2^255 - 19. A key then has one encoding, so that comparing keys as bytes is correct.
fn is_canonical(y: &[u8; 32]) -> bool {
    y[31] != 0x7f || y[1..31].iter().any(|byte| *byte != 0xff) || y[0] < 0xed
}

// === impl SigningKey ===

impl SigningKey {
    /// Creates a key, and its PKCS #8 document for storage.
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

    fn bytes(hexadecimal: &str) -> Vec<u8> {
        let digits = hexadecimal.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
        digits.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    #[test]
    fn a_key_anybody_can_sign_for_has_signed_nothing() {
        // The first of the twelve vectors of "Taming the many EdDSAs": the key has order 8, and the signature was
        // created without a secret.
        let key = bytes("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa");
        let message = bytes("8c93255d71dcab10e8f379c26200f3c7bd5f09d9bc3068d3ef4edeb4853022b6");
        let signature = [&SMALL_ORDER[4][..], &[0; 32]].concat();
        let library = |key: &[u8], message: &[u8], signature: &[u8]| {
            UnparsedPublicKey::new(&ED25519, key).verify(message, signature).is_ok()
        };
        assert!(library(&key, &message, &signature), "the library alone takes it");
        assert!(!verify_signature(&key, &message, &signature));

        // The neutral element as key and signature, for any message.
        let neutral = &SMALL_ORDER[1];
        let signature = [&neutral[..], &[0; 32]].concat();
        for message in [&b"a report"[..], b"another"] {
            assert!(library(neutral, message, &signature) && !verify_signature(neutral, message, &signature));
        }
    }

    #[test]
    fn every_spelling_of_a_point_of_small_order_is_refused() {
        let spelled = |first: u8, rest: u8| {
            let mut y = [rest; 32];
            (y[0], y[31]) = (first, if rest == 0 { 0 } else { 0x7f });
            y
        };
        // 2^255 - 19 and all larger encodings, which include 0 and 1 again.
        let beyond = (0xed..=0xff).map(|first| spelled(first, 0xff));
        let refused: Vec<[u8; 32]> = SMALL_ORDER.into_iter().chain(beyond).collect();
        for y in refused {
            for sign in [0, 0x80] {
                let mut key = y;
                key[31] |= sign;
                assert!(!is_somebodys(&key), "{key:02x?}");
            }
        }
        // Adjacent values are ordinary points.
        for y in [spelled(2, 0), spelled(0xeb, 0xff)] {
            assert!(is_somebodys(&y), "{y:02x?}");
        }
        assert!(!is_somebodys(&[9; 31]) && !is_somebodys(&[9; 33]));
    }
}
