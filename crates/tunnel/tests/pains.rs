//! Known problems of upstream, each as a test that fails there or is at risk.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bed;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use landfall_pki::{Leaf, Purpose};
use landfall_testkit::{eventually, have};
use landfall_tunnel::config::{Mode, ServerConfig};
use landfall_tunnel::packet::Packet;
use landfall_tunnel::server::Authenticate;

use bed::client::{Client, GrpcClient, connect};
use bed::endpoint::Endpoint;
use bed::{Bed, OurServer, Pairing, Plane, SOON, UPSTREAM, open};

/// Starts a landfall server without TLS, for fake agents.
fn plain_server(bed: &Bed, mode: Mode, dial_timeout: Duration) -> OurServer {
    let config =
        ServerConfig { agent_tls: None, backend_dial_timeout: dial_timeout, ..bed.server_config(mode) };
    bed.start_server(config).unwrap()
}

/// Returns a fake agent that the server knows.
fn played_agent(server: &OurServer, id: &str) -> GrpcClient {
    let before = server.view.agents().len();
    let agent = GrpcClient::agent(server.agent_port, id).unwrap();
    eventually("the agent to be known", SOON, || (server.view.agents().len() > before).then_some(()))
        .unwrap();
    agent
}

fn ping(client: &mut Client) -> Duration {
    let started = Instant::now();
    client.write_all(&[9; 64]).unwrap();
    let mut back = [0; 64];
    client.read_exact(&mut back).unwrap();
    started.elapsed()
}

#[test]
fn one_mebibyte_then_close_is_never_truncated() {
    let plane = Plane::start(Pairing::OursOurs, Mode::HttpConnect).unwrap();
    let grpc = Plane::start(Pairing::OursOurs, Mode::Grpc).unwrap();
    let sink = Endpoint::sink().unwrap();
    for plane in [&plane, &grpc] {
        for _ in 0..50 {
            let mut client = plane.open(sink.address()).unwrap();
            client.write_all(&vec![1; 1 << 20]).unwrap();
            client.close();
        }
        plane.wait_until_empty().unwrap();
    }
    let received =
        eventually("all bytes", SOON, || Some(sink.received()).filter(|all| all.len() == 100)).unwrap();
    assert!(received.iter().all(|length| *length == 1 << 20), "{received:?}");
}

#[test]
fn abandoned_connects_leave_nothing() {
    let plane = Plane::start(Pairing::OursOurs, Mode::HttpConnect).unwrap();
    let echo = Endpoint::echo().unwrap();
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    for pause in [0, 1, 3] {
        for _ in 0..100 {
            let mut stream = UnixStream::connect(plane.socket()).unwrap();
            write!(stream, "CONNECT {} HTTP/1.1\r\nHost: x\r\n\r\n", echo.address()).unwrap();
            std::thread::park_timeout(Duration::from_millis(pause));
        }
    }
    plane.wait_until_empty().unwrap();
    eventually("descriptors to be closed", SOON, || (descriptors() <= before + 5).then_some(())).unwrap();
}

#[test]
fn a_client_that_hangs_up_while_dialing_is_noticed() {
    for mode in [Mode::HttpConnect, Mode::Grpc] {
        let bed = Bed::new().unwrap();
        let server = plain_server(&bed, mode, Duration::from_secs(30));
        let mut agent = played_agent(&server, "silent");
        let dial = {
            let (mut connecting, mut asking);
            match mode {
                Mode::HttpConnect => {
                    connecting = UnixStream::connect(bed.socket()).unwrap();
                    write!(connecting, "CONNECT 10.0.0.1:1 HTTP/1.1\r\n\r\n").unwrap();
                }
                Mode::Grpc => {
                    asking = GrpcClient::open(&bed.socket()).unwrap();
                    asking.ask("10.0.0.1:1", 5).unwrap();
                }
            }
            let Packet::DialRequest { random, address, .. } = agent.packet().unwrap() else {
                panic!("a dial")
            };
            assert_eq!(address, "10.0.0.1:1");
            random
        };
        assert_eq!(agent.packet().unwrap(), Packet::CloseDial { random: dial });
        // Upstream's agent responds nevertheless; the tunnel must be closed again.
        let answer = Packet::DialResponse { error: String::new(), connect_id: 1, random: dial };
        agent.send(answer).unwrap();
        assert_eq!(agent.packet().unwrap(), Packet::CloseRequest { connect_id: 1 });
        assert_eq!(server.view.agents()[0].tunnels, 0);
    }
}

