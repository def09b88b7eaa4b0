//! Decompression of request bodies, with a size limit.

use std::borrow::Cow;
use std::io::{self, Read};

use flate2::read::MultiGzDecoder;

/// A report is a few kilobytes; a frame that needs a window above 8 MiB does not contain a report.
const MAX_WINDOW_LOG: u32 = 23;

/// Compression of a body according to `Content-Encoding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    None,
    Gzip,
    Zstd,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum UnpackError {
    #[error("`{0}` is not a known content encoding: use `gzip`, `zstd` or none")]
    Unknown(String),
    #[error("it unpacks to more than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("it cannot be unpacked")]
    Damaged(#[source] io::Error),
}

pub(crate) fn unpack(packing: Packing, body: &[u8], limit: usize) -> Result<Cow<'_, [u8]>, UnpackError> {
    match packing {
        Packing::None if body.len() > limit => Err(UnpackError::TooLarge { limit }),
        Packing::None => Ok(Cow::Borrowed(body)),
        Packing::Gzip => read(MultiGzDecoder::new(body), limit).map(Cow::Owned),
        Packing::Zstd => {
            let mut decoder = zstd::Decoder::with_buffer(body).map_err(UnpackError::Damaged)?;
            decoder.window_log_max(MAX_WINDOW_LOG).map_err(UnpackError::Damaged)?;
            read(decoder, limit).map(Cow::Owned)
        }
    }
}

fn read(reader: impl Read, limit: usize) -> Result<Vec<u8>, UnpackError> {
    let mut bytes = Vec::new();
    reader.take(limit as u64 + 1).read_to_end(&mut bytes).map_err(UnpackError::Damaged)?;
    if bytes.len() > limit { Err(UnpackError::TooLarge { limit }) } else { Ok(bytes) }
}

// === impl Packing ===

impl Packing {
    pub(crate) fn named(name: Option<&str>) -> Result<Self, UnpackError> {
        match name.map(str::trim) {
            None | Some("" | "identity") => Ok(Self::None),
            Some("gzip" | "x-gzip") => Ok(Self::Gzip),
            Some("zstd") => Ok(Self::Zstd),
            Some(other) => Err(UnpackError::Unknown(other.chars().take(40).collect())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn every_packing_gives_what_was_packed_and_no_more_than_allowed() {
        let text = b"a line\n".repeat(100);
        let zstd = zstd::bulk::compress(&text, 3).unwrap();
        for (packing, body) in
            [(Packing::None, text.clone()), (Packing::Gzip, gzip(&text)), (Packing::Zstd, zstd)]
        {
            assert_eq!(unpack(packing, &body, text.len()).unwrap(), text);
            let refused = unpack(packing, &body, text.len() - 1);
            assert!(matches!(refused, Err(UnpackError::TooLarge { .. })), "{packing:?}");
        }
    }

    #[test]
    fn bombs_do_not_go_off() {
        let zeros = vec![0; 64 << 20];
        let bombs =
            [(Packing::Gzip, gzip(&zeros)), (Packing::Zstd, zstd::bulk::compress(&zeros, 3).unwrap())];
        for (packing, bomb) in bombs {
            assert!(bomb.len() < 100 << 10);
            assert!(matches!(unpack(packing, &bomb, 1 << 20), Err(UnpackError::TooLarge { .. })));
        }
        // A frame header that requests a window of 2 GiB.
        let greedy = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0x00, 0x00];
        assert!(matches!(unpack(Packing::Zstd, &greedy, 1 << 20), Err(UnpackError::Damaged(_))));
    }
}
