//! Minimal reader of squashfs 4.0 that opens an image without mounting it: the superblock, directories, and one small
//! file.
//!
//! ```text
//! superblock │ data blocks and fragments │ inodes │ folders │ fragments' places │ …
//!     │                                     ▲         ▲
//!     └─ root inode ────────────────────────┘         │
//!        inode of a folder ── place of its list ──────┘ ── names, each with the place of its inode
//! ```
//!
//! Everything but data is in metadata blocks of 8 KiB, each compressed separately. The constants below limit all
//! reads and allocations, whatever sizes an image claims.

use std::io::{self, Read, Seek, SeekFrom};

/// The first four bytes of an image.
pub const MAGIC: [u8; 4] = *b"hsqs";

const SUPERBLOCK_BYTES: usize = 96;
/// Size of a decompressed metadata block.
const METADATA_BYTES: usize = 8192;
/// The largest block the format allows.
const MAX_BLOCK_BYTES: u32 = 1024 * 1024;
/// Size limit of a directory list: enough for the names of a hundred thousand files.
const MAX_FOLDER_BYTES: u32 = 8 * 1024 * 1024;
/// Limit for entries after one header of a directory list.
const MAX_RUN: u32 = 256;
/// The longest name the format allows.
const MAX_NAME_BYTES: usize = 256;
/// Memory limit for decompressing a block, whatever window it claims: blocks are small.
const MAX_XZ_KIB: u32 = 64 * 1024;
const MAX_ZSTD_WINDOW_LOG: u32 = 23;
/// Flag in a size on disk: the block is not compressed.
const METADATA_PLAIN: u16 = 1 << 15;
const DATA_PLAIN: u32 = 1 << 24;
/// Marks a missing fragment or table.
const NONE_32: u32 = u32::MAX;
const NONE_64: u64 = u64::MAX;

