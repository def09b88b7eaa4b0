//! Delays between two attempts.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// The maximum delay; a longer wait is left to the next start of the process.
const LONGEST: Duration = Duration::from_hours(1);
/// Limit for attempts in one process; a hundred attempts at the maximum delay take four days.
const MOST_TRIES: u32 = 100;

/// Delays that double from `first` up to `cap`, each shortened by up to half at random, and a limit of attempts.
///
/// Only valid values can be constructed: delays are neither zero nor unlimited, the cap is not below the first delay,
/// and attempts are limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
    tries: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBackoff {
    #[error("a pause of zero is a busy loop")]
    NoPause,
    #[error("the longest pause, {cap:?}, is shorter than the first, {first:?}")]
    CapBelowFirst { first: Duration, cap: Duration },
    #[error("a pause of {cap:?} is longer than the {LONGEST:?} a process may wait")]
    TooLong { cap: Duration },
    #[error("{tries} tries: between 1 and {MOST_TRIES} are possible")]
    Tries { tries: u32 },
}

// === impl Backoff ===

impl Backoff {
    /// One attempt, no delay.
    pub const ONCE: Self = Self { first: Duration::from_secs(1), cap: Duration::from_secs(1), tries: 1 };

    pub fn new(first: Duration, cap: Duration, tries: u32) -> Result<Self, InvalidBackoff> {
        if first.is_zero() {
            return Err(InvalidBackoff::NoPause);
        }
        if cap < first {
            return Err(InvalidBackoff::CapBelowFirst { first, cap });
        }
        if cap > LONGEST {
            return Err(InvalidBackoff::TooLong { cap });
        }
        if !(1..=MOST_TRIES).contains(&tries) {
            return Err(InvalidBackoff::Tries { tries });
        }
        Ok(Self { first, cap, tries })
    }

    /// Returns the delay after this many failed attempts, or `None` when no attempt is left.
    pub fn pause_after(self, failed: u32) -> Option<Duration> {
        let random = RandomState::new().build_hasher().finish();
        self.pause(failed, random)
    }

    fn pause(self, failed: u32, random: u64) -> Option<Duration> {
        if failed >= self.tries {
            return None;
        }
        let doublings = failed.saturating_sub(1).min(31);
        let full = self.first.saturating_mul(1 << doublings).min(self.cap);
        let half = full / 2;
        // The lower 32 bits as a fraction of the other half.
        let share = u32::try_from(random & u64::from(u32::MAX)).unwrap_or(u32::MAX);
        Some(half + half.mul_f64(f64::from(share) / f64::from(u32::MAX)))
    }
}

impl Default for Backoff {
    /// Five attempts within about a minute: enough for a restarted service or a dropped connection.
    fn default() -> Self {
        Self { first: Duration::from_secs(2), cap: Duration::from_secs(30), tries: 5 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_impossible_cannot_be_made() {
        let second = Duration::from_secs(1);
        assert_eq!(Backoff::new(Duration::ZERO, second, 3), Err(InvalidBackoff::NoPause));
        assert!(matches!(Backoff::new(second * 2, second, 3), Err(InvalidBackoff::CapBelowFirst { .. })));
        assert!(matches!(Backoff::new(second, Duration::MAX, 3), Err(InvalidBackoff::TooLong { .. })));
        assert_eq!(Backoff::new(second, second, 0), Err(InvalidBackoff::Tries { tries: 0 }));
        assert_eq!(Backoff::new(second, second, 101), Err(InvalidBackoff::Tries { tries: 101 }));
        let default = Backoff::default();
        assert_eq!(Backoff::new(default.first, default.cap, default.tries), Ok(default));
        assert_eq!(Backoff::new(second, second, 1), Ok(Backoff::ONCE));
    }

    proptest! {
        #[test]
        fn pauses_grow_within_their_bounds_and_end(
            first in 1u64..3_600_000, more in 0u64..3_600_000, tries in 1u32..=100, failed in 1u32..200, random: u64
        ) {
            let first = Duration::from_millis(first);
            let cap = (first + Duration::from_millis(more)).min(LONGEST);
            let backoff = Backoff::new(first, cap, tries).unwrap();
            match backoff.pause(failed, random) {
                None => prop_assert!(failed >= tries),
                Some(pause) => {
                    prop_assert!(failed < tries);
                    prop_assert!(pause <= cap && pause >= first / 2, "{pause:?}");
                    prop_assert!(backoff.pause(failed, u64::MAX).unwrap() >= pause);
                    prop_assert!(failed < 2 || pause >= backoff.pause(failed - 1, 0).unwrap());
                }
            }
        }
    }
}
