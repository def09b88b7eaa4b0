//! Reads the stored state of a group of reports, and writes what the group changes.

use std::cmp::Reverse;

use landfall_model::report::{Trust, Verdict};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::super::columns::{micros, rank, text};
use super::super::decide::{
    self, AcknowledgedReport, Boot, Changes, MAX_BOOTS, NewBody, NewBoot, NewReport, NodeRow, StoredState,
};
use super::super::standing::Taken;
use super::super::{Arrival, Outcome, Refusal};
use super::forget;
use super::row;
use super::words::Words;

const NODE: &str = "SELECT n.id, n.body, n.turn, n.digest, n.key, p.boot, b.number, p.sequence, min(p.time, p.last_seen), n.since, \
     n.state, n.cause, n.title, n.phase, n.confidence, coalesce(n.proven_body = n.body, false) \
     FROM nodes n JOIN pulses p ON p.node = n.id LEFT JOIN boots b ON b.id = p.boot WHERE n.name = ?1";
const BOOT: &str = "SELECT id, floor, number FROM boots WHERE node = ?1 AND name = ?2";
const ACKNOWLEDGED: &str = "SELECT r.node, r.sequence, r.time, b.digest, EXISTS (SELECT 1 FROM nodes n WHERE n.id = r.node) \
     FROM reports r LEFT JOIN bodies b ON b.id = r.body WHERE r.id = ?1";
/// The highest IDs of nodes, boots and bodies. Reports of deleted nodes still contain the IDs of nodes and boots, so
/// these are not used again.
const HIGHEST: &str = "SELECT max(node, (SELECT ifnull(max(id), 0) FROM nodes)), max(boot, (SELECT ifnull(max(id), 0) FROM boots)), \
     (SELECT ifnull(max(id), 0) FROM bodies) FROM highest";

const ADD_NODE: &str = "INSERT INTO nodes (id, name, identity, first_seen, body, turn, digest, since, rank, state, cause, title, \
     component, phase, confidence, key, proven_body) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)";
/// The same parameters; the name and `first_seen` do not change.
const UPDATE_NODE: &str = "UPDATE nodes SET identity = ?3, body = ?5, turn = ?6, digest = ?7, since = ?8, rank = ?9, state = ?10, \
     cause = ?11, title = ?12, component = ?13, phase = ?14, confidence = ?15, key = ?16, proven_body = ?17 WHERE id = ?1";
const ADD_HEARTBEAT: &str =
    "INSERT INTO pulses (node, last_seen, time, boot, sequence, reports) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
const UPDATE_HEARTBEAT: &str = "UPDATE pulses SET last_seen = ?2, time = ?3, boot = ?4, sequence = ?5, reports = reports + ?6 WHERE node = ?1";
const ADD_BOOT: &str = "INSERT INTO boots (id, node, name, number) VALUES (?1, ?2, ?3, ?4)";
const REMOVE_OLD_BOOTS: &str = "DELETE FROM boots WHERE id IN \
     (SELECT id FROM boots WHERE node = ?1 ORDER BY id DESC LIMIT -1 OFFSET ?2) AND id NOT IN (SELECT boot FROM pulses WHERE node = ?1)";
const NUMBER_BOOT: &str = "UPDATE boots SET number = ?2 WHERE id = ?1 AND number IS NULL";
const ADD_BODY: &str = "INSERT INTO bodies (id, node, received, time, kind, state, cause, title, phase, confidence, digest, data, \
     proven) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)";
const ADD_REPORT: &str = "INSERT INTO reports (id, node, boot, sequence, time, received, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
const REMOVE_REPORT: &str = "DELETE FROM reports WHERE id = ?1";

/// The result of a group.
pub(super) struct Accepted {
    /// One for each report.
    pub(super) results: Vec<Result<Outcome, Refusal>>,
    /// Whether the fleet view changes.
    pub(super) is_changed: bool,
    /// Texts for the search index.
    pub(super) words: Vec<Words>,
    /// The enrollment quota that new nodes used.
    pub(super) taken: Taken,
}

