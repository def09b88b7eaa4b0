//! Decides what a group of reports changes, without a database.
//!
//! The stored state goes in, the rows to write come out. The SQLite and PostgreSQL adapters read that state and
//! write those rows. Rows without an ID yet get negative placeholders; [`Changes::assign_ids`] replaces them.

use std::collections::HashMap;

use landfall_model::envelope::is_later_boot;

use super::columns::{VerdictRow, micros, text};
use super::forgotten::Last;
use super::standing::Taken;
use super::{Arrival, Outcome, Refusal};

/// Maximum number of stored boots per node. A machine that reboots more often between two prunings is in a reboot
/// loop, and its oldest boots add no information.
pub(super) const MAX_BOOTS: i64 = 64;

/// How a body relates to the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyKind {
    Unchanged = 0,
    VerdictChange = 1,
    Late = 2,
}

/// The stored rows of the nodes and reports of a group. [`decide`] updates them, so that the next report of the
/// group sees the effect of the previous one.
#[derive(Debug, Default)]
pub(super) struct StoredState {
    /// By name.
    pub(super) nodes: HashMap<String, NodeRow>,
    /// By the node's ID and the boot's name.
    pub(super) boots: HashMap<(i64, String), Boot>,
    pub(super) acknowledged: HashMap<[u8; 16], AcknowledgedReport>,
    /// IDs of reports of deleted nodes. Their rows are deleted, because the ID may be used again.
    pub(super) orphaned: Vec<[u8; 16]>,
    /// The last report of each deleted node, by name and key.
    pub(super) deleted_nodes: HashMap<(String, Vec<u8>), Last>,
}

/// A node.
#[derive(Debug)]
pub(super) struct NodeRow {
    pub(super) id: i64,
    pub(super) body: i64,
    /// The body of the last verdict change.
    pub(super) turn: i64,
    pub(super) digest: Vec<u8>,
    pub(super) key: Option<Vec<u8>>,
    pub(super) boot: i64,
    pub(super) boot_number: Option<i64>,
    pub(super) sequence: i64,
    /// [`Arrival::moment`] of the current report.
    pub(super) moment: i64,
    /// When the verdict changed.
    pub(super) since: i64,
    pub(super) shown: VerdictRow,
    /// The boot and the sequence as they were read; `None` for a new node.
    pub(super) read: Option<(i64, i64)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Boot {
    pub(super) id: i64,
    /// The highest sequence whose report was deleted.
    pub(super) floor: i64,
    pub(super) number: Option<i64>,
}

/// A report that was acknowledged before.
#[derive(Debug)]
pub(super) struct AcknowledgedReport {
    pub(super) node: i64,
    pub(super) sequence: i64,
    pub(super) time: i64,
    /// `None` if the body was deleted before this report.
    pub(super) digest: Option<Vec<u8>>,
}

/// The rows to write.
#[derive(Debug, Default)]
pub(super) struct Changes<'a> {
    pub(super) bodies: Vec<NewBody<'a>>,
    pub(super) boots: Vec<NewBoot>,
    /// IDs of boots that get a number: a newer agent that counts boots has replaced an older one.
    pub(super) numbered: Vec<(i64, i64)>,
    pub(super) reports: Vec<NewReport<'a>>,
    /// The last current report of each node in the group, and their number.
    pub(super) heartbeats: HashMap<&'a str, Heartbeat<'a>>,
    /// The report that the fleet view shows of a node whose row changes.
    pub(super) lines: HashMap<&'a str, &'a Arrival>,
    /// Number of placeholders.
    pub(super) placeholders: i64,
    /// The enrollment quota that new nodes used.
    pub(super) taken: Taken,
}

#[derive(Debug)]
pub(super) struct Heartbeat<'a> {
    pub(super) arrival: &'a Arrival,
    pub(super) count: i64,
}

#[derive(Debug)]
pub(super) struct NewBody<'a> {
    pub(super) id: i64,
    pub(super) node: i64,
    pub(super) kind: BodyKind,
    pub(super) arrival: &'a Arrival,
}

#[derive(Debug)]
pub(super) struct NewBoot {
    pub(super) id: i64,
    pub(super) node: i64,
    pub(super) name: String,
    pub(super) number: Option<i64>,
}

