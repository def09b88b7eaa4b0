//! Weights of lines: the strength of their rule, reduced for noise, success, age and origin.

use landfall_model::Phase;
use landfall_model::report::{Class, Trust};

use crate::case::SourceEntry;
use crate::hits::Hits;
use crate::moment::{Moment, Time};
use crate::rules::Rule;
use crate::scope;
use crate::stages::Stages;

/// In shorter sources, the position of a line has no significance.
const LONG_SOURCE: u64 = 100;

/// Weight factor for a problem that is normal during start and ended soon.
const PASSED: f64 = 0.5;
/// Weight factor for fewer lines than the rule requires.
const SELDOM: f64 = 0.5;
/// Weight factor for problems that applications also cause, once the node works.
const WORKLOAD_AFTER_SUCCESS: f64 = 0.4;
/// Weight factor for such problems reported by a program without a role in the bootstrap.
const FOREIGN_PROGRAM: f64 = 0.6;
/// Weight factor after a success of everything up to the phase.
const AFTER_SUCCESS: f64 = 0.5;
/// Weight factor for a transient problem that does not recur in the second half of a long log.
const OLD: f64 = 0.7;
/// Weight factor for a line that its writer marks as information.
const INFORMATIONAL: f64 = 0.85;

/// A share of the strength, with the reason for its reduction.
#[derive(Debug, Default)]
pub(crate) struct Weight {
    pub(crate) value: f64,
    pub(crate) because: Vec<String>,
}

/// Returns the weight of one rule's lines in one source.
pub(crate) fn weigh(
    rule: &Rule,
    source: usize,
    entry: &SourceEntry,
    hits: &Hits,
    stages: &Stages<'_>,
) -> Weight {
    let Some(newest) = hits.newest() else { return Weight::default() };
    let at = Moment { source, line: newest.line, time: newest.time };
    let trust = newest.origin.trust;
    if let Some(reason) = voided(rule, at, trust, stages) {
        return Weight { value: 0.0, because: vec![reason] };
    }
    let mut weight = Weight { value: rule.strength.value(), because: Vec::new() };
    if rule.persists.is_some_and(|least| passed(least, entry, hits)) {
        weight.take(PASSED, "it was over soon, as it is in any start");
    }
    // A user who submits only this line has selected it from many.
    if rule.least.is_some_and(|least| hits.count < least) && entry.lines > hits.count {
        weight.take(SELDOM, "it was said too seldom to mean much");
    }
    let succeeded = stages.succeeded_before(Phase::Kubelet, at, trust);
    if rule.workload
        && let Some(success) = succeeded
    {
        let place = stages.place_of(success);
        weight.take(
            WORKLOAD_AFTER_SUCCESS,
            &format!("the node worked already ({place}), and applications cause it too"),
        );
    }
    let is_foreign = || newest.process.as_deref().is_some_and(scope::is_foreign);
    if rule.workload && trust == Trust::Claimed && is_foreign() {
        weight.take(FOREIGN_PROGRAM, "the program that says so has no part in the bootstrap");
    }
    if rule.class != Class::Terminal {
        if let Some(success) = stages.succeeded_before(rule.phase, at, trust) {
            let place = stages.place_of(success);
            weight.take(
                AFTER_SUCCESS,
                &format!("everything up to `{}` had succeeded before ({place})", rule.phase),
            );
        }
        // A journal has the lines of all writers, so its length is not significant for one of them.
        let is_shared = entry.kind == "journal-text";
        if !is_shared && entry.lines >= LONG_SOURCE && newest.line < entry.lines / 2 {
            weight.take(OLD, "it is not seen again in the second half of a long log");
        }
        if newest.informational {
            weight.take(INFORMATIONAL, "its writer calls it information");
        }
    }
    weight
}

/// Returns the weight of lines from a source that their rule does not accept.
pub(crate) fn rejected(hits: &Hits) -> Weight {
    let stream = hits.newest().and_then(|hit| hit.stream.as_deref());
    let writer = stream.map_or_else(|| "another program".to_owned(), |stream| format!("`{stream}`"));
    let reason = format!(
        "written or quoted by {writer}; the rule does not accept these words there, because others may have chosen them"
    );
    Weight { value: 0.0, because: vec![reason] }
}

/// Returns whether the lines have no significance because their required earlier milestone is missing.
pub(crate) fn out_of_place(rule: &Rule, source: usize, hits: &Hits, stages: &Stages<'_>) -> bool {
    let (Some(name), Some(newest)) = (rule.after.as_deref(), hits.newest()) else { return false };
    !stages.is_after(name, Moment { source, line: newest.line, time: newest.time })
}

/// Returns the reason why the lines do not count at all.
fn voided(rule: &Rule, at: Moment, trust: Trust, stages: &Stages<'_>) -> Option<String> {
    if let Some(range) = &rule.versions
        && let Some(version) = stages.other_version(range, at, trust)
    {
        return Some(format!("it means this for `{range}`, and {} is {version} here", range.component));
    }
    if let Some(mark) = rule.noise_before.as_deref().and_then(|name| stages.is_before(name, at, trust)) {
        return Some(format!("it is ordinary before `{}` ({})", mark.milestone.id, stages.place_of(mark)));
    }
    if let Some(success) = stages.cleared_by(rule, at, trust) {
        return Some(format!("cleared by `{}` ({})", success.milestone.id, stages.place_of(success)));
    }
    stages.passed_in_later_boot(rule.phase, at, trust).map(|(boot, later)| {
        format!("it happened in boot {boot}, and boot {later} got past `{}`", rule.phase)
    })
}

/// Returns whether a problem that is normal during start ended within `least` seconds, and the log continued.
fn passed(least: u64, entry: &SourceEntry, hits: &Hits) -> bool {
    let least = i64::try_from(least).unwrap_or(i64::MAX);
    let (Some(first), Some(newest)) = (hits.first.first(), hits.newest()) else { return false };
    let since = |later: Option<Time>, earlier: Option<Time>| {
        later.zip(earlier).and_then(|(later, earlier)| later.seconds_since(earlier))
    };
    let lasted = since(newest.time, first.time);
    let silent = since(entry.last, newest.time);
    lasted.is_some_and(|seconds| seconds < least) && silent.is_some_and(|seconds| seconds >= least / 2)
}

// === impl Weight ===

impl Weight {
    fn take(&mut self, share: f64, why: &str) {
        self.value *= share;
        self.because.push(format!("×{share}: {why}"));
    }
}
