//! Times of the week in which a node may start: `Mon-Fri 22:00-06:00 +01:00`.
//!
//! The check is pure arithmetic on minutes of a week.

use std::str::FromStr;

use jiff::Timestamp;

const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const DAY: i64 = 24 * 60;
const WEEK: i64 = 7 * DAY;
/// January 1, 1970 was a Thursday.
const EPOCH: i64 = 3 * DAY;
/// The largest offset of local time from UTC.
const MAX_OFFSET: i64 = 14 * 60;

/// A period of the day, on some days of the week. A period over midnight belongs to the day on which it
/// begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Monday first.
    days: [bool; 7],
    /// Minutes since midnight.
    from: i64,
    minutes: i64,
    /// Minutes east of UTC.
    offset: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    #[error("invalid window: must be like `Mon-Fri 22:00-06:00 +01:00`")]
    Shape,
    #[error(
        "`{zone}` is a zone by its name: give its offset from UTC instead, such as `+01:00`, and another one in summer"
    )]
    Zone { zone: String },
}

// === impl Window ===

impl Window {
    pub fn is_open(&self, now: Timestamp) -> bool {
        let minute = (now.as_second().div_euclid(60) + self.offset + EPOCH).rem_euclid(WEEK);
        self.days.iter().zip(0..).filter(|(is_on, _)| **is_on).any(|(_, day)| {
            let begins = day * DAY + self.from;
            (minute - begins).rem_euclid(WEEK) < self.minutes
        })
    }
}

impl FromStr for Window {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, WindowError> {
        read(text).ok_or_else(|| match text.trim().rsplit_once(char::is_whitespace) {
            // Valid except for an unsupported zone name: `Europe/Berlin`, `CET`.
            Some((rest, word)) if is_name(word) && read(rest).is_some() => {
                WindowError::Zone { zone: word.to_owned() }
            }
            _ => WindowError::Shape,
        })
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic())
}

fn read(text: &str) -> Option<Window> {
    let mut words: Vec<&str> = text.split_whitespace().collect();
    let days = if is_name(words.first()?) { days(words.remove(0))? } else { [true; 7] };
    let (from, to) = words.first()?.split_once('-')?;
    let (from, to) = (time(from)?, time(to)?);
    let offset = match words.get(1..)? {
        [] | ["UTC" | "Z"] => 0,
        [offset] => self::offset(offset)?,
        _ => return None,
    };
    let minutes = if to > from { to - from } else { to + DAY - from };
    (from < DAY).then_some(Window { days, from, minutes, offset })
}

/// Parses `Mon-Fri`, `Sat,Sun`, `Fri-Mon`.
fn days(text: &str) -> Option<[bool; 7]> {
    let number = |name: &str| DAYS.iter().position(|day| day.eq_ignore_ascii_case(name));
    let mut days = [false; 7];
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        for step in 0..=(last + 7 - first) % 7 {
            *days.get_mut((first + step) % 7)? = true;
        }
    }
    Some(days)
}

/// Parses `06:40`, and `24:00` as an end.
fn time(text: &str) -> Option<i64> {
    let (hours, minutes) = text.split_once(':')?;
    let two = |digits: &str| {
        (digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| digits.parse().ok())?
    };
    let (hours, minutes): (i64, i64) = (two(hours)?, two(minutes)?);
    let time = hours * 60 + minutes;
    (minutes < 60 && time <= DAY).then_some(time)
}

fn offset(text: &str) -> Option<i64> {
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let minutes = time(text.get(1..)?)?;
    (minutes <= MAX_OFFSET).then_some(sign * minutes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn open(window: &str, at: &str) -> bool {
        window.parse::<Window>().unwrap().is_open(at.parse().unwrap())
    }

    #[test]
    fn a_window_is_open_on_its_days_between_its_times() {
        // 2026-11-16 is a Monday.
        assert!(open("Mon-Fri 22:00-06:00", "2026-11-16T22:00:00Z"));
        assert!(!open("Mon-Fri 22:00-06:00", "2026-11-16T21:59:59Z"));
        assert!(!open("Mon-Fri 22:00-06:00", "2026-11-16T05:00:00Z"), "Sunday night is no Monday");
        assert!(open("Mon-Fri 22:00-06:00", "2026-11-21T05:59:00Z"), "Friday night ends on Saturday");
        assert!(!open("Mon-Fri 22:00-06:00", "2026-11-21T06:00:00Z"));
        assert!(open("Sun 23:00-01:00", "2026-11-16T00:30:00Z"), "over the end of the week");
        assert!(open("Sat,Sun 00:00-24:00", "2026-11-22T23:59:59Z"));
        assert!(open("Sat-Mon 10:00-11:00", "2026-11-16T10:30:00Z"));
        assert!(open("01:00-02:00", "2026-11-18T01:30:00Z"), "every day");
    }

    #[test]
    fn a_window_is_where_its_clock_is() {
        assert!(open("Mon 00:00-01:00 +01:00", "2026-11-15T23:30:00Z"));
        assert!(!open("Mon 00:00-01:00 +01:00", "2026-11-16T00:30:00Z"));
        assert!(open("Sun 20:00-21:00 -05:30", "2026-11-16T01:45:00Z"));
    }

    #[test]
    fn nonsense_is_no_window() {
        for text in [
            "",
            "Mon",
            "Mon 1:00-2:00",
            "Mon 25:00-26:00",
            "Mon 10:60-11:00",
            "Xyz 10:00-11:00",
            "24:00-01:00",
            "10:00-11:00 CET",
            "10:00-11:00 +15:00",
            "10:00",
            "Mon 10:00-11:00 UTC more",
            "+1:00-2:00",
        ] {
            assert!(text.parse::<Window>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_zone_by_its_name_is_answered_with_what_to_write() {
        for (text, zone) in [
            ("Mon-Fri 22:00-06:00 Europe/Berlin", "Europe/Berlin"),
            ("22:00-06:00 CET", "CET"),
            ("Sat,Sun 00:00-24:00 America/Argentina/Buenos_Aires", "America/Argentina/Buenos_Aires"),
        ] {
            let error = text.parse::<Window>().unwrap_err();
            assert_eq!(error, WindowError::Zone { zone: zone.to_owned() }, "{text}");
            assert!(error.to_string().contains("offset from UTC"), "{error}");
        }
        for text in ["", "Mon", "Mon-Fri", "22:00", "22:00-06:00 +15:00", "Mon 22:00-06:00 UTC 1", "at night"]
        {
            assert_eq!(text.parse::<Window>(), Err(WindowError::Shape), "{text}");
        }
    }
}
