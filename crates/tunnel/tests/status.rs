//! Status responses of server and agent.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bed;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};

use landfall_testkit::eventually;
use landfall_tunnel::agent::Agent;
use landfall_tunnel::config::{AgentConfig, Mode, ServerConfig};
use landfall_tunnel::server::Server;
use tokio_util::sync::CancellationToken;

use bed::endpoint::Endpoint;
use bed::{Bed, SOON, open};

fn get(address: SocketAddr, path: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn readiness_follows_the_agent_and_metrics_count_its_tunnels() {
    let bed = Bed::new().unwrap();
    let probes = Some((IpAddr::V4(Ipv4Addr::LOCALHOST), 0));
    let config = ServerConfig { agent_tls: None, health: probes, ..bed.server_config(Mode::HttpConnect) };
    let server = bed.runtime.block_on(Server::bind(config, None)).unwrap();
    let (at_server, port) = (server.health_address().unwrap(), server.agent_address().unwrap().port());
    let stop = CancellationToken::new();
    bed.runtime.spawn(server.run(stop.clone()));
    assert!(get(at_server, "/healthz").ends_with("\r\n\r\nok"));
    let answer = get(at_server, "/readyz");
    assert!(
        answer.starts_with("HTTP/1.1 500 ") && answer.ends_with("no connection to any proxy agent"),
        "{answer}"
    );

    let config = AgentConfig { tls: None, health: probes, ..bed.agent_config(port, "agent") };
    let agent = bed.runtime.block_on(Agent::bind(config)).unwrap();
    let at_agent = agent.health_address().unwrap();
    let (view, leave) = (agent.view(), CancellationToken::new());
    bed.runtime.spawn(agent.run(leave.clone()));
    eventually("the meeting", SOON, || (view.connected_servers() == 1).then_some(())).unwrap();
    eventually("readiness", SOON, || get(at_server, "/ready").starts_with("HTTP/1.1 200 ").then_some(()))
        .unwrap();
    assert!(get(at_agent, "/readyz?verbose").ends_with("[+]server-connected ok\ncheck passed\n"));

    let echo = Endpoint::echo().unwrap();
    let mut client = open(&bed.socket(), Mode::HttpConnect, &echo.address().to_string()).unwrap();
    client.write_all(b"x").unwrap();
    client.read_exact(&mut [0]).unwrap();
    assert!(open(&bed.socket(), Mode::HttpConnect, "127.0.0.1:1").is_err());
    let page = get(at_server, "/metrics");
    for line in [
        "konnectivity_network_proxy_server_established_connections 1",
        "konnectivity_network_proxy_server_pending_backend_dials 0",
        "konnectivity_network_proxy_server_http_connections 1",
        "konnectivity_network_proxy_server_ready_backends{proxy_strategy=\"default\"} 1",
        "konnectivity_network_proxy_server_dial_failure_count{reason=\"error_response\"} 1",
        "konnectivity_network_proxy_server_dial_duration_seconds_count 1",
        "konnectivity_network_proxy_server_grpc_connections{service_method=\"Connect\"} 1",
        "konnectivity_network_proxy_server_stream_packets_total{segment=\"to_agent\",packet_type=\"DIAL_REQ\"} 2",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    let page = get(at_agent, "/metrics");
    for line in [
        "konnectivity_network_proxy_agent_open_endpoint_connections 1",
        "konnectivity_network_proxy_agent_open_server_connections 1",
        "konnectivity_network_proxy_agent_known_server_count 1",
        "konnectivity_network_proxy_agent_endpoint_dial_failure_total{reason=\"unknown\"} 1",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    every_name_of_upstream_is_served(&get(at_server, "/metrics"), &get(at_agent, "/metrics"));
    stop.cancel();
    eventually("the parting", SOON, || get(at_agent, "/readyz").starts_with("HTTP/1.1 503 ").then_some(()))
        .unwrap();
    leave.cancel();
}

/// Tests metric names that dashboards and alerts depend on.
fn every_name_of_upstream_is_served(server: &str, agent: &str) {
    let served = |page: &str, prefix: &str, names: &str| {
        for name in names.split_whitespace() {
            let line = format!("# TYPE konnectivity_network_proxy_{prefix}_{name} ");
            assert!(page.lines().any(|found| found.starts_with(&line)), "{prefix}_{name} is not in\n{page}");
        }
    };
    served(
        server,
        "server",
        "dial_duration_seconds frontend_write_duration_seconds connection_duration_seconds grpc_connections \
         http_connections ready_backend_connections ready_backends pending_backend_dials established_connections \
         full_receive_channels dial_failure_count stream_packets_total stream_errors_total culled_leases_count \
         lease_delete_latency_seconds lease_delete_total lease_list_latency_seconds lease_list_total",
    );
    served(
        agent,
        "agent",
        "dial_duration_seconds server_connection_failure_count endpoint_dial_failure_total open_server_connections \
         known_server_count open_endpoint_connections stream_packets_total stream_errors_total lease_lists_total \
         lease_watches_total lease_list_latency_seconds",
    );
}
