use std::time::Instant;

/// The runtime's clock, which a simulation moves.
pub(crate) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}
