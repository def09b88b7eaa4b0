//! The stream to one server, and the tunnels on it.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::time::Instant;

use landfall_model::chain;

use super::endpoint;
use super::status::Metrics;
use crate::grpc;
use crate::mux::{Command, Mux, Queue, Side, State, Tunnel};
use crate::packet::{ConnectId, Packet, Random};
use crate::socket::Network;
use crate::transport::Driven;
use landfall_http2::{Connection, ErrorCode, Event, StreamId};

/// Pending dials for one server. A landfall server requests fewer.
const MAX_DIALS: usize = 8192;

pub(super) struct Link<N> {
    network: N,
    mux: Mux,
    queue: Arc<Queue>,
    /// Credit that the server grants each tunnel; `None` for upstream servers.
    credit: Option<u64>,
    /// Pending dials, by the server's dial ID.
    dialing: HashMap<Random, Arc<State>>,
    last_connect_id: ConnectId,
    metrics: Arc<Metrics>,
    /// Called when the server announces that it leaves, so that the agent immediately looks for another.
    leave: Option<Box<dyn FnOnce() + Send>>,
}

/// Reason for the normal end of a link.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The server ended the stream, or requested the end.
    ServerLeft(String),
    /// This agent was stopped.
    Stopped,
    Garbled(String),
}

// === impl Link ===

impl<N: Network> Link<N> {
    pub(super) fn new(
        network: N,
        stream: StreamId,
        queue: Arc<Queue>,
        credit: Option<u64>,
        metrics: Arc<Metrics>,
        leave: Box<dyn FnOnce() + Send>,
    ) -> Self {
        let mux = Mux::new(Side::Agent, stream, Arc::clone(&queue), Arc::clone(&metrics.packets))
            .counting(&metrics.traffic);
        Self {
            network,
            mux,
            queue,
            credit,
            dialing: HashMap::new(),
            last_connect_id: 0,
            metrics,
            leave: Some(leave),
        }
    }

    /// Ends all tunnels after the server is gone.
    pub(super) fn end(&mut self) {
        self.queue.close();
        for (_, tunnel) in self.dialing.drain() {
            tunnel.end();
        }
        self.metrics.tunnels.fetch_sub(self.mux.tunnels(), Ordering::Relaxed);
        self.mux.end();
    }

    fn on_packet(&mut self, packet: Packet) {
        match packet {
            Packet::DialRequest { address, random, .. } => self.dial(address, random),
            // Upstream's agent completes a canceled dial; ending it frees the socket immediately.
            Packet::CloseDial { random } => {
                if let Some(tunnel) = self.dialing.remove(&random) {
                    tunnel.end();
                }
            }
            // Servers send no other packets; unknown kinds must be ignored.
            _ => {}
        }
    }

    fn dial(&mut self, address: String, random: Random) {
        if self.dialing.len() >= MAX_DIALS || self.dialing.contains_key(&random) {
            let error = "too many dials under way".to_owned();
            return self.mux.send(Packet::DialResponse { error, connect_id: 0, random });
        }
        self.last_connect_id += 1;
        let connect_id = self.last_connect_id;
        let tunnel = Tunnel::answering(&self.queue, random, connect_id, self.credit);
        self.dialing.insert(random, Arc::clone(tunnel.state()));
        let dial = endpoint::Dial { queue: Arc::clone(&self.queue), random, connect_id, address, tunnel };
        tokio::spawn(endpoint::serve(dial, self.network.clone(), Arc::clone(&self.metrics)));
    }

    fn on_command(&mut self, command: Command) -> ControlFlow<End> {
        match command {
            Command::Dialed { random, connect_id, error } => {
                // The dial was canceled in the meantime; its task ends by itself.
                let Some(tunnel) = self.dialing.remove(&random) else { return ControlFlow::Continue(()) };
                match error {
                    None => self.mux.announce(random, connect_id, tunnel),
                    Some(error) => self.mux.send(Packet::DialResponse { error, connect_id: 0, random }),
                }
            }
            Command::Drain => self.mux.send(Packet::Drain),
            Command::Stop => return ControlFlow::Break(End::Stopped),
            Command::Dial { .. } | Command::Abandon { .. } | Command::GoAway => {}
        }
        ControlFlow::Continue(())
    }

    fn count(&self, before: usize) {
        let now = self.mux.tunnels();
        if now >= before {
            self.metrics.tunnels.fetch_add(now - before, Ordering::Relaxed);
        } else {
            self.metrics.tunnels.fetch_sub(before - now, Ordering::Relaxed);
        }
    }
}

impl<N: Network> Driven for Link<N> {
    type End = End;
    const NEEDS_TICKS: bool = true;

    fn on_event(&mut self, connection: &mut Connection, event: Event, now: Instant) -> ControlFlow<End> {
        match event {
            Event::Data { bytes, end, .. } => {
                let before = self.mux.tunnels();
                self.mux.push(connection, bytes);
                loop {
                    match self.mux.next(now) {
                        Ok(Some(packet)) => self.on_packet(packet),
                        Ok(None) => break,
                        Err(error) => return ControlFlow::Break(End::Garbled(chain(&error).to_string())),
                    }
                }
                self.count(before);
                if end {
                    return ControlFlow::Break(End::ServerLeft("end of stream".to_owned()));
                }
            }
            Event::Headers { headers, end: true, .. } => {
                let reason = grpc::failure(&headers).unwrap_or_else(|| "end of stream".to_owned());
                return ControlFlow::Break(End::ServerLeft(reason));
            }
            Event::Headers { .. } => {}
            Event::Reset { code, .. } => return ControlFlow::Break(End::ServerLeft(code.to_string())),
            // Open tunnels continue; the stream ends with its last tunnel, or when the server ends it.
            Event::GoAway { last, code } if code == ErrorCode::NO_ERROR && last >= self.mux.stream() => {
                if let Some(leave) = self.leave.take() {
                    leave();
                }
            }
            Event::GoAway { code, .. } => {
                return ControlFlow::Break(End::ServerLeft(format!("GOAWAY {code}")));
            }
        }
        ControlFlow::Continue(())
    }

    fn pump(&mut self, connection: &mut Connection, cx: &mut Context<'_>) -> ControlFlow<End> {
        let before = self.mux.tunnels();
        self.queue.register(cx.waker());
        while let Some(command) = self.queue.next_command() {
            self.on_command(command)?;
        }
        self.mux.pump(connection);
        self.count(before);
        if self.leave.is_none() && self.mux.tunnels() == 0 && self.dialing.is_empty() {
            return ControlFlow::Break(End::ServerLeft("it said that it would".to_owned()));
        }
        ControlFlow::Continue(())
    }

    fn tick(&mut self, connection: &mut Connection, now: Instant) -> ControlFlow<End> {
        self.mux.tick(connection, now);
        ControlFlow::Continue(())
    }
}
