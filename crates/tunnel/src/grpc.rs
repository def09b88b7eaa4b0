//! gRPC message framing and status, on top of HTTP/2 streams.

use bytes::{Buf as _, Bytes, BytesMut};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use landfall_http2::Headers;

/// grpc-go accepts messages up to 4 MiB, so no peer sends larger ones; the margin covers the fields around the data.
const MAX_MESSAGE: usize = 4 * 1024 * 1024 + 1024;
/// Bytes that are escaped in `grpc-message`, in addition to non-ASCII ones.
const MESSAGE: &AsciiSet = &CONTROLS.add(b'%');
/// Length of the prefix of each message: a flag byte and the message length.
pub const PREFIX: usize = 5;

/// A parser for messages in a stream of bytes. It does not copy a message that arrived in one piece.
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

/// The gRPC status codes in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Ok = 0,
    Unknown = 2,
    Unimplemented = 12,
    Unavailable = 14,
}

/// Returns the prefix of a message of `length` bytes.
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

/// Returns the response to a call that fails before its first message.
pub fn refusal(status: Status, message: &str) -> Headers {
    trailers_after(response(), status, message)
}

pub fn trailers(status: Status, message: &str) -> Headers {
    trailers_after(Headers::new(), status, message)
}

fn trailers_after(headers: Headers, status: Status, message: &str) -> Headers {
    let headers = headers.with("grpc-status", (status as u8).to_string());
    if message.is_empty() {
        headers
    } else {
        headers.with("grpc-message", utf8_percent_encode(message, MESSAGE).to_string())
    }
}

/// Returns the failure in a peer's headers or trailers; `None` while there is no status.
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

// === impl Messages ===

impl Messages {
    /// Adds the next bytes of the stream. [`Messages::next`] must have returned all previous messages.
    pub fn push(&mut self, bytes: Bytes) {
        debug_assert!(self.fresh.is_empty(), "messages are taken before more bytes are given");
        self.fresh = bytes;
    }

    /// Returns the next complete message.
    #[expect(
        clippy::should_implement_trait,
        reason = "it can fail and resume later, which an iterator cannot express"
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
