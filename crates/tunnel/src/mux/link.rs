use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::queue::Queue;
use super::tunnel::{State, Taken};
use crate::grpc::{GrpcError, Messages};
use crate::metrics::{Packets, Segment, Traffic};
use crate::packet::{ConnectId, Packet, PacketError, Random};
use landfall_http2::{Connection, StreamId};

/// Maximum number of remembered closed tunnels, whose remaining packets are dropped silently.
const MAX_CLOSED: usize = 4096;
/// Time for which the stream of an upstream peer is paused for a slow reader, before that reader's tunnel is closed.
const PATIENCE: Duration = Duration::from_secs(1);
const TOO_SLOW: &str = "the reader of this tunnel is too slow";

/// The end of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Server,
    Agent,
}

/// The tunnels of one stream.
#[derive(Debug)]
pub(crate) struct Mux {
    side: Side,
    stream: StreamId,
    queue: Arc<Queue>,
    packets: Arc<Packets>,
    traffic: Arc<Traffic>,
    stalled: usize,
    tunnels: HashMap<ConnectId, Arc<State>>,
    closed: Closed,
    /// Sent before any data.
    control: VecDeque<Packet>,
    messages: Messages,
    /// Tunnels whose reader is behind, and since when.
    behind: Vec<(Arc<State>, ConnectId, Instant)>,
    /// Bytes not released to the peer's window while a reader is behind.
    held: usize,
}

