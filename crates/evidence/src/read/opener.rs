//! Opens any input up to a maximum nesting of archives, and passes its lines to the engine.

use std::fs::{File, Metadata};
use std::io::{self, BufReader, Read, Seek, SeekFrom};

use flate2::read::MultiGzDecoder;
use landfall_diagnose::{Case, Engine, Stream};
use landfall_journal::{ExportReader, JournalFile, JsonReader};
use lzma_rust2::XzReader;

use super::budget::{Budget, Exhausted, MAX_NESTING};
use super::evtx::EventLog;
use super::format::{Format, HEAD};
use super::journal_text::{Entries, JournalChunks};
use super::lines::{Chunks, LineChunks};
use super::utf16::Utf16Text;
use super::{scan, tar, zip};
use crate::console::Tap;

/// Maximum size of a temporary file for archive content that cannot be streamed.
const MAX_SPOOL: u64 = 4 << 30;
/// Slightly more than `xz -9` needs; the archive itself states its memory requirement.
const MAX_XZ_KIB: u32 = 100 << 10;
/// `zstd` itself rejects windows larger than 128 MiB by default.
pub(super) const MAX_ZSTD_WINDOW_LOG: u32 = 27;

/// State shared by all inputs of one diagnosis.
pub(super) struct Opener<'a, 'e> {
    pub(super) engine: &'e Engine,
    pub(super) case: &'a mut Case<'e>,
    pub(super) seen: &'a dyn Fn(u64),
    pub(super) budget: &'a Budget,
    /// Outcome of the input so far.
    pub(super) outcome: Outcome,
    /// Metadata of the machine's file being read.
    pub(super) metadata: Option<Metadata>,
}

/// Whether any content could be read.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) sources: u64,
    pub(super) first_failure: Option<OpenError>,
}