/// Stores a group of reports inside a transaction of the caller.
pub(super) fn group(connection: &Connection, arrivals: &[&Arrival]) -> rusqlite::Result<Accepted> {
    let mut state = StoredState::default();
    let mut changes = Changes::default();
    let mut results = Vec::with_capacity(arrivals.len());
    for arrival in arrivals {
        read(connection, &mut state, arrival)?;
        results.push(decide::decide(&mut state, &mut changes, arrival));
    }
    assign_ids(connection, &mut state, &mut changes)?;
    write(connection, &state, &changes)?;
    let words = changes.bodies.iter().map(|body| (body.id, body.arrival.words.clone())).collect();
    Ok(Accepted { results, is_changed: !changes.lines.is_empty(), words, taken: changes.taken })
}

/// Adds the rows that a report refers to, unless the state contains them.
fn read(connection: &Connection, state: &mut StoredState, arrival: &Arrival) -> rusqlite::Result<()> {
    let name = arrival.node.as_str();
    if !state.nodes.contains_key(name)
        && let Some(node) = connection.prepare_cached(NODE)?.query_row([name], node).optional()?
    {
        state.nodes.insert(name.to_owned(), node);
    }
    match (state.nodes.get(name), &arrival.key) {
        (Some(node), _) => {
            let key = (node.id, decide::boot_name(arrival));
            if !state.boots.contains_key(&key) {
                let boot =
                    |row: &Row<'_>| Ok(Boot { id: row.get(0)?, floor: row.get(1)?, number: row.get(2)? });
                let stored =
                    connection.prepare_cached(BOOT)?.query_row(params![key.0, key.1], boot).optional()?;
                state.boots.extend(stored.map(|boot| (key, boot)));
            }
        }
        (None, Some(key)) => {
            let last = forget::last(connection, &arrival.node, key)?;
            state.deleted_nodes.extend(last.map(|last| ((name.to_owned(), key.clone()), last)));
        }
        (None, None) => {}
    }
    let id = arrival.id.as_bytes();
    if !state.acknowledged.contains_key(id) {
        let report = |row: &Row<'_>| {
            let report = AcknowledgedReport {
                node: row.get(0)?,
                sequence: row.get(1)?,
                time: row.get(2)?,
                digest: row.get(3)?,
            };
            Ok((report, row.get(4)?))
        };
        match connection.prepare_cached(ACKNOWLEDGED)?.query_row([id], report).optional()? {
            Some((report, true)) => drop(state.acknowledged.insert(*id, report)),
            Some((_, false)) => state.orphaned.push(*id),
            None => {}
        }
    }
    Ok(())
}

fn node(row: &Row<'_>) -> rusqlite::Result<NodeRow> {
    let (boot, sequence) = (row.get(5)?, row.get(7)?);
    Ok(NodeRow {
        id: row.get(0)?,
        body: row.get(1)?,
        turn: row.get(2)?,
        digest: row.get(3)?,
        key: row.get(4)?,
        boot,
        boot_number: row.get(6)?,
        sequence,
        moment: row.get(8)?,
        since: row.get(9)?,
        shown: row::verdict(row, 10)?,
        read: Some((boot, sequence)),
    })
}

/// Gives new nodes, boots and bodies the next IDs of their tables, in the order in which they were decided.
fn assign_ids(
    connection: &Connection,
    state: &mut StoredState,
    changes: &mut Changes<'_>,
) -> rusqlite::Result<()> {
    if changes.placeholders == 0 {
        return Ok(());
    }
    let [node, boot, body]: [i64; 3] = connection
        .prepare_cached(HIGHEST)?
        .query_row([], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?]))?;
    let mut new_nodes: Vec<i64> = state.nodes.values().map(|node| node.id).filter(|id| *id < 0).collect();
    new_nodes.sort_unstable_by_key(|id| Reverse(*id));
    let mut assigned: Vec<(i64, i64)> = Vec::new();
    assigned.extend(new_nodes.into_iter().zip(node + 1..));
    assigned.extend(changes.boots.iter().map(|boot| boot.id).zip(boot + 1..));
    assigned.extend(changes.bodies.iter().map(|body| body.id).zip(body + 1..));
    // From -1 downwards.
    assigned.sort_unstable_by_key(|(placeholder, _)| Reverse(*placeholder));
    let ids: Vec<i64> = assigned.into_iter().map(|(_, id)| id).collect();
    changes.assign_ids(state, &ids);
    Ok(())
}

