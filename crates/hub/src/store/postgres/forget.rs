//! Retention in the PostgreSQL store.
//!
//! Old rows are deleted in small portions, so that reports are not delayed. One hub at a time performs it; the
//! others find the lock taken.
//!
//! The log of reports refers to a report only by number and ID, to keep inserts cheap. Entries of a deleted node
//! stay until they expire; they contain no content.

use deadpool_postgres::{Object, Transaction};
use jiff::Timestamp;

use super::super::Pruned;
use super::super::columns::micros;
use super::accept::CHANGED;
use super::{Trouble, loose, progress};
use crate::name::NodeName;

/// Number of rows deleted per transaction: a few milliseconds of work.
const PORTION: i64 = 2000;
/// Advisory lock of the hub that deletes rows; any number that is otherwise unused in this database.
const FORGETTING: i64 = 0x6c61_6e64_6661_6c02;

// The displayed report stays regardless of its age.
const OLD_BODIES: &str = "DELETE FROM bodies WHERE id IN (SELECT b.id FROM bodies b WHERE b.received < $2 AND NOT EXISTS \
     (SELECT 1 FROM nodes n WHERE n.id = b.node AND (n.body = b.id OR n.turn = b.id)) ORDER BY b.received LIMIT $1)";
// Reports are numbered in order of arrival, so the oldest ones are first.
const OLD_REPORTS: &str = "SELECT max(number) FROM (SELECT number, received FROM reports ORDER BY number LIMIT $1) AS first \
     WHERE received < $2";
const REMOVE_REPORTS: &str = "WITH gone AS (DELETE FROM reports WHERE number <= $1 RETURNING boot, sequence), \
     floors AS (UPDATE boots SET floor = greatest(floor, high.sequence) FROM \
     (SELECT boot, max(sequence) AS sequence FROM gone GROUP BY boot) AS high WHERE boots.id = high.boot) \
     SELECT count(*) FROM gone";
const REMOVE_NODE: &str = "DELETE FROM nodes WHERE name = $1 RETURNING id, key";
const REMOVE_BOOTS: &str = "DELETE FROM boots WHERE node = $1";
// The newest report of a deleted node is remembered for its key, if it has one.
const REMOVE_PULSE: &str = "WITH gone AS (DELETE FROM pulses WHERE node = $1 RETURNING boot, sequence, \
     least(time, last_seen) AS moment) INSERT INTO forgotten SELECT $2::text, $3::bytea, b.name, b.number, gone.sequence, \
     gone.moment, $4::bigint FROM gone JOIN boots b ON b.id = gone.boot WHERE $3::bytea IS NOT NULL \
     ON CONFLICT (name, key) DO UPDATE SET boot = excluded.boot, boot_number = excluded.boot_number, \
     sequence = excluded.sequence, moment = excluded.moment, since = excluded.since";
const OLD_FORGOTTEN: &str =
    "DELETE FROM forgotten WHERE (name, key) IN (SELECT name, key FROM forgotten WHERE since < $1 LIMIT $2)";
const REMOVE_BODIES: &str =
    "DELETE FROM bodies WHERE id IN (SELECT id FROM bodies WHERE node = $1 ORDER BY node, kind, id LIMIT $2)";

/// A deleted node.
pub(super) struct Forgotten {
    /// Its ID; `None` if it only reported progress of an in-place bootstrap.
    pub(super) node: Option<i64>,
}

pub(super) async fn old(
    client: &mut Object,
    older_than: Timestamp,
    bundles_older_than: Timestamp,
    slot: i64,
) -> Result<Pruned, Trouble> {
    let limit = micros(older_than);
    let transaction = client.transaction().await?;
    let mine = transaction.prepare_cached("SELECT pg_try_advisory_xact_lock($1)").await?;
    if !transaction.query_one(&mine, &[&FORGETTING]).await?.try_get::<_, bool>(0)? {
        return Ok(Pruned::default());
    }
    let mut pruned = Pruned { reports: reports(&transaction, limit).await?, ..Pruned::default() };
    // The search for old bodies passes over all displayed old ones. It therefore runs after the old reports are
    // deleted, not with every portion.
    if pruned.reports < PORTION.cast_unsigned() {
        let bodies = transaction.prepare_cached(OLD_BODIES).await?;
        pruned.turns = transaction.execute(&bodies, &[&PORTION, &limit]).await?;
    }
    pruned.bundles = loose::prune(&transaction, micros(bundles_older_than), PORTION).await?;
    progress::prune(&transaction, limit, PORTION).await?;
    let forgotten = transaction.prepare_cached(OLD_FORGOTTEN).await?;
    transaction.execute(&forgotten, &[&limit, &PORTION]).await?;
    if pruned != Pruned::default() {
        let statement = transaction.prepare_cached(CHANGED).await?;
        transaction.execute(&statement, &[&slot]).await?;
    }
    transaction.commit().await?;
    Ok(pruned)
}

