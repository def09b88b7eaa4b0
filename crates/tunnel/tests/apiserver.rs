//! A real kube-apiserver that reaches webhooks and kubelets only through the tunnel. They are in a network namespace
//! without a route from kube-apiserver, and only the agent runs inside.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bed;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};

use base64::Engine as _;
use landfall_pki::{Leaf, Purpose};
use landfall_testkit::{
    Answer, ApiServer, ApiServerSpec, Binary, Need, Process, Webhook, eventually, free_port, have,
};
use landfall_tunnel::agent::AgentView;
use landfall_tunnel::config::{AgentConfig, Frontend, Mode, ServerConfig};
use landfall_tunnel::server::ServerView;
use serde_json::{Value, json};

use bed::namespace::{INSIDE, Namespace};
use bed::{Bed, Pairing, SOON, UPSTREAM, kubelet};

/// Length of a long stream, in pieces of 64 KiB.
const PIECES: usize = 256;

/// The configured connection from kube-apiserver to the tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    ConnectUnix,
    ConnectTls,
    GrpcUnix,
}

/// kube-apiserver, the tunnel, and the network behind it.
struct World {
    cluster: ApiServer,
    namespace: Namespace,
    server: Option<ServerView>,
    agent: Option<AgentView>,
    _processes: Vec<Process>,
    _bed: Bed,
}

impl World {
    /// Returns `None` if a required program is missing.
    fn new(way: Way, pairing: Pairing) -> Option<Self> {
        if !have(ApiServer::NEEDS)
            || !have(&[Need::Root, Need::Program("ip")])
            || pairing != Pairing::OursOurs && !have(UPSTREAM)
        {
            return None;
        }
        let (bed, namespace) = (Bed::new().unwrap(), Namespace::new().unwrap());
        let names = ["127.0.0.1".to_owned(), namespace.host().to_string()];
        bed.issue("server", &Leaf::new("server", Purpose::Serve).names(names)).unwrap();
        let (mut processes, mut server) = (Vec::new(), None);
        let mode = if way == Way::GrpcUnix { Mode::Grpc } else { Mode::HttpConnect };
        let (agent_port, frontend) = if pairing == Pairing::OurAgent {
            let frontend = (way == Way::ConnectTls)
                .then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, free_port().unwrap())));
            let (process, port) =
                bed.upstream_server_with(mode, namespace.host(), frontend.map(|at| at.port())).unwrap();
            processes.push(process);
            (port, frontend)
        } else {
            let mut config = ServerConfig { agent_bind_address: namespace.host(), ..bed.server_config(mode) };
            if way == Way::ConnectTls {
                let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
                config.frontend = Frontend::Tcp { address, port: 0, tls: bed.serving() };
            }
            let started = bed.start_server(config).unwrap();
            server = Some(started.view);
            (started.agent_port, started.frontend)
        };
        let agent = if pairing == Pairing::OurServer {
            processes.push(bed.upstream_agent_in(&namespace, agent_port).unwrap());
            None
        } else {
            let config = AgentConfig {
                proxy_server_host: namespace.host().to_string(),
                ..bed.agent_config(agent_port, "agent")
            };
            Some(bed.start_agent_in(&namespace, config).unwrap())
        };
        let path = bed.file("egress.json");
        std::fs::write(&path, egress(&bed, way, frontend).to_string()).unwrap();
        let cluster = ApiServer::start_with(&ApiServerSpec {
            arguments: vec![format!("--egress-selector-config-file={}", path.display())],
            ..ApiServerSpec::default()
        })
        .unwrap();
        Some(Self { cluster, namespace, server, agent, _processes: processes, _bed: bed })
    }

    /// Returns the number of open tunnels at landfall's ends.
    fn carried(&self) -> usize {
        let server = self.server.as_ref().map(ServerView::agents).unwrap_or_default();
        server.iter().map(|agent| agent.tunnels).sum::<usize>()
            + self.agent.as_ref().map_or(0, AgentView::tunnels)
    }
}

fn egress(bed: &Bed, way: Way, frontend: Option<SocketAddr>) -> Value {
    let transport = match frontend {
        None => json!({"uds": {"udsName": bed.socket()}}),
        Some(frontend) => json!({"tcp": {"url": format!("https://{frontend}"), "tlsConfig": {
            "caBundle": bed.file("ca.crt"), "clientCert": bed.file("client.crt"), "clientKey": bed.file("client.key"),
        }}}),
    };
    let protocol = if way == Way::GrpcUnix { "GRPC" } else { "HTTPConnect" };
    // Webhooks with a URL use the `controlplane` network; nodes, and webhooks with a service, use the `cluster`
    // network.
    let selections = ["cluster", "controlplane"]
        .map(|name| json!({"name": name, "connection": {"proxyProtocol": protocol, "transport": transport}}));
    json!({
        "apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration",
        "egressSelections": selections,
    })
}

