use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes};

use super::queue::{Command, MARK, Queue};
use super::{FIRST_CREDIT, Side};
use crate::clock;
use crate::packet::{ConnectId, Random};

/// The largest piece sent at once: a tunnel's turn. Larger turns make the others wait longer.
const MAX_PIECE: usize = 64 * 1024;
/// What a tunnel's task may queue towards the stream.
const OUTGOING_HIGH: usize = 256 * 1024;
/// The largest credit a tunnel grows to: enough for 40 MiB/s over a way of 100 ms.
const MAX_CREDIT: u64 = 4 * 1024 * 1024;
/// How long the last bytes of a tunnel whose owner is gone may wait for a reader that takes nothing.
const FLUSH_LIMIT: Duration = Duration::from_secs(10);

/// A tunnel, as its owner holds it. Dropping it closes the tunnel after what was sent; nothing is left behind.
#[derive(Debug)]
pub(crate) struct Tunnel {
    state: Arc<State>,
    queue: Arc<Queue>,
    random: Random,
}

/// What both ends of a tunnel share.
#[derive(Debug)]
pub(crate) struct State(Mutex<Inner>);

/// Why there is no tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DialFailure {
    /// The agent says why.
    Refused(String),
    /// The agent is gone; another may be asked.
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
    /// The peer sends nothing more; what is queued is still delivered.
    ended: bool,
    /// Since when nobody takes what comes in.
    abandoned: Option<Instant>,
    outgoing: VecDeque<Bytes>,
    outgoing_bytes: usize,
    /// Nothing more will be queued.
    finished: bool,
    close_told: bool,
    /// What may still be sent; a peer that grants no credit takes everything.
    credit: Option<u64>,
    /// What the peer may send in total before it needs more credit from us.
    granted: u64,
    /// Credit to be given back for what was taken.
    owed: u64,
    scheduled: bool,
    over_mark: bool,
    /// Why the tunnel was closed from this end, for the peer.
    reason: &'static str,
    waker: Option<Waker>,
}

/// What a tunnel sends in its turn.
#[derive(Debug, Default)]
pub(super) struct Turn {
    pub(super) connect_id: ConnectId,
    pub(super) credit: Option<u64>,
    pub(super) data: Option<Bytes>,
    pub(super) close: Option<Close>,
    /// There is more for another turn.
    pub(super) again: bool,
}

#[derive(Debug)]
pub(super) struct Close {
    /// The peer has to be told.
    pub(super) tell: bool,
    /// Nothing is to come from the peer that anybody waits for.
    pub(super) over: bool,
    pub(super) reason: &'static str,
}

/// How a tunnel took data from its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Well,
    /// The reader is behind, and the peer cannot be told.
    OverMark,
}

// === impl Tunnel ===

impl Tunnel {
    /// A tunnel to be dialed by the peer. `credit` is what the peer grants each tunnel, if it does.
    pub(crate) fn dialing(queue: &Arc<Queue>, random: Random, address: String, credit: Option<u64>) -> Self {
        let state = Arc::new(State::new(Phase::Dialing, 0, credit));
        queue.command(Command::Dial { random, address, tunnel: Arc::clone(&state) });
        if queue.is_closed() {
            state.fail(DialFailure::LinkLost);
        }
        Self { state, queue: Arc::clone(queue), random }
    }

    /// A tunnel that this end dials. Nothing is sent on it before the peer knows of it: [`State::announced`].
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

    /// The next bytes from the peer; none after the end.
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

    /// Waits until the peer has sent something or has ended.
    pub(crate) fn poll_incoming(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.state.lock();
        if inner.ended || !inner.incoming.is_empty() {
            return Poll::Ready(());
        }
        inner.wait(cx);
        Poll::Pending
    }

    /// Waits until the peer has ended, whether or not everything it sent was taken.
    pub(crate) fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.state.lock();
        if inner.ended {
            return Poll::Ready(());
        }
        inner.wait(cx);
        Poll::Pending
    }

    /// Waits until there is room to send. False when nothing can be sent any more.
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

    /// Queues bytes for the peer. Ask [`Tunnel::poll_room`] first.
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

    /// Closes this end after what was sent.
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

    /// The peer has dialed. False when nobody waits for it any more.
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

    /// The peer was told of the tunnel. True when it has something to send already, or its end.
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

    /// The peer sends nothing more.
    pub(crate) fn end(&self) {
        let mut inner = self.lock();
        inner.ended = true;
        inner.wake();
    }

    /// The peer has closed: it sends nothing more, and takes nothing more.
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

    /// Whether it waits for a reader, of either end.
    pub(super) fn is_stalled(&self) -> bool {
        let inner = self.lock();
        inner.over_mark || inner.credit == Some(0) && !inner.outgoing.is_empty()
    }

    /// Closes the tunnel from the middle: its reader is too slow.
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

    /// Adds to the credit. Whether the tunnel has something to send now, and was not scheduled for it.
    pub(super) fn add_credit(&self, bytes: u64) -> bool {
        let mut inner = self.lock();
        inner.credit = inner.credit.map(|credit| credit.saturating_add(bytes));
        inner.may_send() && !std::mem::replace(&mut inner.scheduled, true)
    }

    /// Gives up on the last bytes of a tunnel whose owner is long gone. True when it has to be scheduled.
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

    /// What the tunnel sends next.
    pub(super) fn turn(&self, side: Side) -> Turn {
        let mut inner = self.lock();
        let mut turn = Turn { connect_id: inner.connect_id, ..Turn::default() };
        if inner.credit.is_some() && inner.owed * 2 >= inner.granted && !inner.finished {
            turn.credit = Some(inner.grant());
        }
        if inner.may_send() {
            let data = inner.next_piece();
            turn.data = Some(data);
            // What moves is not given up.
            inner.abandoned = inner.abandoned.map(|_| clock::now());
        }
        if inner.outgoing.is_empty() && inner.finished {
            let told = std::mem::replace(&mut inner.close_told, true);
            // An agent answers even a server that asked for the end; a server does not ask for what has happened.
            let tell = !told && (side == Side::Agent || !inner.ended || !inner.reason.is_empty());
            let over = side == Side::Agent || inner.ended || inner.abandoned.is_some();
            if over && !inner.ended && inner.credit.is_some() {
                // The agent sends what it has before it closes; without credit it would wait for a reader that is gone.
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

    /// A reader that keeps up is granted more each time, so that distance does not slow it down.
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
