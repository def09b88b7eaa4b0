//! Retention: what is old is forgotten in small portions, so that reports need not wait for it.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::super::{MAX_BUNDLES, Pruned};
use super::row::micros;
use super::{progress, words};
use crate::name::NodeName;

/// Rows forgotten in one transaction: some milliseconds of work.
const PORTION: i64 = 2000;

pub(super) fn old(
    connection: &Connection,
    older_than: Timestamp,
    bundles_older_than: Timestamp,
) -> rusqlite::Result<Pruned> {
    let limit = micros(older_than);
    // Reports are in the order of arrival, so the old ones are the first ones.
    let last: Option<i64> = connection
        .prepare_cached(
            "SELECT max(number) FROM (SELECT number, received FROM reports ORDER BY number LIMIT ?1) WHERE received < ?2",
        )?
        .query_row([PORTION, limit], |row| row.get(0))?;
    let mut pruned = Pruned::default();
    if let Some(last) = last {
        connection
            .prepare_cached(
                "UPDATE boots SET floor = max(floor, gone.sequence) FROM \
                 (SELECT boot, max(sequence) AS sequence FROM reports WHERE number <= ?1 GROUP BY boot) AS gone \
                 WHERE boots.id = gone.boot",
            )?
            .execute([last])?;
        pruned.reports =
            connection.prepare_cached("DELETE FROM reports WHERE number <= ?1")?.execute([last])? as u64;
    }
    // What the board shows stays, however old.
    let bodies: Vec<i64> = connection
        .prepare_cached(
            "SELECT b.id FROM bodies b WHERE b.received < ?2 AND NOT EXISTS \
             (SELECT 1 FROM nodes n WHERE n.id = b.node AND (n.body = b.id OR n.turn = b.id)) \
             ORDER BY b.id LIMIT ?1",
        )?
        .query_map([PORTION, limit], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for body in &bodies {
        remove_body(connection, *body)?;
    }
    words::forgotten(connection)?;
    pruned.turns = bodies.len() as u64;
    progress::prune(connection, limit, PORTION)?;
    pruned.bundles = connection
        .prepare_cached(
            "DELETE FROM bundles WHERE digest IN (SELECT digest FROM (SELECT digest, received, \
             row_number() OVER (PARTITION BY node ORDER BY received DESC) AS place FROM bundles) \
             WHERE received < ?2 OR place > ?3 LIMIT ?1) RETURNING digest",
        )?
        .query_map([PORTION, micros(bundles_older_than), MAX_BUNDLES], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    Ok(pruned)
}

pub(super) fn node(connection: &Connection, name: &NodeName) -> rusqlite::Result<Option<Vec<String>>> {
    let told = progress::forget(connection, name)?;
    let id: Option<i64> = connection
        .query_row("SELECT id FROM nodes WHERE name = ?1", [name.as_str()], |row| row.get(0))
        .optional()?;
    let Some(id) = id else { return Ok(told.then(Vec::new)) };
    let bodies: Vec<i64> = connection
        .prepare_cached("SELECT id FROM bodies WHERE node = ?1")?
        .query_map([id], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for body in bodies {
        remove_body(connection, body)?;
    }
    words::forgotten(connection)?;
    for table in ["reports", "boots", "pulses"] {
        connection.execute(&format!("DELETE FROM {table} WHERE node = ?1"), [id])?;
    }
    connection.execute("DELETE FROM nodes WHERE id = ?1", [id])?;
    connection
        .prepare("DELETE FROM bundles WHERE node = ?1 RETURNING digest")?
        .query_map(params![name.as_str()], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()
        .map(Some)
}

fn remove_body(connection: &Connection, body: i64) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM words WHERE rowid = ?1")?.execute([body])?;
    connection.prepare_cached("DELETE FROM bodies WHERE id = ?1")?.execute([body])?;
    Ok(())
}
