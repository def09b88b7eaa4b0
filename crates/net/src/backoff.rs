use std::time::Duration;

/// Pauses between attempts, with jitter. Each is up to twice as long as the previous one, and never longer than the
/// cap.
#[derive(Debug)]
pub struct Backoff {
    first: Duration,
    cap: Duration,
    next: Duration,
}

// === impl Backoff ===

impl Backoff {
    /// Creates pauses from `first` up to `cap`; a lower cap is raised to `first`.
    pub fn new(first: Duration, cap: Duration) -> Self {
        Self { first, cap: cap.max(first), next: first }
    }

    /// Returns the next pause: between half of the current step and all of it.
    pub fn pause(&mut self) -> Duration {
        let step = self.next;
        self.next = (step * 2).min(self.cap);
        step / 2 + step.mul_f64(chance() / 2.0)
    }

    /// Restarts with short pauses after a success.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// Returns a number between 0 and 1. Without system randomness the jitter is constant.
fn chance() -> f64 {
    let mut bytes = [0; 4];
    if getrandom::fill(&mut bytes).is_err() {
        return 0.5;
    }
    f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_cap_and_start_again() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(350));
        for step in [100, 200, 350, 350] {
            let pause = backoff.pause();
            let step = Duration::from_millis(step);
            assert!(pause >= step / 2 && pause <= step + Duration::from_millis(1), "{pause:?} of {step:?}");
        }
        backoff.reset();
        assert!(backoff.pause() <= Duration::from_millis(101));
    }
}
