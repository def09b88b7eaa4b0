//! One journal file: where to start, what to want, and the next entry.

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

/// All fields of an entry together, except small ones that are shared. Entries that name a large field thousands of
/// times are made to use up memory.
const MAX_ENTRY_BYTES: usize = 128 * 1024 * 1024;

/// What an entry takes at least for each of its fields; so many fields can all entries of a file have.
const SMALLEST_ITEM: u64 = 4;

/// A journal file cannot be read. Damage behind a good header is no error: see [`JournalFile::damage`].
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

/// Where to start reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// At the first entry.
    Start,
    /// At the first entry not before this time, in microseconds since 1970.
    Time(u64),
    /// At the entry with this cursor, or where it would be.
    At(Cursor),
    /// Behind the entry with this cursor.
    After(Cursor),
    /// Behind the last entry: only what is written from now on.
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
    /// The entry the reader stands on, and where its fields are.
    cursor: Cursor,
    items: Vec<u64>,
    /// How many bytes of fields were read of it.
    read: usize,
    ids: export::Ids,
}

/// How the next entry is found.
struct Walk {
    mode: Mode,
    /// The entry found last; later ones lie behind it.
    last: u64,
    /// Leave out the entry with this cursor.
    skip: Option<Cursor>,
}

/// Where a loaded field is.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Cached(usize),
    Plain { offset: u64, name: usize },
    Unpacked { name: usize },
}

enum Mode {
    /// Along the list of all entries.
    List { list: List, batch: Vec<u64>, at: usize },
    /// Along the lists of the wanted values.
    Matches(Matcher),
    /// Object by object, because the list is broken.
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
        // Whatever the header counts is complete in the bytes read after it; so is the size.
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

    /// What was found unreadable so far.
    pub fn damage(&self) -> &DamageLog {
        &self.damage
    }

    /// Wants only entries that match, and starts again at the first of them.
    pub fn set_filter(&mut self, filter: Filter) -> Result<(), Error> {
        self.filter = filter;
        self.seek(Seek::Start)
    }

    /// Moves to a place. Seeking by time assumes, as journald ensures, that time only goes forward within a file.
    pub fn seek(&mut self, seek: Seek) -> Result<(), Error> {
        self.seek_raw(seek).map_err(Error::Read)
    }

    /// The next wanted entry, or `None` at the end (for now, if the file is being written).
    #[expect(
        clippy::should_implement_trait,
        reason = "the entry borrows the reader, which Iterator cannot express"
    )]
    pub fn next(&mut self) -> Result<Option<Entry<'_, S>>, Error> {
        Ok(self.advance().map_err(Error::Read)?.then(|| Entry::new(self)))
    }

    /// Looks again at a file that may be written to. True if entries were added since the last look; reading then
    /// goes on behind the last entry.
    pub fn refresh(&mut self) -> Result<bool, Error> {
        // The header first: whatever it counts is complete in the bytes read after it.
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

    /// Goes to the next entry; false at the end.
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

    /// The fields of the current entry are going to be read from the first one on.
    pub(crate) fn rewind(&mut self) {
        self.read = 0;
    }

    pub(crate) fn objects(&mut self) -> &mut Objects<S> {
        &mut self.objects
    }

    pub(crate) fn note_damage(&mut self, fault: Fault) -> io::Result<()> {
        self.damage.absorb(fault)
    }

    /// Gives memory back while nothing is to be read here.
    pub(crate) fn release(&mut self) {
        self.objects.window().release();
        self.cache.clear();
        if let Mode::List { batch, at, .. } = &mut self.walk.mode
            && *at == batch.len()
        {
            (*batch, *at) = (Vec::new(), 0);
        }
    }

    /// Reads and checks one field of the current entry.
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
        // A field of a single entry will not be asked for again.
        if shared && Cache::takes(field) {
            return Ok(Place::Cached(self.cache.insert(offset, field, name, form(field))));
        }
        Ok(if packed { Place::Unpacked { name } } else { Place::Plain { offset, name } })
    }

    /// The field that was loaded last.
    pub(crate) fn view(&mut self, place: Place) -> Result<Field<'_>, Fault> {
        Ok(match place {
            Place::Cached(slot) => self.cache.get(slot).field(),
            Place::Unpacked { name } => Field::new(self.unpacker.last(), name),
            Place::Plain { offset, name } => Field::new(self.objects.data(offset)?.payload, name),
        })
    }

    /// Writes what the export format says of the current entry before its fields.
    pub(crate) fn write_address(&mut self, out: &mut Vec<u8>) {
        export::push_address(out, &self.cursor, &mut self.ids);
    }

    /// Writes one field of the current entry in export format; for a shared one that is a single copy.
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
        // A broken list ends the search where it breaks; reading then starts there and meets the damage itself.
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

    /// By number within the same sequence, else by time since the same boot, else by wall clock.
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

    /// Where the next entry should be. Nothing is read there yet.
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
                    // An offset too high hides everything up to it; the one after it gives it away.
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

/// The cursor of a reader that has not read yet.
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

/// Past the block cache, since a header is read anew to see whether a file has grown.
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

/// Advances to the first entry whose address satisfies a condition that stays true once it is true.
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
