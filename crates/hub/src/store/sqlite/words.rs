//! The words of bodies, for search.
//!
//! The index is cheap for many bodies at once and dear for one: each transaction that adds to it writes a segment of its own,
//! which is merged with others later. So words wait in memory until there are enough of them, or until somebody searches. What
//! is not in the index yet is known in the file; after a crash it is read from the bodies themselves.

use landfall_model::chain;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::row;
use crate::receive;

/// Bodies that wait: enough to make the index cheap, few enough to be added within some milliseconds.
const ENOUGH: usize = 128;
/// The same for the bytes of their words.
const ENOUGH_BYTES: usize = 1 << 20;

/// A body and its words.
pub(super) type Words = (i64, String);

#[derive(Debug, Default)]
pub(super) struct Backlog {
    waiting: Vec<Words>,
    bytes: usize,
    /// Some were let go, so that the file must go on saying from where the index is not whole.
    torn: bool,
}

// === impl Backlog ===

impl Backlog {
    pub(super) fn add(&mut self, words: Vec<Words>) {
        self.bytes += words.iter().map(|(_, text)| text.len()).sum::<usize>();
        self.waiting.extend(words);
    }

    pub(super) fn is_enough(&self) -> bool {
        self.waiting.len() >= ENOUGH || self.bytes >= ENOUGH_BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds all that wait to the index, inside a transaction of the caller's, who says then whether that [ended](Self::end)
    /// well.
    pub(super) fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        for (body, text) in &self.waiting {
            add(connection, *body, text)?;
        }
        match self.waiting.last() {
            Some((last, _)) if !self.torn => whole_up_to(connection, *last),
            _ => Ok(()),
        }
    }

    pub(super) fn end(&mut self, well: bool) {
        if !well && !self.waiting.is_empty() {
            // It must not keep reports out for ever.
            tracing::warn!("Words for search could not be added; they will be when the hub starts anew.");
            self.torn = true;
        }
        self.waiting.clear();
        self.bytes = 0;
    }
}

/// Adds what was not added before the last process ended.
pub(super) fn catch_up(connection: &Connection) -> rusqlite::Result<()> {
    let known: Option<i64> =
        connection.query_row("SELECT body FROM indexed", [], |row| row.get(0)).optional()?;
    let Some(known) = known else {
        // An earlier version added them at once.
        connection.execute("INSERT INTO indexed SELECT ifnull(max(id), 0) FROM bodies", [])?;
        return Ok(());
    };
    let mut bodies = connection.prepare("SELECT id, data FROM bodies WHERE id > ?1 ORDER BY id")?;
    let mut rows = bodies.query([known])?;
    let mut last = known;
    while let Some(row) = rows.next()? {
        let (body, report) = (row.get(0)?, row::unpack(row, 1)?);
        last = body;
        match receive::written(&report) {
            Ok(report) => add(connection, body, &receive::words(&report))?,
            Err(error) => tracing::warn!(error = %chain(&error), "A stored report cannot be searched."),
        }
    }
    whole_up_to(connection, last)
}

/// Says that every body with this number or a lower one can be found.
fn whole_up_to(connection: &Connection, body: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("UPDATE indexed SET body = ?1")?.execute([body]).map(drop)
}

/// To be called when bodies were forgotten: their numbers are given again.
pub(super) fn forgotten(connection: &Connection) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE indexed SET body = min(body, (SELECT ifnull(max(id), 0) FROM bodies))")?
        .execute([])
        .map(drop)
}

fn add(connection: &Connection, body: i64, text: &str) -> rusqlite::Result<()> {
    // An earlier version may have added it meanwhile.
    connection
        .prepare_cached("INSERT OR REPLACE INTO words (rowid, text) VALUES (?1, ?2)")?
        .execute(params![body, text])
        .map(drop)
}
