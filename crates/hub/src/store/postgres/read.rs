//! Queries for the fleet view and the pages.

use std::collections::HashSet;

use deadpool_postgres::Object;
use jiff::Timestamp;
use landfall_model::Phase;
use landfall_model::envelope::ReportId;
use landfall_model::report::State;
use tokio_postgres::types::ToSql;
use tokio_postgres::{IsolationLevel, Row};

use super::super::board::{self, EXAMPLES, LINE, MAX_BUNDLES, MAX_GROUPS, TROUBLE};
use super::super::columns::{VerdictRow, micros, text};
use super::super::packing;
use super::super::{
    BundleRecord, Fleet, FleetQuery, Group, Hit, NodeLine, NodePage, NodeRecord, Pinned, StateCount,
    StoreSize, TrendPoint, Turn,
};
use super::Trouble;
use super::row;
use crate::name::NodeName;

const FILTER: &str = "($1::text IS NULL OR n.state = $1) \
     AND ($2::text IS NULL OR n.cause = $2 OR ($2 = 'none' AND n.cause IS NULL)) \
     AND ($3::text IS NULL OR n.phase = $3) \
     AND ($4::text = '' OR position($4 in lower(n.name || ' ' || n.title || ' ' || coalesce(n.cause, ''))) > 0)";

pub(super) async fn version(client: &Object) -> Result<u64, Trouble> {
    let statement = client.prepare_cached("SELECT coalesce(sum(count), 0)::bigint FROM changes").await?;
    row::count(&client.query_one(&statement, &[]).await?, 0)
}

pub(super) async fn fleet(client: &mut Object, query: &FleetQuery) -> Result<Fleet, Trouble> {
    let found = format!("SELECT count(*) FROM nodes n WHERE {FILTER}");
    let page = format!(
        "SELECT {LINE} FROM nodes n JOIN pulses p ON p.node = n.id WHERE {FILTER} \
         ORDER BY n.rank, n.since DESC, n.name LIMIT $5 OFFSET $6"
    );
    let groups = format!(
        "SELECT cause, CASE WHEN min(title) = max(title) THEN min(title) ELSE '' END, min(rank), count(*), \
         string_agg(DISTINCT phase, ','), min(since), max(since) FROM nodes WHERE {TROUBLE} \
         GROUP BY cause ORDER BY count(*) DESC, min(rank), cause NULLS FIRST LIMIT {MAX_GROUPS}"
    );
    let (states, found, page, groups, examples) = (
        client.prepare_cached("SELECT state, count(*) FROM nodes GROUP BY rank, state ORDER BY rank").await?,
        client.prepare_cached(&found).await?,
        client.prepare_cached(&page).await?,
        client.prepare_cached(&groups).await?,
        client
            .prepare_cached(&format!(
                "SELECT cause, name FROM (SELECT cause, name, row_number() OVER (PARTITION BY cause \
                 ORDER BY rank, since DESC, name) AS place FROM nodes WHERE {TROUBLE}) AS named \
                 WHERE place <= {EXAMPLES} ORDER BY place"
            ))
            .await?,
    );
    // One snapshot for all parts: the numbers on a page must be consistent.
    let moment = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).read_only(true);
    let moment = moment.start().await?;
    let (state, phase) = (query.state.map(State::name), query.phase.map(Phase::name));
    let cause = query.cause.as_ref().map(landfall_model::Cause::as_str);
    let wanted = text(&query.text.to_lowercase());
    let (limit, offset) = (i64::from(query.limit), i64::from(query.offset));
    let filter: [&(dyn ToSql + Sync); 6] = [&state, &cause, &phase, &wanted, &limit, &offset];
    let (states, found, nodes, groups, examples) = futures_util::future::try_join5(
        moment.query(&states, &[]),
        moment.query_one(&found, &filter[..4]),
        moment.query(&page, &filter),
        moment.query(&groups, &[]),
        moment.query(&examples, &[]),
    )
    .await?;
    moment.commit().await?;
    let states: Vec<StateCount> = states
        .iter()
        .map(|row| Ok(StateCount { state: row::state(row.try_get(0)?)?, nodes: row::count(row, 1)? }))
        .collect::<Result<_, Trouble>>()?;
    let mut groups: Vec<Group> = groups.iter().map(group).collect::<Result<_, _>>()?;
    for row in &examples {
        let cause = row::cause(row, 0)?;
        if let Some(group) = groups.iter_mut().find(|group| group.cause == cause) {
            group.examples.push(row.try_get(1)?);
        }
    }
    Ok(Fleet {
        total: states.iter().map(|count| count.nodes).sum(),
        states,
        groups,
        found: row::count(&found, 0)?,
        nodes: nodes.iter().map(line).collect::<Result<_, _>>()?,
    })
}

