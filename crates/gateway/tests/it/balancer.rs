//! Behind a real load balancer that probes like common ones.

use std::path::Path;
use std::process::Command;

use landfall_net::Network;
use landfall_testkit::{Need, Process, eventually, free_port, have};

use crate::bed::{Bed, GATHER_TOKEN, LIMIT};
use crate::client::Identity;

const NEEDS: &[Need] = &[Need::Program("haproxy")];

fn balancer(bed: &Bed, port: u16, server: &str) -> Process {
    let folder = bed.folder.path();
    let settings = folder.join("haproxy.cfg");
    std::fs::write(
        &settings,
        format!(
            "defaults\n mode tcp\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n\
             frontend api\n bind 127.0.0.1:{port}\n default_backend masters\n\
             backend masters\n option httpchk GET /readyz HTTP/1.0\n \
             server bootstrap {} check check-ssl verify none inter 200 fall 2 rise 1 {server}\n",
            bed.address
        ),
    )
    .unwrap();
    Process::start("haproxy", Path::new("haproxy"), folder, |command: &mut Command| {
        command.arg("-db").arg("-f").arg(&settings);
    })
    .unwrap()
}

#[test]
fn logs_come_through_a_balancer_before_there_is_an_api_server() {
    if !have(NEEDS) {
        return;
    }
    for (server, networks) in [
        ("", vec![]),
        ("send-proxy", vec!["127.0.0.0/8"]),
        ("send-proxy-v2 check-send-proxy", vec!["127.0.0.0/8"]),
    ] {
        let networks: Vec<Network> = networks.iter().map(|network| network.parse().unwrap()).collect();
        let bed = Bed::without_api(|config| config.proxy_protocol_from = networks);
        let port = free_port().unwrap();
        // Probes send the header, too, unless configured otherwise.
        let server = if server == "send-proxy" { "send-proxy check-send-proxy" } else { server };
        let _haproxy = balancer(&bed, port, server);
        let front = std::net::SocketAddr::new(bed.address.ip(), port);
        let client = bed.client_of(front, Identity::None).bearer(GATHER_TOKEN);
        let identity = eventually("an answer through the balancer", LIMIT, || {
            client.try_get(&bed.runtime, "/bootstrap/identity")
        })
        .unwrap();
        assert_eq!(identity.json()["phase"], "no-api", "{server}");
        assert_eq!(client.get(&bed.runtime, "/bootstrap").status, 200, "{server}");
        let audit = std::fs::read_to_string(bed.folder.path().join("audit.log")).unwrap();
        assert!(audit.contains("\"client\":\"127.0.0.1:"), "{audit}");
    }
}

#[test]
fn who_must_send_a_header_and_sends_none_is_refused() {
    let bed = Bed::without_api(|config| config.proxy_protocol_from = vec!["127.0.0.0/8".parse().unwrap()]);
    let got = bed.runtime.block_on(async {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut stream = tokio::net::TcpStream::connect(bed.address).await.unwrap();
        stream.write_all(b"\x16\x03\x01\0\x05hello").await.unwrap();
        let mut got = Vec::new();
        // A connection that is dropped with unread bytes is reset.
        let _ = tokio::time::timeout(LIMIT, stream.read_to_end(&mut got)).await.unwrap();
        got
    });
    assert!(got.is_empty());
}