/// The most recently closed tunnels.
#[derive(Debug, Default)]
struct Closed {
    known: HashSet<ConnectId>,
    order: VecDeque<ConnectId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StreamError {
    #[error("the peer's messages cannot be read")]
    Grpc(#[source] GrpcError),
    #[error("the peer's packets cannot be read")]
    Packet(#[source] PacketError),
}

// === impl Mux ===

impl Mux {
    pub(crate) fn new(side: Side, stream: StreamId, queue: Arc<Queue>, packets: Arc<Packets>) -> Self {
        Self {
            side,
            stream,
            queue,
            packets,
            traffic: Arc::default(),
            stalled: 0,
            tunnels: HashMap::new(),
            closed: Closed::default(),
            control: VecDeque::new(),
            messages: Messages::default(),
            behind: Vec::new(),
            held: 0,
        }
    }

    #[must_use]
    pub(crate) fn counting(self, traffic: &Arc<Traffic>) -> Self {
        Self { traffic: Arc::clone(traffic), ..self }
    }

    pub(crate) fn stream(&self) -> StreamId {
        self.stream
    }

    pub(crate) fn tunnels(&self) -> usize {
        self.tunnels.len()
    }

    pub(crate) fn add(&mut self, connect_id: ConnectId, tunnel: Arc<State>) {
        self.tunnels.insert(connect_id, tunnel);
    }

    /// Announces a tunnel to the server; from now on it may send.
    pub(crate) fn announce(&mut self, random: Random, connect_id: ConnectId, tunnel: Arc<State>) {
        self.send(Packet::DialResponse { error: String::new(), connect_id, random });
        if tunnel.announced() {
            self.queue.push_tunnel(Arc::clone(&tunnel));
        }
        self.add(connect_id, tunnel);
    }

    /// Closes a tunnel that the agent opened for a canceled dial.
    pub(crate) fn refuse(&mut self, connect_id: ConnectId) {
        if connect_id != 0 && self.closed.insert(connect_id) {
            self.send(Packet::CloseRequest { connect_id });
        }
    }

    pub(crate) fn send(&mut self, packet: Packet) {
        self.control.push_back(packet);
    }

    /// Adds received bytes of the stream.
    pub(crate) fn push(&mut self, connection: &mut Connection, bytes: Bytes) {
        if self.behind.is_empty() {
            connection.release(self.stream, bytes.len());
        } else {
            self.held += bytes.len();
        }
        self.messages.push(bytes);
    }

    /// Returns the next packet that does not concern an existing tunnel.
    pub(crate) fn next(&mut self, now: Instant) -> Result<Option<Packet>, StreamError> {
        while let Some(message) = self.messages.next().map_err(StreamError::Grpc)? {
            let packet = Packet::decode(message).map_err(StreamError::Packet)?;
            let segment = if self.side == Side::Server { Segment::FromAgent } else { Segment::ToAgent };
            self.packets.count(segment, &packet);
            match packet {
                Packet::Data { connect_id, data } => self.on_data(connect_id, data, now),
                Packet::CloseRequest { connect_id } => self.on_close_request(connect_id),
                Packet::CloseResponse { connect_id, .. } => self.on_close_response(connect_id),
                Packet::Credit { connect_id, bytes } => {
                    if let Some(tunnel) = self.tunnels.get(&connect_id)
                        && tunnel.add_credit(bytes)
                    {
                        self.queue.push_tunnel(Arc::clone(tunnel));
                    }
                }
                packet => return Ok(Some(packet)),
            }
        }
        Ok(None)
    }

    /// Sends queued packets and data while the connection is writable.
    pub(crate) fn pump(&mut self, connection: &mut Connection) {
        self.recover(connection);
        while connection.is_writable(self.stream) {
            if let Some(packet) = self.control.pop_front() {
                self.write(connection, packet);
                connection.flush();
                continue;
            }
            let Some(tunnel) = self.queue.next_tunnel() else { break };
            self.turn(connection, tunnel);
            connection.flush();
        }
    }

    /// Closes tunnels that did not recover in time, and expires abandoned ones.
    pub(crate) fn tick(&mut self, connection: &mut Connection, now: Instant) {
        let late = |since: Instant| now.saturating_duration_since(since) >= PATIENCE;
        for (tunnel, connect_id, _) in self.behind.extract_if(.., |(_, _, since)| late(*since)) {
            if tunnel.is_over_mark() {
                tracing::warn!(connect_id, "tunnel closed: its reader is too slow");
                tunnel.break_off(TOO_SLOW);
                self.traffic.broken_off.increment();
                self.queue.push_tunnel(tunnel);
            }
        }
        let mut stalled = 0;
        for tunnel in self.tunnels.values() {
            if tunnel.expire(now) {
                self.queue.push_tunnel(Arc::clone(tunnel));
            }
            stalled += usize::from(tunnel.is_stalled());
        }
        self.count_stalled(stalled);
        self.recover(connection);
    }

    /// Ends all tunnels after the stream is gone.
    pub(crate) fn end(&mut self) {
        self.count_stalled(0);
        for (_, tunnel) in self.tunnels.drain() {
            tunnel.close();
        }
    }

    /// Updates the number of stalled tunnels by its difference, because several links may share one counter.
    fn count_stalled(&mut self, now: usize) {
        self.traffic.stalled.fetch_add(now, Ordering::Relaxed);
        self.traffic.stalled.fetch_sub(std::mem::replace(&mut self.stalled, now), Ordering::Relaxed);
    }

    fn turn(&mut self, connection: &mut Connection, tunnel: Arc<State>) {
        let turn = tunnel.turn(self.side);
        let connect_id = turn.connect_id;
        if let Some(bytes) = turn.credit {
            self.write(connection, Packet::Credit { connect_id, bytes });
        }
        if let Some(data) = turn.data {
            self.traffic.sent.fetch_add(data.len() as u64, Ordering::Relaxed);
            self.write(connection, Packet::Data { connect_id, data });
        }
        if let Some(close) = turn.close {
            if close.tell {
                let told = match self.side {
                    Side::Server => Packet::CloseRequest { connect_id },
                    Side::Agent => Packet::CloseResponse { error: close.reason.to_owned(), connect_id },
                };
                self.write(connection, told);
            }
            if close.over && self.tunnels.remove(&connect_id).is_some() {
                self.closed.insert(connect_id);
            }
        }
        if turn.again {
            self.queue.push_tunnel(tunnel);
        }
    }

    fn write(&self, connection: &mut Connection, packet: Packet) {
        let segment = if self.side == Side::Server { Segment::ToAgent } else { Segment::FromAgent };
        self.packets.count(segment, &packet);
        connection.send(self.stream, packet.encode());
    }

    fn on_data(&mut self, connect_id: ConnectId, data: Bytes, now: Instant) {
        let Some(tunnel) = self.tunnels.get(&connect_id) else {
            // The peer gets one close packet; further data in flight is dropped.
            if connect_id != 0 && self.closed.insert(connect_id) {
                self.control.push_back(match self.side {
                    Side::Server => Packet::CloseRequest { connect_id },
                    Side::Agent => {
                        Packet::CloseResponse { error: "unrecognized connectID".to_owned(), connect_id }
                    }
                });
            }
            return;
        };
        self.traffic.received.fetch_add(data.len() as u64, Ordering::Relaxed);
        if tunnel.take(data) == Taken::OverMark {
            self.behind.push((Arc::clone(tunnel), connect_id, now));
        }
    }

    fn on_close_request(&mut self, connect_id: ConnectId) {
        if let Some(tunnel) = self.tunnels.get(&connect_id) {
            tunnel.end();
        } else {
            let error = "Unknown connectID".to_owned();
            self.control.push_back(Packet::CloseResponse { error, connect_id });
        }
    }

    fn on_close_response(&mut self, connect_id: ConnectId) {
        if let Some(tunnel) = self.tunnels.remove(&connect_id) {
            self.closed.insert(connect_id);
            tunnel.close();
        }
    }

    /// Releases the paused stream once no reader is behind.
    fn recover(&mut self, connection: &mut Connection) {
        self.behind.retain(|(tunnel, _, _)| tunnel.is_over_mark());
        if self.behind.is_empty() && self.held > 0 {
            connection.release(self.stream, std::mem::take(&mut self.held));
        }
    }
}

// === impl Closed ===

impl Closed {
    /// Returns whether the ID was new.
    fn insert(&mut self, connect_id: ConnectId) -> bool {
        let new = self.known.insert(connect_id);
        if new {
            self.order.push_back(connect_id);
            if self.order.len() > MAX_CLOSED
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
        }
        new
    }
}
