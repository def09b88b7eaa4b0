use crate::Id128;
use crate::object::{u32_at, u64_at};

/// Size of the header in every version; later versions append to it.
pub(crate) const HEADER_BYTES: usize = 208;

/// Maximum size of a header. Each version of systemd adds at most a few dozen bytes, so headers stay within a page for
/// a long time.
const MAX_HEADER: u64 = 4096;

const SIGNATURE: &[u8; 8] = b"LPKSHHRH";

// Features without which a file cannot be read. The compression bits only state which compression objects may have.
const XZ: u32 = 1;
const LZ4: u32 = 2;
const KEYED_HASH: u32 = 4;
const ZSTD: u32 = 8;
const COMPACT: u32 = 16;
const KNOWN: u32 = XZ | LZ4 | KEYED_HASH | ZSTD | COMPACT;

/// A feature that readers may ignore: the file contains seals (`TAG` objects) against tampering.
const SEALED: u32 = 1;

/// The header of a journal file.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub file_id: Id128,
    pub machine_id: Id128,
    pub seqnum_id: Id128,
    pub state: State,
    /// Offsets have 32 bits, and entries do not repeat the fields' hashes.
    pub compact: bool,
    /// Fields are placed by a hash keyed with `file_id`.
    pub keyed_hash: bool,
    pub sealed: bool,
    pub entries: u64,
    pub first_seqnum: u64,
    pub last_seqnum: u64,
    /// Microseconds since 1970.
    pub first_realtime: u64,
    pub last_realtime: u64,
    /// Size of the header itself; objects start after it.
    pub(crate) size: u64,
    /// Size of everything after the header.
    pub(crate) arena: u64,
    pub(crate) data_table: Table,
    pub(crate) field_table: Table,
    pub(crate) entry_array: u64,
    /// The last object written; later ones have higher offsets.
    pub(crate) tail_object: u64,
}

/// Whether a file is being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Closed properly; may be opened for writing again.
    Offline,
    /// Being written, or its writer crashed.
    Online,
    /// Closed permanently.
    Archived,
    /// An unknown value: the header is damaged, but the rest may be readable.
    Unknown(u8),
}

/// A hash table: the offset of its buckets and their size in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Reason for rejecting a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotAJournal,
    Unsupported(u32),
}

// === impl Header ===

impl Header {
    pub(crate) fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Refusal> {
        if &bytes[..8] != SIGNATURE {
            return Err(Refusal::NotAJournal);
        }
        let compatible = u32_at(bytes, 8);
        let incompatible = u32_at(bytes, 12);
        if incompatible & !KNOWN != 0 {
            return Err(Refusal::Unsupported(incompatible & !KNOWN));
        }
        let size = u64_at(bytes, 88);
        if !(HEADER_BYTES as u64..=MAX_HEADER).contains(&size) {
            return Err(Refusal::NotAJournal);
        }
        Ok(Self {
            file_id: id_at(bytes, 24),
            machine_id: id_at(bytes, 40),
            seqnum_id: id_at(bytes, 72),
            state: match bytes[16] {
                0 => State::Offline,
                1 => State::Online,
                2 => State::Archived,
                other => State::Unknown(other),
            },
            compact: incompatible & COMPACT != 0,
            keyed_hash: incompatible & KEYED_HASH != 0,
            sealed: compatible & SEALED != 0,
            entries: u64_at(bytes, 152),
            last_seqnum: u64_at(bytes, 160),
            first_seqnum: u64_at(bytes, 168),
            first_realtime: u64_at(bytes, 184),
            last_realtime: u64_at(bytes, 192),
            size,
            arena: u64_at(bytes, 96),
            data_table: Table { offset: u64_at(bytes, 104), bytes: u64_at(bytes, 112) },
            field_table: Table { offset: u64_at(bytes, 120), bytes: u64_at(bytes, 128) },
            entry_array: u64_at(bytes, 176),
            tail_object: u64_at(bytes, 136),
        })
    }
}

fn id_at(bytes: &[u8], offset: usize) -> Id128 {
    let mut id = [0; 16];
    id.copy_from_slice(&bytes[offset..offset + 16]);
    Id128::from_bytes(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(incompatible: u32) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(SIGNATURE);
        bytes[12..16].copy_from_slice(&incompatible.to_le_bytes());
        bytes[88..96].copy_from_slice(&264_u64.to_le_bytes());
        bytes
    }

    #[test]
    fn flags_are_read_and_unknown_ones_refused() {
        let parsed = Header::parse(&header(KEYED_HASH | COMPACT | ZSTD)).unwrap();
        assert!(parsed.compact && parsed.keyed_hash && !parsed.sealed);
        assert_eq!(parsed.state, State::Offline);
        assert_eq!(Header::parse(&header(64 | COMPACT)).unwrap_err(), Refusal::Unsupported(64));
    }

    #[test]
    fn bytes_that_are_not_a_journal_are_refused() {
        let mut bytes = header(0);
        bytes[0] = b'X';
        assert_eq!(Header::parse(&bytes).unwrap_err(), Refusal::NotAJournal);
        let mut short = header(0);
        short[88] = 8;
        short[89] = 0;
        assert_eq!(Header::parse(&short).unwrap_err(), Refusal::NotAJournal);
    }
}
