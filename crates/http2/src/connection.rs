use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::{BufMut as _, BytesMut};

use super::frame::{self, DEFAULT_MAX_FRAME, DEFAULT_WINDOW, Head};
use super::output::Output;
use super::stream::Stream;
use super::window::{Inbound, Outbound};
use super::{ErrorCode, Event, Http2Error, StreamId};
use crate::hpack::{Decoder, Encoder};

/// Maximum size of a received frame: a landfall packet fits, so that its payload needs no copy to be contiguous.
pub(super) const MAX_FRAME: u32 = 128 * 1024;
/// Maximum size of the decoded header fields of a message. Bearer tokens take a few KiB; all other fields are small.
pub(super) const MAX_HEADER_LIST: u32 = 32 * 1024;

/// The role of this end of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Client,
    Server,
}

/// Limits for the peer.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Concurrently open streams.
    pub streams: u32,
    /// Bytes that the peer may have in flight on one stream.
    pub stream_window: u32,
    /// Bytes that the peer may have in flight on all streams.
    pub connection_window: u32,
    /// Idle time after which the peer is pinged.
    pub keepalive: Option<Duration>,
    /// Timeout for the peer's response to a ping.
    pub keepalive_timeout: Duration,
}

/// One HTTP/2 connection.
#[derive(Debug)]
pub struct Connection {
    pub(super) role: Role,
    pub(super) limits: Limits,
    pub(super) expects: Expects,
    pub(super) decoder: Decoder,
    pub(super) encoder: Encoder,
    pub(super) streams: BTreeMap<StreamId, Stream>,
    /// The highest stream ID received (server) or used (client).
    pub(super) last_stream: StreamId,
    pub(super) block: Option<HeaderBlock>,
    pub(super) inbound: Inbound,
    pub(super) outbound: Outbound,
    pub(super) peer: Peer,
    pub(super) sendable: VecDeque<StreamId>,
    pub(super) output: Output,
    pub(super) going_away: bool,
    pub(super) flood: Flood,
    keepalive: Keepalive,
}

/// The input that must come next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Expects {
    Preface,
    Settings,
    Frames,
}

/// A header block that is not complete yet.
#[derive(Debug)]
pub(super) struct HeaderBlock {
    pub(super) stream: StreamId,
    pub(super) end: bool,
    pub(super) bytes: BytesMut,
    pub(super) continuations: usize,
}

/// Limits from the peer's SETTINGS.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) max_frame: usize,
    pub(super) initial_window: i64,
    pub(super) max_streams: u32,
}

/// A counter of frames that cost this end work without benefit to the peer.
#[derive(Debug, Default)]
pub(super) struct Flood {
    since: Option<Instant>,
    count: u32,
}

#[derive(Debug, Default)]
struct Keepalive {
    heard: bool,
    last: Option<Instant>,
    asked: Option<Instant>,
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams: 10_000,
            stream_window: 256 * 1024,
            connection_window: 1024 * 1024,
            keepalive: None,
            keepalive_timeout: Duration::from_secs(20),
        }
    }
}

// === impl Connection ===

impl Connection {
    pub fn new(role: Role, limits: Limits) -> Self {
        let mut connection = Self {
            role,
            limits,
            expects: match role {
                Role::Client => Expects::Settings,
                Role::Server => Expects::Preface,
            },
            decoder: Decoder::new(MAX_HEADER_LIST as usize),
            encoder: Encoder::default(),
            streams: BTreeMap::new(),
            last_stream: 0,
            block: None,
            inbound: Inbound::new(DEFAULT_WINDOW),
            outbound: Outbound::default(),
            peer: Peer {
                max_frame: DEFAULT_MAX_FRAME,
                initial_window: DEFAULT_WINDOW,
                max_streams: u32::MAX,
            },
            sendable: VecDeque::new(),
            output: Output::default(),
            going_away: false,
            flood: Flood::default(),
            keepalive: Keepalive::default(),
        };
        connection.greet();
        connection
    }

    /// Returns the bytes to write to the peer.
    pub fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Parses the next event from `input` and removes its bytes. Callers repeat until it returns `None`.
    pub fn receive(&mut self, input: &mut BytesMut, now: Instant) -> Result<Option<Event>, Http2Error> {
        self.keepalive.heard = true;
        let event = self.next_event(input, now);
        if let Err(error) = &event {
            self.go_away(error.code, error.reason);
        }
        event
    }

