//! Iteration over the files of an untrusted bundle.

use std::cell::Cell;
use std::io::{self, BufReader, Read};
use std::ops::ControlFlow;

use flate2::read::MultiGzDecoder;

use super::Record;
use super::verify::VerifyError;

/// Our extended headers hold a record of a few hundred bytes and possibly a name; longer ones are rejected.
const MAX_EXTENSIONS: u64 = 16 << 10;

/// Limit for all extended headers and names of a bundle. They compress to almost nothing, and readers keep
/// some of them.
const MAX_RECORDS: u64 = 64 << 20;

/// Maximum path length. Collectors truncate paths far earlier, and query results repeat the path with each
/// line.
const MAX_PATH: usize = 1 << 10;

/// Maximum number of files; no bundle has this many.
const MAX_FILES: usize = 200_000;

/// Bundles have blocks of 512 KiB; frames that need more than 16 MiB for decompression are not ours.
const MAX_WINDOW_LOG: u32 = 24;

/// Result of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walked {
    /// At the end of the archive, or where the visitor stopped.
    Whole,
    /// The stream is truncated or damaged.
    Cut,
}

/// Visits a file. Parameters: full name, record if present, and content.
pub type Visit<'a> = dyn FnMut(String, Option<Record>, &mut dyn Read) -> io::Result<ControlFlow<()>> + 'a;

/// Passes each file of a bundle to `visit`.
///
/// Nothing is extracted to disk, and at most `most` bytes are decompressed.
///
/// An error from `visit` ends the iteration as if the stream were truncated.
pub fn walk(reader: impl Read, most: u64, visit: &mut Visit<'_>) -> Result<Walked, VerifyError> {
    let mut reader = BufReader::new(reader);
    let mut magic = [0; 4];
    let failed = |source| VerifyError::Read { source };
    let head = io::Read::take(&mut reader, 4).read(&mut magic).map_err(failed)?;
    let packed = io::Cursor::new(magic).take(head as u64).chain(reader);
    let unpacked: Box<dyn Read> = match magic {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(packed)),
        [0x28, 0xb5, 0x2f, 0xfd] => {
            let mut decoder = zstd::Decoder::new(packed).map_err(failed)?;
            decoder.window_log_max(MAX_WINDOW_LOG).map_err(failed)?;
            Box::new(decoder)
        }
        _ => return Err(VerifyError::Packing),
    };
    let left = Cell::new(Some(most));
    let walked = entries(Bounded { reader: unpacked, left: &left }, visit).unwrap_or(Ok(Walked::Cut));
    if left.get().is_none() { Err(too_large("it unpacks to", most)) } else { walked }
}

/// Passes each entry to `visit`.
///
/// The outer error is a stream error; the inner error reports content that our bundles never contain.
fn entries(reader: impl Read, visit: &mut Visit<'_>) -> io::Result<Result<Walked, VerifyError>> {
    let mut archive = tar::Archive::new(reader);
    let mut extensions = Vec::new();
    let mut records = 0;
    // Raw entries, because otherwise the library reads extended headers of any size into memory.
    for entry in archive.entries()?.raw(true).take(MAX_FILES) {
        let mut entry = entry?;
        if entry.header().entry_type() == tar::EntryType::XHeader {
            if entry.size() > MAX_EXTENSIONS {
                return Ok(Err(too_large("the record of a file has", MAX_EXTENSIONS)));
            }
            extensions.clear();
            entry.read_to_end(&mut extensions)?;
            records += extensions.len() as u64;
            continue;
        }
        let extension = |wanted: &str| {
            let mut all = tar::PaxExtensions::new(&extensions).flatten();
            all.find(|extension| extension.key() == Ok(wanted))
                .map(|extension| extension.value_bytes().to_vec())
        };
        let name = extension("path").unwrap_or_else(|| entry.path_bytes().into_owned());
        let mut record: Option<Record> =
            extension("comment").and_then(|bytes| serde_json::from_slice(&bytes).ok());
        extensions.clear();
        let path = record.as_ref().map_or(0, |record| record.item.path.len());
        if name.len().max(path) > MAX_PATH {
            return Ok(Err(too_large("the path of a file has", MAX_PATH as u64)));
        }
        records += name.len() as u64;
        if records > MAX_RECORDS {
            return Ok(Err(too_large("the records of its files have", MAX_RECORDS)));
        }
        if let Some(record) = &mut record {
            super::shorten(&mut record.item);
        }
        if visit(String::from_utf8_lossy(&name).into_owned(), record, &mut entry)?.is_break() {
            break;
        }
    }
    Ok(Ok(Walked::Whole))
}

fn too_large(what: &'static str, most: u64) -> VerifyError {
    VerifyError::TooLarge { what, most }
}

/// A reader that fails at its limit; `left` is then `None`.
struct Bounded<'a, R> {
    reader: R,
    left: &'a Cell<Option<u64>>,
}

// === impl Bounded ===

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.left.set(self.left.get().and_then(|left| left.checked_sub(count as u64)));
        if self.left.get().is_none() { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(count) }
    }
}
