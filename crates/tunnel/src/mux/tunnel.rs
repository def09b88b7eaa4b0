use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};

use super::queue::{Command, MARK, Queue};
use super::{FIRST_CREDIT, Side};
use crate::clock;
use crate::packet::{ConnectId, Random};

/// Maximum size of a piece of data, which is a tunnel's turn. Larger turns delay the other tunnels.
const MAX_PIECE: usize = 64 * 1024;
/// Bytes that a tunnel's task may queue for the stream.
const OUTGOING_HIGH: usize = 256 * 1024;
/// Maximum credit of a tunnel: sufficient for 40 MiB/s at a round-trip time of 100 ms.
const MAX_CREDIT: u64 = 4 * 1024 * 1024;
/// Time for which the last bytes of a tunnel without an owner may wait for a stalled reader.
const FLUSH_LIMIT: Duration = Duration::from_secs(10);

/// A tunnel in the hands of its owner. Dropping it closes the tunnel after the queued data, and leaves no state.
#[derive(Debug)]
pub(crate) struct Tunnel {
    state: Arc<State>,
    queue: Arc<Queue>,
    random: Random,
}

/// The state that both ends of a tunnel share.
#[derive(Debug)]
pub(crate) struct State(Mutex<Inner>);

/// Reason for a failed dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DialFailure {
    /// The agent's reason.
    Refused(String),
    /// The agent is gone; a dial through another may succeed.
    LinkLost,
}

#[derive(Debug)]
enum Phase {
    Dialing,
    Open,
    Failed(DialFailure),
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts; nearly every combination occurs")]
struct Inner {
    phase: Phase,
    connect_id: ConnectId,
    incoming: VecDeque<Bytes>,
    incoming_bytes: usize,
    /// The peer sends nothing more; queued data is still delivered.
    ended: bool,
    /// Time since which incoming data has no reader.
    abandoned: Option<Instant>,
    outgoing: VecDeque<Bytes>,
    outgoing_bytes: usize,
    /// No more data will be queued.
    finished: bool,
    close_told: bool,
    /// Remaining bytes to send; `None` for a peer without credit.
    credit: Option<u64>,
    /// Bytes that the peer may have outstanding before it needs more credit.
    granted: u64,
    /// Credit to return for consumed bytes.
    owed: u64,
    scheduled: bool,
    over_mark: bool,
    /// The reason for closing the tunnel from this end, for the peer.
    reason: &'static str,
    waker: Option<Waker>,
}

/// The packets that a tunnel sends in its turn.
#[derive(Debug, Default)]
pub(super) struct Turn {
    pub(super) connect_id: ConnectId,
    pub(super) credit: Option<u64>,
    pub(super) data: Option<Bytes>,
    pub(super) close: Option<Close>,
    /// More data remains for another turn.
    pub(super) again: bool,
}

#[derive(Debug)]
pub(super) struct Close {
    /// Whether the peer must be notified.
    pub(super) tell: bool,
    /// Whether the tunnel can be removed: nothing relevant is outstanding from the peer.
    pub(super) over: bool,
    pub(super) reason: &'static str,
}

/// Result of queueing data from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Well,
    /// The reader is behind, and the peer does not support credit.
    OverMark,
}

// === impl Tunnel ===

impl Tunnel {
    /// Creates a tunnel that the peer must dial. `credit` is the credit that the peer grants each tunnel, if any.
    pub(crate) fn dialing(queue: &Arc<Queue>, random: Random, address: String, credit: Option<u64>) -> Self {
        let state = Arc::new(State::new(Phase::Dialing, 0, credit));
        queue.command(Command::Dial { random, address, tunnel: Arc::clone(&state) });
        if queue.is_closed() {
            state.fail(DialFailure::LinkLost);
        }
        Self { state, queue: Arc::clone(queue), random }
    }

    /// Creates a tunnel that this end dials. It sends nothing before the peer knows of it: [`State::announced`].
    pub(crate) fn answering(
        queue: &Arc<Queue>,
        random: Random,
        connect_id: ConnectId,
        credit: Option<u64>,
    ) -> Self {
        let state = Arc::new(State::new(Phase::Dialing, connect_id, credit));
        Self { state, queue: Arc::clone(queue), random }
    }

    pub(crate) fn state(&self) -> &Arc<State> {
        &self.state
    }

    pub(crate) fn connect_id(&self) -> ConnectId {
        self.state.lock().connect_id
    }

    /// Waits until the peer has dialed.
    pub(crate) fn poll_open(&self, cx: &mut Context<'_>) -> Poll<Result<(), DialFailure>> {
        let mut inner = self.state.lock();
        match &inner.phase {
            Phase::Open => Poll::Ready(Ok(())),
            Phase::Failed(failure) => Poll::Ready(Err(failure.clone())),
            Phase::Dialing => {
                inner.wait(cx);
                Poll::Pending
            }
        }
    }

