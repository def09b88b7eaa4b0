//! Progress: opened and ended stages with their outcomes.

use std::collections::{BTreeMap, BTreeSet};

use landfall_model::Phase;
use landfall_model::report::{PhaseOutcome, StageReason, TimelineEntry, Trust};

use crate::boots::Boots;
use crate::case::{Clock, SourceEntry};
use crate::hits::Hit;
use crate::moment::{Moment, Time};
use crate::rules::{Milestone, Rule, StageEvent};
use crate::scan::Engine;
use crate::template;
use crate::version::{Range, Version};

/// Maximum number of lines between kubeadm's mode and its first check.
const MODE_LINES: u64 = 10;

/// All milestones of a case.
#[derive(Debug)]
pub(crate) struct Stages<'c> {
    /// In the order of each source's lines.
    events: Vec<Event<'c>>,
    sources: &'c [SourceEntry],
    boots: Boots<'c>,
    /// The newest time in any source, and the current time if known: two clocks, either of which may be
    /// usable.
    now: [Option<Time>; 2],
    /// The machine's uptime in seconds: none of its events is older.
    up: Option<i64>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Event<'c> {
    pub(crate) milestone: &'c Milestone,
    pub(crate) hit: &'c Hit,
    pub(crate) moment: Moment,
    pub(crate) phase: Phase,
    /// Its boot, if several are seen.
    boot: Option<u32>,
}

/// A stage that was opened and did not end.
#[derive(Debug)]
pub(crate) struct OpenStage<'c> {
    pub(crate) milestone: &'c Milestone,
    pub(crate) hit: &'c Hit,
    pub(crate) source: usize,
    pub(crate) name: String,
    /// Seconds from its start to the last event of any source, or to the current time, if the clocks are
    /// comparable.
    pub(crate) age: Option<i64>,
}

struct LastWord<'c> {
    name: String,
    event: Event<'c>,
}

// === impl Stages ===

