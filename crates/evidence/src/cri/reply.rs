//! The response to one call: bytes of the connection in, the response message out. No I/O.

use landfall_http2::Decoder;

use super::CriError;
use super::header::{self, Fields, MAX_FIELDS};

/// Maximum size of a message. A busy node lists a few hundred containers of about a kilobyte each.
const MAX_MESSAGE: usize = 8 << 20;

/// HTTP/2's default limit for frames, which this client does not change.
const MAX_FRAME: usize = 16 << 10;

/// Maximum number of frames of one response, so that pings and settings cannot extend a call without end.
const MAX_FRAMES: usize = 100_000;

const FRAME_HEADER: usize = 9;
/// Prefix of every gRPC message: whether it is compressed, and its length.
const MESSAGE_HEADER: usize = 5;

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
const PRIORITY: u8 = 0x20;

/// The only stream of the connection.
const STREAM: u32 = 1;

/// A partially received response.
#[derive(Debug)]
pub struct Reply {
    /// Bytes of an incomplete frame.
    input: Vec<u8>,
    block: Vec<u8>,
    /// Whether the stream ends with the current header block.
    last_block: bool,
    in_block: bool,
    decoder: Decoder,
    fields: Fields,
    body: Vec<u8>,
    frames: usize,
    ended: bool,
}

/// Whether the response is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    More,
    Done,
}

/// Returns the bytes of a call.
pub(crate) fn call(path: &str, message: &[u8]) -> Vec<u8> {
    let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // No server push, and a window for the complete response.
    let window = u32::try_from(MAX_MESSAGE + MAX_FRAME).unwrap_or(u32::MAX >> 1);
    let mut settings = Vec::new();
    for (name, value) in [(2_u16, 0_u32), (4, window)] {
        settings.extend(name.to_be_bytes());
        settings.extend(value.to_be_bytes());
    }
    push_frame(&mut out, SETTINGS, 0, 0, &settings);
    push_frame(&mut out, WINDOW_UPDATE, 0, 0, &window.to_be_bytes());
    push_frame(&mut out, HEADERS, END_HEADERS, STREAM, &header::encode(path));
    let mut body = vec![0];
    // Requests have only a few bytes.
    body.extend(u32::try_from(message.len()).unwrap_or(0).to_be_bytes());
    body.extend_from_slice(message);
    push_frame(&mut out, DATA, END_STREAM, STREAM, &body);
    out
}

fn push_frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    out.extend_from_slice(&length[1..]);
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend_from_slice(payload);
}

fn malformed<T>(what: &'static str) -> Result<T, CriError> {
    Err(CriError::Malformed { what })
}

// === impl Reply ===

impl Default for Reply {
    fn default() -> Self {
        Self {
            input: Vec::new(),
            block: Vec::new(),
            last_block: false,
            in_block: false,
            decoder: Decoder::new(MAX_FIELDS),
            fields: Fields::default(),
            body: Vec::new(),
            frames: 0,
            ended: false,
        }
    }
}

impl Reply {
    /// Adds received bytes; appends the bytes to send in response to `answer`.
    pub fn push(&mut self, bytes: &[u8], answer: &mut Vec<u8>) -> Result<Progress, CriError> {
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..];
        while !self.ended {
            let Some((head, tail)) = rest.split_at_checked(FRAME_HEADER) else { break };
            let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            if length > MAX_FRAME {
                return malformed("a frame that is too long");
            }
            let Some((payload, tail)) = tail.split_at_checked(length) else { break };
            rest = tail;
            self.frames += 1;
            if self.frames > MAX_FRAMES {
                return malformed("frames without end");
            }
            let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
            self.frame(head[3], head[4], stream, payload, answer)?;
        }
        self.input = rest.to_vec();
        Ok(if self.ended { Progress::Done } else { Progress::More })
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

