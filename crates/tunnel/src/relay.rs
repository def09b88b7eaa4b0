//! Copies bytes between a socket and a tunnel in both directions, until either ends.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};
use landfall_net::metrics::Histogram;
use tokio::io::AsyncWriteExt as _;
use tokio::time::Sleep;

use crate::mux::Tunnel;
use crate::socket::Peer;
use crate::transport::poll_read;

/// Time for which remaining data may wait for a stalled reader after the other end has closed.
const LINGER: Duration = Duration::from_secs(5);
/// Interval for checking whether a client is still connected while its endpoint is stalled.
const HANG_UP_LOOK: Duration = Duration::from_secs(10);
/// Maximum number of pieces in one write.
const MAX_SLICES: usize = 8;
/// Rounds of one poll before other tasks run.
const MAX_ROUNDS: usize = 16;

/// The end of the tunnel at this socket, which determines the meaning of end of stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Socket {
    /// A client that has sent everything may still read the rest of the response.
    Client,
    Endpoint,
}

struct Relay<'a, S> {
    kind: Socket,
    /// Time that writes waited.
    write_times: Option<&'a Histogram>,
    /// Time since which the socket accepts no data.
    blocked: Option<Instant>,
    socket: &'a mut S,
    tunnel: &'a Tunnel,
    /// Received from the tunnel, not yet written.
    unwritten: VecDeque<Bytes>,
    /// The socket has reached end of stream.
    read_ended: bool,
    /// The tunnel has ended.
    tunnel_ended: bool,
    unflushed: bool,
    /// Starts after one side has ended; every write restarts it.
    linger: Option<Pin<Box<Sleep>>>,
    /// Runs while the tunnel accepts no more data from a client, because reads then do not detect its disconnection.
    no_room: Option<Pin<Box<Sleep>>>,
}

/// Relays until both ends have finished. The caller drops the tunnel, which closes it.
pub(crate) async fn relay<S: Peer>(
    kind: Socket,
    socket: &mut S,
    tunnel: &Tunnel,
    write_times: Option<&Histogram>,
) {
    let mut relay = Relay {
        write_times,
        blocked: None,
        kind,
        socket,
        tunnel,
        unwritten: VecDeque::new(),
        read_ended: false,
        tunnel_ended: false,
        unflushed: false,
        linger: None,
        no_room: None,
    };
    poll_fn(|cx| relay.poll(cx)).await;
    tunnel.finish();
    if !socket.closes_well() {
        // Only the end of the stream remains to be sent; the peer may have disconnected.
        let _ = tokio::time::timeout(LINGER, socket.shutdown()).await;
    }
}

// === impl Relay ===

impl<S: Peer> Relay<'_, S> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..MAX_ROUNDS {
            let up = self.poll_up(cx);
            let down = self.poll_down(cx);
            if self.is_over() {
                return Poll::Ready(());
            }
            if up.is_pending() && down.is_pending() {
                // The end must be detected even behind bytes that the socket does not accept.
                if self.tunnel.poll_ended(cx).is_ready() || self.read_ended {
                    let linger = self.linger.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
                    return linger.as_mut().poll(cx);
                }
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Returns whether the relay is complete. Either end closes the tunnel, but data in flight is delivered first.
    fn is_over(&self) -> bool {
        let delivered = self.unwritten.is_empty() && !self.unflushed;
        delivered && (self.tunnel_ended || self.read_ended && self.kind == Socket::Endpoint)
    }

    /// Moves one piece from the socket to the tunnel.
    fn poll_up(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.read_ended || self.tunnel_ended {
            return Poll::Pending;
        }
        match self.tunnel.poll_room(cx) {
            Poll::Ready(true) => self.no_room = None,
            Poll::Ready(false) => return Poll::Pending,
            Poll::Pending => return self.poll_hang_up(cx),
        }
        match ready!(poll_read(self.socket, cx)) {
            Ok(bytes) if !bytes.is_empty() => self.tunnel.send(bytes),
            // For the other end, a failed socket is the same as an ended one.
            _ => {
                self.read_ended = true;
                self.tunnel.finish();
            }
        }
        Poll::Ready(())
    }

    /// Detects that a client disconnected while its endpoint is stalled. The tunnel then ends without the remaining
    /// data, which has not progressed for a long time.
    fn poll_hang_up(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.kind == Socket::Endpoint {
            return Poll::Pending;
        }
        let timer = self.no_room.get_or_insert_with(|| Box::pin(tokio::time::sleep(HANG_UP_LOOK)));
        ready!(timer.as_mut().poll(cx));
        if self.socket.has_hung_up() {
            self.read_ended = true;
            self.tunnel_ended = true;
        }
        self.no_room = None;
        Poll::Ready(())
    }

    /// Moves data from the tunnel to the socket, as much as one write accepts.
    fn poll_down(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.unwritten.len() < MAX_SLICES && !self.tunnel_ended {
            match self.tunnel.poll_receive(cx) {
                Poll::Ready(Some(bytes)) => self.unwritten.push_back(bytes),
                Poll::Ready(None) => self.tunnel_ended = true,
                Poll::Pending => break,
            }
        }
        if self.unwritten.is_empty() {
            if self.unflushed {
                // A failed flush reappears at the next write or at the end.
                let _ = ready!(Pin::new(&mut *self.socket).poll_flush(cx));
                self.unflushed = false;
            }
            return Poll::Pending;
        }
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        for (slot, bytes) in slices.iter_mut().zip(&self.unwritten) {
            *slot = IoSlice::new(bytes);
        }
        let count = self.unwritten.len().min(MAX_SLICES);
        let Poll::Ready(written) = Pin::new(&mut *self.socket).poll_write_vectored(cx, &slices[..count])
        else {
            if self.write_times.is_some() {
                self.blocked.get_or_insert_with(Instant::now);
            }
            return Poll::Pending;
        };
        if let Some(times) = self.write_times {
            // The clock is read only if a write had to wait.
            times.observe(self.blocked.take().map_or(Duration::ZERO, |since| since.elapsed()));
        }
        match written {
            Ok(written) if written > 0 => self.advance(written),
            _ => {
                // The socket accepts no more data, so the rest is dropped.
                self.unwritten.clear();
                self.unflushed = false;
                self.tunnel_ended = true;
                self.read_ended = true;
                self.tunnel.finish();
            }
        }
        Poll::Ready(())
    }

    fn advance(&mut self, mut written: usize) {
        self.unflushed = true;
        if let Some(linger) = &mut self.linger {
            linger.as_mut().reset(tokio::time::Instant::now() + LINGER);
        }
        while let Some(first) = self.unwritten.front_mut() {
            if written < first.len() {
                first.advance(written);
                return;
            }
            written -= first.len();
            self.unwritten.pop_front();
        }
    }
}
