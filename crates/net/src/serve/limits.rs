//! The limits of a server. `docs/concepts/limits.md` lists the values of each role.

use std::time::Duration;

/// Limits of connections and requests, enforced by [`serve`](super::serve).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of open connections. At the limit, connections without a request are evicted, the oldest of the
    /// busiest client network first.
    pub connections: usize,
    /// Time from accepting a connection to the end of its first request head, including the TLS handshake.
    pub first_request: Duration,
    /// Timeout of a connection without a request in progress, and of a request head in progress.
    pub idle: Duration,
    /// Timeout of a client that reads nothing of a response.
    pub stalled_write: Duration,
    /// Maximum size of a request head in bytes.
    pub head: usize,
    /// Minimum number of bytes per minute of a request body that a handler reads.
    pub body_rate: usize,
    /// Timeout of requests in progress when the server stops.
    pub drain: Duration,
}

/// Limits of the request bodies in memory, enforced by [`BodyBudget`](super::BodyBudget).
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Memory for the bodies of authenticated callers in bytes.
    pub callers: usize,
    /// Memory for the bodies of unauthenticated clients, so that they cannot exhaust that of the callers.
    pub unauthenticated: usize,
    /// Time within which a body must arrive.
    pub timeout: Duration,
}

/// Limits of concurrent work, enforced by [`CallerSemaphore`](super::CallerSemaphore).
#[derive(Clone, Copy, Debug)]
pub struct PermitLimits {
    pub total: usize,
    pub per_caller: usize,
    /// Maximum number of requests that wait for a permit.
    pub queue: usize,
    pub queue_per_caller: usize,
    pub queue_timeout: Duration,
}

// === impl Limits ===

impl Limits {
    /// Limits of a port for probes, metrics and few clients.
    pub const SMALL: Self = Self {
        connections: 32,
        first_request: Duration::from_secs(10),
        idle: Duration::from_secs(90),
        stalled_write: Duration::from_secs(30),
        head: 16 << 10,
        body_rate: 256 << 10,
        drain: Duration::ZERO,
    };
}

// === impl PermitLimits ===

impl PermitLimits {
    /// Returns limits under which a request without a free permit is rejected immediately.
    pub const fn new(total: usize, per_caller: usize) -> Self {
        Self { total, per_caller, queue: 0, queue_per_caller: 0, queue_timeout: Duration::ZERO }
    }

    #[must_use]
    pub const fn queue(self, total: usize, per_caller: usize, timeout: Duration) -> Self {
        Self { queue: total, queue_per_caller: per_caller, queue_timeout: timeout, ..self }
    }
}
