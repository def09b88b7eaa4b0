//! OpenPGP signatures.
//!
//! The library only does the mathematics. This module checks everything else: the strength of the hash, whether the
//! key may sign data, whether it was valid when it signed, whether it was revoked, and whether it is trusted.

use std::collections::BTreeMap;

use pgp::composed::{Deserializable as _, DetachedSignature, SignedPublicKey, SignedPublicSubKey};
use pgp::crypto::hash::HashAlgorithm;
use pgp::packet::{Signature, SignatureType, SignatureVersion};
use pgp::ser::Serialize as _;
use pgp::types::{KeyDetails, PublicParams, Tag, VerifyingKey};

use super::{ManifestVerifier, Policy, VerifyError};

/// Enough for a keyring of some hundred keys.
pub const MAX_KEYRING_BYTES: u64 = 4 * 1024 * 1024;
pub const MAX_SIGNATURE_BYTES: u64 = 256 * 1024;
const MAX_KEYS: usize = 256;
const MAX_SIGNATURES: usize = 32;
/// Each binding costs a public-key operation, and any third party can add some to a keyring.
const MAX_BINDINGS: usize = 256;
/// The clock of a machine may be slow at its first boot.
const CLOCK_TOLERANCE: u64 = 24 * 60 * 60;
/// Length of an RSA modulus with its header; 2048 bits is the minimum.
const MIN_RSA_BYTES: usize = 2 + 256;

const BEGIN_SIGNATURE: &str = "-----BEGIN PGP SIGNATURE-----";
const BEGIN_KEY: &str = "-----BEGIN PGP PUBLIC KEY BLOCK-----";

/// Verifies with the keys of a keyring.
#[derive(Debug)]
pub struct OpenPgp {
    keys: Vec<SignedPublicKey>,
    policy: Policy,
}

/// The reason why a signature does not count.
type Objection = String;

// === impl OpenPgp ===

impl OpenPgp {
    /// The keyring is armored or binary, with any number of keys.
    pub fn new(keyring: &[u8], policy: Policy) -> Result<Self, VerifyError> {
        let failed = |reason: String| VerifyError::Keyring { reason };
        let mut keys = Vec::new();
        for block in blocks(keyring, BEGIN_KEY) {
            let (found, _) =
                SignedPublicKey::from_reader_many(block).map_err(|error| failed(error.to_string()))?;
            for key in found.take(MAX_KEYS + 1) {
                keys.push(key.map_err(|error| failed(error.to_string()))?);
            }
        }
        match keys.len() {
            0 => Err(failed("it contains no key".to_owned())),
            count if count > MAX_KEYS => Err(failed(format!("it holds more than {MAX_KEYS} keys"))),
            _ => Ok(Self { keys, policy }),
        }
    }

    /// Returns the primary key of a valid signature.
    fn judge(&self, signature: &Signature, content: &[u8]) -> Result<String, Objection> {
        let created = check_data_signature(signature, self.policy.now)?;
        let mut objection = "no key of the keyring has made it over these bytes".to_owned();
        for key in &self.keys {
            let fingerprint = hex::encode(key.primary_key.fingerprint().as_bytes());
            match signer(key, signature, content, created) {
                None => {}
                Some(Err(reason)) => objection = format!("key {fingerprint}: {reason}"),
                Some(Ok(())) => {
                    let listed = &self.policy.fingerprints;
                    if listed.is_empty() || listed.contains(&fingerprint) {
                        return Ok(fingerprint);
                    }
                    objection = format!("key {fingerprint} is not among those that count");
                }
            }
        }
        Err(objection)
    }
}

