//! Compression of stored reports, shared by both stores.
//!
//! Stored data was validated before it was written; a manually changed row causes an error, not a panic.

use std::cell::RefCell;
use std::io;

use zstd::bulk::Compressor;

/// Level 1 compresses logs almost as well as level 3 in half the time.
const PACKING_LEVEL: i32 = 1;
/// Maximum decompressed size of a stored report; reports have a smaller limit when they are received.
const MAX_REPORT: usize = 64 << 20;

thread_local! {
    /// Creating a compressor costs more than compressing a report with it.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
}

pub(super) fn pack(report: &str) -> io::Result<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|kept| {
        let compressor = match kept {
            Some(compressor) => compressor,
            None => kept.insert(Compressor::new(PACKING_LEVEL)?),
        };
        compressor.compress(report.as_bytes())
    })
}

pub(super) fn unpack(packed: &[u8]) -> io::Result<String> {
    let bytes = zstd::bulk::decompress(packed, MAX_REPORT)?;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}
