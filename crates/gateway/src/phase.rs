//! Where the birth of the control plane stands, from what is seen of it. Pure: observations in, phase out.

use std::fmt;

use serde::Serialize;

/// Failures of the control plane stay visible for so many observations before it counts as not there yet.
const FAILED_FOR: u32 = 30;
/// Permanent API servers that must answer before they count as a control plane beside the local one.
const ENOUGH: usize = 2;

/// Where the birth of the control plane stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// No API server answers yet.
    NoApi,
    /// The local one answers.
    Local,
    /// The local one and permanent ones answer.
    Both,
    /// The permanent ones take over while the local one goes.
    Handover,
    /// Only permanent ones answer.
    Permanent,
    /// There was one, and none is left.
    Failed,
}

/// What is seen at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) local: bool,
    pub(crate) permanent: usize,
    /// The bootstrap says that it has done its work.
    pub(crate) finished: bool,
}

/// Follows the phases.
#[derive(Debug)]
pub(crate) struct Phases {
    phase: Phase,
    failed_for: u32,
}

/// Whether something answers, damped: it takes a few answers in a row to change one's mind.
#[derive(Debug)]
pub(crate) struct Steady {
    up: bool,
    against: u32,
    rise: u32,
    fall: u32,
}

// === impl Phase ===

impl Phase {
    pub(crate) const ALL: [Self; 6] =
        [Self::NoApi, Self::Local, Self::Both, Self::Handover, Self::Permanent, Self::Failed];
}

// === impl Phases ===

impl Phases {
    pub(crate) fn new() -> Self {
        Self { phase: Phase::NoApi, failed_for: 0 }
    }

    pub(crate) fn observe(&mut self, seen: Seen) -> Phase {
        let next = match (seen.local, seen.permanent) {
            (true, 0) => Phase::Local,
            (true, _) if seen.finished || self.phase == Phase::Handover => Phase::Handover,
            (true, count) if count >= ENOUGH => Phase::Both,
            (true, _) => Phase::Local,
            (false, 1..) => Phase::Permanent,
            (false, 0) => match self.phase {
                Phase::NoApi => Phase::NoApi,
                Phase::Failed if self.failed_for >= FAILED_FOR => Phase::NoApi,
                _ => Phase::Failed,
            },
        };
        self.failed_for = if next == Phase::Failed { self.failed_for + 1 } else { 0 };
        self.phase = next;
        next
    }
}

// === impl Steady ===

impl Steady {
    pub(crate) fn new(rise: u32, fall: u32) -> Self {
        Self { up: false, against: 0, rise, fall }
    }

    pub(crate) fn observe(&mut self, answers: bool) -> bool {
        if answers == self.up {
            self.against = 0;
            return self.up;
        }
        self.against += 1;
        if self.against >= if answers { self.rise } else { self.fall } {
            self.up = answers;
            self.against = 0;
        }
        self.up
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoApi => "no-api",
            Self::Local => "local",
            Self::Both => "both",
            Self::Handover => "handover",
            Self::Permanent => "permanent",
            Self::Failed => "failed",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(local: bool, permanent: usize, finished: bool) -> Seen {
        Seen { local, permanent, finished }
    }

    #[test]
    fn a_birth_goes_through_its_phases() {
        let mut phases = Phases::new();
        for (seen, expected) in [
            (seen(false, 0, false), Phase::NoApi),
            (seen(true, 0, false), Phase::Local),
            (seen(true, 1, false), Phase::Local),
            (seen(true, 2, false), Phase::Both),
            (seen(true, 3, true), Phase::Handover),
            // A restarted bootstrap forgets its markers; what is handed over stays so.
            (seen(true, 3, false), Phase::Handover),
            (seen(false, 3, true), Phase::Permanent),
            (seen(false, 0, true), Phase::Failed),
            (seen(false, 1, true), Phase::Permanent),
        ] {
            assert_eq!(phases.observe(seen), expected, "{seen:?}");
        }
    }

    #[test]
    fn a_failed_control_plane_comes_back_or_is_not_there() {
        let mut phases = Phases::new();
        phases.observe(seen(true, 0, false));
        assert_eq!(phases.observe(seen(false, 0, false)), Phase::Failed);
        assert_eq!(phases.observe(seen(true, 0, false)), Phase::Local);
        for _ in 0..FAILED_FOR {
            assert_eq!(phases.observe(seen(false, 0, false)), Phase::Failed);
        }
        assert_eq!(phases.observe(seen(false, 0, false)), Phase::NoApi);
    }

    #[test]
    fn one_lost_answer_changes_nothing() {
        let mut steady = Steady::new(1, 3);
        let answers = [false, true, false, false, true, false, false, false, false, true];
        let seen = answers.map(|answers| steady.observe(answers));
        assert_eq!(seen, [false, true, true, true, true, true, true, false, false, true]);
    }
}
