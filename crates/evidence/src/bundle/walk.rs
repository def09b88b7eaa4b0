//! The files of a bundle, one after the other, from a stream nobody vouches for.

use std::cell::Cell;
use std::io::{self, BufReader, Read};
use std::ops::ControlFlow;

use flate2::read::MultiGzDecoder;

use super::Record;
use super::verify::VerifyError;

/// An extended header holds a record of a few hundred bytes and perhaps a name; what is longer is none of ours.
const MAX_EXTENSIONS: u64 = 16 << 10;

/// All extended headers and names of a bundle together. They pack to almost nothing, and readers keep a part of them.
const MAX_RECORDS: u64 = 64 << 20;

/// The longest path. Collectors cut theirs far earlier, and answers repeat it with every line.
const MAX_PATH: usize = 1 << 10;

/// More files than a bundle ever has.
const MAX_FILES: usize = 200_000;

/// Bundles are packed in blocks of 512 KiB; a frame that asks for more memory than 16 MiB to be unpacked is not ours.
const MAX_WINDOW_LOG: u32 = 24;

/// How a walk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walked {
    /// At the end of the archive, or where the visitor wanted no more.
    Whole,
    /// The stream ended, or turned to nonsense, before the archive did.
    Cut,
}

/// What is done with a file: given are its full name, its record if it has one, and its content.
pub type Visit<'a> = dyn FnMut(String, Option<Record>, &mut dyn Read) -> io::Result<ControlFlow<()>> + 'a;

/// Gives every file of a bundle to `visit`. Nothing is unpacked to disk, and no more than `most` bytes are unpacked at
/// all. An error of `visit` ends the walk as if the stream were cut.
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

/// The outer error is one of the stream, the inner one tells what no bundle of ours has.
fn entries(reader: impl Read, visit: &mut Visit<'_>) -> io::Result<Result<Walked, VerifyError>> {
    let mut archive = tar::Archive::new(reader);
    let mut extensions = Vec::new();
    let mut records = 0;
    // Raw, because the library would read an extended header of any length into memory.
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

/// A reader that gives up once it has read its share; `left` is then nothing.
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
