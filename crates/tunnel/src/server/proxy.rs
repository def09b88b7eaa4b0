//! The gRPC frontend: `ProxyService/Proxy`. A stream contains one tunnel; a connection may have many streams.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use landfall_model::chain;
use landfall_net::metrics::{GaugeGuard, Timer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::Shared;
use super::dial::{DialError, dial};
use crate::grpc::{self, Messages, Status};
use crate::metrics::{Broke, Segment};
use crate::mux::Tunnel;
use crate::packet::{ConnectId, Packet, Random};
use crate::transport::{Driven, Transport};
use landfall_http2::{Connection, ErrorCode, Event, Headers, Limits, Role, StreamId};

const PATH: &[u8] = b"/ProxyService/Proxy";
/// kube-apiserver currently opens one stream per connection, and plans to open many.
const MAX_STREAMS: u32 = 100_000;
/// Pieces that one tunnel sends before the next.
const TURN: usize = 4;

type Dialing = Pin<Box<dyn Future<Output = Result<Tunnel, DialError>> + Send>>;

struct Proxy {
    shared: Arc<Shared>,
    streams: BTreeMap<StreamId, Stream>,
    /// Streams with a pending wake-up.
    woken: Arc<Woken>,
    /// Streams with more data than the connection accepts.
    waiting: BTreeSet<StreamId>,
}

struct Stream {
    messages: Messages,
    phase: Phase,
    /// Bytes not released to the client's window until its tunnel has capacity.
    held: usize,
    full: Option<GaugeGuard>,
    /// Time since which the client accepts no data.
    blocked: Option<Instant>,
    waker: Waker,
    shared: Arc<Shared>,
    _counted: GaugeGuard,
}

enum Phase {
    Idle,
    Dialing { random: Random, dialing: Dialing },
    Open { random: Random, connect_id: ConnectId, tunnel: Tunnel, _timed: Timer },
    Done,
}

#[derive(Default)]
struct Woken(Mutex<WokenStreams>);

#[derive(Default)]
struct WokenStreams {
    streams: BTreeSet<StreamId>,
    waker: Option<Waker>,
}

struct StreamWaker {
    stream: StreamId,
    woken: Arc<Woken>,
}

/// Reason for aborting a stream.
struct Broken(&'static str);

pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(shared: Arc<Shared>, socket: S) {
    let limits = Limits {
        streams: MAX_STREAMS,
        keepalive: Some(shared.frontend_keepalive).filter(|time| !time.is_zero()),
        ..Limits::default()
    };
    let mut transport = Transport::new(socket, Connection::new(Role::Server, limits));
    let mut proxy =
        Proxy { shared, streams: BTreeMap::new(), woken: Arc::default(), waiting: BTreeSet::new() };
    // Returns when the connection ends; dropping the streams closes their tunnels.
    let Err(error) = transport.drive(&mut proxy).await;
    tracing::debug!(error = %chain(&error), "frontend left");
}

// === impl Proxy ===

impl Proxy {
    fn open(&mut self, connection: &mut Connection, id: StreamId, headers: &Headers) {
        if headers.get(":path") != Some(PATH) {
            return connection.respond(
                id,
                &grpc::refusal(Status::Unimplemented, "unknown service or method"),
                true,
            );
        }
        connection.respond(id, &grpc::response(), false);
        let waker = Waker::from(Arc::new(StreamWaker { stream: id, woken: Arc::clone(&self.woken) }));
        let stream = Stream {
            messages: Messages::default(),
            phase: Phase::Idle,
            held: 0,
            full: None,
            blocked: None,
            waker,
            shared: Arc::clone(&self.shared),
            _counted: self.shared.metrics.proxy_streams.guard(),
        };
        self.streams.insert(id, stream);
    }

    fn on_data(&mut self, connection: &mut Connection, id: StreamId, bytes: Bytes) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.has_room() {
            connection.release(id, bytes.len());
        } else {
            stream.held += bytes.len();
            let full = &self.shared.metrics.full_frontends;
            stream.full.get_or_insert_with(|| full.guard());
        }
        stream.messages.push(bytes);
        if let Err(Broken(reason)) = stream.take_packets(connection, id) {
            tracing::debug!(reason, "frontend's stream broken off");
            self.streams.remove(&id);
            self.shared.metrics.packets.broke(Segment::FromClient, Broke::Internal);
            connection.reset(id, ErrorCode::PROTOCOL_ERROR);
            return;
        }
        self.advance(connection, id);
    }

    /// Advances a stream as far as possible.
    fn advance(&mut self, connection: &mut Connection, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.advance(connection, id).is_pending() {
            self.waiting.insert(id);
        } else {
            self.waiting.remove(&id);
        }
    }
}

impl Driven for Proxy {
    type End = std::convert::Infallible;
    const NEEDS_TICKS: bool = false;

    fn on_event(&mut self, connection: &mut Connection, event: Event, _: Instant) -> ControlFlow<Self::End> {
        match event {
            Event::Headers { stream, headers, end } => {
                if !self.streams.contains_key(&stream) {
                    self.open(connection, stream, &headers);
                }
                if end {
                    self.streams.remove(&stream);
                    connection.finish(stream, Some(grpc::trailers(Status::Ok, "")));
                }
            }
            Event::Data { stream, bytes, end } => {
                self.on_data(connection, stream, bytes);
                if end {
                    self.streams.remove(&stream);
                    connection.finish(stream, Some(grpc::trailers(Status::Ok, "")));
                }
            }
            Event::Reset { stream, .. } => {
                self.shared.metrics.packets.broke(Segment::FromClient, Broke::Canceled);
                self.streams.remove(&stream);
            }
            Event::GoAway { .. } => {}
        }
        ControlFlow::Continue(())
    }

    fn pump(&mut self, connection: &mut Connection, cx: &mut Context<'_>) -> ControlFlow<Self::End> {
        for id in self.woken.take(cx) {
            self.advance(connection, id);
        }
        for id in std::mem::take(&mut self.waiting) {
            self.advance(connection, id);
        }
        ControlFlow::Continue(())
    }

    fn tick(&mut self, _: &mut Connection, _: Instant) -> ControlFlow<Self::End> {
        ControlFlow::Continue(())
    }
}

// === impl Stream ===

impl Stream {
    fn has_room(&self) -> bool {
        match &self.phase {
            Phase::Open { tunnel, .. } => tunnel.poll_room(&mut Context::from_waker(&self.waker)).is_ready(),
            _ => true,
        }
    }

    fn take_packets(&mut self, connection: &mut Connection, id: StreamId) -> Result<(), Broken> {
        while let Some(message) = self.messages.next().map_err(|_| Broken("its messages cannot be read"))? {
            let packet = Packet::decode(message).map_err(|_| Broken("its packets cannot be read"))?;
            self.shared.metrics.packets.count(Segment::FromClient, &packet);
            match (packet, &self.phase) {
                (Packet::DialRequest { address, random, .. }, Phase::Idle) => {
                    let shared = Arc::clone(&self.shared);
                    let dialing: Dialing = Box::pin(async move { dial(&shared, &address).await });
                    self.phase = Phase::Dialing { random, dialing };
                }
                (Packet::DialRequest { .. }, _) => return Err(Broken("a second dial on one stream")),
                (Packet::Data { connect_id, data }, Phase::Open { connect_id: own, tunnel, .. }) => {
                    if connect_id != *own && connect_id != 0 {
                        return Err(Broken("data of another tunnel"));
                    }
                    tunnel.send(data);
                }
                (Packet::CloseRequest { connect_id }, _) => {
                    // Dropping the tunnel closes it after the queued data, for which the client need not wait.
                    self.phase = Phase::Done;
                    let closed = Packet::CloseResponse { error: String::new(), connect_id };
                    write(&self.shared, connection, id, closed);
                }
                // Also valid after the dial, because the response and this packet may have crossed.
                (
                    Packet::CloseDial { random },
                    Phase::Dialing { random: own, .. } | Phase::Open { random: own, .. },
                ) if random == *own => {
                    self.phase = Phase::Done;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Advances the tunnel. Pending while the connection accepts no more data.
    fn advance(&mut self, connection: &mut Connection, id: StreamId) -> Poll<()> {
        let mut cx = Context::from_waker(&self.waker);
        if let Phase::Dialing { random, dialing } = &mut self.phase {
            let random = *random;
            let Poll::Ready(dialed) = dialing.as_mut().poll(&mut cx) else { return Poll::Ready(()) };
            let (connect_id, error) = match &dialed {
                Ok(tunnel) => (tunnel.connect_id(), String::new()),
                Err(error) => (0, error.to_string()),
            };
            write(&self.shared, connection, id, Packet::DialResponse { error, connect_id, random });
            connection.flush();
            self.phase = dialed.map_or(Phase::Done, |tunnel| {
                let timed = self.shared.metrics.connection_duration.timer();
                Phase::Open { random, connect_id, tunnel, _timed: timed }
            });
        }
        let Phase::Open { connect_id, tunnel, .. } = &self.phase else { return Poll::Ready(()) };
        if self.held > 0 && tunnel.poll_room(&mut cx).is_ready() {
            connection.release(id, std::mem::take(&mut self.held));
            self.full = None;
        }
        for _ in 0..TURN {
            if !connection.is_writable(id) {
                self.blocked.get_or_insert_with(Instant::now);
                return Poll::Pending;
            }
            match tunnel.poll_receive(&mut cx) {
                Poll::Ready(Some(data)) => {
                    let waited = self.blocked.take().map_or(Duration::ZERO, |since| since.elapsed());
                    self.shared.metrics.frontend_write.observe(waited);
                    write(&self.shared, connection, id, Packet::Data { connect_id: *connect_id, data });
                    connection.flush();
                }
                Poll::Ready(None) => {
                    let closed = Packet::CloseResponse { error: String::new(), connect_id: *connect_id };
                    write(&self.shared, connection, id, closed);
                    self.phase = Phase::Done;
                    return Poll::Ready(());
                }
                Poll::Pending => {
                    self.blocked = None;
                    return Poll::Ready(());
                }
            }
        }
        Poll::Pending
    }
}

fn write(shared: &Shared, connection: &mut Connection, id: StreamId, packet: Packet) {
    shared.metrics.packets.count(Segment::ToClient, &packet);
    connection.send(id, packet.encode());
}

// === impl Woken ===

impl Woken {
    fn take(&self, cx: &Context<'_>) -> BTreeSet<StreamId> {
        let mut woken = self.lock();
        if !woken.waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            woken.waker = Some(cx.waker().clone());
        }
        std::mem::take(&mut woken.streams)
    }

    fn lock(&self) -> MutexGuard<'_, WokenStreams> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl StreamWaker ===

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let waker = {
            let mut woken = self.woken.lock();
            woken.streams.insert(self.stream);
            woken.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
