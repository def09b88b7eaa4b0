//! A narrow HTTP/2 layer for gRPC streams: bytes in, events out; commands in, bytes out. It does no I/O and reads no
//! clock.
//!
//! Why our own: kube-apiserver's gRPC frontend sends `:authority: %2Frun%2F…sock`, which stock libraries refuse; and the
//! tunnel wants to choose itself which tunnel's bytes go next, and to count what it keeps in memory. What is left out is
//! what two bidirectional gRPC methods never use: push, priorities, upgrade from HTTP/1.1.

mod connection;
mod frame;
mod output;
mod receive;
mod send;
mod stream;
mod window;

#[cfg(test)]
mod tests;

pub use connection::{Connection, Limits, Role};
pub use frame::ErrorCode;
pub use landfall_hpack::{Field, Headers, HpackError};
pub use output::Output;

use bytes::Bytes;

/// A stream's number on its connection.
pub type StreamId = u32;

/// What a peer did.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// The headers of a new stream, of an answer, or trailers.
    Headers { stream: StreamId, headers: Headers, end: bool },
    /// A piece of a stream. Whoever takes it says when it is used up: [`Connection::release`].
    Data { stream: StreamId, bytes: Bytes, end: bool },
    /// The stream is gone, by the peer or because the peer broke its rules.
    Reset { stream: StreamId, code: ErrorCode },
    /// The peer opens or accepts no streams after `last`.
    GoAway { last: StreamId, code: ErrorCode },
}

/// The connection is lost. The peer is told the code in a GOAWAY frame, which still has to be written.
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
