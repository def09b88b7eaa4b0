//! Queries for the fleet view and the pages.

use jiff::Timestamp;
use landfall_model::Phase;
use landfall_model::envelope::ReportId;
use landfall_model::report::State;
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::super::board::{self, EXAMPLES, LINE, MAX_BUNDLES, MAX_GROUPS, TROUBLE};
use super::super::columns::{VerdictRow, micros, rank};
use super::super::{
    BundleRecord, Fleet, FleetQuery, Group, Hit, NodeLine, NodePage, NodeRecord, Pinned, StateCount,
    StoreSize, TrendPoint, Turn,
};
use super::row;
use crate::name::NodeName;

const FILTER: &str = "(?1 IS NULL OR n.state = ?1) \
     AND (?2 IS NULL OR n.cause = ?2 OR (?2 = 'none' AND n.cause IS NULL)) \
     AND (?3 IS NULL OR n.phase = ?3) \
     AND (?4 = '' OR instr(lower(n.name || ' ' || n.title || ' ' || ifnull(n.cause, '')), ?4) > 0)";

pub(super) fn fleet(connection: &Connection, query: &FleetQuery) -> rusqlite::Result<Fleet> {
    // One snapshot for all parts: the numbers on a page must be consistent.
    let moment = connection.unchecked_transaction()?;
    let states = states(&moment)?;
    let filter = params![
        query.state.map(State::name),
        query.cause.as_ref().map(landfall_model::Cause::as_str),
        query.phase.map(Phase::name),
        query.text.to_lowercase(),
        query.limit,
        query.offset,
    ];
    let total = states.iter().map(|count| count.nodes).sum();
    let found = match query.counted_by(&states) {
        Some(found) => found,
        None => moment
            .prepare_cached(&format!("SELECT count(*) FROM nodes n WHERE {FILTER} AND ?5 >= 0 AND ?6 >= 0"))?
            .query_row(filter, |row| row::count(row, 0))?,
    };
    let nodes = moment
        .prepare_cached(&format!(
            "SELECT {LINE} FROM nodes n JOIN pulses p ON p.node = n.id WHERE {FILTER} \
             ORDER BY n.rank, n.since DESC, n.name LIMIT ?5 OFFSET ?6"
        ))?
        .query_map(filter, line)?
        .collect::<rusqlite::Result<_>>()?;
    Ok(Fleet { total, states, groups: groups(&moment)?, found, nodes })
}

pub(super) fn size(connection: &Connection) -> rusqlite::Result<StoreSize> {
    let number = |pragma: &str| connection.pragma_query_value(None, pragma, |row| row::count(row, 0));
    let bundles = connection
        .prepare_cached("SELECT ifnull(sum(bytes), 0) FROM bundles")?
        .query_row([], |row| row::count(row, 0))?;
    Ok(StoreSize { store: number("page_count")? * number("page_size")?, bundles })
}

pub(super) fn pinned(connection: &Connection, name: &NodeName) -> rusqlite::Result<Pinned> {
    let key: Option<Option<Vec<u8>>> = connection
        .prepare_cached("SELECT key FROM nodes WHERE name = ?1")?
        .query_row([name.as_str()], |row| row.get(0))
        .optional()?;
    Ok(key.into())
}

fn states(connection: &Connection) -> rusqlite::Result<Vec<StateCount>> {
    // Without the rank an index answers the query, and the nodes' rows need not be read.
    let mut states: Vec<StateCount> = connection
        .prepare_cached("SELECT state, count(*) FROM nodes GROUP BY state")?
        .query_map([], |row| {
            let name: String = row.get(0)?;
            Ok(StateCount { state: row::state(&name, 0)?, nodes: row::count(row, 1)? })
        })?
        .collect::<rusqlite::Result<_>>()?;
    states.sort_unstable_by_key(|count| rank(count.state));
    Ok(states)
}

