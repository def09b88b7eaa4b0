//! Writer for the export format.
//!
//! An entry is a block of fields followed by an empty line. A field of printable text is the line `NAME=value`. Any
//! other field is the line `NAME`, eight bytes of length (little-endian), the value, and a line feed. The entry's
//! address comes first, in fields whose names start with two underscores.

use crate::cursor::{Cursor, push_decimal};
use crate::field::Field;
use crate::id128::Id128;

/// Cached digits of the IDs, which rarely change from one entry to the next.
#[derive(Default)]
pub(crate) struct Ids {
    seqnum: Option<(Id128, [u8; 32])>,
    boot: Option<(Id128, [u8; 32])>,
}

// === impl Ids ===

impl Ids {
    fn digits(known: &mut Option<(Id128, [u8; 32])>, id: Id128) -> [u8; 32] {
        match known {
            Some((last, digits)) if *last == id => *digits,
            _ => known.insert((id, id.digits())).1,
        }
    }
}

/// Appends the lines that every entry starts with.
pub(crate) fn push_address(out: &mut Vec<u8>, cursor: &Cursor, ids: &mut Ids) {
    let seqnum_id = Ids::digits(&mut ids.seqnum, cursor.seqnum_id);
    let boot_id = Ids::digits(&mut ids.boot, cursor.boot_id);
    out.extend_from_slice(b"__CURSOR=");
    cursor.push_with(out, &seqnum_id, &boot_id);
    out.extend_from_slice(b"\n__REALTIME_TIMESTAMP=");
    push_decimal(out, cursor.realtime);
    out.extend_from_slice(b"\n__MONOTONIC_TIMESTAMP=");
    push_decimal(out, cursor.monotonic);
    out.extend_from_slice(b"\n_BOOT_ID=");
    out.extend_from_slice(&boot_id);
    out.push(b'\n');
}

/// Appends a field that is not text.
pub(crate) fn push_binary(out: &mut Vec<u8>, field: Field<'_>) {
    out.extend_from_slice(field.name_bytes());
    out.push(b'\n');
    out.extend_from_slice(&(field.value().len() as u64).to_le_bytes());
    out.extend_from_slice(field.value());
    out.push(b'\n');
}
