//! WebSocket (RFC 6455) after its handshake: messages of bytes both ways.
//!
//! The library's defaults permit messages of 64 MiB, and a peer that sends pings without reading their answers may
//! fill the memory; the limits here do not.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Message};

/// Maximum size of a received message, and of each of its frames.
pub const MAX_MESSAGE: usize = 1 << 20;
/// Maximum size of a sent message.
pub const MAX_SENT: usize = 32 << 10;
const READ_BUFFER: usize = 16 << 10;
/// Maximum size of a sent message and unsent answers to pings; further pings are not answered.
const MAX_UNSENT: usize = 2 * MAX_SENT;
/// Timeout to write the remaining bytes and the close frame.
const LAST_WORD: Duration = Duration::from_secs(5);

/// The receiving half of a connection.
#[derive(Debug)]
pub struct Receiver<S>(SplitStream<WebSocketStream<S>>);

/// The sending half of a connection.
#[derive(Debug)]
pub struct Sender<S>(SplitSink<WebSocketStream<S>, Message>);

/// Returns the client's side of a connection: it masks its frames.
pub async fn client<S: AsyncRead + AsyncWrite + Unpin>(stream: S) -> (Receiver<S>, Sender<S>) {
    open(stream, Role::Client).await
}

/// Returns the server's side of a connection: it accepts masked frames only.
pub async fn server<S: AsyncRead + AsyncWrite + Unpin>(stream: S) -> (Receiver<S>, Sender<S>) {
    open(stream, Role::Server).await
}

async fn open<S: AsyncRead + AsyncWrite + Unpin>(stream: S, role: Role) -> (Receiver<S>, Sender<S>) {
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(0)
        .max_write_buffer_size(MAX_UNSENT)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    let (sender, receiver) = WebSocketStream::from_raw_socket(stream, role, Some(config)).await.split();
    (Receiver(receiver), Sender(sender))
}

/// Sends a close frame and closes the connection. A peer that does not read does not delay it for long.
pub async fn close<S: AsyncRead + AsyncWrite + Unpin>(receiver: Receiver<S>, mut sender: Sender<S>) {
    let closing = async {
        // The peer may have closed before.
        let _ = sender.0.close().await;
        if let Ok(mut whole) = receiver.0.reunite(sender.0) {
            let _ = whole.get_mut().shutdown().await;
        }
    };
    let _ = tokio::time::timeout(LAST_WORD, closing).await;
}

fn failure(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

// === impl Receiver ===

impl<S: AsyncRead + AsyncWrite + Unpin> Receiver<S> {
    /// Returns the next message; `None` after the peer has closed. Pings are answered meanwhile.
    pub async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            return match self.0.next().await {
                Some(Ok(message @ (Message::Binary(_) | Message::Text(_)))) => Ok(Some(message.into_data())),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
                None
                | Some(
                    Ok(Message::Close(_))
                    | Err(
                        Error::ConnectionClosed
                        | Error::Protocol(ProtocolError::ResetWithoutClosingHandshake),
                    ),
                ) => Ok(None),
                Some(Err(error)) => Err(failure(error)),
            };
        }
    }
}

// === impl Sender ===

