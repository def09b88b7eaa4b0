use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

/// Timeouts and retries of a download.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Total time for all attempts at all URLs.
    pub total: Duration,
    /// Timeout between two chunks of an answer, and for its start.
    pub idle: Duration,
    pub connect: Duration,
    /// Rounds through all URLs.
    pub rounds: u32,
    /// Delay between two rounds: doubled each time up to `longest_pause`, and shortened by up to half at random.
    pub first_pause: Duration,
    pub longest_pause: Duration,
}

// === impl Patience ===

impl Patience {
    /// For a document of a few kilobytes.
    pub const DOCUMENT: Self = Self {
        total: Duration::from_secs(120),
        idle: Duration::from_secs(20),
        connect: Duration::from_secs(10),
        rounds: 4,
        first_pause: Duration::from_secs(2),
        longest_pause: Duration::from_secs(15),
    };

    /// For an image of some hundred megabytes over a slow link.
    pub const IMAGE: Self =
        Self { total: Duration::from_mins(30), idle: Duration::from_secs(60), ..Self::DOCUMENT };

    pub(crate) fn pause_after(&self, rounds: u32) -> Duration {
        let full =
            self.first_pause.saturating_mul(1 << rounds.saturating_sub(1).min(16)).min(self.longest_pause);
        let random = RandomState::new().build_hasher().finish() % 1024;
        let share = u32::try_from(random).unwrap_or(0);
        full / 2 + full / 2 * share / 1024
    }
}
