//! Records of bundles, and orphaned objects.

use deadpool_postgres::{Object, Transaction};
use jiff::Timestamp;
use tokio_postgres::types::ToSql;

use super::super::columns::micros;
use super::super::loose::{ARRIVING, GivenUp, LEAVING, PORTION, REMOVING};
use super::super::{BundleRecord, MAX_BUNDLES};
use super::Trouble;
use super::accept::CHANGED;
use crate::name::NodeName;

const EXPECT: &str = "INSERT INTO loose VALUES ($1, $2, $3) ON CONFLICT (digest) DO UPDATE SET state = $2, since = $3 \
     WHERE loose.state <> $4 OR loose.since < $5";
/// Deletes records; their objects are removed afterwards unless the same bundle is sent again.
const OLD: &str = "WITH gone AS (DELETE FROM bundles WHERE digest IN (SELECT digest FROM bundles WHERE received < $1 \
     ORDER BY received LIMIT $2) RETURNING digest) \
     INSERT INTO loose SELECT digest, $3::text, $4::bigint FROM gone ON CONFLICT (digest) DO NOTHING";
const TOO_MANY: &str = "WITH gone AS (DELETE FROM bundles WHERE digest IN (SELECT digest FROM bundles WHERE node = $1 \
     ORDER BY received DESC, digest OFFSET $2) RETURNING digest) \
     INSERT INTO loose SELECT digest, $3::text, $4::bigint FROM gone ON CONFLICT (digest) DO NOTHING";
const TAKE: &str = "UPDATE loose SET state = $4, since = $6 WHERE digest IN (SELECT digest FROM loose l WHERE (l.state = $1 \
     OR (l.state = $2 AND l.since < $3) OR (l.state = $4 AND l.since < $5)) \
     AND NOT EXISTS (SELECT 1 FROM bundles b WHERE b.digest = l.digest) LIMIT $7 FOR UPDATE SKIP LOCKED) RETURNING digest";
const MAKE: &str = "INSERT INTO loose SELECT digest, $2::text, $3::bigint FROM unnest($1::text[]) AS w(digest) \
     WHERE NOT EXISTS (SELECT 1 FROM bundles b WHERE b.digest = w.digest) ON CONFLICT (digest) DO NOTHING";

pub(super) async fn expect(client: &Object, digest: &str, now: Timestamp) -> Result<bool, Trouble> {
    let statement = client.prepare_cached(EXPECT).await?;
    let (since, given_up) = (micros(now), GivenUp::at(now).removing);
    Ok(client.execute(&statement, &[&digest, &ARRIVING, &since, &REMOVING, &given_up]).await? > 0)
}

pub(super) async fn add(client: &mut Object, bundle: &BundleRecord, slot: i64) -> Result<bool, Trouble> {
    let transaction = client.transaction().await?;
    let arrived = transaction.prepare_cached("DELETE FROM loose WHERE digest = $1 AND state = $2").await?;
    if transaction.execute(&arrived, &[&bundle.digest, &ARRIVING]).await? == 0 {
        // Another upload of the same bundle was faster, or this is a retry after a lost response, unless the bundle
        // was deleted since.
        let known = transaction.prepare_cached("SELECT 1 FROM bundles WHERE digest = $1").await?;
        return Ok(transaction.query_opt(&known, &[&bundle.digest]).await?.is_some());
    }
    let statement = transaction
        .prepare_cached("INSERT INTO bundles VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING")
        .await?;
    let (bytes, files) = (bundle.bytes.cast_signed(), bundle.files.cast_signed());
    let received = micros(bundle.received);
    let values: [&(dyn ToSql + Sync); 6] =
        [&bundle.digest, &bundle.node, &received, &bytes, &files, &bundle.cut];
    transaction.execute(&statement, &values).await?;
    too_many(&transaction, &bundle.node, MAX_BUNDLES).await?;
    let statement = transaction.prepare_cached(CHANGED).await?;
    transaction.execute(&statement, &[&slot]).await?;
    transaction.commit().await?;
    Ok(true)
}

/// Deletes a portion of the older bundles.
pub(super) async fn prune(transaction: &Transaction<'_>, before: i64, portion: i64) -> Result<u64, Trouble> {
    let statement = transaction.prepare_cached(OLD).await?;
    let now = micros(Timestamp::now());
    Ok(transaction.execute(&statement, &[&before, &portion, &LEAVING, &now]).await?)
}

pub(super) async fn forget(transaction: &Transaction<'_>, node: &NodeName) -> Result<(), Trouble> {
    too_many(transaction, node.as_str(), 0).await
}

/// Deletes the bundles of a node beyond the newest ones.
async fn too_many(transaction: &Transaction<'_>, node: &str, newest: i64) -> Result<(), Trouble> {
    let statement = transaction.prepare_cached(TOO_MANY).await?;
    let now = micros(Timestamp::now());
    transaction.execute(&statement, &[&node, &newest, &LEAVING, &now]).await?;
    Ok(())
}

/// Returns objects that the caller must remove now.
pub(super) async fn take(client: &Object, now: Timestamp) -> Result<Vec<String>, Trouble> {
    let (since, given_up) = (micros(now), GivenUp::at(now));
    let statement = client.prepare_cached(TAKE).await?;
    let values: [&(dyn ToSql + Sync); 7] =
        [&LEAVING, &ARRIVING, &given_up.arriving, &REMOVING, &given_up.removing, &since, &PORTION];
    let rows = client.query(&statement, &values).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

pub(super) async fn removed(client: &Object, digest: &str) -> Result<(), Trouble> {
    let statement = client.prepare_cached("DELETE FROM loose WHERE digest = $1 AND state = $2").await?;
    client.execute(&statement, &[&digest, &REMOVING]).await?;
    Ok(())
}

pub(super) async fn make(client: &Object, digests: &[String], now: Timestamp) -> Result<u64, Trouble> {
    let statement = client.prepare_cached(MAKE).await?;
    Ok(client.execute(&statement, &[&digests, &LEAVING, &micros(now)]).await?)
}
