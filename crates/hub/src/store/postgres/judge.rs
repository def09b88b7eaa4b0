//! What a group of reports changes, decided without the database: what was read goes in, what must be written comes out.
//!
//! Numbers that the database has yet to give are counted below zero here; [`Changes::number`] puts the real ones in.

use std::collections::HashMap;

use landfall_model::envelope::is_later_boot;

use super::super::forgotten::Last;
use super::super::standing::Taken;
use super::super::{Arrival, Outcome, Refusal};
use super::row::{self, Shown, micros};

/// How a body relates to the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    SameVerdict = 0,
    Turn = 1,
    Late = 2,
}

/// What the database holds of the nodes and reports of a group.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) nodes: HashMap<String, Node>,
    pub(super) boots: HashMap<(i64, String), Boot>,
    pub(super) seen: HashMap<[u8; 16], Seen>,
    /// Ids of reports of nodes that were forgotten: they make room.
    pub(super) forgotten: Vec<[u8; 16]>,
    /// What nodes of the group that are not known had come to when they were forgotten, by name and key.
    pub(super) forgotten_nodes: HashMap<(String, Vec<u8>), Last>,
}

/// A node as it was read, and as the group leaves it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: i64,
    pub(super) body: i64,
    pub(super) turn: i64,
    pub(super) digest: Vec<u8>,
    pub(super) key: Option<Vec<u8>>,
    pub(super) boot: i64,
    pub(super) boot_number: Option<i64>,
    pub(super) sequence: i64,
    /// When the present report was made, as [`Arrival::moment`] tells.
    pub(super) moment: i64,
    pub(super) since: i64,
    pub(super) shown: Shown,
    /// The boot and the sequence that were read; nothing for a node that was never heard of.
    pub(super) read: Option<(i64, i64)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Boot {
    pub(super) id: i64,
    pub(super) floor: i64,
    pub(super) number: Option<i64>,
}

/// A report that was acknowledged before.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) node: i64,
    pub(super) sequence: i64,
    pub(super) time: i64,
    /// The body may be forgotten before the last report that said the same.
    pub(super) digest: Option<Vec<u8>>,
}

/// What must be written.
#[derive(Debug, Default)]
pub(super) struct Changes<'a> {
    pub(super) bodies: Vec<NewBody<'a>>,
    pub(super) boots: Vec<NewBoot>,
    /// Boots that have a number from now on: their agent was replaced by a newer one.
    pub(super) numbered: Vec<(i64, i64)>,
    pub(super) reports: Vec<NewReport<'a>>,
    /// The last report of each node that says what it says now, and how many there were.
    pub(super) pulses: HashMap<&'a str, Pulse<'a>>,
    /// The report that a node's line shows from now on.
    pub(super) lines: HashMap<&'a str, &'a Arrival>,
    /// How many numbers are needed.
    pub(super) numbers: i64,
    /// What new nodes took from allowances.
    pub(super) taken: Taken,
}

#[derive(Debug)]
pub(super) struct Pulse<'a> {
    pub(super) arrival: &'a Arrival,
    pub(super) count: i64,
}

#[derive(Debug)]
pub(super) struct NewBody<'a> {
    pub(super) id: i64,
    pub(super) node: i64,
    pub(super) kind: Kind,
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

