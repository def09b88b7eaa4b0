use std::time::{Duration, Instant};

use bytes::{BufMut as _, Bytes, BytesMut};
use proptest::prelude::*;

use super::frame::{self, Head};
use super::*;

/// Two connections joined by two in-memory pipes.
struct Pair {
    client: Connection,
    server: Connection,
    now: Instant,
}

fn request() -> Headers {
    Headers::new()
        .with(":method", "POST")
        .with(":scheme", "http")
        .with(":path", "/ProxyService/Proxy")
        .with(":authority", "%2Frun%2Fkonnectivity.sock")
}

fn written(connection: &mut Connection) -> BytesMut {
    connection.flush();
    let output = connection.output();
    let mut bytes = BytesMut::new();
    while !output.is_empty() {
        let mut slices = [std::io::IoSlice::new(&[]); 4];
        let count = output.slices(&mut slices);
        let before = bytes.len();
        slices[..count].iter().for_each(|slice| bytes.put_slice(slice));
        let written = bytes.len() - before;
        output.advance(written);
    }
    bytes
}

fn events(connection: &mut Connection, mut input: BytesMut, now: Instant) -> Result<Vec<Event>, Http2Error> {
    let mut events = Vec::new();
    while let Some(event) = connection.receive(&mut input, now)? {
        if let Event::Data { stream, bytes, .. } = &event {
            connection.release(*stream, bytes.len());
        }
        events.push(event);
    }
    assert!(input.is_empty(), "{} bytes of an incomplete frame are left", input.len());
    Ok(events)
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> BytesMut {
    let mut bytes = BytesMut::new();
    Head { length: payload.len(), kind, flags, stream }.write(&mut bytes);
    bytes.put_slice(payload);
    bytes
}

/// Returns a server after the connection preface.
fn greeted() -> (Connection, Instant) {
    let (mut server, now) = (Connection::new(Role::Server, Limits::default()), Instant::now());
    let mut hello = BytesMut::from(&frame::PREFACE[..]);
    hello.extend_from_slice(&frame(frame::SETTINGS, 0, 0, &[]));
    assert_eq!(events(&mut server, hello, now), Ok(vec![]));
    (server, now)
}

fn code(result: Result<Vec<Event>, Http2Error>) -> ErrorCode {
    result.expect_err("the peer broke a rule").code
}

impl Pair {
    fn new(limits: Limits) -> Self {
        let mut pair = Self {
            client: Connection::new(Role::Client, limits),
            server: Connection::new(Role::Server, limits),
            now: Instant::now(),
        };
        assert_eq!(pair.deliver_to_server(), vec![]);
        assert_eq!(pair.deliver_to_client(), vec![]);
        pair
    }

    fn deliver_to_server(&mut self) -> Vec<Event> {
        let bytes = written(&mut self.client);
        events(&mut self.server, bytes, self.now).unwrap()
    }

    fn deliver_to_client(&mut self) -> Vec<Event> {
        let bytes = written(&mut self.server);
        events(&mut self.client, bytes, self.now).unwrap()
    }
}

#[test]
fn a_stream_is_opened_answered_and_ended_with_trailers() {
    let mut pair = Pair::new(Limits::default());
    let stream = pair.client.open(&request()).unwrap();
    pair.client.send(stream, [Bytes::from_static(b"question")]);
    let expected = [
        Event::Headers { stream, headers: request(), end: false },
        Event::Data { stream, bytes: Bytes::from_static(b"question"), end: false },
    ];
    assert_eq!(pair.deliver_to_server(), expected);

    let answer = Headers::new().with(":status", "200");
    let trailers = Headers::new().with("grpc-status", "0");
    pair.server.respond(stream, &answer, false);
    pair.server.send(stream, [Bytes::from_static(b"ans"), Bytes::from_static(b"wer")]);
    pair.server.finish(stream, Some(trailers.clone()));
    let expected = [
        Event::Headers { stream, headers: answer, end: false },
        Event::Data { stream, bytes: Bytes::from_static(b"answer"), end: false },
        Event::Headers { stream, headers: trailers, end: true },
    ];
    assert_eq!(pair.deliver_to_client(), expected);

    pair.client.finish(stream, None);
    assert_eq!(pair.deliver_to_server(), [Event::Data { stream, bytes: Bytes::new(), end: true }]);
    assert_eq!((pair.client.open_streams(), pair.server.open_streams()), (0, 0));
}

/// Tests the authority of kube-apiserver's gRPC frontend over a Unix socket.
#[test]
fn a_socket_path_as_authority_is_accepted() {
    let mut pair = Pair::new(Limits::default());
    pair.client.open(&request()).unwrap();
    let seen = pair.deliver_to_server();
    assert!(
        matches!(&seen[..], [Event::Headers { headers, .. }] if headers.get(":authority") == Some(b"%2Frun%2Fkonnectivity.sock"))
    );
}

#[test]
fn data_waits_for_the_window_and_goes_on_when_it_opens() {
    let limits = Limits { stream_window: 1000, connection_window: 1 << 20, ..Limits::default() };
    let mut pair = Pair::new(limits);
    let stream = pair.client.open(&request()).unwrap();
    pair.client.send(stream, [Bytes::from(vec![7; 2500])]);
    let input = written(&mut pair.client);
    let mut input = input;
    let (mut received, now) = (0, pair.now);
    for _ in 0..10 {
        while let Some(event) = pair.server.receive(&mut input, now).unwrap() {
            if let Event::Data { bytes, .. } = event {
                received += bytes.len();
                assert!(received <= 2500);
                pair.server.release(stream, bytes.len());
            }
        }
        pair.deliver_to_client();
        input = written(&mut pair.client);
    }
    assert_eq!(received, 2500);
    assert!(pair.client.is_drained(stream));
}

#[test]
fn a_stalled_stream_does_not_hold_up_another() {
    let limits = Limits { stream_window: 1000, connection_window: 1 << 20, ..Limits::default() };
    let mut pair = Pair::new(limits);
    let (stalled, lively) = (pair.client.open(&request()).unwrap(), pair.client.open(&request()).unwrap());
    pair.client.send(stalled, [Bytes::from(vec![1; 5000])]);
    let mut input = written(&mut pair.client);
    // The data of the stalled stream is received but never released.
    while pair.server.receive(&mut input, pair.now).unwrap().is_some() {}
    let mut received = 0;
    for _ in 0..20 {
        pair.client.send(lively, [Bytes::from(vec![2; 500])]);
        let seen = pair.deliver_to_server();
        received += seen
            .iter()
            .map(|event| match event {
                Event::Data { stream, bytes, .. } if *stream == lively => bytes.len(),
                other => panic!("{other:?}"),
            })
            .sum::<usize>();
        pair.deliver_to_client();
    }
    assert_eq!(received, 10_000);
    assert!(!pair.client.is_writable(stalled));
}

#[test]
fn streams_share_the_output_fairly() {
    let limits = Limits { stream_window: 1 << 20, connection_window: 1 << 20, ..Limits::default() };
    let mut pair = Pair::new(limits);
    let streams: Vec<_> = (0..3).map(|_| pair.client.open(&request()).unwrap()).collect();
    pair.deliver_to_server();
    for stream in &streams {
        pair.client.send(*stream, [Bytes::from(vec![0; 300_000])]);
    }
    let mut order: Vec<StreamId> = Vec::new();
    for _ in 0..3 {
        order.extend(pair.deliver_to_server().iter().map(|event| match event {
            Event::Data { stream, .. } => *stream,
            other => panic!("{other:?}"),
        }));
    }
    assert_eq!(order[..3], streams[..], "one frame of each first");
}

#[test]
fn more_streams_than_allowed_are_refused_alone() {
    let mut pair = Pair::new(Limits { streams: 1, ..Limits::default() });
    pair.client.peer.max_streams = 10;
    let first = pair.client.open(&request()).unwrap();
    let second = pair.client.open(&request()).unwrap();
    assert!(matches!(pair.deliver_to_server()[..], [Event::Headers { stream, .. }] if stream == first));
    assert_eq!(pair.deliver_to_client(), [Event::Reset { stream: second, code: ErrorCode::REFUSED_STREAM }]);
}

#[test]
fn a_reset_stream_is_gone_on_both_sides_and_late_data_is_harmless() {
    let mut pair = Pair::new(Limits::default());
    let stream = pair.client.open(&request()).unwrap();
    pair.deliver_to_server();
    pair.server.reset(stream, ErrorCode::CANCEL);
    pair.client.send(stream, [Bytes::from_static(b"late")]);
    assert_eq!(pair.deliver_to_server(), []);
    assert_eq!(pair.deliver_to_client(), [Event::Reset { stream, code: ErrorCode::CANCEL }]);
    assert_eq!(pair.client.open_streams(), 0);
}

#[test]
fn a_silent_peer_is_asked_and_then_given_up() {
    let limits = Limits { keepalive: Some(Duration::from_secs(10)), ..Limits::default() };
    let mut pair = Pair::new(limits);
    let start = pair.now;
    let at = |seconds| start + Duration::from_secs(seconds);
    assert_eq!(pair.client.tick(at(0)), Ok(Some(at(10))));
    assert_eq!(pair.client.tick(at(10)), Ok(Some(at(30))));
    // A response resets the keepalive.
    pair.deliver_to_server();
    pair.deliver_to_client();
    assert_eq!(pair.client.tick(at(11)), Ok(Some(at(21))));
    assert_eq!(pair.client.tick(at(21)), Ok(Some(at(41))));
    assert!(pair.client.tick(at(41)).is_err());
}

#[test]
fn floods_end_the_connection() {
    let ping = frame(frame::PING, 0, 0, &[0; 8]);
    let settings = frame(frame::SETTINGS, 0, 0, &[]);
    let unknown = frame(0xfa, 0, 0, &[]);
    for one in [ping, settings, unknown] {
        let (mut server, now) = greeted();
        let flood = BytesMut::from(&one.repeat(2001)[..]);
        assert_eq!(code(events(&mut server, flood, now)), ErrorCode::ENHANCE_YOUR_CALM);
        assert!(server.going_away);
    }
}

#[test]
fn pings_at_a_human_pace_are_fine_for_ever() {
    let (mut server, now) = greeted();
    for second in 0..5000 {
        let later = now + Duration::from_secs(second);
        assert_eq!(events(&mut server, frame(frame::PING, 0, 0, &[0; 8]), later), Ok(vec![]));
        written(&mut server);
    }
}

/// grpc-go pings for each DATA frame to measure the bandwidth-delay product.
#[test]
fn pings_that_keep_pace_with_data_are_no_flood() {
    let (mut server, now) = greeted();
    let open = frame(frame::HEADERS, frame::END_HEADERS, 1, &[0x83]);
    assert_eq!(events(&mut server, open, now).map(|events| events.len()), Ok(1));
    for _ in 0..5000 {
        let mut both = frame(frame::DATA, 0, 1, b"x");
        both.extend_from_slice(&frame(frame::PING, 0, 0, &[0; 8]));
        assert_eq!(events(&mut server, both, now).map(|events| events.len()), Ok(1));
        written(&mut server);
    }
    let flood = BytesMut::from(&frame(frame::PING, 0, 0, &[0; 8]).repeat(2002)[..]);
    assert_eq!(code(events(&mut server, flood, now)), ErrorCode::ENHANCE_YOUR_CALM);
}

#[test]
fn rapid_resets_end_the_connection() {
    let (mut server, now) = greeted();
    let mut outcome = Ok(vec![]);
    for number in 0..3000 {
        let stream = number * 2 + 1;
        let mut both = frame(frame::HEADERS, frame::END_HEADERS, stream, &[0x83]);
        both.extend_from_slice(&frame(frame::RST_STREAM, 0, stream, &[0; 4]));
        outcome = events(&mut server, both, now);
        if outcome.is_err() {
            break;
        }
    }
    assert_eq!(code(outcome), ErrorCode::ENHANCE_YOUR_CALM);
}

#[test]
fn an_endless_header_block_is_refused() {
    let (mut server, now) = greeted();
    let mut block = frame(frame::HEADERS, 0, 1, &[]);
    (0..9).for_each(|_| block.extend_from_slice(&frame(frame::CONTINUATION, 0, 1, &[])));
    assert_eq!(code(events(&mut server, block, now)), ErrorCode::ENHANCE_YOUR_CALM);

    let (mut server, now) = greeted();
    let mut block = frame(frame::HEADERS, 0, 1, &[0; 16_000]);
    (0..2).for_each(|_| block.extend_from_slice(&frame(frame::CONTINUATION, 0, 1, &[0; 16_000])));
    assert_eq!(code(events(&mut server, block, now)), ErrorCode::ENHANCE_YOUR_CALM);
}

#[test]
fn broken_rules_are_named() {
    let cases: Vec<(&str, BytesMut, ErrorCode)> = vec![
        ("even stream", frame(frame::HEADERS, frame::END_HEADERS, 2, &[]), ErrorCode::PROTOCOL_ERROR),
        ("idle data", frame(frame::DATA, 0, 1, b"x"), ErrorCode::PROTOCOL_ERROR),
        ("idle reset", frame(frame::RST_STREAM, 0, 5, &[0; 4]), ErrorCode::PROTOCOL_ERROR),
        ("push", frame(frame::PUSH_PROMISE, 0, 1, &[0; 4]), ErrorCode::PROTOCOL_ERROR),
        ("stray continuation", frame(frame::CONTINUATION, 0, 1, &[]), ErrorCode::PROTOCOL_ERROR),
        ("short ping", frame(frame::PING, 0, 0, &[0; 7]), ErrorCode::FRAME_SIZE_ERROR),
        ("odd settings", frame(frame::SETTINGS, 0, 0, &[0; 5]), ErrorCode::FRAME_SIZE_ERROR),
        ("window of nothing", frame(frame::WINDOW_UPDATE, 0, 0, &[0; 4]), ErrorCode::PROTOCOL_ERROR),
        (
            "window too large",
            frame(frame::WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff]),
            ErrorCode::FLOW_CONTROL_ERROR,
        ),
        (
            "bad header block",
            frame(frame::HEADERS, frame::END_HEADERS, 1, &[0x80]),
            ErrorCode::COMPRESSION_ERROR,
        ),
        (
            "padding",
            frame(frame::HEADERS, frame::END_HEADERS | frame::PADDED, 1, &[9, 0]),
            ErrorCode::PROTOCOL_ERROR,
        ),
    ];
    for (name, bytes, expected) in cases {
        let (mut server, now) = greeted();
        assert_eq!(code(events(&mut server, bytes, now)), expected, "{name}");
    }
}

