//! The header fields of a call and of its answer.

use bytes::BytesMut;
use landfall_hpack::{Encoder, Headers};

/// All header fields of one answer.
pub(crate) const MAX_FIELDS: usize = 64 << 10;

/// What an answer's header fields tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    /// HTTP's own status; anything but 200 is no gRPC.
    pub(crate) http_status: Option<u32>,
    pub(crate) grpc_status: Option<u32>,
    pub(crate) grpc_message: String,
}

/// The header block of a request.
pub(crate) fn encode(path: &str) -> BytesMut {
    let headers = Headers::new()
        .with(":method", "POST")
        .with(":scheme", "http")
        .with(":path", path)
        .with(":authority", "localhost")
        .with("content-type", "application/grpc")
        .with("te", "trailers")
        .with("user-agent", "landfall");
    let mut block = BytesMut::new();
    Encoder::default().encode(&headers, &mut block);
    block
}

// === impl Fields ===

impl Fields {
    /// Adds what a header block told.
    pub(crate) fn take(&mut self, headers: &Headers) {
        let number = |name: &str| {
            headers.get(name).and_then(|value| std::str::from_utf8(value).ok()?.parse::<u32>().ok())
        };
        self.http_status = number(":status").or(self.http_status);
        self.grpc_status = number("grpc-status").or(self.grpc_status);
        if let Some(message) = headers.get("grpc-message") {
            self.grpc_message = percent_decoded(message);
        }
    }
}

/// gRPC writes what is not plain text as `%XX`.
fn percent_decoded(value: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((first, tail)) = rest.split_first() {
        let hex =
            tail.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(byte) = hex.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            bytes.push(byte);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_add_to_what_headers_told() {
        let mut fields = Fields::default();
        fields.take(&Headers::new().with(":status", "200").with("content-type", "application/grpc"));
        assert_eq!((fields.http_status, fields.grpc_status), (Some(200), None));
        fields.take(&Headers::new().with("grpc-status", "12").with("grpc-message", "unknown%20x%"));
        assert_eq!((fields.http_status, fields.grpc_status), (Some(200), Some(12)));
        assert_eq!(fields.grpc_message, "unknown x%");
    }
}