#[derive(Debug)]
pub(super) struct NewReport<'a> {
    pub(super) node: i64,
    pub(super) boot: i64,
    pub(super) body: i64,
    pub(super) arrival: &'a Arrival,
}

/// Decides what one report changes, after the previous reports of its group.
pub(super) fn decide<'a>(
    state: &mut StoredState,
    changes: &mut Changes<'a>,
    arrival: &'a Arrival,
) -> Result<Outcome, Refusal> {
    let name = arrival.node.as_str();
    let sequence = arrival.sequence.cast_signed();
    if let Some(report) = state.acknowledged.get(arrival.id.as_bytes()) {
        let same = state.nodes.get(name).is_some_and(|node| node.id == report.node)
            && report.sequence == sequence
            && report.time == micros(arrival.time)
            && report.digest.as_ref().is_none_or(|digest| *digest == arrival.digest);
        return if same { Ok(Outcome::Duplicate) } else { Err(Refusal::IdTaken) };
    }
    let boot_name = boot_name(arrival);
    if state.is_replay(arrival, &boot_name) {
        // The rejected report does not replace the acknowledged one.
        state.orphaned.retain(|id| id != arrival.id.as_bytes());
        return Err(Refusal::Forgotten);
    }
    let Some(node) = state.nodes.get_mut(name) else {
        arrival.standing.admits_new(arrival.key.as_deref(), &mut changes.taken)?;
        let node = first(changes, arrival, &boot_name);
        let boot = Boot { id: node.boot, floor: 0, number: node.boot_number };
        state.boots.insert((node.id, boot_name), boot);
        add_report(state, changes, arrival, (node.id, node.boot, node.body));
        changes.add_heartbeat(arrival);
        state.nodes.insert(name.to_owned(), node);
        return Ok(Outcome::Stored);
    };
    arrival.standing.admits(node.key.as_deref(), arrival.key.as_deref())?;
    let named = (node.id, boot_name);
    let boot = state.boots.get(&named).copied();
    if boot.is_some_and(|boot| sequence <= boot.floor) {
        return Err(Refusal::Replay);
    }
    let is_news = node.is_older_than(arrival, boot);
    let boot = changes.boot(boot, &named, arrival);
    state.boots.insert(named, boot);
    if !is_news {
        let id = node.id;
        let body = if node.digest == arrival.digest {
            node.body
        } else {
            changes.add_body(node.id, BodyKind::Late, arrival)
        };
        add_report(state, changes, arrival, (id, boot.id, body));
        return Ok(Outcome::Late);
    }
    (node.boot, node.boot_number) = (boot.id, boot.number);
    let pins = node.key.is_none() && arrival.key.is_some();
    let is_same_body = node.digest == arrival.digest;
    // An earlier version stored bodies without their trust.
    if pins || !is_same_body || node.shown.trust != arrival.verdict.trust {
        let is_same = is_same_body || node.shown.is(&arrival.verdict);
        let kind = if is_same { BodyKind::Unchanged } else { BodyKind::VerdictChange };
        node.body = changes.add_body(node.id, kind, arrival);
        if kind == BodyKind::VerdictChange {
            node.turn = node.body;
            node.since = micros(arrival.received);
        }
        node.digest = arrival.digest.to_vec();
        node.shown = VerdictRow::of(&arrival.verdict);
        node.key.clone_from(&arrival.key);
        changes.lines.insert(name, arrival);
    }
    (node.sequence, node.moment) = (sequence, arrival.moment());
    let row = (node.id, node.boot, node.body);
    add_report(state, changes, arrival, row);
    changes.add_heartbeat(arrival);
    Ok(Outcome::Stored)
}

fn first<'a>(changes: &mut Changes<'a>, arrival: &'a Arrival, boot_name: &str) -> NodeRow {
    let id = changes.next();
    let boot = changes.boot(None, &(id, boot_name.to_owned()), arrival);
    let body = changes.add_body(id, BodyKind::VerdictChange, arrival);
    changes.lines.insert(arrival.node.as_str(), arrival);
    NodeRow {
        id,
        body,
        turn: body,
        digest: arrival.digest.to_vec(),
        key: arrival.key.clone(),
        boot: boot.id,
        boot_number: boot.number,
        sequence: arrival.sequence.cast_signed(),
        moment: arrival.moment(),
        since: micros(arrival.received),
        shown: VerdictRow::of(&arrival.verdict),
        read: None,
    }
}

