//! Encryption in the age format (`age-encryption.org/v1`) to an X25519 recipient, for bundles in untrusted
//! storage.
//!
//! Only the holder of the identity can decrypt: `age --decrypt -i key.txt bundle.tar.gz.age`.
//!
//! The stream is encrypted in independent chunks of 64 KiB: all complete chunks of a truncated stream can be
//! decrypted.

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use aws_lc_rs::rand::{SecureRandom as _, SystemRandom};
use aws_lc_rs::{hkdf, hmac};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use landfall_model::Secret;

const CHUNK: usize = 64 << 10;
const KEY: usize = 32;
const FILE_KEY: usize = 16;

/// Human-readable prefix of a Bech32 recipient.
const PREFIX: &str = "age";
const CHECKSUM: usize = 6;
const ALPHABET: &[u8; 32] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";

/// The public key that a bundle is encrypted to: `age1…`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Recipient {
    key: [u8; KEY],
}

/// Reason for rejecting a recipient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecipientError {
    #[error("it does not begin with `age1`")]
    Prefix,
    #[error("it has a character that does not belong there")]
    Character,
    #[error("it is mistyped: its checksum is wrong")]
    Checksum,
    #[error("it is too short or too long")]
    Length,
}

/// Encrypts the data written to it.
///
/// Call [`finish`](Self::finish) at the end: without it the stream counts as truncated.
pub struct Sealed<W> {
    out: W,
    key: LessSafeKey,
    chunk: Vec<u8>,
    counter: u64,
}

// === impl Recipient ===

impl FromStr for Recipient {
    type Err = RecipientError;

    /// Parses a Bech32 string (BIP 173).
    fn from_str(text: &str) -> Result<Self, RecipientError> {
        let data = text.strip_prefix("age1").ok_or(RecipientError::Prefix)?;
        let value = |c: u8| ALPHABET.iter().position(|of| *of == c).and_then(|at| u8::try_from(at).ok());
        let values: Vec<u8> =
            data.bytes().map(value).collect::<Option<_>>().ok_or(RecipientError::Character)?;
        let expanded = PREFIX.bytes().map(|c| c >> 5).chain([0]).chain(PREFIX.bytes().map(|c| c & 31));
        if checksum(expanded.chain(values.iter().copied())) != 1 {
            return Err(RecipientError::Checksum);
        }
        let (mut bits, mut count) = (0_u32, 0);
        let mut bytes = Vec::with_capacity(KEY);
        for value in &values[..values.len().saturating_sub(CHECKSUM)] {
            bits = bits << 5 | u32::from(*value);
            count += 5;
            if count >= 8 {
                count -= 8;
                bytes.push(u8::try_from(bits >> count & 0xff).unwrap_or(0));
            }
        }
        Ok(Self { key: bytes.try_into().map_err(|_| RecipientError::Length)? })
    }
}

impl fmt::Debug for Recipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recipient").finish_non_exhaustive()
    }
}

fn checksum(values: impl Iterator<Item = u8>) -> u32 {
    const GENERATOR: [u32; 5] = [0x3b6a_57b2, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3];
    values.fold(1, |sum: u32, value| {
        let top = sum >> 25;
        let next = (sum & 0x01ff_ffff) << 5 ^ u32::from(value);
        (0..).zip(GENERATOR).filter(|(bit, _)| top >> bit & 1 == 1).fold(next, |sum, (_, by)| sum ^ by)
    })
}

// === impl Sealed ===

