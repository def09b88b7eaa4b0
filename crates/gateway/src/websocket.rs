//! The part of WebSocket (RFC 6455) that a byte stream needs: binary frames both ways, replies to pings, a close at the
//! end.

use std::io;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

const MAGIC: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;
/// Maximum payload of a ping, a pong or a close.
const MAX_CONTROL: usize = 125;
/// Maximum payload of a frame that is sent.
const PIECE: usize = 16 * 1024;
/// Maximum number of queued pings; further ones are not answered.
const PINGS: usize = 4;
/// A close frame with status 1000 (normal closure).
const GOODBYE: [u8; 4] = [0x80 | CLOSE, 2, 0x03, 0xe8];

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a frame is not masked")]
    Unmasked,
    #[error("a frame uses what was not agreed on")]
    Reserved,
    #[error("a control frame is too long or in pieces")]
    Control,
}

/// A part of the client's stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Data(Bytes),
    Ping(Bytes),
    Close,
}

/// A frame parser for input with arbitrary boundaries. It returns data as it arrives, not frame by frame.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    input: BytesMut,
    /// State of the current data frame.
    remaining: u64,
    mask: [u8; 4],
    turn: usize,
}

struct Head {
    operation: u8,
    length: u64,
    mask: [u8; 4],
    size: usize,
}

/// Returns the `Sec-WebSocket-Accept` value for a key.
pub(crate) fn accept(key: &str) -> String {
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{MAGIC}").as_bytes()))
}

/// Copies bytes until both sides have finished, or one has failed. Returns the bytes sent up and down.
pub(crate) async fn carry<S: AsyncRead + AsyncWrite>(
    client: S,
    mut node: TcpStream,
) -> io::Result<(u64, u64)> {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_node, mut to_node) = node.split();
    let (pings, mut pinged) = mpsc::channel::<Bytes>(PINGS);
    let up = async move {
        let mut frames = Frames::default();
        let mut total = 0;
        loop {
            match frames.next().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {
                Some(Piece::Data(bytes)) => {
                    to_node.write_all(&bytes).await?;
                    total += bytes.len() as u64;
                }
                // Pings beyond the queue are dropped: only a flooding client sends that many.
                Some(Piece::Ping(content)) => drop(pings.try_send(content)),
                Some(Piece::Close) => break,
                None => {
                    frames.input.reserve(PIECE);
                    if from_client.read_buf(&mut frames.input).await? == 0 {
                        break;
                    }
                }
            }
        }
        to_node.shutdown().await?;
        Ok::<_, io::Error>(total)
    };
    let down = async move {
        let mut total = 0;
        let mut piece = vec![0; PIECE];
        loop {
            tokio::select! {
                read = from_node.read(&mut piece) => {
                    let count = read?;
                    if count == 0 {
                        break;
                    }
                    to_client.write_all(&head(BINARY, count)).await?;
                    to_client.write_all(&piece[..count]).await?;
                    total += count as u64;
                }
                Some(content) = pinged.recv() => {
                    to_client.write_all(&head(PONG, content.len())).await?;
                    to_client.write_all(&content).await?;
                }
            }
            to_client.flush().await?;
        }
        to_client.write_all(&GOODBYE).await?;
        to_client.shutdown().await?;
        Ok::<_, io::Error>(total)
    };
    let mut up = std::pin::pin!(up);
    let mut down = std::pin::pin!(down);
    // After the node has ended, input of the client has no receiver. After the client has ended, the node may still
    // answer.
    tokio::select! {
        down = down.as_mut() => Ok((0, down?)),
        up = up.as_mut() => {
            let up = up?;
            Ok((up, down.await?))
        }
    }
}

/// Returns the head of a frame from a server, which is not masked.
fn head(operation: u8, length: usize) -> Vec<u8> {
    let first = 0x80 | operation;
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(length), _) if length < 126 => vec![first, length],
        (_, Ok(length)) => [&[first, 126][..], &length.to_be_bytes()].concat(),
        _ => [&[first, 127][..], &(length as u64).to_be_bytes()].concat(),
    }
}

// === impl Frames ===

