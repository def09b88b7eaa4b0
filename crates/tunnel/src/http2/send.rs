//! What we say, and when: data waits on its stream until the windows and the output have room for it.

use bytes::{BufMut as _, Bytes, BytesMut};

use super::connection::{Connection, Role};
use super::frame::{self, Head};
use super::stream::{End, Stream};
use super::{Headers, StreamId};

/// What is handed to the socket ahead of time. More would only make urgent things wait behind it.
const OUTPUT_AHEAD: usize = 128 * 1024;
/// What one stream may send before the next has its turn: one packet of a tunnel.
const TURN: usize = 64 * 1024 + 64;

impl Connection {
    /// Opens a stream, as a client. None when the peer allows no more.
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

    /// Answers a stream; `end` when nothing follows.
    pub fn respond(&mut self, stream: StreamId, headers: &Headers, end: bool) {
        let Some(open) = self.streams.get_mut(&stream).filter(|open| !open.local_closed) else { return };
        open.local_closed = end;
        self.write_headers(stream, headers, end);
        self.forget_if_done(stream);
    }

    /// Whether a stream would send new data at once, so that it is worth giving it some.
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

    /// Sends data on a stream, as windows allow. Data for a stream that is gone is dropped.
    pub fn send(&mut self, stream: StreamId, pieces: impl IntoIterator<Item = Bytes>) {
        if let Some(open) = self.streams.get_mut(&stream).filter(|open| !open.local_closed) {
            for piece in pieces {
                open.pending.push(piece);
            }
            self.queue_if_sendable(stream);
        }
    }

    /// Ends our half of a stream after what was sent.
    pub fn finish(&mut self, stream: StreamId, trailers: Option<Headers>) {
        if let Some(open) = self.streams.get_mut(&stream) {
            open.pending.end = Some(trailers.map_or(End::Plain, End::Trailers));
            self.queue_if_sendable(stream);
        }
    }

    /// Moves waiting data into the output, one frame of each stream in turn, until the output is full enough.
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
                // Its own window is closed; an update queues it again.
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

    /// Whether nothing waits for a window or for room.
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
