//! Objects: the typed, length-prefixed records of a journal file.
//!
//! The checks here define damage. They are journalctl's, so that both print the same fields.

use std::io;

use crate::cursor::Cursor;
use crate::damage::{DamageKind, Fault};
use crate::header::Header;
use crate::id128::Id128;
use crate::source::Source;
use crate::window::Window;

/// Maximum size of a field, compressed or decompressed. journald itself truncates messages far below this. Larger
/// fields are core dumps of old systems, or attempts to exhaust memory.
pub(crate) const MAX_DATA_BYTES: u64 = 64 * 1024 * 1024;

/// Maximum number of fields in an entry. journald accepts 1024 fields from a sender and adds a few dozen, so it cannot
/// have written more.
const MAX_ENTRY_ITEMS: u64 = 8192;

/// Maximum timestamp in microseconds (a thousand years), above which writers fail.
const MAX_TIMESTAMP: u64 = 1 << 55;

const OBJECT_HEAD: usize = 16;
const ENTRY_HEAD: usize = 64;
const ARRAY_HEAD: usize = 24;
const FIELD_HEAD: usize = 40;

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Data = 1,
    Field = 2,
    Entry = 3,
    EntryArray = 6,
}

/// The layout of the objects in one file, from its header.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) header_size: u64,
    pub(crate) compact: bool,
    pub(crate) seqnum_id: Id128,
}

/// A reader for the objects of one file.
pub(crate) struct Objects<S> {
    window: Window<S>,
    layout: Layout,
}

/// A `DATA` object: one `NAME=value`, shared by all entries that have it.
pub(crate) struct Data<'a> {
    pub(crate) hash: u64,
    /// Offset of the next object in the same hash bucket.
    pub(crate) next_in_bucket: u64,
    /// Offset of the next value of the same field.
    pub(crate) next_of_field: u64,
    /// The entries with this value: the first one here, the others in a list of arrays.
    pub(crate) index: Index,
    pub(crate) packing: u8,
    pub(crate) payload: &'a [u8],
}

/// The entries of a list: `first` (if not 0), then those in the arrays from `array` on; `total` in all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Index {
    pub(crate) first: u64,
    pub(crate) array: u64,
    pub(crate) total: u64,
}

/// A `FIELD` object: one field name, and the first element in the list of its values.
pub(crate) struct FieldName<'a> {
    pub(crate) next_in_bucket: u64,
    pub(crate) first_data: u64,
    pub(crate) name: &'a [u8],
}

/// The head of an `ENTRY_ARRAY`: its number of slots and the offset of the next array.
#[derive(Clone, Copy)]
pub(crate) struct Array {
    pub(crate) slots: u64,
    pub(crate) next: u64,
}

// === impl Layout ===

impl Layout {
    pub(crate) fn new(header: &Header) -> Self {
        Self { header_size: header.size, compact: header.compact, seqnum_id: header.seqnum_id }
    }

    fn entry_item(self) -> usize {
        if self.compact { 4 } else { 16 }
    }

    pub(crate) fn array_item(self) -> usize {
        if self.compact { 4 } else { 8 }
    }

    fn data_payload(self) -> usize {
        if self.compact { 72 } else { 64 }
    }
}

// === impl Objects ===

impl<S: Source> Objects<S> {
    pub(crate) fn new(window: Window<S>, layout: Layout) -> Self {
        Self { window, layout }
    }

    pub(crate) fn size(&self) -> u64 {
        self.window.size()
    }

    pub(crate) fn window(&mut self) -> &mut Window<S> {
        &mut self.window
    }

    pub(crate) fn reset(&mut self, layout: Layout) -> io::Result<()> {
        self.layout = layout;
        self.window.reset()
    }

