//! An agent's connection: the handshake, then its tunnels until it leaves.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::time::{Duration, Instant};

use landfall_model::chain;
use tokio::io::{AsyncRead, AsyncWrite};

use super::Shared;
use super::agents::Agent;
use crate::grpc::{self, Status};
use crate::identifiers::{Identifiers, Unknown};
use crate::metrics::{Broke, Segment};
use crate::mux::{Command, DialFailure, FIRST_CREDIT, FLOW_HEADER, Mux, Side, State};
use crate::packet::{Packet, Random};
use crate::transport::{Driven, Transport};
use landfall_http2::{Connection, ErrorCode, Event, Headers, Limits, Role, StreamId};

const PATH: &[u8] = b"/AgentService/Connect";
/// Timeout from the first byte to the call.
const GREETING_LIMIT: Duration = Duration::from_secs(10);
/// An agent opens one stream; a few more are harmless.
const MAX_STREAMS: u32 = 16;
/// Window of a landfall agent, whose data the credit of each tunnel bounds.
const OWN_WINDOW: u32 = 16 * 1024 * 1024;
/// Window of an upstream agent, which can only be slowed down as a whole.
const UPSTREAM_WINDOW: u32 = 2 * 1024 * 1024;
/// Time after which a stalled agent is considered suspect and chosen last.
const DOUBT_AFTER: Duration = Duration::from_secs(10);
/// Time after which a stalled agent is disconnected; a live one reconnects.
const STUCK_LIMIT: Duration = Duration::from_secs(60);

/// Waits for the call.
struct Greeting;

struct AgentLink {
    mux: Mux,
    agent: Arc<Agent>,
    shared: Arc<Shared>,
    pending: HashMap<Random, Arc<State>>,
    /// Whether the agent is still to be notified that this server stops.
    leaving: bool,
    /// Whether the agent accepted data since the last tick.
    moved: bool,
    stuck_since: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    Left,
    Stuck,
    Stopped,
    Garbled(String),
}

/// Serves one agent until it leaves.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(shared: Arc<Shared>, socket: S) {
    let limits = Limits {
        streams: MAX_STREAMS,
        stream_window: 65_535,
        connection_window: 65_535,
        keepalive: Some(shared.keepalive).filter(|time| !time.is_zero()),
        ..Limits::default()
    };
    let mut transport = Transport::new(socket, Connection::new(Role::Server, limits));
    let greeted = tokio::time::timeout(GREETING_LIMIT, transport.drive(&mut Greeting)).await;
    let (stream, headers) = match greeted {
        Ok(Ok(call)) => call,
        Ok(Err(error)) => {
            return tracing::debug!(error = %chain(&error), "agent left before it said who it is");
        }
        Err(_) => return tracing::debug!("agent did not say in time who it is"),
    };
    let agent = match identify(&headers) {
        Ok(agent) => Arc::new(agent),
        Err(reason) => {
            tracing::warn!(reason, "agent refused");
            transport.connection.respond(stream, &grpc::refusal(Status::Unknown, &reason), true);
            return transport.say_last_word().await;
        }
    };
    if let Some(authenticate) = &shared.authenticate {
        let token = headers.get("authorization").and_then(|value| value.strip_prefix(b"Bearer "));
        if let Err(reason) = authenticate.check(token.unwrap_or_default()).await {
            tracing::warn!(agent = agent.id, reason, "agent refused");
            transport.connection.respond(stream, &grpc::refusal(Status::Unknown, &reason), true);
            return transport.say_last_word().await;
        }
    }
    let answer = grpc::response()
        .with("serverid", &shared.server_id)
        .with("servercount", shared.server_count().to_string())
        .with(FLOW_HEADER, FIRST_CREDIT.to_string());
    transport.connection.respond(stream, &answer, false);
    let window = if agent.credit.is_some() { OWN_WINDOW } else { UPSTREAM_WINDOW };
    transport.connection.grow_windows(stream, window);

    let _counted = shared.metrics.agent_streams.guard();
    shared.agents.add(Arc::clone(&agent));
    tracing::info!(agent = agent.id, ours = agent.credit.is_some(), "agent connected");
    let mut link = AgentLink {
        mux: Mux::new(Side::Server, stream, Arc::clone(&agent.queue), Arc::clone(&shared.metrics.packets))
            .counting(&agent.traffic),
        agent: Arc::clone(&agent),
        shared: Arc::clone(&shared),
        pending: HashMap::new(),
        leaving: false,
        moved: true,
        stuck_since: None,
    };
    let outcome = transport.drive(&mut link).await;
    shared.agents.remove(&agent);
    link.end();
    let packets = &shared.metrics.packets;
    match &outcome {
        Err(_) => packets.broke(Segment::FromAgent, Broke::Unavailable),
        Ok(End::Garbled(_)) => packets.broke(Segment::FromAgent, Broke::Internal),
        Ok(End::Stuck) => packets.broke(Segment::ToAgent, Broke::Unavailable),
        Ok(End::Left | End::Stopped) => {}
    }
    match outcome {
        Ok(End::Left) => tracing::info!(agent = agent.id, "agent left"),
        Ok(End::Stopped) => {}
        Ok(end) => tracing::warn!(agent = agent.id, ?end, "agent disconnected"),
        Err(error) => tracing::info!(agent = agent.id, error = %chain(&error), "agent lost"),
    }
    transport.connection.go_away(ErrorCode::NO_ERROR, "");
    transport.say_last_word().await;
}

