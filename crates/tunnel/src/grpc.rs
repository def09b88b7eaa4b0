//! gRPC's message framing and its status words, on top of HTTP/2 streams.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::http2::Headers;

/// grpc-go accepts messages up to 4 MiB, so no peer sends larger ones; a little more for what is around them.
const MAX_MESSAGE: usize = 4 * 1024 * 1024 + 1024;
/// A flag byte and a length before each message.
pub const PREFIX: usize = 5;

/// Cuts a stream of bytes into messages. A message that arrived in one piece is not copied.
#[derive(Debug, Default)]
pub struct Messages {
    fresh: Bytes,
    partial: BytesMut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrpcError {
    #[error("a compressed message, although no compression was agreed on")]
    Compressed,
    #[error("a message of {length} bytes is larger than allowed")]
    TooLarge { length: usize },
}

/// gRPC's status codes, as far as they are used here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Ok = 0,
    Unknown = 2,
    Unimplemented = 12,
    Unavailable = 14,
}

/// The prefix of a message of `length` bytes.
pub fn prefix(length: usize) -> [u8; PREFIX] {
    let [a, b, c, d] = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    [0, a, b, c, d]
}

pub fn request(scheme: &str, authority: &str, path: &str) -> Headers {
    Headers::new()
        .with(":method", "POST")
        .with(":scheme", scheme)
        .with(":path", path)
        .with(":authority", authority)
        .with("content-type", "application/grpc")
        .with("user-agent", concat!("landfall/", env!("CARGO_PKG_VERSION")))
        .with("te", "trailers")
}

pub fn response() -> Headers {
    Headers::new().with(":status", "200").with("content-type", "application/grpc")
}

/// The answer to a call that fails before anything else is said.
pub fn refusal(status: Status, message: &str) -> Headers {
    trailers_after(response(), status, message)
}

pub fn trailers(status: Status, message: &str) -> Headers {
    trailers_after(Headers::new(), status, message)
}

fn trailers_after(headers: Headers, status: Status, message: &str) -> Headers {
    let headers = headers.with("grpc-status", (status as u8).to_string());
    if message.is_empty() { headers } else { headers.with("grpc-message", percent_encoded(message)) }
}

/// What a peer's headers or trailers say about success: `None` while nothing is said.
pub fn failure(headers: &Headers) -> Option<String> {
    let text = |name| headers.get(name).map(|value| String::from_utf8_lossy(value).into_owned());
    if let Some(status) = text(":status").filter(|status| status != "200") {
        return Some(format!("HTTP status {status}"));
    }
    match text("grpc-status")?.as_str() {
        "0" => None,
        status => Some(format!("gRPC status {status}: {}", text("grpc-message").unwrap_or_default())),
    }
}

/// Printable ASCII as it is, except `%`; everything else as `%XX`.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

// === impl Messages ===

impl Messages {
    /// Takes the next bytes of the stream. Everything before must have been asked for with [`Messages::next`].
    pub fn push(&mut self, bytes: Bytes) {
        debug_assert!(self.fresh.is_empty(), "messages are taken before more bytes are given");
        self.fresh = bytes;
    }

    /// The next complete message.
    #[expect(
        clippy::should_implement_trait,
        reason = "it can fail and go on later, which an iterator cannot say"
    )]
    pub fn next(&mut self) -> Result<Option<Bytes>, GrpcError> {
        if self.partial.is_empty() {
            let Some(length) = length(&self.fresh)? else {
                self.keep(self.fresh.len());
                return Ok(None);
            };
            if self.fresh.len() >= PREFIX + length {
                self.fresh.advance(PREFIX);
                return Ok(Some(self.fresh.split_to(length)));
            }
        }
        if self.partial.len() < PREFIX {
            self.keep(PREFIX - self.partial.len());
        }
        let Some(length) = length(&self.partial)? else { return Ok(None) };
        self.keep(PREFIX + length - self.partial.len());
        if self.partial.len() < PREFIX + length {
            return Ok(None);
        }
        let mut message = std::mem::take(&mut self.partial).freeze();
        message.advance(PREFIX);
        Ok(Some(message))
    }

    /// Moves up to `length` fresh bytes to the partial message.
    fn keep(&mut self, length: usize) {
        let length = length.min(self.fresh.len());
        self.partial.extend_from_slice(&self.fresh.split_to(length));
    }
}

fn length(bytes: &[u8]) -> Result<Option<usize>, GrpcError> {
    let Some([compressed, a, b, c, d]) = bytes.first_chunk::<PREFIX>() else { return Ok(None) };
    let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
    if *compressed != 0 {
        return Err(GrpcError::Compressed);
    }
    if length > MAX_MESSAGE { Err(GrpcError::TooLarge { length }) } else { Ok(Some(length)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_failure_is_told_as_grpc_go_tells_it() {
        let told = refusal(Status::Unknown, "expected one agent ID, 100% sure\n");
        assert_eq!(told.get("grpc-status"), Some(&b"2"[..]));
        assert_eq!(told.get("grpc-message"), Some(&b"expected one agent ID, 100%25 sure%0A"[..]));
        assert!(failure(&told).is_some());
        assert_eq!(failure(&response()), None);
        assert_eq!(failure(&trailers(Status::Ok, "")), None);
    }

    #[test]
    fn four_mebibytes_are_accepted_and_much_more_is_not() {
        let mut messages = Messages::default();
        messages.push(Bytes::copy_from_slice(&prefix(4 * 1024 * 1024)));
        assert_eq!(messages.next(), Ok(None));
        let mut messages = Messages::default();
        messages.push(Bytes::copy_from_slice(&prefix(5 * 1024 * 1024)));
        assert_eq!(messages.next(), Err(GrpcError::TooLarge { length: 5 * 1024 * 1024 }));
        let mut messages = Messages::default();
        messages.push(Bytes::from_static(&[1, 0, 0, 0, 0]));
        assert_eq!(messages.next(), Err(GrpcError::Compressed));
    }

    proptest! {
        #[test]
        fn messages_come_out_whole_however_the_stream_is_cut(
            contents in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..100), 0..20),
            cuts in proptest::collection::vec(1_usize..40, 1..20),
        ) {
            let mut wire = Bytes::from(contents.iter().flat_map(|one| [&prefix(one.len()), &one[..]].concat()).collect::<Vec<u8>>());
            let (mut messages, mut seen) = (Messages::default(), Vec::new());
            for cut in cuts.iter().cycle() {
                if wire.is_empty() {
                    break;
                }
                messages.push(wire.split_to((*cut).min(wire.len())));
                while let Some(message) = messages.next().unwrap() {
                    seen.push(message.to_vec());
                }
            }
            prop_assert_eq!(seen, contents);
        }
    }
}
