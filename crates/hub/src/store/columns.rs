//! Values of columns, as both databases store them.

use jiff::Timestamp;
use landfall_model::report::{State, Trust, Verdict};
use landfall_model::{Cause, Confidence, Phase};

/// The columns of a verdict.
#[derive(Debug)]
pub(super) struct VerdictRow {
    pub(super) state: State,
    pub(super) cause: Option<Cause>,
    pub(super) title: String,
    pub(super) phase: Option<Phase>,
    pub(super) confidence: Confidence,
    pub(super) trust: Trust,
}

pub(super) fn micros(time: Timestamp) -> i64 {
    time.as_microsecond()
}

/// Replaces NUL characters, which JSON can contain and PostgreSQL cannot store.
pub(super) fn text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Returns the position of a state on the fleet view, worst first.
pub(super) fn rank(state: State) -> i64 {
    let position = State::ALL.iter().position(|other| *other == state);
    position.map_or(i64::MAX, |position| i64::try_from(position).unwrap_or(i64::MAX))
}

// === impl VerdictRow ===

impl VerdictRow {
    pub(super) fn of(verdict: &Verdict) -> Self {
        Self {
            state: verdict.state,
            cause: verdict.cause.clone(),
            title: text(&verdict.title),
            phase: verdict.phase,
            confidence: verdict.confidence,
            trust: verdict.trust,
        }
    }

    /// Returns whether a verdict is the same. The title of a hung node contains the duration, which does not count
    /// as a change.
    pub(super) fn is(&self, verdict: &Verdict) -> bool {
        self.state == verdict.state
            && self.cause == verdict.cause
            && self.phase == verdict.phase
            && self.trust == verdict.trust
            && (self.state == State::Hung || self.title == text(&verdict.title))
    }
}
