//! Handling of received frames.

use std::time::Instant;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

use super::connection::{Connection, Expects, HeaderBlock, MAX_FRAME, Role};
use super::frame::{self, Head, LARGEST_MAX_FRAME, LARGEST_WINDOW};
use super::stream::Stream;
use super::{ErrorCode, Event, Http2Error, StreamId};

/// Maximum size of a compressed header block, over all its frames.
const MAX_HEADER_BLOCK: usize = 32 * 1024;
/// Maximum number of frames in one header block; an endless sequence of small ones is an attack.
const MAX_CONTINUATIONS: usize = 8;

impl Connection {
    pub(super) fn next_event(
        &mut self,
        input: &mut BytesMut,
        now: Instant,
    ) -> Result<Option<Event>, Http2Error> {
        if self.expects == Expects::Preface {
            let known = input.len().min(frame::PREFACE.len());
            if input[..known] != frame::PREFACE[..known] {
                return Err(Http2Error::protocol("this is not HTTP/2"));
            }
            if known < frame::PREFACE.len() {
                return Ok(None);
            }
            input.advance(known);
            self.expects = Expects::Settings;
        }
        while let Some(head) = Head::read(input) {
            if head.length > MAX_FRAME as usize {
                return Err(Http2Error::size("a frame larger than allowed"));
            }
            if input.len() < frame::HEAD + head.length {
                break;
            }
            if self.expects == Expects::Settings && (head.kind != frame::SETTINGS || head.has(frame::ACK)) {
                return Err(Http2Error::protocol("the first frame is not SETTINGS"));
            }
            if self.block.is_some() && head.kind != frame::CONTINUATION {
                return Err(Http2Error::protocol("a header block is interrupted"));
            }
            input.advance(frame::HEAD);
            let payload = input.split_to(head.length).freeze();
            if let Some(event) = self.on_frame(head, payload, now)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn on_frame(&mut self, head: Head, payload: Bytes, now: Instant) -> Result<Option<Event>, Http2Error> {
        match head.kind {
            frame::DATA => self.on_data(head, payload, now),
            frame::HEADERS => self.on_headers(head, payload),
            frame::CONTINUATION => self.on_continuation(head, &payload),
            frame::RST_STREAM => self.on_reset(head, payload, now),
            frame::SETTINGS => self.on_settings(head, payload, now).map(|()| None),
            frame::PING => self.on_ping(head, &payload, now).map(|()| None),
            frame::GOAWAY => Self::on_go_away(head, payload).map(Some),
            frame::WINDOW_UPDATE => self.on_window_update(head, payload),
            frame::PUSH_PROMISE => Err(Http2Error::protocol("a push was promised")),
            // Priorities are advisory, and unknown frames must be ignored.
            frame::PRIORITY => self.flood.count(now).map(|()| None),
            _ => self.flood.count(now).map(|()| None),
        }
    }

    fn on_data(&mut self, head: Head, payload: Bytes, now: Instant) -> Result<Option<Event>, Http2Error> {
        if self.is_idle(head.stream) {
            return Err(Http2Error::protocol("data on a stream that was never opened"));
        }
        self.inbound.receive(head.length)?;
        // The connection window bounds only data in flight; the window of each stream bounds buffered data.
        if let Some(increment) = self.inbound.release(head.length) {
            self.write_window_update(0, increment);
        }
        let bytes = unpadded(head, payload)?;
        let end = head.has(frame::END_STREAM);
        if bytes.is_empty() && !end {
            self.flood.count(now)?;
        } else if !bytes.is_empty() {
            self.flood.carried();
        }
        let Some(stream) = self.streams.get_mut(&head.stream) else {
            // The peer sent this before it received the reset.
            return Ok(None);
        };
        if stream.remote_closed {
            return Err(Http2Error::protocol("data after the end of a stream"));
        }
        stream.inbound.receive(head.length)?;
        let padding = head.length - bytes.len();
        stream.remote_closed = end;
        self.release(head.stream, padding);
        self.forget_if_done(head.stream);
        Ok(Some(Event::Data { stream: head.stream, bytes, end }))
    }

    fn on_headers(&mut self, head: Head, payload: Bytes) -> Result<Option<Event>, Http2Error> {
        if head.stream == 0 {
            return Err(Http2Error::protocol("headers without a stream"));
        }
        let mut fragment = unpadded(head, payload)?;
        if head.has(frame::WITH_PRIORITY) {
            if fragment.len() < 5 {
                return Err(Http2Error::size("a HEADERS frame too short for its priority"));
            }
            fragment.advance(5);
        }
        let end = head.has(frame::END_STREAM);
        if head.has(frame::END_HEADERS) {
            return self.on_header_block(head.stream, end, &fragment);
        }
        let bytes = BytesMut::from(&fragment[..]);
        self.block = Some(HeaderBlock { stream: head.stream, end, bytes, continuations: 0 });
        Ok(None)
    }

    fn on_continuation(&mut self, head: Head, payload: &[u8]) -> Result<Option<Event>, Http2Error> {
        let Some(mut block) = self.block.take().filter(|block| block.stream == head.stream) else {
            return Err(Http2Error::protocol("a continuation of nothing"));
        };
        block.continuations += 1;
        if block.continuations > MAX_CONTINUATIONS || block.bytes.len() + payload.len() > MAX_HEADER_BLOCK {
            return Err(Http2Error::calm("a header block larger than allowed"));
        }
        block.bytes.extend_from_slice(payload);
        if head.has(frame::END_HEADERS) {
            return self.on_header_block(block.stream, block.end, &block.bytes);
        }
        self.block = Some(block);
        Ok(None)
    }

    fn on_header_block(
        &mut self,
        id: StreamId,
        end: bool,
        block: &[u8],
    ) -> Result<Option<Event>, Http2Error> {
        let compression = |_| Http2Error { code: ErrorCode::COMPRESSION_ERROR, reason: "a bad header block" };
        let headers = self.decoder.decode(block).map_err(compression)?;
        if let Some(stream) = self.streams.get_mut(&id) {
            if stream.remote_closed {
                return Err(Http2Error::protocol("headers after the end of a stream"));
            }
            stream.remote_closed = end;
            self.forget_if_done(id);
            return Ok(Some(Event::Headers { stream: id, headers, end }));
        }
        if !self.is_idle(id) {
            // The peer sent this before it received the reset.
            return Ok(None);
        }
        if self.role == Role::Client || id.is_multiple_of(2) {
            return Err(Http2Error::protocol("headers on a stream that was never opened"));
        }
        self.last_stream = id;
        if self.going_away || self.streams.len() >= self.limits.streams as usize {
            self.write_reset(id, ErrorCode::REFUSED_STREAM);
            return Ok(None);
        }
        let mut stream = Stream::new(i64::from(self.limits.stream_window), self.peer.initial_window);
        stream.remote_closed = end;
        self.streams.insert(id, stream);
        Ok(Some(Event::Headers { stream: id, headers, end }))
    }

    fn on_reset(
        &mut self,
        head: Head,
        mut payload: Bytes,
        now: Instant,
    ) -> Result<Option<Event>, Http2Error> {
        if head.length != 4 {
            return Err(Http2Error::size("a RST_STREAM frame of the wrong size"));
        }
        if self.is_idle(head.stream) {
            return Err(Http2Error::protocol("the end of a stream that was never opened"));
        }
        self.flood.count(now)?;
        let known = self.streams.remove(&head.stream).is_some();
        let code = ErrorCode(payload.get_u32());
        Ok(known.then_some(Event::Reset { stream: head.stream, code }))
    }

    fn on_settings(&mut self, head: Head, mut payload: Bytes, now: Instant) -> Result<(), Http2Error> {
        if head.stream != 0 {
            return Err(Http2Error::protocol("SETTINGS on a stream"));
        }
        self.flood.count(now)?;
        if head.has(frame::ACK) {
            return if head.length == 0 {
                Ok(())
            } else {
                Err(Http2Error::size("an acknowledgement with content"))
            };
        }
        if !head.length.is_multiple_of(6) {
            return Err(Http2Error::size("a SETTINGS frame of the wrong size"));
        }
        while payload.has_remaining() {
            let (name, value) = (payload.get_u16(), payload.get_u32());
            self.on_setting(name, value)?;
        }
        self.expects = Expects::Frames;
        self.output.with_tail(|tail| {
            Head { length: 0, kind: frame::SETTINGS, flags: frame::ACK, stream: 0 }.write(tail);
        });
        Ok(())
    }

    fn on_setting(&mut self, name: u16, value: u32) -> Result<(), Http2Error> {
        match name {
            frame::SETTINGS_HEADER_TABLE_SIZE => self.encoder.peer_table_size(value),
            frame::SETTINGS_MAX_CONCURRENT_STREAMS => self.peer.max_streams = value,
            frame::SETTINGS_INITIAL_WINDOW_SIZE => {
                let size = i64::from(value);
                if size > LARGEST_WINDOW {
                    return Err(Http2Error::flow("a window larger than allowed"));
                }
                let change = size - self.peer.initial_window;
                self.peer.initial_window = size;
                for stream in self.streams.values_mut() {
                    stream.outbound.change(change)?;
                }
                let open: Vec<StreamId> = self.streams.keys().copied().collect();
                for stream in open {
                    self.queue_if_sendable(stream);
                }
            }
            frame::SETTINGS_MAX_FRAME_SIZE => {
                let size = value as usize;
                if !(frame::DEFAULT_MAX_FRAME..=LARGEST_MAX_FRAME).contains(&size) {
                    return Err(Http2Error::protocol("a frame size that is not allowed"));
                }
                self.peer.max_frame = size;
            }
            _ => {}
        }
        Ok(())
    }

    fn on_ping(&mut self, head: Head, payload: &[u8], now: Instant) -> Result<(), Http2Error> {
        if head.stream != 0 {
            return Err(Http2Error::protocol("PING on a stream"));
        }
        if head.length != 8 {
            return Err(Http2Error::size("a PING frame of the wrong size"));
        }
        self.flood.count(now)?;
        if !head.has(frame::ACK) {
            self.output.with_tail(|tail| {
                Head { length: 8, kind: frame::PING, flags: frame::ACK, stream: 0 }.write(tail);
                tail.put_slice(payload);
            });
        }
        Ok(())
    }

    fn on_go_away(head: Head, mut payload: Bytes) -> Result<Event, Http2Error> {
        if head.stream != 0 || head.length < 8 {
            return Err(Http2Error::protocol("a malformed GOAWAY frame"));
        }
        let last = payload.get_u32() & 0x7fff_ffff;
        Ok(Event::GoAway { last, code: ErrorCode(payload.get_u32()) })
    }

    fn on_window_update(&mut self, head: Head, mut payload: Bytes) -> Result<Option<Event>, Http2Error> {
        if head.length != 4 {
            return Err(Http2Error::size("a WINDOW_UPDATE frame of the wrong size"));
        }
        let increment = i64::from(payload.get_u32() & 0x7fff_ffff);
        if head.stream == 0 {
            if increment == 0 {
                return Err(Http2Error::protocol("a window update of nothing"));
            }
            self.outbound.change(increment)?;
            return Ok(None);
        }
        if self.is_idle(head.stream) {
            return Err(Http2Error::protocol("a window update of a stream that was never opened"));
        }
        let Some(stream) = self.streams.get_mut(&head.stream) else { return Ok(None) };
        if increment == 0 || stream.outbound.change(increment).is_err() {
            self.reset(head.stream, ErrorCode::FLOW_CONTROL_ERROR);
            return Ok(Some(Event::Reset { stream: head.stream, code: ErrorCode::FLOW_CONTROL_ERROR }));
        }
        self.queue_if_sendable(head.stream);
        Ok(None)
    }

    /// Returns whether the stream was never opened.
    fn is_idle(&self, stream: StreamId) -> bool {
        stream == 0 || stream.is_multiple_of(2) || stream > self.last_stream
    }

    pub(super) fn forget_if_done(&mut self, stream: StreamId) {
        if self.streams.get(&stream).is_some_and(Stream::is_done) {
            self.streams.remove(&stream);
        }
    }
}

/// Returns the content of a DATA or HEADERS frame without its padding.
fn unpadded(head: Head, mut payload: Bytes) -> Result<Bytes, Http2Error> {
    if !head.has(frame::PADDED) {
        return Ok(payload);
    }
    if payload.is_empty() {
        return Err(Http2Error::size("a padded frame without padding"));
    }
    let padding = usize::from(payload.get_u8());
    let length = payload.len().checked_sub(padding).ok_or(Http2Error::protocol("more padding than frame"))?;
    payload.truncate(length);
    Ok(payload)
}
