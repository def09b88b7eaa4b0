//! What one report changes.

use landfall_model::envelope::is_later_boot;
use landfall_model::report::{State, Trust};
use rusqlite::{Connection, OptionalExtension as _, params};

use super::super::standing::Taken;
use super::super::{Arrival, Outcome, Refusal};
use super::forget;
use super::row::{self, Shown, micros};
use super::words::Words;

/// Boots remembered of one node. A machine that reboots more often between two prunings is in a loop, and its oldest boots
/// tell nothing the newer ones do not.
const MAX_BOOTS: i64 = 64;

/// How a body relates to the one before it.
#[derive(Clone, Copy)]
enum Kind {
    SameVerdict = 0,
    Turn = 1,
    Late = 2,
}

/// What the store holds of a node when its next report comes.
struct Known {
    id: i64,
    body: i64,
    turn: i64,
    boot: i64,
    sequence: i64,
    /// When the present report was made, as [`Arrival::moment`] tells.
    moment: i64,
    /// The boot the report names; nothing when it is heard of for the first time.
    named_boot: Option<Boot>,
    /// Why its sender may not speak for the node.
    refusal: Option<Refusal>,
    /// What it says now; nothing when the report says the same.
    shown: Option<Shown>,
    /// The body is the current one. With `shown`, its key or its trust is not stored yet.
    is_same_body: bool,
}

struct Boot {
    id: i64,
    floor: i64,
    number: Option<i64>,
}

/// What else comes of the reports of a group.
#[derive(Default)]
pub(super) struct Effects {
    /// A board would show something else.
    pub(super) changed: bool,
    /// To be found by search.
    pub(super) words: Vec<Words>,
    /// What new nodes took from allowances.
    pub(super) taken: Taken,
}

/// Stores a report, inside the transaction of its group.
pub(super) fn report(
    connection: &Connection,
    arrival: &Arrival,
    effects: &mut Effects,
) -> rusqlite::Result<Result<Outcome, Refusal>> {
    let known = known(connection, arrival)?;
    // Nearly all reports say what the one before them said.
    if let Some(known) = known.as_ref().filter(|known| known.goes_on_with(arrival))
        && log(connection, arrival, known.id, known.boot, known.body)?
    {
        beat(connection, arrival, known.id, known.boot)?;
        return Ok(Ok(Outcome::Stored));
    }
    if known.is_none() && is_replay(connection, arrival)? {
        return Ok(Err(Refusal::Forgotten));
    }
    if let Some(same) = seen(connection, arrival, known.as_ref())? {
        return Ok(if same { Ok(Outcome::Duplicate) } else { Err(Refusal::IdTaken) });
    }
    let Some(known) = known else {
        if let Err(refusal) = arrival.standing.admits_new(arrival.key.as_deref(), &mut effects.taken) {
            return Ok(Err(refusal));
        }
        first(connection, arrival, effects)?;
        return Ok(Ok(Outcome::Stored));
    };
    if let Some(refusal) = known.refusal {
        return Ok(Err(refusal));
    }
    let sequence = arrival.sequence.cast_signed();
    if known.named_boot.as_ref().is_some_and(|boot| sequence <= boot.floor) {
        return Ok(Err(Refusal::Replay));
    }
    let is_news = known.is_news(connection, arrival)?;
    let boot = match &known.named_boot {
        Some(boot) => {
            number_boot(connection, boot, arrival)?;
            boot.id
        }
        None => add_boot(connection, known.id, arrival)?,
    };
    if !is_news {
        let body = match known.shown {
            None => known.body,
            Some(_) => add_body(connection, known.id, arrival, Kind::Late, effects)?,
        };
        log(connection, arrival, known.id, boot, body)?;
        return Ok(Ok(Outcome::Late));
    }
    let mut body = known.body;
    if let Some(shown) = &known.shown {
        let is_same = known.is_same_body || same(shown, arrival);
        let kind = if is_same { Kind::SameVerdict } else { Kind::Turn };
        body = add_body(connection, known.id, arrival, kind, effects)?;
        present(connection, &known, arrival, body, kind)?;
        effects.changed = true;
    }
    beat(connection, arrival, known.id, boot)?;
    log(connection, arrival, known.id, boot, body)?;
    Ok(Ok(Outcome::Stored))
}