    /// Returns the next bytes from the peer; `None` after the end.
    pub(crate) fn poll_receive(&self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut inner = self.state.lock();
        let Some(bytes) = inner.incoming.pop_front() else {
            if inner.ended {
                return Poll::Ready(None);
            }
            inner.wait(cx);
            return Poll::Pending;
        };
        inner.incoming_bytes -= bytes.len();
        let recovered = inner.over_mark && inner.incoming_bytes < MARK / 2;
        if recovered {
            inner.over_mark = false;
        }
        if inner.credit.is_some() {
            inner.owed += bytes.len() as u64;
            if inner.owed * 2 >= inner.granted && !inner.ended {
                self.schedule(&mut inner);
            }
        }
        drop(inner);
        if recovered {
            self.queue.wake();
        }
        Poll::Ready(Some(bytes))
    }

    /// Waits until the peer has sent data or has ended.
    pub(crate) fn poll_incoming(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.state.lock();
        if inner.ended || !inner.incoming.is_empty() {
            return Poll::Ready(());
        }
        inner.wait(cx);
        Poll::Pending
    }

    /// Waits until the peer has ended, even if some of its data is unread.
    pub(crate) fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.state.lock();
        if inner.ended {
            return Poll::Ready(());
        }
        inner.wait(cx);
        Poll::Pending
    }

    /// Waits until there is capacity to send. Returns `false` after the end.
    pub(crate) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut inner = self.state.lock();
        if inner.finished || inner.ended {
            return Poll::Ready(false);
        }
        if inner.outgoing_bytes < OUTGOING_HIGH {
            return Poll::Ready(true);
        }
        inner.wait(cx);
        Poll::Pending
    }

    /// Queues bytes for the peer. Callers wait for [`Tunnel::poll_room`] first.
    pub(crate) fn send(&self, bytes: Bytes) {
        let mut inner = self.state.lock();
        if bytes.is_empty() || inner.finished || inner.ended {
            return;
        }
        inner.outgoing_bytes += bytes.len();
        inner.outgoing.push_back(bytes);
        if inner.may_send() {
            self.schedule(&mut inner);
        }
    }

    /// Closes this end after the queued data.
    pub(crate) fn finish(&self) {
        let mut inner = self.state.lock();
        inner.finished = true;
        self.schedule(&mut inner);
    }

    fn schedule(&self, inner: &mut Inner) {
        if matches!(inner.phase, Phase::Open) && !inner.scheduled {
            inner.scheduled = true;
            self.queue.push_tunnel(Arc::clone(&self.state));
        }
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        let mut inner = self.state.lock();
        inner.finished = true;
        inner.abandoned = Some(clock::now());
        inner.incoming.clear();
        inner.incoming_bytes = 0;
        inner.waker = None;
        let recovered = std::mem::take(&mut inner.over_mark);
        if matches!(inner.phase, Phase::Dialing) {
            drop(inner);
            self.queue.command(Command::Abandon { random: self.random });
            return;
        }
        self.schedule(&mut inner);
        drop(inner);
        if recovered {
            self.queue.wake();
        }
    }
}

// === impl State ===

impl State {
    fn new(phase: Phase, connect_id: ConnectId, credit: Option<u64>) -> Self {
        Self(Mutex::new(Inner {
            phase,
            connect_id,
            incoming: VecDeque::new(),
            incoming_bytes: 0,
            ended: false,
            abandoned: None,
            outgoing: VecDeque::new(),
            outgoing_bytes: 0,
            finished: false,
            close_told: false,
            credit,
            granted: FIRST_CREDIT,
            owed: 0,
            scheduled: false,
            over_mark: false,
            reason: "",
            waker: None,
        }))
    }

    /// Marks the tunnel as dialed. Returns `false` if its owner is gone.
    pub(crate) fn opened(&self, connect_id: ConnectId) -> bool {
        let mut inner = self.lock();
        if inner.abandoned.is_some() {
            return false;
        }
        inner.phase = Phase::Open;
        inner.connect_id = connect_id;
        inner.wake();
        true
    }

    /// Marks the tunnel as announced to the peer. Returns `true` if it already has data or its end to send.
    pub(super) fn announced(&self) -> bool {
        let mut inner = self.lock();
        inner.phase = Phase::Open;
        (inner.may_send() || inner.finished) && !std::mem::replace(&mut inner.scheduled, true)
    }

    pub(crate) fn fail(&self, failure: DialFailure) {
        let mut inner = self.lock();
        inner.phase = Phase::Failed(failure);
        inner.wake();
    }

    /// Records that the peer sends nothing more.
    pub(crate) fn end(&self) {
        let mut inner = self.lock();
        inner.ended = true;
        inner.wake();
    }

    /// Records that the peer has closed: it neither sends nor receives anything more.
    pub(super) fn close(&self) {
        let mut inner = self.lock();
        inner.outgoing.clear();
        inner.outgoing_bytes = 0;
        inner.ended = true;
        inner.wake();
    }

