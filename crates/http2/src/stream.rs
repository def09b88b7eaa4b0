use std::collections::VecDeque;

use bytes::{Buf as _, Bytes};

use super::Headers;
use super::window::{Inbound, Outbound};

/// One stream of a connection.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) inbound: Inbound,
    pub(super) outbound: Outbound,
    pub(super) pending: Pending,
    /// Whether the stream is in the list of streams with data to send.
    pub(super) queued: bool,
    pub(super) local_closed: bool,
    pub(super) remote_closed: bool,
}

/// Data to send on a stream once the windows permit.
#[derive(Debug, Default)]
pub(super) struct Pending {
    chunks: VecDeque<Bytes>,
    length: usize,
    pub(super) end: Option<End>,
}

/// The end of this half of a stream.
#[derive(Debug)]
pub(super) enum End {
    Plain,
    Trailers(Headers),
}

// === impl Stream ===

impl Stream {
    pub(super) fn new(inbound: i64, outbound: i64) -> Self {
        Self {
            inbound: Inbound::new(inbound),
            outbound: Outbound::new(outbound),
            pending: Pending::default(),
            queued: false,
            local_closed: false,
            remote_closed: false,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.local_closed && self.remote_closed
    }

    /// Returns whether the stream's own window permits sending now.
    pub(super) fn is_sendable(&self) -> bool {
        !self.local_closed
            && (self.pending.length > 0 && self.outbound.available() > 0
                || self.pending.length == 0 && self.pending.end.is_some())
    }
}

// === impl Pending ===

impl Pending {
    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn push(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.length += bytes.len();
            self.chunks.push_back(bytes);
        }
    }

    /// Removes and returns the next piece, `limit` bytes at most.
    pub(super) fn take(&mut self, limit: usize) -> Option<Bytes> {
        let first = self.chunks.front_mut()?;
        let piece = if first.len() <= limit {
            self.chunks.pop_front()?
        } else {
            let piece = first.slice(..limit);
            first.advance(limit);
            piece
        };
        self.length -= piece.len();
        Some(piece)
    }
}
