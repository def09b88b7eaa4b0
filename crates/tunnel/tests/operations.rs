//! Operational situations: rollouts, rotated files, stalled agents, limits, several addresses, stale sockets.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bed;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{eventually, free_port};
use landfall_tunnel::config::{
    AgentConfig, AgentLimits, CertificateFiles, DEFAULT_UDS_PERMISSIONS, Frontend, Mode, ServerConfig,
};
use landfall_tunnel::packet::Packet;
use landfall_tunnel::server::Server;

use bed::client::{GrpcClient, connect};
use bed::endpoint::Endpoint;
use bed::{Bed, OurServer, SOON};

/// Certificates are checked every 15 s.
const ROTATED: Duration = Duration::from_secs(90);

fn plain(bed: &Bed) -> ServerConfig {
    ServerConfig { agent_tls: None, ..bed.server_config(Mode::HttpConnect) }
}

fn at(path: PathBuf) -> Frontend {
    Frontend::Unix { path, delete_existing: true, permissions: DEFAULT_UDS_PERMISSIONS }
}

fn played_agent(server: &OurServer, id: &str) -> GrpcClient {
    let agent = GrpcClient::agent(server.agent_port, id).unwrap();
    eventually("the agent to be known", SOON, || {
        server.view.agents().iter().any(|agent| agent.id == id).then_some(())
    })
    .unwrap();
    agent
}

fn ping(client: &mut UnixStream) {
    client.write_all(b"ahoy").unwrap();
    let mut back = [0; 4];
    client.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"ahoy");
}

/// Tests a rollout: the old server announces its end, the agent connects to the new one, and only then the old tunnel
/// ends.
#[test]
fn a_stopping_server_sends_its_agent_to_another_before_it_goes() {
    let bed = Bed::new().unwrap();
    let port = free_port().unwrap();
    let config = |id: &str| ServerConfig {
        server_id: id.to_owned(),
        agent_port: port,
        graceful_shutdown_timeout: Duration::from_secs(120),
        frontend: at(bed.file(id)),
        ..plain(&bed)
    };
    let echo = Endpoint::echo().unwrap().address().to_string();
    let old = bed.start_server(config("old")).unwrap();
    let (agent, _) = bed.start_agent(AgentConfig { tls: None, ..bed.agent_config(port, "agent") });
    eventually("the agent", SOON, || old.view.is_ready().then_some(())).unwrap();
    let mut tunnel = connect(&bed.file("old"), &echo).unwrap();
    ping(&mut tunnel);
    old.stop.cancel();
    eventually("the agent to look elsewhere", SOON, || (agent.connected_servers() == 0).then_some(()))
        .unwrap();
    ping(&mut tunnel);
    let new = eventually("the port to be free", SOON, || bed.start_server(config("new")).ok()).unwrap();
    eventually("the agent to meet the new server", SOON, || new.view.is_ready().then_some(())).unwrap();
    ping(&mut connect(&bed.file("new"), &echo).unwrap());
    // The old tunnel survived the change, and the old link ends with it.
    ping(&mut tunnel);
    drop(tunnel);
    eventually("the old link to end", SOON, || old.view.agents().is_empty().then_some(())).unwrap();
    assert_eq!(agent.connected_servers(), 1);
}

/// Tests an agent that accepts dials without responding: the first dial marks it as suspect, and then it is chosen
/// last.
#[test]
fn a_wedged_agent_is_avoided() {
    let bed = Bed::new().unwrap();
    let config = ServerConfig { backend_dial_timeout: Duration::from_secs(30), ..plain(&bed) };
    let server = bed.start_server(config).unwrap();
    let echo = Endpoint::echo().unwrap().address().to_string();
    let _wedged = played_agent(&server, "wedged");
    bed.start_agent(AgentConfig { tls: None, ..bed.agent_config(server.agent_port, "good") });
    eventually("both agents", SOON, || (server.view.agents().len() == 2).then_some(())).unwrap();
    let doubted = || server.view.agents().iter().any(|agent| agent.id == "wedged" && agent.doubted);
    // The tunnel opens whichever agent is tried first; eventually the stalled one was tried.
    eventually("the wedged agent to be found out", Duration::from_secs(120), || {
        ping(&mut connect(&bed.socket(), &echo).unwrap());
        doubted().then_some(())
    })
    .unwrap();
    assert!(server.view.is_ready());
    let asked = || server.view.agents().iter().find(|agent| agent.id == "wedged").unwrap().pending;
    let mut tunnels = Vec::new();
    for _ in 0..20 {
        let mut tunnel = connect(&bed.socket(), &echo).unwrap();
        ping(&mut tunnel);
        tunnels.push(tunnel);
        assert_eq!(asked(), 0);
    }
}

