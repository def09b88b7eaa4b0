//! Bytes between a socket and a tunnel, both ways, until either ends.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};
use tokio::io::AsyncWriteExt as _;
use tokio::time::Sleep;

use crate::metrics::Histogram;
use crate::mux::Tunnel;
use crate::socket::Peer;
use crate::transport::poll_read;

/// How long the rest of a tunnel may wait for a reader that takes nothing, once the other end has closed.
const LINGER: Duration = Duration::from_secs(5);
/// How often it is looked whether a client is still there whose endpoint takes nothing.
const HANG_UP_LOOK: Duration = Duration::from_secs(10);
/// Pieces taken from a tunnel for one write.
const MAX_SLICES: usize = 8;
/// Rounds of one poll before other tasks have their turn.
const MAX_ROUNDS: usize = 16;

/// Which end of the tunnel the socket is; it decides what its end of stream means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Socket {
    /// A client that has sent everything may still read the rest of the answer.
    Client,
    Endpoint,
}

struct Relay<'a, S> {
    kind: Socket,
    /// How long writes waited.
    write_times: Option<&'a Histogram>,
    /// Since when the socket takes nothing.
    blocked: Option<Instant>,
    socket: &'a mut S,
    tunnel: &'a Tunnel,
    /// Taken from the tunnel, not yet written.
    unwritten: VecDeque<Bytes>,
    /// The socket gives no more.
    read_ended: bool,
    /// The tunnel gives no more.
    tunnel_ended: bool,
    unflushed: bool,
    /// Runs once one side has ended; moved on whenever something is written.
    linger: Option<Pin<Box<Sleep>>>,
    /// Runs while the tunnel takes nothing more from a client, whose end would not be seen by reading.
    no_room: Option<Pin<Box<Sleep>>>,
}

/// Relays until both ends are done. The caller drops the tunnel, which closes it.
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
        // The end of the stream is all that is left to say; a peer that is gone does not hear it.
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
                // The end has to be noticed also behind bytes that the socket does not take.
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

    /// Either end closes the tunnel, but what was on its way is delivered first.
    fn is_over(&self) -> bool {
        let delivered = self.unwritten.is_empty() && !self.unflushed;
        delivered && (self.tunnel_ended || self.read_ended && self.kind == Socket::Endpoint)
    }

    /// From the socket to the tunnel: one piece.
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
            // A broken socket and an ended one are the same to the other end.
            _ => {
                self.read_ended = true;
                self.tunnel.finish();
            }
        }
        Poll::Ready(())
    }

    /// Notices a client that is gone although its endpoint has not taken all it sent. The tunnel then ends without the
    /// rest, for which nothing has been done in a long time.
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

    /// From the tunnel to the socket: as much as one write takes.
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
                // A failed flush shows again at the next write or at the end.
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
            // The clock is only asked when there was something to wait for.
            times.observe(self.blocked.take().map_or(Duration::ZERO, |since| since.elapsed()));
        }
        match written {
            Ok(written) if written > 0 => self.advance(written),
            _ => {
                // Nobody reads any more: the rest has nowhere to go.
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