    pub(super) fn take(&self, bytes: Bytes) -> Taken {
        let mut inner = self.lock();
        if inner.abandoned.is_some() || inner.ended || bytes.is_empty() {
            return Taken::Well;
        }
        inner.incoming_bytes += bytes.len();
        inner.incoming.push_back(bytes);
        inner.wake();
        let limit =
            if inner.credit.is_some() { usize::try_from(inner.granted).unwrap_or(MARK) } else { MARK };
        if inner.incoming_bytes <= limit || inner.over_mark {
            return Taken::Well;
        }
        inner.over_mark = true;
        Taken::OverMark
    }

    pub(super) fn is_over_mark(&self) -> bool {
        self.lock().over_mark
    }

    /// Returns whether the tunnel waits for a reader, at either end.
    pub(super) fn is_stalled(&self) -> bool {
        let inner = self.lock();
        inner.over_mark || inner.credit == Some(0) && !inner.outgoing.is_empty()
    }

    /// Closes the tunnel from the stream's task, because its reader is too slow.
    pub(super) fn break_off(&self, reason: &'static str) {
        let mut inner = self.lock();
        inner.over_mark = false;
        inner.incoming.clear();
        inner.incoming_bytes = 0;
        inner.outgoing.clear();
        inner.outgoing_bytes = 0;
        inner.finished = true;
        inner.ended = true;
        inner.reason = reason;
        inner.wake();
    }

    /// Adds credit. Returns whether the tunnel has data to send now and was not yet scheduled.
    pub(super) fn add_credit(&self, bytes: u64) -> bool {
        let mut inner = self.lock();
        inner.credit = inner.credit.map(|credit| credit.saturating_add(bytes));
        inner.may_send() && !std::mem::replace(&mut inner.scheduled, true)
    }

    /// Expires the last bytes of a tunnel without an owner. Returns `true` if the tunnel must be scheduled.
    pub(super) fn expire(&self, now: Instant) -> bool {
        let mut inner = self.lock();
        let late = inner.abandoned.is_some_and(|since| now.saturating_duration_since(since) > FLUSH_LIMIT);
        if !late {
            return false;
        }
        inner.outgoing.clear();
        inner.outgoing_bytes = 0;
        !std::mem::replace(&mut inner.scheduled, true)
    }

    /// Returns the next packets of the tunnel.
    pub(super) fn turn(&self, side: Side) -> Turn {
        let mut inner = self.lock();
        let mut turn = Turn { connect_id: inner.connect_id, ..Turn::default() };
        if inner.credit.is_some() && inner.owed * 2 >= inner.granted && !inner.finished {
            turn.credit = Some(inner.grant());
        }
        if inner.may_send() {
            let data = inner.next_piece();
            turn.data = Some(data);
            // Progress restarts the timeout.
            inner.abandoned = inner.abandoned.map(|_| clock::now());
        }
        if inner.outgoing.is_empty() && inner.finished {
            let told = std::mem::replace(&mut inner.close_told, true);
            // An agent answers even a server that requested the close; a server does not request a close that has
            // happened.
            let tell = !told && (side == Side::Agent || !inner.ended || !inner.reason.is_empty());
            let over = side == Side::Agent || inner.ended || inner.abandoned.is_some();
            if over && !inner.ended && inner.credit.is_some() {
                // The agent sends its remaining data before it closes. Without credit it would wait for a reader that
                // is gone.
                turn.credit = Some(MAX_CREDIT);
            }
            turn.close = Some(Close { tell, over, reason: inner.reason });
        }
        turn.again = turn.close.is_none() && inner.may_send();
        inner.scheduled = turn.again;
        turn
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Inner ===

impl Inner {
    fn may_send(&self) -> bool {
        !self.outgoing.is_empty() && self.credit != Some(0)
    }

    fn next_piece(&mut self) -> Bytes {
        let limit = self
            .credit
            .map_or(MAX_PIECE, |credit| MAX_PIECE.min(usize::try_from(credit).unwrap_or(MAX_PIECE)));
        let piece = match self.outgoing.front_mut() {
            Some(first) if first.len() > limit => {
                let piece = first.slice(..limit);
                first.advance(limit);
                piece
            }
            _ => self.outgoing.pop_front().unwrap_or_default(),
        };
        self.credit = self.credit.map(|credit| credit.saturating_sub(piece.len() as u64));
        let full = self.outgoing_bytes >= OUTGOING_HIGH;
        self.outgoing_bytes -= piece.len();
        if full && self.outgoing_bytes < OUTGOING_HIGH {
            self.wake();
        }
        piece
    }

    /// Returns the credit to grant. It grows for a reader that keeps up, so that latency does not limit its throughput.
    fn grant(&mut self) -> u64 {
        let mut grant = std::mem::take(&mut self.owed);
        if self.incoming.is_empty() && self.granted < MAX_CREDIT {
            grant += self.granted;
            self.granted *= 2;
        }
        grant
    }

    fn wait(&mut self, cx: &Context<'_>) {
        if !self.waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