#[test]
fn dials_fail_at_once_when_their_agent_is_lost() {
    for mode in [Mode::HttpConnect, Mode::Grpc] {
        let bed = Bed::new().unwrap();
        let server = plain_server(&bed, mode, Duration::from_secs(30));
        let mut agent = played_agent(&server, "dying");
        let dying = std::thread::spawn(move || {
            agent.packet().unwrap();
        });
        let started = Instant::now();
        let error = open(&bed.socket(), mode, "10.0.0.1:1").err().unwrap();
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        assert!(error.contains("lost"), "{error}");
        dying.join().unwrap();
    }
}

#[test]
fn a_frozen_agent_does_not_leave_clients_waiting() {
    let bed = Bed::new().unwrap();
    let server = plain_server(&bed, Mode::HttpConnect, Duration::from_secs(1));
    let _frozen = played_agent(&server, "frozen");
    let error = connect(&bed.socket(), "10.0.0.1:1").err().unwrap();
    assert!(
        error.starts_with("HTTP/1.1 504 ") && error.contains("timed out waiting for backend dial"),
        "{error}"
    );
    assert!(server.view.agents()[0].doubted);
}

#[test]
fn a_dial_is_asked_of_another_agent_when_the_first_is_lost() {
    let bed = Bed::new().unwrap();
    let server = plain_server(&bed, Mode::HttpConnect, Duration::from_secs(30));
    let asked = Arc::new(AtomicUsize::new(0));
    // The agent tried first disconnects, and the second one responds.
    let agents: Vec<_> = ["one", "two"]
        .into_iter()
        .map(|id| {
            let (mut agent, asked) = (played_agent(&server, id), Arc::clone(&asked));
            std::thread::spawn(move || {
                let Ok(Packet::DialRequest { random, .. }) = agent.packet() else { return };
                if asked.fetch_add(1, Ordering::Relaxed) == 0 {
                    return;
                }
                let answer = Packet::DialResponse { error: String::new(), connect_id: 1, random };
                agent.send(answer).unwrap();
                assert_eq!(agent.packet().unwrap(), Packet::CloseRequest { connect_id: 1 });
            })
        })
        .collect();
    connect(&bed.socket(), "10.0.0.1:1").unwrap();
    for agent in agents {
        agent.join().unwrap();
    }
}

#[test]
fn without_an_agent_the_answer_says_so() {
    let bed = Bed::new().unwrap();
    let server = plain_server(&bed, Mode::HttpConnect, Duration::from_secs(1));
    let error = connect(&bed.socket(), "10.0.0.1:1").err().unwrap();
    assert!(error.starts_with("HTTP/1.1 500 "), "{error}");
    assert!(error.ends_with("currently no tunnels available: No agent available"), "{error}");
    assert!(!server.view.is_ready());
}

/// Tests that other tunnels keep their latency while one client or one endpoint stops reading.
fn others_go_on_beside_a_stalled_one(pairing: Pairing, mode: Mode) {
    let plane = Plane::start(pairing, mode).unwrap();
    let (echo, source, stalled) =
        (Endpoint::echo().unwrap(), Endpoint::source().unwrap(), Endpoint::stalled().unwrap());
    let mut neighbour = plane.open(echo.address()).unwrap();

    // One client that does not read, and one whose endpoint does not read.
    let unread = plane.open(source.address()).unwrap();
    let mut unheard = Some(plane.open(stalled.address()).unwrap());
    let full = Arc::new(AtomicBool::new(false));
    if pairing == Pairing::OursOurs
        && let Some(mut unheard) = unheard.take()
    {
        let full = Arc::clone(&full);
        std::thread::spawn(move || {
            let block = vec![0; 64 * 1024];
            for _ in 0..1000 {
                // Ends with the write timeout, or with the test.
                if unheard.write_all(&block).is_err() {
                    return;
                }
            }
            full.store(true, Ordering::Relaxed);
        });
    }
    let mut times: Vec<Duration> = Vec::new();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(4) {
        times.push(ping(&mut neighbour));
        let mut fresh = plane.open(echo.address()).unwrap();
        times.push(ping(&mut fresh));
        fresh.close();
    }
    times.sort();
    let worst = times[times.len() - 1];
    // An upstream peer does not support credit: the whole stream is paused for a second before the stalled tunnel is
    // closed. An implementation that blocks does so while the stalled tunnel exists, which is longer than this loop.
    let limit = Duration::from_secs(if pairing == Pairing::OursOurs { 3 } else { 6 });
    assert!(worst < limit, "{pairing:?} {mode:?}: the worst of {} took {worst:?}", times.len());
    assert!(times.len() > 20, "{pairing:?} {mode:?}: {} round trips", times.len());
    assert!(!full.load(Ordering::Relaxed), "a stalled endpoint took 64 MiB");
    // The stalled client times out, and then its undelivered data is discarded.
    drop((neighbour, unread, unheard));
    plane.wait_until_empty().unwrap();
}

