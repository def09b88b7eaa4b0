//! Body of the `nats_said` target.

use landfall_net::nats::{MAX_BYTES, Said, acknowledged, status};

/// Any bytes from a server: a line, and the headers and body of a message.
pub(crate) fn said(bytes: &[u8]) {
    let line = bytes.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
    match landfall_net::nats::said(line) {
        Some(Said::Message { subject, reply, headers, bytes }) => {
            assert!(headers <= bytes && bytes <= MAX_BYTES);
            // They are sent back as part of a line.
            let odd = |text: &str| text.is_empty() || text.contains(char::is_whitespace);
            assert!(!odd(&subject) && !reply.is_some_and(|reply| odd(&reply)));
        }
        Some(Said::Error(words)) => {
            assert!(words.chars().count() <= 200 && !words.contains(char::is_control));
        }
        _ => {}
    }
    let (headers, body) = bytes.split_at(bytes.len() / 2);
    if let Some(Err(words)) = acknowledged(headers, body) {
        assert!(words.chars().count() <= 200 && !words.contains(char::is_control));
    }
    assert!(status(bytes).is_none_or(|status| status < 1000));
}