/// Takes one report in, after those of its group that came before it.
pub(super) fn report<'a>(
    known: &mut Known,
    changes: &mut Changes<'a>,
    arrival: &'a Arrival,
) -> Result<Outcome, Refusal> {
    let name = arrival.node.as_str();
    let sequence = arrival.sequence.cast_signed();
    if let Some(seen) = known.seen.get(arrival.id.as_bytes()) {
        let same = known.nodes.get(name).is_some_and(|node| node.id == seen.node)
            && seen.sequence == sequence
            && seen.time == micros(arrival.time)
            && seen.digest.as_ref().is_none_or(|digest| *digest == arrival.digest);
        return if same { Ok(Outcome::Duplicate) } else { Err(Refusal::IdTaken) };
    }
    let boot_name = row::text(arrival.identity.boot_id.as_deref().unwrap_or_default());
    if known.is_replay(arrival, &boot_name) {
        // It is no reason to forget that it was acknowledged.
        known.forgotten.retain(|id| id != arrival.id.as_bytes());
        return Err(Refusal::Forgotten);
    }
    let Some(node) = known.nodes.get_mut(name) else {
        arrival.standing.admits_new(arrival.key.as_deref(), &mut changes.taken)?;
        let node = first(changes, arrival, &boot_name);
        let boot = Boot { id: node.boot, floor: 0, number: node.boot_number };
        known.boots.insert((node.id, boot_name), boot);
        remember(known, changes, arrival, (node.id, node.boot, node.body));
        changes.beat(arrival);
        known.nodes.insert(name.to_owned(), node);
        return Ok(Outcome::Stored);
    };
    arrival.standing.admits(node.key.as_deref(), arrival.key.as_deref())?;
    let named = (node.id, boot_name);
    let boot = known.boots.get(&named).copied();
    if boot.is_some_and(|boot| sequence <= boot.floor) {
        return Err(Refusal::Replay);
    }
    let is_news = node.is_older_than(arrival, boot);
    let boot = changes.boot(boot, &named, arrival);
    known.boots.insert(named, boot);
    if !is_news {
        let id = node.id;
        let body = if node.digest == arrival.digest {
            node.body
        } else {
            changes.add_body(node.id, Kind::Late, arrival)
        };
        remember(known, changes, arrival, (id, boot.id, body));
        return Ok(Outcome::Late);
    }
    (node.boot, node.boot_number) = (boot.id, boot.number);
    let pins = node.key.is_none() && arrival.key.is_some();
    let is_same_body = node.digest == arrival.digest;
    // An earlier version stored the body without its trust.
    if pins || !is_same_body || node.shown.trust != arrival.verdict.trust {
        let is_same = is_same_body || node.shown.is(&arrival.verdict);
        let kind = if is_same { Kind::SameVerdict } else { Kind::Turn };
        node.body = changes.add_body(node.id, kind, arrival);
        if kind == Kind::Turn {
            node.turn = node.body;
            node.since = micros(arrival.received);
        }
        node.digest = arrival.digest.to_vec();
        node.shown = Shown::of(&arrival.verdict);
        node.key.clone_from(&arrival.key);
        changes.lines.insert(name, arrival);
    }
    (node.sequence, node.moment) = (sequence, arrival.moment());
    let row = (node.id, node.boot, node.body);
    remember(known, changes, arrival, row);
    changes.beat(arrival);
    Ok(Outcome::Stored)
}

fn first<'a>(changes: &mut Changes<'a>, arrival: &'a Arrival, boot_name: &str) -> Node {
    let id = changes.next();
    let boot = changes.boot(None, &(id, boot_name.to_owned()), arrival);
    let body = changes.add_body(id, Kind::Turn, arrival);
    changes.lines.insert(arrival.node.as_str(), arrival);
    Node {
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
        shown: Shown::of(&arrival.verdict),
        read: None,
    }
}

fn remember<'a>(
    known: &mut Known,
    changes: &mut Changes<'a>,
    arrival: &'a Arrival,
    (node, boot, body): (i64, i64, i64),
) {
    let seen = Seen {
        node,
        sequence: arrival.sequence.cast_signed(),
        time: micros(arrival.time),
        digest: Some(arrival.digest.to_vec()),
    };
    known.seen.insert(*arrival.id.as_bytes(), seen);
    changes.reports.push(NewReport { node, boot, body, arrival });
}

// === impl Known ===

impl Known {
    /// Whether a node that is not known was, and had said this or something newer when it was forgotten.
    fn is_replay(&self, arrival: &Arrival, boot: &str) -> bool {
        let (Some(key), false) = (&arrival.key, self.forgotten_nodes.is_empty()) else { return false };
        let name = arrival.node.as_str();
        if self.nodes.contains_key(name) {
            return false;
        }
        let last = self.forgotten_nodes.get(&(name.to_owned(), key.clone()));
        last.is_some_and(|last| !last.is_older_than(arrival, boot))
    }
}

// === impl Node ===

impl Node {
    /// Whether the report was made after the present one.
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
        self.numbers += 1;
        -self.numbers
    }

    /// The boot of a report: as it is known, with a number when it has one now, or new.
    fn boot(&mut self, known: Option<Boot>, (node, name): &(i64, String), arrival: &Arrival) -> Boot {
        let number = arrival.numbered();
        match (known, number) {
            (Some(Boot { id, floor, number: None }), Some(told)) => {
                self.numbered.push((id, told));
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

    fn add_body(&mut self, node: i64, kind: Kind, arrival: &'a Arrival) -> i64 {
        let id = self.next();
        self.bodies.push(NewBody { id, node, kind, arrival });
        id
    }

    fn beat(&mut self, arrival: &'a Arrival) {
        let pulse = self.pulses.entry(arrival.node.as_str()).or_insert(Pulse { arrival, count: 0 });
        pulse.arrival = arrival;
        pulse.count += 1;
    }

    /// Puts the database's numbers in the place of ours.
    pub(super) fn number(&mut self, known: &mut Known, numbers: &[i64]) {
        let real = |id: &mut i64| {
            let place = usize::try_from(-1 - *id).ok();
            if let Some(number) = place.and_then(|place| numbers.get(place)) {
                *id = *number;
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
        for node in known.nodes.values_mut() {
            for id in [&mut node.id, &mut node.body, &mut node.turn, &mut node.boot] {
                real(id);
            }
        }
    }
}
