use std::time::Duration;

use landfall_net::{Backoff, Retries};

/// Timeouts and retries of a download.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Total time for all attempts at all URLs.
    pub total: Duration,
    /// Timeout between two chunks of an answer, and for its start.
    pub idle: Duration,
    pub connect: Duration,
    /// Rounds through all URLs, and the delays between them.
    pub rounds: Retries,
}

// === impl Patience ===

impl Patience {
    /// For a document of a few kilobytes.
    pub const DOCUMENT: Self = Self {
        total: Duration::from_secs(120),
        idle: Duration::from_secs(20),
        connect: Duration::from_secs(10),
        rounds: Backoff::millis::<2000, 15_000>().tries::<4>(),
    };

    /// For an image of some hundred megabytes over a slow link.
    pub const IMAGE: Self =
        Self { total: Duration::from_mins(30), idle: Duration::from_secs(60), ..Self::DOCUMENT };
}
