//! Parser for the lines of a NATS server, without I/O.

use serde_json::Value;

/// Maximum length of a line. The INFO line has a few kilobytes, because it lists the complete cluster.
pub const MAX_LINE: u64 = 64 << 10;
/// Maximum message size; a larger announced size indicates an invalid server.
pub const MAX_BYTES: usize = 1 << 30;
/// JetStream's error code for a message above the stream's size limit.
const MESSAGE_TOO_LARGE: u64 = 10_054;
/// Maximum number of characters of a server's message in errors.
const MAX_WORDS: usize = 200;

#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    Info(Value),
    /// A message with this number of bytes in total, including this number of bytes of headers.
    Message {
        subject: String,
        reply: Option<String>,
        headers: usize,
        bytes: usize,
    },
    Ping,
    Pong,
    Fine,
    Error(String),
}

/// Parses a line, including its end.
pub fn said(line: &[u8]) -> Option<Said> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix('\n')?.trim_end();
    let (word, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
    // A subject, the subscription ID, an optional reply subject, and then the sizes.
    let message = |numbers: usize| -> Option<Said> {
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        if !(2 + numbers..=3 + numbers).contains(&words.len()) {
            return None;
        }
        let reply = (words.len() == 3 + numbers).then(|| words[2].to_owned());
        let bytes: usize = words.last()?.parse().ok()?;
        let headers: usize = if numbers == 2 { words[words.len() - 2].parse().ok()? } else { 0 };
        let subject = words[0].to_owned();
        (headers <= bytes && bytes <= MAX_BYTES).then_some(Said::Message { subject, reply, headers, bytes })
    };
    match word.to_ascii_uppercase().as_str() {
        "INFO" => serde_json::from_str(rest).ok().map(Said::Info),
        "MSG" => message(1),
        "HMSG" => message(2),
        "PING" => Some(Said::Ping),
        "PONG" => Some(Said::Pong),
        "+OK" => Some(Said::Fine),
        "-ERR" => Some(Said::Error(words(rest.trim_matches('\'')))),
        _ => None,
    }
}

/// Returns the status code of a message without content, which is the reason for its absence.
pub fn status(headers: &[u8]) -> Option<u16> {
    let rest = headers.strip_prefix(b"NATS/1.0 ")?;
    std::str::from_utf8(rest.get(..3)?).ok()?.parse().ok()
}

/// Returns whether a stream accepted a message, or its error; `None` when there is no stream for it.
pub fn acknowledged(headers: &[u8], body: &[u8]) -> Option<Result<(), String>> {
    // "No responders": the subject has no subscriber.
    if headers.starts_with(b"NATS/1.0 503") {
        return None;
    }
    let answer: Value = serde_json::from_slice(body).unwrap_or_default();
    if let Some(error) = answer["error"].as_object() {
        let text = error.get("description").and_then(Value::as_str).unwrap_or("an error without words");
        return Some(Err(words(text)));
    }
    let stored = answer["stream"].is_string() && answer["seq"].is_u64();
    Some(if stored { Ok(()) } else { Err("not an acknowledgment".to_owned()) })
}

/// Returns whether a stream rejected a message because of its size.
pub(crate) fn is_too_large(answer: &[u8]) -> bool {
    let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
    answer["error"]["err_code"].as_u64() == Some(MESSAGE_TOO_LARGE)
}

pub(crate) fn words(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(MAX_WORDS).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_are_read() {
        let message = |reply: Option<&str>, headers, bytes| {
            let (subject, reply) = ("_INBOX.x".to_owned(), reply.map(str::to_owned));
            Some(Said::Message { subject, reply, headers, bytes })
        };
        for (line, expected) in [
            ("INFO {\"a\":1} \r\n", Some(Said::Info(json!({"a": 1})))),
            ("MSG _INBOX.x 1 37\r\n", message(None, 0, 37)),
            ("MSG _INBOX.x 1 back 37\r\n", message(Some("back"), 0, 37)),
            ("HMSG _INBOX.x 1 16 16\r\n", message(None, 16, 16)),
            (
                "HMSG _INBOX.x 1 $JS.ACK.R.hub.1.2.3.4.5 10 16\r\n",
                message(Some("$JS.ACK.R.hub.1.2.3.4.5"), 10, 16),
            ),
            ("HMSG _INBOX.x 1 17 16\r\n", None),
            ("MSG _INBOX.x 1 1073741824\r\n", message(None, 0, MAX_BYTES)),
            ("MSG _INBOX.x 1 1073741825\r\n", None),
            ("MSG _INBOX.x 1 18446744073709551615\r\n", None),
            ("MSG 37\r\n", None),
            ("PING\r\n", Some(Said::Ping)),
            ("PONG\r\n", Some(Said::Pong)),
            ("+OK\r\n", Some(Said::Fine)),
            ("-ERR 'Authorization Violation'\r\n", Some(Said::Error("Authorization Violation".to_owned()))),
            ("HTTP/1.1 400 Bad Request\r\n", None),
            ("PING", None),
        ] {
            assert_eq!(said(line.as_bytes()), expected, "{line}");
        }
    }

    #[test]
    fn a_status_is_told_from_headers() {
        assert_eq!(status(b"NATS/1.0 404 No Messages\r\n\r\n"), Some(404));
        for plain in [&b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n"[..], b"", b"NATS/1.0 4", b"NATS/1.0 x04 "] {
            assert_eq!(status(plain), None);
        }
    }

    #[test]
    fn only_a_stream_acknowledges() {
        assert_eq!(acknowledged(b"", br#"{"stream":"R","seq":7}"#), Some(Ok(())));
        assert_eq!(acknowledged(b"", br#"{"stream":"R","seq":7,"duplicate":true}"#), Some(Ok(())));
        assert_eq!(acknowledged(b"NATS/1.0 503\r\n\r\n", b""), None);
        let full = br#"{"error":{"code":503,"description":"maximum bytes exceeded"},"stream":"R","seq":0}"#;
        assert_eq!(acknowledged(b"", full), Some(Err("maximum bytes exceeded".to_owned())));
        assert!(acknowledged(b"", b"hello").is_some_and(|answer| answer.is_err()));
        let large = br#"{"error":{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"},"stream":"R","seq":0}"#;
        assert!(acknowledged(b"", large).is_some_and(|answer| answer.is_err()));
        assert!(is_too_large(large) && !is_too_large(full) && !is_too_large(b"hello"));
    }

    proptest! {
        #[test]
        fn nothing_breaks_the_reader(line in proptest::collection::vec(any::<u8>(), 0..80), text in "(MSG|HMSG|INFO|[0-9 {}\"'\r\n]){0,30}") {
            let _ = said(&line);
            let _ = said(text.as_bytes());
            let _ = acknowledged(&line, text.as_bytes());
        }
    }
}