fn groups(connection: &Connection) -> rusqlite::Result<Vec<Group>> {
    let mut groups: Vec<Group> = connection
        .prepare_cached(&format!(
            "SELECT cause, iif(min(title) = max(title), min(title), ''), min(rank), count(*), \
             group_concat(DISTINCT phase), min(since), max(since) \
             FROM nodes WHERE {TROUBLE} GROUP BY cause ORDER BY count(*) DESC, min(rank), cause LIMIT {MAX_GROUPS}"
        ))?
        .query_map([], |row| {
            let rank: u32 = row.get(2)?;
            let phases: Option<String> = row.get(4)?;
            let mut phases: Vec<Phase> = phases
                .iter()
                .flat_map(|names| names.split(','))
                .map(|name| row::phase(name, 4))
                .collect::<rusqlite::Result<_>>()?;
            phases.sort_unstable();
            Ok(Group {
                cause: row::cause(row, 0)?,
                title: row.get(1)?,
                state: State::ALL.get(rank as usize).copied().unwrap_or(State::Unknown),
                nodes: row::count(row, 3)?,
                phases,
                first: row::time(row, 5)?,
                last: row::time(row, 6)?,
                examples: Vec::new(),
            })
        })?
        .collect::<rusqlite::Result<_>>()?;
    let mut names = connection.prepare_cached(&format!(
        "SELECT name FROM nodes WHERE cause IS ?1 AND {TROUBLE} ORDER BY rank, since DESC, name LIMIT {EXAMPLES}"
    ))?;
    for group in &mut groups {
        let cause = group.cause.as_ref().map(landfall_model::Cause::as_str);
        group.examples = names.query_map([cause], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    }
    Ok(groups)
}

fn line(row: &Row<'_>) -> rusqlite::Result<NodeLine> {
    let VerdictRow { state, cause, title, phase, confidence, trust } = row::verdict(row, 1)?;
    Ok(NodeLine {
        name: row.get(0)?,
        state,
        cause,
        title,
        component: row.get(7)?,
        phase,
        confidence,
        trust,
        since: row::time(row, 8)?,
        last_seen: row::time(row, 9)?,
        provider_id: board::provider_id(row.get_ref(10)?.as_str()?).map_err(not_json(10))?,
    })
}

fn not_json(column: usize) -> impl FnOnce(serde_json::Error) -> rusqlite::Error {
    move |error| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error))
}

pub(super) fn nodes(connection: &Connection, after: &str, limit: u32) -> rusqlite::Result<NodePage> {
    let nodes = connection
        .prepare_cached(&format!(
            "SELECT {LINE} FROM nodes n JOIN pulses p ON p.node = n.id WHERE n.name > ?1 ORDER BY n.name LIMIT ?2"
        ))?
        .query_map(params![after, i64::from(limit) + 1], line)?
        .collect::<rusqlite::Result<_>>()?;
    Ok(NodePage::new(nodes, limit))
}

pub(super) fn node(connection: &Connection, name: &NodeName) -> rusqlite::Result<Option<NodeRecord>> {
    connection
        .prepare_cached(&format!(
            "SELECT {LINE}, n.first_seen, (SELECT count(*) FROM boots WHERE node = n.id), p.reports, \
             p.sequence, p.time, n.key IS NOT NULL, n.turn, b.data \
             FROM nodes n JOIN pulses p ON p.node = n.id JOIN bodies b ON b.id = n.body WHERE n.name = ?1"
        ))?
        .query_row([name.as_str()], |row| {
            Ok(NodeRecord {
                line: line(row)?,
                identity: serde_json::from_str(row.get_ref(10)?.as_str()?).map_err(not_json(10))?,
                first_seen: row::time(row, 11)?,
                boots: row::count(row, 12)?,
                reports: row::count(row, 13)?,
                sequence: row::count(row, 14)?,
                time: row::time(row, 15)?,
                signed: row.get(16)?,
                turn: row::count(row, 17)?,
                report: row::unpack(row, 18)?,
            })
        })
        .optional()
}