impl<W: Write> Sealed<W> {
    /// Writes the header: the file key, wrapped for the recipient.
    pub fn new(mut out: W, recipient: &Recipient) -> io::Result<Self> {
        let random = SystemRandom::new();
        let mut file_key = [0; FILE_KEY];
        let mut nonce = [0; FILE_KEY];
        random.fill(&mut file_key).map_err(failed)?;
        random.fill(&mut nonce).map_err(failed)?;
        let file_key = Secret::new(file_key);
        let ephemeral = EphemeralPrivateKey::generate(&X25519, &random).map_err(failed)?;
        let share = ephemeral.compute_public_key().map_err(failed)?;
        let salt = [share.as_ref(), &recipient.key[..]].concat();
        let peer = UnparsedPublicKey::new(&X25519, &recipient.key);
        // A low-order recipient would yield a publicly known shared secret; the agreement rejects it.
        let wrap = agree_ephemeral(ephemeral, peer, failed(()), |shared| {
            derive(shared, &salt, b"age-encryption.org/v1/X25519")
        })?;
        let mut wrapped = file_key.expose().to_vec();
        seal(&cipher(&wrap)?, [0; NONCE_LEN], &mut wrapped)?;
        let header = format!(
            "age-encryption.org/v1\n-> X25519 {}\n{}\n---",
            STANDARD_NO_PAD.encode(share.as_ref()),
            STANDARD_NO_PAD.encode(&wrapped)
        );
        let mac_key = derive(file_key.expose(), &[], b"header")?;
        let mac = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, mac_key.expose()), header.as_bytes());
        out.write_all(format!("{header} {}\n", STANDARD_NO_PAD.encode(mac.as_ref())).as_bytes())?;
        out.write_all(&nonce)?;
        let key = cipher(&derive(file_key.expose(), &nonce, b"payload")?)?;
        Ok(Self { out, key, chunk: Vec::with_capacity(CHUNK + 16), counter: 0 })
    }

    /// Encrypts the remaining data as the final chunk.
    pub fn finish(mut self) -> io::Result<W> {
        self.emit(Last::Yes)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn emit(&mut self, last: Last) -> io::Result<()> {
        let mut nonce = [0; NONCE_LEN];
        // The nonce is an eleven-byte counter and a final-chunk flag.
        nonce[3..11].copy_from_slice(&self.counter.to_be_bytes());
        nonce[11] = u8::from(last == Last::Yes);
        seal(&self.key, nonce, &mut self.chunk)?;
        self.out.write_all(&self.chunk)?;
        self.chunk.clear();
        self.counter += 1;
        Ok(())
    }
}

impl<W: Write> Write for Sealed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A full chunk is known not to be the last one only when more data follows.
        if self.chunk.len() == CHUNK && !bytes.is_empty() {
            self.emit(Last::No)?;
        }
        let taken = bytes.len().min(CHUNK - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    /// Keeps an incomplete chunk: all chunks except the last must be full.
    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl<W> fmt::Debug for Sealed<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed").field("counter", &self.counter).finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    Yes,
    No,
}

fn derive(secret: &[u8], salt: &[u8], info: &[u8]) -> io::Result<Secret<[u8; KEY]>> {
    let extracted = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(secret);
    let info = [info];
    let mut key = [0; KEY];
    let expanded = extracted.expand(&info, hkdf::HKDF_SHA256).map_err(failed)?;
    expanded.fill(&mut key).map_err(failed)?;
    Ok(Secret::new(key))
}

fn cipher(key: &Secret<[u8; KEY]>) -> io::Result<LessSafeKey> {
    Ok(LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, key.expose()).map_err(failed)?))
}

fn seal(key: &LessSafeKey, nonce: [u8; NONCE_LEN], bytes: &mut Vec<u8>) -> io::Result<()> {
    let nonce = Nonce::assume_unique_for_key(nonce);
    key.seal_in_place_append_tag(nonce, Aad::empty(), bytes).map_err(failed)
}

/// Maps errors of the cryptographic primitives, which have no details.
fn failed<E>(_: E) -> io::Error {
    io::Error::other("cannot encrypt to the recipient")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p";

    #[test]
    fn recipients_are_read_and_mistakes_are_named() {
        assert!(GOOD.parse::<Recipient>().is_ok());
        for (text, error) in [
            ("ssh-ed25519 AAAA", RecipientError::Prefix),
            ("AGE-SECRET-KEY-1", RecipientError::Prefix),
            ("age1bbbb", RecipientError::Character),
            (&GOOD.replace("ql3z", "ql3p"), RecipientError::Checksum),
            (&GOOD[..40], RecipientError::Checksum),
            ("age1", RecipientError::Checksum),
        ] {
            assert_eq!(text.parse::<Recipient>().unwrap_err(), error, "{text}");
        }
    }
}