/// Reason why an input has no readable content.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error(transparent)]
    Read(io::Error),
    #[error("it holds {0}, not text")]
    NotText(&'static str),
    #[error("it contains no readable file")]
    Nothing,
    #[error("it is packed more than {MAX_NESTING} times")]
    TooDeep,
    #[error("it is encrypted")]
    Encrypted,
    #[error("it is packed by method {0}, which is not known")]
    Method(u16),
    #[error(transparent)]
    Exhausted(Exhausted),
    #[error(transparent)]
    Tar(tar::TarError),
    #[error(transparent)]
    Zip(zip::ZipError),
    #[error("cannot read the journal")]
    Journal(#[source] landfall_journal::Error),
}

// === impl Opener ===

impl Opener<'_, '_> {
    /// Reads a seekable file.
    pub(super) fn file(&mut self, name: &str, mut file: File) -> Result<(), OpenError> {
        let mut head = Vec::with_capacity(HEAD);
        file.by_ref().take(HEAD as u64).read_to_end(&mut head).map_err(OpenError::Read)?;
        match Format::of(&head) {
            format @ (Format::Journal | Format::Zip) => {
                self.budget.earn(file.metadata().map_err(OpenError::Read)?.len());
                self.sought(name, format, file, 0)
            }
            format => {
                let reader = &mut self.budget.given(io::Cursor::new(head).chain(file));
                self.unpacked(name, format, reader, 0)
            }
        }
    }

    /// Reads a stream without seeking.
    pub(super) fn given(&mut self, name: &str, reader: &mut dyn Read) -> Result<(), OpenError> {
        self.stream(name, &mut self.budget.given(reader), 0)
    }

    /// Reads a text file of the machine under diagnosis.
    pub(super) fn file_of_machine(
        &mut self,
        path: &str,
        metadata: Metadata,
        reader: &mut dyn Read,
    ) -> Result<(), OpenError> {
        self.metadata = Some(metadata);
        let result = self.text(path, reader);
        self.metadata = None;
        result
    }

    /// Reads the content of a file or an archive entry.
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
        match format {
            Format::Text => self.text(name, reader),
            Format::Utf16(order) => self.lines(name, Utf16Text::new(reader, order)),
            Format::JournalExport => self.journal(name, ExportReader::new(BufReader::new(reader))),
            Format::JournalJson => self.journal(name, JsonReader::new(BufReader::new(reader))),
            Format::EventLog => {
                let log = EventLog::open(reader).map_err(OpenError::Read)?;
                self.lines(name, self.budget.meter(log))
            }
            Format::Gzip => self.packed(name, &mut MultiGzDecoder::new(reader), depth),
            Format::Zstd => {
                let mut decoder = zstd::Decoder::new(reader).map_err(OpenError::Read)?;
                decoder.window_log_max(MAX_ZSTD_WINDOW_LOG).map_err(OpenError::Read)?;
                self.packed(name, &mut decoder, depth)
            }
            Format::Xz => self.packed(name, &mut XzReader::new_mem_limit(reader, true, MAX_XZ_KIB), depth),
            Format::Tar => self.tar(name, reader, depth),
            Format::Journal | Format::Zip => {
                let file = spool(reader).map_err(OpenError::Read)?;
                self.sought(name, format, file, depth)
            }
            Format::Other(what) => Err(OpenError::NotText(what)),
        }
    }

    /// Reads text.
    ///
    /// It may be the output of a serial console that contains an agent's reports; the latest one is separate
    /// evidence.
    fn text(&mut self, name: &str, reader: &mut dyn Read) -> Result<(), OpenError> {
        if Stream::sniff(name, b"").is_of_users() {
            return self.lines(name, reader);
        }
        let mut tap = Tap::new(reader);
        self.lines(name, &mut tap)?;
        match tap.finish().last() {
            Some(record) => self.lines(&format!("{name}:report"), io::Cursor::new(record.lines())),
            None => Ok(()),
        }
    }

    /// Reads a decompressed stream under the name of the compressed one, so that evidence cites `a.log.gz`.
    fn packed(&mut self, name: &str, unpacked: &mut dyn Read, depth: u32) -> Result<(), OpenError> {
        self.stream(name, &mut self.budget.meter(unpacked), depth + 1)
    }

    fn sought(&mut self, name: &str, format: Format, mut file: File, depth: u32) -> Result<(), OpenError> {
        if format == Format::Zip {
            return self.zip(name, &mut file, depth);
        }
        file.seek(SeekFrom::Start(0)).map_err(OpenError::Read)?;
        let journal = JournalFile::new(file).map_err(OpenError::Journal)?;
        // Entries share data objects, so a journal can contain more text than its size.
        let chunks = JournalChunks::new(journal, self.engine.rules().origins());
        self.chunks(name, self.budget.meter(chunks))
    }

    pub(super) fn journal(&mut self, name: &str, entries: impl Entries) -> Result<(), OpenError> {
        self.chunks(name, JournalChunks::new(entries, self.engine.rules().origins()))
    }

    fn lines(&mut self, name: &str, reader: impl Read) -> Result<(), OpenError> {
        self.chunks(name, LineChunks::new(reader))
    }

    fn chunks(&mut self, name: &str, chunks: impl Chunks) -> Result<(), OpenError> {
        self.budget.spend_file().map_err(OpenError::Exhausted)?;
        let metadata = self.metadata.as_ref();
        scan::lines(self.engine, self.case, name, metadata, chunks, self.seen).map_err(OpenError::Read)?;
        self.outcome.sources += 1;
        Ok(())
    }
}

// === impl Outcome ===

impl Outcome {
    /// Succeeds if any content was read; otherwise returns the reason.
    pub(super) fn or_failure(self) -> Result<(), OpenError> {
        match self {
            Self { sources: 1.., .. } => Ok(()),
            Self { first_failure, .. } => Err(first_failure.unwrap_or(OpenError::Nothing)),
        }
    }
}

/// Copies a stream into an unnamed temporary file.
fn spool(reader: &mut dyn Read) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    let copied = io::copy(&mut reader.take(MAX_SPOOL + 1), &mut file)?;
    if copied > MAX_SPOOL {
        return Err(io::Error::other(format!("it is larger than {} GiB inside an archive", MAX_SPOOL >> 30)));
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}