impl ManifestVerifier for OpenPgp {
    fn verify(&self, content: &[u8], signature: &[u8]) -> Result<Vec<String>, VerifyError> {
        let failed = |reason: String| VerifyError::Signature { reason };
        let mut good: BTreeMap<String, ()> = BTreeMap::new();
        let mut objections = Vec::new();
        let mut seen = 0;
        for block in blocks(signature, BEGIN_SIGNATURE) {
            let found = DetachedSignature::from_reader_many(block);
            let (found, _) = found.map_err(|error| failed(error.to_string()))?;
            for detached in found {
                seen += 1;
                if seen > MAX_SIGNATURES {
                    return Err(failed(format!("there are more than {MAX_SIGNATURES}")));
                }
                let detached = detached.map_err(|error| failed(error.to_string()))?;
                match self.judge(&detached.signature, content) {
                    Ok(fingerprint) => drop(good.insert(fingerprint, ())),
                    Err(objection) => objections.push(objection),
                }
            }
        }
        if seen == 0 {
            return Err(failed("there is none".to_owned()));
        }
        if good.len() < self.policy.threshold {
            let reasons =
                if objections.is_empty() { "there are no more".to_owned() } else { objections.join("; ") };
            return Err(VerifyError::TooFew { valid: good.len(), needed: self.policy.threshold, reasons });
        }
        Ok(good.into_keys().collect())
    }
}

/// Splits concatenated armored blocks; binary content is one block.
fn blocks<'a>(bytes: &'a [u8], begin: &str) -> Vec<&'a [u8]> {
    let starts: Vec<usize> = match std::str::from_utf8(bytes) {
        Ok(text) => text.match_indices(begin).map(|(at, _)| at).take(MAX_SIGNATURES + 1).collect(),
        Err(_) => Vec::new(),
    };
    if starts.is_empty() {
        return vec![bytes];
    }
    let ends = starts.iter().skip(1).copied().chain([bytes.len()]);
    starts.iter().zip(ends).map(|(start, end)| &bytes[*start..end]).collect()
}

/// Checks a signature over data as far as possible without a key. Returns its creation time.
fn check_data_signature(signature: &Signature, now: u64) -> Result<u64, Objection> {
    if signature.typ() != Some(SignatureType::Binary) {
        return Err("it is not a signature over the bytes of a file".to_owned());
    }
    let created = check_form(signature)?;
    if created > now.saturating_add(CLOCK_TOLERANCE) {
        return Err("it was made in the future: is this machine's clock right?".to_owned());
    }
    let expires = signature.signature_expiration_time().map(|span| u64::from(span.as_secs()));
    if expires.is_some_and(|span| span > 0 && created.saturating_add(span) <= now) {
        return Err("it has expired".to_owned());
    }
    Ok(created)
}

/// Checks that apply to every signature, over data or over keys.
fn check_form(signature: &Signature) -> Result<u64, Objection> {
    if !matches!(signature.version(), SignatureVersion::V4 | SignatureVersion::V6) {
        return Err("its version is too old".to_owned());
    }
    match signature.hash_alg() {
        Some(
            HashAlgorithm::Sha256
            | HashAlgorithm::Sha384
            | HashAlgorithm::Sha512
            | HashAlgorithm::Sha3_256
            | HashAlgorithm::Sha3_512,
        ) => {}
        Some(weak) => return Err(format!("its hash, {weak}, is too weak")),
        None => return Err("its hash is not known".to_owned()),
    }
    let created = signature.created().ok_or("it does not say when it was made")?;
    Ok(u64::from(created.as_secs()))
}

/// Returns whether this certificate made the signature.
///
/// `None` means that it did not. An error means that it did although it must not.
fn signer(
    certificate: &SignedPublicKey,
    signature: &Signature,
    content: &[u8],
    created: u64,
) -> Option<Result<(), Objection>> {
    let primary = &certificate.primary_key;
    if signature.verify(primary, content).is_ok() {
        return Some(check_primary(certificate, created, Use::Sign));
    }
    let subkey =
        certificate.public_subkeys.iter().find(|subkey| signature.verify(&subkey.key, content).is_ok())?;
    Some(
        check_primary(certificate, created, Use::Certify)
            .and_then(|()| check_subkey(certificate, subkey, created)),
    )
}

/// The capability that a key needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Sign,
    /// To certify its subkeys: every primary key may.
    Certify,
}

