//! The limits of the hub. `docs/concepts/limits.md` lists them with those of the other roles.

use std::time::Duration;

use landfall_net::serve::{BodyLimits, CallerSemaphore, Limits, Permit, PermitLimits};

use crate::access::Caller;
use crate::bundles::LEAST;
use crate::problem::Problem;
use crate::take::MAX_CONSOLE;

/// docs/scale.md states the memory of an open connection.
pub(crate) const SERVER: Limits = Limits {
    connections: 20_000,
    idle: Duration::from_secs(30),
    body_rate: LEAST,
    drain: Duration::from_secs(10),
    ..Limits::SMALL
};

pub(crate) const BODIES: BodyLimits =
    BodyLimits { callers: 64 << 20, unauthenticated: 1 << 20, timeout: Duration::from_secs(30) };
/// Two console captures of the largest size. They are few and large, and must not exhaust the budget of the reports.
pub(crate) const CONSOLE_BODIES: BodyLimits =
    BodyLimits { callers: 2 * MAX_CONSOLE, unauthenticated: 0, ..BODIES };

/// Batches that are parsed and stored. Each may need about 50 MB until it is stored, but only a few kilobytes on the
/// wire. Over HTTP/2 the first part of each queued one is in memory.
pub(crate) const BATCHES: PermitLimits = PermitLimits::new(2, 1).queue(16, 8, Duration::from_secs(30));
/// Bundles that are decompressed for verification and reading. Each uses one core: small bundles can decompress to
/// gigabytes and be sent repeatedly.
pub(crate) const UNPACKING: PermitLimits = PermitLimits::new(2, 1).queue(1024, 64, Duration::from_secs(30));
/// Searches. Each uses one core and holds a large report in memory.
pub(crate) const SEARCHES: PermitLimits = PermitLimits::new(2, 1).queue(256, 16, Duration::from_secs(10));
/// Console captures that are parsed. A report may need 100 MB while it is parsed, and 1 KB on the console.
pub(crate) const CONSOLES: PermitLimits = PermitLimits::new(2, 1).queue(64, 16, Duration::from_secs(30));
/// Forwarded events that are parsed. Some need many times their size in memory, and some wait for the object store.
pub(crate) const RELAYED: PermitLimits = PermitLimits::new(16, 12).queue(1024, 512, Duration::from_secs(30));
/// Bundle uploads. A credential for many nodes leaves slots to others.
pub(crate) const UPLOADS: PermitLimits = PermitLimits::new(64, 32);
/// Uploads per node: the current one, and one whose broken connection is not detected yet.
pub(crate) const NODE_UPLOADS: PermitLimits = PermitLimits::new(64, 2);
/// Event streams of open pages. A page without one works without events.
pub(crate) const EVENT_STREAMS: PermitLimits = PermitLimits::new(1000, 500);

/// Waits for a permit. Without authentication all callers are the same, and the limit per caller does not apply.
pub(crate) async fn permit(
    semaphore: &CallerSemaphore<Caller>,
    caller: &Caller,
    busy: &str,
) -> Result<Permit, Problem> {
    let limited = Some(caller).filter(|caller| !matches!(caller, Caller::Anyone));
    let permit = semaphore.acquire(limited).await;
    permit.ok_or_else(|| Problem::new(503, "Try again later", busy))
}
