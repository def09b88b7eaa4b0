use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use sha2::{Digest as _, Sha256, Sha512};

const BLOCK: usize = 256 * 1024;

/// Hash algorithms that are strong enough to identify a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    Sha256,
    Sha512,
}

/// A hash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest {
    pub algorithm: Algorithm,
    hex: String,
}

/// A hash computation in progress.
#[derive(Clone, Debug)]
pub struct Hasher(State);

#[derive(Clone, Debug)]
enum State {
    Sha256(Sha256),
    Sha512(Sha512),
}

/// Returns whether the file exists with this content.
pub fn is_file(path: &Path, digest: &Digest) -> io::Result<bool> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        file => file?,
    };
    let mut hasher = Hasher::new(digest.algorithm);
    let mut block = vec![0; BLOCK];
    loop {
        match file.read(&mut block)? {
            0 => return Ok(hasher.finish() == *digest),
            count => hasher.add(&block[..count]),
        }
    }
}

// === impl Algorithm ===

impl Algorithm {
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    fn hex_digits(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }
}

// === impl Digest ===

impl Digest {
    /// Parses hexadecimal digits, if their number matches the algorithm.
    pub fn new(algorithm: Algorithm, hex: &str) -> Option<Self> {
        let is_hex = hex.len() == algorithm.hex_digits() && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_hex.then(|| Self { algorithm, hex: hex.to_ascii_lowercase() })
    }

    pub fn of(algorithm: Algorithm, bytes: &[u8]) -> Self {
        let mut hasher = Hasher::new(algorithm);
        hasher.add(bytes);
        hasher.finish()
    }

    pub fn hex(&self) -> &str {
        &self.hex
    }
}

// === impl Hasher ===

impl Hasher {
    pub fn new(algorithm: Algorithm) -> Self {
        Self(match algorithm {
            Algorithm::Sha256 => State::Sha256(Sha256::new()),
            Algorithm::Sha512 => State::Sha512(Sha512::new()),
        })
    }

    pub(crate) fn algorithm(&self) -> Algorithm {
        match self.0 {
            State::Sha256(_) => Algorithm::Sha256,
            State::Sha512(_) => Algorithm::Sha512,
        }
    }

    pub fn add(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Sha256(hasher) => hasher.update(bytes),
            State::Sha512(hasher) => hasher.update(bytes),
        }
    }

    pub fn finish(self) -> Digest {
        match self.0 {
            State::Sha256(hasher) => {
                Digest { algorithm: Algorithm::Sha256, hex: hex::encode(hasher.finalize()) }
            }
            State::Sha512(hasher) => {
                Digest { algorithm: Algorithm::Sha512, hex: hex::encode(hasher.finalize()) }
            }
        }
    }
}
