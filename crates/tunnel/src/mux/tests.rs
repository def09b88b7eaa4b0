use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::queue::MARK;
use super::*;
use crate::grpc;
use crate::packet::{ConnectId, Packet};
use landfall_http2::{Connection, Event, Limits, Role};

/// One end of the stream.
struct End {
    connection: Connection,
    mux: Mux,
    queue: Arc<Queue>,
    /// Packets that did not concern a tunnel.
    seen: Vec<Packet>,
}

/// A server and an agent with an in-memory connection.
struct Ends {
    server: End,
    agent: End,
    credit: Option<u64>,
    last_id: ConnectId,
    now: Instant,
}

fn moved(from: &mut End, to: &mut End, now: Instant) -> bool {
    from.mux.pump(&mut from.connection);
    from.connection.flush();
    let mut wire = BytesMut::new();
    let output = from.connection.output();
    while !output.is_empty() {
        let mut slices = [std::io::IoSlice::new(&[]); 8];
        let count = output.slices(&mut slices);
        let before = wire.len();
        for slice in &slices[..count] {
            wire.extend_from_slice(slice);
        }
        output.advance(wire.len() - before);
    }
    let any = !wire.is_empty();
    while let Some(event) = to.connection.receive(&mut wire, now).unwrap() {
        if let Event::Data { bytes, .. } = event {
            to.mux.push(&mut to.connection, bytes);
            while let Some(packet) = to.mux.next(now).unwrap() {
                to.seen.push(packet);
            }
        }
    }
    any
}

fn received(tunnel: &Tunnel) -> Vec<Bytes> {
    let mut cx = Context::from_waker(Waker::noop());
    let mut all = Vec::new();
    while let Poll::Ready(Some(bytes)) = tunnel.poll_receive(&mut cx) {
        all.push(bytes);
    }
    all
}

fn length(pieces: &[Bytes]) -> usize {
    pieces.iter().map(Bytes::len).sum()
}

fn has_ended(tunnel: &Tunnel) -> bool {
    tunnel.poll_receive(&mut Context::from_waker(Waker::noop())) == Poll::Ready(None)
}

fn has_room(tunnel: &Tunnel) -> bool {
    tunnel.poll_room(&mut Context::from_waker(Waker::noop())) == Poll::Ready(true)
}

impl End {
    fn new(role: Role, side: Side) -> Self {
        let queue = Arc::new(Queue::default());
        let limits = Limits { stream_window: 1 << 20, connection_window: 1 << 20, ..Limits::default() };
        let (connection, mux) =
            (Connection::new(role, limits), Mux::new(side, 1, Arc::clone(&queue), Arc::default()));
        Self { connection, mux, queue, seen: Vec::new() }
    }
}

impl Ends {
    fn new(credit: Option<u64>) -> Self {
        let mut ends = Self {
            server: End::new(Role::Server, Side::Server),
            agent: End::new(Role::Client, Side::Agent),
            credit,
            last_id: 0,
            now: Instant::now(),
        };
        ends.agent.connection.open(&grpc::request("http", "x", "/AgentService/Connect")).unwrap();
        ends.settle();
        ends.server.connection.respond(1, &grpc::response(), false);
        ends.settle();
        ends
    }

    /// Delivers everything that can arrive.
    fn settle(&mut self) {
        loop {
            let up = moved(&mut self.agent, &mut self.server, self.now);
            let down = moved(&mut self.server, &mut self.agent, self.now);
            if !up && !down {
                return;
            }
        }
    }

    /// Opens a tunnel and returns its two ends: the server's and the agent's.
    fn tunnel(&mut self) -> (Tunnel, Tunnel) {
        self.last_id += 1;
        let (id, random) = (self.last_id, self.last_id + 1000);
        let near = Tunnel::dialing(&self.server.queue, random, "a:1".to_owned(), self.credit);
        let Some(Command::Dial { tunnel, .. }) = self.server.queue.next_command() else { panic!("a dial") };
        let far = Tunnel::answering(&self.agent.queue, random, id, self.credit);
        self.agent.mux.announce(random, id, Arc::clone(far.state()));
        assert!(tunnel.opened(id));
        self.server.mux.add(id, tunnel);
        self.settle();
        (near, far)
    }
}