#[test]
fn more_than_the_window_ends_the_connection() {
    let (mut server, now) = greeted();
    let mut bytes = frame(frame::HEADERS, frame::END_HEADERS, 1, &[0x83]);
    for _ in 0..5 {
        bytes.extend_from_slice(&frame(frame::DATA, 0, 1, &vec![0; 60_000]));
    }
    let mut outcome = Ok(None);
    while outcome.is_ok() && !bytes.is_empty() {
        outcome = server.receive(&mut bytes, now);
    }
    assert_eq!(outcome.unwrap_err().code, ErrorCode::FLOW_CONTROL_ERROR);
}

proptest! {
    #[test]
    fn bytes_arrive_whole_however_they_are_cut(
        messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..3000), 1..20),
        cuts in proptest::collection::vec(1_usize..4000, 1..50),
    ) {
        let mut pair = Pair::new(Limits { stream_window: 70_000, ..Limits::default() });
        let stream = pair.client.open(&request()).unwrap();
        for message in &messages {
            pair.client.send(stream, [Bytes::from(message.clone())]);
        }
        pair.client.finish(stream, None);
        let mut wire = written(&mut pair.client);
        let (mut input, mut received, mut ended) = (BytesMut::new(), Vec::new(), false);
        for cut in cuts.iter().cycle() {
            if wire.is_empty() {
                break;
            }
            let length = (*cut).min(wire.len());
            input.extend_from_slice(&wire.split_to(length));
            while let Some(event) = pair.server.receive(&mut input, pair.now).unwrap() {
                if let Event::Data { bytes, end, .. } = event {
                    received.extend_from_slice(&bytes);
                    ended |= end;
                }
            }
        }
        prop_assert_eq!(received, messages.concat());
        prop_assert!(ended);
    }

    #[test]
    fn no_bytes_panic_the_server(frames in proptest::collection::vec((0_u8..12, any::<u8>(), 0_u32..6, proptest::collection::vec(any::<u8>(), 0..40)), 0..30)) {
        let (mut server, now) = greeted();
        for (kind, flags, stream, payload) in frames {
            let mut input = frame(kind, flags, stream, &payload);
            while let Ok(Some(_)) = server.receive(&mut input, now) {}
            if server.going_away {
                break;
            }
        }
        written(&mut server);
    }
}
