//! A reader for systemd journals without libsystemd and without journalctl: bytes in, entries out.
//!
//! The journal explains a failed bootstrap. It is often on a disk whose host no longer runs, in a container without
//! systemd, or on a laptop with another operating system. This crate reads
//!
//! - **journal files** ([`JournalFile`]): regular or compact, with keyed or unkeyed hashes, compressed with zstd, LZ4
//!   or XZ, sealed, archived, torn, or being written;
//! - **directories** ([`Journal`]), merged in journalctl's order without duplicates, and followed as they grow;
//! - **export streams** ([`ExportReader`]) and **JSON streams** ([`JsonReader`]), as journalctl prints them;
//!
//! and writes the export format, which `systemd-journal-remote` converts back to a journal file.
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
//! A file starts with a *header*: the signature `LPKSHHRH`, flags, the IDs of the file, the host and the sequence that
//! numbers its entries. It also contains the offsets of the main structures. There are two kinds of flags. Compatible
//! flags, which readers may ignore, say that the file is sealed. Incompatible flags announce compressed fields (XZ 1,
//! LZ4 2, ZSTD 8), the keyed hash (4) and the compact layout (16). A file with an unknown incompatible flag is
//! rejected.
//!
//! *Objects* follow the header: a type, compression flags, a size, and a body.
//!
//! | type | object | body |
//! |---|---|---|
//! | 1 | `DATA` | one `NAME=value`, stored once however many entries have it; the list of these entries |
//! | 2 | `FIELD` | one `NAME`; the list of its values |
//! | 3 | `ENTRY` | sequence number, wall clock, time since boot, boot ID, a hash of the contents; the offsets of its
//! fields |
//! | 4, 5 | hash tables | buckets of `DATA`, and of `FIELD` |
//! | 6 | `ENTRY_ARRAY` | offsets of entries, and the offset of the next array |
//! | 7 | `TAG` | a seal; readers skip it |
//!
//! The compact layout stores offsets in lists in four bytes instead of eight (so such files end at 4 GiB). It omits the
//! hashes from entries, and has eight more bytes in the head of `DATA`.
//!
//! A list of entries is a chain of arrays that double in length. There is one for all entries in the order of writing,
//! which is also the order of sequence numbers. It is also the order of time, because journald rotates when the clock
//! is set back. A time or a cursor is therefore found by bisection. There is also one list for each value. A [`Filter`]
//! looks up its values in the hash table and follows their lists in parallel; entries that do not match are never read.
//!
//! The hash table uses SipHash-2-4 with the file ID as key if the keyed-hash flag is set, else Jenkins' lookup3. A
//! compressed value is a zstd frame, an XZ stream, or eight bytes of length and an LZ4 block.
//!
//! # A file being written
//!
//! journald adds an entry in this order: fields, entry, list, count. A reader that reads the count first and the rest
//! after it sees only complete entries. [`JournalFile::refresh`] reads the count again, and [`Journal::wait`] waits
//! until something is written. On rotation the file gets a new name, and a new file gets the old name. The reader
//! neither loses nor repeats entries.
//!
//! # Damage
//!
//! A host that fails to boot is often powered off while writing, so damage is a normal input. Once the header is valid,
//! no content of the file makes reading fail. Unreadable parts are skipped and reported ([`JournalFile::damage`]):
//!
//! - An entry or field whose object is invalid is left out. The checks are journalctl's, so an entry that journalctl
//!   prints has the same bytes here. The exception is an entry with more than 8192 fields, which journald cannot write.
//!   It is left out here, while journalctl prints it with the fields of its neighbors.
//! - A field that is not `NAME=value`, or has an unknown compression, is left out; journalctl stops there.
//! - An entry listed out of order is left out; journalctl stops there.
//! - If the list of entries is broken, the rest of the file is scanned for entries; journalctl stops there. An entry
//!   found this way counts only if it and all its fields are complete.
//! - A file shorter than its header says is read up to its end; journalctl rejects it.
//! - A filter finds the entries that its lists still contain; a broken list loses the rest of its entries.
//!
//! Contents are not verified against hashes or seals: a flipped bit inside a message stays, as it does in journalctl.
//!
//! # Bounds
//!
//! Memory does not grow with the file. Each open file has a cache of blocks (512 KiB) and one of shared values (at most
//! 4 MiB). The maximum size of a single field is 64 MiB, compressed or decompressed; a larger one is left out and
//! reported.

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
mod tiny_tests;
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
