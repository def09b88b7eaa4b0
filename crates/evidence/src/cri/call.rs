//! One call: bytes of the connection in, the response message out. No I/O.

use std::time::Instant;

use bytes::{Bytes, BytesMut};
use landfall_http2::{Connection, Event, Limits, Output, Role, StreamId};

use super::CriError;
use super::header::{self, Fields};

/// Maximum size of a message. A busy node lists a few hundred containers of about a kilobyte each.
const MAX_MESSAGE: usize = 8 << 20;

/// Window for the complete response and one frame more, so that a larger response is recognized as such.
#[expect(clippy::cast_possible_truncation, reason = "the sum is far below 4 GiB")]
const WINDOW: u32 = MAX_MESSAGE as u32 + (16 << 10);

/// Prefix of every gRPC message: whether it is compressed, and its length.
const MESSAGE_HEADER: usize = 5;

/// The only stream of the connection.
const STREAM: StreamId = 1;

/// A call and its partially received response.
#[derive(Debug)]
pub struct Call {
    connection: Connection,
    input: BytesMut,
    fields: Fields,
    body: Vec<u8>,
}

/// Whether the response is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    More,
    Done,
}

fn malformed<T>(what: &'static str) -> Result<T, CriError> {
    Err(CriError::Malformed { what })
}

// === impl Call ===

impl Call {
    pub fn new(path: &str, message: &[u8]) -> Self {
        let limits = Limits { stream_window: WINDOW, connection_window: WINDOW, ..Limits::default() };
        let mut connection = Connection::new(Role::Client, limits);
        // A client's first stream is always permitted.
        let _ = connection.open(&header::request(path));
        // Requests have only a few bytes.
        let length = u32::try_from(message.len()).unwrap_or(0).to_be_bytes();
        connection.send(STREAM, [Bytes::from([&[0], &length[..], message].concat())]);
        connection.finish(STREAM, None);
        Self { connection, input: BytesMut::new(), fields: Fields::default(), body: Vec::new() }
    }

    /// Returns the bytes to send.
    pub fn output(&mut self) -> &mut Output {
        self.connection.flush();
        self.connection.output()
    }

    /// Adds received bytes.
    pub fn push(&mut self, bytes: &[u8], now: Instant) -> Result<Progress, CriError> {
        self.input.extend_from_slice(bytes);
        while let Some(event) = self.connection.receive(&mut self.input, now)? {
            let end = match event {
                Event::Headers { headers, end, .. } => {
                    self.fields.take(&headers);
                    end
                }
                Event::Data { bytes, end, .. } => {
                    if self.body.len() + bytes.len() > MAX_MESSAGE {
                        return malformed("an answer that is too long");
                    }
                    self.body.extend_from_slice(&bytes);
                    end
                }
                Event::Reset { .. } => return malformed("a refusal without a reason"),
                Event::GoAway { last, .. } if last < STREAM => {
                    return malformed("a farewell instead of an answer");
                }
                Event::GoAway { .. } => false,
            };
            if end {
                return Ok(Progress::Done);
            }
        }
        Ok(Progress::More)
    }

