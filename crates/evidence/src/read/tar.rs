//! Streaming tar reader.
//!
//! It replaces the `tar` crate, because the metadata of an entry (long name, pax records, sparse map) may
//! claim any size. Excessive sizes must be rejected before the metadata is buffered.

use std::collections::VecDeque;
use std::io::{self, Read};

const BLOCK: usize = 512;
/// Maximum bytes of one metadata record. The longest Linux path is 4 KiB; attributes add a little.
const MAX_RECORD: u64 = 256 << 10;
/// Maximum metadata records per entry: a long name, a long link, one pax record of each kind, and a reserve
/// for unusual writers.
const MAX_RECORDS: u32 = 16;
/// Maximum number of data segments in a sparse file, 16 bytes each.
const MAX_STRETCHES: usize = 1 << 16;

/// An archive; as a reader it returns the content of the last [`Walk::next_entry`].
#[derive(Debug)]
pub struct Walk<R> {
    reader: R,
    /// Unread bytes of the entry, and the padding to complete blocks.
    packed: u64,
    padding: u64,
    content: Content,
    oversized: u64,
    ended: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    pub kind: Kind,
    /// The archive writer's comment, such as the record of a bundle.
    pub comment: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    /// A sparse file; holes are read as zeros.
    Sparse,
    Link,
    Folder,
    /// A device, a pipe or an unknown type.
    Special,
}

