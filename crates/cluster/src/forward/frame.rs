//! The subset of WebSocket that a forwarded port needs (RFC 6455, subprotocol `v4.channel.k8s.io`).
//!
//! The first byte of a message is the channel, the rest is its data. The parser works on bytes without I/O,
//! and rejects frames larger than [`MAX_PAYLOAD`].

use std::collections::VecDeque;

/// Limit of a frame; the kubelet and its runtime send at most 32 KiB each.
pub const MAX_PAYLOAD: usize = 1 << 20;
/// Limit of pings and closes in the protocol.
const MAX_CONTROL: usize = 125;

/// Values of the length byte for a longer length, which follows in two or eight bytes.
const TWO_BYTES: u8 = 0x7e;
const EIGHT_BYTES: u8 = 0x7f;
/// Flag in the length byte of a masked payload.
const MASKED: u8 = 0x80;

const CONTINUATION: u8 = 0;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// A message from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Data {
        channel: u8,
        bytes: Vec<u8>,
    },
    /// Must be answered with the same bytes.
    Ping(Vec<u8>),
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {0} bytes is too large")]
    Large(u64),
    #[error("a server's frame is masked, or uses an extension nobody asked for")]
    Flags,
    #[error("a frame of the unknown kind {0}")]
    Kind(u8),
    #[error("a continuation of nothing, or something new in the middle of a message")]
    Order,
    #[error("a control frame in pieces, or a long one")]
    Control,
}

/// Parses a server's stream, in chunks of any size.
#[derive(Debug, Default)]
pub struct Reader {
    buffer: VecDeque<u8>,
    /// The channel of a message that continues in the next frame.
    open: Option<Open>,
}

#[derive(Clone, Copy, Debug)]
enum Open {
    /// The message has no bytes yet, so its channel is unknown.
    Unnamed,
    Channel(u8),
}

struct Head {
    is_final: bool,
    kind: u8,
    /// Bytes before the payload.
    start: usize,
    length: usize,
}

/// Returns a client's frame with these bytes for a channel.
pub fn data(channel: u8, bytes: &[u8], mask: [u8; 4]) -> Vec<u8> {
    frame(BINARY, &[&[channel], bytes], mask)
}

/// Returns the response to a ping.
pub fn pong(bytes: &[u8], mask: [u8; 4]) -> Vec<u8> {
    frame(PONG, &[&bytes[..bytes.len().min(MAX_CONTROL)]], mask)
}

pub fn close(mask: [u8; 4]) -> Vec<u8> {
    frame(CLOSE, &[], mask)
}

