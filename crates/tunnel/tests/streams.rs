//! Many tunnels on one gRPC connection, which kube-apiserver is expected to use.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bed;

use std::collections::BTreeMap;
use std::io::{IoSlice, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use landfall_http2::{Connection, Event, Limits, Role, StreamId};
use landfall_tunnel::config::Mode;
use landfall_tunnel::grpc::{self, Messages};
use landfall_tunnel::packet::Packet;

use bed::endpoint::Endpoint;
use bed::{Pairing, Plane, SOON};

struct Wire {
    socket: UnixStream,
    connection: Connection,
    input: BytesMut,
    messages: BTreeMap<StreamId, Messages>,
}

impl Wire {
    fn new(plane: &Plane) -> Self {
        let socket = UnixStream::connect(plane.socket()).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        let limits = Limits { connection_window: 64 * 1024 * 1024, ..Limits::default() };
        let connection = Connection::new(Role::Client, limits);
        Self { socket, connection, input: BytesMut::new(), messages: BTreeMap::new() }
    }

    fn dial(&mut self, address: &str) -> StreamId {
        let stream = self.connection.open(&grpc::request("http", "x", "/ProxyService/Proxy")).unwrap();
        self.messages.insert(stream, Messages::default());
        let dial =
            Packet::DialRequest { protocol: "tcp".into(), address: address.into(), random: stream.into() };
        self.connection.send(stream, dial.encode());
        stream
    }

    /// Returns the next packets of any stream; the windows of streams that `reads` excludes stay closed.
    fn packets(&mut self, reads: impl Fn(StreamId) -> bool) -> Vec<(StreamId, Packet)> {
        self.connection.flush();
        while !self.connection.output().is_empty() {
            let mut slices = [IoSlice::new(&[]); 8];
            let count = self.connection.output().slices(&mut slices);
            let written = self.socket.write_vectored(&slices[..count]).unwrap();
            self.connection.output().advance(written);
            self.connection.flush();
        }
        let mut buffer = vec![0; 64 * 1024];
        let length = self.socket.read(&mut buffer).unwrap();
        assert!(length > 0, "the server hung up");
        self.input.extend_from_slice(&buffer[..length]);
        let mut packets = Vec::new();
        while let Some(event) = self.connection.receive(&mut self.input, Instant::now()).unwrap() {
            let Event::Data { stream, bytes, .. } = event else { continue };
            if reads(stream) {
                self.connection.release(stream, bytes.len());
            }
            let messages = self.messages.get_mut(&stream).unwrap();
            messages.push(bytes);
            while let Some(message) = messages.next().unwrap() {
                packets.push((stream, Packet::decode(message).unwrap()));
            }
        }
        packets
    }
}

#[test]
fn tunnels_share_a_connection_and_a_stalled_one_stalls_alone() {
    let plane = Plane::start(Pairing::OursOurs, Mode::Grpc).unwrap();
    let (echo, source) = (Endpoint::echo().unwrap(), Endpoint::source().unwrap());
    let mut wire = Wire::new(&plane);
    let stalled = wire.dial(&source.address().to_string());
    let lively: Vec<StreamId> = (0..100).map(|_| wire.dial(&echo.address().to_string())).collect();

    let mut ids = BTreeMap::new();
    let mut echoed: BTreeMap<StreamId, usize> = BTreeMap::new();
    while echoed.values().filter(|length| **length == 3 * 1000).count() < lively.len() {
        for (stream, packet) in wire.packets(|stream| stream != stalled) {
            match packet {
                Packet::DialResponse { error, connect_id, random } => {
                    assert_eq!((error.as_str(), random), ("", i64::from(stream)));
                    ids.insert(stream, connect_id);
                    if stream != stalled {
                        let data = Bytes::from(vec![5; 1000]);
                        wire.connection.send(stream, Packet::Data { connect_id, data }.encode());
                    }
                }
                Packet::Data { connect_id, data } => {
                    assert_eq!(ids.get(&stream), Some(&connect_id));
                    let total = echoed.entry(stream).or_default();
                    let before = *total / 1000;
                    *total += data.len();
                    if stream != stalled && *total / 1000 > before && *total < 3 * 1000 {
                        let data = Bytes::from(vec![5; 1000]);
                        wire.connection.send(stream, Packet::Data { connect_id, data }.encode());
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(ids.len(), 101);
    drop(wire);
    plane.wait_until_empty().unwrap();
}
