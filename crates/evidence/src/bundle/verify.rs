//! Reads a bundle as far as it goes and says which of its files are whole.

use std::collections::HashMap;
use std::io::{self, Read};
use std::ops::ControlFlow;

use landfall_model::bundle::BundleManifest;
use sha2::{Digest as _, Sha256};

use super::walk::{Walked, walk};
use super::{MANIFEST, Record};

/// The longest manifest that is read.
const MAX_MANIFEST: u64 = 64 << 20;

/// What a bundle turned out to hold.
#[derive(Debug, Default)]
pub struct Verified {
    /// The records of the files that are whole, in order.
    pub whole: Vec<Record>,
    /// What is wrong, by the name of the file.
    pub wrong: Vec<(String, String)>,
    /// The manifest, when the stream was not cut before it and it is whole itself.
    pub manifest: Option<BundleManifest>,
    /// Whether the stream ended before its time.
    pub cut: bool,
}

/// Why a bundle could not be read at all.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error("cannot read the bundle")]
    Read {
        #[source]
        source: io::Error,
    },
    #[error("it is packed neither by gzip nor by zstd")]
    Packing,
    #[error("it unpacks to more than {most} bytes")]
    TooLarge { most: u64 },
}

/// Verifies every file of a bundle against its record, and the records against the manifest.
pub fn verify(reader: impl Read) -> Result<Verified, VerifyError> {
    verify_within(reader, u64::MAX)
}

/// The same for a bundle of a stranger: one that unpacks to more than `most` bytes is given up.
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
            None => verified.whole.push(record),
        }
        if is_manifest && problem.is_none() {
            verified.manifest = serde_json::from_slice(&manifest).ok();
        }
        Ok(ControlFlow::Continue(()))
    })?;
    // A cut between two files looks like an end.
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
    Ok((hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect(), total))
}

// === impl Verified ===

impl Verified {
    /// Everything that was collected is here and as it was.
    pub fn is_complete(&self) -> bool {
        self.manifest.is_some() && self.wrong.is_empty() && !self.cut
    }

    /// The manifest must name the same files with the same content.
    fn compare(&mut self) {
        let Some(manifest) = &self.manifest else { return };
        let found: HashMap<&str, Option<&str>> = self
            .whole
            .iter()
            .map(|record| (record.item.path.as_str(), record.item.sha256.as_deref()))
            .collect();
        for item in manifest.items.iter().filter(|item| item.sha256.is_some()) {
            if found.get(item.path.as_str()) != Some(&item.sha256.as_deref()) {
                self.wrong.push((item.path.clone(), "the manifest has it, the bundle has not".to_owned()));
            }
        }
    }
}