pub(super) async fn size(client: &Object) -> Result<StoreSize, Trouble> {
    let statement = client
        .prepare_cached(
            "SELECT pg_database_size(current_database()), (SELECT coalesce(sum(bytes), 0)::bigint FROM bundles)",
        )
        .await?;
    let row = client.query_one(&statement, &[]).await?;
    Ok(StoreSize { store: row::count(&row, 0)?, bundles: row::count(&row, 1)? })
}

pub(super) async fn pinned(client: &Object, name: &NodeName) -> Result<Pinned, Trouble> {
    let statement = client.prepare_cached("SELECT key FROM nodes WHERE name = $1").await?;
    let row = client.query_opt(&statement, &[&name.as_str()]).await?;
    let key: Option<Option<Vec<u8>>> = row.map(|row| row.try_get(0)).transpose()?;
    Ok(key.into())
}

fn group(row: &Row) -> Result<Group, Trouble> {
    let rank: i64 = row.try_get(2)?;
    let phases: Option<&str> = row.try_get(4)?;
    let mut phases: Vec<Phase> =
        phases.iter().flat_map(|names| names.split(',')).map(row::phase).collect::<Result<_, _>>()?;
    phases.sort_unstable();
    let state = usize::try_from(rank).ok().and_then(|rank| State::ALL.get(rank).copied());
    Ok(Group {
        cause: row::cause(row, 0)?,
        title: row.try_get(1)?,
        state: state.unwrap_or(State::Unknown),
        nodes: row::count(row, 3)?,
        phases,
        first: row::time(row, 5)?,
        last: row::time(row, 6)?,
        examples: Vec::new(),
    })
}

fn line(row: &Row) -> Result<NodeLine, Trouble> {
    let VerdictRow { state, cause, title, phase, confidence, trust } = row::verdict(row, 1)?;
    Ok(NodeLine {
        name: row.try_get(0)?,
        state,
        cause,
        title,
        component: row.try_get(7)?,
        phase,
        confidence,
        trust,
        since: row::time(row, 8)?,
        last_seen: row::time(row, 9)?,
        provider_id: board::provider_id(row.try_get(10)?).map_err(not_json)?,
    })
}

fn not_json(error: serde_json::Error) -> Trouble {
    Trouble::Packing(error.into())
}

pub(super) async fn nodes(client: &Object, after: &str, limit: u32) -> Result<NodePage, Trouble> {
    let statement = client
        .prepare_cached(&format!(
            "SELECT {LINE} FROM nodes n JOIN pulses p ON p.node = n.id WHERE n.name > $1 ORDER BY n.name LIMIT $2"
        ))
        .await?;
    let rows = client.query(&statement, &[&text(after), &(i64::from(limit) + 1)]).await?;
    Ok(NodePage::new(rows.iter().map(line).collect::<Result<_, _>>()?, limit))
}

pub(super) async fn node(client: &Object, name: &NodeName) -> Result<Option<NodeRecord>, Trouble> {
    let statement = client
        .prepare_cached(&format!(
            "SELECT {LINE}, n.first_seen, (SELECT count(*) FROM boots WHERE node = n.id), p.reports, \
             p.sequence, p.time, n.key IS NOT NULL, n.turn, b.data \
             FROM nodes n JOIN pulses p ON p.node = n.id JOIN bodies b ON b.id = n.body WHERE n.name = $1"
        ))
        .await?;
    let Some(row) = client.query_opt(&statement, &[&name.as_str()]).await? else { return Ok(None) };
    Ok(Some(NodeRecord {
        line: line(&row)?,
        identity: serde_json::from_str(row.try_get(10)?).map_err(not_json)?,
        first_seen: row::time(&row, 11)?,
        boots: row::count(&row, 12)?,
        reports: row::count(&row, 13)?,
        sequence: row::count(&row, 14)?,
        time: row::time(&row, 15)?,
        signed: row.try_get(16)?,
        turn: row::count(&row, 17)?,
        report: packing::unpack(row.try_get(18)?).map_err(Trouble::Packing)?,
    }))
}

pub(super) async fn history(
    client: &Object,
    name: &NodeName,
    before: Option<u64>,
    limit: u32,
) -> Result<Vec<Turn>, Trouble> {
    let statement = client
        .prepare_cached(
            "SELECT b.id, b.received, b.time, b.state, b.cause, b.title, b.phase, b.confidence, coalesce(b.proven, false), b.kind = 2 \
             FROM bodies b WHERE b.node = (SELECT id FROM nodes WHERE name = $1) AND b.kind IN (1, 2) AND b.id < $2 \
             ORDER BY b.id DESC LIMIT $3",
        )
        .await?;
    let before = before.map_or(i64::MAX, u64::cast_signed);
    let rows = client.query(&statement, &[&name.as_str(), &before, &i64::from(limit)]).await?;
    rows.iter()
        .map(|row| {
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
                late: row.try_get(9)?,
            })
        })
        .collect()
}

