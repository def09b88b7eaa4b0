//! Verification of bundles, including truncated ones.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read};
use std::ops::ControlFlow;

use landfall_model::identity::NodeIdentity;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use sha2::{Digest as _, Sha256};

use super::walk::{Walked, walk};
use super::{MANIFEST, MAX_ITEMS};

/// Maximum size of a manifest.
const MAX_MANIFEST: u64 = 32 << 20;

/// Result of a verification.
#[derive(Debug, Default)]
pub struct Verified {
    /// Intact files, in order.
    pub whole: Vec<WholeFile>,
    /// Errors, by file name.
    pub wrong: Vec<(String, String)>,
    /// The manifest, if it is present and intact.
    pub manifest: Option<Contents>,
    /// Whether the stream is truncated.
    pub cut: bool,
}

/// Fields kept from a file's record: an untrusted bundle may have many long records.
#[derive(Debug)]
pub struct WholeFile {
    pub path: String,
    sha256: String,
}

/// Fields kept from the manifest, for the same reason.
#[derive(Debug, Deserialize)]
pub struct Contents {
    pub id: String,
    pub node: NodeIdentity,
    #[serde(deserialize_with = "items")]
    pub items: Vec<ContentsItem>,
}

#[derive(Debug, Deserialize)]
pub struct ContentsItem {
    pub path: String,
    #[serde(default)]
    sha256: Option<String>,
}

/// Reason why a bundle cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error("cannot read the bundle")]
    Read {
        #[source]
        source: io::Error,
    },
    #[error("it is packed neither by gzip nor by zstd")]
    Packing,
    #[error("{what} more than {most} bytes")]
    TooLarge { what: &'static str, most: u64 },
}

/// Verifies every file of a bundle against its record, and the records against the manifest.
pub fn verify(reader: impl Read) -> Result<Verified, VerifyError> {
    verify_within(reader, u64::MAX)
}

/// Like [`verify`] for an untrusted bundle: fails if it decompresses to more than `most` bytes.
pub fn verify_within(reader: impl Read, most: u64) -> Result<Verified, VerifyError> {
    let mut verified = Verified::default();
    let walked = walk(reader, most, &mut |name, record, content| {
        let Some(record) = record else {
            verified.wrong.push((name, "it has no record".to_owned()));
            return Ok(ControlFlow::Continue(()));
        };
        let is_manifest = record.item.path == MANIFEST;
        let mut manifest = Vec::new();
        let (hash, bytes) = hash(content, is_manifest.then_some(&mut manifest))?;
        let expected = verified.whole.len() + verified.wrong.len();
        let problem = if bytes != record.item.bytes || record.item.sha256.as_ref() != Some(&hash) {
            Some("its content is not what was collected")
        } else if !name.ends_with(&record.item.path) {
            Some("it has the record of another file")
        } else if record.sequence != expected as u64 {
            Some("files before it are missing")
        } else {
            None
        };
        match problem {
            Some(problem) => verified.wrong.push((name, problem.to_owned())),
            None => verified.whole.push(WholeFile { path: record.item.path, sha256: hash }),
        }
        if is_manifest && problem.is_none() {
            verified.manifest = serde_json::from_slice(&manifest).ok();
        }
        Ok(ControlFlow::Continue(()))
    })?;
    // A truncation between two files looks like the end of the archive.
    verified.cut = walked == Walked::Cut || (verified.manifest.is_none() && verified.wrong.is_empty());
    verified.compare();
    Ok(verified)
}

fn hash(content: &mut dyn Read, mut keep: Option<&mut Vec<u8>>) -> io::Result<(String, u64)> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 64 << 10];
    let mut total = 0;
    loop {
        let count = content.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        hasher.update(&buffer[..count]);
        total += count as u64;
        if let Some(kept) = keep.as_mut().filter(|_| total <= MAX_MANIFEST) {
            kept.extend_from_slice(&buffer[..count]);
        }
    }
    Ok((hex::encode(hasher.finalize()), total))
}

/// Deserializes at most as many items as our manifests have.
fn items<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Vec<ContentsItem>, D::Error> {
    struct Items;
    impl<'d> Visitor<'d> for Items {
        type Value = Vec<ContentsItem>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX_ITEMS} items")
        }

        fn visit_seq<A: SeqAccess<'d>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = sequence.next_element()? {
                if items.len() == MAX_ITEMS {
                    return Err(A::Error::invalid_length(MAX_ITEMS + 1, &self));
                }
                items.push(item);
            }
            Ok(items)
        }
    }
    deserializer.deserialize_seq(Items)
}

// === impl Verified ===

impl Verified {
    /// Returns whether all collected files are present and unchanged.
    pub fn is_complete(&self) -> bool {
        self.manifest.is_some() && self.wrong.is_empty() && !self.cut
    }

    /// Compares the manifest with the files: both must have the same names and content.
    fn compare(&mut self) {
        let Some(manifest) = &self.manifest else { return };
        let found: HashMap<&str, Option<&str>> =
            self.whole.iter().map(|file| (file.path.as_str(), Some(file.sha256.as_str()))).collect();
        for item in manifest.items.iter().filter(|item| item.sha256.is_some()) {
            if found.get(item.path.as_str()) != Some(&item.sha256.as_deref()) {
                self.wrong.push((item.path.clone(), "the manifest has it, the bundle has not".to_owned()));
            }
        }
    }
}