    fn frame(
        &mut self,
        kind: u8,
        flags: u8,
        stream: u32,
        payload: &[u8],
        answer: &mut Vec<u8>,
    ) -> Result<(), CriError> {
        if self.in_block && kind != CONTINUATION {
            return malformed("a header block that is interrupted");
        }
        match kind {
            SETTINGS if flags & ACK == 0 => push_frame(answer, SETTINGS, ACK, 0, &[]),
            PING if flags & ACK == 0 => {
                if payload.len() != 8 {
                    return malformed("a ping of the wrong size");
                }
                push_frame(answer, PING, ACK, 0, payload);
            }
            GOAWAY => {
                let last = payload.get(..4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
                if last.unwrap_or(0) & 0x7fff_ffff < STREAM {
                    return malformed("a farewell instead of an answer");
                }
            }
            PUSH_PROMISE => return malformed("an unrequested push"),
            DATA | HEADERS | CONTINUATION | RST_STREAM if stream != STREAM => {
                return malformed("an unrequested response");
            }
            RST_STREAM => return malformed("a refusal without a reason"),
            DATA => {
                let data = unpadded(flags, payload)?;
                if self.body.len() + data.len() > MAX_MESSAGE {
                    return malformed("an answer that is too long");
                }
                self.body.extend_from_slice(data);
                self.ended |= flags & END_STREAM != 0;
            }
            HEADERS => {
                let mut block = unpadded(flags, payload)?;
                if flags & PRIORITY != 0 {
                    block =
                        block.get(5..).ok_or(CriError::Malformed { what: "a header block that is cut" })?;
                }
                self.last_block = flags & END_STREAM != 0;
                self.add_block(flags, block)?;
            }
            CONTINUATION if !self.in_block => return malformed("a header block without a beginning"),
            CONTINUATION => self.add_block(flags, payload)?,
            // Window updates are irrelevant, because the request is already sent; unknown frames must be ignored.
            _ => {}
        }
        Ok(())
    }

    fn add_block(&mut self, flags: u8, block: &[u8]) -> Result<(), CriError> {
        if self.block.len() + block.len() > 4 * MAX_FRAME {
            return malformed("header fields that are too long");
        }
        self.block.extend_from_slice(block);
        self.in_block = flags & END_HEADERS == 0;
        if !self.in_block {
            let block = std::mem::take(&mut self.block);
            let headers = self.decoder.decode(&block).map_err(|source| CriError::Headers { source })?;
            self.fields.take(&headers);
            self.ended |= self.last_block;
        }
        Ok(())
    }
}

fn unpadded(flags: u8, payload: &[u8]) -> Result<&[u8], CriError> {
    if flags & PADDED == 0 {
        return Ok(payload);
    }
    let cut = CriError::Malformed { what: "padding that is too long" };
    let Some((padding, rest)) = payload.split_first() else { return Err(cut) };
    rest.len().checked_sub(usize::from(*padding)).map(|end| &rest[..end]).ok_or(cut)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames(list: &[(u8, u8, u32, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        for (kind, flags, stream, payload) in list {
            push_frame(&mut out, *kind, *flags, *stream, payload);
        }
        out
    }

    fn read(bytes: &[u8], step: usize) -> Result<(Vec<u8>, Vec<u8>), CriError> {
        let (mut reply, mut answer) = (Reply::default(), Vec::new());
        for piece in bytes.chunks(step) {
            if reply.push(piece, &mut answer)? == Progress::Done {
                return Ok((reply.finish("Version")?, answer));
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
            assert!(matches!(read(&frames(list), 100), Err(CriError::Malformed { .. })), "{list:?}");
        }
        assert!(read(b"HTTP/1.1 400 Bad Request\r\n", 100).is_err());
    }

    #[test]
    fn an_answer_without_end_is_refused() {
        let data = [0; MAX_FRAME];
        let many = frames(&vec![(DATA, 0, 1, &data[..]); MAX_MESSAGE / MAX_FRAME + 1]);
        assert!(read(&many, 1 << 16).unwrap_err().to_string().contains("too long"));
        let pings = frames(&vec![(SETTINGS, ACK, 0, &b""[..]); MAX_FRAMES + 1]);
        assert!(read(&pings, 1 << 16).unwrap_err().to_string().contains("without end"));
    }

    proptest! {
        #[test]
        fn no_bytes_break_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..300), step in 1..50_usize) {
            let _ = read(&bytes, step);
        }
    }
}