    /// Returns the message of a complete response.
    pub fn finish(self, method: &'static str) -> Result<Vec<u8>, CriError> {
        let Fields { http_status, grpc_status, grpc_message } = self.fields;
        match (http_status, grpc_status) {
            (_, Some(0)) => {}
            (_, Some(status)) => return Err(CriError::Failed { method, status, message: grpc_message }),
            (Some(200) | None, None) => return malformed("an answer without a status"),
            (Some(_), None) => return malformed("an answer that is not gRPC"),
        }
        let Some((head, message)) = self.body.split_at_checked(MESSAGE_HEADER) else {
            return malformed("an answer without a message");
        };
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        if head[0] != 0 || message.len() != length {
            return malformed("an answer that is packed, cut or too long");
        }
        Ok(message.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const SETTINGS: u8 = 4;
    const PUSH_PROMISE: u8 = 5;
    const PING: u8 = 6;
    const GOAWAY: u8 = 7;
    const WINDOW_UPDATE: u8 = 8;
    const CONTINUATION: u8 = 9;
    const ACK: u8 = 1;
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    const PADDED: u8 = 8;

    fn frames(list: &[(u8, u8, u32, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (kind, flags, stream, payload) in list {
            let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
            out.extend_from_slice(&length[1..]);
            out.extend([*kind, *flags]);
            out.extend(stream.to_be_bytes());
            out.extend_from_slice(payload);
        }
        out
    }

    fn written(call: &mut Call) -> Vec<u8> {
        let output = call.output();
        let mut slices = [std::io::IoSlice::new(&[]); 8];
        let count = output.slices(&mut slices);
        let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
        output.advance(bytes.len());
        bytes
    }

    /// Reads what follows the peer's settings; returns the response and the bytes sent after the call.
    fn read(bytes: &[u8], step: usize) -> Result<(Vec<u8>, Vec<u8>), CriError> {
        let (mut call, now) = (Call::new("/Version", b""), Instant::now());
        written(&mut call);
        call.push(&frames(&[(SETTINGS, 0, 0, b"")]), now)?;
        written(&mut call);
        for piece in bytes.chunks(step) {
            if call.push(piece, now)? == Progress::Done {
                let sent = written(&mut call);
                return Ok((call.finish("Version")?, sent));
            }
        }
        malformed("no end")
    }

    const OK: &[u8] = b"\x00\x0bgrpc-status\x010";

    #[test]
    fn an_answer_in_any_pieces_is_read_and_settings_and_pings_are_answered() {
        let bytes = frames(&[
            (SETTINGS, 0, 0, b"\0\x05\0\0\x40\0"),
            (SETTINGS, ACK, 0, b""),
            (WINDOW_UPDATE, 0, 0, b"\0\0\0\x10"),
            (HEADERS, 0, 1, b"\x88"),
            (CONTINUATION, END_HEADERS, 1, b"\x5f\x10application/grpc"),
            (DATA, 0, 1, b"\0\0\0\0\x05he"),
            (PING, 0, 0, b"12345678"),
            (99, 0, 1, b"unknown"),
            (DATA, PADDED, 1, b"\x02llo\0\0"),
            (HEADERS, END_HEADERS | END_STREAM, 1, OK),
        ]);
        for step in [1, 7, 10_000] {
            let (message, answer) = read(&bytes, step).unwrap();
            assert_eq!(message, b"hello");
            assert_eq!(answer, frames(&[(SETTINGS, ACK, 0, b""), (PING, ACK, 0, b"12345678")]));
        }
    }

    #[test]
    fn a_failure_has_the_words_of_the_peer() {
        let trailers = b"\x88\x00\x0bgrpc-status\x0212\x00\x0cgrpc-message\x0funknown service";
        let bytes = frames(&[(HEADERS, END_HEADERS | END_STREAM, 1, trailers)]);
        let error = read(&bytes, 100).unwrap_err();
        assert_eq!(error.to_string(), "`Version` failed: unknown service (gRPC status 12)");
    }

    #[test]
    fn misbehaviour_is_refused() {
        for list in [
            &[(DATA, 0, 3, &b"x"[..])][..],
            &[(RST_STREAM, 0, 1, b"\0\0\0\x08")],
            &[(GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\0")],
            &[(PUSH_PROMISE, 0, 1, b"")],
            &[(HEADERS, 0, 1, b"\x88"), (DATA, 0, 1, b"")],
            &[(CONTINUATION, END_HEADERS, 1, b"")],
            &[(DATA, PADDED, 1, b"\x09x")],
            &[(HEADERS, END_HEADERS | END_STREAM, 1, b"\x88")],
            &[(HEADERS, END_HEADERS | END_STREAM, 1, OK)],
            &[(DATA, 0, 1, b"\x01\0\0\0\0"), (HEADERS, END_HEADERS | END_STREAM, 1, OK)],
            &[(DATA, 0, 1, b"\0\0\0\0\x09x"), (HEADERS, END_HEADERS | END_STREAM, 1, OK)],
        ] {
            let error = read(&frames(list), 100).unwrap_err();
            assert!(matches!(error, CriError::Malformed { .. } | CriError::Http2(_)), "{list:?}: {error}");
            assert_ne!(error.to_string(), malformed::<()>("no end").unwrap_err().to_string(), "{list:?}");
        }
        assert!(read(b"HTTP/1.1 400 Bad Request\r\n", 100).is_err());
    }

    #[test]
    fn an_answer_without_end_is_refused() {
        let data = [0; 16 << 10];
        let many = frames(&vec![(DATA, 0, 1, &data[..]); MAX_MESSAGE / data.len() + 1]);
        assert!(read(&many, 1 << 16).unwrap_err().to_string().contains("too long"));
        let pings = frames(&vec![(PING, 0, 0, &b"12345678"[..]); 5000]);
        assert!(matches!(read(&pings, 1 << 16), Err(CriError::Http2(_))));
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..300), step in 1..50_usize) {
            let _ = read(&bytes, step);
        }
    }
}
