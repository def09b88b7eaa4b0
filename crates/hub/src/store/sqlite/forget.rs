//! Retention in the SQLite store.
//!
//! Old rows are deleted in small portions, so that reports are not delayed.
//!
//! The log of reports refers to a report only by number and ID, to keep inserts cheap. Entries of a deleted node
//! stay until they expire; they contain no content.

use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _};

use super::super::Pruned;
use super::super::columns::micros;
use super::super::forgotten::Last;
use super::{loose, progress, words};
use crate::name::NodeName;

/// Number of rows deleted per transaction: a few milliseconds of work.
const PORTION: i64 = 2000;

// Reports are numbered in order of arrival, so the oldest ones are first.
const OLD_REPORTS: &str = "SELECT max(number) FROM (SELECT number, received FROM reports ORDER BY number LIMIT ?1) WHERE received < ?2";
const FLOORS: &str = "UPDATE boots SET floor = max(floor, gone.sequence) FROM \
     (SELECT boot, max(sequence) AS sequence FROM reports WHERE number <= ?1 GROUP BY boot) AS gone WHERE boots.id = gone.boot";
// The displayed report stays regardless of its age.
const OLD_BODIES: &str = "SELECT b.id FROM bodies b WHERE b.received < ?2 AND NOT EXISTS \
     (SELECT 1 FROM nodes n WHERE n.id = b.node AND (n.body = b.id OR n.turn = b.id)) ORDER BY b.received LIMIT ?1";
const BODIES_OF: &str = "SELECT id FROM bodies WHERE node = ?1 LIMIT ?2";
const REMOVE_BOOTS: &str = "DELETE FROM boots WHERE node = ?1";
const REMEMBER: &str = "INSERT OR REPLACE INTO forgotten SELECT n.name, n.key, b.name, b.number, p.sequence, \
     min(p.time, p.last_seen), ?2 FROM nodes n JOIN pulses p ON p.node = n.id JOIN boots b ON b.id = p.boot \
     WHERE n.id = ?1 AND n.key IS NOT NULL";
const LAST: &str = "SELECT boot, boot_number, sequence, moment FROM forgotten WHERE name = ?1 AND key = ?2";
const OLD_FORGOTTEN: &str =
    "DELETE FROM forgotten WHERE (name, key) IN (SELECT name, key FROM forgotten WHERE since < ?1 LIMIT ?2)";

/// A deleted node.
pub(super) struct Forgotten {
    /// Its ID; `None` if it only reported progress of an in-place bootstrap.
    pub(super) node: Option<i64>,
}

pub(super) fn old(
    connection: &Connection,
    older_than: Timestamp,
    bundles_older_than: Timestamp,
) -> rusqlite::Result<Pruned> {
    let limit = micros(older_than);
    let last: Option<i64> =
        connection.prepare_cached(OLD_REPORTS)?.query_row([PORTION, limit], |row| row.get(0))?;
    let mut pruned = Pruned::default();
    if let Some(last) = last {
        connection.prepare_cached(FLOORS)?.execute([last])?;
        pruned.reports =
            connection.prepare_cached("DELETE FROM reports WHERE number <= ?1")?.execute([last])? as u64;
    }
    // The search for old bodies passes over all displayed old ones. It therefore runs after the old reports are
    // deleted, not with every portion.
    if pruned.reports < PORTION.cast_unsigned() {
        pruned.turns = remove_bodies(connection, OLD_BODIES, [PORTION, limit])?;
    }
    progress::prune(connection, limit, PORTION)?;
    connection.prepare_cached(OLD_FORGOTTEN)?.execute([limit, PORTION])?;
    pruned.bundles = loose::prune(connection, micros(bundles_older_than), PORTION)?;
    Ok(pruned)
}

/// Deletes the node with its boots, progress and bundle records. [`bodies`] deletes its reports afterwards.
pub(super) fn node(connection: &Connection, name: &NodeName) -> rusqlite::Result<Option<Forgotten>> {
    let told = progress::forget(connection, name)?;
    let node: Option<i64> = connection
        .query_row("SELECT id FROM nodes WHERE name = ?1", [name.as_str()], |row| row.get(0))
        .optional()?;
    if let Some(node) = node {
        connection.execute(
            "UPDATE highest SET node = max(node, ?1), boot = max(boot, (SELECT ifnull(max(id), 0) FROM boots WHERE node = ?1))",
            [node],
        )?;
        connection.execute(REMEMBER, [node, micros(Timestamp::now())])?;
        connection.execute(REMOVE_BOOTS, [node])?;
        connection.execute("DELETE FROM pulses WHERE node = ?1", [node])?;
        connection.execute("DELETE FROM nodes WHERE id = ?1", [node])?;
    }
    if !told && node.is_none() {
        return Ok(None);
    }
    loose::forget(connection, name)?;
    Ok(Some(Forgotten { node }))
}

/// Returns the newest report of a node that was deleted with this pinned key.
pub(super) fn last(connection: &Connection, name: &NodeName, key: &[u8]) -> rusqlite::Result<Option<Last>> {
    let last = |row: &rusqlite::Row<'_>| {
        let (boot, boot_number) = (row.get(0)?, row.get(1)?);
        Ok(Last { boot, boot_number, sequence: row.get(2)?, moment: row.get(3)? })
    };
    connection.prepare_cached(LAST)?.query_row(rusqlite::params![name.as_str(), key], last).optional()
}

/// Deletes a portion of the node's reports and returns their number.
pub(super) fn bodies(connection: &Connection, node: i64) -> rusqlite::Result<u64> {
    remove_bodies(connection, BODIES_OF, [node, PORTION])
}

fn remove_bodies(connection: &Connection, which: &str, values: [i64; 2]) -> rusqlite::Result<u64> {
    let bodies: Vec<i64> = connection
        .prepare_cached(which)?
        .query_map(values, |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for body in &bodies {
        connection.prepare_cached("DELETE FROM words WHERE rowid = ?1")?.execute([body])?;
        connection.prepare_cached("DELETE FROM bodies WHERE id = ?1")?.execute([body])?;
    }
    words::forgotten(connection)?;
    Ok(bodies.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::super::tests::plan;
    use super::*;

    #[test]
    fn nothing_is_forgotten_by_looking_at_everything() {
        for statement in [OLD_BODIES, BODIES_OF, FLOORS, REMOVE_BOOTS, REMEMBER, LAST, OLD_FORGOTTEN] {
            let plan = plan(statement);
            let all = ["SCAN b", "SCAN reports", "SCAN n", "SCAN p", "SCAN forgotten"];
            assert!(!all.iter().any(|all| plan.contains(all)), "{statement}\n{plan}");
        }
        assert!(
            plan(OLD_BODIES).contains("USING COVERING INDEX bodies_by_time (received<?)"),
            "{}",
            plan(OLD_BODIES)
        );
        // This query scans the table, but its number of rows is limited.
        assert!(plan(OLD_REPORTS).contains("SCAN reports") && OLD_REPORTS.contains("LIMIT"));
    }
}
