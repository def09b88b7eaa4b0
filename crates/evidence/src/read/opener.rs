//! Opens whatever it is given, to any (bounded) depth of packing, and brings the lines inside to the engine.

use std::collections::HashSet;
use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, BufReader, Read, Seek, SeekFrom};

use flate2::read::{DeflateDecoder, MultiGzDecoder};
use landfall_diagnose::{Case, Engine};
use landfall_journal::{ExportReader, JournalFile, JsonReader};
use landfall_model::chain;
use lzma_rust2::XzReader;

use super::budget::{Budget, Exhausted, MAX_NESTING};
use super::format::{Format, HEAD};
use super::journal_text::JournalText;
use super::{scan, zip};

/// What cannot be read as a stream inside an archive is put aside up to this size.
const MAX_SPOOL: u64 = 4 << 30;
/// What `xz -9` needs, and a little; the archive itself says how much it wants.
const MAX_XZ_KIB: u32 = 100 << 10;
/// Longer names are cut: every file inside an archive carries its archive's name.
const MAX_NAME: usize = 1024;

/// Everything that stays the same while one diagnosis reads.
pub(super) struct Opener<'a, 'e> {
    pub(super) engine: &'e Engine,
    pub(super) case: &'a mut Case<'e>,
    pub(super) seen: &'a dyn Fn(u64),
    pub(super) budget: &'a Budget,
}

