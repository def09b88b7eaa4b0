//! Reads a bundle as far as it goes and says which of its files are whole.

use std::collections::HashMap;
use std::io::{self, BufReader, Read};

use flate2::read::MultiGzDecoder;
use landfall_model::bundle::BundleManifest;
use sha2::{Digest as _, Sha256};

use super::{MANIFEST, Record};

/// A record is a few hundred bytes; what is longer is none.
const MAX_RECORD: usize = 64 << 10;

/// More files than a bundle ever has.
const MAX_FILES: usize = 200_000;

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
}

/// Verifies every file of a bundle against its record, and the records against the manifest.
pub fn verify(reader: impl Read) -> Result<Verified, VerifyError> {
    let mut reader = BufReader::new(reader);
    let mut magic = [0; 4];
    let failed = |source| VerifyError::Read { source };
    let head = io::Read::take(&mut reader, 4).read(&mut magic).map_err(failed)?;
    let start = io::Cursor::new(magic).take(head as u64);
    let packed = start.chain(reader);
    match magic {
        [0x1f, 0x8b, ..] => Ok(walk(MultiGzDecoder::new(packed))),
        [0x28, 0xb5, 0x2f, 0xfd] => Ok(walk(zstd::Decoder::new(packed).map_err(failed)?)),
        _ => Err(VerifyError::Packing),
    }
}

fn walk(reader: impl Read) -> Verified {
    let mut verified = Verified::default();
    let mut archive = tar::Archive::new(reader);
    let Ok(entries) = archive.entries() else {
        verified.cut = true;
        return verified;
    };
    for entry in entries.take(MAX_FILES) {
        let Ok(mut entry) = entry else {
            verified.cut = true;
            break;
        };
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let Some(record) = record_of(&mut entry) else {
            verified.wrong.push((name, "it has no record".to_owned()));
            continue;
        };
        let is_manifest = record.item.path == MANIFEST;
        let mut manifest = Vec::new();
        let Ok((hash, bytes)) = hash(&mut entry, is_manifest.then_some(&mut manifest)) else {
            verified.cut = true;
            break;
        };
        // Taken by value: the closure would keep `verified` borrowed.
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
    }
    // A cut between two files looks like an end.
    verified.cut |= verified.manifest.is_none() && verified.wrong.is_empty();
    verified.compare();
    verified
}

fn record_of(entry: &mut tar::Entry<'_, impl Read>) -> Option<Record> {
    let extensions = entry.pax_extensions().ok()??;
    let comment = extensions.flatten().find(|extension| extension.key() == Ok("comment"))?;
    let bytes = comment.value_bytes();
    if bytes.len() > MAX_RECORD { None } else { serde_json::from_slice(bytes).ok() }
}

fn hash(entry: &mut impl Read, mut keep: Option<&mut Vec<u8>>) -> io::Result<(String, u64)> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 64 << 10];
    let mut total = 0;
    loop {
        let count = entry.read(&mut buffer)?;
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
