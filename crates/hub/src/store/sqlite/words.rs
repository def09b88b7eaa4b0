//! The search index of the bodies.
//!
//! Each transaction that adds to the index writes a segment, which is later merged with others. Adding many bodies
//! at once is therefore cheap, and adding a single one is expensive. Texts wait in memory until there are enough of
//! them, or until a search. The file records which bodies are indexed; after a crash, the others are read from the
//! bodies themselves.

use landfall_model::chain;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::row;
use crate::receive;

/// Number of pending bodies that are indexed together. It is large enough to make indexing cheap and small enough to
/// complete within milliseconds.
const ENOUGH: usize = 128;
/// Limit on the total size of their texts.
const ENOUGH_BYTES: usize = 1 << 20;

/// ID of a body, and its text.
pub(super) type Words = (i64, String);

#[derive(Debug, Default)]
pub(super) struct Backlog {
    waiting: Vec<Words>,
    bytes: usize,
    /// Some texts were dropped, so the file must keep the position from which the index is incomplete.
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

    /// Adds all pending texts to the index inside the caller's transaction. The caller reports the result of the
    /// transaction to [`end`](Self::end).
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
            // A failing index must not block reports permanently.
            tracing::warn!("search index update failed; it is repeated when the hub restarts");
            self.torn = true;
        }
        self.waiting.clear();
        self.bytes = 0;
    }
}

/// Indexes the bodies that were pending when the last process ended.
pub(super) fn catch_up(connection: &Connection) -> rusqlite::Result<()> {
    let known: Option<i64> =
        connection.query_row("SELECT body FROM indexed", [], |row| row.get(0)).optional()?;
    let Some(known) = known else {
        // An earlier version indexed every body immediately.
        connection.execute("INSERT INTO indexed SELECT ifnull(max(id), 0) FROM bodies", [])?;
        return Ok(());
    };
    let mut bodies = connection.prepare("SELECT id, data FROM bodies WHERE id > ?1 ORDER BY id")?;
    let mut rows = bodies.query([known])?;
    let mut last = known;
    while let Some(row) = rows.next()? {
        let (body, report) = (row.get(0)?, row::unpack(row, 1)?);
        last = body;
        match serde_json::from_str(&report) {
            Ok(report) => add(connection, body, &receive::words(&report))?,
            Err(error) => tracing::warn!(error = %chain(&error), "A stored report cannot be searched."),
        }
    }
    whole_up_to(connection, last)
}

/// Records that all bodies up to this ID are indexed.
fn whole_up_to(connection: &Connection, body: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("UPDATE indexed SET body = ?1")?.execute([body]).map(drop)
}

/// Adjusts the indexed position after bodies were deleted, because their IDs are used again.
pub(super) fn forgotten(connection: &Connection) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE indexed SET body = min(body, (SELECT ifnull(max(id), 0) FROM bodies))")?
        .execute([])
        .map(drop)
}

fn add(connection: &Connection, body: i64, text: &str) -> rusqlite::Result<()> {
    // An earlier version may have indexed it in the meantime.
    connection
        .prepare_cached("INSERT OR REPLACE INTO words (rowid, text) VALUES (?1, ?2)")?
        .execute(params![body, text])
        .map(drop)
}
