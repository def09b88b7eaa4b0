//! Reads and writes of a group of reports.
//!
//! A group takes three round trips regardless of its size, one more for new rows, and one more for new nodes.
//!
//! Reads take no locks. Instead, a node's row is changed only if it is unchanged since it was read. If another hub
//! was faster, nothing of the group is written, and the group is decided again.

use deadpool_postgres::Object;
use futures_util::future::try_join_all;
use landfall_model::report::Trust;
use tokio_postgres::types::ToSql;

use super::super::columns::{VerdictRow, micros, rank, text};
use super::super::decide::{self, AcknowledgedReport, Boot, Changes, MAX_BOOTS, NodeRow, StoredState};
use super::super::forgotten::Last;
use super::super::packing;
use super::super::{Arrival, Outcome, Refusal};
use super::Trouble;
use super::row;

const NODES: &str = "SELECT n.name, n.id, n.body, n.turn, n.digest, n.key, p.boot, p.sequence, n.since, n.state, n.cause, \
     n.title, n.phase, n.confidence, coalesce(n.proven_body = n.body, false), least(p.time, p.last_seen), b.number FROM nodes n \
     JOIN pulses p ON p.node = n.id LEFT JOIN boots b ON b.id = p.boot WHERE n.name = ANY($1)";
const BOOTS: &str = "SELECT b.node, b.name, b.id, b.floor, b.number FROM unnest($1::text[], $2::text[]) AS w(node, boot) \
     JOIN nodes n ON n.name = w.node JOIN boots b ON b.node = n.id AND b.name = w.boot";
const SEEN: &str = "SELECT r.id, r.node, r.sequence, r.time, b.digest, EXISTS (SELECT 1 FROM nodes n WHERE n.id = r.node) \
     FROM reports r LEFT JOIN bodies b ON b.id = r.body WHERE r.id = ANY($1)";
const FORGOTTEN: &str =
    "SELECT name, key, boot, boot_number, sequence, moment FROM forgotten WHERE name = ANY($1)";
const NUMBERS: &str = "SELECT nextval('numbers') FROM generate_series(1, $1::bigint)";

const ADD_NODES: &str = "INSERT INTO nodes (id, name, identity, first_seen, body, turn, digest, since, rank, state, cause, title, \
     component, phase, confidence, key, proven_body) SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], \
     $5::bigint[], $6::bigint[], $7::bytea[], $8::bigint[], $9::bigint[], $10::text[], $11::text[], $12::text[], $13::text[], \
     $14::text[], $15::double precision[], $16::bytea[], $17::bigint[])";
const SHOW: &str = "UPDATE nodes n SET identity = w.identity, body = w.body, turn = w.turn, digest = w.digest, since = w.since, \
     rank = w.rank, state = w.state, cause = w.cause, title = w.title, component = w.component, phase = w.phase, \
     confidence = w.confidence, key = w.key, proven_body = w.proven_body FROM unnest($1::bigint[], $2::text[], $3::text[], \
     $4::bigint[], $5::bigint[], $6::bigint[], $7::bytea[], $8::bigint[], $9::bigint[], $10::text[], $11::text[], $12::text[], \
     $13::text[], $14::text[], $15::double precision[], $16::bytea[], $17::bigint[]) AS w(id, name, identity, first_seen, body, \
     turn, digest, since, rank, state, cause, title, component, phase, confidence, key, proven_body) WHERE n.id = w.id";
const ADD_PULSES: &str = "INSERT INTO pulses (node, last_seen, time, boot, sequence, reports) \
     SELECT node, last_seen, time, boot, sequence, reports FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], \
     $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[]) AS w(node, last_seen, time, boot, sequence, reports, a, b)";
const BEAT: &str = "UPDATE pulses p SET last_seen = w.last_seen, time = w.time, boot = w.boot, sequence = w.sequence, \
     reports = p.reports + w.reports FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], \
     $6::bigint[], $7::bigint[], $8::bigint[]) AS w(node, last_seen, time, boot, sequence, reports, read_boot, read_sequence) \
     WHERE p.node = w.node AND p.boot = w.read_boot AND p.sequence = w.read_sequence";
