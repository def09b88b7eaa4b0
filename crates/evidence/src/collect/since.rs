//! Start of the evidence: a duration before now, or a time.

use jiff::{SignedDuration, Timestamp};

/// No machine has older logs.
const MAX_HOURS: i64 = 24 * 366 * 20;

/// Reason for rejecting the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SinceError {
    #[error("this is neither how long ago, such as `2h` or `30m`, nor a time such as `2026-01-02T03:04:05Z`")]
    NoTime,
    #[error("this is longer ago than any log")]
    TooLongAgo,
}

/// Parses `2h`, `90m`, `45s`, `3d`, `1h30m`, or an RFC 3339 time.
pub fn parse_since(text: &str, now: Timestamp) -> Result<Timestamp, SinceError> {
    let text = text.trim();
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    let ago = parse_ago(text).ok_or(SinceError::NoTime)?;
    if ago > SignedDuration::from_hours(MAX_HOURS) {
        return Err(SinceError::TooLongAgo);
    }
    now.checked_sub(ago).map_err(|_| SinceError::TooLongAgo)
}

fn parse_ago(mut text: &str) -> Option<SignedDuration> {
    let mut ago = SignedDuration::ZERO;
    if text.is_empty() {
        return None;
    }
    while !text.is_empty() {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let number: i64 = text[..digits].parse().ok()?;
        let seconds = match text.as_bytes().get(digits)? {
            b's' => 1,
            b'm' => 60,
            b'h' => 3600,
            b'd' => 24 * 3600,
            _ => return None,
        };
        ago = ago.checked_add(SignedDuration::from_secs(number.checked_mul(seconds)?))?;
        text = &text[digits + 1..];
    }
    Some(ago)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_in_two_ways() {
        let now: Timestamp = "2026-01-02T12:00:00Z".parse().unwrap();
        for (text, time) in [
            ("2h", "2026-01-02T10:00:00Z"),
            ("30m", "2026-01-02T11:30:00Z"),
            ("1h30m", "2026-01-02T10:30:00Z"),
            ("1d", "2026-01-01T12:00:00Z"),
            ("45s", "2026-01-02T11:59:15Z"),
            ("2026-01-01T01:00:00+01:00", "2026-01-01T00:00:00Z"),
        ] {
            assert_eq!(parse_since(text, now), Ok(time.parse().unwrap()), "{text}");
        }
        for text in ["", "2", "h", "2w", "-2h", "yesterday", "2h ", "é", "99999999999999999999h", "2\u{e9}"]
        {
            let expected = if text == "2h " {
                Ok("2026-01-02T10:00:00Z".parse().unwrap())
            } else {
                Err(SinceError::NoTime)
            };
            assert_eq!(parse_since(text, now), expected, "{text}");
        }
        assert_eq!(parse_since("9999999h", now), Err(SinceError::TooLongAgo));
    }
}
