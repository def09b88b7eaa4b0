//! Orphaned objects, handled identically by every store.
//!
//! A bundle consists of an object (a file, or an object in a bucket) and a record. The two cannot be written
//! atomically, so one may exist without the other for a while, or permanently after a crash.
//!
//! The store registers an object before it is written and when its record is deleted; a removal is registered before
//! it starts. No orphaned object is therefore missed, and an object that is sent again meanwhile is not removed.
//! This also holds for several hubs on one database.

use jiff::{SignedDuration, Timestamp};

/// Maximum number of objects returned for removal, and of concurrent removals.
pub(super) const PORTION: i64 = 10;
/// Age at which an upload counts as abandoned.
const ARRIVING_FOR: SignedDuration = SignedDuration::from_hours(24);
/// Age at which a removal counts as abandoned: it failed, or the hub stopped.
const REMOVING_FOR: SignedDuration = SignedDuration::from_mins(10);

/// The object is about to be stored and recorded.
pub(super) const ARRIVING: &str = "arriving";
/// The object is not needed any more.
pub(super) const LEAVING: &str = "leaving";
/// The object is being removed.
pub(super) const REMOVING: &str = "removing";

/// Start times, in microseconds since 1970, before which an upload or a removal counts as abandoned.
pub(super) struct GivenUp {
    pub(super) arriving: i64,
    pub(super) removing: i64,
}

// === impl GivenUp ===

impl GivenUp {
    pub(super) fn at(now: Timestamp) -> Self {
        let before = |age| now.saturating_sub(age).map_or(i64::MIN, Timestamp::as_microsecond);
        Self { arriving: before(ARRIVING_FOR), removing: before(REMOVING_FOR) }
    }
}
