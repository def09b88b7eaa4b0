use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const POLL: Duration = Duration::from_millis(25);

/// Polls until `probe` returns a value; fails after `within` with a description of the condition.
///
/// Level-triggered: a test checks the current state and does not depend on the timing of events.
pub fn eventually<T>(what: &str, within: Duration, mut probe: impl FnMut() -> Option<T>) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(value) = probe() {
            return Ok(value);
        }
        if started.elapsed() >= within {
            bail!("waited {} s for {what}", within.as_secs());
        }
        std::thread::park_timeout(POLL);
    }
}