/// The reason why an image cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SquashfsError {
    #[error("cannot read the image")]
    Read(#[source] io::Error),
    #[error("its {part} is broken")]
    Broken { part: &'static str },
    #[error("it is cut off: it has {found} of {claimed} bytes")]
    CutOff { found: u64, claimed: u64 },
    #[error("it is squashfs {major}.{minor}; 4.0 is known")]
    Version { major: u16, minor: u16 },
    #[error("it is compressed in a way we do not know (number {number})")]
    Compression { number: u16 },
    #[error("a block of it cannot be decompressed")]
    Decompress(#[source] io::Error),
    #[error("its {part} is larger than we read")]
    TooLarge { part: &'static str },
}

/// An open image.
#[derive(Debug)]
pub struct Squashfs<R> {
    image: R,
    compression: Compression,
    block_bytes: u32,
    root: u64,
    inodes: u64,
    folders: u64,
    fragments: u64,
    fragment_count: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    Gzip,
    Xz,
    Lz4,
    Zstd,
}

/// The parts of an inode that this reader needs.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Inode {
    Folder { list: u32, at: u16, bytes: u32 },
    File { start: u64, bytes: u64, fragment: u32, at: u32, blocks: Vec<u32> },
    Other,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    name: Vec<u8>,
    inode: u64,
}

/// Reads consecutive metadata blocks.
struct Metadata<'a, R> {
    image: &'a mut R,
    compression: Compression,
    /// Offset of the next block.
    next: u64,
    block: Vec<u8>,
    at: usize,
}

// === impl Squashfs ===

impl<R: Read + Seek> Squashfs<R> {
    /// Reads the superblock and everything that a kernel reads before it mounts.
    pub fn open(mut image: R) -> Result<Self, SquashfsError> {
        let found = image.seek(SeekFrom::End(0)).map_err(SquashfsError::Read)?;
        let block = bytes_at(&mut image, 0, SUPERBLOCK_BYTES, "superblock")?;
        let fields = Fields(&block);
        let (block_bytes, log) = (fields.u32(12), fields.u16(22));
        let (major, minor) = (fields.u16(28), fields.u16(30));
        let claimed = fields.u64(40);
        if block[..4] != MAGIC {
            return Err(SquashfsError::Broken { part: "superblock" });
        }
        if (major, minor) != (4, 0) {
            return Err(SquashfsError::Version { major, minor });
        }
        if claimed > found {
            return Err(SquashfsError::CutOff { found, claimed });
        }
        if !(4096..=MAX_BLOCK_BYTES).contains(&block_bytes)
            || 1_u32.checked_shl(u32::from(log)) != Some(block_bytes)
        {
            return Err(SquashfsError::Broken { part: "superblock" });
        }
        let compression = Compression::of(fields.u16(20))?;
        let (ids, inodes, folders, fragments) =
            (fields.u64(48), fields.u64(64), fields.u64(72), fields.u64(80));
        let ordered = inodes < folders && folders <= claimed && ids < claimed;
        let fragment_count = fields.u32(16);
        if !ordered
            || fields.u16(26) == 0
            || (fragment_count > 0 && fragments >= claimed && fragments != NONE_64)
        {
            return Err(SquashfsError::Broken { part: "superblock" });
        }
        let root = fields.u64(32);
        let mut open =
            Self { image, compression, block_bytes, root, inodes, folders, fragments, fragment_count };
        // A kernel that cannot read the table of owners does not mount the image.
        let first = Fields(&bytes_at(&mut open.image, ids, 8, "table of owners")?).u64(0);
        let mut owners = open.metadata(first);
        owners.take(4)?;
        match open.inode(open.root)? {
            Inode::Folder { .. } => Ok(open),
            _ => Err(SquashfsError::Broken { part: "root folder" }),
        }
    }

    /// Returns the names in the root directory.
    pub fn top(&mut self) -> Result<Vec<String>, SquashfsError> {
        let root = self.inode(self.root)?;
        let names =
            self.list(&root)?.into_iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned());
        Ok(names.collect())
    }

    /// Returns the content of a plain file, if the path names one.
    pub fn file(&mut self, path: &str, limit: u32) -> Result<Option<Vec<u8>>, SquashfsError> {
        let mut inode = self.inode(self.root)?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let found = self.list(&inode)?.into_iter().find(|entry| entry.name == name.as_bytes());
            let Some(entry) = found else { return Ok(None) };
            inode = self.inode(entry.inode)?;
        }
        match inode {
            Inode::File { start, bytes, fragment, at, blocks } => {
                if bytes > u64::from(limit) {
                    return Err(SquashfsError::TooLarge { part: "file" });
                }
                let bytes = u32::try_from(bytes).map_err(|_| SquashfsError::TooLarge { part: "file" })?;
                self.content(start, bytes, fragment, at, &blocks).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn metadata(&mut self, start: u64) -> Metadata<'_, R> {
        let compression = self.compression;
        Metadata { image: &mut self.image, compression, next: start, block: Vec::new(), at: 0 }
    }

    fn inode(&mut self, reference: u64) -> Result<Inode, SquashfsError> {
        let broken = SquashfsError::Broken { part: "table of inodes" };
        let start = self.inodes.checked_add(reference >> 16);
        let Some(start) = start.filter(|start| *start < self.folders) else { return Err(broken) };
        let block_bytes = self.block_bytes;
        let mut metadata = self.metadata(start);
        metadata.skip(usize::from(u16::try_from(reference & 0xffff).unwrap_or(u16::MAX)))?;
        let head = metadata.take(16)?;
        match Fields(&head).u16(0) {
            1 => {
                let rest = metadata.take(16)?;
                let fields = Fields(&rest);
                Ok(Inode::Folder { list: fields.u32(0), bytes: u32::from(fields.u16(8)), at: fields.u16(10) })
            }
            8 => {
                let rest = metadata.take(24)?;
                let fields = Fields(&rest);
                Ok(Inode::Folder { bytes: fields.u32(4), list: fields.u32(8), at: fields.u16(18) })
            }
            2 => {
                let rest = metadata.take(16)?;
                let fields = Fields(&rest);
                let (start, bytes) = (u64::from(fields.u32(0)), u64::from(fields.u32(12)));
                let (fragment, at) = (fields.u32(4), fields.u32(8));
                let blocks = metadata.blocks(bytes, block_bytes, fragment)?;
                Ok(Inode::File { start, bytes, fragment, at, blocks })
            }
            9 => {
                let rest = metadata.take(40)?;
                let fields = Fields(&rest);
                let (start, bytes) = (fields.u64(0), fields.u64(8));
                let (fragment, at) = (fields.u32(28), fields.u32(32));
                let blocks = metadata.blocks(bytes, block_bytes, fragment)?;
                Ok(Inode::File { start, bytes, fragment, at, blocks })
            }
            3..=7 | 10..=14 => Ok(Inode::Other),
            _ => Err(broken),
        }
    }

    /// Returns the entries of a directory; any other inode has none.
    fn list(&mut self, inode: &Inode) -> Result<Vec<Entry>, SquashfsError> {
        let Inode::Folder { list, at, bytes } = inode else { return Ok(Vec::new()) };
        // The format counts three bytes too many, for `.` and `..`.
        let mut left = bytes.saturating_sub(3);
        if left > MAX_FOLDER_BYTES {
            return Err(SquashfsError::TooLarge { part: "folder" });
        }
        let broken = || SquashfsError::Broken { part: "folder" };
        let start = self.folders.checked_add(u64::from(*list)).ok_or_else(broken)?;
        let mut metadata = self.metadata(start);
        metadata.skip(usize::from(*at))?;
        let mut entries = Vec::new();
        while left > 0 {
            let head = metadata.take(12)?;
            let count = Fields(&head).u32(0).saturating_add(1);
            let block = u64::from(Fields(&head).u32(4));
            left = left.checked_sub(12).ok_or_else(broken)?;
            if count > MAX_RUN {
                return Err(broken());
            }
            for _ in 0..count {
                let head = metadata.take(8)?;
                let fields = Fields(&head);
                let (at, length) = (u64::from(fields.u16(0)), usize::from(fields.u16(6)) + 1);
                if length > MAX_NAME_BYTES {
                    return Err(broken());
                }
                let name = metadata.take(length)?;
                let used = u32::try_from(8 + length).map_err(|_| broken())?;
                left = left.checked_sub(used).ok_or_else(broken)?;
                entries.push(Entry { name, inode: block << 16 | at });
            }
        }
        Ok(entries)
    }

    fn content(
        &mut self,
        start: u64,
        bytes: u32,
        fragment: u32,
        at: u32,
        blocks: &[u32],
    ) -> Result<Vec<u8>, SquashfsError> {
        let wanted = bytes as usize;
        let mut content = Vec::new();
        let mut place = start;
        for size in blocks {
            let stored = size & !DATA_PLAIN;
            if stored == 0 {
                // A sparse block.
                content.resize((content.len() + self.block_bytes as usize).min(wanted), 0);
                continue;
            }
            content.extend(self.block(place, *size)?);
            place = place.saturating_add(u64::from(stored));
        }
        if fragment != NONE_32 {
            let (place, size) = self.fragment(fragment)?;
            let block = self.block(place, size)?;
            let rest = wanted.saturating_sub(content.len());
            let tail = (at as usize).checked_add(rest).and_then(|end| block.get(at as usize..end));
            content.extend(tail.ok_or(SquashfsError::Broken { part: "fragment" })?);
        }
        if content.len() == wanted { Ok(content) } else { Err(SquashfsError::Broken { part: "file" }) }
    }

    /// Returns the offset of a fragment, and its size in the encoding of the format.
    fn fragment(&mut self, number: u32) -> Result<(u64, u32), SquashfsError> {
        if number >= self.fragment_count {
            return Err(SquashfsError::Broken { part: "table of fragments" });
        }
        let offset = u64::from(number) * 16;
        let (block, within) = (offset / METADATA_BYTES as u64, offset % METADATA_BYTES as u64);
        let place = self.fragments.saturating_add(block * 8);
        let place = Fields(&bytes_at(&mut self.image, place, 8, "table of fragments")?).u64(0);
        let mut metadata = self.metadata(place);
        metadata.skip(usize::try_from(within).unwrap_or(METADATA_BYTES))?;
        let entry = metadata.take(16)?;
        Ok((Fields(&entry).u64(0), Fields(&entry).u32(8)))
    }

    fn block(&mut self, place: u64, size: u32) -> Result<Vec<u8>, SquashfsError> {
        let stored = size & !DATA_PLAIN;
        if stored > self.block_bytes {
            return Err(SquashfsError::Broken { part: "block" });
        }
        let bytes = bytes_at(&mut self.image, place, stored as usize, "block")?;
        if size & DATA_PLAIN != 0 {
            return Ok(bytes);
        }
        self.compression.expand(&bytes, self.block_bytes as usize)
    }
}

// === impl Metadata ===

impl<R: Read + Seek> Metadata<'_, R> {
    fn take(&mut self, count: usize) -> Result<Vec<u8>, SquashfsError> {
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            if self.at >= self.block.len() {
                self.refill()?;
            }
            let end = self.block.len().min(self.at + count - taken.len());
            taken.extend_from_slice(&self.block[self.at..end]);
            self.at = end;
        }
        Ok(taken)
    }

    fn skip(&mut self, count: usize) -> Result<(), SquashfsError> {
        self.take(count).map(drop)
    }

    /// Returns the sizes of the blocks of a file.
    fn blocks(&mut self, bytes: u64, block_bytes: u32, fragment: u32) -> Result<Vec<u32>, SquashfsError> {
        let block_bytes = u64::from(block_bytes);
        let count = if fragment == NONE_32 { bytes.div_ceil(block_bytes) } else { bytes / block_bytes };
        // Only small files are ever read, so the blocks of a large one are skipped.
        if count > 64 {
            return Ok(Vec::new());
        }
        let list = self.take(usize::try_from(count).unwrap_or(0) * 4)?;
        Ok(list.chunks_exact(4).map(|chunk| Fields(chunk).u32(0)).collect())
    }

    fn refill(&mut self) -> Result<(), SquashfsError> {
        let broken = || SquashfsError::Broken { part: "metadata" };
        let head = Fields(&bytes_at(self.image, self.next, 2, "metadata")?).u16(0);
        let stored = usize::from(head & !METADATA_PLAIN);
        if stored == 0 || stored > METADATA_BYTES {
            return Err(broken());
        }
        let place = self.next.checked_add(2).ok_or_else(broken)?;
        let bytes = bytes_at(self.image, place, stored, "metadata")?;
        self.block = match head & METADATA_PLAIN {
            0 => self.compression.expand(&bytes, METADATA_BYTES)?,
            _ => bytes,
        };
        if self.block.is_empty() {
            return Err(broken());
        }
        self.at = 0;
        self.next = place.checked_add(stored as u64).ok_or_else(broken)?;
        Ok(())
    }
}