#[test]
fn a_stalled_reader_does_not_delay_others_connect() {
    others_go_on_beside_a_stalled_one(Pairing::OursOurs, Mode::HttpConnect);
}

#[test]
fn a_stalled_reader_does_not_delay_others_grpc() {
    others_go_on_beside_a_stalled_one(Pairing::OursOurs, Mode::Grpc);
}

#[test]
fn a_stalled_client_does_not_stop_the_others_of_an_upstream_agent() {
    if have(UPSTREAM) {
        others_go_on_beside_a_stalled_one(Pairing::OurServer, Mode::HttpConnect);
    }
}

/// Tests a dial that kube-apiserver, and a slow client here, would fail.
#[test]
fn an_endpoint_that_speaks_first_never_shares_a_read_with_the_answer() {
    const ANSWER: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";
    const GREETING: &[u8] = b"220 ready\r\n";
    let bed = Bed::new().unwrap();
    let server = plain_server(&bed, Mode::HttpConnect, Duration::from_secs(30));
    bed.start_agent(landfall_tunnel::config::AgentConfig {
        tls: None,
        ..bed.agent_config(server.agent_port, "agent")
    });
    eventually("the agent", SOON, || server.view.is_ready().then_some(())).unwrap();
    let banner = Endpoint::banner("220 ready\r\n").unwrap();
    for round in 1..=50 {
        let mut client = UnixStream::connect(bed.socket()).unwrap();
        client.set_read_timeout(Some(SOON)).unwrap();
        write!(client, "CONNECT {} HTTP/1.1\r\n\r\n", banner.address()).unwrap();
        eventually("the greeting to wait at the server", SOON, || {
            (server.view.agents()[0].bytes_received == round * GREETING.len() as u64).then_some(())
        })
        .unwrap();
        let mut buffer = [0; 4096];
        let length = client.read(&mut buffer).unwrap();
        assert_eq!(buffer[..length].escape_ascii().to_string(), ANSWER.escape_ascii().to_string());
        let length = client.read(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], GREETING);
    }
}

#[test]
fn bytes_sent_behind_the_request_are_forwarded() {
    let plane = Plane::start(Pairing::OursOurs, Mode::HttpConnect).unwrap();
    let echo = Endpoint::echo().unwrap();
    let mut stream = UnixStream::connect(plane.socket()).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    write!(stream, "CONNECT {} HTTP/1.1\r\n\r\nearly", echo.address()).unwrap();
    let mut answer = vec![0; b"HTTP/1.1 200 Connection Established\r\n\r\nearly".len()];
    stream.read_exact(&mut answer).unwrap();
    assert!(answer.ends_with(b"\r\n\r\nearly"));
}

#[test]
fn two_agents_with_one_name_are_two_agents() {
    let bed = Bed::new().unwrap();
    let server = plain_server(&bed, Mode::HttpConnect, Duration::from_secs(5));
    let echo = Endpoint::echo().unwrap();
    let config = |port| landfall_tunnel::config::AgentConfig { tls: None, ..bed.agent_config(port, "twin") };
    let (_, stop) = bed.start_agent(config(server.agent_port));
    bed.start_agent(config(server.agent_port));
    eventually("both agents", SOON, || (server.view.agents().len() == 2).then_some(())).unwrap();
    let mut clients: Vec<_> = (0..20)
        .map(|_| Client::Connect(connect(&bed.socket(), &echo.address().to_string()).unwrap()))
        .collect();
    for client in &mut clients {
        ping(client);
    }
    drop(clients);
    stop.cancel();
    eventually("one to leave", SOON, || (server.view.agents().len() == 1).then_some(())).unwrap();
    for _ in 0..20 {
        ping(&mut Client::Connect(connect(&bed.socket(), &echo.address().to_string()).unwrap()));
    }
}

/// Records the tokens it receives and accepts one.
#[derive(Debug, Default)]
struct OneToken(Mutex<Vec<Vec<u8>>>);

impl Authenticate for OneToken {
    fn check<'a>(&'a self, token: &'a [u8]) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>> {
        self.0.lock().unwrap().push(token.to_vec());
        let good = token == b"good";
        Box::pin(async move { if good { Ok(()) } else { Err("invalid token".to_owned()) } })
    }
}

