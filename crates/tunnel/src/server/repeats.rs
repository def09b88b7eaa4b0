use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Interval during which repeated events are counted instead of logged.
const PAUSE: Duration = Duration::from_secs(10);

/// A rate limiter for log events that may occur a thousand times a second, separately for each kind. There are few
/// kinds.
#[derive(Debug)]
pub(super) struct Repeats<K>(Mutex<HashMap<K, Told>>);

#[derive(Debug)]
struct Told {
    last: Instant,
    untold: u64,
}

// === impl Repeats ===

impl<K> Default for Repeats<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> Repeats<K> {
    /// Counts an event. If it should be logged now, returns the number suppressed since the last one.
    pub(super) fn count(&self, kind: K, now: Instant) -> Option<u64> {
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(told) = kinds.get_mut(&kind) else {
            kinds.insert(kind, Told { last: now, untold: 0 });
            return Some(0);
        };
        if now.saturating_duration_since(told.last) < PAUSE {
            told.untold += 1;
            return None;
        }
        told.last = now;
        Some(std::mem::take(&mut told.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_and_then_how_many_there_were() {
        let (repeats, start) = (Repeats::default(), Instant::now());
        assert_eq!(repeats.count("refused", start), Some(0));
        for second in 1..10 {
            assert_eq!(repeats.count("refused", start + Duration::from_secs(second)), None);
        }
        assert_eq!(repeats.count("late", start), Some(0), "something else");
        assert_eq!(repeats.count("refused", start + PAUSE), Some(9));
        assert_eq!(repeats.count("refused", start + PAUSE * 3), Some(0));
    }
}
