//! The machine itself, or a mounted disk.
//!
//! Files, the journal and kernel messages are read in place, so that evidence names its real location and its
//! origin can be proven. Nothing is written to the machine.

use std::io::{self, Cursor, Read};

use landfall_diagnose::Observation;
use landfall_model::bundle::{BundleItem, ItemOutcome};
use landfall_model::chain;
use landfall_redact::{BuildError, Redactor};

use super::journal_text::{Entries, Parts};
use super::kmsg;
use super::opener::{OpenError, Opener};
use super::owner;
use crate::collect::{Collection, Host, Piece, Plan, Purpose, Record, Running, Trouble};

/// The pieces of one file or journal.
struct Pieces<'r> {
    running: &'r Running,
    state: State,
}

#[derive(PartialEq, Eq)]
enum State {
    Open,
    Ended,
    /// The item exceeded its time; the rest of it is not read.
    TimedOut,
}

/// A file as a stream.
struct FileReader<'r> {
    pieces: Pieces<'r>,
    bytes: Cursor<Vec<u8>>,
}

/// A journal as a stream.
struct EntryReader<'r> {
    pieces: Pieces<'r>,
    batch: std::vec::IntoIter<Parts>,
}

/// Reads all items of the plan into the case. Returns the redactor with the machine's own secrets.
pub(super) fn read(opener: &mut Opener<'_, '_>, host: Host, plan: &Plan) -> Result<Redactor, BuildError> {
    let (mut collection, left_out) = Collection::start(host, plan, Purpose::Diagnosis)?;
    for record in left_out {
        opener.fail(&record.source.clone(), &record);
    }
    let mut observations = Vec::new();
    let mut has_journal = false;
    while let Some(running) = collection.next() {
        has_journal = read_item(opener, &running, &mut observations, has_journal);
    }
    if !has_journal {
        kernel_messages(opener, collection.host());
    }
    observations.sort_by_key(|observation: &Observation| observation.time);
    for observation in &observations {
        opener.case.observe(observation);
    }
    Ok(collection.redactor().clone())
}

/// Reads one item. Returns whether this or an earlier item contained a journal.
fn read_item(
    opener: &mut Opener<'_, '_>,
    running: &Running,
    observations: &mut Vec<Observation>,
    mut has_journal: bool,
) -> bool {
    loop {
        let pieces = Pieces { running, state: State::Open };
        let (name, result, state) = match running.next() {
            Ok(None) => return has_journal,
            Err(trouble) => {
                opener.case.fail_source(running.id(), trouble.to_string());
                return has_journal;
            }
            Ok(Some(Piece::Record(Record { item, content: Some(content) }))) => {
                let name = running.location(&item);
                (name.clone(), opener.given(&name, &mut Cursor::new(content)), State::Ended)
            }
            Ok(Some(Piece::Record(Record { item, content: None }))) => {
                opener.fail(&running.location(&item), &item);
                continue;
            }
            Ok(Some(Piece::Observed(observation))) => {
                observations.push(observation);
                continue;
            }
            // Skips the file's pieces.
            Ok(Some(Piece::File { path, .. })) if has_journal && owner::is_shared_log(&path) => continue,
            Ok(Some(Piece::File { path, metadata })) => {
                let mut reader = FileReader { pieces, bytes: Cursor::default() };
                let result = opener.file_of_machine(&path, metadata, &mut reader);
                (path, result, reader.pieces.state)
            }
            Ok(Some(Piece::Journal { name })) => {
                has_journal = true;
                let mut reader = EntryReader { pieces, batch: Vec::new().into_iter() };
                let result = opener.journal(&name, &mut reader);
                (name, result, reader.pieces.state)
            }
            // Remaining pieces of a file or journal that was not read completely.
            Ok(Some(Piece::Bytes(_) | Piece::Entries(_) | Piece::End(_))) => continue,
        };
        if let Err(error) = result {
            opener.case.fail_source(&name, chain(&error).to_string());
        }
        if state == State::TimedOut {
            return has_journal;
        }
    }
}

/// Reads the kernel's ring buffer, the only kernel log without a journal.
fn kernel_messages(opener: &mut Opener<'_, '_>, host: &Host) {
    let result = match kmsg::RingBuffer::open(host) {
        Ok(None) => return,
        Ok(Some(buffer)) => opener.journal(kmsg::PATH, buffer),
        Err(error) => Err(OpenError::Read(error)),
    };
    if let Err(error) = result {
        opener.case.fail_source(kmsg::PATH, chain(&error).to_string());
    }
}

// === impl Opener ===

impl Opener<'_, '_> {
    /// Records an unreadable source. A missing source is not a failure.
    fn fail(&mut self, name: &str, record: &BundleItem) {
        let error = match &record.outcome {
            ItemOutcome::Failed { error } => error.clone(),
            ItemOutcome::TimedOut => Trouble::TimedOut.to_string(),
            _ => return,
        };
        self.case.fail_source(name, error);
    }
}

// === impl Pieces ===

impl Pieces<'_> {
    /// Returns the next piece; `None` at the end.
    fn next(&mut self) -> io::Result<Option<Piece>> {
        if self.state != State::Open {
            return Ok(None);
        }
        match self.running.next() {
            Ok(Some(Piece::End(result))) => {
                self.state = State::Ended;
                result.map(|()| None).map_err(io::Error::other)
            }
            Ok(Some(piece)) => Ok(Some(piece)),
            Ok(None) => {
                self.state = State::Ended;
                Err(io::Error::other("the collector ended without a result"))
            }
            Err(trouble) => {
                self.state = State::TimedOut;
                Err(io::Error::other(trouble))
            }
        }
    }
}

// === impl FileReader ===

impl Read for FileReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.bytes.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            match self.pieces.next()? {
                Some(Piece::Bytes(bytes)) => self.bytes = Cursor::new(bytes),
                Some(_) => {}
                None => return Ok(0),
            }
        }
    }
}

// === impl EntryReader ===

impl Entries for &mut EntryReader<'_> {
    fn next_parts(&mut self) -> io::Result<Option<Parts>> {
        loop {
            if let Some(parts) = self.batch.next() {
                return Ok(Some(parts));
            }
            match self.pieces.next()? {
                Some(Piece::Entries(batch)) => self.batch = batch.into_iter(),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }
}
