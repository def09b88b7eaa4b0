//! A cache of decompressed fields that many entries share, by offset.
//!
//! Most fields of most entries repeat (`_HOSTNAME`, `_BOOT_ID`, the unit, the command line). With decompressed and
//! validated fields in the cache, reading an entry needs only a few copies.
//!
//! Functions are `#[inline]` because the callers are generic and therefore compiled in other crates.

use crate::field::Field;

/// Number of slots, in sets of two; sufficient for the values around one point of a busy host's journal.
const SLOTS: usize = 16 * 1024;

/// Size at which the cache is cleared. Values still in use return, which is cheaper than tracking use.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Maximum size of a cached value; a larger one would evict thousands of small ones.
const MAX_VALUE: usize = 16 * 1024;

/// The form of a field in the export format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// On one line.
    Text,
    /// With its length, because it has control characters or is not UTF-8.
    Binary,
    /// Omitted: the boot ID is written with the entry's address.
    BootId,
}

#[derive(Default)]
pub(crate) struct Cache {
    slots: Vec<Slot>,
    bytes: Vec<u8>,
}

/// A validated field: `line[..name]` is its name.
#[derive(Clone, Copy)]
pub(crate) struct Cached<'a> {
    /// The field and a line feed.
    pub(crate) line: &'a [u8],
    name: usize,
    pub(crate) form: Form,
}

#[derive(Clone, Copy)]
struct Slot {
    offset: u64,
    start: u32,
    len: u32,
    name: u8,
    form: Form,
}

const EMPTY: Slot = Slot { offset: 0, start: 0, len: 0, name: 0, form: Form::Text };

// === impl Cached ===

impl<'a> Cached<'a> {
    pub(crate) fn field(self) -> Field<'a> {
        Field::new(&self.line[..self.line.len() - 1], self.name)
    }
}

// === impl Cache ===

impl Cache {
    #[inline]
    pub(crate) fn find(&self, offset: u64) -> Option<usize> {
        let set = set_of(offset);
        let [first, second] = self.slots.get(set..set + 2)? else { return None };
        // Callers may pass any offset, including that of an empty slot.
        if first.offset == offset && first.len != 0 {
            Some(set)
        } else if second.offset == offset && second.len != 0 {
            Some(set + 1)
        } else {
            None
        }
    }

    #[inline]
    pub(crate) fn get(&self, slot: usize) -> Cached<'_> {
        let Slot { start, len, name, form, .. } = self.slots[slot];
        let start = start as usize;
        Cached { line: &self.bytes[start..start + len as usize], name: usize::from(name), form }
    }

    #[inline]
    pub(crate) fn takes(field: &[u8]) -> bool {
        field.len() <= MAX_VALUE
    }

    /// Caches a field that [`takes`](Self::takes) accepts.
    #[expect(clippy::cast_possible_truncation, reason = "bounded by MAX_BYTES, and names by 64")]
    pub(crate) fn insert(&mut self, offset: u64, field: &[u8], name: usize, form: Form) -> usize {
        if self.slots.is_empty() {
            self.slots = vec![EMPTY; SLOTS];
        }
        if self.bytes.len() + field.len() >= MAX_BYTES {
            self.slots.fill(EMPTY);
            self.bytes.clear();
        }
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(field);
        self.bytes.push(b'\n');
        let set = set_of(offset);
        self.slots[set + 1] = self.slots[set];
        self.slots[set] = Slot { offset, start, len: field.len() as u32 + 1, name: name as u8, form };
        set
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Returns the set of an offset. Objects are at multiples of eight and close to each other; the multiplication
/// distributes them.
#[inline]
fn set_of(offset: u64) -> usize {
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    (((offset >> 3).wrapping_mul(SPREAD) >> 40) as usize % (SLOTS / 2)) * 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_slot_is_not_a_field() {
        let mut cache = Cache::default();
        cache.insert(8, b"A=1", 1, Form::Text);
        assert_eq!(cache.find(0), None);
        assert_eq!(cache.find(EMPTY.offset), None);
    }

    #[test]
    fn a_full_cache_forgets_but_never_confuses() {
        let mut cache = Cache::default();
        let value = vec![b'v'; 1000];
        for i in 1..20_000_u64 {
            let field = [b"N=", i.to_string().as_bytes(), &value].concat();
            let slot = cache.insert(i * 8, &field, 1, Form::Text);
            assert_eq!(cache.find(i * 8), Some(slot));
            assert!(cache.bytes.len() <= MAX_BYTES);
        }
        let found = (1..20_000_u64).filter_map(|i| Some((i, cache.find(i * 8)?))).collect::<Vec<_>>();
        assert!(found.len() > 100);
        for (i, slot) in found {
            assert!(cache.get(slot).line.starts_with(format!("N={i}v").as_bytes()));
        }
    }
}
