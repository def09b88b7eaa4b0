//! Objects without a record, the same on every store.
//!
//! A bundle is an object (a file, or something in a bucket) and a record. The two cannot be written at once, so that one may
//! be there without the other for a while, or for ever after a crash. Which objects have no record is written down before
//! they are made and when their record goes; who removes one says so first. So none is forgotten, and none that was sent
//! again meanwhile is removed, also when many hubs share a database.

use jiff::{SignedDuration, Timestamp};

/// Objects given for removal at once, and removed at once.
pub(super) const PORTION: i64 = 10;
/// After this long nobody is making the object any more.
const ARRIVING_FOR: SignedDuration = SignedDuration::from_hours(24);
/// After this long nobody is removing the object any more: it did not work, or the hub ended.
const REMOVING_FOR: SignedDuration = SignedDuration::from_mins(10);

/// Somebody is about to keep it and to record it.
pub(super) const ARRIVING: &str = "arriving";
/// It is not wanted any more.
pub(super) const LEAVING: &str = "leaving";
/// Somebody removes it.
pub(super) const REMOVING: &str = "removing";

/// Microseconds since 1970 before which an arrival, and a removal, must have begun to be given up.
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
