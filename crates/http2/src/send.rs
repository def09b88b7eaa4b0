//! Sending: data stays queued on its stream until the windows and the output have capacity.

use bytes::{BufMut as _, Bytes, BytesMut};

use super::connection::{Connection, Role};
use super::frame::{self, Head};
use super::stream::{End, Stream};
use super::{Headers, StreamId};

/// Bytes in the output ahead of the socket. More would only delay urgent frames.
const OUTPUT_AHEAD: usize = 128 * 1024;
/// Bytes that one stream sends before the next: one packet of a tunnel.
const TURN: usize = 64 * 1024 + 64;

impl Connection {
    /// Opens a stream as a client. Returns `None` at the peer's limit.
    pub fn open(&mut self, headers: &Headers) -> Option<StreamId> {
        debug_assert_eq!(self.role, Role::Client, "servers do not open streams");
        if self.going_away || self.streams.len() >= self.peer.max_streams as usize {
            return None;
        }
        let id = if self.last_stream == 0 { 1 } else { self.last_stream.checked_add(2)? };
        self.last_stream = id;
        let stream = Stream::new(i64::from(self.limits.stream_window), self.peer.initial_window);
        self.streams.insert(id, stream);
        self.write_headers(id, headers, false);
        Some(id)
    }

    /// Sends the response headers of a stream; `end` if nothing follows.
    pub fn respond(&mut self, stream: StreamId, headers: &Headers, end: bool) {
        let Some(open) = self.streams.get_mut(&stream).filter(|open| !open.local_closed) else { return };
        open.local_closed = end;
        self.write_headers(stream, headers, end);
        self.forget_if_done(stream);
    }

    /// Returns whether new data of a stream would be sent immediately.
    pub fn is_writable(&self, stream: StreamId) -> bool {
        self.output.len() < OUTPUT_AHEAD
            && self.outbound.available() > 0
            && self.streams.get(&stream).is_some_and(|open| {
                !open.local_closed
                    && open.pending.end.is_none()
                    && open.pending.len() == 0
                    && open.outbound.available() > 0
            })
    }

    /// Queues data on a stream and sends as much as the windows permit. Data for a closed stream is dropped.
    pub fn send(&mut self, stream: StreamId, pieces: impl IntoIterator<Item = Bytes>) {
        if let Some(open) = self.streams.get_mut(&stream).filter(|open| !open.local_closed) {
            for piece in pieces {
                open.pending.push(piece);
            }
            self.queue_if_sendable(stream);
        }
    }

    /// Ends this half of a stream after the queued data.
    pub fn finish(&mut self, stream: StreamId, trailers: Option<Headers>) {
        if let Some(open) = self.streams.get_mut(&stream) {
            open.pending.end = Some(trailers.map_or(End::Plain, End::Trailers));
            self.queue_if_sendable(stream);
        }
    }

    /// Moves queued data to the output, one frame per stream in turn, until the output has reached its limit.
    pub fn flush(&mut self) {
        while self.output.len() < OUTPUT_AHEAD {
            let Some(id) = self.sendable.pop_front() else { return };
            let Some(stream) = self.streams.get_mut(&id) else { continue };
            stream.queued = false;
            let window = self.outbound.available().min(stream.outbound.available());
            let length = stream.pending.len().min(window).min(self.peer.max_frame).min(TURN);
            if length == 0 && stream.pending.len() > 0 {
                if self.outbound.available() == 0 {
                    stream.queued = true;
                    self.sendable.push_front(id);
                    return;
                }
                // The stream's own window is closed; an update queues the stream again.
                continue;
            }
            if length > 0 || matches!(stream.pending.end, Some(End::Plain)) {
                stream.outbound.send(length);
                self.outbound.send(length);
                self.flood.carried();
                let end = length == stream.pending.len() && matches!(stream.pending.end, Some(End::Plain));
                let flags = if end { frame::END_STREAM } else { 0 };
                self.output
                    .with_tail(|tail| Head { length, kind: frame::DATA, flags, stream: id }.write(tail));
                let mut left = length;
                while let Some(piece) = (left > 0).then(|| stream.pending.take(left)).flatten() {
                    left -= piece.len();
                    self.output.push(piece);
                }
                stream.local_closed = end;
            }
            if stream.pending.len() == 0
                && let Some(End::Trailers(trailers)) =
                    stream.pending.end.take_if(|end| matches!(end, End::Trailers(_)))
            {
                stream.local_closed = true;
                self.write_headers(id, &trailers, true);
            }
            self.queue_if_sendable(id);
            self.forget_if_done(id);
        }
    }

    /// Returns whether a stream has no queued data.
    pub fn is_drained(&self, stream: StreamId) -> bool {
        self.streams.get(&stream).is_none_or(|open| open.pending.len() == 0 && open.pending.end.is_none())
    }

    pub(super) fn queue_if_sendable(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !stream.queued
            && stream.is_sendable()
        {
            stream.queued = true;
            self.sendable.push_back(id);
        }
    }

    fn write_headers(&mut self, stream: StreamId, headers: &Headers, end: bool) {
        let mut block = BytesMut::new();
        self.encoder.encode(headers, &mut block);
        let mut kind = frame::HEADERS;
        loop {
            let length = block.len().min(self.peer.max_frame);
            let piece = block.split_to(length);
            let last = block.is_empty();
            let mut flags = if last { frame::END_HEADERS } else { 0 };
            if end && kind == frame::HEADERS {
                flags |= frame::END_STREAM;
            }
            self.output.with_tail(|tail| {
                Head { length, kind, flags, stream }.write(tail);
                tail.put_slice(&piece);
            });
            if last {
                return;
            }
            kind = frame::CONTINUATION;
        }
    }
}
