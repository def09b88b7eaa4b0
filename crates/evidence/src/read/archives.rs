//! Archives of files.
//!
//! Errors in an entry or in the rest of an archive are recorded, and all readable content is read. Nothing is
//! ever extracted to a named path.

use std::collections::HashSet;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::Read;

use flate2::read::DeflateDecoder;
use landfall_diagnose::Case;
use landfall_model::chain;

use super::budget::{Exhausted, MAX_ENTRIES};
use super::opener::{MAX_ZSTD_WINDOW_LOG, OpenError, Opener};
use super::records::{Hashed, Records};
use super::tar::{self, Walk};
use super::zip;

/// Longer names are truncated: the name of each file in an archive includes the archive's name.
const MAX_NAME: usize = 1024;

/// Anomalies of a hostile or careless archive; counted, and reported once per archive.
#[derive(Default)]
struct Oddities {
    links: u64,
    escapes: u64,
    duplicates: u64,
    sparse: u64,
    special: u64,
    oversized: u64,
    overlaps: u64,
    names: HashSet<u64>,
    hasher: RandomState,
}

// === impl Opener ===

impl Opener<'_, '_> {
    /// Reads each regular file of a tar archive.
    pub(super) fn tar(&mut self, archive: &str, reader: &mut dyn Read, depth: u32) -> Result<(), OpenError> {
        let mut walk = Walk::new(reader);
        let mut oddities = Oddities::default();
        let mut records = Records::default();
        for number in 0_u64.. {
            let entry = match walk.next_entry() {
                Ok(Some(entry)) => entry,
                Ok(None) => break,
                Err(error) if number == 0 => return Err(OpenError::Tar(error)),
                Err(error) => {
                    self.case.fail_source(archive, format!("incomplete: {}", chain(&error)));
                    break;
                }
            };
            if let Err(exhausted) = self.budget.spend_entry() {
                self.case.fail_source(archive, exhausted.to_string());
                break;
            }
            match entry.kind {
                tar::Kind::File => {}
                tar::Kind::Sparse => oddities.sparse += 1,
                tar::Kind::Folder => continue,
                tar::Kind::Link => {
                    oddities.links += 1;
                    continue;
                }
                tar::Kind::Special => {
                    oddities.special += 1;
                    continue;
                }
            }
            let name = entry_name(archive, &entry.name, &mut oddities);
            let record = Records::parse(entry.comment.as_deref());
            let mut content = None;
            let result = if entry.kind == tar::Kind::Sparse {
                // Holes are free for an attacker, so their zeros are charged like decompressed data.
                self.stream(&name, &mut self.budget.meter(&mut walk), depth + 1)
            } else if record.is_some() {
                let mut hashed = Hashed::new(&mut walk);
                let result = self.stream(&name, &mut hashed, depth + 1);
                content = hashed.finish().ok();
                result
            } else {
                self.stream(&name, &mut walk, depth + 1)
            };
            if let Some(exhausted) = self.note(&name, result) {
                self.case.fail_source(archive, exhausted.to_string());
                break;
            }
            if let Some(wrong) = records.check(&entry.name, record.as_ref(), content) {
                self.case.remark(&name, wrong);
            }
        }
        if let Some(wrong) = records.end() {
            self.case.fail_source(archive, wrong);
        }
        oddities.oversized = walk.oversized();
        oddities.tell(self.case, archive);
        Ok(())
    }

