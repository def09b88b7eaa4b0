//! Reports as both stores keep them: packed. What is kept was checked before it was written; a row that was changed by hand
//! gives an error, not a panic.

use std::cell::RefCell;
use std::io;

use zstd::bulk::Compressor;

/// Level 1 packs logs nearly as well as level 3 and takes half the time.
const PACKING_LEVEL: i32 = 1;
/// What a stored report can be at most, unpacked; reports are bounded when they come in.
const MAX_REPORT: usize = 64 << 20;

thread_local! {
    /// To make one costs more than to pack a report with it.
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
