//! Content for an upload: hashed before it is sent, as far as the store does not verify the hash itself.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::{Algorithm, Body, Digest, Hasher};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use md5::{Digest as _, Md5};

use super::dialect::Checked;
use super::error::ObjectsError;
use super::request::Content;

const BLOCK: usize = 256 * 1024;

/// Content for an upload, with its hash where it is known.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    Bytes(&'a [u8]),
    /// A file, and the SHA-256 of its content.
    File(&'a Path, &'a Digest),
}

// === impl Source ===

impl Source<'_> {
    /// Returns the body, and the hashes for the request.
    pub(crate) async fn content(self, checked: Checked) -> Result<(Body, Content), ObjectsError> {
        match self {
            Self::Bytes(bytes) => {
                let sha256 = Digest::of(Algorithm::Sha256, bytes).hex().to_owned();
                let md5 = (checked == Checked::ByMd5).then(|| BASE64.encode(Md5::digest(bytes)));
                Ok((Body::Bytes(bytes.to_vec()), Content { length: bytes.len() as u64, sha256, md5 }))
            }
            Self::File(path, digest) => {
                let (file, claimed) = (path.to_owned(), digest.clone());
                let content = match checked {
                    Checked::BySha256 => claim(path, digest),
                    // Hashing 500 MB takes seconds.
                    Checked::ByMd5 => tokio::task::spawn_blocking(move || measure(&file, &claimed))
                        .await
                        .unwrap_or_else(|error| Err(unread(path)(io::Error::other(error)))),
                }?;
                Ok((Body::File { path: path.to_owned(), length: content.length }, content))
            }
        }
    }
}

/// Trusts the given hash, because the store verifies it.
fn claim(path: &Path, digest: &Digest) -> Result<Content, ObjectsError> {
    let length = std::fs::metadata(path).map_err(unread(path))?.len();
    Ok(Content { length, sha256: digest.hex().to_owned(), md5: None })
}

/// Computes both hashes in one pass: the given one, and the one that the store verifies.
fn measure(path: &Path, digest: &Digest) -> Result<Content, ObjectsError> {
    let mut file = File::open(path).map_err(unread(path))?;
    let (mut hasher, mut md5, mut length) = (Hasher::new(digest.algorithm), Md5::new(), 0);
    let mut block = vec![0; BLOCK];
    loop {
        match file.read(&mut block).map_err(unread(path))? {
            0 => break,
            count => {
                hasher.add(&block[..count]);
                md5.update(&block[..count]);
                length += count as u64;
            }
        }
    }
    if hasher.finish() != *digest {
        return Err(ObjectsError::Changed { path: path.to_owned() });
    }
    Ok(Content { length, sha256: digest.hex().to_owned(), md5: Some(BASE64.encode(md5.finalize())) })
}

fn unread(path: &Path) -> impl Fn(io::Error) -> ObjectsError {
    let path: PathBuf = path.to_owned();
    move |source| ObjectsError::Read { path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_not_what_was_hashed_is_refused_before_it_is_sent() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("bundle");
        std::fs::write(&file, b"{}").unwrap();
        let digest = Digest::of(Algorithm::Sha256, b"{}");
        for source in [Source::Bytes(b"{}"), Source::File(&file, &digest)] {
            let (_, content) = source.content(Checked::ByMd5).await.unwrap();
            let md5 = Some("mZFLkyvTelC5g8XnyQrpOw==".to_owned());
            assert_eq!(content, Content { length: 2, sha256: digest.hex().to_owned(), md5 });
            assert_eq!(source.content(Checked::BySha256).await.unwrap().1, Content { md5: None, ..content });
        }
        let other = Digest::of(Algorithm::Sha256, b"[]");
        let refused = Source::File(&file, &other).content(Checked::ByMd5).await.unwrap_err();
        assert!(matches!(&refused, ObjectsError::Changed { path } if *path == file), "{refused:?}");
        assert!(refused.is_lasting());
    }
}