async fn reports(transaction: &Transaction<'_>, limit: i64) -> Result<u64, Trouble> {
    let last = transaction.prepare_cached(OLD_REPORTS).await?;
    let last: Option<i64> = transaction.query_one(&last, &[&PORTION, &limit]).await?.try_get(0)?;
    let Some(last) = last else { return Ok(0) };
    let gone = transaction.prepare_cached(REMOVE_REPORTS).await?;
    super::row::count(&transaction.query_one(&gone, &[&last]).await?, 0)
}

/// Deletes the node with its boots, progress and bundle records. [`bodies`] deletes its reports afterwards.
pub(super) async fn node(
    client: &mut Object,
    name: &NodeName,
    slot: i64,
) -> Result<Option<Forgotten>, Trouble> {
    let transaction = client.transaction().await?;
    let node = transaction.query_opt(REMOVE_NODE, &[&name.as_str()]).await?;
    let node: Option<(i64, Option<Vec<u8>>)> =
        node.map(|row| Ok::<_, Trouble>((row.try_get(0)?, row.try_get(1)?))).transpose()?;
    let told = progress::forget(&transaction, name).await?;
    if node.is_none() && !told {
        return Ok(None);
    }
    if let Some((node, key)) = &node {
        let now = micros(Timestamp::now());
        transaction.execute(REMOVE_PULSE, &[node, &name.as_str(), key, &now]).await?;
        transaction.execute(REMOVE_BOOTS, &[node]).await?;
    }
    loose::forget(&transaction, name).await?;
    transaction.execute(CHANGED, &[&slot]).await?;
    transaction.commit().await?;
    Ok(Some(Forgotten { node: node.map(|(node, _)| node) }))
}

/// Deletes a portion of the node's reports and returns their number.
pub(super) async fn bodies(client: &Object, node: i64) -> Result<u64, Trouble> {
    let statement = client.prepare_cached(REMOVE_BODIES).await?;
    Ok(client.execute(&statement, &[&node, &PORTION]).await?)
}

#[cfg(test)]
mod tests {
    use landfall_testkit::{Postgres, have};

    use super::super::super::PostgresPlace;
    use super::super::PostgresStore;
    use super::*;

    #[tokio::test]
    async fn nothing_is_forgotten_by_looking_at_everything() {
        if !have(Postgres::NEEDS) {
            return;
        }
        let postgres = Postgres::shared().unwrap();
        let url = postgres.database().unwrap();
        drop(PostgresStore::open(&PostgresPlace::parse(&url).unwrap()).await.unwrap());
        let database = url.rsplit('/').next().unwrap();
        let plan = |statement: &str| {
            let statement = statement.replace("$1", "1").replace("$2", "2");
            let statement =
                statement.replace("name = 1", "name = 'n1'").replace("$3", "'x'").replace("$4", "4");
            // The tables are empty here. Disabling sequential scans shows if an index could be used.
            postgres.sql(database, &format!("SET enable_seqscan = off; EXPLAIN {statement}")).unwrap()
        };
        for statement in [
            OLD_BODIES,
            OLD_REPORTS,
            REMOVE_REPORTS,
            REMOVE_NODE,
            REMOVE_BOOTS,
            REMOVE_PULSE,
            REMOVE_BODIES,
            OLD_FORGOTTEN,
        ] {
            let plan = plan(statement);
            assert!(plan.contains("Index") && !plan.contains("Seq Scan"), "{statement}\n{plan}");
        }
        let old_bodies = plan(OLD_BODIES);
        let from_index = "Index Only Scan using bodies_by_time on bodies b";
        assert!(
            old_bodies.contains(from_index),
            "what is shown is passed over without reading it: {old_bodies}"
        );
        let by_node = plan("DELETE FROM reports WHERE node = $1");
        assert!(by_node.contains("Seq Scan on reports"), "the test can tell: {by_node}");
    }
}
