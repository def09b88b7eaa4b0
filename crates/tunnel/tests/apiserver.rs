//! A real kube-apiserver that reaches its webhooks through the tunnel only.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bed;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use base64::Engine as _;
use landfall_testkit::{Answer, ApiServer, ApiServerSpec, Webhook, eventually, have};
use landfall_tunnel::config::{Frontend, Mode, ServerConfig};
use landfall_tunnel::server::ServerView;
use serde_json::json;

use bed::{Bed, SOON, UPSTREAM};

/// How kube-apiserver is told to come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    ConnectUnix,
    ConnectTls,
    GrpcUnix,
}

/// Whose agent answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Ours,
    Upstreams,
}

fn a_webhook_is_called_through_the_tunnel(way: Way, whose: Whose) {
    if !have(ApiServer::NEEDS) || whose == Whose::Upstreams && !have(UPSTREAM) {
        return;
    }
    let bed = Bed::new().unwrap();
    let mode = if way == Way::GrpcUnix { Mode::Grpc } else { Mode::HttpConnect };
    let mut config = bed.server_config(mode);
    if way == Way::ConnectTls {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        config = ServerConfig { frontend: Frontend::Tcp { address, port: 0, tls: bed.serving() }, ..config };
    }
    let server = bed.start_server(config).unwrap();
    let (agent, process) = match whose {
        Whose::Ours => (Some(bed.start_agent(bed.agent_config(server.agent_port, "agent")).0), None),
        Whose::Upstreams => (None, Some(bed.upstream_agent(server.agent_port, "agent").unwrap())),
    };
    eventually("the agent", SOON, || server.view.is_ready().then_some(())).unwrap();

    let transport = match server.frontend {
        None => json!({"uds": {"udsName": bed.socket()}}),
        Some(frontend) => json!({"tcp": {"url": format!("https://{frontend}"), "tlsConfig": {
            "caBundle": bed.file("ca.crt"), "clientCert": bed.file("client.crt"), "clientKey": bed.file("client.key"),
        }}}),
    };
    let protocol = if way == Way::GrpcUnix { "GRPC" } else { "HTTPConnect" };
    // Webhooks with a URL belong to the control plane's network, those with a service to the cluster's.
    let selections = ["cluster", "controlplane"]
        .map(|name| json!({"name": name, "connection": {"proxyProtocol": protocol, "transport": transport}}));
    let egress = json!({
        "apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration",
        "egressSelections": selections,
    });
    let path = bed.file("egress.json");
    std::fs::write(&path, egress.to_string()).unwrap();
    let cluster = ApiServer::start_with(&ApiServerSpec {
        arguments: vec![format!("--egress-selector-config-file={}", path.display())],
        ..ApiServerSpec::default()
    })
    .unwrap();

    let webhook =
        Webhook::start(SocketAddr::from(([127, 0, 0, 1], 0)), Answer::Deny("not through here".into()))
            .unwrap();
    let bundle = base64::engine::general_purpose::STANDARD.encode(webhook.authority());
    cluster
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
    // The configuration takes effect a moment later.
    let refusal = eventually("the webhook's answer", SOON, || {
        let created = cluster.kubectl(&["create", "configmap", "guarded", "--namespace=default"]);
        let undone =
            cluster.kubectl(&["delete", "configmap", "guarded", "--namespace=default", "--ignore-not-found"]);
        assert!(undone.is_ok());
        created.err()
    })
    .unwrap()
    .to_string();
    assert!(refusal.contains("not through here"), "{refusal}");
    assert!(!webhook.reviews().is_empty());
    assert!(carried(&server.view) > 0, "the webhook was called past the tunnel");
    drop((agent, process));
}

/// Tunnels that are open; kube-apiserver keeps its connection to the webhook.
fn carried(server: &ServerView) -> usize {
    server.agents().iter().map(|agent| agent.tunnels).sum()
}

#[test]
fn webhook_through_connect_over_a_unix_socket() {
    a_webhook_is_called_through_the_tunnel(Way::ConnectUnix, Whose::Ours);
}

#[test]
fn webhook_through_connect_over_tls() {
    a_webhook_is_called_through_the_tunnel(Way::ConnectTls, Whose::Ours);
}

#[test]
fn webhook_through_grpc_over_a_unix_socket() {
    a_webhook_is_called_through_the_tunnel(Way::GrpcUnix, Whose::Ours);
}

#[test]
fn webhook_through_grpc_and_an_upstream_agent() {
    a_webhook_is_called_through_the_tunnel(Way::GrpcUnix, Whose::Upstreams);
}
