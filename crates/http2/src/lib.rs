//! A minimal HTTP/2 layer for gRPC streams: bytes in, events out; commands in, bytes out. It does no I/O and reads no
//! clock.
//!
//! Existing libraries are unsuitable for two reasons. They reject `:authority: %2Frun%2F…sock`, which kube-apiserver's
//! gRPC frontend sends. The tunnel also needs control over the order in which tunnels send, and over the memory they
//! use. The client of container runtimes uses it on a blocking socket. Features that gRPC never uses are missing: push,
//! priorities, upgrade from HTTP/1.1.

mod connection;
mod frame;
mod hpack;
mod output;
mod receive;
mod send;
mod stream;
mod window;

#[cfg(test)]
mod tests;

pub use connection::{Connection, Limits, Role};
pub use frame::ErrorCode;
pub use hpack::{Field, Headers};
pub use output::Output;

use bytes::Bytes;

/// ID of a stream on its connection.
pub type StreamId = u32;

/// An event from the peer.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The headers of a new stream, of a response, or trailers.
    Headers { stream: StreamId, headers: Headers, end: bool },
    /// Data of a stream. The receiver calls [`Connection::release`] after consuming it.
    Data { stream: StreamId, bytes: Bytes, end: bool },
    /// The stream was reset, by the peer or because the peer violated the protocol.
    Reset { stream: StreamId, code: ErrorCode },
    /// The peer opens or accepts no streams after `last`.
    GoAway { last: StreamId, code: ErrorCode },
}

/// A fatal connection error. The output contains a GOAWAY frame with the code, which must still be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("HTTP/2 {code}: {reason}")]
pub struct Http2Error {
    pub code: ErrorCode,
    pub reason: &'static str,
}

// === impl Http2Error ===

impl Http2Error {
    fn protocol(reason: &'static str) -> Self {
        Self { code: ErrorCode::PROTOCOL_ERROR, reason }
    }

    fn size(reason: &'static str) -> Self {
        Self { code: ErrorCode::FRAME_SIZE_ERROR, reason }
    }

    fn flow(reason: &'static str) -> Self {
        Self { code: ErrorCode::FLOW_CONTROL_ERROR, reason }
    }

    fn calm(reason: &'static str) -> Self {
        Self { code: ErrorCode::ENHANCE_YOUR_CALM, reason }
    }
}