fn identify(headers: &Headers) -> Result<Agent, String> {
    if headers.get(":path") != Some(PATH) {
        return Err("unknown service or method".to_owned());
    }
    let text = |name: &str| -> Vec<String> {
        headers.all(name).map(|value| String::from_utf8_lossy(value).into_owned()).collect()
    };
    let [id] = &text("agentid")[..] else {
        return Err(format!("expected one agent ID in the context, got {:?}", text("agentid")));
    };
    let identifiers = text("agentidentifiers");
    if identifiers.len() > 1 {
        return Err("expected at most one set of agent identifiers".to_owned());
    }
    let identifiers = identifiers.first().map_or("", String::as_str);
    let identifiers = Identifiers::parse(identifiers, Unknown::Ignored).map_err(|error| error.to_string())?;
    Ok(Agent::new(id.clone(), identifiers, granted(headers)))
}

/// Returns the credit that a landfall peer grants each tunnel.
pub(crate) fn granted(headers: &Headers) -> Option<u64> {
    headers.get(FLOW_HEADER).and_then(|value| std::str::from_utf8(value).ok()?.parse().ok())
}

// === impl Greeting ===

impl Driven for Greeting {
    type End = (StreamId, Headers);
    const NEEDS_TICKS: bool = false;

    fn on_event(&mut self, _: &mut Connection, event: Event, _: Instant) -> ControlFlow<Self::End> {
        match event {
            Event::Headers { stream, headers, .. } => ControlFlow::Break((stream, headers)),
            _ => ControlFlow::Continue(()),
        }
    }

    fn pump(&mut self, _: &mut Connection, _: &mut Context<'_>) -> ControlFlow<Self::End> {
        ControlFlow::Continue(())
    }

    fn tick(&mut self, _: &mut Connection, _: Instant) -> ControlFlow<Self::End> {
        ControlFlow::Continue(())
    }
}

// === impl AgentLink ===

impl AgentLink {
    fn on_packet(&mut self, packet: Packet) {
        match packet {
            Packet::DialResponse { error, connect_id, random } => {
                let Some(tunnel) = self.pending.remove(&random) else {
                    // The requester is gone, so the tunnel must be closed, too.
                    self.shared.metrics.answer_unasked();
                    return self.mux.refuse(connect_id);
                };
                if !error.is_empty() {
                    tunnel.fail(DialFailure::Refused(error));
                } else if tunnel.opened(connect_id) {
                    self.mux.add(connect_id, tunnel);
                } else {
                    self.mux.refuse(connect_id);
                }
            }
            Packet::CloseDial { random } => {
                if let Some(tunnel) = self.pending.remove(&random) {
                    tunnel.fail(DialFailure::Refused("dial closed".to_owned()));
                }
            }
            Packet::Drain => {
                tracing::info!(agent = self.agent.id, "agent is draining");
                self.agent.draining.store(true, Ordering::Relaxed);
            }
            // Agents send no requests; unknown kinds must be ignored.
            _ => {}
        }
    }