fn a_webhook_is_called(way: Way, pairing: Pairing) {
    let Some(world) = World::new(way, pairing) else { return };
    let webhook = world
        .namespace
        .inside(|| Webhook::start(SocketAddr::from((INSIDE, 0)), Answer::Deny("not through here".into())))
        .unwrap()
        .unwrap();
    let bundle = base64::engine::general_purpose::STANDARD.encode(webhook.authority());
    world
        .cluster
        .apply(&json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "tunnel"},
            "webhooks": [{
                "name": "tunnel.landfall.dev", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "failurePolicy": "Fail", "timeoutSeconds": 10,
                "clientConfig": {"url": format!("https://{}/", webhook.address()), "caBundle": bundle},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
            }],
        }))
        .unwrap();
    let name = "--namespace=default";
    // The configuration takes effect after a moment, and an agent may need time, too.
    eventually("the webhook's answer", SOON * 3, || {
        let created = world.cluster.kubectl(&["create", "configmap", "guarded", name]);
        world.cluster.kubectl(&["delete", "configmap", "guarded", name, "--ignore-not-found"]).unwrap();
        created.err().filter(|refusal| refusal.to_string().contains("not through here"))
    })
    .unwrap();
    assert!(!webhook.reviews().is_empty());
    // kube-apiserver keeps its connection to the webhook open.
    assert!(world.carried() > 0, "the webhook was called past the tunnel");
}

/// Tests the basis of `kubectl logs --follow` and `kubectl exec`: a long response, and bytes in both directions on an
/// upgraded connection. The path is from a client through kube-apiserver and the tunnel to a kubelet.
fn long_streams_go_both_ways(way: Way, pairing: Pairing) {
    let Some(world) = World::new(way, pairing) else { return };
    let kubelet = world
        .namespace
        .inside(|| kubelet::start(IpAddr::V4(INSIDE), world.cluster.authority(), PIECES))
        .unwrap()
        .unwrap();
    world
        .cluster
        .apply(&json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": "island"},
            "status": {
                "addresses": [{"type": "InternalIP", "address": INSIDE.to_string()}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.port()}},
            },
        }))
        .unwrap();
    let path = "/api/v1/nodes/island/proxy/stream";
    let answer = eventually("the kubelet's answer", SOON * 3, || {
        world.cluster.kubectl(&["get", "--raw", path]).ok().filter(|answer| !answer.is_empty())
    })
    .unwrap();
    assert_eq!(answer.trim_end().len(), PIECES * 64 * 1024);

    let port = free_port().unwrap();
    let _proxy = Process::start(
        "kubectl-proxy",
        &Binary::Kubectl.path().unwrap(),
        world.cluster.directory(),
        |command| {
            command.arg("--kubeconfig").arg(world.cluster.admin_kubeconfig());
            command.args(["proxy", &format!("--port={port}")]);
        },
    )
    .unwrap();
    let mut socket =
        eventually("the way in", SOON, || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()).unwrap();
    socket.set_read_timeout(Some(SOON * 3)).unwrap();
    write!(
        socket,
        "GET /api/v1/nodes/island/proxy/exec HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: Upgrade\r\n\
         Upgrade: SPDY/3.1\r\n\r\n"
    )
    .unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    assert!(world.carried() > 0, "the kubelet was called past the tunnel");
    let mut writer = socket.try_clone().unwrap();
    let writing = std::thread::spawn(move || {
        let piece: Vec<u8> = (0..64 * 1024).map(|at| u8::try_from(at % 251).unwrap()).collect();
        for _ in 0..PIECES {
            writer.write_all(&piece).unwrap();
        }
        piece
    });
    let mut back = vec![0; PIECES * 64 * 1024];
    socket.read_exact(&mut back).unwrap();
    let piece = writing.join().unwrap();
    assert!(back.chunks(piece.len()).all(|found| found == piece));
}

#[test]
fn webhook_through_connect_over_a_unix_socket() {
    a_webhook_is_called(Way::ConnectUnix, Pairing::OursOurs);
}

#[test]
fn webhook_through_connect_over_tls() {
    a_webhook_is_called(Way::ConnectTls, Pairing::OursOurs);
}

#[test]
fn webhook_through_grpc_over_a_unix_socket() {
    a_webhook_is_called(Way::GrpcUnix, Pairing::OursOurs);
}

#[test]
fn webhook_through_our_server_and_an_upstream_agent() {
    for way in [Way::ConnectUnix, Way::ConnectTls, Way::GrpcUnix] {
        a_webhook_is_called(way, Pairing::OurServer);
    }
}

#[test]
fn webhook_through_an_upstream_server_and_our_agent() {
    for way in [Way::ConnectUnix, Way::ConnectTls, Way::GrpcUnix] {
        a_webhook_is_called(way, Pairing::OurAgent);
    }
}

#[test]
fn long_streams_through_connect() {
    long_streams_go_both_ways(Way::ConnectUnix, Pairing::OursOurs);
}

#[test]
fn long_streams_through_grpc() {
    long_streams_go_both_ways(Way::GrpcUnix, Pairing::OursOurs);
}

#[test]
fn long_streams_through_upstream_peers() {
    long_streams_go_both_ways(Way::GrpcUnix, Pairing::OurServer);
    long_streams_go_both_ways(Way::GrpcUnix, Pairing::OurAgent);
}