pub(super) fn history(
    connection: &Connection,
    name: &NodeName,
    before: Option<u64>,
    limit: u32,
) -> rusqlite::Result<Vec<Turn>> {
    connection
        .prepare_cached(
            "SELECT b.id, b.received, b.time, b.state, b.cause, b.title, b.phase, b.confidence, coalesce(b.proven, false), b.kind = 2 \
             FROM bodies b WHERE b.node = (SELECT id FROM nodes WHERE name = ?1) AND b.kind IN (1, 2) AND b.id < ?2 \
             ORDER BY b.id DESC LIMIT ?3",
        )?
        .query_map(params![name.as_str(), before.map_or(i64::MAX, u64::cast_signed), limit], |row| {
            let VerdictRow { state, cause, title, phase, confidence, trust } = row::verdict(row, 3)?;
            Ok(Turn {
                turn: row::count(row, 0)?,
                received: row::time(row, 1)?,
                time: row::time(row, 2)?,
                state,
                cause,
                title,
                phase,
                confidence,
                trust,
                late: row.get(9)?,
            })
        })?
        .collect()
}

pub(super) fn report(
    connection: &Connection,
    name: &NodeName,
    turn: u64,
) -> rusqlite::Result<Option<String>> {
    connection
        .prepare_cached(
            "SELECT data FROM bodies WHERE id = ?2 AND node = (SELECT id FROM nodes WHERE name = ?1)",
        )?
        .query_row(params![name.as_str(), turn.cast_signed()], |row| row::unpack(row, 0))
        .optional()
}

pub(super) fn trend(
    connection: &Connection,
    since: Timestamp,
    step: u32,
) -> rusqlite::Result<Vec<TrendPoint>> {
    let step = i64::from(step.max(1)) * 1_000_000;
    connection
        .prepare_cached(&format!(
            "SELECT cause, (received - ?1) / ?2, count(DISTINCT node) FROM bodies \
             WHERE kind = 1 AND received >= ?1 AND {TROUBLE} GROUP BY 1, 2"
        ))?
        .query_map([micros(since), step], |row| {
            Ok(TrendPoint { cause: row::cause(row, 0)?, step: row.get(1)?, nodes: row::count(row, 2)? })
        })?
        .collect()
}

pub(super) fn search(connection: &Connection, words: &[String], limit: u32) -> rusqlite::Result<Vec<Hit>> {
    // Each word is quoted, so that FTS5 does not interpret user input as query syntax.
    let query: Vec<String> = words.iter().map(|word| format!("\"{}\"", word.replace('"', "\"\""))).collect();
    if query.is_empty() {
        return Ok(Vec::new());
    }
    connection
        .prepare_cached(
            "SELECT n.name, b.id, b.received, b.title, b.cause FROM words w JOIN bodies b ON b.id = w.rowid \
             JOIN nodes n ON n.id = b.node WHERE words MATCH ?1 ORDER BY w.rowid DESC LIMIT ?2",
        )?
        .query_map(params![query.join(" "), limit], |row| {
            Ok(Hit {
                node: row.get(0)?,
                turn: row::count(row, 1)?,
                received: row::time(row, 2)?,
                title: row.get(3)?,
                cause: row::cause(row, 4)?,
            })
        })?
        .collect()
}

const BUNDLE: &str = "SELECT digest, node, received, bytes, files, cut FROM bundles";

fn bundle_record(row: &Row<'_>) -> rusqlite::Result<BundleRecord> {
    Ok(BundleRecord {
        digest: row.get(0)?,
        node: row.get(1)?,
        received: row::time(row, 2)?,
        bytes: row::count(row, 3)?,
        files: row::count(row, 4)?,
        cut: row.get(5)?,
    })
}

pub(super) fn has(connection: &Connection, ids: &[ReportId]) -> rusqlite::Result<Vec<ReportId>> {
    let mut statement = connection.prepare_cached("SELECT 1 FROM reports WHERE id = ?1")?;
    let mut known = Vec::new();
    for id in ids {
        if statement.exists([id.as_bytes()])? {
            known.push(*id);
        }
    }
    Ok(known)
}

pub(super) fn bundle(connection: &Connection, digest: &str) -> rusqlite::Result<Option<BundleRecord>> {
    connection
        .prepare_cached(&format!("{BUNDLE} WHERE digest = ?1"))?
        .query_row([digest], bundle_record)
        .optional()
}

pub(super) fn bundles(connection: &Connection, name: &NodeName) -> rusqlite::Result<Vec<BundleRecord>> {
    connection
        .prepare_cached(&format!("{BUNDLE} WHERE node = ?1 ORDER BY received DESC LIMIT {MAX_BUNDLES}"))?
        .query_map([name.as_str()], bundle_record)?
        .collect()
}
