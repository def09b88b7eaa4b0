//! Records of bundles, and orphaned objects.

use jiff::Timestamp;
use rusqlite::{Connection, params};

use super::super::columns::micros;
use super::super::loose::{ARRIVING, GivenUp, LEAVING, PORTION, REMOVING};
use super::super::{BundleRecord, MAX_BUNDLES};
use crate::name::NodeName;

pub(super) fn expect(connection: &Connection, digest: &str, now: Timestamp) -> rusqlite::Result<bool> {
    let expected = connection
        .prepare_cached(
            "INSERT INTO loose VALUES (?1, ?2, ?3) ON CONFLICT (digest) DO UPDATE SET state = ?2, since = ?3 \
             WHERE state <> ?4 OR since < ?5",
        )?
        .execute(params![digest, ARRIVING, micros(now), REMOVING, GivenUp::at(now).removing])?;
    Ok(expected > 0)
}

pub(super) fn add(connection: &Connection, bundle: &BundleRecord) -> rusqlite::Result<bool> {
    let is_there = connection
        .prepare_cached("DELETE FROM loose WHERE digest = ?1 AND state = ?2")?
        .execute([bundle.digest.as_str(), ARRIVING])?
        > 0;
    if !is_there {
        // Another upload of the same bundle was faster, unless the bundle was deleted since.
        return connection
            .prepare_cached("SELECT 1 FROM bundles WHERE digest = ?1")?
            .exists([bundle.digest.as_str()]);
    }
    connection.prepare_cached("INSERT OR IGNORE INTO bundles VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?.execute(
        params![
            bundle.digest,
            bundle.node,
            micros(bundle.received),
            bundle.bytes.cast_signed(),
            bundle.files.cast_signed(),
            bundle.cut
        ],
    )?;
    let too_many =
        "SELECT digest FROM bundles WHERE node = ?1 ORDER BY received DESC, digest LIMIT -1 OFFSET ?2";
    let digests = digests(connection, too_many, params![bundle.node, MAX_BUNDLES])?;
    remove_records(connection, &digests, bundle.received)?;
    Ok(true)
}

/// Deletes a portion of the older bundles.
pub(super) fn prune(connection: &Connection, before: i64, portion: i64) -> rusqlite::Result<u64> {
    let digests = digests(connection, OLD, params![before, portion])?;
    remove_records(connection, &digests, Timestamp::now())?;
    Ok(digests.len() as u64)
}

const OLD: &str = "SELECT digest FROM bundles WHERE received < ?1 ORDER BY received LIMIT ?2";

pub(super) fn forget(connection: &Connection, node: &NodeName) -> rusqlite::Result<()> {
    let digests = digests(connection, "SELECT digest FROM bundles WHERE node = ?1", params![node.as_str()])?;
    remove_records(connection, &digests, Timestamp::now())
}

/// Returns objects that the caller must remove now.
pub(super) fn take(connection: &Connection, now: Timestamp) -> rusqlite::Result<Vec<String>> {
    let given_up = GivenUp::at(now);
    let digests = digests(
        connection,
        "SELECT digest FROM loose WHERE (state = ?1 OR (state = ?2 AND since < ?3) OR (state = ?4 AND since < ?5)) \
         AND NOT EXISTS (SELECT 1 FROM bundles WHERE bundles.digest = loose.digest) LIMIT ?6",
        params![LEAVING, ARRIVING, given_up.arriving, REMOVING, given_up.removing, PORTION],
    )?;
    let mut taken = connection.prepare_cached("UPDATE loose SET state = ?2, since = ?3 WHERE digest = ?1")?;
    for digest in &digests {
        taken.execute(params![digest, REMOVING, micros(now)])?;
    }
    Ok(digests)
}

pub(super) fn removed(connection: &Connection, digest: &str) -> rusqlite::Result<()> {
    connection
        .prepare_cached("DELETE FROM loose WHERE digest = ?1 AND state = ?2")?
        .execute([digest, REMOVING])
        .map(drop)
}

pub(super) fn make(connection: &Connection, digests: &[String], now: Timestamp) -> rusqlite::Result<u64> {
    let mut made = 0;
    for digest in digests {
        made += connection
            .prepare_cached(
                "INSERT INTO loose SELECT ?1, ?2, ?3 WHERE NOT EXISTS (SELECT 1 FROM bundles WHERE digest = ?1) \
                 ON CONFLICT (digest) DO NOTHING",
            )?
            .execute(params![digest, LEAVING, micros(now)])?;
    }
    Ok(made as u64)
}

fn digests(
    connection: &Connection,
    query: &str,
    values: impl rusqlite::Params,
) -> rusqlite::Result<Vec<String>> {
    connection.prepare_cached(query)?.query_map(values, |row| row.get(0))?.collect()
}

/// Deletes records; their objects are removed afterwards unless the same bundle is sent again.
fn remove_records(connection: &Connection, digests: &[String], now: Timestamp) -> rusqlite::Result<()> {
    for digest in digests {
        connection.prepare_cached("DELETE FROM bundles WHERE digest = ?1")?.execute([digest])?;
        connection
            .prepare_cached("INSERT INTO loose VALUES (?1, ?2, ?3) ON CONFLICT (digest) DO NOTHING")?
            .execute(params![digest, LEAVING, micros(now)])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::plan;
    use super::*;

    #[test]
    fn what_is_old_is_found_without_looking_at_the_rest() {
        let plan = plan(OLD);
        assert!(plan.contains("bundles_by_time (received<?)"), "{plan}");
    }
}