fn known(connection: &Connection, arrival: &Arrival) -> rusqlite::Result<Option<Known>> {
    connection
        .prepare_cached(
            "SELECT n.id, n.body, n.turn, n.digest, n.key, p.boot, p.sequence, min(p.time, p.last_seen), b.id, b.floor, \
             b.number, n.state, n.cause, n.title, n.phase, n.confidence, coalesce(n.proven_body = n.body, false) \
             FROM nodes n JOIN pulses p ON p.node = n.id LEFT JOIN boots b ON b.node = n.id AND b.name = ?2 \
             WHERE n.name = ?1",
        )?
        .query_row([arrival.node.as_str(), boot_name(arrival)], |row| {
            let key = row.get_ref(4)?.as_blob_or_null()?;
            let pins = key.is_none() && arrival.key.is_some();
            let is_same_body = row.get_ref(3)?.as_blob()? == arrival.digest;
            let shown = Shown::read(row, 11)?;
            // An earlier version stored the body without its trust.
            let is_complete = is_same_body && !pins && shown.trust == arrival.verdict.trust;
            let named_boot = match row.get(8)? {
                Some(id) => Some(Boot { id, floor: row.get(9)?, number: row.get(10)? }),
                None => None,
            };
            Ok(Known {
                id: row.get(0)?,
                body: row.get(1)?,
                turn: row.get(2)?,
                boot: row.get(5)?,
                sequence: row.get(6)?,
                moment: row.get(7)?,
                named_boot,
                refusal: arrival.standing.admits(key, arrival.key.as_deref()).err(),
                shown: (!is_complete).then_some(shown),
                is_same_body,
            })
        })
        .optional()
}

