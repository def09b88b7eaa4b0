//! What a group of reports changes, decided without the database: what was read goes in, what must be written comes out.
//!
//! Numbers that the database has yet to give are counted below zero here; [`Changes::number`] puts the real ones in.

use std::collections::HashMap;

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
    pub(super) sequence: i64,
    pub(super) since: i64,
    pub(super) shown: Shown,
    /// The boot and the sequence that were read; nothing for a node that was never heard of.
    pub(super) read: Option<(i64, i64)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Boot {
    pub(super) id: i64,
    pub(super) floor: i64,
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
    pub(super) reports: Vec<NewReport<'a>>,
    /// The last report of each node that says what it says now, and how many there were.
    pub(super) pulses: HashMap<&'a str, Pulse<'a>>,
    /// The report that a node's line shows from now on.
    pub(super) lines: HashMap<&'a str, &'a Arrival>,
    /// How many numbers are needed.
    pub(super) numbers: i64,
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
    let Some(node) = known.nodes.get_mut(name) else {
        let node = first(changes, arrival, &boot_name);
        known.boots.insert((node.id, boot_name), Boot { id: node.boot, floor: 0 });
        remember(known, changes, arrival, (node.id, node.boot, node.body));
        changes.beat(arrival);
        known.nodes.insert(name.to_owned(), node);
        return Ok(Outcome::Stored);
    };
    if node.key.is_some() && node.key != arrival.key {
        return Err(Refusal::WrongKey);
    }
    let named = (node.id, boot_name);
    let boot = known.boots.get(&named).copied();
    if let Some(boot) = boot
        && (boot.id != node.boot || sequence <= node.sequence)
    {
        if sequence <= boot.floor {
            return Err(Refusal::Replay);
        }
        let id = node.id;
        let body = if node.digest == arrival.digest {
            node.body
        } else {
            changes.add_body(node.id, Kind::Late, arrival)
        };
        remember(known, changes, arrival, (id, boot.id, body));
        return Ok(Outcome::Late);
    }
    if let Some(boot) = boot {
        node.boot = boot.id;
    } else {
        node.boot = changes.next();
        changes.boots.push(NewBoot { id: node.boot, node: node.id, name: named.1.clone() });
    }
    if node.digest != arrival.digest {
        let kind = if node.shown.is(&arrival.verdict) { Kind::SameVerdict } else { Kind::Turn };
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
    node.sequence = sequence;
    let row = (node.id, node.boot, node.body);
    if boot.is_none() {
        known.boots.insert(named, Boot { id: row.1, floor: 0 });
    }
    remember(known, changes, arrival, row);
    changes.beat(arrival);
    Ok(Outcome::Stored)
}

fn first<'a>(changes: &mut Changes<'a>, arrival: &'a Arrival, boot_name: &str) -> Node {
    let (id, boot) = (changes.next(), changes.next());
    let body = changes.add_body(id, Kind::Turn, arrival);
    changes.boots.push(NewBoot { id: boot, node: id, name: boot_name.to_owned() });
    changes.lines.insert(arrival.node.as_str(), arrival);
    Node {
        id,
        body,
        turn: body,
        digest: arrival.digest.to_vec(),
        key: arrival.key.clone(),
        boot,
        sequence: arrival.sequence.cast_signed(),
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

// === impl Changes ===

impl<'a> Changes<'a> {
    fn next(&mut self) -> i64 {
        self.numbers += 1;
        -self.numbers
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