// === impl Compression ===

impl Compression {
    fn of(number: u16) -> Result<Self, SquashfsError> {
        match number {
            1 => Ok(Self::Gzip),
            4 => Ok(Self::Xz),
            5 => Ok(Self::Lz4),
            6 => Ok(Self::Zstd),
            number => Err(SquashfsError::Compression { number }),
        }
    }

    /// Decompresses a block, up to the size limit.
    fn expand(self, bytes: &[u8], limit: usize) -> Result<Vec<u8>, SquashfsError> {
        let failed = SquashfsError::Decompress;
        let read = |reader: &mut dyn Read| {
            let mut out = Vec::new();
            reader.take(limit as u64 + 1).read_to_end(&mut out).map(|_| out)
        };
        let out = match self {
            Self::Gzip => read(&mut flate2::read::ZlibDecoder::new(bytes)),
            Self::Xz => read(&mut lzma_rust2::XzReader::new_mem_limit(bytes, true, MAX_XZ_KIB)),
            Self::Lz4 => lz4_flex::block::decompress(bytes, limit).map_err(io::Error::other),
            Self::Zstd => zstd::stream::read::Decoder::with_buffer(bytes).and_then(|mut decoder| {
                decoder.window_log_max(MAX_ZSTD_WINDOW_LOG)?;
                read(&mut decoder)
            }),
        };
        let out = out.map_err(failed)?;
        if out.len() > limit { Err(SquashfsError::TooLarge { part: "block" }) } else { Ok(out) }
    }
}

/// Reads little-endian numbers; missing bytes are zero.
struct Fields<'a>(&'a [u8]);

// === impl Fields ===

impl Fields<'_> {
    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.array(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.array(at))
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.array(at))
    }
}

fn bytes_at(
    image: &mut (impl Read + Seek),
    place: u64,
    count: usize,
    part: &'static str,
) -> Result<Vec<u8>, SquashfsError> {
    image.seek(SeekFrom::Start(place)).map_err(|_| SquashfsError::Broken { part })?;
    let mut bytes = vec![0; count];
    match image.read_exact(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(SquashfsError::Broken { part }),
        Err(error) => Err(SquashfsError::Read(error)),
    }
}
