//! Pseudonyms: equal secrets get equal names inside one bundle.
//!
//! Names cannot be compared across bundles, and short secrets cannot be guessed from them. The key is random,
//! never written, and dropped with the [`Redactor`](crate::Redactor).

use hmac::digest::KeyInit;
use hmac::{Hmac, Mac};
use landfall_model::Secret;
use sha2::Sha256;

use crate::Kind;

/// Six hexadecimal digits that distinguish the secrets in a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag([u8; 6]);

pub(crate) struct Pseudonyms {
    key: Secret<[u8; 32]>,
}

/// Incremental computation of a name for a secret that arrives in parts.
#[derive(Clone)]
pub(crate) struct Tagger(Hmac<Sha256>);

/// Writes `***<KIND:tag>***`.
pub(crate) fn write_marker(kind: Kind, tag: Tag, out: &mut Vec<u8>) {
    out.extend_from_slice(b"***<");
    out.extend_from_slice(kind.as_str().as_bytes());
    out.push(b':');
    out.extend_from_slice(&tag.0);
    out.extend_from_slice(b">***");
}

/// Writes exactly `len` bytes: as much of the marker as fits, and stars.
pub(crate) fn write_filler(kind: Kind, tag: Tag, len: usize, out: &mut Vec<u8>) {
    let start = out.len();
    let marker_len = "***<:>***".len() + kind.as_str().len() + tag.0.len();
    if len >= marker_len {
        write_marker(kind, tag, out);
    } else if len >= tag.0.len() + 2 {
        out.push(b'*');
        out.extend_from_slice(&tag.0);
    }
    out.resize(start + len, b'*');
}

// === impl Pseudonyms ===

impl Pseudonyms {
    pub(crate) fn new(key: Secret<[u8; 32]>) -> Self {
        Self { key }
    }

    pub(crate) fn tag(&self, secret: &[u8]) -> Tag {
        let mut tagger = self.tagger();
        tagger.push(secret);
        tagger.finish()
    }

    pub(crate) fn tagger(&self) -> Tagger {
        Tagger(Hmac::new_from_slice(self.key.expose()).expect("HMAC takes a key of any length"))
    }
}

// === impl Tagger ===

impl Tagger {
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    pub(crate) fn finish(self) -> Tag {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digest = self.0.finalize().into_bytes();
        let mut digits = [0; 6];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(&digest) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        Tag(digits)
    }
}
