use std::time::Instant;

/// Returns the time of the runtime's clock, which a simulation advances.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