fn check_primary(certificate: &SignedPublicKey, at: u64, purpose: Use) -> Result<(), Objection> {
    let key = &certificate.primary_key;
    check_strength(key)?;
    if certificate.details.revocation_signatures.iter().take(MAX_BINDINGS).any(|signature| {
        signature.typ() == Some(SignatureType::KeyRevocation) && signature.verify_key(key).is_ok()
    }) {
        return Err("it was revoked".to_owned());
    }
    let direct =
        certificate.details.direct_signatures.iter().filter(|signature| {
            signature.typ() == Some(SignatureType::Key) && signature.verify_key(key).is_ok()
        });
    let users = certificate.details.users.iter().flat_map(|user| {
        user.signatures.iter().filter(move |signature| {
            signature.typ() != Some(SignatureType::CertRevocation)
                && signature.verify_certification(key, Tag::UserId, &user.id).is_ok()
        })
    });
    let newest = newest(direct.chain(users)).ok_or("nothing it signed itself says what it is for")?;
    check_lifetime(key, newest, at)?;
    if purpose == Use::Sign && !newest.key_flags().sign() {
        return Err("it is not meant for signing".to_owned());
    }
    Ok(())
}

fn check_subkey(
    certificate: &SignedPublicKey,
    subkey: &SignedPublicSubKey,
    at: u64,
) -> Result<(), Objection> {
    let primary = &certificate.primary_key;
    check_strength(&subkey.key)?;
    let bound = |signature: &&Signature| signature.verify_subkey_binding(primary, &subkey.key).is_ok();
    let of = |kind: SignatureType| {
        subkey.signatures.iter().take(MAX_BINDINGS).filter(move |signature| signature.typ() == Some(kind))
    };
    if of(SignatureType::SubkeyRevocation).any(|signature| bound(&signature)) {
        return Err("its subkey was revoked".to_owned());
    }
    let newest =
        newest(of(SignatureType::SubkeyBinding).filter(bound)).ok_or("its subkey is not bound to it")?;
    check_lifetime(&subkey.key, newest, at)?;
    if !newest.key_flags().sign() {
        return Err("its subkey is not meant for signing".to_owned());
    }
    // Without this check, any key owner could claim the signing key of another one as a subkey.
    let back = newest.embedded_signature().ok_or("its subkey does not acknowledge it")?;
    check_form(back)?;
    if back.verify_primary_key_binding(&subkey.key, primary).is_err() {
        return Err("its subkey does not acknowledge it".to_owned());
    }
    Ok(())
}

/// Returns the newest sufficiently strong signature.
fn newest<'a>(signatures: impl Iterator<Item = &'a Signature>) -> Option<&'a Signature> {
    signatures
        .take(MAX_BINDINGS)
        .filter_map(|signature| Some((check_form(signature).ok()?, signature)))
        .max_by_key(|(created, _)| *created)
        .map(|(_, signature)| signature)
}

/// Checks that the key was valid when it signed. A later expiry is accepted: it is normal for keys of old releases.
fn check_lifetime(key: &impl KeyDetails, binding: &Signature, at: u64) -> Result<(), Objection> {
    let born = u64::from(key.created_at().as_secs());
    if at < born {
        return Err("the signature is older than the key".to_owned());
    }
    let span = binding.key_expiration_time().map(|span| u64::from(span.as_secs())).filter(|span| *span > 0);
    if span.is_some_and(|span| at >= born.saturating_add(span)) {
        return Err("the key had expired when it signed".to_owned());
    }
    Ok(())
}

fn check_strength(key: &impl VerifyingKey) -> Result<(), Objection> {
    match key.public_params() {
        PublicParams::RSA(parameters) if parameters.write_len() >= MIN_RSA_BYTES => Ok(()),
        PublicParams::RSA(_) => Err("its RSA key is shorter than 2048 bits".to_owned()),
        PublicParams::ECDSA(_)
        | PublicParams::EdDSALegacy(_)
        | PublicParams::Ed25519(_)
        | PublicParams::Ed448(_) => Ok(()),
        _ => Err("its kind of key is not accepted".to_owned()),
    }
}

#[cfg(test)]
mod tests;
