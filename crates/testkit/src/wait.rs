use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const POLL: Duration = Duration::from_millis(25);

/// Polls until `probe` gives a value, or fails after `within`, saying what was waited for.
///
/// Level-triggered on purpose: a test asks "is it so now?" and never hopes that an event arrives in time.
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