impl Frames {
    /// Returns the next piece; `None` if more bytes are needed.
    pub(crate) fn next(&mut self) -> Result<Option<Piece>, FrameError> {
        loop {
            if self.remaining > 0 {
                let count = usize::try_from(self.remaining).unwrap_or(usize::MAX).min(self.input.len());
                if count == 0 {
                    return Ok(None);
                }
                let mut bytes = self.input.split_to(count);
                self.turn = unmask(&mut bytes, self.mask, self.turn);
                self.remaining -= count as u64;
                return Ok(Some(Piece::Data(bytes.freeze())));
            }
            let Some(head) = Head::parse(&self.input)? else { return Ok(None) };
            if head.operation < CLOSE {
                self.input.advance(head.size);
                (self.remaining, self.mask, self.turn) = (head.length, head.mask, 0);
                continue;
            }
            let length = usize::try_from(head.length).unwrap_or(usize::MAX);
            if self.input.len() < head.size + length {
                return Ok(None);
            }
            self.input.advance(head.size);
            let mut content = self.input.split_to(length);
            unmask(&mut content, head.mask, 0);
            match head.operation {
                CLOSE => return Ok(Some(Piece::Close)),
                PING => return Ok(Some(Piece::Ping(content.freeze()))),
                _ => {}
            }
        }
    }

    #[cfg(test)]
    fn push(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }
}

fn unmask(bytes: &mut [u8], mask: [u8; 4], turn: usize) -> usize {
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte ^= mask[(turn + at) % 4];
    }
    (turn + bytes.len()) % 4
}

// === impl Head ===

impl Head {
    fn parse(bytes: &[u8]) -> Result<Option<Self>, FrameError> {
        let [first, second, rest @ ..] = bytes else { return Ok(None) };
        let (last, operation) = (first & 0x80 != 0, first & 0x0f);
        if first & 0x70 != 0 || !matches!(operation, CONTINUATION | TEXT | BINARY | CLOSE | PING | PONG) {
            return Err(FrameError::Reserved);
        }
        if second & 0x80 == 0 {
            return Err(FrameError::Unmasked);
        }
        let short = u64::from(second & 0x7f);
        if operation >= CLOSE && (!last || short > MAX_CONTROL as u64) {
            return Err(FrameError::Control);
        }
        let (length, used) = match short {
            126 => match rest.first_chunk() {
                Some(length) => (u64::from(u16::from_be_bytes(*length)), 2),
                None => return Ok(None),
            },
            127 => match rest.first_chunk() {
                Some(length) => (u64::from_be_bytes(*length), 8),
                None => return Ok(None),
            },
            short => (short, 0),
        };
        let Some(mask) = rest[used..].first_chunk() else { return Ok(None) };
        Ok(Some(Self { operation, length, mask: *mask, size: 2 + used + 4 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(first: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = head(0, content.len());
        bytes[0] = first;
        bytes[1] |= 0x80;
        let mask = [1, 2, 3, 4];
        bytes.extend(mask);
        bytes.extend(content.iter().enumerate().map(|(at, byte)| byte ^ mask[at % 4]));
        bytes
    }

    /// Parses `bytes` in pieces of `cut` bytes; returns all data and all other pieces.
    fn read(bytes: &[u8], cut: usize) -> Result<(Vec<u8>, Vec<Piece>), FrameError> {
        let (mut frames, mut data, mut others) = (Frames::default(), Vec::new(), Vec::new());
        for piece in bytes.chunks(cut) {
            frames.push(piece);
            while let Some(piece) = frames.next()? {
                match piece {
                    Piece::Data(bytes) => data.extend(bytes),
                    other => others.push(other),
                }
            }
        }
        Ok((data, others))
    }

    #[test]
    fn the_standards_own_example_is_accepted() {
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn data_comes_out_however_it_is_cut_and_framed() {
        let long: Vec<u8> = (0..70_000_u32).map(|number| (number % 251) as u8).collect();
        let bytes = [
            frame(0x02, b"first "),
            frame(0x89, b"are you there"),
            frame(0x80, b"second"),
            frame(0x82, &long),
            frame(0x8a, b""),
            frame(0x88, &[3, 232]),
        ]
        .concat();
        let expected = [b"first second".as_slice(), &long].concat();
        for cut in [1, 7, 1000, bytes.len()] {
            let (data, others) = read(&bytes, cut).unwrap();
            assert!(data == expected, "cut by {cut}");
            assert_eq!(others, [Piece::Ping(Bytes::from_static(b"are you there")), Piece::Close]);
        }
    }

    #[test]
    fn what_breaks_the_rules_is_refused() {
        for (bytes, expected) in [
            (vec![0x82, 1, b'x'], FrameError::Unmasked),
            (frame(0xc2, b"x"), FrameError::Reserved),
            (frame(0x83, b"x"), FrameError::Reserved),
            (frame(0x09, b"x"), FrameError::Control),
            (frame(0x89, &[0; 126]), FrameError::Control),
        ] {
            assert_eq!(read(&bytes, bytes.len()), Err(expected), "{bytes:?}");
        }
    }
}