/// Tests that pending dials do not accumulate: beyond the limit they fail immediately, with a reason.
#[test]
fn more_dials_than_an_agent_may_have_are_refused_at_once() {
    let bed = Bed::new().unwrap();
    let limits = AgentLimits { dials: 2, tunnels: None };
    let config = ServerConfig { limits, backend_dial_timeout: Duration::from_secs(60), ..plain(&bed) };
    let server = bed.start_server(config).unwrap();
    let mut agent = played_agent(&server, "slow");
    let waiting: Vec<UnixStream> = (0..2)
        .map(|_| {
            let mut client = UnixStream::connect(bed.socket()).unwrap();
            write!(client, "CONNECT 10.0.0.1:1 HTTP/1.1\r\n\r\n").unwrap();
            assert!(matches!(agent.packet().unwrap(), Packet::DialRequest { .. }));
            client
        })
        .collect();
    let started = Instant::now();
    let error = connect(&bed.socket(), "10.0.0.1:1").err().unwrap();
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    assert!(error.starts_with("HTTP/1.1 503 ") && error.contains("as much to do as it may"), "{error}");
    drop(waiting);
}

#[test]
fn tunnels_beyond_an_agents_limit_go_to_another() {
    let bed = Bed::new().unwrap();
    let limits = AgentLimits { tunnels: Some(2), ..AgentLimits::default() };
    let server = bed.start_server(ServerConfig { limits, ..plain(&bed) }).unwrap();
    let echo = Endpoint::echo().unwrap().address().to_string();
    for id in ["one", "two"] {
        bed.start_agent(AgentConfig { tls: None, ..bed.agent_config(server.agent_port, id) });
    }
    eventually("both agents", SOON, || (server.view.agents().len() == 2).then_some(())).unwrap();
    let tunnels: Vec<UnixStream> = (0..4).map(|_| connect(&bed.socket(), &echo).unwrap()).collect();
    let mut loads: Vec<usize> = server.view.agents().iter().map(|agent| agent.tunnels).collect();
    loads.sort_unstable();
    assert_eq!(loads, [2, 2]);
    let error = connect(&bed.socket(), &echo).err().unwrap();
    assert!(error.starts_with("HTTP/1.1 503 "), "{error}");
    drop(tunnels);
    eventually("room again", SOON, || connect(&bed.socket(), &echo).ok()).unwrap();
}

/// Tests discovery without a load balancer: the agent calls every address, so it finds every server.
#[test]
fn an_agent_meets_the_servers_behind_all_its_addresses() {
    let bed = Bed::new().unwrap();
    let port = free_port().unwrap();
    let start = |id: &str, last: u8| {
        let config = ServerConfig {
            server_id: id.to_owned(),
            server_count: 2,
            agent_bind_address: IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)),
            agent_port: port,
            frontend: at(bed.file(id)),
            ..plain(&bed)
        };
        bed.start_server(config).unwrap()
    };
    let (one, two) = (start("one", 1), start("two", 2));
    let config = AgentConfig {
        tls: None,
        proxy_server_host: "127.0.0.1, 127.0.0.2".to_owned(),
        ..bed.agent_config(port, "agent")
    };
    let (agent, _) = bed.start_agent(config);
    eventually("both servers", SOON, || (agent.connected_servers() == 2).then_some(())).unwrap();
    assert!(one.view.is_ready() && two.view.is_ready());
}

/// Tests the rotation of the CA of the agents' certificates, followed by the agents' certificates.
#[test]
fn rotated_authorities_and_agent_certificates_are_used_without_a_restart() {
    let bed = Bed::new().unwrap();
    let server = bed.start_server(bed.server_config(Mode::HttpConnect)).unwrap();
    // The agent has a certificate from an unknown CA and does not trust the server's CA.
    let other = Authority::new("the next authority", 7).unwrap();
    let pair = other.issue(&Leaf::new("agent", Purpose::Call)).unwrap();
    for (name, content) in [
        ("next.crt", other.certificate()),
        ("next-agent.crt", pair.certificate.as_str()),
        ("next-agent.key", pair.key.expose().as_str()),
    ] {
        std::fs::write(bed.file(name), content).unwrap();
    }
    let mut config = bed.agent_config(server.agent_port, "agent");
    if let Some(tls) = &mut config.tls {
        tls.ca = Some(bed.file("next.crt"));
        tls.certificate = Some(CertificateFiles {
            certificate: bed.file("next-agent.crt"),
            key: bed.file("next-agent.key"),
        });
    }
    let (agent, _) = bed.start_agent(config);
    // First the agent: it trusts the server once its own CA file contains the CA.
    std::fs::write(bed.file("next.crt"), format!("{}{}", other.certificate(), bed.authority.certificate()))
        .unwrap();
    // Then the server: both CAs are valid during the change.
    std::fs::write(bed.file("ca.crt"), format!("{}{}", bed.authority.certificate(), other.certificate()))
        .unwrap();
    eventually("the agent to be let in", ROTATED, || (agent.connected_servers() == 1).then_some(())).unwrap();
}

