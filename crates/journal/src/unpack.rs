//! Decompression of fields, with limits.

use std::io::Read;

use lzma_rust2::XzReader;
use zstd::zstd_safe;

use crate::damage::DamageKind;
use crate::object::{MAX_DATA_BYTES, u64_at};

const XZ: u8 = 1;
const LZ4: u8 = 2;
const ZSTD: u8 = 4;
const ANY: u8 = XZ | LZ4 | ZSTD;

/// Maximum size of a buffer that is kept after a large field.
const KEPT: usize = 1024 * 1024;

/// Maximum compression ratio of LZ4; a header that announces more is invalid, and no memory is allocated for it.
const LZ4_RATIO: u64 = 255;

/// journald uses a dictionary of 1 MiB; this also permits the largest preset of the `xz` program.
const XZ_MEMORY_KIB: u32 = 80 * 1024;

/// Reusable state of the decompressors.
#[derive(Default)]
pub(crate) struct Unpacker {
    zstd: Option<zstd_safe::DCtx<'static>>,
    buffer: Vec<u8>,
}

pub(crate) fn is_packed(packing: u8) -> bool {
    packing & ANY != 0
}

// === impl Unpacker ===

impl Unpacker {
    /// Decompresses into a buffer that the next call overwrites.
    pub(crate) fn unpack(&mut self, packing: u8, packed: &[u8]) -> Result<&[u8], DamageKind> {
        if self.buffer.capacity() > KEPT {
            self.buffer = Vec::new();
        }
        self.buffer.clear();
        match packing & ANY {
            XZ => self.xz(packed)?,
            LZ4 => self.lz4(packed)?,
            ZSTD => self.zstd(packed)?,
            // Writers never compress twice.
            _ => return Err(DamageKind::BadCompression),
        }
        Ok(&self.buffer)
    }

    /// Returns the last decompressed field.
    pub(crate) fn last(&self) -> &[u8] {
        &self.buffer
    }

    fn xz(&mut self, packed: &[u8]) -> Result<(), DamageKind> {
        let mut reader = XzReader::new_mem_limit(packed, false, XZ_MEMORY_KIB).take(MAX_DATA_BYTES + 1);
        reader.read_to_end(&mut self.buffer).map_err(|_| DamageKind::BadCompression)?;
        if self.buffer.len() as u64 > MAX_DATA_BYTES {
            return Err(DamageKind::TooLarge);
        }
        Ok(())
    }

    fn lz4(&mut self, packed: &[u8]) -> Result<(), DamageKind> {
        // Eight bytes with the size precede the block.
        let Some((_, block)) = packed.split_first_chunk::<8>() else {
            return Err(DamageKind::BadCompression);
        };
        let size = self.reserve(u64_at(packed, 0), block.len() as u64 * LZ4_RATIO)?;
        let n = lz4_flex::block::decompress_into(block, &mut self.buffer)
            .map_err(|_| DamageKind::BadCompression)?;
        if n == size { Ok(()) } else { Err(DamageKind::BadCompression) }
    }

    fn zstd(&mut self, packed: &[u8]) -> Result<(), DamageKind> {
        let size =
            zstd_safe::get_frame_content_size(packed).ok().flatten().ok_or(DamageKind::BadCompression)?;
        // Only the first frame counts, as in journald's own reader; a damaged length may add bytes after it.
        let frame = zstd_safe::find_frame_compressed_size(packed).map_err(|_| DamageKind::BadCompression)?;
        let frame = packed.get(..frame).ok_or(DamageKind::BadCompression)?;
        let size = self.reserve(size, u64::MAX)?;
        let context = self.zstd.get_or_insert_with(zstd_safe::DCtx::create);
        let n =
            context.decompress(self.buffer.as_mut_slice(), frame).map_err(|_| DamageKind::BadCompression)?;
        if n == size { Ok(()) } else { Err(DamageKind::BadCompression) }
    }

    /// Reserves memory for an announced size, if it is possible and within limits.
    fn reserve(&mut self, promised: u64, possible: u64) -> Result<usize, DamageKind> {
        if promised > possible || promised == 0 {
            return Err(DamageKind::BadCompression);
        }
        if promised > MAX_DATA_BYTES {
            return Err(DamageKind::TooLarge);
        }
        let size = usize::try_from(promised).map_err(|_| DamageKind::TooLarge)?;
        self.buffer.resize(size, 0);
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use lzma_rust2::{XzOptions, XzWriter};

    use super::*;

    fn sample() -> Vec<u8> {
        b"MESSAGE=".iter().copied().chain((0..97).cycle().take(5000)).collect()
    }

    fn pack(packing: u8, bytes: &[u8]) -> Vec<u8> {
        match packing {
            XZ => {
                let mut writer = XzWriter::new(Vec::new(), XzOptions::with_preset(1)).unwrap();
                writer.write_all(bytes).unwrap();
                writer.finish().unwrap()
            }
            LZ4 => [&(bytes.len() as u64).to_le_bytes()[..], &lz4_flex::block::compress(bytes)].concat(),
            _ => zstd::bulk::compress(bytes, 1).unwrap(),
        }
    }

    #[test]
    fn each_packing_gives_the_field_back() {
        let mut unpacker = Unpacker::default();
        for packing in [XZ, LZ4, ZSTD] {
            assert_eq!(
                unpacker.unpack(packing, &pack(packing, &sample())).unwrap(),
                sample(),
                "packing {packing}"
            );
        }
    }

    #[test]
    fn cut_or_altered_bytes_are_damage_and_never_more() {
        let mut unpacker = Unpacker::default();
        for packing in [XZ, LZ4, ZSTD] {
            let packed = pack(packing, &sample());
            for cut in 0..packed.len() {
                assert!(unpacker.unpack(packing, &packed[..cut]).is_err(), "packing {packing} cut at {cut}");
            }
            for at in 0..packed.len() {
                let mut altered = packed.clone();
                altered[at] ^= 0x41;
                // Some changes are undetectable by design (no checksum); they must only be harmless.
                let _ = unpacker.unpack(packing, &altered).map(<[u8]>::len);
            }
        }
    }

    #[test]
    fn a_bomb_is_refused_before_it_takes_memory() {
        let mut unpacker = Unpacker::default();
        let bomb = zstd::bulk::compress(&vec![0; 64 * 1024 * 1024 + 1], 1).unwrap();
        assert_eq!(unpacker.unpack(ZSTD, &bomb), Err(DamageKind::TooLarge));
        let mut lie = (MAX_DATA_BYTES - 1).to_le_bytes().to_vec();
        lie.extend([0x10, b'x']);
        assert_eq!(unpacker.unpack(LZ4, &lie), Err(DamageKind::BadCompression));
        assert!(unpacker.buffer.capacity() <= KEPT);
    }

    #[test]
    fn two_packings_at_once_are_refused() {
        assert_eq!(Unpacker::default().unpack(XZ | ZSTD, b"x"), Err(DamageKind::BadCompression));
    }
}