#[test]
fn a_tunnel_whose_reader_stalls_stops_at_its_credit_and_others_go_on() {
    let mut ends = Ends::new(Some(FIRST_CREDIT));
    let ((stalled, stalled_source), (near, far)) = (ends.tunnel(), ends.tunnel());
    let mut sent = 0;
    while has_room(&stalled_source) {
        stalled_source.send(Bytes::from(vec![1; 50_000]));
        sent += 50_000;
        ends.settle();
    }
    let waiting = u64::try_from(sent).unwrap();
    assert!(waiting > FIRST_CREDIT && waiting < 3 * FIRST_CREDIT, "{waiting} bytes went nowhere");
    for _ in 0..100 {
        far.send(Bytes::from(vec![2; 30_000]));
        ends.settle();
        assert_eq!(length(&received(&near)), 30_000);
    }
    // Once its reader resumes, the tunnel delivers everything to its last byte.
    let mut got = 0;
    for _ in 0..20 {
        got += length(&received(&stalled));
        ends.settle();
    }
    assert_eq!(got, sent);
}

#[test]
fn a_reader_that_keeps_up_is_granted_more() {
    let mut ends = Ends::new(Some(FIRST_CREDIT));
    let (near, far) = ends.tunnel();
    for _ in 0..200 {
        far.send(Bytes::from(vec![0; 64 * 1024]));
        ends.settle();
        received(&near);
        ends.settle();
    }
    let mut burst = 0;
    while has_room(&far) {
        far.send(Bytes::from(vec![0; 64 * 1024]));
        burst += 64 * 1024;
        ends.settle();
    }
    assert!(burst > 2 * 1024 * 1024, "{burst}");
}

#[test]
fn without_credit_a_stalled_tunnel_is_closed_alone_and_with_a_reason() {
    let mut ends = Ends::new(None);
    let ((_near, far), (other_near, other_far)) = (ends.tunnel(), ends.tunnel());
    // The agent does not support credit: it sends until its stream is paused.
    let mut sent = 0;
    while sent < 3 * MARK && has_room(&far) {
        far.send(Bytes::from(vec![1; 64 * 1024]));
        sent += 64 * 1024;
        ends.settle();
    }
    assert!(sent > MARK && sent < 2 * MARK, "{sent}");
    other_far.send(Bytes::from_static(b"held back"));
    ends.settle();
    assert_eq!(length(&received(&other_near)), 0);

    ends.now += Duration::from_secs(2);
    let now = ends.now;
    ends.server.mux.tick(&mut ends.server.connection, now);
    ends.settle();
    assert_eq!(length(&received(&other_near)), 9, "the others go on");
    assert!(has_ended(&far), "the agent is told to close");
    drop(far);
    ends.settle();
    assert_eq!((ends.server.mux.tunnels(), ends.agent.mux.tunnels()), (1, 1));
}

#[test]
fn a_slow_reader_that_recovers_in_time_is_not_closed() {
    let mut ends = Ends::new(None);
    let (near, far) = ends.tunnel();
    let mut sent = 0;
    while has_room(&far) {
        far.send(Bytes::from(vec![1; 64 * 1024]));
        sent += 64 * 1024;
        ends.settle();
    }
    let mut got = length(&received(&near));
    ends.now += Duration::from_secs(2);
    let now = ends.now;
    ends.server.mux.tick(&mut ends.server.connection, now);
    for _ in 0..50 {
        ends.settle();
        got += length(&received(&near));
    }
    assert_eq!(got, sent);
    assert!(!has_ended(&near));
}

#[test]
fn everything_sent_arrives_before_the_end_from_either_side() {
    for credit in [None, Some(FIRST_CREDIT)] {
        let mut ends = Ends::new(credit);
        let (near, far) = ends.tunnel();
        near.send(Bytes::from(vec![1; 200_000]));
        drop(near);
        ends.settle();
        assert_eq!(length(&received(&far)), 200_000);
        assert!(has_ended(&far));
        drop(far);
        ends.settle();

        let (near, far) = ends.tunnel();
        far.send(Bytes::from(vec![2; 200_000]));
        drop(far);
        ends.settle();
        assert_eq!(length(&received(&near)), 200_000);
        assert!(has_ended(&near));
        drop(near);
        ends.settle();
        assert_eq!((ends.server.mux.tunnels(), ends.agent.mux.tunnels()), (0, 0));
    }
}

#[test]
fn bytes_for_a_tunnel_that_is_gone_are_answered_once() {
    let mut ends = Ends::new(None);
    for _ in 0..5 {
        ends.server.mux.send(Packet::Data { connect_id: 99, data: Bytes::from_static(b"x") });
    }
    ends.settle();
    // The server does not know the tunnel of this response. Both ends forget the tunnel and must not echo without end.
    assert_eq!((ends.server.mux.tunnels(), ends.agent.mux.tunnels()), (0, 0));
    assert!(ends.server.seen.is_empty());
}