    /// Reads each file of a zip archive.
    pub(super) fn zip(&mut self, archive: &str, file: &mut File, depth: u32) -> Result<(), OpenError> {
        let directory = zip::directory(file).map_err(OpenError::Zip)?;
        let overlapping = zip::overlapping(&directory.bytes, MAX_ENTRIES as usize);
        let mut rest = &directory.bytes[..];
        let mut oddities = Oddities::default();
        for number in 0_u64.. {
            let entry = match zip::next_entry(&mut rest) {
                Ok(Some(entry)) => entry,
                Ok(None) => break,
                Err(_) if directory.is_cut => {
                    self.case.fail_source(archive, zip::ZipError::TooLarge.to_string());
                    break;
                }
                Err(error) if number == 0 => return Err(OpenError::Zip(error)),
                Err(error) => {
                    self.case.fail_source(archive, format!("incomplete: {}", chain(&error)));
                    break;
                }
            };
            if let Err(exhausted) = self.budget.spend_entry() {
                self.case.fail_source(archive, exhausted.to_string());
                break;
            }
            if entry.is_link {
                oddities.links += 1;
                continue;
            }
            if entry.name.ends_with(b"/") {
                continue;
            }
            if overlapping.contains(&number) {
                oddities.overlaps += 1;
                continue;
            }
            let name = entry_name(archive, &entry.name, &mut oddities);
            let result = self.zip_entry(&name, file, &entry, depth);
            if let Some(exhausted) = self.note(&name, result) {
                self.case.fail_source(archive, exhausted.to_string());
                break;
            }
        }
        oddities.tell(self.case, archive);
        Ok(())
    }

    fn zip_entry(
        &mut self,
        name: &str,
        file: &mut File,
        entry: &zip::Entry,
        depth: u32,
    ) -> Result<(), OpenError> {
        let packed = zip::open(file, entry).map_err(OpenError::Zip)?;
        let mut reader: Box<dyn Read + '_> = match entry.method {
            zip::Method::Stored => Box::new(packed),
            zip::Method::Deflate => Box::new(DeflateDecoder::new(packed)),
            zip::Method::Zstd => {
                let mut decoder = zstd::Decoder::new(packed).map_err(OpenError::Read)?;
                decoder.window_log_max(MAX_ZSTD_WINDOW_LOG).map_err(OpenError::Read)?;
                Box::new(decoder)
            }
            zip::Method::Encrypted => return Err(OpenError::Encrypted),
            zip::Method::Unknown(method) => return Err(OpenError::Method(method)),
        };
        self.stream(name, &mut self.budget.meter(&mut reader), depth + 1)
    }

    /// Records an unreadable entry; returns the error that ends the entire archive.
    fn note(&mut self, name: &str, result: Result<(), OpenError>) -> Option<Exhausted> {
        match result {
            // Bundles also contain programs, images and databases, which are not reported.
            Ok(()) | Err(OpenError::NotText(_)) => None,
            Err(OpenError::Exhausted(exhausted)) => Some(exhausted),
            Err(error) => {
                self.case.fail_source(name, chain(&error).to_string());
                self.outcome.first_failure.get_or_insert(error);
                // An unreadable file also takes an entry in the report.
                self.budget.spend_file().err()
            }
        }
    }
}

/// Returns the entry's name below the archive's. Names are only used as text: nothing is extracted to disk.
fn entry_name(archive: &str, path: &[u8], oddities: &mut Oddities) -> String {
    let path = String::from_utf8_lossy(path);
    let path: String = path.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    // Windows programs use their own path separator.
    oddities.escapes += u64::from(path.starts_with('/') || path.split(['/', '\\']).any(|part| part == ".."));
    oddities.duplicates += u64::from(!oddities.names.insert(oddities.hasher.hash_one(&path)));
    let mut name = format!("{archive}:{}", path.trim_start_matches("./"));
    if name.len() > MAX_NAME {
        name.truncate((0..=MAX_NAME).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0));
        name.push('…');
    }
    name
}

// === impl Oddities ===

impl Oddities {
    fn tell(&self, case: &mut Case<'_>, archive: &str) {
        let told: Vec<String> = [
            (self.links, "links not followed"),
            (self.escapes, "names that lead out of the archive, taken as plain names"),
            (self.duplicates, "names that occur again, all read"),
            (self.sparse, "files with holes, read as zeros"),
            (self.special, "devices, pipes or unknown things, not read"),
            (self.oversized, "records about entries too large to be held, passed over"),
            (self.overlaps, "entries that share their bytes with others, not read"),
        ]
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
        if !told.is_empty() {
            case.fail_source(archive, told.join("; "));
        }
    }
}
