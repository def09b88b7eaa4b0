//! The first bytes of a connection, which are read to classify it and then returned to its stream.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use crate::MAX_HELLO;

/// Maximum number of bytes before a decision: the longest hello, in small records, after a PROXY header.
const MAX_FIRST: usize = 2 * MAX_HELLO;
/// Size of a read. Nearly every hello fits.
const PIECE: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub enum FirstError {
    #[error("no recognizable request from the peer within {} s", .0.as_secs())]
    Late(Duration),
    #[error("the peer closed the connection without a request")]
    Silent,
    #[error("the peer left before it had said what it wants")]
    Cut,
    #[error("nothing could be decided from the first {MAX_FIRST} bytes")]
    TooLong,
    #[error("cannot read from the peer")]
    Read(#[source] io::Error),
}

/// A stream with bytes that were already read from it.
#[derive(Debug)]
pub struct Prefixed<S> {
    first: BytesMut,
    stream: S,
}

/// Reads into `bytes` until `decide` returns a value.
pub async fn read_first<S: AsyncRead + Unpin, T>(
    stream: &mut S,
    bytes: &mut BytesMut,
    within: Duration,
    mut decide: impl FnMut(&[u8]) -> Option<T>,
) -> Result<T, FirstError> {
    let reading = async {
        loop {
            if let Some(decision) = decide(bytes) {
                return Ok(decision);
            }
            if bytes.len() >= MAX_FIRST {
                return Err(FirstError::TooLong);
            }
            bytes.reserve(PIECE);
            if stream.read_buf(bytes).await.map_err(FirstError::Read)? == 0 {
                return Err(if bytes.is_empty() { FirstError::Silent } else { FirstError::Cut });
            }
        }
    };
    tokio::time::timeout(within, reading).await.map_err(|_| FirstError::Late(within))?
}

// === impl Prefixed ===

impl<S> Prefixed<S> {
    pub fn new(first: BytesMut, stream: S) -> Self {
        Self { first, stream }
    }

    pub fn get_ref(&self) -> &S {
        &self.stream
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefixed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buffer);
        }
        let count = self.first.len().min(buffer.remaining());
        buffer.put_slice(&self.first[..count]);
        self.first.advance(count);
        if self.first.is_empty() {
            // Frees the buffer, because a connection may stay open for a long time.
            self.first = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefixed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn what_was_read_is_given_back() {
        let (mut near, mut far) = tokio::io::duplex(64);
        far.write_all(b"hello world").await.unwrap();
        far.shutdown().await.unwrap();
        let mut bytes = BytesMut::new();
        let decided = read_first(&mut near, &mut bytes, LONG, |bytes| bytes.get(3).copied()).await.unwrap();
        assert_eq!(decided, b'l');
        let mut all = String::new();
        Prefixed::new(bytes, near).read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "hello world");
    }

    #[tokio::test]
    async fn peers_that_do_not_say_what_they_want_are_told_apart() {
        let undecided = |_: &[u8]| None::<()>;
        let mut bytes = BytesMut::new();
        let (mut near, far) = tokio::io::duplex(64);
        let late = read_first(&mut near, &mut bytes, Duration::from_millis(10), undecided).await;
        assert!(matches!(late, Err(FirstError::Late(_))));
        drop(far);
        assert!(matches!(read_first(&mut near, &mut bytes, LONG, undecided).await, Err(FirstError::Silent)));
        bytes.extend(b"x");
        assert!(matches!(read_first(&mut near, &mut bytes, LONG, undecided).await, Err(FirstError::Cut)));
        bytes.resize(MAX_FIRST, 0);
        assert!(matches!(read_first(&mut near, &mut bytes, LONG, undecided).await, Err(FirstError::TooLong)));
    }
}
