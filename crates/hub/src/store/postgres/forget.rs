//! Retention: what is old is forgotten in small portions, so that reports need not wait for it. Only one hub at a time does
//! it; the others find nothing to do.

use deadpool_postgres::{Object, Transaction};
use jiff::Timestamp;
use tokio_postgres::Row;

use super::super::{MAX_BUNDLES, Pruned};
use super::accept::CHANGED;
use super::row::micros;
use super::{Trouble, progress};
use crate::name::NodeName;

/// Rows forgotten in one transaction: some milliseconds of work.
const PORTION: i64 = 2000;
/// The advisory lock of the hub that forgets: any number that nobody else uses in this database.
const FORGETTING: i64 = 0x6c61_6e64_6661_6c02;

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
    // What the board shows stays, however old.
    let bodies = transaction
        .prepare_cached(
            "DELETE FROM bodies WHERE id IN (SELECT b.id FROM bodies b WHERE b.received < $2 AND NOT EXISTS \
             (SELECT 1 FROM nodes n WHERE n.id = b.node AND (n.body = b.id OR n.turn = b.id)) ORDER BY b.received LIMIT $1)",
        )
        .await?;
    pruned.turns = transaction.execute(&bodies, &[&PORTION, &limit]).await?;
    let bundles = transaction
        .prepare_cached(
            "DELETE FROM bundles WHERE digest IN (SELECT digest FROM (SELECT digest, received, \
             row_number() OVER (PARTITION BY node ORDER BY received DESC) AS place FROM bundles) AS placed \
             WHERE received < $2 OR place > $3 LIMIT $1) RETURNING digest",
        )
        .await?;
    let rows = transaction.query(&bundles, &[&PORTION, &micros(bundles_older_than), &MAX_BUNDLES]).await?;
    pruned.bundles = digests(&rows)?;
    progress::prune(&transaction, limit, PORTION).await?;
    if pruned != Pruned::default() {
        let statement = transaction.prepare_cached(CHANGED).await?;
        transaction.execute(&statement, &[&slot]).await?;
    }
    transaction.commit().await?;
    Ok(pruned)
}

async fn reports(transaction: &Transaction<'_>, limit: i64) -> Result<u64, Trouble> {
    // Reports are in the order of arrival, so the old ones are the first ones.
    let last = transaction
        .prepare_cached(
            "SELECT max(number) FROM (SELECT number, received FROM reports ORDER BY number LIMIT $1) AS first \
             WHERE received < $2",
        )
        .await?;
    let last: Option<i64> = transaction.query_one(&last, &[&PORTION, &limit]).await?.try_get(0)?;
    let Some(last) = last else { return Ok(0) };
    let gone = transaction
        .prepare_cached(
            "WITH gone AS (DELETE FROM reports WHERE number <= $1 RETURNING boot, sequence), \
             floors AS (UPDATE boots SET floor = greatest(floor, high.sequence) FROM \
             (SELECT boot, max(sequence) AS sequence FROM gone GROUP BY boot) AS high WHERE boots.id = high.boot) \
             SELECT count(*) FROM gone",
        )
        .await?;
    super::row::count(&transaction.query_one(&gone, &[&last]).await?, 0)
}

pub(super) async fn node(
    client: &mut Object,
    name: &NodeName,
    slot: i64,
) -> Result<Option<Vec<String>>, Trouble> {
    let transaction = client.transaction().await?;
    let row =
        transaction.query_opt("DELETE FROM nodes WHERE name = $1 RETURNING id", &[&name.as_str()]).await?;
    let told = progress::forget(&transaction, name).await?;
    if row.is_none() && !told {
        return Ok(None);
    }
    if let Some(row) = row {
        let id: i64 = row.try_get(0)?;
        for table in ["reports", "boots", "pulses", "bodies"] {
            transaction.execute(&format!("DELETE FROM {table} WHERE node = $1"), &[&id]).await?;
        }
    }
    let rows =
        transaction.query("DELETE FROM bundles WHERE node = $1 RETURNING digest", &[&name.as_str()]).await?;
    transaction.execute(CHANGED, &[&slot]).await?;
    transaction.commit().await?;
    digests(&rows).map(Some)
}

fn digests(rows: &[Row]) -> Result<Vec<String>, Trouble> {
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}