pub(super) async fn report(client: &Object, name: &NodeName, turn: u64) -> Result<Option<String>, Trouble> {
    let statement = client
        .prepare_cached(
            "SELECT data FROM bodies WHERE id = $2 AND node = (SELECT id FROM nodes WHERE name = $1)",
        )
        .await?;
    let row = client.query_opt(&statement, &[&name.as_str(), &turn.cast_signed()]).await?;
    row.map(|row| packing::unpack(row.try_get(0)?).map_err(Trouble::Packing)).transpose()
}

pub(super) async fn trend(client: &Object, since: Timestamp, step: u32) -> Result<Vec<TrendPoint>, Trouble> {
    let step = i64::from(step.max(1)) * 1_000_000;
    let statement = client
        .prepare_cached(&format!(
            "SELECT cause, ((received - $1) / $2)::bigint AS step, count(DISTINCT node) FROM bodies \
             WHERE kind = 1 AND received >= $1 AND {TROUBLE} GROUP BY 1, 2 ORDER BY 1 NULLS FIRST, 2"
        ))
        .await?;
    let rows = client.query(&statement, &[&micros(since), &step]).await?;
    rows.iter()
        .map(|row| {
            let step = u32::try_from(row.try_get::<_, i64>(1)?).unwrap_or(u32::MAX);
            Ok(TrendPoint { cause: row::cause(row, 0)?, step, nodes: row::count(row, 2)? })
        })
        .collect()
}

pub(super) async fn search(client: &Object, words: &[String], limit: u32) -> Result<Vec<Hit>, Trouble> {
    // PostgreSQL splits a word with punctuation (`api.corp`) into several consecutive words.
    let words: Vec<String> = words.iter().map(|word| row::words(word)).collect();
    if words.is_empty() {
        return Ok(Vec::new());
    }
    let all: Vec<String> =
        (0..words.len()).map(|at| format!("b.words @@ phraseto_tsquery('simple', ${})", at + 2)).collect();
    let statement = client
        .prepare_cached(&format!(
            "SELECT n.name, b.id, b.received, b.title, b.cause FROM bodies b JOIN nodes n ON n.id = b.node \
             WHERE {} ORDER BY b.id DESC LIMIT $1",
            all.join(" AND ")
        ))
        .await?;
    let limit = i64::from(limit);
    let mut values: Vec<&(dyn ToSql + Sync)> = vec![&limit];
    values.extend(words.iter().map(|word| word as &(dyn ToSql + Sync)));
    let rows = client.query(&statement, &values).await?;
    rows.iter()
        .map(|row| {
            Ok(Hit {
                node: row.try_get(0)?,
                turn: row::count(row, 1)?,
                received: row::time(row, 2)?,
                title: row.try_get(3)?,
                cause: row::cause(row, 4)?,
            })
        })
        .collect()
}

const BUNDLE: &str = "SELECT digest, node, received, bytes, files, cut FROM bundles";

fn bundle_record(row: &Row) -> Result<BundleRecord, Trouble> {
    Ok(BundleRecord {
        digest: row.try_get(0)?,
        node: row.try_get(1)?,
        received: row::time(row, 2)?,
        bytes: row::count(row, 3)?,
        files: row::count(row, 4)?,
        cut: row.try_get(5)?,
    })
}

pub(super) async fn has(client: &Object, ids: &[ReportId]) -> Result<Vec<ReportId>, Trouble> {
    let statement = client.prepare_cached("SELECT id FROM reports WHERE id = ANY($1)").await?;
    let wanted: Vec<&[u8]> = ids.iter().map(|id| &id.as_bytes()[..]).collect();
    let found = client.query(&statement, &[&wanted]).await?;
    let known: HashSet<&[u8]> = found.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    Ok(ids.iter().filter(|id| known.contains(&id.as_bytes()[..])).copied().collect())
}

pub(super) async fn bundle(client: &Object, digest: &str) -> Result<Option<BundleRecord>, Trouble> {
    let statement = client.prepare_cached(&format!("{BUNDLE} WHERE digest = $1")).await?;
    let row = client.query_opt(&statement, &[&text(digest)]).await?;
    row.as_ref().map(bundle_record).transpose()
}

pub(super) async fn bundles(client: &Object, name: &NodeName) -> Result<Vec<BundleRecord>, Trouble> {
    let text = format!("{BUNDLE} WHERE node = $1 ORDER BY received DESC LIMIT {MAX_BUNDLES}");
    let statement = client.prepare_cached(&text).await?;
    let rows = client.query(&statement, &[&name.as_str()]).await?;
    rows.iter().map(bundle_record).collect()
}
