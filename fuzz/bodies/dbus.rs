//! Bodies of the `dbus_*` targets.

use landfall_net::dbus::{parse_reply, parse_values};

/// Any complete message from a bus.
pub(crate) fn message(bytes: &[u8]) {
    if let Ok(values) = parse_reply(bytes) {
        for value in values {
            let _ = value.to_string();
        }
    }
}

/// Any message body: the length of the signature in one byte, the signature, then the body.
pub(crate) fn values(bytes: &[u8]) {
    let Some((length, rest)) = bytes.split_first() else { return };
    let (signature, body) = rest.split_at(usize::from(*length).min(rest.len()));
    if let Ok(values) = parse_values(&String::from_utf8_lossy(signature), body) {
        for value in values {
            let _ = value.to_string();
        }
    }
}
