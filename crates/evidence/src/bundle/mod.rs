//! Bundles: a compressed tar in the layout of `log-bundle-<id>/`, streamed during collection and verifiable
//! when truncated.
//!
//! Each file is preceded by its [`Record`] in the `comment` of an extended header, which all tar readers
//! skip. The record contains the file's hash. Each complete file can therefore be verified, even when the
//! stream was truncated before `manifest.json`, the last file. `docs/concepts/bundle.md` describes the
//! format.

mod age;
mod pack;
mod verify;
mod walk;

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};

use jiff::Timestamp;
use landfall_model::bundle::{BundleItem, BundleManifest, FORMAT, ItemOutcome};
use landfall_model::identity::NodeIdentity;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

pub use self::age::{Recipient, RecipientError, Sealed};
use self::pack::Packer;
pub use self::pack::Packing;
pub use self::verify::{Contents, ContentsItem, Verified, VerifyError, WholeFile, verify, verify_within};
pub use self::walk::{Visit, Walked, walk};

/// Name of the manifest in the bundle's directory.
pub const MANIFEST: &str = "manifest.json";

/// Longest name in a plain tar header; longer names go into the extended header.
const PLAIN_NAME: usize = 100;

/// Maximum number of manifest items. Further files are still in the bundle, with their records.
const MAX_ITEMS: usize = 20_000;

/// Maximum length of a source or error text in a record. The rest of a longer text adds no information.
const MAX_TEXT: usize = 1 << 10;

/// The record that precedes each file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Sequence number of the file in the bundle, from 0: a gap shows that a file was removed.
    pub sequence: u64,
    #[serde(flatten)]
    pub item: BundleItem,
}

/// A bundle being written.
pub struct BundleWriter<W: Write> {
    archive: tar::Builder<Packer<W>>,
    manifest: BundleManifest,
    sequence: u64,
    /// Names in use: of two files with the same name, extraction would keep only one.
    names: HashMap<String, u32>,
}

/// A complete bundle.
#[derive(Debug)]
pub struct Finished<W> {
    pub out: W,
    pub manifest: BundleManifest,
    /// Compressed size in bytes.
    pub packed: u64,
}

// === impl BundleWriter ===

impl<W: Write> BundleWriter<W> {
    /// Starts a bundle about `node`.
    ///
    /// The ID names its directory; by convention it is the time in digits ([`bundle_id`]).
    pub fn new(out: W, packing: Packing, id: &str, node: NodeIdentity, started: Timestamp) -> Self {
        let manifest = BundleManifest {
            format: FORMAT,
            id: id.to_owned(),
            node,
            started,
            ended: None,
            items: Vec::new(),
        };
        Self {
            archive: tar::Builder::new(Packer::new(out, packing)),
            manifest,
            sequence: 0,
            names: HashMap::new(),
        }
    }

    /// Writes a file and adds its size and hash to its item.
    pub fn add(&mut self, mut item: BundleItem, content: &[u8]) -> io::Result<()> {
        shorten(&mut item);
        item.path = self.unique(item.path);
        item.bytes = content.len() as u64;
        item.sha256 = Some(sha256(content));
        let record = Record { sequence: self.sequence, item };
        let record_text = serde_json::to_string(&record).map_err(io::Error::other)?;
        self.write(&record.item.path, &record_text, content)?;
        self.note(record.item);
        Ok(())
    }

    /// Records an item without a file.
    pub fn note(&mut self, mut item: BundleItem) {
        shorten(&mut item);
        if self.manifest.items.len() < MAX_ITEMS {
            self.manifest.items.push(item);
        }
    }

    /// Returns the manifest so far.
    pub fn manifest(&self) -> &BundleManifest {
        &self.manifest
    }

    /// Writes data buffered for better compression, so that it is not lost if the collection ends here.
    pub fn flush(&mut self) -> io::Result<()> {
        self.archive.get_mut().empty()
    }

    /// Writes the manifest and ends the stream.
    pub fn finish(mut self, ended: Timestamp) -> io::Result<Finished<W>> {
        self.manifest.ended = Some(ended);
        let text = serde_json::to_vec_pretty(&self.manifest).map_err(io::Error::other)?;
        let item = BundleItem {
            path: MANIFEST.to_owned(),
            source: "landfall".to_owned(),
            outcome: ItemOutcome::Collected,
            duration_ms: 0,
            bytes: text.len() as u64,
            truncated: 0,
            sha256: Some(sha256(&text)),
            redactions: std::collections::BTreeMap::new(),
        };
        let record = Record { sequence: self.sequence, item };
        let record_text = serde_json::to_string(&record).map_err(io::Error::other)?;
        self.write(MANIFEST, &record_text, &text)?;
        let (out, packed) = self.archive.into_inner()?.finish()?;
        Ok(Finished { out, manifest: self.manifest, packed })
    }

    /// Returns the name, or `name~2` if it is in use.
    fn unique(&mut self, path: String) -> String {
        // Bounds memory: beyond this number of files, names are not checked for duplicates.
        if self.names.len() >= MAX_ITEMS {
            return path;
        }
        let uses = self.names.entry(path.clone()).or_default();
        *uses += 1;
        if *uses == 1 { path } else { format!("{path}~{uses}") }
    }

    fn write(&mut self, path: &str, record: &str, content: &[u8]) -> io::Result<()> {
        let path = format!("log-bundle-{}/{path}", self.manifest.id);
        let mut extensions = vec![("comment", record.as_bytes())];
        let mut name = path.as_bytes();
        if name.len() > PLAIN_NAME {
            extensions.push(("path", path.as_bytes()));
            name = &name[..PLAIN_NAME];
        }
        self.archive.append_pax_extensions(extensions)?;
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name);
        header.set_entry_type(tar::EntryType::Regular);
        header.set_mode(0o600);
        header.set_uid(0);
        header.set_gid(0);
        // All files have the same time, so that bundles with equal content are identical.
        header.set_mtime(u64::try_from(self.manifest.started.as_second()).unwrap_or(0));
        header.set_size(content.len() as u64);
        header.set_cksum();
        self.archive.append(&header, content)?;
        self.sequence += 1;
        self.archive.get_mut().end_of_file()
    }
}

impl<W: Write> fmt::Debug for BundleWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BundleWriter").field("manifest", &self.manifest).finish_non_exhaustive()
    }
}

/// Returns the ID of a bundle started at this time, in the format of `openshift-install`.
pub fn bundle_id(started: Timestamp) -> String {
    started.strftime("%Y%m%d%H%M%S").to_string()
}

/// Truncates texts whose length other programs control.
fn shorten(item: &mut BundleItem) {
    let error = match &mut item.outcome {
        ItemOutcome::Failed { error } => Some(error),
        _ => None,
    };
    for text in error.into_iter().chain([&mut item.source]) {
        text.truncate(text.floor_char_boundary(MAX_TEXT));
    }
}

pub(crate) fn sha256(content: &[u8]) -> String {
    hex::encode(Sha256::digest(content))
}
