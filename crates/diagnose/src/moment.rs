//! Times in logs, and the order of lines.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// The year of times without one, so that they can be compared with each other: a leap year.
const NO_YEAR: i16 = 2000;

const MICROS: i64 = 1_000_000;

/// A time parsed from a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Time {
    /// Microseconds since 1970 in UTC. Local times without a zone are treated as UTC, because the zone is
    /// unknown.
    Full(i64),
    /// Like `Full`, in [`NO_YEAR`]: klog and syslog do not write the year.
    Yearless(i64),
    /// Microseconds since boot.
    Uptime(i64),
}

/// The numbers of a date and time, as parsed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fields {
    pub(crate) year: Option<i16>,
    pub(crate) month: i8,
    pub(crate) day: i8,
    pub(crate) hour: i8,
    pub(crate) minute: i8,
    pub(crate) second: i8,
    pub(crate) micros: i32,
    pub(crate) offset_minutes: i32,
}

/// Position of a line among all lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) source: usize,
    pub(crate) line: u64,
    pub(crate) time: Option<Time>,
}

// === impl Fields ===

impl Fields {
    /// Returns the time; `None` if the numbers are not a date.
    pub(crate) fn time(self) -> Option<Time> {
        // A leap second is written as 60, which calendar types reject.
        let second = self.second.min(59);
        let year = self.year.unwrap_or(NO_YEAR);
        let civil = DateTime::new(
            year,
            self.month,
            self.day,
            self.hour,
            self.minute,
            second,
            self.micros.checked_mul(1000)?,
        )
        .ok()?;
        let micros = civil.to_zoned(TimeZone::UTC).ok()?.timestamp().as_microsecond();
        let micros = micros - i64::from(self.offset_minutes) * 60 * MICROS;
        Some(if self.year.is_some() { Time::Full(micros) } else { Time::Yearless(micros) })
    }
}

// === impl Time ===

impl Time {
    pub(crate) fn timestamp(self) -> Option<Timestamp> {
        match self {
            Self::Full(micros) => Timestamp::from_microsecond(micros).ok(),
            Self::Yearless(_) | Self::Uptime(_) => None,
        }
    }

    /// Converts a time without a year to the given year.
    pub(crate) fn in_year(self, year: i16) -> Self {
        let Self::Yearless(micros) = self else { return self };
        let moved = Timestamp::from_microsecond(micros)
            .ok()
            .map(|time| time.to_zoned(TimeZone::UTC).datetime())
            .and_then(|civil| civil.with().year(year).build().ok())
            .and_then(|civil| civil.to_zoned(TimeZone::UTC).ok());
        moved.map_or(self, |zoned| Self::Full(zoned.timestamp().as_microsecond()))
    }

    pub(crate) fn year(self) -> Option<i16> {
        self.timestamp().map(|time| time.to_zoned(TimeZone::UTC).year())
    }

    /// Returns the seconds since `earlier` if both times are from the same kind of clock.
    pub(crate) fn seconds_since(self, earlier: Self) -> Option<i64> {
        match (self, earlier) {
            (Self::Full(a), Self::Full(b))
            | (Self::Yearless(a), Self::Yearless(b))
            | (Self::Uptime(a), Self::Uptime(b)) => Some((a - b) / MICROS),
            _ => None,
        }
    }
}

// === impl Moment ===

impl Moment {
    /// Returns whether this follows `other`; `None` if unknown.
    pub(crate) fn is_after(self, other: Self) -> Option<bool> {
        if self.source == other.source {
            return Some(self.line > other.line);
        }
        match (self.time?, other.time?) {
            (Time::Full(a), Time::Full(b)) | (Time::Yearless(a), Time::Yearless(b)) => Some(a > b),
            _ => None,
        }
    }
}
