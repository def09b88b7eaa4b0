//! Bodies of the `http2_*` targets.

use std::io::IoSlice;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use landfall_http2::{Connection, Event, Headers, Limits, Role};
use landfall_tunnel::grpc::{self, Messages};
use landfall_tunnel::packet::Packet;

/// More output than this means that a peer can make us buffer data that it does not read.
const MAX_OUTPUT: usize = 4 * 1024 * 1024;

/// Any data from a client: the preface is included, so that the fuzzer need not find it.
pub(crate) fn server(bytes: &[u8]) {
    let mut input = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    input.extend_from_slice(bytes);
    check(|| Connection::new(Role::Server, Limits::default()), &input);
}

/// Any data from a server to a client with an open stream.
pub(crate) fn client(bytes: &[u8]) {
    let connection = || {
        let mut connection = Connection::new(Role::Client, Limits::default());
        let stream = connection.open(&grpc::request("http", "x", "/AgentService/Connect"));
        assert_eq!(stream, Some(1));
        connection.send(1, [Bytes::from(vec![0; 200_000])]);
        connection
    };
    let mut input = b"\0\0\0\x04\0\0\0\0\0".to_vec();
    input.extend_from_slice(bytes);
    check(connection, &input);
}

/// Any stream content: gRPC messages, each with a packet.
pub(crate) fn packets(bytes: &[u8]) {
    let mut messages = Messages::default();
    for piece in bytes.chunks(1 + bytes.len() / 3) {
        messages.push(Bytes::copy_from_slice(piece));
        loop {
            match messages.next() {
                Ok(Some(message)) => {
                    if let Ok(packet) = Packet::decode(message) {
                        let again = Bytes::from(packet.clone().encode().concat()).slice(grpc::PREFIX..);
                        assert_eq!(Packet::decode(again), Ok(packet));
                    }
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

/// No panic, and the same events for any split of the bytes.
fn check(connection: impl Fn() -> Connection, bytes: &[u8]) {
    let whole = events(connection(), bytes, bytes.len().max(1));
    let pieces = events(connection(), bytes, 1 + bytes.len() / 7);
    assert_eq!(whole, pieces);
}

fn events(mut connection: Connection, bytes: &[u8], cut: usize) -> Vec<Event> {
    let (mut input, mut events, now) = (BytesMut::new(), Vec::new(), Instant::now());
    for piece in bytes.chunks(cut) {
        input.extend_from_slice(piece);
        loop {
            match connection.receive(&mut input, now) {
                Ok(Some(event)) => {
                    if let Event::Data { stream, bytes, .. } = &event {
                        connection.release(*stream, bytes.len());
                    }
                    events.push(event);
                }
                Ok(None) => break,
                Err(_) => {
                    drain(&mut connection);
                    return events;
                }
            }
        }
        if let Some(Event::Headers { stream, .. }) = events.last() {
            connection.respond(*stream, &Headers::new().with(":status", "200"), false);
        }
        assert!(connection.output().len() < MAX_OUTPUT);
    }
    drain(&mut connection);
    events
}

fn drain(connection: &mut Connection) {
    connection.flush();
    while !connection.output().is_empty() {
        let mut slices = [IoSlice::new(&[]); 3];
        let count = connection.output().slices(&mut slices);
        let written = slices[..count].iter().map(|slice| slice.len()).sum();
        connection.output().advance(written);
        connection.flush();
    }
}