/// Tests that a canceled dial leaves neither a tunnel nor a metric behind.
#[test]
fn abandoned_grpc_dials_leave_nothing() {
    let bed = Bed::new().unwrap();
    let server = bed.start_server(ServerConfig { agent_tls: None, ..bed.server_config(Mode::Grpc) }).unwrap();
    let echo = Endpoint::echo().unwrap().address().to_string();
    let (agent, _) =
        bed.start_agent(AgentConfig { tls: None, ..bed.agent_config(server.agent_port, "agent") });
    eventually("the agent", SOON, || server.view.is_ready().then_some(())).unwrap();
    for _ in 0..200 {
        let mut client = GrpcClient::open(&bed.socket()).unwrap();
        client.ask(&echo, 5).unwrap();
    }
    eventually("all of it to be gone", SOON, || {
        let left: usize = server.view.agents().iter().map(|agent| agent.tunnels + agent.pending).sum();
        (left == 0 && agent.tunnels() == 0).then_some(())
    })
    .unwrap();
}

#[test]
fn a_socket_left_over_is_replaced_one_in_use_is_not_and_a_bad_one_is_an_error() {
    let bed = Bed::new().unwrap();
    let bind = |path: PathBuf| {
        let config = ServerConfig { frontend: at(path), ..plain(&bed) };
        bed.runtime.block_on(Server::bind(config, None))
    };
    // A crash leaves a stale socket.
    drop(std::os::unix::net::UnixListener::bind(bed.socket()).unwrap());
    assert!(bed.socket().exists());
    let server = bind(bed.socket()).unwrap();
    let error = bind(bed.socket()).unwrap_err().to_string();
    assert!(error.ends_with("is in use by another server"), "{error}");
    let error = bind(bed.file("nowhere").join("frontend.sock")).unwrap_err().to_string();
    assert!(error.starts_with("cannot listen on `"), "{error}");
    drop(server);
}

/// Tests that a wrong path does not delete a file.
#[test]
fn only_a_socket_is_replaced() {
    let bed = Bed::new().unwrap();
    let bind = |path: PathBuf| {
        let config = ServerConfig { frontend: at(path), ..plain(&bed) };
        bed.runtime.block_on(Server::bind(config, None))
    };
    let (file, link) = (bed.file("file"), bed.file("link"));
    std::fs::write(&file, "somebody's").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for path in [&file, &link] {
        let error = bind(path.clone()).unwrap_err().to_string();
        assert!(error.ends_with("exists and is not a socket"), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&link).unwrap(), "somebody's");
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
}

/// Tests that different spellings of an agent's address select that agent.
#[test]
fn an_agent_is_found_by_address_however_it_is_written() {
    let bed = Bed::new().unwrap();
    let config =
        ServerConfig { proxy_strategies: vec![landfall_tunnel::config::Strategy::DestHost], ..plain(&bed) };
    let server = bed.start_server(config).unwrap();
    let identified = |id: &str, identifiers: &str| {
        let agent_identifiers =
            landfall_tunnel::Identifiers::parse(identifiers, landfall_tunnel::Unknown::Refused).unwrap();
        let config = AgentConfig { tls: None, agent_identifiers, ..bed.agent_config(server.agent_port, id) };
        bed.start_agent(config);
    };
    identified("loop", "ipv6=::1");
    identified("net", "cidr=127.0.0.0/8");
    eventually("both agents", SOON, || (server.view.agents().len() == 2).then_some(())).unwrap();
    let carried =
        |id: &str| server.view.agents().iter().find(|agent| agent.id == id).map_or(0, |agent| agent.tunnels);
    let echo: SocketAddr = Endpoint::echo().unwrap().address();
    let mut tunnel = connect(&bed.socket(), &echo.to_string()).unwrap();
    ping(&mut tunnel);
    assert_eq!((carried("loop"), carried("net")), (0, 1));
    let Ok(listener) = std::net::TcpListener::bind("[::1]:0") else { return };
    let address = format!("[0:0:0:0:0:0:0:1]:{}", listener.local_addr().unwrap().port());
    let _tunnel = connect(&bed.socket(), &address).unwrap();
    assert_eq!((carried("loop"), carried("net")), (1, 1));
}
