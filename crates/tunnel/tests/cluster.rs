//! Queries of server and agent to a real kube-apiserver: token reviews and server leases.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bed;

use std::sync::Arc;

use landfall_cluster::{Cluster, LeaseQuery};
use landfall_testkit::{ApiServer, eventually, have};
use landfall_tunnel::agent::{Agent, CountSource};
use landfall_tunnel::config::{AgentConfig, ClientTls, Mode, ServerConfig, ServerTlsFiles};
use landfall_tunnel::server::{Authenticate, LeaseSettings, Server, TokenReviews, labels};
use tokio_util::sync::CancellationToken;

use bed::{Bed, SOON};

const LABEL: &str = "k8s-app=konnectivity-server";

#[test]
fn agents_are_known_by_their_token_and_servers_by_their_lease() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let cluster = ApiServer::start().unwrap();
    let bed = Bed::new().unwrap();
    let door = bed.runtime.block_on(Cluster::from_kubeconfig(&cluster.admin_kubeconfig())).unwrap();
    tokens_open_the_door(&cluster, &bed, &door);
    leases_count_servers(&cluster, &bed, &door);
}

fn tokens_open_the_door(cluster: &ApiServer, bed: &Bed, door: &Cluster) {
    for account in ["agent", "stranger"] {
        cluster.kubectl(&["create", "serviceaccount", "-n", "kube-system", account]).unwrap();
    }
    let token = |account: &str, audience: &str| {
        let audience = format!("--audience={audience}");
        cluster.kubectl(&["create", "token", "-n", "kube-system", account, &audience]).unwrap()
    };
    let reviews = TokenReviews::new(door.clone(), "kube-system", "agent", "tunnel".to_owned());
    let reviews: Arc<dyn Authenticate> = Arc::new(reviews);
    for (token, said) in [
        (token("stranger", "tunnel"), "is of system:serviceaccount:kube-system:stranger"),
        (token("agent", "elsewhere"), "not valid"),
        ("made.up.token".to_owned(), "not valid"),
    ] {
        let refused = bed.runtime.block_on(reviews.check(token.trim().as_bytes())).unwrap_err();
        assert!(refused.contains(said), "{refused}");
    }

    // Without client certificates, the token is the only credential.
    let files = ServerTlsFiles { client_ca: None, ..bed.serving() };
    let config = ServerConfig { agent_tls: Some(files), ..bed.server_config(Mode::HttpConnect) };
    let server = bed.start_server_with(config, Some(reviews)).unwrap();
    let path = bed.file("token");
    std::fs::write(&path, token("stranger", "tunnel")).unwrap();
    let tls = ClientTls { ca: Some(bed.file("ca.crt")), certificate: None, protocols: vec![b"h2".to_vec()] };
    let config = AgentConfig {
        tls: Some(tls),
        service_account_token_path: Some(path.clone()),
        ..bed.agent_config(server.agent_port, "agent")
    };
    let (agent, stop) = bed.start_agent(config);
    assert_eq!(agent.connected_servers(), 0);
    // The kubelet replaces the file; the agent reconnects with the new token.
    std::fs::write(&path, token("agent", "tunnel")).unwrap();
    eventually("the agent to be let in", SOON, || (agent.connected_servers() == 1).then_some(())).unwrap();
    stop.cancel();
    server.stop.cancel();
}

fn leases_count_servers(cluster: &ApiServer, bed: &Bed, door: &Cluster) {
    let expired = serde_json::json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "konnectivity-proxy-server-dead", "namespace": "kube-system",
            "labels": {"k8s-app": "konnectivity-server"}},
        "spec": {"holderIdentity": "dead", "leaseDurationSeconds": 30, "renewTime": "2020-01-01T00:00:00.000000Z"},
    });
    cluster.apply(&expired).unwrap();
    let names =
        || cluster.kubectl(&["get", "leases", "-n", "kube-system", "-l", LABEL, "-o", "name"]).unwrap();

    let settings = LeaseSettings { namespace: "kube-system".to_owned(), labels: labels(LABEL).unwrap() };
    let start = |id: &str| {
        let config = ServerConfig {
            server_id: id.to_owned(),
            frontend: landfall_tunnel::config::Frontend::Unix {
                path: bed.file(id),
                delete_existing: true,
                permissions: 0o700,
            },
            ..bed.server_config(Mode::HttpConnect)
        };
        let server = bed.runtime.block_on(Server::bind(config, None)).unwrap();
        let server = server.keeping_a_lease(door.clone(), settings.clone());
        let (port, view, stop) =
            (server.agent_address().unwrap().port(), server.view(), CancellationToken::new());
        bed.runtime.spawn(server.run(stop.clone()));
        (port, view, stop)
    };
    let (port, one, stop_one) = start("one");
    let (_, _, stop_two) = start("two");
    eventually("two leases, and the dead one gone", SOON, || {
        let names = names();
        (names.contains("server-one") && names.contains("server-two") && !names.contains("dead"))
            .then_some(())
    })
    .unwrap();

    let query = LeaseQuery { namespace: "kube-system".to_owned(), selector: LABEL.to_owned() };
    let agent = bed.runtime.block_on(Agent::bind(bed.agent_config(port, "counter"))).unwrap();
    let agent = agent.counting_leases(door.clone(), query, CountSource::Default);
    let (view, stop) = (agent.view(), CancellationToken::new());
    bed.runtime.spawn(agent.run(stop.clone()));
    // The flag says one server, but the leases contain both.
    eventually("both servers to be counted", SOON, || (view.expected_servers() == 2).then_some(())).unwrap();
    eventually("the one that can be reached", SOON, || (view.connected_servers() == 1).then_some(()))
        .unwrap();
    eventually("the server to learn of the other", SOON, || (one.status().server_count == 2).then_some(()))
        .unwrap();

    // A server that stops releases its lease.
    stop_two.cancel();
    eventually("its lease to go", SOON, || (!names().contains("server-two")).then_some(())).unwrap();
    eventually("the count to follow", SOON, || (view.expected_servers() == 1).then_some(())).unwrap();
    stop.cancel();
    stop_one.cancel();
    eventually("no lease to be left", SOON, || names().trim().is_empty().then_some(())).unwrap();
}