#[test]
fn the_end_of_the_stream_ends_its_tunnels() {
    let mut ends = Ends::new(Some(FIRST_CREDIT));
    let (near, far) = ends.tunnel();
    far.send(Bytes::from_static(b"last words"));
    ends.settle();
    ends.server.queue.close();
    ends.server.mux.end();
    assert_eq!(length(&received(&near)), 10);
    assert!(has_ended(&near));
    assert!(!has_room(&near));
    let late = Tunnel::dialing(&ends.server.queue, 5, "a:1".to_owned(), None);
    let opened = late.poll_open(&mut Context::from_waker(Waker::noop()));
    assert_eq!(opened, Poll::Ready(Err(DialFailure::LinkLost)));
}

#[test]
fn last_bytes_that_nobody_reads_are_given_up_in_the_end() {
    let mut ends = Ends::new(Some(FIRST_CREDIT));
    let (near, far) = ends.tunnel();
    while has_room(&near) {
        near.send(Bytes::from(vec![1; 64 * 1024]));
        ends.settle();
    }
    drop(near);
    ends.settle();
    assert_eq!(ends.server.mux.tunnels(), 1, "there are bytes left to deliver");
    ends.now += Duration::from_secs(60);
    let now = ends.now;
    ends.server.mux.tick(&mut ends.server.connection, now);
    ends.settle();
    assert_eq!(ends.server.mux.tunnels(), 0);
    drop(far);
    ends.settle();
    assert_eq!(ends.agent.mux.tunnels(), 0);
}

#[test]
fn a_tunnel_without_credit_is_gone_once_its_reader_is() {
    let mut ends = Ends::new(Some(FIRST_CREDIT));
    let (near, far) = ends.tunnel();
    while has_room(&far) {
        far.send(Bytes::from(vec![1; 64 * 1024]));
        ends.settle();
    }
    drop(near);
    ends.settle();
    assert!(has_ended(&far));
    drop(far);
    ends.settle();
    assert_eq!((ends.server.mux.tunnels(), ends.agent.mux.tunnels()), (0, 0));
}

/// The next step of a test.
#[derive(Clone, Debug)]
enum Step {
    Open,
    Send { tunnel: usize, near: bool, length: usize },
    Read { tunnel: usize, near: bool },
    Drop { tunnel: usize, near: bool },
    Settle,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        Just(Step::Open),
        (0_usize..6, any::<bool>(), 1_usize..90_000).prop_map(|(tunnel, near, length)| Step::Send {
            tunnel,
            near,
            length
        }),
        (0_usize..6, any::<bool>()).prop_map(|(tunnel, near)| Step::Read { tunnel, near }),
        (0_usize..6, any::<bool>()).prop_map(|(tunnel, near)| Step::Drop { tunnel, near }),
        Just(Step::Settle),
    ]
}

proptest! {
    /// Tests invariants under random steps: bytes arrive in order, tunnels do not mix, and no state remains.
    #[test]
    fn tunnels_do_not_disturb_each_other(
        steps in proptest::collection::vec(any_step(), 1..80),
        credit in prop_oneof![Just(None), Just(Some(FIRST_CREDIT))],
    ) {
        let mut ends = Ends::new(credit);
        let mut tunnels: Vec<[Option<Tunnel>; 2]> = Vec::new();
        for step in steps {
            match step {
                Step::Open if tunnels.len() < 6 => {
                    let (near, far) = ends.tunnel();
                    tunnels.push([Some(near), Some(far)]);
                }
                Step::Open => {}
                Step::Send { tunnel, near, length } => {
                    let end = tunnels.get(tunnel).and_then(|pair| pair[usize::from(near)].as_ref());
                    if let Some(end) = end.filter(|end| has_room(end)) {
                        end.send(Bytes::from(vec![u8::try_from(tunnel * 2 + usize::from(near)).unwrap(); length]));
                    }
                }
                Step::Read { tunnel, near } => {
                    if let Some(end) = tunnels.get(tunnel).and_then(|pair| pair[usize::from(near)].as_ref()) {
                        let from = u8::try_from(tunnel * 2 + usize::from(!near)).unwrap();
                        prop_assert!(received(end).iter().all(|bytes| bytes.iter().all(|byte| *byte == from)));
                    }
                }
                Step::Drop { tunnel, near } => {
                    if let Some(pair) = tunnels.get_mut(tunnel) {
                        pair[usize::from(near)] = None;
                    }
                }
                Step::Settle => ends.settle(),
            }
        }
        drop(tunnels);
        ends.settle();
        ends.now += Duration::from_secs(60);
        let now = ends.now;
        ends.server.mux.tick(&mut ends.server.connection, now);
        ends.agent.mux.tick(&mut ends.agent.connection, now);
        ends.settle();
        prop_assert_eq!((ends.server.mux.tunnels(), ends.agent.mux.tunnels()), (0, 0));
    }
}
