//! The header fields of a call and of its response.

use landfall_http2::Headers;

/// The relevant header fields of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    /// The HTTP status; gRPC uses only 200.
    pub(crate) http_status: Option<u32>,
    pub(crate) grpc_status: Option<u32>,
    pub(crate) grpc_message: String,
}

/// Returns the header fields of a request.
pub(super) fn request(path: &str) -> Headers {
    Headers::new()
        .with(":method", "POST")
        .with(":scheme", "http")
        .with(":path", path)
        .with(":authority", "localhost")
        .with("content-type", "application/grpc")
        .with("te", "trailers")
        .with("user-agent", "landfall")
}

// === impl Fields ===

impl Fields {
    /// Adds the fields of a header block.
    pub(crate) fn take(&mut self, headers: &Headers) {
        let number = |name: &str| {
            headers.get(name).and_then(|value| std::str::from_utf8(value).ok()?.parse::<u32>().ok())
        };
        self.http_status = number(":status").or(self.http_status);
        self.grpc_status = number("grpc-status").or(self.grpc_status);
        if let Some(message) = headers.get("grpc-message") {
            self.grpc_message = percent_encoding::percent_decode(message).decode_utf8_lossy().into_owned();
        }
    }
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
