//! In-place bootstraps: storage of progress events, and queries for the newest attempt.

use jiff::Timestamp;
use landfall_model::in_place::Progress;
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::super::columns::micros;
use super::super::{Heard, MAX_ATTEMPTS, MAX_EVENTS, ProgressEvent, ProgressLine};
use super::row;
use crate::name::NodeName;

pub(super) fn add(
    connection: &Connection,
    node: &NodeName,
    progress: &Progress,
    received: Timestamp,
) -> rusqlite::Result<Heard> {
    let attempt = attempt(connection, node, &progress.attempt, received)?;
    let sequence = progress.sequence.cast_signed();
    let known: Option<String> = connection
        .prepare_cached("SELECT data FROM progress WHERE attempt = ?1 AND sequence = ?2")?
        .query_row([attempt, sequence], |row| row.get(0))
        .optional()?;
    let data = serde_json::to_string(progress)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    if let Some(known) = known {
        return Ok(if known == data { Heard::Duplicate } else { Heard::Taken });
    }
    let (count, first): (u32, Option<i64>) = connection
        .prepare_cached("SELECT count(*), min(sequence) FROM progress WHERE attempt = ?1")?
        .query_row([attempt], |row| Ok((row.get(0)?, row.get(1)?)))?;
    if count >= MAX_EVENTS {
        if first.is_some_and(|first| sequence < first) {
            return Ok(Heard::Duplicate);
        }
        connection
            .prepare_cached("DELETE FROM progress WHERE attempt = ?1 AND sequence = ?2")?
            .execute(params![attempt, first])?;
    }
    connection.prepare_cached("INSERT INTO progress VALUES (?1, ?2, ?3, ?4)")?.execute(params![
        attempt,
        sequence,
        micros(received),
        data
    ])?;
    connection
        .prepare_cached("UPDATE attempts SET last = ?2 WHERE id = ?1")?
        .execute([attempt, micros(received)])?;
    Ok(Heard::Stored)
}

/// Returns the events of the newest attempt in order.
pub(super) fn of_node(connection: &Connection, node: &NodeName) -> rusqlite::Result<Vec<ProgressEvent>> {
    connection
        .prepare_cached(
            "SELECT data, received FROM progress WHERE attempt = (SELECT max(id) FROM attempts WHERE node = ?1) \
             ORDER BY sequence",
        )?
        .query_map([node.as_str()], |row| event(row, 0))?
        .collect()
}

/// Returns one line per node, most recently received first.
pub(super) fn lines(connection: &Connection, limit: u32) -> rusqlite::Result<Vec<ProgressLine>> {
    connection
        .prepare_cached(
            "SELECT a.node, p.data, p.received FROM attempts a JOIN progress p ON p.attempt = a.id \
             WHERE a.id IN (SELECT max(id) FROM attempts GROUP BY node) \
             AND p.sequence = (SELECT max(sequence) FROM progress WHERE attempt = a.id) \
             ORDER BY a.last DESC, a.node LIMIT ?1",
        )?
        .query_map([limit], |row| Ok(ProgressLine { node: row.get(0)?, event: event(row, 1)? }))?
        .collect()
}

/// Deletes a node's progress; returns whether there was any.
pub(super) fn forget(connection: &Connection, node: &NodeName) -> rusqlite::Result<bool> {
    connection
        .prepare("DELETE FROM progress WHERE attempt IN (SELECT id FROM attempts WHERE node = ?1)")?
        .execute([node.as_str()])?;
    Ok(connection.prepare("DELETE FROM attempts WHERE node = ?1")?.execute([node.as_str()])? > 0)
}

/// Deletes attempts without a recent event.
pub(super) fn prune(connection: &Connection, limit: i64, portion: i64) -> rusqlite::Result<()> {
    let old: Vec<i64> = connection
        .prepare_cached("SELECT id FROM attempts WHERE last < ?1 ORDER BY last LIMIT ?2")?
        .query_map([limit, portion], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    old.into_iter().try_for_each(|attempt| remove(connection, attempt))
}

/// Returns the ID of an attempt. A new attempt replaces the oldest one above the limit.
fn attempt(
    connection: &Connection,
    node: &NodeName,
    name: &str,
    received: Timestamp,
) -> rusqlite::Result<i64> {
    let known = connection
        .prepare_cached("SELECT id FROM attempts WHERE node = ?1 AND name = ?2")?
        .query_row([node.as_str(), name], |row| row.get(0))
        .optional()?;
    if let Some(known) = known {
        return Ok(known);
    }
    connection
        .prepare_cached("INSERT INTO attempts (node, name, last) VALUES (?1, ?2, ?3)")?
        .execute(params![node.as_str(), name, micros(received)])?;
    let added = connection.last_insert_rowid();
    let too_many: Vec<i64> = connection
        .prepare_cached("SELECT id FROM attempts WHERE node = ?1 ORDER BY id DESC LIMIT -1 OFFSET ?2")?
        .query_map(params![node.as_str(), MAX_ATTEMPTS], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    too_many.into_iter().try_for_each(|attempt| remove(connection, attempt))?;
    Ok(added)
}

fn remove(connection: &Connection, attempt: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM progress WHERE attempt = ?1")?.execute([attempt])?;
    connection.prepare_cached("DELETE FROM attempts WHERE id = ?1")?.execute([attempt])?;
    Ok(())
}

fn event(row: &Row<'_>, first: usize) -> rusqlite::Result<ProgressEvent> {
    let data: String = row.get(first)?;
    let progress = serde_json::from_str(&data)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(first, Type::Text, Box::new(error)))?;
    Ok(ProgressEvent { progress, received: row::time(row, first + 1)? })
}
