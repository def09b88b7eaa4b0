//! A reader of one journal file: position, filter, and next entry.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::cache::{Cache, Form};
use crate::cursor::Cursor;
use crate::damage::{Damage, DamageKind, DamageLog, Fault};
use crate::entry::Entry;
use crate::export;
use crate::field::{Field, is_text, name_len};
use crate::filter::{Filter, Matcher};
use crate::header::{HEADER_BYTES, Header, Refusal, State};
use crate::list::List;
use crate::object::{Index, Layout, Objects};
use crate::search::search;
use crate::source::Source;
use crate::unpack::{Unpacker, is_packed};
use crate::window::Window;

/// Maximum size of all fields of an entry, except small shared ones. An entry that refers to a large field thousands of
/// times is an attempt to exhaust memory.
const MAX_ENTRY_BYTES: usize = 128 * 1024 * 1024;

/// Minimum size of a field reference in an entry, which limits the number of references in a file.
const SMALLEST_ITEM: u64 = 4;

/// An error that prevents reading a journal file. Damage after a valid header is not an error: see
/// [`JournalFile::damage`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("could not open `{}`", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("could not read the journal file")]
    Read(#[source] io::Error),
    #[error("not a journal file")]
    NotAJournal,
    #[error("the journal file uses features of a newer systemd (flags {flags:#x})")]
    Unsupported { flags: u32 },
}

/// The position to start reading at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// At the first entry.
    Start,
    /// At the first entry not before this time, in microseconds since 1970.
    Time(u64),
    /// At the entry with this cursor, or at its position if there is none.
    At(Cursor),
    /// After the entry with this cursor.
    After(Cursor),
    /// After the last entry, so that only new entries are read.
    End,
}

/// A reader of one journal file. Its memory does not depend on the size of the file.
pub struct JournalFile<S> {
    pub(crate) header: Header,
    pub(crate) objects: Objects<S>,
    cache: Cache,
    pub(crate) unpacker: Unpacker,
    pub(crate) damage: DamageLog,
    filter: Filter,
    walk: Walk,
    /// The current entry, and the offsets of its fields.
    cursor: Cursor,
    items: Vec<u64>,
    /// Number of bytes read of its fields.
    read: usize,
    ids: export::Ids,
}

/// State of the search for the next entry.
struct Walk {
    mode: Mode,
    /// The last entry found; later ones have higher offsets.
    last: u64,
    /// Cursor of an entry to skip.
    skip: Option<Cursor>,
}

/// Location of a loaded field.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Cached(usize),
    Plain { offset: u64, name: usize },
    Unpacked { name: usize },
}

enum Mode {
    /// Follows the list of all entries.
    List { list: List, batch: Vec<u64>, at: usize },
    /// Follows the lists of the wanted values.
    Matches(Matcher),
    /// Scans object by object, because the list is broken.
    Search { next: u64, budget: u64 },
}

// === impl JournalFile ===

impl JournalFile<File> {
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = File::open(path).map_err(|source| Error::Open { path: path.to_owned(), source })?;
        Self::new(file)
    }
}

