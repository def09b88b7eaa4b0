//! The time for signatures: the local clock, until a store reports a different time.

use std::sync::atomic::{AtomicI64, Ordering};

use jiff::{SignedDuration, Timestamp};

/// Amazon and Azure accept signatures up to 15 minutes old. With a smaller difference the clock is not the reason of
/// the rejection.
const BELIEVED: SignedDuration = SignedDuration::from_mins(14);
/// A store whose clock differs by more than this is not trusted either.
const MAX_SKEW: SignedDuration = SignedDuration::from_hours(24 * 366 * 60);

/// The local clock, with the store's offset as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    seconds_ahead: AtomicI64,
}

/// The answer of a store to a signed request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said<'a> {
    pub status: u16,
    pub code: &'a str,
    /// Its time, from the header `date`.
    pub date: Option<&'a str>,
}

// === impl Clock ===

impl Clock {
    pub(crate) fn now(&self) -> Timestamp {
        let ahead = SignedDuration::from_secs(self.seconds_ahead.load(Ordering::Relaxed));
        Timestamp::now().saturating_add(ahead).unwrap_or_else(|_| Timestamp::now())
    }

    #[cfg(test)]
    pub(crate) fn set(&self, seconds_ahead: i64) {
        self.seconds_ahead.store(seconds_ahead, Ordering::Relaxed);
    }

    /// Returns whether the store rejected the time of the signature; if so, the store's own time is used from now on.
    pub(crate) fn is_set_by(&self, said: Said<'_>, signed: Timestamp) -> bool {
        let Some(ahead) = ahead(said, signed, Timestamp::now()) else { return false };
        tracing::info!(seconds = ahead.as_secs(), "The object store's clock is not ours; its own is used.");
        self.seconds_ahead.store(ahead.as_secs(), Ordering::Relaxed);
        true
    }
}

/// Returns the offset of the store, if that is the reason of the rejection.
fn ahead(said: Said<'_>, signed: Timestamp, now: Timestamp) -> Option<SignedDuration> {
    let date = jiff::fmt::rfc2822::parse(said.date?).ok()?.timestamp();
    let is_why = match (said.status, said.code) {
        (403, "RequestTimeTooSkewed") => true,
        // The answer of Azure to everything it cannot verify, and of S3 to requests whose answer has no body.
        (403, "AuthenticationFailed" | "") => date.duration_since(signed).abs() > BELIEVED,
        _ => false,
    };
    let ahead = date.duration_since(now);
    (is_why && ahead.abs() <= MAX_SKEW).then_some(ahead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_believed_where_time_is_why_it_said_no() {
        const DATE: Option<&str> = Some("Fri, 26 Jun 2015 23:39:12 GMT");
        let store: Timestamp = "2015-06-26T23:39:12Z".parse().unwrap();
        let minutes = SignedDuration::from_mins;
        for (status, code, date, off, believed) in [
            (403, "RequestTimeTooSkewed", DATE, minutes(20), true),
            (403, "RequestTimeTooSkewed", DATE, minutes(1), true),
            (403, "AuthenticationFailed", DATE, minutes(20), true),
            (403, "AuthenticationFailed", DATE, minutes(-20), true),
            (403, "AuthenticationFailed", DATE, minutes(5 * 365 * 24 * 60), true),
            (403, "AuthenticationFailed", DATE, minutes(13), false),
            (403, "AuthenticationFailed", None, minutes(20), false),
            (403, "AuthenticationFailed", Some("yesterday"), minutes(20), false),
            (403, "AuthorizationPermissionMismatch", DATE, minutes(20), false),
            (403, "", DATE, minutes(20), true),
            (403, "", DATE, minutes(0), false),
            (404, "", DATE, minutes(20), false),
            (401, "AuthenticationFailed", DATE, minutes(20), false),
        ] {
            let ours = store + off;
            let told = ahead(Said { status, code, date }, ours, ours);
            assert_eq!(told, believed.then_some(-off), "{status} {code} {off:?}");
        }
        // The signature already uses the store's time, so the rejection has another reason.
        let said = Said { status: 403, code: "AuthenticationFailed", date: DATE };
        assert_eq!(ahead(said, store, store + minutes(60)), None);
        assert_eq!(ahead(said, store + minutes(60), Timestamp::MAX), None, "nobody is as far off");
    }
}
