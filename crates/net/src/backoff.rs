//! Delays between attempts, shared by everything that retries.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

/// The maximum delay.
const LONGEST: Duration = Duration::from_hours(24);
/// The maximum number of attempts in one process.
const MOST_TRIES: u32 = 100;
/// Growth of a delay after each failure, in percent.
const GROWTH: u32 = 200;

/// Delays that grow from `first` up to `cap`, each shortened by up to half at random.
///
/// Clients that lost the same server thus do not return at the same time. Only valid values can be constructed: no
/// delay is zero or unlimited, and the cap is not below the first delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
    growth: u32,
    failed: u32,
}

/// A backoff with a limited number of attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    backoff: Backoff,
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

/// Returns a duration that differs from this one by up to `percent` at random.
pub fn varied(duration: Duration, percent: u32) -> Duration {
    let span = f64::from(percent) / 100.0;
    duration.mul_f64(1.0 - span + 2.0 * span * share(random()))
}

fn random() -> u32 {
    (RandomState::new().build_hasher().finish() >> 32) as u32
}

/// Returns a random number as a fraction of 1.
fn share(random: u32) -> f64 {
    f64::from(random) / f64::from(u32::MAX)
}

// === impl Backoff ===

impl Backoff {
    /// Creates delays in milliseconds. Invalid values do not compile.
    pub const fn millis<const FIRST: u64, const CAP: u64>() -> Self {
        const { assert!(0 < FIRST && FIRST <= CAP && CAP <= LONGEST.as_secs() * 1000) };
        let (first, cap) = (Duration::from_millis(FIRST), Duration::from_millis(CAP));
        Self { first, cap, growth: GROWTH, failed: 0 }
    }

    pub fn new(first: Duration, cap: Duration) -> Result<Self, InvalidBackoff> {
        match () {
            () if first.is_zero() => Err(InvalidBackoff::NoPause),
            () if cap < first => Err(InvalidBackoff::CapBelowFirst { first, cap }),
            () if cap > LONGEST => Err(InvalidBackoff::TooLong { cap }),
            () => Ok(Self { first, cap, growth: GROWTH, failed: 0 }),
        }
    }

    /// Changes the growth after each failure to this percentage of the previous delay. The default is 200.
    #[must_use]
    pub const fn growing<const PERCENT: u32>(self) -> Self {
        const { assert!(110 <= PERCENT && PERCENT <= 1000) };
        Self { growth: PERCENT, ..self }
    }

    /// Limits the number of attempts. Invalid numbers do not compile.
    pub const fn tries<const TRIES: u32>(self) -> Retries {
        const { assert!(0 < TRIES && TRIES <= MOST_TRIES) };
        Retries { backoff: self, tries: TRIES }
    }

    /// Returns the delay after this many consecutive failures, before it is shortened.
    pub fn full_after(&self, failed: u32) -> Duration {
        let mut delay = self.first;
        for _ in 1..failed {
            if delay >= self.cap {
                break;
            }
            delay = delay.saturating_mul(self.growth) / 100;
        }
        delay.min(self.cap)
    }

    /// Returns the delay after this many consecutive failures.
    pub fn pause_after(&self, failed: u32) -> Duration {
        self.pause_with(failed, random())
    }

    /// Returns the delay after this many consecutive failures, shortened by a given random number.
    pub fn pause_with(&self, failed: u32, random: u32) -> Duration {
        let half = self.full_after(failed) / 2;
        half + half.mul_f64(share(random))
    }

    /// Counts a failure and returns the delay after it.
    pub fn pause(&mut self) -> Duration {
        self.failed = self.failed.saturating_add(1);
        self.pause_after(self.failed)
    }

    /// Restarts with short delays after a success.
    pub fn reset(&mut self) {
        self.failed = 0;
    }
}

// === impl Retries ===

impl Retries {
    /// One attempt, no delay.
    pub const ONCE: Self = Backoff::millis::<1000, 1000>().tries::<1>();

    pub fn new(backoff: Backoff, tries: u32) -> Result<Self, InvalidBackoff> {
        if !(1..=MOST_TRIES).contains(&tries) {
            return Err(InvalidBackoff::Tries { tries });
        }
        Ok(Self { backoff, tries })
    }

    /// Returns the delay after this many failed attempts, or `None` when no attempt is left.
    pub fn pause_after(&self, failed: u32) -> Option<Duration> {
        (failed < self.tries).then(|| self.backoff.pause_after(failed))
    }
}

impl Default for Retries {
    /// Five attempts within about a minute: enough for a restarted service or a dropped connection.
    fn default() -> Self {
        Backoff::millis::<2000, 30_000>().tries::<5>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invalid_backoffs_are_rejected() {
        let second = Duration::from_secs(1);
        assert_eq!(Backoff::new(Duration::ZERO, second), Err(InvalidBackoff::NoPause));
        assert!(matches!(Backoff::new(second * 2, second), Err(InvalidBackoff::CapBelowFirst { .. })));
        assert!(matches!(Backoff::new(second, Duration::MAX), Err(InvalidBackoff::TooLong { .. })));
        let backoff = Backoff::new(second, second).unwrap();
        assert_eq!(backoff, Backoff::millis::<1000, 1000>());
        assert_eq!(Retries::new(backoff, 0), Err(InvalidBackoff::Tries { tries: 0 }));
        assert_eq!(Retries::new(backoff, 101), Err(InvalidBackoff::Tries { tries: 101 }));
        assert_eq!(Retries::new(backoff, 1), Ok(Retries::ONCE));
        assert_eq!(Retries::ONCE.pause_after(1), None);
    }

    #[test]
    fn pauses_grow_to_the_cap_and_start_again() {
        let mut backoff = Backoff::millis::<100, 350>();
        for step in [100, 200, 350, 350] {
            let (pause, step) = (backoff.pause(), Duration::from_millis(step));
            assert!(pause >= step / 2 && pause <= step, "{pause:?} of {step:?}");
        }
        backoff.reset();
        assert!(backoff.pause() <= Duration::from_millis(100));
        let slower = Backoff::millis::<100, 1000>().growing::<150>();
        assert_eq!(slower.full_after(3), Duration::from_millis(225));
    }

    #[test]
    fn varied_durations_stay_within_their_bounds() {
        let minute = Duration::from_secs(60);
        let pauses: Vec<Duration> = (0..100).map(|_| varied(minute, 10)).collect();
        let bounds = Duration::from_secs(54)..=Duration::from_secs(66);
        assert!(pauses.iter().all(|pause| bounds.contains(pause)), "{pauses:?}");
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }

    proptest! {
        #[test]
        fn pauses_grow_within_their_bounds_and_end(
            first in 1u64..86_400_000, more in 0u64..86_400_000, tries in 1u32..=100, failed in 1u32.., random: u32
        ) {
            let first = Duration::from_millis(first);
            let cap = (first + Duration::from_millis(more)).min(LONGEST);
            let backoff = Backoff::new(first, cap).unwrap();
            let pause = backoff.pause_with(failed, random);
            prop_assert!(pause <= cap && pause >= first / 2, "{pause:?}");
            prop_assert!(backoff.pause_with(failed, u32::MAX) >= pause);
            prop_assert!(failed < 2 || pause >= backoff.pause_with(failed - 1, 0));
            let retries = Retries::new(backoff, tries).unwrap();
            prop_assert_eq!(retries.pause_after(failed).is_none(), failed >= tries);
        }
    }
}
