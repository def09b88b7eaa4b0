//! All evidence of one diagnosis.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use landfall_model::report::{Report, Source};

use crate::facts::{Fact, Observation};
use crate::hits::Hits;
use crate::moment::Time;
use crate::reason;
use crate::rules::Trigger;
use crate::scan::{Engine, PatternId, Scan, TIME_LINES};

/// The source kind of facts, which only a reader on the machine observes.
pub(crate) const FACTS: &str = "facts";

/// A diagnosis in progress: sources are added, then [`Case::finish`] returns the report.
///
/// A reader that continues afterwards finishes a copy. A copy is small, because only the first and the last
/// lines of each kind are kept.
#[derive(Clone, Debug)]
pub struct Case<'e> {
    engine: &'e Engine,
    sources: Vec<SourceEntry>,
}

/// A source of this case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceId(usize);

/// The clocks of a machine that is watched while it runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    pub now: Option<Timestamp>,
    /// The machine's uptime. Events that seem older started before its clock was set.
    pub up: Option<SignedDuration>,
}

#[derive(Clone, Debug)]
pub(crate) struct SourceEntry {
    pub(crate) name: String,
    /// The machine of the source, in a bundle of several machines; otherwise empty.
    pub(crate) node: String,
    pub(crate) kind: String,
    pub(crate) bytes: u64,
    pub(crate) lines: u64,
    pub(crate) first: Option<Time>,
    pub(crate) last: Option<Time>,
    /// Number of the line with the last time.
    last_line: u64,
    /// The year in which the log ends, if the log contains it.
    year: Option<i16>,
    /// The section in which the next chunk starts.
    section: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) hits: BTreeMap<PatternId, Hits>,
    /// Lines that are shown but do not count because of their origin.
    pub(crate) foreign: BTreeMap<PatternId, Hits>,
}

// === impl Case ===

impl<'e> Case<'e> {
    pub(crate) fn new(engine: &'e Engine) -> Self {
        Self { engine, sources: Vec::new() }
    }

    /// Adds a source. `kind` is displayed unchanged; see [`StreamKind::name`](crate::StreamKind::name).
    pub fn add_source(&mut self, name: &str, kind: &str) -> SourceId {
        self.sources.push(SourceEntry {
            name: name.to_owned(),
            node: node_of(name).to_owned(),
            kind: kind.to_owned(),
            bytes: 0,
            lines: 0,
            first: None,
            last: None,
            last_line: 0,
            year: None,
            section: None,
            error: None,
            hits: BTreeMap::new(),
            foreign: BTreeMap::new(),
        });
        SourceId(self.sources.len() - 1)
    }

    /// Adds the scan of the next chunk of a source. Chunks of one source are added in line order.
    pub fn add(&mut self, source: SourceId, scan: Scan) {
        let Some(entry) = self.sources.get_mut(source.0) else { return };
        let mut scan = scan;
        entry.carry_over(self.engine, &mut scan);
        entry.bytes += scan.bytes;
        entry.lines += scan.lines;
        entry.first = entry.first.or(scan.first);
        if scan.last.is_some() {
            (entry.last, entry.last_line) = (scan.last, scan.last_line);
        }
        entry.year = entry.year.or(scan.year);
        if let Some(section) = scan.sections.last() {
            entry.section = Some(section.to_owned());
        }
        for (id, hits) in scan.hits {
            entry.hits.entry(id).or_default().append(hits);
        }
        for (id, hits) in scan.foreign {
            entry.foreign.entry(id).or_default().append(hits);
        }
    }

    /// Adds a fact observed by the reader. Observations of one kind are added in time order.
    pub fn observe(&mut self, observation: &Observation) {
        if let Fact::Container { namespace, .. } = &observation.kind
            && !self.engine.rules.origins.namespaces().contains(namespace)
        {
            return;
        }
        let (name, _) = observation.kind.place();
        let known = self.sources.iter().position(|entry| entry.kind == FACTS && entry.name == name);
        let at = known.unwrap_or_else(|| self.add_source(name, FACTS).0);
        let Some(entry) = self.sources.get_mut(at) else { return };
        entry.lines += 1;
        let time = Time::Full(observation.time.as_microsecond());
        entry.first = entry.first.or(Some(time));
        (entry.last, entry.last_line) = (Some(time), entry.lines);
        for (id, trigger) in (0..).zip(self.engine.rules.triggers()) {
            if matches!(trigger, Trigger::Fact(spec) if spec.matches(&observation.kind)) {
                let hit = observation.kind.hit(entry.lines, observation.time);
                entry.hits.entry(id).or_default().append(Hits::one(hit));
            }
        }
    }

    /// Records that a source could not be read completely.
    pub fn fail(&mut self, source: SourceId, error: String) {
        if let Some(entry) = self.sources.get_mut(source.0) {
            entry.error = Some(error);
        }
    }