impl<S: AsyncRead + AsyncWrite + Unpin> Sender<S> {
    /// Sends a message of [`MAX_SENT`] bytes at most, and waits until it is written.
    pub async fn send(&mut self, bytes: Bytes) -> io::Result<()> {
        self.0.send(Message::Binary(bytes)).await.map_err(failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, DuplexStream};

    const MASK: [u8; 4] = [1, 2, 3, 4];

    /// Returns a client's frame.
    fn frame(first: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![first];
        match u16::try_from(content.len()) {
            Ok(short @ 0..126) => bytes.push(0x80 | u8::try_from(short).unwrap()),
            Ok(medium) => {
                bytes.push(0x80 | 0x7e);
                bytes.extend(medium.to_be_bytes());
            }
            Err(_) => {
                bytes.push(0x80 | 0x7f);
                bytes.extend((content.len() as u64).to_be_bytes());
            }
        }
        bytes.extend(MASK);
        bytes.extend(content.iter().zip(MASK.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        bytes
    }

    async fn pair() -> (DuplexStream, Receiver<DuplexStream>, Sender<DuplexStream>) {
        let (peer, ours) = tokio::io::duplex(1 << 20);
        let (receiver, sender) = server(ours).await;
        (peer, receiver, sender)
    }

    #[tokio::test]
    async fn messages_arrive_however_they_are_framed_and_pings_are_answered() {
        let (mut peer, mut receiver, sender) = pair().await;
        let long = vec![7; 70_000];
        let bytes = [
            frame(0x02, b"first "),
            frame(0x89, b"are you there"),
            frame(0x80, b"second"),
            frame(0x82, &long),
            frame(0x8a, b""),
            frame(0x88, &[3, 232]),
        ];
        peer.write_all(&bytes.concat()).await.unwrap();
        assert_eq!(receiver.next().await.unwrap().unwrap(), b"first second"[..]);
        assert_eq!(receiver.next().await.unwrap().unwrap(), long[..]);
        assert_eq!(receiver.next().await.unwrap(), None);
        close(receiver, sender).await;
        let mut sent = Vec::new();
        peer.read_to_end(&mut sent).await.unwrap();
        assert_eq!(sent, b"\x8a\x0dare you there\x88\x02\x03\xe8");
    }

    #[tokio::test]
    async fn both_sides_understand_each_other() {
        let (one, other) = tokio::io::duplex(1 << 20);
        let ((mut from_client, to_client), (mut from_server, mut to_server)) =
            tokio::join!(server(one), client(other));
        to_server.send(Bytes::from(vec![3; MAX_SENT])).await.unwrap();
        assert_eq!(from_client.next().await.unwrap().unwrap(), vec![3; MAX_SENT]);
        close(from_client, to_client).await;
        assert_eq!(from_server.next().await.unwrap(), None);
    }

    #[tokio::test]
    async fn what_breaks_the_rules_is_refused() {
        let too_long = (MAX_MESSAGE as u64 + 1).to_be_bytes();
        let parts = [frame(0x02, &vec![0; MAX_MESSAGE / 2]), frame(0x80, &vec![0; MAX_MESSAGE / 2 + 1])];
        for bytes in [
            vec![0x82, 1, b'x'],
            frame(0xc2, b"x"),
            frame(0x83, b"x"),
            frame(0x80, b"x"),
            frame(0x09, b"x"),
            frame(0x89, &[0; 126]),
            // Refused before its content arrives.
            [&[0x82, 0xff], &too_long[..], &MASK[..]].concat(),
            parts.concat(),
        ] {
            let (mut peer, mut receiver, _sender) = pair().await;
            let writing = tokio::spawn(async move { peer.write_all(&bytes).await.map(|()| peer) });
            let error = receiver.next().await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
            writing.abort();
        }
        let (mut peer, ours) = tokio::io::duplex(1 << 10);
        let (mut receiver, _sender) = client(ours).await;
        peer.write_all(&frame(0x82, b"masked by a server")).await.unwrap();
        assert_eq!(receiver.next().await.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_read_costs_a_bounded_amount_of_memory() {
        const PINGS: usize = 100_000;
        let (peer, ours) = tokio::io::duplex(1 << 10);
        let (mut receiver, mut sender) = server(ours).await;
        let (mut unread, mut peer) = tokio::io::split(peer);
        let asking = tokio::spawn(async move {
            for _ in 0..PINGS {
                peer.write_all(&frame(0x89, &[0; 125])).await?;
            }
            peer.write_all(&frame(0x82, b"end")).await
        });
        assert_eq!(receiver.next().await.unwrap().unwrap(), b"end"[..]);
        asking.await.unwrap().unwrap();
        // The peer's own pings took the room; nothing more is queued for it.
        assert!(sender.send(Bytes::from(vec![0; MAX_SENT])).await.is_err());
        close(receiver, sender).await;
        let mut sent = Vec::new();
        unread.read_to_end(&mut sent).await.unwrap();
        assert!(sent.len() <= MAX_UNSENT + (1 << 10), "{} bytes", sent.len());
    }
}
