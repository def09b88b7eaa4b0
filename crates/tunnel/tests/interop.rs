//! Landfall's server and agent, with each other and with upstream's, through both frontends.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bed;

use std::io::{Read as _, Write as _};

use landfall_testkit::have;
use landfall_tunnel::config::Mode;

use bed::endpoint::Endpoint;
use bed::{Pairing, Plane, UPSTREAM};

/// Runs `check` for each pairing and each frontend.
fn everywhere(check: impl Fn(&Plane)) {
    let upstream = have(UPSTREAM);
    for pairing in Pairing::ALL.into_iter().filter(|pairing| upstream || *pairing == Pairing::OursOurs) {
        for mode in [Mode::HttpConnect, Mode::Grpc] {
            let plane = Plane::start(pairing, mode).unwrap();
            check(&plane);
            plane.wait_until_empty().unwrap();
        }
    }
}

#[test]
fn bytes_go_there_and_back() {
    let echo = Endpoint::echo().unwrap();
    everywhere(|plane| {
        let mut client = plane.open(echo.address()).unwrap();
        for size in [1, 64, 5000, 200_000] {
            let sent: Vec<u8> = (0..size).map(|at| u8::try_from(at % 251).unwrap()).collect();
            // In pieces: an echo endpoint stalls once the buffers on the path are full and unread.
            for piece in sent.chunks(16 * 1024) {
                client.write_all(piece).unwrap();
                let mut back = vec![0; piece.len()];
                client.read_exact(&mut back).unwrap();
                assert!(back == piece);
            }
        }
        client.close();
    });
}

#[test]
fn a_refusing_endpoint_is_reported_in_gos_words() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    everywhere(|plane| {
        let error = plane.open(closed).err().unwrap();
        assert!(error.contains("connection refused"), "{error}");
        if plane.mode == Mode::HttpConnect {
            assert!(error.starts_with("HTTP/1.1 502 "), "{error}");
        }
    });
}

#[test]
fn the_last_bytes_of_an_endpoint_arrive_before_the_end() {
    let farewell = Endpoint::farewell(300_000).unwrap();
    everywhere(|plane| {
        let mut client = plane.open(farewell.address()).unwrap();
        client.write_all(b"go").unwrap();
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 300_000);
        client.close();
    });
}
