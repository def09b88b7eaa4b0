//! In-place bootstraps: storage of progress events, and queries for the newest attempt.

use deadpool_postgres::{Object, Transaction};
use jiff::Timestamp;
use landfall_model::in_place::Progress;
use tokio_postgres::Row;

use super::super::columns::micros;
use super::super::{Heard, MAX_ATTEMPTS, MAX_EVENTS, ProgressEvent, ProgressLine};
use super::Trouble;
use super::accept::CHANGED;
use super::row;
use crate::name::NodeName;

pub(super) async fn add(
    client: &mut Object,
    node: &NodeName,
    progress: &Progress,
    received: Timestamp,
    slot: i64,
) -> Result<Heard, Trouble> {
    let data =
        serde_json::to_string(progress).map_err(|error| Trouble::Packing(std::io::Error::other(error)))?;
    let transaction = client.transaction().await?;
    let heard = add_within(&transaction, node, progress, &data, micros(received)).await?;
    if heard == Heard::Stored {
        let changed = transaction.prepare_cached(CHANGED).await?;
        transaction.execute(&changed, &[&slot]).await?;
    }
    transaction.commit().await?;
    Ok(heard)
}

async fn add_within(
    transaction: &Transaction<'_>,
    node: &NodeName,
    progress: &Progress,
    data: &str,
    received: i64,
) -> Result<Heard, Trouble> {
    let attempt = attempt(transaction, node, &progress.attempt, received).await?;
    let sequence = progress.sequence.cast_signed();
    let known =
        transaction.prepare_cached("SELECT data FROM progress WHERE attempt = $1 AND sequence = $2").await?;
    if let Some(known) = transaction.query_opt(&known, &[&attempt, &sequence]).await? {
        return Ok(if known.try_get::<_, &str>(0)? == data { Heard::Duplicate } else { Heard::Taken });
    }
    let kept =
        transaction.prepare_cached("SELECT count(*), min(sequence) FROM progress WHERE attempt = $1").await?;
    let kept = transaction.query_one(&kept, &[&attempt]).await?;
    if row::count(&kept, 0)? >= u64::from(MAX_EVENTS) {
        let first: Option<i64> = kept.try_get(1)?;
        if first.is_some_and(|first| sequence < first) {
            return Ok(Heard::Duplicate);
        }
        let room =
            transaction.prepare_cached("DELETE FROM progress WHERE attempt = $1 AND sequence = $2").await?;
        transaction.execute(&room, &[&attempt, &first]).await?;
    }
    let event = transaction.prepare_cached("INSERT INTO progress VALUES ($1, $2, $3, $4)").await?;
    transaction.execute(&event, &[&attempt, &sequence, &received, &data]).await?;
    let heard = transaction.prepare_cached("UPDATE attempts SET last = $2 WHERE id = $1").await?;
    transaction.execute(&heard, &[&attempt, &received]).await?;
    Ok(Heard::Stored)
}

/// Returns the ID of an attempt, whose row is then locked for other hubs. A new attempt replaces the oldest one
/// above the limit.
async fn attempt(
    transaction: &Transaction<'_>,
    node: &NodeName,
    name: &str,
    received: i64,
) -> Result<i64, Trouble> {
    let (node, most) = (node.as_str(), i64::from(MAX_ATTEMPTS));
    let known = transaction
        .prepare_cached("SELECT id FROM attempts WHERE node = $1 AND name = $2 FOR UPDATE")
        .await?;
    if let Some(known) = transaction.query_opt(&known, &[&node, &name]).await? {
        return Ok(known.try_get(0)?);
    }
    // If another hub was faster, this fails and is retried.
    let added = transaction
        .prepare_cached(
            "INSERT INTO attempts (id, node, name, last) VALUES (nextval('numbers'), $1, $2, $3) RETURNING id",
        )
        .await?;
    let added: i64 = transaction.query_one(&added, &[&node, &name, &received]).await?.try_get(0)?;
    let too_many = transaction
        .prepare_cached(
            "DELETE FROM attempts WHERE id IN (SELECT id FROM attempts WHERE node = $1 ORDER BY id DESC OFFSET $2)",
        )
        .await?;
    transaction.execute(&too_many, &[&node, &most]).await?;
    Ok(added)
}

/// Returns the events of the newest attempt in order.
pub(super) async fn of_node(client: &Object, node: &NodeName) -> Result<Vec<ProgressEvent>, Trouble> {
    let statement = client
        .prepare_cached(
            "SELECT data, received FROM progress WHERE attempt = (SELECT max(id) FROM attempts WHERE node = $1) \
             ORDER BY sequence",
        )
        .await?;
    let rows = client.query(&statement, &[&node.as_str()]).await?;
    rows.iter().map(|row| event(row, 0)).collect()
}

/// Returns one line per node, most recently received first.
pub(super) async fn lines(client: &Object, limit: u32) -> Result<Vec<ProgressLine>, Trouble> {
    let statement = client
        .prepare_cached(
            "SELECT a.node, p.data, p.received FROM attempts a JOIN progress p ON p.attempt = a.id \
             WHERE a.id IN (SELECT max(id) FROM attempts GROUP BY node) \
             AND p.sequence = (SELECT max(sequence) FROM progress WHERE attempt = a.id) \
             ORDER BY a.last DESC, a.node LIMIT $1",
        )
        .await?;
    let rows = client.query(&statement, &[&i64::from(limit)]).await?;
    rows.iter().map(|row| Ok(ProgressLine { node: row.try_get(0)?, event: event(row, 1)? })).collect()
}

/// Deletes a node's progress; returns whether there was any.
pub(super) async fn forget(transaction: &Transaction<'_>, node: &NodeName) -> Result<bool, Trouble> {
    Ok(transaction.execute("DELETE FROM attempts WHERE node = $1", &[&node.as_str()]).await? > 0)
}

/// Deletes attempts without a recent event.
pub(super) async fn prune(transaction: &Transaction<'_>, limit: i64, portion: i64) -> Result<(), Trouble> {
    let old = transaction
        .prepare_cached(
            "DELETE FROM attempts WHERE id IN (SELECT id FROM attempts WHERE last < $1 ORDER BY last LIMIT $2)",
        )
        .await?;
    transaction.execute(&old, &[&limit, &portion]).await?;
    Ok(())
}

fn event(row: &Row, first: usize) -> Result<ProgressEvent, Trouble> {
    let data: &str = row.try_get(first)?;
    let progress = serde_json::from_str(data).map_err(|_| Trouble::Unknown(data.to_owned()))?;
    Ok(ProgressEvent { progress, received: row::time(row, first + 1)? })
}