/// Whether the id is here already, and if so, whether it is the same report.
fn seen(connection: &Connection, arrival: &Arrival, known: Option<&Known>) -> rusqlite::Result<Option<bool>> {
    let found: Option<(i64, i64, i64, Option<Vec<u8>>)> = connection
        .prepare_cached(
            "SELECT r.node, r.sequence, r.time, b.digest FROM reports r LEFT JOIN bodies b ON b.id = r.body WHERE r.id = ?1",
        )?
        .query_row([arrival.id.as_bytes()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .optional()?;
    let found = match found {
        Some((node, ..))
            if known.is_none_or(|known| known.id != node) && was_forgotten(connection, arrival)? =>
        {
            None
        }
        found => found,
    };
    Ok(found.map(|(node, sequence, time, digest)| {
        known.is_some_and(|known| known.id == node)
            && sequence == arrival.sequence.cast_signed()
            && time == micros(arrival.time)
            // The body may be forgotten before the last report that said the same.
            && digest.is_none_or(|digest| digest == arrival.digest)
    }))
}

/// Whether a node that is not known was, and had said this or something newer when it was forgotten.
fn is_replay(connection: &Connection, arrival: &Arrival) -> rusqlite::Result<bool> {
    let Some(key) = &arrival.key else { return Ok(false) };
    let last = forget::last(connection, &arrival.node, key)?;
    Ok(last.is_some_and(|last| !last.is_older_than(arrival, boot_name(arrival))))
}

/// Whether the report that has this id is one of a node that was forgotten; then it makes room.
fn was_forgotten(connection: &Connection, arrival: &Arrival) -> rusqlite::Result<bool> {
    let removed = connection
        .prepare_cached(
            "DELETE FROM reports WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM nodes WHERE nodes.id = reports.node)",
        )?
        .execute([arrival.id.as_bytes()])?;
    Ok(removed > 0)
}

fn first(connection: &Connection, arrival: &Arrival, effects: &mut Effects) -> rusqlite::Result<()> {
    effects.changed = true;
    let verdict = &arrival.verdict;
    connection
        .prepare_cached(
            "INSERT INTO nodes (id, name, identity, first_seen, body, turn, digest, since, rank, state, cause, title, component, \
             phase, confidence, key) SELECT 1 + max(node, (SELECT ifnull(max(id), 0) FROM nodes)), ?1, ?2, ?3, 0, 0, ?4, ?3, ?5, \
             ?6, ?7, ?8, ?9, ?10, ?11, ?12 FROM highest",
        )?
        .execute(params![
            arrival.node.as_str(),
            identity(arrival)?,
            micros(arrival.received),
            arrival.digest,
            row::rank(verdict.state),
            verdict.state.name(),
            verdict.cause.as_ref().map(landfall_model::Cause::as_str),
            verdict.title,
            verdict.component,
            verdict.phase.map(landfall_model::Phase::name),
            verdict.confidence.value(),
            arrival.key,
        ])?;
    let node = connection.last_insert_rowid();
    let body = add_body(connection, node, arrival, Kind::Turn, effects)?;
    connection
        .prepare_cached(
            "UPDATE nodes SET body = ?2, turn = ?2, proven_body = iif(?3, ?2, NULL) WHERE id = ?1",
        )?
        .execute(params![node, body, is_proven(arrival)])?;
    let boot = add_boot(connection, node, arrival)?;
    connection.prepare_cached("INSERT INTO pulses VALUES (?1, ?2, ?3, ?4, ?5, 1)")?.execute(params![
        node,
        micros(arrival.received),
        micros(arrival.time),
        boot,
        arrival.sequence.cast_signed()
    ])?;
    log(connection, arrival, node, boot, body).map(drop)
}

/// Makes the report what the node says now.
fn present(
    connection: &Connection,
    known: &Known,
    arrival: &Arrival,
    body: i64,
    kind: Kind,
) -> rusqlite::Result<()> {
    let verdict = &arrival.verdict;
    let turned = matches!(kind, Kind::Turn);
    connection
        .prepare_cached(
            "UPDATE nodes SET identity = ?2, body = ?3, turn = ?4, digest = ?5, since = iif(?6, ?7, since), rank = ?8, \
             state = ?9, cause = ?10, title = ?11, component = ?12, phase = ?13, confidence = ?14, key = ?15, \
             proven_body = iif(?16, ?3, NULL) WHERE id = ?1",
        )?
        .execute(params![
            known.id,
            identity(arrival)?,
            body,
            if turned { body } else { known.turn },
            arrival.digest,
            turned,
            micros(arrival.received),
            row::rank(verdict.state),
            verdict.state.name(),
            verdict.cause.as_ref().map(landfall_model::Cause::as_str),
            verdict.title,
            verdict.component,
            verdict.phase.map(landfall_model::Phase::name),
            verdict.confidence.value(),
            arrival.key,
            is_proven(arrival),
        ])
        .map(drop)
}

fn add_body(
    connection: &Connection,
    node: i64,
    arrival: &Arrival,
    kind: Kind,
    effects: &mut Effects,
) -> rusqlite::Result<i64> {
    let verdict = &arrival.verdict;
    connection
        .prepare_cached(
            "INSERT INTO bodies (node, received, time, kind, state, cause, title, phase, confidence, digest, data, proven) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        )?
        .execute(params![
            node,
            micros(arrival.received),
            micros(arrival.time),
            kind as i64,
            verdict.state.name(),
            verdict.cause.as_ref().map(landfall_model::Cause::as_str),
            verdict.title,
            verdict.phase.map(landfall_model::Phase::name),
            verdict.confidence.value(),
            arrival.digest,
            row::pack(&arrival.report)?,
            is_proven(arrival),
        ])?;
    let body = connection.last_insert_rowid();
    effects.words.push((body, arrival.words.clone()));
    Ok(body)
}

/// Adds a boot, and forgets those of the node that are too many.
fn add_boot(connection: &Connection, node: i64, arrival: &Arrival) -> rusqlite::Result<i64> {
    connection
        .prepare_cached(
            "INSERT INTO boots (id, node, name, number) SELECT 1 + max(boot, (SELECT ifnull(max(id), 0) FROM boots)), ?1, ?2, ?3 \
             FROM highest",
        )?
        .execute(params![node, boot_name(arrival), arrival.numbered()])?;
    let added = connection.last_insert_rowid();
    connection
        .prepare_cached(
            "DELETE FROM boots WHERE id IN (SELECT id FROM boots WHERE node = ?1 ORDER BY id DESC LIMIT -1 OFFSET ?2) \
             AND id NOT IN (SELECT boot FROM pulses WHERE node = ?1)",
        )?
        .execute([node, MAX_BOOTS])?;
    Ok(added)
}

/// An agent that was replaced by a newer one begins to count in the middle of a boot.
fn number_boot(connection: &Connection, boot: &Boot, arrival: &Arrival) -> rusqlite::Result<()> {
    let (None, Some(number)) = (boot.number, arrival.numbered()) else { return Ok(()) };
    connection
        .prepare_cached("UPDATE boots SET number = ?2 WHERE id = ?1")?
        .execute([boot.id, number])
        .map(drop)
}

/// Adds a report to the log of all; says whether it is the first with its id.
fn log(
    connection: &Connection,
    arrival: &Arrival,
    node: i64,
    boot: i64,
    body: i64,
) -> rusqlite::Result<bool> {
    let added = connection
        .prepare_cached(
            "INSERT INTO reports (id, node, boot, sequence, time, received, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) \
             ON CONFLICT (id) DO NOTHING",
        )?
        .execute(params![
            arrival.id.as_bytes(),
            node,
            boot,
            arrival.sequence.cast_signed(),
            micros(arrival.time),
            micros(arrival.received),
            body
        ])?;
    Ok(added > 0)
}

/// The node was heard.
fn beat(connection: &Connection, arrival: &Arrival, node: i64, boot: i64) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "UPDATE pulses SET last_seen = ?2, time = ?3, boot = ?4, sequence = ?5, reports = reports + 1 WHERE node = ?1",
        )?
        .execute(params![
            node,
            micros(arrival.received),
            micros(arrival.time),
            boot,
            arrival.sequence.cast_signed()
        ])
        .map(drop)
}

fn is_proven(arrival: &Arrival) -> bool {
    arrival.verdict.trust == Trust::Proven
}

fn boot_name(arrival: &Arrival) -> &str {
    arrival.identity.boot_id.as_deref().unwrap_or_default()
}

/// Whether the node says what it said before. How long it hangs already stands in the title, and is no news.
fn same(shown: &Shown, arrival: &Arrival) -> bool {
    let verdict = &arrival.verdict;
    shown.state == verdict.state
        && shown.cause == verdict.cause
        && shown.phase == verdict.phase
        && shown.trust == verdict.trust
        && (shown.state == State::Hung || shown.title == verdict.title)
}

fn identity(arrival: &Arrival) -> rusqlite::Result<String> {
    serde_json::to_string(&arrival.identity)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

// === impl Known ===

impl Known {
    /// Whether the report is the next of the present boot and says what the last one said.
    fn goes_on_with(&self, arrival: &Arrival) -> bool {
        let is_present =
            |boot: &Boot| boot.id == self.boot && boot.number.is_some() >= arrival.boot_number.is_some();
        self.refusal.is_none()
            && self.shown.is_none()
            && self.named_boot.as_ref().is_some_and(is_present)
            && arrival.sequence.cast_signed() > self.sequence
    }

    /// Whether the report was made after the present one.
    fn is_news(&self, connection: &Connection, arrival: &Arrival) -> rusqlite::Result<bool> {
        let named = self.named_boot.as_ref();
        if named.is_some_and(|boot| boot.id == self.boot) {
            return Ok(arrival.sequence.cast_signed() > self.sequence);
        }
        // Nearly all reports are of the present boot; so its number is looked up only here.
        let present: Option<Option<i64>> = connection
            .prepare_cached("SELECT number FROM boots WHERE id = ?1")?
            .query_row([self.boot], |row| row.get(0))
            .optional()?;
        let unsigned = |number: Option<i64>| number.map(i64::cast_unsigned);
        let number = arrival.boot_number.or(unsigned(named.and_then(|boot| boot.number)));
        Ok(is_later_boot((number, arrival.moment()), (unsigned(present.flatten()), self.moment)))
    }
}