/// Why something holds nothing that can be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error(transparent)]
    Read(io::Error),
    #[error("it holds {0}, not text")]
    NotText(&'static str),
    #[error("it is packed more than {MAX_NESTING} times")]
    TooDeep,
    #[error("it is encrypted")]
    Encrypted,
    #[error("it is packed by method {0}, which is not known")]
    Method(u16),
    #[error(transparent)]
    Exhausted(Exhausted),
    #[error(transparent)]
    Zip(zip::ZipError),
    #[error("cannot read the journal")]
    Journal(#[source] landfall_journal::Error),
}

/// What a hostile or careless archive does; counted, and told once per archive.
#[derive(Default)]
struct Oddities {
    links: u64,
    escapes: u64,
    duplicates: u64,
    names: HashSet<u64>,
    hasher: RandomState,
}

// === impl Opener ===

impl Opener<'_, '_> {
    /// Reads a file that can be sought.
    pub(super) fn file(&mut self, name: &str, mut file: File) -> Result<(), OpenError> {
        let mut head = Vec::with_capacity(HEAD);
        file.by_ref().take(HEAD as u64).read_to_end(&mut head).map_err(OpenError::Read)?;
        match Format::of(&head) {
            format @ (Format::Journal | Format::Zip) => self.sought(name, format, file, 0),
            format => self.unpacked(name, format, &mut io::Cursor::new(head).chain(file), 0),
        }
    }

    /// Reads a stream that cannot.
    pub(super) fn stream(&mut self, name: &str, reader: &mut dyn Read, depth: u32) -> Result<(), OpenError> {
        if depth > MAX_NESTING {
            return Err(OpenError::TooDeep);
        }
        let mut head = Vec::with_capacity(HEAD);
        reader.take(HEAD as u64).read_to_end(&mut head).map_err(OpenError::Read)?;
        let format = Format::of(&head);
        self.unpacked(name, format, &mut io::Cursor::new(head).chain(reader), depth)
    }

    fn unpacked(
        &mut self,
        name: &str,
        format: Format,
        reader: &mut dyn Read,
        depth: u32,
    ) -> Result<(), OpenError> {
        let inner = |suffix: &str| name.strip_suffix(suffix).unwrap_or(name).to_owned();
        match format {
            Format::Text => self.lines(name, reader),
            Format::JournalExport => {
                self.lines(name, JournalText::new(ExportReader::new(BufReader::new(reader))))
            }
            Format::JournalJson => {
                self.lines(name, JournalText::new(JsonReader::new(BufReader::new(reader))))
            }
            Format::Gzip => {
                let unpacked = &mut self.budget.meter(MultiGzDecoder::new(reader));
                self.stream(&inner(".gz"), unpacked, depth + 1)
            }
            Format::Zstd => {
                let decoder = zstd::Decoder::new(reader).map_err(OpenError::Read)?;
                self.stream(&inner(".zst"), &mut self.budget.meter(decoder), depth + 1)
            }
            Format::Xz => {
                let unpacked = &mut self.budget.meter(XzReader::new_mem_limit(reader, true, MAX_XZ_KIB));
                self.stream(&inner(".xz"), unpacked, depth + 1)
            }
            Format::Tar => self.tar(name, reader, depth),
            Format::Journal | Format::Zip => {
                let file = spool(reader).map_err(OpenError::Read)?;
                self.sought(name, format, file, depth)
            }
            Format::Other(what) => Err(OpenError::NotText(what)),
        }
    }

    fn sought(&mut self, name: &str, format: Format, mut file: File, depth: u32) -> Result<(), OpenError> {
        if format == Format::Zip {
            return self.zip(name, &mut file, depth);
        }
        file.seek(SeekFrom::Start(0)).map_err(OpenError::Read)?;
        let journal = JournalFile::new(file).map_err(OpenError::Journal)?;
        self.lines(name, JournalText::new(journal))
    }

    fn lines(&mut self, name: &str, reader: impl Read) -> Result<(), OpenError> {
        self.budget.spend_file().map_err(OpenError::Exhausted)?;
        scan::lines(self.engine, self.case, name, self.budget.meter(reader), self.seen)
            .map_err(OpenError::Read)
    }

    /// Every regular file of a tar archive. What is wrong with one entry, or with the rest of the archive, is recorded.
    fn tar(&mut self, archive_name: &str, reader: &mut dyn Read, depth: u32) -> Result<(), OpenError> {
        let mut archive = tar::Archive::new(reader);
        let mut oddities = Oddities::default();
        for (number, entry) in archive.entries().map_err(OpenError::Read)?.enumerate() {
            if let Err(error) = self.budget.spend_entry() {
                self.case.fail_source(archive_name, error.to_string());
                break;
            }
            let mut entry = match entry {
                Ok(entry) => entry,
                Err(error) if number == 0 => return Err(OpenError::Read(error)),
                Err(error) => {
                    self.case.fail_source(archive_name, format!("cannot read on: {error}"));
                    break;
                }
            };
            let kind = entry.header().entry_type();
            oddities.links += u64::from(kind.is_symlink() || kind.is_hard_link());
            if !(kind.is_file() || kind.is_gnu_sparse() || kind.is_contiguous()) {
                continue;
            }
            let name = entry_name(archive_name, &entry.path_bytes(), &mut oddities);
            let result = self.stream(&name, &mut self.budget.meter(&mut entry), depth + 1);
            if let Some(exhausted) = self.note(&name, result) {
                self.case.fail_source(archive_name, exhausted.to_string());
                break;
            }
        }
        oddities.tell(self.case, archive_name);
        Ok(())
    }

    fn zip(&mut self, archive_name: &str, file: &mut File, depth: u32) -> Result<(), OpenError> {
        let directory = zip::directory(file).map_err(OpenError::Zip)?;
        let mut rest = &directory[..];
        let mut oddities = Oddities::default();
        while let Some(entry) = zip::next_entry(&mut rest).map_err(OpenError::Zip)? {
            if let Err(error) = self.budget.spend_entry() {
                self.case.fail_source(archive_name, error.to_string());
                break;
            }
            if entry.is_link {
                oddities.links += 1;
                continue;
            }
            if entry.name.ends_with(b"/") {
                continue;
            }
            let name = entry_name(archive_name, &entry.name, &mut oddities);
            let result = self.zip_entry(&name, file, &entry, depth);
            if let Some(exhausted) = self.note(&name, result) {
                self.case.fail_source(archive_name, exhausted.to_string());
                break;
            }
        }
        oddities.tell(self.case, archive_name);
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
            zip::Method::Zstd => Box::new(zstd::Decoder::new(packed).map_err(OpenError::Read)?),
            zip::Method::Encrypted => return Err(OpenError::Encrypted),
            zip::Method::Unknown(method) => return Err(OpenError::Method(method)),
        };
        self.stream(name, &mut self.budget.meter(&mut reader), depth + 1)
    }

    /// Records an entry that could not be read; gives back what ends the whole archive.
    fn note(&mut self, name: &str, result: Result<(), OpenError>) -> Option<Exhausted> {
        match result {
            // Bundles hold programs, pictures and databases too; that is not worth a line each.
            Ok(()) | Err(OpenError::NotText(_)) => None,
            Err(OpenError::Exhausted(exhausted)) => Some(exhausted),
            Err(error) => {
                self.case.fail_source(name, chain(&error).to_string());
                // A file that cannot be read costs a place in the report like one that can.
                self.budget.spend_file().err()
            }
        }
    }
}

/// The entry's name below the archive's. Names only ever become text: nothing is unpacked to disk.
fn entry_name(archive: &str, path: &[u8], oddities: &mut Oddities) -> String {
    let path = String::from_utf8_lossy(path);
    let path: String = path.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    oddities.escapes += u64::from(path.starts_with('/') || path.split('/').any(|part| part == ".."));
    oddities.duplicates += u64::from(!oddities.names.insert(oddities.hasher.hash_one(&path)));
    let mut name = format!("{archive}:{}", path.trim_start_matches("./"));
    if name.len() > MAX_NAME {
        name.truncate((0..=MAX_NAME).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0));
        name.push('…');
    }
    name
}

/// Puts a stream into a file without a name.
fn spool(reader: &mut dyn Read) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    let copied = io::copy(&mut reader.take(MAX_SPOOL + 1), &mut file)?;
    if copied > MAX_SPOOL {
        return Err(io::Error::other(format!("it is larger than {} GiB inside an archive", MAX_SPOOL >> 30)));
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

// === impl Oddities ===

impl Oddities {
    fn tell(&self, case: &mut Case<'_>, archive: &str) {
        let told: Vec<String> = [
            (self.links, "links not followed"),
            (self.escapes, "names that lead out of the archive, taken as plain names"),
            (self.duplicates, "names that occur again, all read"),
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