const ADD_BOOTS: &str = "INSERT INTO boots (id, node, name, number) SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::bigint[])";
const NUMBER_BOOTS: &str = "UPDATE boots b SET number = w.number FROM unnest($1::bigint[], $2::bigint[]) AS w(id, number) \
     WHERE b.id = w.id AND b.number IS NULL";
const FORGET_BOOTS: &str = "DELETE FROM boots b USING (SELECT id, row_number() OVER (PARTITION BY node ORDER BY id DESC) AS place \
     FROM boots WHERE node = ANY($1)) AS old WHERE b.id = old.id AND old.place > $2 \
     AND NOT EXISTS (SELECT 1 FROM pulses p WHERE p.node = b.node AND p.boot = b.id)";
const ADD_BODIES: &str = "INSERT INTO bodies (id, node, received, time, kind, state, cause, title, phase, confidence, digest, words, \
     data, proven) SELECT a, b, c, d, e, f, g, h, i, j, k, to_tsvector('simple', l), m, n FROM unnest($1::bigint[], $2::bigint[], \
     $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::text[], $8::text[], $9::text[], $10::double precision[], \
     $11::bytea[], $12::text[], $13::bytea[], $14::boolean[]) AS w(a, b, c, d, e, f, g, h, i, j, k, l, m, n)";
const ADD_REPORTS: &str = "INSERT INTO reports (id, node, boot, sequence, time, received, body) SELECT * FROM unnest($1::bytea[], \
     $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])";
/// Deletes the reports of deleted nodes whose IDs are used again.
const REMOVE_REPORTS: &str = "DELETE FROM reports WHERE id = ANY($1)";
pub(super) const CHANGED: &str = "UPDATE changes SET count = count + 1 WHERE slot = $1";

