use landfall_model::envelope::{Envelope, EnvelopeError, PAYLOAD_TYPE, Signature, signed_bytes};

use crate::{SigningKey, verify_signature};

/// Verifies the signature of an envelope and returns its public key, or `None` if the envelope is not signed.
pub fn verify_envelope(envelope: &Envelope) -> Result<Option<Vec<u8>>, EnvelopeError> {
    let signature = match &envelope.signatures[..] {
        [] => return Ok(None),
        [signature] if signature.sig.len() == 64 => signature,
        _ => return Err(EnvelopeError::SignatureForm),
    };
    let key = hex::decode(&signature.keyid).ok().filter(|key| key.len() == 32);
    let key = key.ok_or(EnvelopeError::SignatureForm)?;
    let signed = signed_bytes(&envelope.payload_type, &envelope.payload);
    verify_signature(&key, &signed, &signature.sig).then_some(Some(key)).ok_or(EnvelopeError::Signature)
}

// === impl SigningKey ===

impl SigningKey {
    /// Puts the JSON of a report message into a signed envelope.
    pub fn seal(&self, payload: Vec<u8>) -> Envelope {
        let sig = self.sign(&signed_bytes(PAYLOAD_TYPE, &payload));
        let signatures = vec![Signature { keyid: hex::encode(self.public_key()), sig }];
        Envelope { signatures, ..Envelope::unsigned(payload) }
    }
}

#[cfg(test)]
mod tests {
    use landfall_model::Secret;
    use proptest::prelude::*;

    use super::*;

    /// An envelope made by another implementation, the Python package `securesystemslib` 1.3.1:
    ///
    /// ```python
    /// private = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    /// raw = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
    /// key = SSlibKey(raw, "ed25519", "ed25519", {"public": raw})
    /// envelope = securesystemslib.dsse.Envelope(payload, "application/vnd.landfall.report.v1+json", {})
    /// envelope.sign(CryptoSigner(private, key))
    /// print(json.dumps(envelope.to_dict(), indent=1))
    /// ```
    ///
    /// The payload's layout, escapes and numbers differ from those that this program writes.
    const FOREIGN: &[u8] = include_bytes!("../tests/dsse/securesystemslib.json");

    fn key_of_the_vector() -> SigningKey {
        let seed: Vec<u8> = (0..32).collect();
        let pkcs8 = [&hex::decode("302e020100300506032b657004220420").unwrap()[..], &seed].concat();
        SigningKey::from_pkcs8(&Secret::new(pkcs8)).unwrap()
    }

    /// Returns the key of an envelope whose signatures were changed, or the error in words.
    fn with_signatures(change: impl FnOnce(&mut Vec<Signature>)) -> Result<Option<Vec<u8>>, String> {
        let mut envelope = key_of_the_vector().seal(b"{}".to_vec());
        change(&mut envelope.signatures);
        verify_envelope(&envelope).map_err(|error| error.to_string())
    }

    #[test]
    fn an_envelope_of_another_implementation_is_verified() {
        let envelope = Envelope::parse(FOREIGN).unwrap();
        let key = key_of_the_vector();
        assert_eq!(verify_envelope(&envelope).unwrap(), Some(key.public_key()));
        assert_eq!(key.seal(envelope.payload.clone()), envelope, "Ed25519 has one signature of a message");
        assert_eq!(envelope.message().unwrap().sequence, 7);
    }

    #[test]
    fn every_byte_is_signed() {
        let signed = Envelope::parse(FOREIGN).unwrap();
        let rejected = |change: &dyn Fn(&mut Envelope)| {
            let mut changed = signed.clone();
            change(&mut changed);
            assert_ne!(changed, signed);
            assert!(verify_envelope(&changed).is_err(), "{changed:?}");
        };
        for at in 0..signed.payload.len() {
            rejected(&|envelope| envelope.payload[at] ^= 1);
        }
        for at in 0..signed.signatures[0].sig.len() {
            rejected(&|envelope| envelope.signatures[0].sig[at] ^= 1);
        }
        for at in 0..signed.payload_type.len() {
            rejected(&|envelope| {
                let other = if envelope.payload_type.as_bytes()[at] == b'x' { "y" } else { "x" };
                envelope.payload_type.replace_range(at..=at, other);
            });
        }
        for at in 0..signed.signatures[0].keyid.len() {
            rejected(&|envelope| {
                let other = if envelope.signatures[0].keyid.as_bytes()[at] == b'0' { "1" } else { "0" };
                envelope.signatures[0].keyid.replace_range(at..=at, other);
            });
        }
        for payload in [&[][..], &signed.payload[1..], &[&signed.payload[..], b" "].concat()] {
            rejected(&|envelope| envelope.payload = payload.to_vec());
        }
    }

    #[test]
    fn an_envelope_has_one_signature_or_none() {
        let own = key_of_the_vector().public_key();
        let (form, mismatch) =
            (EnvelopeError::SignatureForm.to_string(), EnvelopeError::Signature.to_string());
        assert_eq!(with_signatures(|_| {}), Ok(Some(own.clone())));
        assert_eq!(with_signatures(Vec::clear), Ok(None));
        assert_eq!(with_signatures(|all| all.push(all[0].clone())), Err(form.clone()));
        for keyid in [String::new(), "00".repeat(31), "00".repeat(33), "g0".repeat(32)] {
            assert_eq!(with_signatures(|all| all[0].keyid = keyid), Err(form.clone()));
        }
        for length in [0, 63, 65] {
            assert_eq!(with_signatures(|all| all[0].sig.resize(length, 0)), Err(form.clone()));
        }
        // The neutral element as key and signature is valid for any message, but no secret key belongs to it.
        let neutral = format!("01{}", "00".repeat(31));
        let sig = [&[1][..], &[0; 63]].concat();
        let forged = with_signatures(|all| all[0] = Signature { keyid: neutral, sig });
        assert_eq!(forged, Err(mismatch));
    }

    proptest! {
        /// Whatever byte of the JSON changes: it is another layout of the same payload and key, or it is rejected.
        #[test]
        fn no_change_of_the_json_changes_what_is_verified(at in 0..FOREIGN.len(), flip in 1_u8..) {
            let mut json = FOREIGN.to_vec();
            json[at] ^= flip;
            let signed = Envelope::parse(FOREIGN).unwrap();
            if let Ok(changed) = Envelope::parse(&json)
                && let Ok(key) = verify_envelope(&changed)
            {
                prop_assert_eq!(changed.payload, signed.payload);
                prop_assert_eq!(key, Some(key_of_the_vector().public_key()));
            }
        }

        #[test]
        fn what_is_sealed_is_verified(payload in any::<Vec<u8>>()) {
            let key = key_of_the_vector();
            let envelope = key.seal(payload);
            prop_assert_eq!(verify_envelope(&envelope).unwrap(), Some(key.public_key()));
        }
    }
}
