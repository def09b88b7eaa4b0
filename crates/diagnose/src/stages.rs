//! Progress: which stages were opened, which ended, and how.

use std::collections::BTreeMap;

use landfall_model::Phase;
use landfall_model::report::{PhaseOutcome, TimelineEntry};

use crate::case::SourceEntry;
use crate::moment::{Moment, Time};
use crate::rules::{Milestone, Rule, StageEvent};
use crate::scan::{Engine, Hit};
use crate::template;

/// All milestones of a case.
#[derive(Debug)]
pub(crate) struct Stages<'c> {
    /// In the order of each source's lines.
    events: Vec<Event<'c>>,
    /// The machine of each source.
    nodes: Vec<&'c str>,
    /// The newest time any source tells.
    now: Option<Time>,
}

#[derive(Clone, Copy, Debug)]
struct Event<'c> {
    milestone: &'c Milestone,
    hit: &'c Hit,
    moment: Moment,
}

/// A stage that was opened and did not end.
#[derive(Debug)]
pub(crate) struct OpenStage<'c> {
    pub(crate) milestone: &'c Milestone,
    pub(crate) hit: &'c Hit,
    pub(crate) source: usize,
    pub(crate) name: String,
    /// Seconds from its start to the last thing any source tells, where clocks allow.
    pub(crate) age: Option<i64>,
}

// === impl Stages ===

impl<'c> Stages<'c> {
    pub(crate) fn new(engine: &'c Engine, sources: &'c [SourceEntry]) -> Self {
        let mut events = Vec::new();
        for (source, entry) in sources.iter().enumerate() {
            for (id, hits) in &entry.hits {
                let Some(milestone) = engine.milestone(*id) else { continue };
                events.extend(hits.iter().map(|hit| {
                    let moment = if milestone.standing {
                        Moment { source, line: u64::MAX, time: entry.last.or(hit.time) }
                    } else {
                        Moment { source, line: hit.line, time: hit.time }
                    };
                    Event { milestone, hit, moment }
                }));
            }
        }
        events.sort_by_key(|event| (event.moment.source, event.moment.line));
        let full = |time: &Time| matches!(time, Time::Full(_)).then_some(*time);
        let times = || sources.iter().filter_map(|entry| entry.last);
        let key = |time: &Time| match time {
            Time::Full(micros) | Time::Yearless(micros) | Time::Uptime(micros) => *micros,
        };
        let now =
            times().filter(|time| full(time).is_some()).max_by_key(key).or_else(|| times().max_by_key(key));
        let nodes = sources.iter().map(|entry| entry.node.as_str()).collect();
        Self { events, nodes, now }
    }

    /// Whether something later shows that the trouble a line told of is over.
    pub(crate) fn clears(&self, rule: &Rule, line: Moment) -> bool {
        self.events.iter().any(|event| {
            let milestone = event.milestone;
            let named = rule.cleared_by.contains(&milestone.id)
                || milestone.clears.iter().any(|name| name == rule.cause.as_str())
                || milestone.reach().is_some_and(|reach| rule.phase <= reach);
            named && self.after(event.moment, line)
        })
    }

    /// Whether a line came before the first milestone of that name, when there is one.
    pub(crate) fn is_before(&self, name: &str, line: Moment) -> bool {
        let mut marks = self.events.iter().filter(|event| event.milestone.id == name).peekable();
        marks.peek().is_some() && marks.all(|event| self.after(event.moment, line))
    }

    /// Whether a line came after a milestone of that name.
    pub(crate) fn is_after(&self, name: &str, line: Moment) -> bool {
        self.events.iter().any(|event| event.milestone.id == name && self.after(line, event.moment))
    }

    /// Whether a line came after everything up to its phase had succeeded.
    pub(crate) fn succeeded_before(&self, phase: Phase, line: Moment) -> bool {
        self.successes().any(|event| event.milestone.reach() >= Some(phase) && self.after(line, event.moment))
    }

    /// Whether one line comes after another of the same machine; what happens elsewhere proves nothing here.
    fn after(&self, later: Moment, earlier: Moment) -> bool {
        self.nodes.get(later.source) == self.nodes.get(earlier.source)
            && later.is_after(earlier) == Some(true)
    }

    /// The furthest phase that is known to have succeeded.
    pub(crate) fn success(&self) -> Option<Phase> {
        self.successes().map(|event| event.milestone.phase).max()
    }

    fn successes(&self) -> impl Iterator<Item = &Event<'c>> {
        self.events
            .iter()
            .filter(|event| event.milestone.event == StageEvent::Done && event.milestone.reach().is_some())
    }

    /// Stages that said themselves that they failed, with nothing better after it.
    pub(crate) fn failed(&self) -> Vec<(String, &'c Milestone)> {
        self.last_of_each_stage()
            .into_iter()
            .filter(|(_, event)| event.milestone.event == StageEvent::Failed)
            .filter(|(_, event)| {
                !self.successes().any(|success| {
                    success.milestone.reach() >= Some(event.milestone.phase)
                        && self.after(success.moment, event.moment)
                })
            })
            .map(|(name, event)| (name, event.milestone))
            .collect()
    }

    /// Stages whose last word is that they began.
    pub(crate) fn open(&self) -> Vec<OpenStage<'c>> {
        self.last_of_each_stage()
            .into_iter()
            .filter(|(_, event)| event.milestone.event == StageEvent::Opened)
            .filter(|(_, event)| {
                !self.successes().any(|success| {
                    success.milestone.reach() >= Some(event.milestone.phase)
                        && self.after(success.moment, event.moment)
                })
            })
            .map(|(name, event)| OpenStage {
                milestone: event.milestone,
                hit: event.hit,
                source: event.moment.source,
                name,
                age: event.moment.time.zip(self.now).and_then(|(opened, now)| now.seconds_since(opened)),
            })
            .collect()
    }

    pub(crate) fn timeline(&self) -> Vec<TimelineEntry> {
        let mut phases: BTreeMap<Phase, Vec<&Event<'c>>> = BTreeMap::new();
        for event in &self.events {
            phases.entry(event.milestone.phase).or_default().push(event);
        }
        let open = self.open();
        let failed = self.failed();
        phases
            .into_iter()
            .map(|(phase, events)| {
                let outcome = if failed.iter().any(|(_, milestone)| milestone.phase == phase) {
                    PhaseOutcome::Failed
                } else if open.iter().any(|stage| stage.milestone.phase == phase) {
                    PhaseOutcome::Open
                } else {
                    PhaseOutcome::Ok
                };
                let times = || events.iter().filter_map(|event| event.moment.time.and_then(Time::timestamp));
                let ended = (outcome != PhaseOutcome::Open).then(|| times().max()).flatten();
                TimelineEntry { phase, started: times().min(), ended, outcome }
            })
            .collect()
    }

    fn last_of_each_stage(&self) -> BTreeMap<String, Event<'c>> {
        let mut stages: BTreeMap<String, Event<'c>> = BTreeMap::new();
        for event in &self.events {
            let stage = template::fill(&event.milestone.stage, &event.hit.captures)
                .unwrap_or_else(|| event.milestone.phase.name().to_owned());
            let name = match self.nodes.get(event.moment.source) {
                Some(node) if !node.is_empty() => format!("{node}: {stage}"),
                _ => stage,
            };
            let newer =
                stages.get(&name).is_none_or(|known| event.moment.is_after(known.moment) != Some(false));
            if newer {
                stages.insert(name, *event);
            }
        }
        stages
    }
}