/// Returns the lines at which a machine boots.
///
/// If a machine has proven ones, claimed ones do not divide its logs.
fn boot_marks(events: &[Event<'_>], sources: &[SourceEntry]) -> Vec<Moment> {
    let node = |event: &Event<'_>| sources.get(event.moment.source).map_or("", |entry| entry.node.as_str());
    let marks = || events.iter().filter(|event| event.milestone.event == StageEvent::Boot);
    let is_proven = |event: &Event<'_>| event.hit.origin.trust == Trust::Proven;
    let proven: BTreeSet<&str> = marks().filter(|event| is_proven(event)).map(node).collect();
    let counted = marks().filter(|event| is_proven(event) || !proven.contains(node(event)));
    counted.map(|event| event.moment).collect()
}

impl<'c> Stages<'c> {
    pub(crate) fn new(engine: &'c Engine, sources: &'c [SourceEntry], clock: Clock) -> Self {
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
                    Event { milestone, hit, moment, phase: milestone.phase, boot: None }
                }));
            }
        }
        events.sort_by_key(|event| (event.moment.source, event.moment.line));
        let boots = Boots::new(sources, boot_marks(&events, sources).into_iter());
        let full = |time: &Time| matches!(time, Time::Full(_)).then_some(*time);
        let times = || sources.iter().filter_map(|entry| entry.last);
        let key = |time: &Time| match time {
            Time::Full(micros) | Time::Yearless(micros) | Time::Uptime(micros) => *micros,
        };
        let told =
            times().filter(|time| full(time).is_some()).max_by_key(key).or_else(|| times().max_by_key(key));
        let now = clock.now.map(|now| Time::Full(now.as_microsecond()));
        let up = clock.up.map(|up| up.as_secs());
        let mut stages = Self { events, sources, boots, now: [told, now], up };
        stages.place();
        stages
    }

    /// Assigns each event to its boot, and kubeadm's failures to its current operation.
    fn place(&mut self) {
        let placed: Vec<(Option<u32>, Phase)> = self
            .events
            .iter()
            .map(|event| {
                let follows = event.milestone.event == StageEvent::Failed && !event.milestone.decides;
                let phase = if follows { self.phase_at(event.phase, event.moment) } else { event.phase };
                (self.boot_of(event.moment), phase)
            })
            .collect();
        for (event, (boot, phase)) in self.events.iter_mut().zip(placed) {
            (event.boot, event.phase) = (boot, phase);
        }
    }

    /// Returns the phase of a line that kubeadm may print when it creates a control plane and when it joins
    /// one.
    pub(crate) fn phase_at(&self, phase: Phase, line: Moment) -> Phase {
        if !matches!(phase, Phase::ControlPlane | Phase::Join) {
            return phase;
        }
        let deciding = |event: &&Event<'_>| {
            event.milestone.decides && event.moment.source == line.source && event.moment.line <= line.line
        };
        let mut newest_first = self.events.iter().rev().filter(deciding);
        let Some(newest) = newest_first.next() else { return phase };
        if newest.milestone.event == StageEvent::Opened {
            return newest.milestone.phase;
        }
        // Both print their checks; only one announces the operation before.
        let said = newest_first
            .find(|event| event.milestone.event == StageEvent::Opened)
            .filter(|event| event.moment.line + MODE_LINES >= newest.moment.line);
        said.unwrap_or(newest).milestone.phase
    }

    /// Returns the later event that clears a line's problem.
    ///
    /// A claim does not clear evidence of proven origin.
    pub(crate) fn cleared_by(&self, rule: &Rule, line: Moment, trust: Trust) -> Option<&Event<'c>> {
        self.events.iter().find(|event| {
            let milestone = event.milestone;
            let named = rule.cleared_by.contains(&milestone.id)
                || milestone.clears.iter().any(|name| name == rule.cause.as_str())
                || milestone.reach().is_some_and(|reach| rule.phase <= reach);
            named && event.hit.origin.trust >= trust && self.after(event.moment, line)
        })
    }

    /// Returns a line's boot and a later one of the same machine that passed the phase, if there is one.
    pub(crate) fn passed_in_later_boot(
        &self,
        phase: Phase,
        line: Moment,
        trust: Trust,
    ) -> Option<(u32, u32)> {
        let boot = self.boot_of(line)?;
        let later = self.events.iter().filter(|event| {
            event.milestone.event == StageEvent::Done
                && event.phase >= phase
                && event.hit.origin.trust >= trust
                && self.node(event.moment) == self.node(line)
        });
        later.filter_map(|event| event.boot).find(|other| *other > boot).map(|other| (boot, other))
    }

    /// Returns the first milestone with this name, if the line precedes all of them.
    pub(crate) fn is_before(&self, name: &str, line: Moment, trust: Trust) -> Option<&Event<'c>> {
        let is_meant = |event: &&Event<'_>| event.milestone.id == name && event.hit.origin.trust >= trust;
        let marks = || self.events.iter().filter(is_meant);
        marks().next().filter(|_| marks().all(|event| self.after(event.moment, line)))
    }

    /// Returns whether a line follows a milestone with this name.
    pub(crate) fn is_after(&self, name: &str, line: Moment) -> bool {
        self.events.iter().any(|event| event.milestone.id == name && self.after(line, event.moment))
    }

    /// Returns a success of everything up to the phase that precedes a line.
    pub(crate) fn succeeded_before(&self, phase: Phase, line: Moment, trust: Trust) -> Option<&Event<'c>> {
        self.successes().find(|event| {
            event.milestone.reach() >= Some(phase)
                && event.hit.origin.trust >= trust
                && self.after(line, event.moment)
        })
    }

    /// Returns the last version of the range's component on the machine, if it is outside the range.
    pub(crate) fn other_version(&self, range: &Range, line: Moment, trust: Trust) -> Option<Version> {
        let told = self.events.iter().filter(|event| {
            event.milestone.version_of.as_deref() == Some(range.component.as_str())
                && event.hit.origin.trust >= trust
                && self.node(event.moment) == self.node(line)
        });
        let seen = told.filter_map(|event| Version::parse(event.hit.captures.get("version")?)).next_back()?;
        (!range.holds(seen)).then_some(seen)
    }

    /// Returns the versions in the logs, as `component version`.
    pub(crate) fn versions(&self) -> Vec<String> {
        let mut seen: Vec<String> = Vec::new();
        for event in &self.events {
            let version = event.hit.captures.get("version").and_then(|text| Version::parse(text));
            if let (Some(component), Some(version)) = (&event.milestone.version_of, version) {
                let text = format!("{component} {version}");
                if !seen.contains(&text) {
                    seen.push(text);
                }
            }
        }
        seen
    }

    /// Returns whether one line follows another of the same machine; events on other machines prove nothing
    /// here.
    fn after(&self, later: Moment, earlier: Moment) -> bool {
        self.node(later) == self.node(earlier) && later.is_after(earlier) == Some(true)
    }

    fn node(&self, moment: Moment) -> &'c str {
        self.sources.get(moment.source).map_or("", |entry| entry.node.as_str())
    }

    fn boot_of(&self, moment: Moment) -> Option<u32> {
        self.boots.of(self.node(moment), moment)
    }

    /// Returns whether a line describes the machine's current boot.
    fn is_current(&self, event: &Event<'_>) -> bool {
        event.boot.is_none_or(|boot| boot >= self.boots.count(self.node(event.moment)))
    }

    /// Formats the location of a line.
    pub(crate) fn place_of(&self, event: &Event<'_>) -> String {
        let name = self.sources.get(event.moment.source).map_or("", |entry| entry.name.as_str());
        format!("{name}:{}", event.hit.line)
    }

    /// Returns the furthest successful phase, by evidence with at least this trust.
    pub(crate) fn success(&self, trust: Trust) -> Option<Phase> {
        let trusted = self.successes().filter(|event| event.hit.origin.trust >= trust);
        trusted.map(|event| event.phase).max()
    }

    /// Returns the last operation that kubeadm started: it has not succeeded before it reports that.
    pub(crate) fn kubeadm_phase(&self) -> Option<Phase> {
        self.events.iter().rev().find(|event| event.milestone.decides).map(|event| event.phase)
    }

    /// Returns whether any Kubernetes event was seen: a machine may be healthy without being a node.
    pub(crate) fn kubernetes(&self) -> bool {
        self.events.iter().any(|event| {
            event.phase >= Phase::ControlPlane && event.milestone.event != StageEvent::Seen
                || event.milestone.decides
        })
    }

    /// Returns the last event: by time if known, otherwise the furthest phase.
    pub(crate) fn last_event(&self) -> Option<&Event<'c>> {
        let key = |event: &&Event<'_>| {
            let time = event.moment.time.and_then(Time::timestamp).map(jiff::Timestamp::as_microsecond);
            (time, event.phase, event.moment.line)
        };
        self.events.iter().filter(|event| event.milestone.event != StageEvent::Seen).max_by_key(key)
    }

    fn successes(&self) -> impl Iterator<Item = &Event<'c>> {
        self.events
            .iter()
            .filter(|event| event.milestone.event == StageEvent::Done && event.milestone.reach().is_some())
    }

    fn is_passed(&self, event: &Event<'_>) -> bool {
        self.successes().any(|success| {
            success.milestone.reach() >= Some(event.phase)
                && success.hit.origin.trust >= event.hit.origin.trust
                && self.after(success.moment, event.moment)
        })
    }

    /// Returns the trust of the evidence for the furthest success.
    pub(crate) fn success_trust(&self) -> Trust {
        let furthest = self.success(Trust::Claimed);
        let events = self.successes().filter(|event| Some(event.phase) == furthest);
        events.map(|event| event.hit.origin.trust).max().unwrap_or_default()
    }

    /// Returns whether a later phase has started on the same machine and boot.
    fn is_left_behind(&self, event: &Event<'_>) -> bool {
        self.events.iter().any(|later| {
            later.phase > event.phase
                && later.boot == event.boot
                && later.hit.origin.trust >= event.hit.origin.trust
                && later.milestone.event != StageEvent::Seen
                && self.node(later.moment) == self.node(event.moment)
        })
    }

    /// Returns the stages that reported a failure, without a later success.
    pub(crate) fn failed(&self) -> Vec<(String, Phase, Trust)> {
        self.last_of_each_stage()
            .into_iter()
            .filter(|last| last.event.milestone.event == StageEvent::Failed && !self.is_passed(&last.event))
            .filter(|LastWord { event, .. }| {
                self.passed_in_later_boot(event.phase, event.moment, event.hit.origin.trust).is_none()
            })
            .map(|last| (last.name, last.event.phase, last.event.hit.origin.trust))
            .collect()
    }

    /// Returns the stages whose last event is their start.
    pub(crate) fn open(&self) -> Vec<OpenStage<'c>> {
        self.last_of_each_stage()
            .into_iter()
            .filter(|last| last.event.milestone.event == StageEvent::Opened && self.is_current(&last.event))
            .filter(|last| !self.is_passed(&last.event))
            .map(|LastWord { name, event }| OpenStage {
                milestone: event.milestone,
                hit: event.hit,
                source: event.moment.source,
                name,
                age: event.moment.time.and_then(|opened| self.age(opened)),
            })
            .collect()
    }

    /// Returns the seconds since a time.
    ///
    /// A clock set forward in between makes earlier events look too old, so the uptime is the limit.
    fn age(&self, then: Time) -> Option<i64> {
        let ages = self.now.iter().flatten().filter_map(|now| now.seconds_since(then));
        ages.filter(|age| self.up.is_none_or(|up| *age <= up)).max()
    }

    /// Returns whether a line other than the given ones shows, on a source's machine, a crash or an open or
    /// failed stage.
    pub(crate) fn shows_trouble(&self, source: usize, except: &BTreeSet<(usize, u64)>) -> bool {
        self.shows(source, except, &[PhaseOutcome::Open, PhaseOutcome::Failed])
    }

    /// Returns whether a line other than the given ones shows, on a source's machine, a crash or a failed
    /// stage.
    pub(crate) fn shows_failure(&self, source: usize, except: &BTreeSet<(usize, u64)>) -> bool {
        self.shows(source, except, &[PhaseOutcome::Failed])
    }

    /// Returns whether any stage started or ended.
    pub(crate) fn are_known(&self) -> bool {
        self.events.iter().any(|event| event.milestone.event != StageEvent::Seen)
    }

    fn shows(&self, source: usize, except: &BTreeSet<(usize, u64)>, outcomes: &[PhaseOutcome]) -> bool {
        let at = Moment { source, line: 0, time: None };
        let last = self.last_of_each_stage();
        let unfinished =
            last.iter().map(|last| &last.event).filter(|event| outcomes.contains(&self.outcome(event)));
        let crashes = self.events.iter().filter(|event| event.milestone.crash);
        unfinished.chain(crashes).any(|event| {
            self.node(event.moment) == self.node(at)
                && !except.contains(&(event.moment.source, event.hit.line))
        })
    }

    /// Returns the timeline: each phase of each boot.
    pub(crate) fn timeline(&self) -> Vec<TimelineEntry> {
        let mut phases: BTreeMap<(Option<u32>, Phase), Vec<&Event<'c>>> = BTreeMap::new();
        for event in self.events.iter().filter(|event| event.milestone.event != StageEvent::Seen) {
            phases.entry((event.boot, event.phase)).or_default().push(event);
        }
        let last = self.last_of_each_stage();
        phases
            .into_iter()
            .map(|((boot, phase), events)| {
                let mut outcomes = last
                    .iter()
                    .filter(|last| last.event.boot == boot && last.event.phase == phase)
                    .map(|last| self.outcome(&last.event));
                let outcome = outcomes.by_ref().fold(PhaseOutcome::Ok, |worst, next| match (worst, next) {
                    (PhaseOutcome::Failed, _) | (_, PhaseOutcome::Failed) => PhaseOutcome::Failed,
                    (PhaseOutcome::Open, _) | (_, PhaseOutcome::Open) => PhaseOutcome::Open,
                    (PhaseOutcome::Ok, PhaseOutcome::Ok) => PhaseOutcome::Ok,
                });
                let times = || events.iter().filter_map(|event| event.moment.time.and_then(Time::timestamp));
                let ended = (outcome != PhaseOutcome::Open).then(|| times().max()).flatten();
                TimelineEntry { phase, started: times().min(), ended, outcome, boot }
            })
            .collect()
    }

    /// Returns each stage with its last event, for the reasoning.
    pub(crate) fn reasons(&self) -> Vec<StageReason> {
        self.last_of_each_stage()
            .into_iter()
            .map(|last| StageReason {
                phase: last.event.phase,
                outcome: self.outcome(&last.event),
                place: self.place_of(&last.event),
                time: last.event.moment.time.and_then(Time::timestamp),
                stage: match last.event.boot {
                    Some(boot) => format!("boot {boot}: {}", last.name),
                    None => last.name,
                },
            })
            .collect()
    }

    fn outcome(&self, event: &Event<'_>) -> PhaseOutcome {
        match event.milestone.event {
            StageEvent::Failed if !self.is_passed(event) => PhaseOutcome::Failed,
            StageEvent::Opened if !self.is_passed(event) => PhaseOutcome::Open,
            StageEvent::Boot if !self.is_passed(event) && !self.is_left_behind(event) => PhaseOutcome::Open,
            _ => PhaseOutcome::Ok,
        }
    }

    fn last_of_each_stage(&self) -> Vec<LastWord<'c>> {
        let mut stages: BTreeMap<(Option<u32>, String), Event<'c>> = BTreeMap::new();
        for event in self.events.iter().filter(|event| event.milestone.event != StageEvent::Seen) {
            let stage = template::fill(&event.milestone.stage, &event.hit.captures)
                .filter(|stage| *stage != event.milestone.phase.name())
                .unwrap_or_else(|| event.phase.name().to_owned());
            let name = match self.node(event.moment) {
                "" => stage,
                node => format!("{node}: {stage}"),
            };
            let key = (event.boot, name);
            let replaces = |known: &Event<'_>| {
                event.hit.origin.trust > known.hit.origin.trust
                    || event.hit.origin.trust == known.hit.origin.trust
                        && event.moment.is_after(known.moment) != Some(false)
            };
            if stages.get(&key).is_none_or(replaces) {
                stages.insert(key, *event);
            }
        }
        stages.into_iter().map(|((_, name), event)| LastWord { name, event }).collect()
    }
}