#[derive(Debug, thiserror::Error)]
pub enum TarError {
    #[error("cannot read the tar archive")]
    Read(#[source] io::Error),
    #[error("the tar archive is damaged: {0}")]
    Damaged(&'static str),
}

/// Mapping of the archived bytes to the content.
#[derive(Debug)]
enum Content {
    Plain,
    Holes { at: u64, size: u64, stretches: VecDeque<Stretch> },
}

#[derive(Clone, Copy, Debug)]
struct Stretch {
    start: u64,
    len: u64,
}

/// Metadata records before an entry.
#[derive(Default)]
struct About {
    name: Option<Vec<u8>>,
    size: Option<u64>,
    sparse_name: Option<Vec<u8>>,
    sparse_size: Option<u64>,
    sparse_map_inside: bool,
    comment: Option<Vec<u8>>,
}

struct Header([u8; BLOCK]);

// === impl Walk ===

impl<R: Read> Walk<R> {
    pub fn new(reader: R) -> Self {
        Self { reader, packed: 0, padding: 0, content: Content::Plain, oversized: 0, ended: false }
    }

    /// Returns the number of records skipped because of their size.
    pub fn oversized(&self) -> u64 {
        self.oversized
    }

    /// Returns the next entry; skips unread content of the previous one.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, TarError> {
        let mut about = About::default();
        for _ in 0..MAX_RECORDS {
            self.pass_over()?;
            let Some(header) = self.header()? else { return Ok(None) };
            let size = header.number(124..136).ok_or(TarError::Damaged("a size is not a number"))?;
            self.content = Content::Plain;
            // A hard link states the size of its target, but has no content.
            self.expect(if header.0[156] == b'1' { 0 } else { size });
            match header.0[156] {
                b'L' => about.name = self.record()?.map(|record| until_nul(&record).to_vec()),
                b'x' | b'X' => {
                    if let Some(record) = self.record()? {
                        about.read_pax(&record);
                    }
                }
                // A long link target and global pax records do not affect content boundaries.
                b'K' | b'g' => {
                    self.record()?;
                }
                kind => return self.entry(kind, &header, about).map(Some),
            }
        }
        Err(TarError::Damaged("an entry has more records about it than any writer makes"))
    }

    fn entry(&mut self, kind: u8, header: &Header, about: About) -> Result<Entry, TarError> {
        if let Some(size) = about.size {
            self.expect(size);
        }
        let kind = match kind {
            b'0' | b'\0' | b'7' if about.sparse_map_inside => {
                self.content = self.inner_map(about.sparse_size)?;
                Kind::Sparse
            }
            b'0' | b'\0' | b'7' => Kind::File,
            b'S' => {
                self.content = self.outer_map(header)?;
                Kind::Sparse
            }
            b'1' | b'2' => Kind::Link,
            b'5' => Kind::Folder,
            _ => Kind::Special,
        };
        let name = about.sparse_name.or(about.name).unwrap_or_else(|| header.name());
        // Old writers mark a directory only by a trailing slash.
        let kind = if kind == Kind::File && name.ends_with(b"/") { Kind::Folder } else { kind };
        Ok(Entry { name, kind, comment: about.comment })
    }

    fn expect(&mut self, size: u64) {
        self.packed = size;
        self.padding = size.wrapping_neg() % BLOCK as u64;
    }

    fn pass_over(&mut self) -> Result<(), TarError> {
        let wanted = self.packed.saturating_add(self.padding);
        let passed =
            io::copy(&mut self.reader.by_ref().take(wanted), &mut io::sink()).map_err(TarError::Read)?;
        // Some writers omit the padding after the last entry.
        if passed < self.packed {
            return Err(TarError::Damaged("it ends in the middle of an entry"));
        }
        (self.packed, self.padding) = (0, 0);
        Ok(())
    }

    /// Returns the next header; `None` at the end of the archive: two zero blocks, or the end of the data.
    fn header(&mut self) -> Result<Option<Header>, TarError> {
        let mut zeros = 0;
        while !self.ended {
            match self.block()? {
                None => self.ended = true,
                Some(block) if block.iter().all(|byte| *byte == 0) => {
                    zeros += 1;
                    self.ended = zeros == 2;
                }
                Some(block) => {
                    let header = Header(block);
                    if !header.is_whole() {
                        return Err(TarError::Damaged("a header has a wrong checksum"));
                    }
                    return Ok(Some(header));
                }
            }
        }
        Ok(None)
    }

    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.reader.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(TarError::Damaged("it ends in the middle of a header")),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(TarError::Read(error)),
            }
        }
        Ok(Some(block))
    }

    /// Returns the record announced by the last header; skips one that is too large.
    fn record(&mut self) -> Result<Option<Vec<u8>>, TarError> {
        if self.packed > MAX_RECORD {
            self.oversized += 1;
            return Ok(None);
        }
        let mut record = Vec::new();
        self.read_to_end(&mut record).map_err(TarError::Read)?;
        Ok(Some(record))
    }

    /// Reads GNU's sparse map: in the header and in blocks after it.
    fn outer_map(&mut self, header: &Header) -> Result<Content, TarError> {
        let mut stretches = VecDeque::new();
        let size = header.number(483..495).ok_or(TarError::Damaged("a size is not a number"))?;
        take_stretches(&header.0[386..482], &mut stretches)?;
        let mut goes_on = header.0[482] != 0;
        while goes_on {
            let block = self.block()?.ok_or(TarError::Damaged("it ends in a map of holes"))?;
            take_stretches(&block[..504], &mut stretches)?;
            goes_on = block[504] != 0;
        }
        self.holes(size, stretches)
    }

    /// Reads the sparse map of pax format 1.0: decimal numbers, one per line, in complete blocks before the
    /// content.
    fn inner_map(&mut self, size: Option<u64>) -> Result<Content, TarError> {
        const DAMAGED: TarError = TarError::Damaged("a map of holes cannot be read");
        let mut numbers = Vec::new();
        let mut wanted = 1;
        let mut number: Option<u64> = None;
        while numbers.len() < wanted {
            if self.packed < BLOCK as u64 {
                return Err(DAMAGED);
            }
            let block = self.block()?.ok_or(DAMAGED)?;
            self.packed -= BLOCK as u64;
            for byte in block {
                match byte {
                    b'0'..=b'9' => {
                        let digit = u64::from(byte - b'0');
                        let longer = number.unwrap_or(0).checked_mul(10).and_then(|n| n.checked_add(digit));
                        number = Some(longer.ok_or(DAMAGED)?);
                    }
                    b'\n' => numbers.push(number.take().ok_or(DAMAGED)?),
                    _ => return Err(DAMAGED),
                }
                if numbers.len() == 1 {
                    let count = usize::try_from(numbers[0]).unwrap_or(usize::MAX);
                    if count > MAX_STRETCHES {
                        return Err(TarError::Damaged("a file has more holes than can be held"));
                    }
                    wanted = 1 + 2 * count;
                }
                if numbers.len() == wanted {
                    break;
                }
            }
        }
        let stretches: VecDeque<Stretch> =
            numbers[1..].as_chunks().0.iter().map(|&[start, len]| Stretch { start, len }).collect();
        let end = stretches.back().map_or(0, |last| last.start.saturating_add(last.len));
        self.holes(size.unwrap_or(end), stretches)
    }

    fn holes(&self, size: u64, stretches: VecDeque<Stretch>) -> Result<Content, TarError> {
        let mut end = 0_u64;
        let mut data = 0_u64;
        for stretch in &stretches {
            let next = stretch.start.checked_add(stretch.len).filter(|_| stretch.start >= end);
            end = next.ok_or(TarError::Damaged("a map of holes is out of order"))?;
            data = data.saturating_add(stretch.len);
        }
        if end > size || data > self.packed {
            return Err(TarError::Damaged("a map of holes does not fit its file"));
        }
        Ok(Content::Holes { at: 0, size, stretches })
    }

    fn read_packed(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.packed).unwrap_or(usize::MAX).min(buffer.len());
        if wanted == 0 {
            return Ok(0);
        }
        let count = self.reader.read(&mut buffer[..wanted])?;
        if count == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the tar archive is cut off"));
        }
        self.packed -= count as u64;
        Ok(count)
    }
}

