use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long what repeats is counted before it is told again.
const PAUSE: Duration = Duration::from_secs(10);

/// Something that may happen a thousand times a second and is worth a line now and then.
#[derive(Debug, Default)]
pub(super) struct Repeats(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    last: Option<Instant>,
    untold: u64,
}

// === impl Repeats ===

impl Repeats {
    /// It happened. How often it did since it was last told, when it is to be told now.
    pub(super) fn count(&self, now: Instant) -> Option<u64> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if told.last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            told.untold += 1;
            return None;
        }
        told.last = Some(now);
        Some(std::mem::take(&mut told.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_told_and_then_how_many_there_were() {
        let (repeats, start) = (Repeats::default(), Instant::now());
        assert_eq!(repeats.count(start), Some(0));
        for second in 1..10 {
            assert_eq!(repeats.count(start + Duration::from_secs(second)), None);
        }
        assert_eq!(repeats.count(start + PAUSE), Some(9));
        assert_eq!(repeats.count(start + PAUSE * 3), Some(0));
    }
}