    /// Records a problem of the newest source with this name, whether or not its lines were read.
    pub fn remark(&mut self, name: &str, what: &str) {
        match self.sources.iter_mut().rev().find(|entry| entry.name == name) {
            Some(entry) => {
                let known = entry.error.take().map(|error| format!("{error}; ")).unwrap_or_default();
                entry.error = Some(known + what);
            }
            None => self.fail_source(name, what.to_owned()),
        }
    }

    /// Records an unreadable input.
    pub fn fail_source(&mut self, name: &str, error: String) {
        let source = self.add_source(name, "unreadable");
        self.fail(source, error);
    }

    /// Returns the newest complete time in any source.
    pub fn last(&self) -> Option<Timestamp> {
        let times = self.sources.iter().flat_map(|entry| {
            let hits = entry.hits.values().filter_map(|hits| hits.newest()?.time);
            entry.last.into_iter().chain(hits)
        });
        times.filter_map(Time::timestamp).max()
    }

    /// Diagnoses the case as of its last line.
    pub fn finish(self) -> Report {
        self.finish_at(Clock::default())
    }

    /// Diagnoses the case as of now: a stage without further lines still ages.
    pub fn finish_at(mut self, clock: Clock) -> Report {
        self.place_in_years();
        reason::report(self.engine, &self.sources, clock)
    }

    /// Completes times without a year, with the year of a complete time in the same source or else in any source.
    fn place_in_years(&mut self) {
        let year_of = |entry: &SourceEntry| {
            let hits = entry.hits.values().flat_map(Hits::iter).filter_map(|hit| hit.time);
            let told = entry.first.into_iter().chain(entry.last).chain(hits).find_map(Time::year);
            entry.year.or(told)
        };
        let any = self.sources.iter().find_map(year_of);
        for entry in &mut self.sources {
            let Some(year) = year_of(entry).or(any) else { continue };
            for time in [&mut entry.first, &mut entry.last].into_iter().flatten() {
                *time = time.in_year(year);
            }
            for hit in entry.hits.values_mut().flat_map(Hits::iter_mut) {
                hit.time = hit.time.map(|time| time.in_year(year));
            }
        }
    }
}

/// Returns the node of a source: `log-bundle/control-plane/10.0.0.5/journals/kubelet.log` is from `10.0.0.5`.
fn node_of(name: &str) -> &str {
    const FOLDERS: [&str; 8] =
        ["control-plane", "control-planes", "master", "masters", "node", "nodes", "worker", "workers"];
    let mut segments = name.split('/').peekable();
    while let Some(segment) = segments.next() {
        // An archive's directories follow its name after a colon; a node's name may be an address with
        // colons.
        let folder = segment.rsplit_once(':').map_or(segment, |(_, folder)| folder);
        if FOLDERS.contains(&folder)
            && let Some(node) = segments.next()
            && segments.peek().is_some()
        {
            return node;
        }
    }
    ""
}

// === impl SourceEntry ===

impl SourceEntry {
    /// Passes the state of the previous chunk to the first lines of a chunk: time and section.
    fn carry_over(&self, engine: &Engine, scan: &mut Scan) {
        let first_heading = scan.sections.first_line().unwrap_or(u64::MAX);
        let section = self.section.as_deref();
        let mut moved = Vec::new();
        for (id, hits) in &mut scan.hits {
            for hit in hits.iter_mut() {
                if hit.time.is_none() && hit.line.saturating_sub(self.last_line) <= TIME_LINES as u64 {
                    hit.time = self.last;
                }
                if let (None, Some(section), true) = (&hit.process, section, hit.line < first_heading) {
                    hit.process = Some(section.to_owned());
                    hit.stream.clone_from(&hit.process);
                    hit.origin = engine.rules.origins.of_section(section);
                }
            }
            moved.extend(hits.split_off(|hit| engine.accepts(*id, hit.origin)).map(|hits| (*id, hits)));
        }
        scan.hits.retain(|_, hits| hits.count > 0);
        for (id, hits) in moved {
            scan.foreign.entry(id).or_default().append(hits);
        }
    }

    pub(crate) fn report(&self) -> Source {
        Source {
            name: self.name.clone(),
            kind: self.kind.clone(),
            bytes: self.bytes,
            lines: self.lines,
            first: self.first.and_then(Time::timestamp),
            last: self.last.and_then(Time::timestamp),
            error: self.error.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::node_of;

    #[test]
    fn the_node_is_told_by_the_folder_it_is_in() {
        for (name, node) in [
            ("log-bundle/control-plane/10.0.0.5/journals/kubelet.log", "10.0.0.5"),
            ("logs.tgz:nodes/worker-1/kubelet.log", "worker-1"),
            ("a.tar:b.tgz:control-plane/fd00::5/kubelet.log", "fd00::5"),
            ("nodes/worker-1", ""),
            ("kubelet.log", ""),
        ] {
            assert_eq!(node_of(name), node, "{name}");
        }
    }
}