impl<R: Read> Read for Walk<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Content::Holes { at, size, stretches } = &mut self.content else {
            return self.read_packed(buffer);
        };
        while stretches.front().is_some_and(|stretch| stretch.start + stretch.len <= *at) {
            stretches.pop_front();
        }
        // End of the current segment: data, or a hole up to the next segment or the end.
        let (end, is_data) = match stretches.front() {
            Some(stretch) if stretch.start <= *at => (stretch.start + stretch.len, true),
            Some(stretch) => (stretch.start, false),
            None => (*size, false),
        };
        let wanted = usize::try_from(end - *at).unwrap_or(usize::MAX).min(buffer.len());
        let count = if is_data {
            self.read_packed(&mut buffer[..wanted])?
        } else {
            buffer[..wanted].fill(0);
            wanted
        };
        if let Content::Holes { at, .. } = &mut self.content {
            *at += count as u64;
        }
        Ok(count)
    }
}

fn take_stretches(map: &[u8], stretches: &mut VecDeque<Stretch>) -> Result<(), TarError> {
    for pair in map.as_chunks::<24>().0 {
        if pair[0] == 0 {
            continue;
        }
        let (start, len) = number(&pair[..12])
            .zip(number(&pair[12..]))
            .ok_or(TarError::Damaged("a map of holes cannot be read"))?;
        if stretches.len() == MAX_STRETCHES {
            return Err(TarError::Damaged("a file has more holes than can be held"));
        }
        stretches.push_back(Stretch { start, len });
    }
    Ok(())
}

// === impl About ===

impl About {
    /// Parses records `length key=value\n` up to the first invalid one.
    fn read_pax(&mut self, mut records: &[u8]) {
        while let Some(space) = records.iter().position(|byte| *byte == b' ') {
            let Some(length) = decimal(&records[..space]).and_then(|length| usize::try_from(length).ok())
            else {
                return;
            };
            let Some(record) = records.get(space + 1..length) else { return };
            records = &records[length..];
            let record = record.strip_suffix(b"\n").unwrap_or(record);
            let Some(equals) = record.iter().position(|byte| *byte == b'=') else { return };
            let value = &record[equals + 1..];
            match &record[..equals] {
                b"path" => self.name = Some(until_nul(value).to_vec()),
                b"size" => self.size = decimal(value),
                b"comment" => self.comment = Some(value.to_vec()),
                b"GNU.sparse.name" => self.sparse_name = Some(until_nul(value).to_vec()),
                b"GNU.sparse.realsize" => self.sparse_size = decimal(value),
                b"GNU.sparse.major" => self.sparse_map_inside = value == b"1",
                _ => {}
            }
        }
    }
}

// === impl Header ===

impl Header {
    /// Verifies the checksum: the sum of all bytes, with the checksum field as spaces.
    ///
    /// Old writers summed signed bytes.
    fn is_whole(&self) -> bool {
        let Some(told) = self.number(148..156) else { return false };
        let own = &self.0[148..156];
        let sum = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        let spaces = 8 * u64::from(b' ');
        let unsigned = sum(&self.0) - sum(own) + spaces;
        let large = |bytes: &[u8]| bytes.iter().filter(|byte| **byte >= 0x80).count() as u64;
        told == unsigned || told.checked_add(256 * (large(&self.0) - large(own))) == Some(unsigned)
    }

    fn number(&self, field: std::ops::Range<usize>) -> Option<u64> {
        number(&self.0[field])
    }

    fn name(&self) -> Vec<u8> {
        let name = until_nul(&self.0[..100]);
        let prefix = until_nul(&self.0[345..500]);
        // Only POSIX headers have the prefix; GNU headers have times there.
        let is_posix = self.0[257..263] == *b"ustar\0";
        if prefix.is_empty() || !is_posix { name.to_vec() } else { [prefix, b"/", name].concat() }
    }
}

/// Parses octal digits, or binary if the first bit is set.
fn number(field: &[u8]) -> Option<u64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        return rest.iter().try_fold(u64::from(first & 0x7f), |number, byte| {
            number.checked_mul(256).map(|number| number | u64::from(*byte))
        });
    }
    let digits = until_nul(field).trim_ascii();
    digits.iter().try_fold(0_u64, |number, byte| match byte {
        b'0'..=b'7' => number.checked_mul(8).map(|number| number | u64::from(byte - b'0')),
        _ => None,
    })
}

fn decimal(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.trim().parse().ok()
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}