    /// Reads an entry: returns its address, and stores the offsets of its fields in `items`.
    pub(crate) fn entry(&mut self, offset: u64, items: &mut Vec<u64>) -> Result<Cursor, Fault> {
        items.clear();
        let Layout { compact, seqnum_id, .. } = self.layout;
        let bytes = self.entry_bytes(offset)?;
        let cursor = parse_entry(bytes, seqnum_id).ok_or(Fault::at(offset, DamageKind::BadEntry))?;
        let list = &bytes[ENTRY_HEAD..];
        if compact {
            items.extend(list.as_chunks::<4>().0.iter().map(|item| u64::from(u32::from_le_bytes(*item))));
        } else {
            items.extend(list.as_chunks::<16>().0.iter().map(|item| u64_at(item, 0)));
        }
        Ok(cursor)
    }

    /// Reads only an entry's address, with the same checks.
    pub(crate) fn entry_address(&mut self, offset: u64) -> Result<Cursor, Fault> {
        let seqnum_id = self.layout.seqnum_id;
        let bytes = self.entry_bytes(offset)?;
        parse_entry(bytes, seqnum_id).ok_or(Fault::at(offset, DamageKind::BadEntry))
    }

    pub(crate) fn data(&mut self, offset: u64) -> Result<Data<'_>, Fault> {
        let start = self.layout.data_payload();
        let limit = start as u64 + MAX_DATA_BYTES;
        let bytes = self.object(offset, Kind::Data, start as u64 + 1, limit, DamageKind::TooLarge)?;
        let index = Index { first: u64_at(bytes, 40), array: u64_at(bytes, 48), total: u64_at(bytes, 56) };
        let (next_in_bucket, next_of_field) = (u64_at(bytes, 24), u64_at(bytes, 32));
        let aligned =
            [next_in_bucket, next_of_field, index.first, index.array].iter().all(|o| o.is_multiple_of(8));
        if !aligned || (index.first == 0) != (index.total == 0) {
            return Err(Fault::at(offset, DamageKind::BadObject));
        }
        Ok(Data {
            hash: u64_at(bytes, 16),
            next_in_bucket,
            next_of_field,
            index,
            packing: bytes[1],
            payload: &bytes[start..],
        })
    }

    pub(crate) fn field(&mut self, offset: u64) -> Result<FieldName<'_>, Fault> {
        let limit = FIELD_HEAD as u64 + MAX_DATA_BYTES;
        let bytes = self.object(offset, Kind::Field, FIELD_HEAD as u64 + 1, limit, DamageKind::TooLarge)?;
        Ok(FieldName {
            next_in_bucket: u64_at(bytes, 24),
            first_data: u64_at(bytes, 32),
            name: &bytes[FIELD_HEAD..],
        })
    }

    pub(crate) fn array(&mut self, offset: u64) -> Result<Array, Fault> {
        let item = self.layout.array_item() as u64;
        let size = self.object_size(offset, Kind::EntryArray)?;
        let next = u64_at(self.window.get(offset, ARRAY_HEAD)?, OBJECT_HEAD);
        let items = size.saturating_sub(ARRAY_HEAD as u64);
        let inside = offset.checked_add(size).is_some_and(|end| end <= self.window.size());
        // Lists only lead towards the end of the file; anything else could be a loop.
        if !inside
            || items == 0
            || !items.is_multiple_of(item)
            || !next.is_multiple_of(8)
            || (next != 0 && next <= offset)
        {
            return Err(Fault::at(offset, DamageKind::BadObject));
        }
        Ok(Array { slots: items / item, next })
    }

    /// Returns the entry offset in one slot of an array whose head was read.
    pub(crate) fn array_slot(&mut self, array: u64, slot: u64) -> Result<u64, Fault> {
        let item = self.layout.array_item();
        let bytes = self.window.get(array + ARRAY_HEAD as u64 + slot * item as u64, item)?;
        Ok(if item == 4 { u64::from(u32_at(bytes, 0)) } else { u64_at(bytes, 0) })
    }

    /// Reads many slots without the block cache.
    pub(crate) fn array_slots(&mut self, array: u64, slot: u64, slots: &mut [u64]) -> Result<(), Fault> {
        const CHUNK: usize = 512;
        let item = self.layout.array_item();
        let mut start = array + ARRAY_HEAD as u64 + slot * item as u64;
        for chunk in slots.chunks_mut(CHUNK) {
            let mut buffer = [0; CHUNK * 8];
            let bytes = &mut buffer[..chunk.len() * item];
            self.window.read_exact(start, bytes)?;
            for (slot, bytes) in chunk.iter_mut().zip(bytes.chunks_exact(item)) {
                *slot = if item == 4 { u64::from(u32_at(bytes, 0)) } else { u64_at(bytes, 0) };
            }
            start += (chunk.len() * item) as u64;
        }
        Ok(())
    }

    /// Returns the type and size of any object, to scan a file whose list of entries is broken.
    pub(crate) fn any(&mut self, offset: u64) -> Result<Option<(u8, u64)>, Fault> {
        let bytes = self.window.get(offset, OBJECT_HEAD)?;
        let (kind, size) = (bytes[0], u64_at(bytes, 8));
        let inside = offset.checked_add(size).is_some_and(|end| end <= self.window.size());
        Ok(((1..=7).contains(&kind) && size >= OBJECT_HEAD as u64 && inside).then_some((kind, size)))
    }

    fn entry_bytes(&mut self, offset: u64) -> Result<&[u8], Fault> {
        let item = self.layout.entry_item();
        let limit = ENTRY_HEAD as u64 + MAX_ENTRY_ITEMS * item as u64;
        let bytes =
            self.object(offset, Kind::Entry, (ENTRY_HEAD + item) as u64, limit, DamageKind::BadEntry)?;
        if !(bytes.len() - ENTRY_HEAD).is_multiple_of(item) {
            return Err(Fault::at(offset, DamageKind::BadEntry));
        }
        Ok(bytes)
    }

    /// Returns all bytes of an object of the given kind and of a size within the limits.
    fn object(
        &mut self,
        offset: u64,
        kind: Kind,
        least: u64,
        most: u64,
        over: DamageKind,
    ) -> Result<&[u8], Fault> {
        let size = self.object_size(offset, kind)?;
        if size < least {
            return Err(Fault::at(offset, DamageKind::BadObject));
        }
        if size > most {
            return Err(Fault::at(offset, over));
        }
        self.window.get(offset, usize::try_from(size).map_err(|_| Fault::at(offset, over))?)
    }

    fn object_size(&mut self, offset: u64, kind: Kind) -> Result<u64, Fault> {
        if !offset.is_multiple_of(8) || offset < self.layout.header_size {
            return Err(Fault::at(offset, DamageKind::BadObject));
        }
        let bytes = self.window.get(offset, OBJECT_HEAD)?;
        if bytes[0] != kind as u8 {
            return Err(Fault::at(offset, DamageKind::BadObject));
        }
        Ok(u64_at(bytes, 8))
    }
}

#[inline]
fn parse_entry(bytes: &[u8], seqnum_id: Id128) -> Option<Cursor> {
    let mut boot_id = [0; 16];
    boot_id.copy_from_slice(&bytes[40..56]);
    let cursor = Cursor {
        seqnum_id,
        seqnum: u64_at(bytes, 16),
        realtime: u64_at(bytes, 24),
        monotonic: u64_at(bytes, 32),
        boot_id: Id128::from_bytes(boot_id),
        xor_hash: u64_at(bytes, 56),
    };
    let valid = cursor.seqnum > 0
        && (1..MAX_TIMESTAMP).contains(&cursor.realtime)
        && cursor.monotonic < MAX_TIMESTAMP;
    valid.then_some(cursor)
}

/// Returns the little-endian number at an offset whose range the caller has checked.
#[inline]
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(number)
}

#[inline]
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(number)
}