impl<S: Source> JournalFile<S> {
    pub fn new(source: S) -> Result<Self, Error> {
        let mut window = Window::new(source).map_err(Error::Read)?;
        let header = read_header(&window)?;
        // All that the header counts is complete in the bytes read after it, including the size.
        window.reset().map_err(Error::Read)?;
        let mut damage = DamageLog::default();
        if header.size.checked_add(header.arena).is_none_or(|end| end > window.size()) {
            damage.add(Damage { offset: window.size(), kind: DamageKind::Truncated });
        }
        if let State::Unknown(_) = header.state {
            damage.add(Damage { offset: 16, kind: DamageKind::BadObject });
        }
        let walk = Walk { mode: Mode::all(&header), last: 0, skip: None };
        Ok(Self {
            objects: Objects::new(window, Layout::new(&header)),
            header,
            cache: Cache::default(),
            unpacker: Unpacker::default(),
            damage,
            filter: Filter::default(),
            walk,
            cursor: NOWHERE,
            items: Vec::new(),
            read: 0,
            ids: export::Ids::default(),
        })
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the damage found so far.
    pub fn damage(&self) -> &DamageLog {
        &self.damage
    }

    /// Sets a filter and restarts at the first matching entry.
    pub fn set_filter(&mut self, filter: Filter) -> Result<(), Error> {
        self.filter = filter;
        self.seek(Seek::Start)
    }

    /// Moves to a position. Seeking by time assumes, as journald ensures, that time only increases within a file.
    pub fn seek(&mut self, seek: Seek) -> Result<(), Error> {
        self.seek_raw(seek).map_err(Error::Read)
    }

    /// Returns the next matching entry, or `None` at the end (which may change while the file is being written).
    #[expect(
        clippy::should_implement_trait,
        reason = "the entry borrows the reader, which Iterator cannot express"
    )]
    pub fn next(&mut self) -> Result<Option<Entry<'_, S>>, Error> {
        Ok(self.advance().map_err(Error::Read)?.then(|| Entry::new(self)))
    }

    /// Reads the header again, for a file that may be written to. Returns `true` if entries were added; reading then
    /// continues after the last entry.
    pub fn refresh(&mut self) -> Result<bool, Error> {
        // The header first: all that it counts is complete in the bytes read after it.
        let header = read_header(self.objects.window())?;
        let grown = header.entries.saturating_sub(self.header.entries);
        self.header = header;
        if grown == 0 {
            return Ok(false);
        }
        self.objects.reset(Layout::new(&header)).map_err(Error::Read)?;
        match &mut self.walk.mode {
            Mode::List { list, .. } => list.grow(grown),
            Mode::Matches(_) => self.walk.mode = Mode::Matches(self.bind().map_err(Error::Read)?),
            Mode::Search { .. } => {}
        }
        Ok(true)
    }

    /// Moves to the next entry; returns `false` at the end.
    pub(crate) fn advance(&mut self) -> io::Result<bool> {
        while let Some(offset) = self.next_offset()? {
            match self.objects.entry(offset, &mut self.items) {
                Ok(cursor) => {
                    self.walk.last = offset;
                    self.cursor = cursor;
                    self.read = 0;
                    if self.walk.skip.take_if(|skip| *skip == cursor).is_none() {
                        return Ok(true);
                    }
                }
                Err(fault) => self.damage.absorb(fault)?,
            }
        }
        Ok(false)
    }

    pub(crate) fn cursor(&self) -> Cursor {
        self.cursor
    }

    pub(crate) fn items(&self) -> &[u64] {
        &self.items
    }

    /// Prepares for reading the fields of the current entry from the first one.
    pub(crate) fn rewind(&mut self) {
        self.read = 0;
    }

    pub(crate) fn objects(&mut self) -> &mut Objects<S> {
        &mut self.objects
    }

    pub(crate) fn note_damage(&mut self, fault: Fault) -> io::Result<()> {
        self.damage.absorb(fault)
    }

    /// Frees memory while this file is not read.
    pub(crate) fn release(&mut self) {
        self.objects.window().release();
        self.cache.clear();
        if let Mode::List { batch, at, .. } = &mut self.walk.mode
            && *at == batch.len()
        {
            (*batch, *at) = (Vec::new(), 0);
        }
    }

    /// Reads and validates one field of the current entry.
    pub(crate) fn load(&mut self, offset: u64) -> Result<Place, Fault> {
        if let Some(slot) = self.cache.find(offset) {
            return Ok(Place::Cached(slot));
        }
        let data = self.objects.data(offset)?;
        let (shared, packed) = (data.index.total > 1, is_packed(data.packing));
        if self.read > MAX_ENTRY_BYTES {
            return Err(Fault::at(offset, DamageKind::TooLarge));
        }
        let field = unpacked(&mut self.unpacker, offset, data.packing, data.payload)?;
        self.read += field.len();
        let name = name_len(field).ok_or(Fault::at(offset, DamageKind::BadField))?;
        // A field of a single entry will not be read again.
        if shared && Cache::takes(field) {
            return Ok(Place::Cached(self.cache.insert(offset, field, name, form(field))));
        }
        Ok(if packed { Place::Unpacked { name } } else { Place::Plain { offset, name } })
    }

    /// Returns the field that was loaded last.
    pub(crate) fn view(&mut self, place: Place) -> Result<Field<'_>, Fault> {
        Ok(match place {
            Place::Cached(slot) => self.cache.get(slot).field(),
            Place::Unpacked { name } => Field::new(self.unpacker.last(), name),
            Place::Plain { offset, name } => Field::new(self.objects.data(offset)?.payload, name),
        })
    }

    /// Writes the address of the current entry in export format, which precedes its fields.
    pub(crate) fn write_address(&mut self, out: &mut Vec<u8>) {
        export::push_address(out, &self.cursor, &mut self.ids);
    }

    /// Writes one field of the current entry in export format; for a shared field that is a single copy.
    pub(crate) fn write_field(&mut self, offset: u64, out: &mut Vec<u8>) -> Result<(), Fault> {
        let place = self.load(offset)?;
        if let Place::Cached(slot) = place {
            let cached = self.cache.get(slot);
            match cached.form {
                Form::Text => out.extend_from_slice(cached.line),
                Form::Binary => export::push_binary(out, cached.field()),
                Form::BootId => {}
            }
            return Ok(());
        }
        let field = self.view(place)?;
        match form(field.bytes()) {
            Form::Text => {
                out.extend_from_slice(field.bytes());
                out.push(b'\n');
            }
            Form::Binary => export::push_binary(out, field),
            Form::BootId => {}
        }
        Ok(())
    }

    fn seek_raw(&mut self, seek: Seek) -> io::Result<()> {
        self.walk.skip = None;
        self.walk.last = 0;
        let all = Index { first: 0, array: self.header.entry_array, total: self.header.entries };
        let mut list = List::new(all);
        // A broken list ends the search at the damage; reading then starts there and reports it.
        let found = match seek {
            Seek::Start => Ok(None),
            Seek::End => list.advance(&mut self.objects, |_, _| Ok(Some(false))),
            Seek::Time(time) => reach(&mut list, &mut self.objects, |entry| entry.realtime >= time),
            Seek::At(cursor) | Seek::After(cursor) => {
                self.walk.skip = matches!(seek, Seek::After(_)).then_some(cursor);
                self.seek_cursor(&mut list, cursor)
            }
        };
        let found = match found {
            Ok(found) => found,
            Err(fault) => {
                self.damage.absorb(fault)?;
                None
            }
        };
        if !self.filter.is_empty() {
            self.walk.last = match (seek, found) {
                (Seek::Start, _) => 0,
                (_, Some(offset)) => offset.saturating_sub(1),
                (_, None) => self.header.tail_object,
            };
            self.walk.mode = Mode::Matches(self.bind()?);
        } else if seek == Seek::Start {
            self.walk.mode = Mode::all(&self.header);
        } else {
            self.walk.mode = Mode::List { list, batch: Vec::new(), at: 0 };
        }
        Ok(())
    }

    /// Seeks by number within the same sequence, else by time within the same boot, else by wall clock.
    fn seek_cursor(&mut self, list: &mut List, cursor: Cursor) -> Result<Option<u64>, Fault> {
        let objects = &mut self.objects;
        if cursor.seqnum_id == self.header.seqnum_id {
            return reach(list, objects, |entry| entry.seqnum >= cursor.seqnum);
        }
        let boot = format!("_BOOT_ID={}", cursor.boot_id);
        if let Some(index) = self.find_value(boot.as_bytes()).map_err(Fault::Read)? {
            let mut of_boot = List::new(index);
            let found = reach(&mut of_boot, &mut self.objects, |entry| entry.monotonic >= cursor.monotonic)?;
            if let Some(offset) = found {
                return list.advance(&mut self.objects, |_, item| Ok(Some(item >= offset)));
            }
        }
        reach(list, &mut self.objects, |entry| entry.realtime >= cursor.realtime)
    }

    fn bind(&mut self) -> io::Result<Matcher> {
        let filter = std::mem::take(&mut self.filter);
        let matcher = filter.bind(|value| self.find_value(value));
        self.filter = filter;
        matcher
    }

    /// Returns the offset of the next entry, without reading it.
    fn next_offset(&mut self) -> io::Result<Option<u64>> {
        loop {
            match &mut self.walk.mode {
                Mode::Matches(matcher) => {
                    let Some(from) = self.walk.last.checked_add(1) else { return Ok(None) };
                    let found = matcher.next(&mut self.objects, from, &mut self.damage)?;
                    self.walk.last = found.unwrap_or(self.walk.last);
                    return Ok(found);
                }
                Mode::Search { next, budget } => {
                    let found = search(&mut self.objects, next, budget)?;
                    if found.is_none_or(|offset| offset > self.walk.last) {
                        return Ok(found);
                    }
                }
                Mode::List { list, batch, at } => {
                    if *at == batch.len() {
                        *at = 0;
                        let broken = match list.take(&mut self.objects, batch) {
                            Ok(()) if !batch.is_empty() => continue,
                            Ok(()) if list.left() == 0 => return Ok(None),
                            Ok(()) => Damage { offset: self.walk.last, kind: DamageKind::BrokenList },
                            Err(Fault::Damaged(damage)) => Damage { kind: DamageKind::BrokenList, ..damage },
                            Err(Fault::Read(error)) => return Err(error),
                        };
                        self.damage.add(broken);
                        let next = if self.walk.last == 0 { self.header.size } else { self.walk.last };
                        let budget = self.objects.size() / SMALLEST_ITEM;
                        self.walk.mode = Mode::Search { next: next.next_multiple_of(8), budget };
                        continue;
                    }
                    let offset = batch[*at];
                    *at += 1;
                    let last = self.walk.last;
                    // A wrong, too high offset would hide all entries up to it. The lower offset after it reveals the
                    // error.
                    let strays =
                        batch.get(*at).is_some_and(|after| (last..offset).contains(after) && *after != last);
                    if offset > last && !strays {
                        return Ok(Some(offset));
                    }
                    self.damage.add(Damage { offset, kind: DamageKind::OutOfOrder });
                }
            }
        }
    }
}