    fn on_command(&mut self, command: Command) -> ControlFlow<End> {
        match command {
            Command::Dial { random, address, tunnel } => {
                self.pending.insert(random, tunnel);
                self.mux.send(Packet::DialRequest { protocol: "tcp".to_owned(), address, random });
            }
            Command::Abandon { random } => {
                if self.pending.remove(&random).is_some() {
                    self.mux.send(Packet::CloseDial { random });
                }
            }
            // Upstream's agent drops its tunnels on GOAWAY, so it gets one only at the end.
            Command::GoAway => self.leaving = self.agent.credit.is_some(),
            Command::Stop => return ControlFlow::Break(End::Stopped),
            Command::Dialed { .. } | Command::Drain => {}
        }
        ControlFlow::Continue(())
    }

    /// Fails all pending requests for this agent.
    fn end(&mut self) {
        for command in self.agent.queue.close() {
            if let Command::Dial { tunnel, .. } = command {
                tunnel.fail(DialFailure::LinkLost);
            }
        }
        for (_, tunnel) in self.pending.drain() {
            tunnel.fail(DialFailure::LinkLost);
        }
        self.mux.end();
        self.agent.tunnels.store(0, Ordering::Relaxed);
    }
}

impl Driven for AgentLink {
    type End = End;
    const NEEDS_TICKS: bool = true;

    fn on_event(&mut self, connection: &mut Connection, event: Event, now: Instant) -> ControlFlow<End> {
        match event {
            Event::Data { stream, bytes, end } if stream == self.mux.stream() => {
                self.mux.push(connection, bytes);
                loop {
                    match self.mux.next(now) {
                        Ok(Some(packet)) => self.on_packet(packet),
                        Ok(None) => break,
                        Err(error) => return ControlFlow::Break(End::Garbled(chain(&error).to_string())),
                    }
                }
                if end { ControlFlow::Break(End::Left) } else { ControlFlow::Continue(()) }
            }
            Event::Reset { stream, .. } if stream == self.mux.stream() => ControlFlow::Break(End::Left),
            Event::Headers { stream, .. } if stream != self.mux.stream() => {
                let refusal = grpc::refusal(Status::Unimplemented, "one call for each connection");
                connection.respond(stream, &refusal, true);
                ControlFlow::Continue(())
            }
            Event::Headers { end: true, .. } => ControlFlow::Break(End::Left),
            _ => ControlFlow::Continue(()),
        }
    }

    fn pump(&mut self, connection: &mut Connection, cx: &mut Context<'_>) -> ControlFlow<End> {
        self.agent.queue.register(cx.waker());
        while let Some(command) = self.agent.queue.next_command() {
            self.on_command(command)?;
        }
        if std::mem::take(&mut self.leaving) {
            connection.go_away(ErrorCode::NO_ERROR, "the server is stopping");
        }
        self.moved |= connection.is_writable(self.mux.stream());
        self.mux.pump(connection);
        self.agent.tunnels.store(self.mux.tunnels(), Ordering::Relaxed);
        ControlFlow::Continue(())
    }

    fn tick(&mut self, connection: &mut Connection, now: Instant) -> ControlFlow<End> {
        self.mux.tick(connection, now);
        if std::mem::take(&mut self.moved) || connection.is_writable(self.mux.stream()) {
            self.stuck_since = None;
            return ControlFlow::Continue(());
        }
        let stuck = now.saturating_duration_since(*self.stuck_since.get_or_insert(now));
        if stuck >= STUCK_LIMIT {
            return ControlFlow::Break(End::Stuck);
        }
        if stuck >= DOUBT_AFTER {
            self.agent.doubt();
        }
        ControlFlow::Continue(())
    }
}
