//! Bootstrap phase of the control plane, derived from observations without side effects.

use std::fmt;

use serde::Serialize;

/// Number of observations for which the phase stays `Failed` before it returns to `NoApi`.
const FAILED_FOR: u32 = 30;
/// Number of permanent API servers that must answer before they count as a control plane beside the local one.
const ENOUGH: usize = 2;

/// Bootstrap phase of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// No API server answers yet.
    NoApi,
    /// The local API server answers.
    Local,
    /// The local and permanent API servers answer.
    Both,
    /// Permanent API servers replace the local one.
    Handover,
    /// Only permanent API servers answer.
    Permanent,
    /// An API server answered before, and none does now.
    Failed,
}

/// One observation of the API servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) local: bool,
    pub(crate) permanent: usize,
    /// The bootstrap has finished.
    pub(crate) finished: bool,
}

#[derive(Debug)]
pub(crate) struct Phases {
    phase: Phase,
    failed_for: u32,
}

/// A debounced state: it changes only after several consecutive observations.
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
            // A restarted bootstrap loses its markers; a handover is not reverted.
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