    /// Pings an idle peer and returns an error if it does not respond in time. Returns the time of the next call.
    pub fn tick(&mut self, now: Instant) -> Result<Option<Instant>, Http2Error> {
        let Some(every) = self.limits.keepalive else { return Ok(None) };
        if std::mem::take(&mut self.keepalive.heard) || self.keepalive.last.is_none() {
            self.keepalive.last = Some(now);
            self.keepalive.asked = None;
        }
        if let Some(asked) = self.keepalive.asked {
            let until = asked + self.limits.keepalive_timeout;
            if now >= until {
                let error =
                    Http2Error { code: ErrorCode::NO_ERROR, reason: "the peer gives no sign of life" };
                self.go_away(error.code, error.reason);
                return Err(error);
            }
            return Ok(Some(until));
        }
        let due = self.keepalive.last.unwrap_or(now) + every;
        if now < due {
            return Ok(Some(due));
        }
        self.keepalive.asked = Some(now);
        self.output.with_tail(|tail| {
            Head { length: 8, kind: frame::PING, flags: 0, stream: 0 }.write(tail);
            tail.put_slice(b"landfall");
        });
        Ok(Some(now + self.limits.keepalive_timeout))
    }

    /// Sends GOAWAY: no further streams are accepted.
    pub fn go_away(&mut self, code: ErrorCode, reason: &str) {
        if self.going_away {
            return;
        }
        self.going_away = true;
        let last = match self.role {
            Role::Client => 0,
            Role::Server => self.last_stream,
        };
        self.output.with_tail(|tail| {
            Head { length: 8 + reason.len(), kind: frame::GOAWAY, flags: 0, stream: 0 }.write(tail);
            tail.put_u32(last);
            tail.put_u32(code.0);
            tail.put_slice(reason.as_bytes());
        });
    }

    /// Ends a stream immediately, in both directions.
    pub fn reset(&mut self, stream: StreamId, code: ErrorCode) {
        if self.streams.remove(&stream).is_some() {
            self.write_reset(stream, code);
        }
    }

    /// Returns the number of open streams.
    pub fn open_streams(&self) -> usize {
        self.streams.len()
    }

    /// Releases `length` consumed bytes of a stream, so that the peer may send as many again.
    pub fn release(&mut self, stream: StreamId, length: usize) {
        let open = self.streams.get_mut(&stream).filter(|open| !open.remote_closed);
        if let Some(increment) = open.and_then(|open| open.inbound.release(length)) {
            self.write_window_update(stream, increment);
        }
    }

    /// Permits the peer `size` bytes in flight, on `stream` and on the connection.
    pub fn grow_windows(&mut self, stream: StreamId, size: u32) {
        if let Some(increment) = self.inbound.grow(i64::from(size)) {
            self.write_window_update(0, increment);
        }
        let open = self.streams.get_mut(&stream);
        if let Some(increment) = open.and_then(|open| open.inbound.grow(i64::from(size))) {
            self.write_window_update(stream, increment);
        }
    }

    pub(super) fn write_window_update(&mut self, stream: StreamId, increment: u32) {
        self.output.with_tail(|tail| {
            Head { length: 4, kind: frame::WINDOW_UPDATE, flags: 0, stream }.write(tail);
            tail.put_u32(increment);
        });
    }

    pub(super) fn write_reset(&mut self, stream: StreamId, code: ErrorCode) {
        self.output.with_tail(|tail| {
            Head { length: 4, kind: frame::RST_STREAM, flags: 0, stream }.write(tail);
            tail.put_u32(code.0);
        });
    }

    fn greet(&mut self) {
        let mut settings = vec![
            (frame::SETTINGS_INITIAL_WINDOW_SIZE, self.limits.stream_window),
            (frame::SETTINGS_MAX_FRAME_SIZE, MAX_FRAME),
            (frame::SETTINGS_MAX_HEADER_LIST_SIZE, MAX_HEADER_LIST),
        ];
        settings.push(match self.role {
            Role::Client => (frame::SETTINGS_ENABLE_PUSH, 0),
            Role::Server => (frame::SETTINGS_MAX_CONCURRENT_STREAMS, self.limits.streams),
        });
        let role = self.role;
        self.output.with_tail(|tail| {
            if role == Role::Client {
                tail.put_slice(frame::PREFACE);
            }
            Head { length: settings.len() * 6, kind: frame::SETTINGS, flags: 0, stream: 0 }.write(tail);
            for (name, value) in settings {
                tail.put_u16(name);
                tail.put_u32(value);
            }
        });
        if let Some(increment) = self.inbound.grow(i64::from(self.limits.connection_window)) {
            self.write_window_update(0, increment);
        }
    }
}

// === impl Flood ===

impl Flood {
    /// Maximum number of pings, settings, resets and empty frames per second, beyond one for each DATA frame. Keepalive
    /// needs a few.
    const MAX_PER_SECOND: u32 = 2000;

    /// Records a DATA frame in either direction. grpc-go sends a ping for each DATA frame to measure the
    /// bandwidth-delay product, which amounts to thousands per second on a short path.
    pub(super) fn carried(&mut self) {
        self.count = self.count.saturating_sub(1);
    }

    pub(super) fn count(&mut self, now: Instant) -> Result<(), Http2Error> {
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) >= Duration::from_secs(1) {
            (self.since, self.count) = (Some(now), 0);
        }
        self.count += 1;
        if self.count > Self::MAX_PER_SECOND {
            return Err(Http2Error::calm("too many frames that carry nothing"));
        }
        Ok(())
    }
}
