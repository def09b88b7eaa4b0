//! Lookup of values and names in a file's hash tables.

use std::io;

use crate::damage::{Damage, DamageKind, Fault};
use crate::file::{Error, JournalFile, unpacked};
use crate::hash::{jenkins64, siphash24};
use crate::header::Table;
use crate::object::{Index, u64_at};
use crate::source::Source;

// === impl JournalFile ===

impl<S: Source> JournalFile<S> {
    /// Calls `each` with every value of the field in the file, the newest first.
    pub fn values(&mut self, name: &str, mut each: impl FnMut(&[u8])) -> Result<(), Error> {
        let first = self.find_name(name.as_bytes()).map_err(Error::Read)?;
        let mut offset = first.unwrap_or(0);
        while offset != 0 {
            match self.read_value(offset, name, &mut each) {
                // Each value links to an older one; anything else could be a loop.
                Ok(next) if next < offset => offset = next,
                Ok(_) => {
                    self.damage.add(Damage { offset, kind: DamageKind::BrokenIndex });
                    break;
                }
                Err(fault) => {
                    self.damage.absorb(fault).map_err(Error::Read)?;
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns the entries with `NAME=value`, through the hash table.
    pub(crate) fn find_value(&mut self, value: &[u8]) -> io::Result<Option<Index>> {
        let hash = self.hash(value);
        let Some(mut offset) = self.bucket(self.header.data_table, hash)? else { return Ok(None) };
        while offset != 0 {
            let data = match self.objects.data(offset) {
                Ok(data) => data,
                Err(fault) => {
                    self.damage.absorb(fault)?;
                    break;
                }
            };
            let (index, next) = (data.index, data.next_in_bucket);
            let same = data.hash == hash
                && unpacked(&mut self.unpacker, offset, data.packing, data.payload)
                    .is_ok_and(|field| field == value);
            if same {
                return Ok(Some(index));
            }
            offset = self.onward(offset, next);
        }
        Ok(None)
    }

    /// Returns the newest value of a field, through the hash table of names.
    fn find_name(&mut self, name: &[u8]) -> io::Result<Option<u64>> {
        let hash = self.hash(name);
        let Some(mut offset) = self.bucket(self.header.field_table, hash)? else { return Ok(None) };
        while offset != 0 {
            let field = match self.objects.field(offset) {
                Ok(field) => field,
                Err(fault) => {
                    self.damage.absorb(fault)?;
                    break;
                }
            };
            if field.name == name {
                return Ok(Some(field.first_data));
            }
            let next = field.next_in_bucket;
            offset = self.onward(offset, next);
        }
        Ok(None)
    }

    /// Returns the next object of a bucket. Buckets only lead towards the end of the file; anything else could be a
    /// loop.
    fn onward(&mut self, offset: u64, next: u64) -> u64 {
        if next != 0 && next <= offset {
            self.damage.add(Damage { offset, kind: DamageKind::BrokenIndex });
            return 0;
        }
        next
    }

    fn bucket(&mut self, table: Table, hash: u64) -> io::Result<Option<u64>> {
        const BUCKET: u64 = 16;
        let buckets = table.bytes / BUCKET;
        if buckets == 0 {
            return Ok(None);
        }
        let Some(offset) = (hash % buckets * BUCKET).checked_add(table.offset) else { return Ok(None) };
        match self.objects.window().get(offset, 8) {
            Ok(bytes) => Ok(Some(u64_at(bytes, 0))),
            Err(fault) => self.damage.absorb(fault).map(|()| None),
        }
    }

    fn hash(&self, bytes: &[u8]) -> u64 {
        if self.header.keyed_hash { siphash24(bytes, self.header.file_id.bytes()) } else { jenkins64(bytes) }
    }

    fn read_value(&mut self, offset: u64, name: &str, each: &mut impl FnMut(&[u8])) -> Result<u64, Fault> {
        let data = self.objects.data(offset)?;
        let next = data.next_of_field;
        let field = unpacked(&mut self.unpacker, offset, data.packing, data.payload)?;
        match field.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")) {
            Some(value) => each(value),
            None => return Err(Fault::at(offset, DamageKind::BadField)),
        }
        Ok(next)
    }
}