#[test]
fn a_token_file_may_end_in_a_newline_and_is_read_again() {
    let bed = Bed::new().unwrap();
    let seen = Arc::new(OneToken::default());
    let server = bed
        .start_server_with(bed.server_config(Mode::HttpConnect), Some(Arc::<OneToken>::clone(&seen)))
        .unwrap();
    let path = bed.file("token");
    std::fs::write(&path, "bad\n").unwrap();
    let config = bed.agent_config(server.agent_port, "agent");
    bed.start_agent(landfall_tunnel::config::AgentConfig {
        service_account_token_path: Some(path.clone()),
        ..config
    });
    eventually("a refusal", SOON, || (!seen.0.lock().unwrap().is_empty()).then_some(())).unwrap();
    assert!(server.view.agents().is_empty());
    std::fs::write(&path, "good\n").unwrap();
    eventually("the agent to be accepted", SOON, || (server.view.agents().len() == 1).then_some(())).unwrap();
    assert_eq!(seen.0.lock().unwrap()[0], b"bad");
}

#[test]
fn four_mebibytes_in_one_packet_are_accepted() {
    let plane = Plane::start(Pairing::OursOurs, Mode::Grpc).unwrap();
    let sink = Endpoint::sink().unwrap();
    let Client::Grpc(mut client) = plane.open(sink.address()).unwrap() else { panic!("a gRPC client") };
    let data = Bytes::from(vec![3; 4 * 1024 * 1024 - 64]);
    let length = data.len();
    let connect_id = client.connect_id();
    client.send(Packet::Data { connect_id, data }).unwrap();
    Client::Grpc(client).close();
    let received = eventually("the packet", SOON, || sink.received().first().copied()).unwrap();
    assert_eq!(received, length);
}

#[test]
fn a_rotated_certificate_is_served_without_a_restart() {
    let bed = Bed::new().unwrap();
    // A certificate for another name prevents agents from connecting.
    bed.issue("server", &Leaf::new("server", Purpose::Serve).names(["elsewhere.example"])).unwrap();
    let server = bed.start_server(bed.server_config(Mode::HttpConnect)).unwrap();
    let (agent, _) = bed.start_agent(bed.agent_config(server.agent_port, "agent"));
    bed.issue("server", &Leaf::new("server", Purpose::Serve).names(["127.0.0.1"])).unwrap();
    eventually("the agent to trust the new certificate", Duration::from_secs(60), || {
        (agent.connected_servers() == 1).then_some(())
    })
    .unwrap();
}

#[test]
fn a_stopped_agent_drains_and_leaves() {
    let bed = Bed::new().unwrap();
    let server = plain_server(&bed, Mode::HttpConnect, Duration::from_secs(5));
    let echo = Endpoint::echo().unwrap();
    let config =
        landfall_tunnel::config::AgentConfig { tls: None, ..bed.agent_config(server.agent_port, "leaving") };
    let (agent, stop) = bed.start_agent(config);
    eventually("the agent", SOON, || server.view.agents().pop()).unwrap();
    let mut client = Client::Connect(connect(&bed.socket(), &echo.address().to_string()).unwrap());
    ping(&mut client);
    stop.cancel();
    eventually("the drain", SOON, || server.view.agents().pop().filter(|agent| agent.draining)).unwrap();
    // The open tunnel continues.
    ping(&mut client);
    assert_eq!(agent.tunnels(), 1);
    client.close();
    eventually("the agent to leave", SOON, || server.view.agents().is_empty().then_some(())).unwrap();
}

#[test]
fn an_agent_returns_to_a_restarted_server() {
    let bed = Bed::new().unwrap();
    let server = bed.start_server(bed.server_config(Mode::HttpConnect)).unwrap();
    let port = server.agent_port;
    let (agent, _) = bed.start_agent(bed.agent_config(port, "faithful"));
    eventually("the first meeting", SOON, || (agent.connected_servers() == 1).then_some(())).unwrap();
    server.stop.cancel();
    eventually("the parting", SOON, || (agent.connected_servers() == 0).then_some(())).unwrap();
    let config = ServerConfig { agent_port: port, ..bed.server_config(Mode::HttpConnect) };
    let again = eventually("the port to be free", SOON, || bed.start_server(config.clone()).ok()).unwrap();
    eventually("the second meeting", SOON, || (again.view.agents().len() == 1).then_some(())).unwrap();
}
