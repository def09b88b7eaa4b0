//! The directory of a zip archive in a seekable file.
//!
//! The central directory at the end is authoritative: local headers may contain anything.

use std::collections::HashSet;
use std::io::{self, Read, Seek, SeekFrom};

/// The end record is the last 22 bytes, before a comment of at most 64 KiB.
const END_SEARCH: u64 = 22 + 65_535;
/// Only the start of a larger directory is read; log bundles have a few MiB.
const MAX_DIRECTORY: u64 = 64 << 20;
/// Length of a local header before the name.
const LOCAL_LENGTH: u64 = 30;
const END: u32 = 0x0605_4b50;
const END_64_LOCATOR: u32 = 0x0706_4b50;
const END_64: u32 = 0x0606_4b50;
const ENTRY: u32 = 0x0201_4b50;
const LOCAL: u32 = 0x0403_4b50;
/// Marks a size that is stored in the 64-bit field.
const LARGE: u64 = 0xffff_ffff;

/// The central directory, read with [`next_entry`].
#[derive(Debug)]
pub struct Directory {
    pub bytes: Vec<u8>,
    /// Whether the directory is larger than `bytes`.
    pub is_cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    pub method: Method,
    pub is_link: bool,
    packed: u64,
    header: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Stored,
    Deflate,
    Zstd,
    Encrypted,
    Unknown(u16),
}

#[derive(Debug, thiserror::Error)]
pub enum ZipError {
    #[error("cannot read the zip archive")]
    Read(#[source] io::Error),
    #[error("the zip archive has no table of contents; it may be cut off")]
    NoEnd,
    #[error("the zip archive's table of contents is damaged")]
    Damaged,
    #[error("the zip archive's table of contents is larger than {} MiB; the rest is not read", MAX_DIRECTORY >> 20)]
    TooLarge,
}

/// Finds the central directory.
pub fn directory(archive: &mut (impl Read + Seek)) -> Result<Directory, ZipError> {
    let length = archive.seek(SeekFrom::End(0)).map_err(ZipError::Read)?;
    let tail_start = length.saturating_sub(END_SEARCH);
    let tail = read_at(archive, tail_start, length - tail_start)?;
    let end = (0..tail.len().saturating_sub(21)).rev().find(|at| u32_at(&tail, *at) == Some(END));
    let end = end.ok_or(ZipError::NoEnd)?;
    let mut size = u64::from(u32_at(&tail, end + 12).ok_or(ZipError::Damaged)?);
    let mut start = u64::from(u32_at(&tail, end + 16).ok_or(ZipError::Damaged)?);
    if let Some(locator) = end.checked_sub(20).filter(|at| u32_at(&tail, *at) == Some(END_64_LOCATOR)) {
        let place = u64_at(&tail, locator + 8).ok_or(ZipError::Damaged)?;
        let record = read_at(archive, place, 56)?;
        if u32_at(&record, 0) != Some(END_64) {
            return Err(ZipError::Damaged);
        }
        size = u64_at(&record, 40).ok_or(ZipError::Damaged)?;
        start = u64_at(&record, 48).ok_or(ZipError::Damaged)?;
    }
    if start.checked_add(size).is_none_or(|end| end > length) {
        return Err(ZipError::Damaged);
    }
    let bytes = read_at(archive, start, size.min(MAX_DIRECTORY))?;
    Ok(Directory { bytes, is_cut: size > MAX_DIRECTORY })
}

/// Returns the indexes of entries that overlap an earlier entry.
///
/// Archivers never create such entries; bombs consist of them, because each costs only a directory record.
/// Inspects at most `limit` entries.
pub fn overlapping(mut directory: &[u8], limit: usize) -> HashSet<u64> {
    let mut extents = Vec::new();
    while extents.len() < limit
        && let Ok(Some(entry)) = next_entry(&mut directory)
    {
        let end =
            entry.header.saturating_add(LOCAL_LENGTH + entry.name.len() as u64).saturating_add(entry.packed);
        extents.push((entry.header, end, extents.len() as u64));
    }
    extents.sort_unstable();
    let mut reached = 0;
    let mut overlapping = HashSet::new();
    for (start, end, number) in extents {
        if start < reached {
            overlapping.insert(number);
        }
        reached = reached.max(end);
    }
    overlapping
}

/// Removes and returns the next directory entry; `None` at the end.
pub fn next_entry(directory: &mut &[u8]) -> Result<Option<Entry>, ZipError> {
    if directory.is_empty() {
        return Ok(None);
    }
    let entry = parse_entry(directory).ok_or(ZipError::Damaged)?;
    Ok(Some(entry))
}

fn parse_entry(directory: &mut &[u8]) -> Option<Entry> {
    let bytes = *directory;
    if u32_at(bytes, 0)? != ENTRY {
        return None;
    }
    let flags = u16_at(bytes, 8)?;
    let method = match u16_at(bytes, 10)? {
        _ if flags & 1 == 1 => Method::Encrypted,
        0 => Method::Stored,
        8 => Method::Deflate,
        93 => Method::Zstd,
        other => Method::Unknown(other),
    };
    let (name_length, extra_length, comment_length) =
        (usize::from(u16_at(bytes, 28)?), usize::from(u16_at(bytes, 30)?), usize::from(u16_at(bytes, 32)?));
    let name = bytes.get(46..46 + name_length)?.to_vec();
    let mut extra = bytes.get(46 + name_length..46 + name_length + extra_length)?;
    let mut packed = u64::from(u32_at(bytes, 20)?);
    let mut header = u64::from(u32_at(bytes, 42)?);
    let unpacked = u64::from(u32_at(bytes, 24)?);
    // The 64-bit field contains only the values that did not fit, in a fixed order.
    while let (Some(id), Some(length)) = (u16_at(extra, 0), u16_at(extra, 2)) {
        let field = extra.get(4..4 + usize::from(length))?;
        if id == 1 {
            let mut at = if unpacked == LARGE { 8 } else { 0 };
            for value in [&mut packed, &mut header] {
                if *value == LARGE {
                    *value = u64_at(field, at)?;
                    at += 8;
                }
            }
        }
        extra = &extra[4 + usize::from(length)..];
    }
    let unix_mode = u32_at(bytes, 38)? >> 16;
    *directory = bytes.get(46 + name_length + extra_length + comment_length..)?;
    Some(Entry { name, method, is_link: unix_mode & 0o170_000 == 0o120_000, packed, header })
}

/// Opens the compressed bytes of an entry.
pub fn open<'a, A: Read + Seek>(archive: &'a mut A, entry: &Entry) -> Result<io::Take<&'a mut A>, ZipError> {
    let header = read_at(archive, entry.header, LOCAL_LENGTH)?;
    if u32_at(&header, 0) != Some(LOCAL) {
        return Err(ZipError::Damaged);
    }
    let lengths = u16_at(&header, 26).zip(u16_at(&header, 28)).ok_or(ZipError::Damaged)?;
    let start = entry
        .header
        .checked_add(LOCAL_LENGTH + u64::from(lengths.0) + u64::from(lengths.1))
        .ok_or(ZipError::Damaged)?;
    archive.seek(SeekFrom::Start(start)).map_err(ZipError::Read)?;
    Ok(archive.take(entry.packed))
}

fn read_at(archive: &mut (impl Read + Seek), start: u64, length: u64) -> Result<Vec<u8>, ZipError> {
    archive.seek(SeekFrom::Start(start)).map_err(ZipError::Read)?;
    let mut bytes = Vec::new();
    archive.take(length).read_to_end(&mut bytes).map_err(ZipError::Read)?;
    Ok(bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}
