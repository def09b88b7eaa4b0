//! HTTP/2 on a socket: one future that reads, writes and handles timers of a connection.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::time::Sleep;
use tokio_util::io::poll_read_buf;

use crate::clock;
use landfall_http2::{Connection, Event, Http2Error};

/// Encrypted bytes that a busy connection may buffer for a single write. The default limit of rustls is 64 KiB.
pub(crate) const TLS_WRITE: usize = 256 * 1024;

/// Size of a read. Larger reads gain little and occupy more memory.
const READ_SIZE: usize = 128 * 1024;
/// Minimum free capacity of a buffer for a read.
const MIN_ROOM: usize = 32 * 1024;
/// Smaller pieces are copied out of the read buffer, so that a few bytes do not keep a large buffer allocated.
const COPY_BELOW: usize = 16 * 1024;
/// Unwritten bytes above which the connection stops reading, because its peer does not read the responses.
const MAX_BACKLOG: usize = 1024 * 1024;
/// Rounds of one poll before other tasks run.
const MAX_ROUNDS: usize = 32;
/// Maximum number of slices per write.
const MAX_SLICES: usize = 16;
/// Interval of a connection's timer.
const TICK: Duration = Duration::from_millis(500);
/// Timeout to write the final frames.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Read buffers kept per thread: as many as a few busy tunnels have in flight.
const MAX_SPARE: usize = 16;

thread_local! {
    /// Read buffers shared between tasks, so that idle connections hold none. A buffer returns while pieces of it are
    /// still in use, and is reused once they are dropped.
    static SPARE: RefCell<VecDeque<BytesMut>> = const { RefCell::new(VecDeque::new()) };
}

/// A handler for the events of a connection.
pub(crate) trait Driven {
    /// Reason for the end of driving.
    type End;

    fn on_event(&mut self, connection: &mut Connection, event: Event, now: Instant)
    -> ControlFlow<Self::End>;