impl<S> std::fmt::Debug for JournalFile<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JournalFile").field("header", &self.header).finish_non_exhaustive()
    }
}

/// The cursor of a reader that has not read an entry yet.
const NOWHERE: Cursor = Cursor {
    seqnum_id: crate::Id128::from_bytes([0; 16]),
    seqnum: 0,
    boot_id: crate::Id128::from_bytes([0; 16]),
    monotonic: 0,
    realtime: 0,
    xor_hash: 0,
};

// === impl Mode ===

impl Mode {
    fn all(header: &Header) -> Self {
        let index = Index { first: 0, array: header.entry_array, total: header.entries };
        Self::List { list: List::new(index), batch: Vec::new(), at: 0 }
    }
}

/// Reads the header without the block cache, because a later read must detect whether the file has grown.
fn read_header<S: Source>(window: &Window<S>) -> Result<Header, Error> {
    let mut bytes = [0; HEADER_BYTES];
    match window.read_exact(0, &mut bytes) {
        Ok(()) => {}
        Err(Fault::Damaged(_)) => return Err(Error::NotAJournal),
        Err(Fault::Read(error)) => return Err(Error::Read(error)),
    }
    Header::parse(&bytes).map_err(|refusal| match refusal {
        Refusal::NotAJournal => Error::NotAJournal,
        Refusal::Unsupported(flags) => Error::Unsupported { flags },
    })
}

/// Advances to the first entry whose address satisfies a condition that holds for all later entries, too.
fn reach<S: Source>(
    list: &mut List,
    objects: &mut Objects<S>,
    condition: impl Fn(&Cursor) -> bool,
) -> Result<Option<u64>, Fault> {
    list.advance(objects, |objects, offset| match objects.entry_address(offset) {
        Ok(cursor) => Ok(Some(condition(&cursor))),
        Err(Fault::Damaged(_)) => Ok(None),
        Err(error) => Err(error),
    })
}

pub(crate) fn unpacked<'a>(
    unpacker: &'a mut Unpacker,
    offset: u64,
    packing: u8,
    payload: &'a [u8],
) -> Result<&'a [u8], Fault> {
    if is_packed(packing) {
        unpacker.unpack(packing, payload).map_err(|kind| Fault::at(offset, kind))
    } else {
        Ok(payload)
    }
}

fn form(field: &[u8]) -> Form {
    if field.starts_with(b"_BOOT_ID=") {
        Form::BootId
    } else if is_text(field) {
        Form::Text
    } else {
        Form::Binary
    }
}