/// A statement with its parameters, one value per column and row.
type Write = (&'static str, Vec<Box<dyn ToSql + Sync + Send>>);

/// Columns of `nodes`.
#[derive(Default)]
struct Lines {
    id: Vec<i64>,
    name: Vec<String>,
    identity: Vec<String>,
    first_seen: Vec<i64>,
    body: Vec<i64>,
    turn: Vec<i64>,
    digest: Vec<Vec<u8>>,
    since: Vec<i64>,
    rank: Vec<i64>,
    state: Vec<&'static str>,
    cause: Vec<Option<String>>,
    title: Vec<String>,
    component: Vec<Option<String>>,
    phase: Vec<Option<&'static str>>,
    confidence: Vec<f64>,
    key: Vec<Option<Vec<u8>>>,
    proven_body: Vec<Option<i64>>,
}

/// Columns of `pulses`, and the values as they were read.
#[derive(Default)]
struct Pulses {
    columns: [Vec<i64>; 8],
}

/// Stores a group in one transaction.
pub(super) async fn group(
    client: &mut Object,
    arrivals: &[&Arrival],
    slot: i64,
) -> Result<Vec<Result<Outcome, Refusal>>, Trouble> {
    let mut state = read(client, arrivals).await?;
    let mut changes = Changes::default();
    let results = arrivals.iter().map(|arrival| decide::decide(&mut state, &mut changes, arrival)).collect();
    if changes.reports.is_empty() {
        return Ok(results);
    }
    if changes.placeholders > 0 {
        let statement = client.prepare_cached(NUMBERS).await?;
        let rows = client.query(&statement, &[&changes.placeholders]).await?;
        let ids = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
        changes.assign_ids(&mut state, &ids);
    }
    let (mut writes, beats) = writes(&state, &changes)?;
    if !changes.lines.is_empty() {
        writes.push((CHANGED, vec![Box::new(slot)]));
    }
    let mut statements = Vec::with_capacity(writes.len());
    for (text, _) in &writes {
        statements.push(client.prepare_cached(text).await?);
    }
    let transaction = client.transaction().await?;
    // Pipelined: no statement waits for the response to another.
    let sent = writes.iter().zip(&statements).map(async |((_, values), statement)| {
        let values: Vec<&(dyn ToSql + Sync)> =
            values.iter().map(|value| value.as_ref() as &(dyn ToSql + Sync)).collect();
        transaction.execute(statement, &values).await
    });
    let counts = try_join_all(sent).await?;
    let beaten: u64 =
        writes.iter().zip(&counts).filter(|((text, _), _)| *text == BEAT).map(|(_, count)| *count).sum();
    if beaten != beats {
        return Err(Trouble::Overtaken);
    }
    transaction.commit().await?;
    changes.taken.keep();
    Ok(results)
}

/// Tests whether writes succeed, without changing any data.
pub(super) async fn trial(client: &Object, slot: i64) -> Result<(), Trouble> {
    let statement = client.prepare_cached("UPDATE changes SET count = count WHERE slot = $1").await?;
    client.execute(&statement, &[&slot]).await?;
    Ok(())
}

async fn read(client: &Object, arrivals: &[&Arrival]) -> Result<StoredState, Trouble> {
    let names: Vec<&str> = arrivals.iter().map(|arrival| arrival.node.as_str()).collect();
    let boots: Vec<String> = arrivals.iter().map(|arrival| decide::boot_name(arrival)).collect();
    let ids: Vec<&[u8]> = arrivals.iter().map(|arrival| &arrival.id.as_bytes()[..]).collect();
    let (for_nodes, for_boots, for_seen) = (
        client.prepare_cached(NODES).await?,
        client.prepare_cached(BOOTS).await?,
        client.prepare_cached(SEEN).await?,
    );
    let (node_rows, boot_rows, seen_rows) = futures_util::future::try_join3(
        client.query(&for_nodes, &[&names]),
        client.query(&for_boots, &[&names, &boots]),
        client.query(&for_seen, &[&ids]),
    )
    .await?;
    let mut state = StoredState::default();
    for row in &node_rows {
        let (boot, sequence) = (row.try_get(6)?, row.try_get(7)?);
        let node = NodeRow {
            id: row.try_get(1)?,
            body: row.try_get(2)?,
            turn: row.try_get(3)?,
            digest: row.try_get(4)?,
            key: row.try_get(5)?,
            boot,
            sequence,
            since: row.try_get(8)?,
            shown: row::verdict(row, 9)?,
            moment: row.try_get(15)?,
            boot_number: row.try_get(16)?,
            read: Some((boot, sequence)),
        };
        state.nodes.insert(row.try_get(0)?, node);
    }
    for row in &boot_rows {
        let boot = Boot { id: row.try_get(2)?, floor: row.try_get(3)?, number: row.try_get(4)? };
        state.boots.insert((row.try_get(0)?, row.try_get(1)?), boot);
    }
    for row in &seen_rows {
        let id: &[u8] = row.try_get(0)?;
        let id = id.try_into().map_err(|_| Trouble::Unknown("a report's id".to_owned()))?;
        if !row.try_get::<_, bool>(5)? {
            state.orphaned.push(id);
            continue;
        }
        let report = AcknowledgedReport {
            node: row.try_get(1)?,
            sequence: row.try_get(2)?,
            time: row.try_get(3)?,
            digest: row.try_get(4)?,
        };
        state.acknowledged.insert(id, report);
    }
    // Read after the nodes: a node deleted in between was read as known, and the group is then decided again.
    let unknown: Vec<&str> = names.into_iter().filter(|name| !state.nodes.contains_key(*name)).collect();
    if !unknown.is_empty() {
        let statement = client.prepare_cached(FORGOTTEN).await?;
        for row in &client.query(&statement, &[&unknown]).await? {
            let (boot, boot_number) = (row.try_get(2)?, row.try_get(3)?);
            let last = Last { boot, boot_number, sequence: row.try_get(4)?, moment: row.try_get(5)? };
            state.deleted_nodes.insert((row.try_get(0)?, row.try_get(1)?), last);
        }
    }
    Ok(state)
}

/// Returns all statements of a group, and the number of rows that [`BEAT`] must find unchanged.
fn writes(state: &StoredState, changes: &Changes<'_>) -> Result<(Vec<Write>, u64), Trouble> {
    let mut writes: Vec<Write> = Vec::new();
    let (mut new, mut shown) = (Lines::default(), Lines::default());
    for (name, arrival) in &changes.lines {
        if let Some(node) = state.nodes.get(*name) {
            let lines = if node.read.is_some() { &mut shown } else { &mut new };
            lines.push(name, node, arrival)?;
        }
    }
    let (mut first, mut beats) = (Pulses::default(), Pulses::default());
    // All hubs use the same order, to prevent deadlocks.
    let mut pulses: Vec<_> = changes
        .heartbeats
        .iter()
        .filter_map(|(name, pulse)| Some((state.nodes.get(*name)?, pulse)))
        .collect();
    pulses.sort_unstable_by_key(|(node, _)| node.id);
    for (node, pulse) in pulses {
        let (read_boot, read_sequence) = node.read.unwrap_or_default();
        let target = if node.read.is_some() { &mut beats } else { &mut first };
        let (received, time) = (micros(pulse.arrival.received), micros(pulse.arrival.time));
        let values =
            [node.id, received, time, node.boot, node.sequence, pulse.count, read_boot, read_sequence];
        for (column, value) in target.columns.iter_mut().zip(values) {
            column.push(value);
        }
    }
    let beaten = beats.columns[0].len() as u64;
    if !new.id.is_empty() {
        writes.push((ADD_NODES, new.values()));
        writes.push((ADD_PULSES, first.values()));
    }
    if beaten > 0 {
        writes.push((BEAT, beats.values()));
    }
    if !shown.id.is_empty() {
        writes.push((SHOW, shown.values()));
    }
    if !changes.boots.is_empty() {
        writes.extend(boots(changes));
    }
    if !changes.numbered.is_empty() {
        let (boots, numbers): (Vec<i64>, Vec<i64>) = changes.numbered.iter().copied().unzip();
        writes.push((NUMBER_BOOTS, vec![Box::new(boots), Box::new(numbers)]));
    }
    if !state.orphaned.is_empty() {
        let ids: Vec<Vec<u8>> = state.orphaned.iter().map(|id| id.to_vec()).collect();
        writes.push((REMOVE_REPORTS, vec![Box::new(ids)]));
    }
    if !changes.bodies.is_empty() {
        writes.push((ADD_BODIES, bodies(changes)?));
    }
    writes.push((ADD_REPORTS, reports(changes)));
    Ok((writes, beaten))
}

fn boots(changes: &Changes<'_>) -> [Write; 2] {
    let ids: Vec<i64> = changes.boots.iter().map(|boot| boot.id).collect();
    let nodes: Vec<i64> = changes.boots.iter().map(|boot| boot.node).collect();
    let names: Vec<String> = changes.boots.iter().map(|boot| boot.name.clone()).collect();
    let numbers: Vec<Option<i64>> = changes.boots.iter().map(|boot| boot.number).collect();
    [
        (ADD_BOOTS, vec![Box::new(ids), Box::new(nodes.clone()), Box::new(names), Box::new(numbers)]),
        (FORGET_BOOTS, vec![Box::new(nodes), Box::new(MAX_BOOTS)]),
    ]
}

fn bodies(changes: &Changes<'_>) -> Result<Vec<Box<dyn ToSql + Sync + Send>>, Trouble> {
    let bodies = &changes.bodies;
    let packed: Vec<Vec<u8>> = bodies
        .iter()
        .map(|body| packing::pack(&body.arrival.report).map_err(Trouble::Packing))
        .collect::<Result<_, _>>()?;
    let shown: Vec<VerdictRow> = bodies.iter().map(|body| VerdictRow::of(&body.arrival.verdict)).collect();
    Ok(vec![
        Box::new(bodies.iter().map(|body| body.id).collect::<Vec<i64>>()),
        Box::new(bodies.iter().map(|body| body.node).collect::<Vec<i64>>()),
        Box::new(bodies.iter().map(|body| micros(body.arrival.received)).collect::<Vec<i64>>()),
        Box::new(bodies.iter().map(|body| micros(body.arrival.time)).collect::<Vec<i64>>()),
        Box::new(bodies.iter().map(|body| body.kind as i64).collect::<Vec<i64>>()),
        Box::new(shown.iter().map(|shown| shown.state.name()).collect::<Vec<_>>()),
        Box::new(shown.iter().map(|shown| shown.cause.as_ref().map(ToString::to_string)).collect::<Vec<_>>()),
        Box::new(shown.iter().map(|shown| shown.title.clone()).collect::<Vec<_>>()),
        Box::new(shown.iter().map(|shown| shown.phase.map(landfall_model::Phase::name)).collect::<Vec<_>>()),
        Box::new(shown.iter().map(|shown| shown.confidence.value()).collect::<Vec<f64>>()),
        Box::new(bodies.iter().map(|body| body.arrival.digest.to_vec()).collect::<Vec<_>>()),
        Box::new(bodies.iter().map(|body| row::words(&body.arrival.words)).collect::<Vec<_>>()),
        Box::new(packed),
        Box::new(shown.iter().map(|shown| shown.trust == Trust::Proven).collect::<Vec<_>>()),
    ])
}

fn reports(changes: &Changes<'_>) -> Vec<Box<dyn ToSql + Sync + Send>> {
    let reports = &changes.reports;
    let column = |value: fn(&decide::NewReport<'_>) -> i64| -> Box<dyn ToSql + Sync + Send> {
        Box::new(reports.iter().map(value).collect::<Vec<i64>>())
    };
    vec![
        Box::new(reports.iter().map(|report| report.arrival.id.as_bytes().to_vec()).collect::<Vec<_>>()),
        column(|report| report.node),
        column(|report| report.boot),
        column(|report| report.arrival.sequence.cast_signed()),
        column(|report| micros(report.arrival.time)),
        column(|report| micros(report.arrival.received)),
        column(|report| report.body),
    ]
}

// === impl Lines ===

impl Lines {
    fn push(&mut self, name: &str, node: &NodeRow, arrival: &Arrival) -> Result<(), Trouble> {
        let verdict = &arrival.verdict;
        self.id.push(node.id);
        self.name.push(name.to_owned());
        let identity = serde_json::to_string(&arrival.identity);
        self.identity.push(identity.map_err(|error| Trouble::Packing(error.into()))?);
        self.first_seen.push(micros(arrival.received));
        self.body.push(node.body);
        self.turn.push(node.turn);
        self.digest.push(node.digest.clone());
        self.since.push(node.since);
        self.rank.push(rank(verdict.state));
        self.state.push(verdict.state.name());
        self.cause.push(verdict.cause.as_ref().map(ToString::to_string));
        self.title.push(text(&verdict.title));
        self.component.push(verdict.component.as_deref().map(text));
        self.phase.push(verdict.phase.map(landfall_model::Phase::name));
        self.confidence.push(verdict.confidence.value());
        self.key.push(node.key.clone());
        self.proven_body.push((verdict.trust == Trust::Proven).then_some(node.body));
        Ok(())
    }

    fn values(self) -> Vec<Box<dyn ToSql + Sync + Send>> {
        vec![
            Box::new(self.id),
            Box::new(self.name),
            Box::new(self.identity),
            Box::new(self.first_seen),
            Box::new(self.body),
            Box::new(self.turn),
            Box::new(self.digest),
            Box::new(self.since),
            Box::new(self.rank),
            Box::new(self.state),
            Box::new(self.cause),
            Box::new(self.title),
            Box::new(self.component),
            Box::new(self.phase),
            Box::new(self.confidence),
            Box::new(self.key),
            Box::new(self.proven_body),
        ]
    }
}

// === impl Pulses ===

impl Pulses {
    fn values(self) -> Vec<Box<dyn ToSql + Sync + Send>> {
        self.columns.into_iter().map(|column| Box::new(column) as Box<dyn ToSql + Sync + Send>).collect()
    }
}