/// Returns the name of the boot that a report belongs to; empty if the report names none.
pub(super) fn boot_name(arrival: &Arrival) -> String {
    text(arrival.identity.boot_id.as_deref().unwrap_or_default())
}

fn add_report<'a>(
    state: &mut StoredState,
    changes: &mut Changes<'a>,
    arrival: &'a Arrival,
    (node, boot, body): (i64, i64, i64),
) {
    let report = AcknowledgedReport {
        node,
        sequence: arrival.sequence.cast_signed(),
        time: micros(arrival.time),
        digest: Some(arrival.digest.to_vec()),
    };
    state.acknowledged.insert(*arrival.id.as_bytes(), report);
    changes.reports.push(NewReport { node, boot, body, arrival });
}

// === impl StoredState ===

impl StoredState {
    /// Returns whether the node was deleted after it had sent this report or a newer one.
    fn is_replay(&self, arrival: &Arrival, boot: &str) -> bool {
        let (Some(key), false) = (&arrival.key, self.deleted_nodes.is_empty()) else { return false };
        let name = arrival.node.as_str();
        if self.nodes.contains_key(name) {
            return false;
        }
        let last = self.deleted_nodes.get(&(name.to_owned(), key.clone()));
        last.is_some_and(|last| !last.is_older_than(arrival, boot))
    }
}

// === impl NodeRow ===

impl NodeRow {
    /// Returns whether the report is newer than the current one.
    fn is_older_than(&self, arrival: &Arrival, boot: Option<Boot>) -> bool {
        if boot.is_some_and(|boot| boot.id == self.boot) {
            return arrival.sequence.cast_signed() > self.sequence;
        }
        let unsigned = |number: Option<i64>| number.map(i64::cast_unsigned);
        let number = arrival.boot_number.or(unsigned(boot.and_then(|boot| boot.number)));
        is_later_boot((number, arrival.moment()), (unsigned(self.boot_number), self.moment))
    }
}

// === impl Changes ===

impl<'a> Changes<'a> {
    fn next(&mut self) -> i64 {
        self.placeholders += 1;
        -self.placeholders
    }

    /// Returns the boot of a report: the stored one, with a number if the report has one, or a new one.
    fn boot(&mut self, stored: Option<Boot>, (node, name): &(i64, String), arrival: &Arrival) -> Boot {
        let number = arrival.numbered();
        match (stored, number) {
            (Some(Boot { id, floor, number: None }), Some(reported)) => {
                self.numbered.push((id, reported));
                Boot { id, floor, number }
            }
            (Some(boot), _) => boot,
            (None, _) => {
                let id = self.next();
                self.boots.push(NewBoot { id, node: *node, name: name.clone(), number });
                Boot { id, floor: 0, number }
            }
        }
    }

    fn add_body(&mut self, node: i64, kind: BodyKind, arrival: &'a Arrival) -> i64 {
        let id = self.next();
        self.bodies.push(NewBody { id, node, kind, arrival });
        id
    }

    fn add_heartbeat(&mut self, arrival: &'a Arrival) {
        let heartbeat =
            self.heartbeats.entry(arrival.node.as_str()).or_insert(Heartbeat { arrival, count: 0 });
        heartbeat.arrival = arrival;
        heartbeat.count += 1;
    }

    /// Replaces the placeholders `-1`, `-2`, … by `ids[0]`, `ids[1]`, and so on.
    pub(super) fn assign_ids(&mut self, state: &mut StoredState, ids: &[i64]) {
        let real = |id: &mut i64| {
            let index = usize::try_from(-1 - *id).ok();
            if let Some(assigned) = index.and_then(|index| ids.get(index)) {
                *id = *assigned;
            }
        };
        for body in &mut self.bodies {
            real(&mut body.id);
            real(&mut body.node);
        }
        for boot in &mut self.boots {
            real(&mut boot.id);
            real(&mut boot.node);
        }
        for (boot, _) in &mut self.numbered {
            real(boot);
        }
        for report in &mut self.reports {
            real(&mut report.node);
            real(&mut report.boot);
            real(&mut report.body);
        }
        for node in state.nodes.values_mut() {
            for id in [&mut node.id, &mut node.body, &mut node.turn, &mut node.boot] {
                real(id);
            }
        }
    }
}