fn write(connection: &Connection, state: &StoredState, changes: &Changes<'_>) -> rusqlite::Result<()> {
    for (name, arrival) in &changes.lines {
        if let Some(node) = state.nodes.get(*name) {
            write_node(connection, node, arrival)?;
        }
    }
    for (name, heartbeat) in &changes.heartbeats {
        let Some(node) = state.nodes.get(*name) else { continue };
        let statement = if node.read.is_some() { UPDATE_HEARTBEAT } else { ADD_HEARTBEAT };
        connection.prepare_cached(statement)?.execute(params![
            node.id,
            micros(heartbeat.arrival.received),
            micros(heartbeat.arrival.time),
            node.boot,
            node.sequence,
            heartbeat.count,
        ])?;
    }
    for NewBoot { id, node, name, number } in &changes.boots {
        connection.prepare_cached(ADD_BOOT)?.execute(params![id, node, name, number])?;
        connection.prepare_cached(REMOVE_OLD_BOOTS)?.execute([*node, MAX_BOOTS])?;
    }
    for (boot, number) in &changes.numbered {
        connection.prepare_cached(NUMBER_BOOT)?.execute([boot, number])?;
    }
    for body in &changes.bodies {
        add_body(connection, body)?;
    }
    for id in &state.orphaned {
        connection.prepare_cached(REMOVE_REPORT)?.execute([id])?;
    }
    for NewReport { node, boot, body, arrival } in &changes.reports {
        connection.prepare_cached(ADD_REPORT)?.execute(params![
            arrival.id.as_bytes(),
            node,
            boot,
            arrival.sequence.cast_signed(),
            micros(arrival.time),
            micros(arrival.received),
            body,
        ])?;
    }
    Ok(())
}

fn write_node(connection: &Connection, node: &NodeRow, arrival: &Arrival) -> rusqlite::Result<()> {
    let identity = serde_json::to_string(&arrival.identity)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    let verdict = &arrival.verdict;
    let statement = if node.read.is_some() { UPDATE_NODE } else { ADD_NODE };
    let written = connection.prepare_cached(statement)?.execute(params![
        node.id,
        arrival.node.as_str(),
        identity,
        micros(arrival.received),
        node.body,
        node.turn,
        node.digest,
        node.since,
        rank(verdict.state),
        verdict.state.name(),
        cause(verdict),
        text(&verdict.title),
        verdict.component,
        verdict.phase.map(landfall_model::Phase::name),
        verdict.confidence.value(),
        node.key,
        is_proven(verdict).then_some(node.body),
    ])?;
    debug_assert_eq!(written, 1, "the row of {}", arrival.node.as_str());
    Ok(())
}

fn add_body(connection: &Connection, body: &NewBody<'_>) -> rusqlite::Result<()> {
    let NewBody { id, node, kind, arrival } = body;
    let verdict = &arrival.verdict;
    connection.prepare_cached(ADD_BODY)?.execute(params![
        id,
        node,
        micros(arrival.received),
        micros(arrival.time),
        *kind as i64,
        verdict.state.name(),
        cause(verdict),
        text(&verdict.title),
        verdict.phase.map(landfall_model::Phase::name),
        verdict.confidence.value(),
        arrival.digest,
        row::pack(&arrival.report)?,
        is_proven(verdict),
    ])?;
    Ok(())
}

fn cause(verdict: &Verdict) -> Option<&str> {
    verdict.cause.as_ref().map(landfall_model::Cause::as_str)
}

fn is_proven(verdict: &Verdict) -> bool {
    verdict.trust == Trust::Proven
}