fn frame(kind: u8, parts: &[&[u8]], mask: [u8; 4]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut frame = Vec::with_capacity(length + 14);
    frame.push(0x80 | kind);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short), _) if short < TWO_BYTES => frame.push(MASKED | short),
        (_, Ok(medium)) => {
            frame.push(MASKED | TWO_BYTES);
            frame.extend_from_slice(&medium.to_be_bytes());
        }
        _ => {
            frame.push(MASKED | EIGHT_BYTES);
            frame.extend_from_slice(&u64::try_from(length).unwrap_or(u64::MAX).to_be_bytes());
        }
    }
    frame.extend_from_slice(&mask);
    let payload = parts.iter().flat_map(|part| part.iter());
    frame.extend(payload.zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

// === impl Reader ===

impl Reader {
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend(bytes);
    }

    /// Returns the next complete message, or the next fragment of a fragmented one.
    pub fn next_message(&mut self) -> Result<Option<Message>, FrameError> {
        loop {
            let Some(head) = self.head()? else { return Ok(None) };
            if self.buffer.len() - head.start < head.length {
                return Ok(None);
            }
            self.buffer.drain(..head.start);
            let payload: Vec<u8> = self.buffer.drain(..head.length).collect();
            if let Some(message) = self.message(&head, payload)? {
                return Ok(Some(message));
            }
        }
    }

    fn head(&self) -> Result<Option<Head>, FrameError> {
        let (Some(first), Some(second)) = (self.buffer.front(), self.buffer.get(1)) else { return Ok(None) };
        if first & 0x70 != 0 || second & 0x80 != 0 {
            return Err(FrameError::Flags);
        }
        let more = match *second {
            TWO_BYTES => 2,
            EIGHT_BYTES => 8,
            _ => 0,
        };
        if self.buffer.len() < 2 + more {
            return Ok(None);
        }
        let long = self.buffer.range(2..2 + more).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        let length = if more == 0 { u64::from(*second) } else { long };
        let length = match usize::try_from(length) {
            Ok(small) if small <= MAX_PAYLOAD => small,
            _ => return Err(FrameError::Large(length)),
        };
        let head = Head { is_final: first & 0x80 != 0, kind: first & 0x0f, start: 2 + more, length };
        if head.kind >= CLOSE && (!head.is_final || head.length > MAX_CONTROL) {
            return Err(FrameError::Control);
        }
        Ok(Some(head))
    }

    fn message(&mut self, head: &Head, mut payload: Vec<u8>) -> Result<Option<Message>, FrameError> {
        let open = match (head.kind, self.open) {
            (BINARY, None) => Open::Unnamed,
            (CONTINUATION, Some(open)) => open,
            (BINARY | CONTINUATION, _) => return Err(FrameError::Order),
            (PING, _) => return Ok(Some(Message::Ping(payload))),
            (PONG, _) => return Ok(None),
            (CLOSE, _) => return Ok(Some(Message::Close)),
            (kind, _) => return Err(FrameError::Kind(kind)),
        };
        let open = match open {
            Open::Unnamed if !payload.is_empty() => Open::Channel(payload.remove(0)),
            open => open,
        };
        self.open = (!head.is_final).then_some(open);
        match open {
            Open::Channel(channel) if !payload.is_empty() => {
                Ok(Some(Message::Data { channel, bytes: payload }))
            }
            // The frame has no data.
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn server(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![first];
        match payload.len() {
            short @ 0..126 => frame.push(u8::try_from(short).unwrap()),
            medium => {
                frame.push(126);
                frame.extend_from_slice(&u16::try_from(medium).unwrap().to_be_bytes());
            }
        }
        frame.extend_from_slice(payload);
        frame
    }

    fn read(bytes: &[u8]) -> Result<Vec<Message>, FrameError> {
        let mut reader = Reader::default();
        reader.feed(bytes);
        let mut all = Vec::new();
        while let Some(message) = reader.next_message()? {
            all.push(message);
        }
        Ok(all)
    }

    fn for_channel(channel: u8, bytes: &[u8]) -> Message {
        Message::Data { channel, bytes: bytes.to_vec() }
    }

    #[test]
    fn messages_are_for_their_channel_whole_or_in_pieces() {
        let bytes = [
            server(0x82, b"\x00hello"),
            server(0x82, b"\x01"),
            server(0x02, b""),
            server(0x00, b"\x01bro"),
            server(0x89, b"still there?"),
            server(0x80, b"ken"),
            server(0x8a, b""),
            server(0x88, b"\x03\xe8"),
        ];
        let expected = [
            for_channel(0, b"hello"),
            for_channel(1, b"bro"),
            Message::Ping(b"still there?".to_vec()),
            for_channel(1, b"ken"),
            Message::Close,
        ];
        assert_eq!(read(&bytes.concat()).unwrap(), expected);
    }

    #[test]
    fn what_no_server_sends_is_refused() {
        for (bytes, error) in [
            (&[0xc2, 0][..], FrameError::Flags),
            (&[0x82, 0x80], FrameError::Flags),
            (&[0x81, 0], FrameError::Kind(1)),
            (&[0x83, 0], FrameError::Kind(3)),
            (&[0x80, 0], FrameError::Order),
            (&[0x02, 1, 0, 0x82, 0], FrameError::Order),
            (&[0x09, 0], FrameError::Control),
            (&[0x89, 126, 0, 126], FrameError::Control),
            (&[0x82, 127, 0, 0, 0, 0, 0, 0x10, 0, 1], FrameError::Large((1 << 20) + 1)),
            (&[0x82, 127, 255, 255, 255, 255, 255, 255, 255, 255], FrameError::Large(u64::MAX)),
        ] {
            assert_eq!(read(bytes), Err(error), "{bytes:?}");
        }
        assert_eq!(read(&[0x82, 127, 0, 0, 0, 0, 0, 0x10, 0, 0]), Ok(Vec::new()), "it may still come");
    }

    proptest! {
        /// The result does not depend on the chunks of a stream, and no input causes a panic.
        #[test]
        fn the_cut_does_not_matter(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in 0..300_usize) {
            let (one, two) = bytes.split_at(cut.min(bytes.len()));
            let mut reader = Reader::default();
            let mut all = Vec::new();
            let mut end = Ok(());
            for part in [one, two] {
                reader.feed(part);
                while end.is_ok() {
                    match reader.next_message() {
                        Ok(Some(message)) => all.push(message),
                        Ok(None) => break,
                        Err(error) => end = Err(error),
                    }
                }
            }
            match read(&bytes) {
                Ok(whole) => prop_assert_eq!((whole, Ok(())), (all, end)),
                Err(error) => prop_assert_eq!(end, Err(error)),
            }
        }

        /// An unmasked frame contains the original bytes.
        #[test]
        fn frames_hold_their_bytes(
            channel: u8, mask: [u8; 4], bytes in prop::collection::vec(any::<u8>(), 0..70_000),
        ) {
            let frame = data(channel, &bytes, mask);
            prop_assert_eq!(frame[0], 0x82);
            prop_assert_eq!(frame[1] & 0x80, 0x80);
            let start = match frame[1] & 0x7f { 126 => 4, 127 => 10, _ => 2 };
            prop_assert_eq!(&frame[start..start + 4], &mask);
            let payload: Vec<u8> =
                frame[start + 4..].iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
            prop_assert_eq!(payload[0], channel);
            prop_assert_eq!(&payload[1..], &bytes);
            // The length is correct: a reader of unmasked frames consumes exactly these bytes.
            let mut plain = frame[..start].to_vec();
            plain[1] &= 0x7f;
            plain.extend_from_slice(&payload);
            let expected = if bytes.is_empty() { Vec::new() } else { vec![for_channel(channel, &bytes)] };
            prop_assert_eq!(read(&plain).unwrap(), expected);
        }
    }
}
