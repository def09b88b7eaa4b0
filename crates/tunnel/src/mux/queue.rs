use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::tunnel::State;
use crate::packet::{ConnectId, Random};

/// Bytes of one tunnel from an upstream peer that may wait for its reader before the peer's stream is paused.
pub(crate) const MARK: usize = 4 * 1024 * 1024;

/// Requests to the task that owns the stream. There is at most one entry per tunnel and a few per dial, both of which
/// are bounded elsewhere.
#[derive(Debug, Default)]
pub(crate) struct Queue(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    tunnels: VecDeque<Arc<State>>,
    commands: VecDeque<Command>,
    waker: Option<Waker>,
    closed: bool,
}

#[derive(Debug)]
pub(crate) enum Command {
    /// Request a tunnel from the agent.
    Dial { random: Random, address: String, tunnel: Arc<State> },
    /// Cancel a dial whose client is gone.
    Abandon { random: Random },
    /// The endpoint was dialed, or the dial failed.
    Dialed { random: Random, connect_id: ConnectId, error: Option<String> },
    /// Notify the server that this agent accepts no further tunnels.
    Drain,
    /// Notify the agent to connect to another server; open tunnels continue.
    GoAway,
    /// End the link.
    Stop,
}

// === impl Queue ===

impl Queue {
    /// Queues a tunnel that has data to send.
    pub(super) fn push_tunnel(&self, tunnel: Arc<State>) {
        self.push(|waiting| waiting.tunnels.push_back(tunnel));
    }

    pub(crate) fn command(&self, command: Command) {
        self.push(|waiting| waiting.commands.push_back(command));
    }

    pub(super) fn wake(&self) {
        self.push(|_| {});
    }

    pub(super) fn next_tunnel(&self) -> Option<Arc<State>> {
        self.lock().tunnels.pop_front()
    }

    pub(crate) fn next_command(&self) -> Option<Command> {
        self.lock().commands.pop_front()
    }

    pub(crate) fn register(&self, waker: &Waker) {
        let mut waiting = self.lock();
        if !waiting.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            waiting.waker = Some(waker.clone());
        }
    }

    /// Closes the queue and returns the commands that were not executed.
    pub(crate) fn close(&self) -> VecDeque<Command> {
        let mut waiting = self.lock();
        waiting.closed = true;
        waiting.tunnels.clear();
        std::mem::take(&mut waiting.commands)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn push(&self, add: impl FnOnce(&mut Waiting)) {
        let mut waiting = self.lock();
        if waiting.closed {
            return;
        }
        add(&mut waiting);
        let waker = waiting.waker.take();
        drop(waiting);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