    /// Sends queued data. Called after events, after a wake-up, and when there is capacity again.
    fn pump(&mut self, connection: &mut Connection, cx: &mut Context<'_>) -> ControlFlow<Self::End>;

    /// Called periodically if [`Driven::NEEDS_TICKS`].
    fn tick(&mut self, connection: &mut Connection, now: Instant) -> ControlFlow<Self::End>;

    /// Whether `tick` is needed beyond keepalive.
    const NEEDS_TICKS: bool;
}

/// A connection on its socket.
#[derive(Debug)]
pub(crate) struct Transport<S> {
    socket: S,
    pub(crate) connection: Connection,
    input: BytesMut,
    /// The socket may still buffer written bytes, as TLS does.
    unflushed: bool,
    timer: Option<Pin<Box<Sleep>>>,
}

/// A socket below TLS. rustls reads 4 KiB at a time; this reads all that is available, into memory that is held only
/// while it contains data.
#[derive(Debug)]
pub(crate) struct ReadAhead<S> {
    socket: S,
    ahead: BytesMut,
}

/// Reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    #[error("the peer closed the connection")]
    Closed,
    #[error("the connection broke")]
    Io(#[source] io::Error),
    #[error("the peer broke the protocol, or we gave it up")]
    Http2(#[source] Http2Error),
}

/// Reads once, into memory that is held only while it contains data.
pub(crate) fn poll_read<S: AsyncRead + Unpin>(
    socket: &mut S,
    cx: &mut Context<'_>,
) -> Poll<io::Result<Bytes>> {
    let mut buffer = spare(MIN_ROOM);
    let read = poll_read_buf(Pin::new(socket), cx, &mut buffer);
    let bytes = match &read {
        Poll::Ready(Ok(length)) if *length >= COPY_BELOW => buffer.split().freeze(),
        Poll::Ready(Ok(_)) => Bytes::copy_from_slice(&buffer.split()),
        _ => Bytes::new(),
    };
    give_back(buffer);
    Poll::Ready(ready!(read).map(|_| bytes))
}

fn spare(room: usize) -> BytesMut {
    SPARE.with_borrow_mut(|spares| {
        let size = READ_SIZE.max(room);
        let usable = |buffer: &mut BytesMut| buffer.capacity() >= room || buffer.try_reclaim(size);
        let found = (0..spares.len()).find(|at| spares.get_mut(*at).is_some_and(usable));
        found.and_then(|at| spares.remove(at)).unwrap_or_else(|| BytesMut::with_capacity(size))
    })
}

fn give_back(mut buffer: BytesMut) {
    buffer.clear();
    // Reclaims the full capacity, unless pieces of the buffer are still in use.
    let _ = buffer.try_reclaim(READ_SIZE);
    SPARE.with_borrow_mut(|spares| {
        if spares.len() == MAX_SPARE {
            spares.pop_front();
        }
        spares.push_back(buffer);
    });
}

// === impl ReadAhead ===

impl<S> ReadAhead<S> {
    pub(crate) fn new(socket: S) -> Self {
        Self { socket, ahead: BytesMut::new() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadAhead<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            let mut buffer = spare(MIN_ROOM);
            let read = poll_read_buf(Pin::new(&mut self.socket), cx, &mut buffer);
            if buffer.is_empty() {
                give_back(buffer);
                return read.map_ok(|_| ());
            }
            self.ahead = buffer;
        }
        let length = self.ahead.len().min(into.remaining());
        into.put_slice(&self.ahead[..length]);
        self.ahead.advance(length);
        if self.ahead.is_empty() {
            give_back(std::mem::take(&mut self.ahead));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadAhead<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

// === impl Transport ===

impl<S: AsyncRead + AsyncWrite + Unpin> Transport<S> {
    pub(crate) fn new(socket: S, connection: Connection) -> Self {
        Self { socket, connection, input: BytesMut::new(), unflushed: false, timer: None }
    }

    /// Drives the connection until it is lost or `driven` ends it.
    pub(crate) async fn drive<D: Driven>(&mut self, driven: &mut D) -> Result<D::End, Lost> {
        self.timer = None;
        let outcome = poll_fn(|cx| self.poll_drive(driven, cx)).await;
        if matches!(outcome, Err(Lost::Http2(_))) {
            self.say_last_word().await;
        }
        outcome
    }

    /// Writes the remaining output, such as the reason for the end, and closes. Errors are ignored.
    pub(crate) async fn say_last_word(&mut self) {
        let _ = tokio::time::timeout(LAST_WORD, async {
            poll_fn(|cx| self.poll_write(cx)).await?;
            self.socket.shutdown().await
        })
        .await;
    }

    fn poll_drive<D: Driven>(&mut self, driven: &mut D, cx: &mut Context<'_>) -> Poll<Result<D::End, Lost>> {
        for _ in 0..MAX_ROUNDS {
            let mut progress = false;
            if self.connection.output().len() < MAX_BACKLOG {
                match self.poll_fill(cx) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(Lost::Closed)),
                    Poll::Ready(Ok(_)) => progress = true,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(Lost::Io(error))),
                    Poll::Pending => {}
                }
            }
            if let ControlFlow::Break(end) = self.take_events(driven)? {
                return Poll::Ready(Ok(end));
            }
            if let ControlFlow::Break(end) = driven.pump(&mut self.connection, cx) {
                return Poll::Ready(Ok(end));
            }
            let before = self.connection.output().len();
            if let Poll::Ready(Err(error)) = self.poll_write(cx) {
                return Poll::Ready(Err(Lost::Io(error)));
            }
            progress |= self.connection.output().len() < before;
            if let Poll::Ready(()) = self.poll_timer(cx) {
                let now = clock::now();
                let due = self.connection.tick(now).map_err(Lost::Http2)?;
                if let ControlFlow::Break(end) = driven.tick(&mut self.connection, now) {
                    return Poll::Ready(Ok(end));
                }
                self.set_timer(D::NEEDS_TICKS, now, due);
                progress = true;
            }
            if !progress {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.input.is_empty() {
            self.input = spare(MIN_ROOM);
        } else if self.input.capacity() - self.input.len() < MIN_ROOM {
            // The start of a frame moves to another buffer, and the old one is reused.
            let mut fresh = spare(self.input.len() + MIN_ROOM);
            fresh.extend_from_slice(&self.input);
            give_back(std::mem::replace(&mut self.input, fresh));
        }
        let read = poll_read_buf(Pin::new(&mut self.socket), cx, &mut self.input);
        if self.input.is_empty() {
            give_back(std::mem::take(&mut self.input));
        }
        read
    }

    fn take_events<D: Driven>(&mut self, driven: &mut D) -> Result<ControlFlow<D::End>, Lost> {
        if self.input.is_empty() {
            return Ok(ControlFlow::Continue(()));
        }
        let now = clock::now();
        while let Some(event) = self.connection.receive(&mut self.input, now).map_err(Lost::Http2)? {
            if let ControlFlow::Break(end) = driven.on_event(&mut self.connection, event, now) {
                return Ok(ControlFlow::Break(end));
            }
        }
        if self.input.is_empty() {
            give_back(std::mem::take(&mut self.input));
        }
        Ok(ControlFlow::Continue(()))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.connection.flush();
        loop {
            let output = self.connection.output();
            if output.is_empty() {
                break;
            }
            let mut slices = [io::IoSlice::new(&[]); MAX_SLICES];
            let count = output.slices(&mut slices);
            let written = match Pin::new(&mut self.socket).poll_write_vectored(cx, &slices[..count]) {
                Poll::Ready(written) => written?,
                Poll::Pending => return Poll::Pending,
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unflushed = true;
            self.connection.output().advance(written);
            self.connection.flush();
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.socket).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.timer {
            Some(timer) => timer.as_mut().poll(cx),
            // The first poll starts the timer.
            None => Poll::Ready(()),
        }
    }

    fn set_timer(&mut self, ticks: bool, now: Instant, keepalive: Option<Instant>) {
        /// Effectively never.
        const IDLE: Duration = Duration::from_secs(24 * 3600);
        let until = match (ticks, keepalive) {
            (true, Some(due)) => due.min(now + TICK),
            (true, None) => now + TICK,
            (false, Some(due)) => due,
            (false, None) => now + IDLE,
        };
        match &mut self.timer {
            Some(timer) => timer.as_mut().reset(until.into()),
            None => self.timer = Some(Box::pin(tokio::time::sleep_until(until.into()))),
        }
    }
}
