//! systemd journals without libsystemd and without journalctl: bytes in, entries out.
//!
//! A bootstrap that failed leaves its story in the journal, often on a disk whose host no longer runs, in a container
//! without systemd, or on a laptop with another operating system. This crate reads
//!
//! - **journal files** ([`JournalFile`]): regular and compact, with keyed and unkeyed hashes, fields packed with zstd,
//!   LZ4 or XZ, sealed or not, archived, torn, or being written at this moment;
//! - **folders of them** ([`Journal`]), merged in journalctl's order without repetition, and followed as they grow;
//! - **export streams** ([`ExportReader`]) and **JSON streams** ([`JsonReader`]), as journalctl prints them;
//!
//! and writes the export format, which `systemd-journal-remote` turns back into a journal file.
//!
//! ```no_run
//! use landfall_journal::{Filter, Journal, Seek};
//!
//! # fn main() -> Result<(), landfall_journal::Error> {
//! let mut journal = Journal::open(["/run/log/journal", "/var/log/journal"]);
//! journal.set_filter(Filter::unit("kubelet.service"));
//! journal.seek(Seek::Time(1_700_000_000_000_000));
//! while let Some(mut entry) = journal.next() {
//!     let time = entry.cursor().realtime;
//!     if let Some(message) = entry.get("MESSAGE")? {
//!         println!("{time} {}", String::from_utf8_lossy(message.value()));
//!     }
//! }
//! # Ok(()) }
//! ```
//!
//! # The file format
//!
//! All numbers are little-endian; every object starts at a multiple of eight bytes.
//!
//! A file starts with a *header*: the signature `LPKSHHRH`, flags, the file's id, the machine's id, the id of the
//! sequence its entries are numbered in, and where the main structures are. Flags come in two kinds. Those a reader
//! may ignore say that the file is sealed. Those it may not ignore announce packed fields (XZ 1, LZ4 2, ZSTD 8), the
//! keyed hash (4) and the compact layout (16); a file with a flag we do not know is refused.
//!
//! Behind it lie *objects*: a type, packing flags, a size, and a body.
//!
//! | type | object | body |
//! |---|---|---|
//! | 1 | `DATA` | one `NAME=value`, stored once however many entries have it; the list of these entries |
//! | 2 | `FIELD` | one `NAME`; the list of its values |
//! | 3 | `ENTRY` | sequence number, wall clock, time since boot, boot id, a hash of the contents; the offsets of its fields |
//! | 4, 5 | hash tables | buckets of `DATA`, and of `FIELD` |
//! | 6 | `ENTRY_ARRAY` | offsets of entries, and where the list goes on |
//! | 7 | `TAG` | a seal; readers pass it |
//!
//! The compact layout stores offsets in lists in four bytes instead of eight (so such files end at 4 GiB), leaves the
//! hashes out of entries, and has eight more bytes in the head of `DATA`.
//!
//! A list of entries is a chain of arrays that double in length. There is one for all entries, in the order of
//! writing, which is also the order of sequence numbers and, because journald rotates when the clock is set back, of
//! time: so a time or a cursor is found by bisection. And there is one for each value. A [`Filter`] looks its values up
//! in the hash table and walks their lists side by side; entries that do not match are never touched.
//!
//! Values are placed in the hash table by SipHash-2-4 under the file's id if the keyed-hash flag is set, else by
//! Jenkins' lookup3. A packed value is a zstd frame, an XZ stream, or eight bytes of length and an LZ4 block.
//!
//! # A file being written
//!
//! journald adds an entry in this order: fields, entry, list, count. Who reads the count first and the rest after it
//! sees only whole entries. [`JournalFile::refresh`] reads the count again, and [`Journal::wait`] sleeps until
//! something is written. On rotation the file gets a new name and the old name a new file; nothing is lost or repeated.
//!
//! # Damage
//!
//! A host that failed to boot often was switched off while writing, so damage is a normal input. Once the header is
//! understood, reading never fails because of what the bytes say; it skips what is unreadable and says so
//! ([`JournalFile::damage`]):
//!
//! - An entry or field whose object is invalid is left out. The checks are journalctl's, so an entry it shows is shown
//!   by us with the same bytes. One exception: an entry that claims more than 8192 fields, which journald cannot write,
//!   is left out here, while journalctl shows it with the fields of its neighbours.
//! - A field that is not `NAME=value`, or whose packing is unknown, is left out; journalctl stops there.
//! - An entry listed out of order is left out; journalctl stops there.
//! - If the list of entries is broken, the rest of the file is searched for entries; journalctl stops there. An entry
//!   found this way counts only if it and all its fields are whole.
//! - A file shorter than its header says is read as far as it goes; journalctl refuses it.
//! - A filter finds what its lists still name; a broken list loses the rest of its entries.
//!
//! Contents are not verified against hashes or seals: a flipped bit inside a message stays, as it does in journalctl.
//!
//! # Bounds
//!
//! Memory does not grow with the file: a cache of blocks (512 KiB) and one of shared values (at most 4 MiB) per file being
//! read. A single field is held up to 64 MiB, packed or unpacked; a larger one is left out and told.

mod boot;
mod cache;
mod cursor;
mod damage;
mod entry;
mod export;
mod export_reader;
mod field;
mod file;
mod filter;
mod hash;
mod header;
mod id128;
mod journal;
mod json;
mod list;
mod lookup;
mod object;
mod record;
mod search;
mod source;
#[cfg(test)]
#[expect(clippy::cast_possible_truncation, reason = "files of a few kilobytes, on 64-bit machines")]
mod tiny;
mod unpack;
mod watch;
mod window;

pub use boot::Boot;
pub use cursor::{BadCursor, Cursor};
pub use damage::{Damage, DamageKind, DamageLog};
pub use entry::Entry;
pub use export_reader::ExportReader;
pub use field::Field;
pub use file::{Error, JournalFile, Seek};
pub use filter::Filter;
pub use header::{Header, State};
pub use id128::{BadId, Id128};
pub use journal::{Journal, Problem};
pub use json::JsonReader;
pub use record::Record;
pub use source::Source;
