//! A hub that reaches agents without a direct connection: through the API server of their cluster, and through our
//! tunnel.

use std::path::{Path, PathBuf};
use std::time::Duration;

use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{
    ApiServer, ControllerManager, Invitation, Node, NodeSpec, POD_IMAGE, Process, eventually, free_port, have,
};
use serde_json::{Value, json};

use crate::agent_serve::agent;
use crate::command::Bench;
use crate::hub::ask;

const LIMIT: Duration = Duration::from_secs(180);
/// The permissions that the guide grants to the hub's account, and no more.
const GUIDE: &str = include_str!("../../../../docs/guides/hub.md");
const PROGRAM: &str = env!("CARGO_BIN_EXE_landfall");

fn hub(bench: &Bench, further: &[&str]) -> (Process, u16) {
    let port = free_port().unwrap();
    let mut hub = Process::start("hub", Path::new(PROGRAM), bench.path(), |command| {
        command.current_dir(bench.path()).args(["hub", "--listen", &format!("127.0.0.1:{port}")]);
        command.args(["--store", "sqlite:hub.db", "--objects", "file:bundles", "--pull-every=1"]);
        command.args(further);
    })
    .unwrap();
    hub.wait_until("it listens", LIMIT, || {
        ask(port, "GET", "/readyz", "").filter(|(status, _)| *status == 200)
    })
    .unwrap();
    (hub, port)
}

/// Returns one node of the fleet view.
fn node_of(port: u16, name: &str) -> Option<Value> {
    let (status, body) = ask(port, "GET", &format!("/api/v1/nodes/{name}"), "")?;
    (status == 200).then(|| serde_json::from_str(&body).ok()).flatten()
}

/// A node whose agent listens on its loopback address only.
fn guarded(invitation: &Invitation, authority: &Authority) -> NodeSpec {
    let mut spec = invitation.node("worker");
    let served = authority.issue(&Leaf::new("agent", Purpose::Serve).names(["worker"])).unwrap();
    let options = "LANDFALL_AGENT_OPTIONS=--serve 127.0.0.1:8710 --serve-client-ca /etc/landfall/ca.crt \
         --serve-cert /etc/landfall/agent.crt --serve-key /etc/landfall/agent.key\n";
    spec.files.extend([
        (
            "/etc/systemd/system/landfall-agent.service".into(),
            include_bytes!("../../../../dist/landfall-agent.service").to_vec(),
        ),
        (
            "/etc/systemd/system/sysinit.target.d/agent.conf".into(),
            b"[Unit]\nWants=landfall-agent.service\n".to_vec(),
        ),
        ("/etc/landfall/agent.env".into(), options.as_bytes().to_vec()),
        ("/etc/landfall/ca.crt".into(), authority.certificate().as_bytes().to_vec()),
        ("/etc/landfall/agent.crt".into(), served.certificate.into_bytes()),
        ("/etc/landfall/agent.key".into(), served.key.expose().as_bytes().to_vec()),
    ]);
    spec.arguments.push(format!("--bind-ro={PROGRAM}:/usr/local/bin/landfall"));
    spec
}

/// Returns a kubeconfig for the account of the guide, with an API server at this address.
fn access(api: &ApiServer, url: &str) -> String {
    let token = api.kubectl(&["create", "token", "-n", "kube-system", "landfall-pull"]).unwrap();
    let authority = api.directory().join("ca.crt").display().to_string();
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url, "certificate-authority": authority}}],
        "users": [{"name": "u", "user": {"token": token.trim()}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    })
    .to_string()
}

/// Returns the permissions as in the guide.
fn rights() -> &'static str {
    let (_, section) = GUIDE.split_once("### Through an API server\n").unwrap();
    let (_, rest) = section.split_once("```yaml\n").unwrap();
    rest.split_once("```").unwrap().0
}

fn certificates(bench: &Bench, authority: &Authority) {
    let leaf = Leaf::new("hub", Purpose::Call).organization("landfall:viewers");
    let issued = authority.issue(&leaf).unwrap();
    bench.file("ca.crt", authority.certificate());
    bench.file("viewer.crt", &issued.certificate);
    bench.file("viewer.key", issued.key.expose());
}

#[test]
fn nodes_of_a_cluster_are_asked_through_its_api_server() {
    let needs = [Node::NEEDS, ApiServer::NEEDS, ControllerManager::NEEDS, Invitation::NEEDS].concat();
    if !have(&needs) {
        return;
    }
    let (bench, authority) = (Bench::new(), Authority::new("landfall", 7).unwrap());
    certificates(&bench, &authority);
    let mut spec = Invitation::api_server();
    // The name of the node is not in DNS, and its kubelet has a self-signed certificate.
    spec.arguments.push("--kubelet-preferred-address-types=InternalIP".to_owned());
    spec.arguments.push("--kubelet-certificate-authority=".to_owned());
    let api = ApiServer::start_with(&spec).unwrap();
    let _controllers = ControllerManager::start(&api).unwrap();
    let invitation = Invitation::create(&api).unwrap();
    let mut worker = Node::boot(&guarded(&invitation, &authority)).unwrap();
    let file = bench.file("rights.yaml", rights());
    api.kubectl(&["apply", "-f", &file.display().to_string()]).unwrap();
    bench.file("east.kubeconfig", access(&api, &api.url()));
    let flags = ["--pull-cluster=east=east.kubeconfig", "--pull-ca=ca.crt", "--pull-cert=viewer.crt"];
    let (hub, port) = hub(&bench, &[&flags[..], &["--pull-key=viewer.key"]].concat());

    assert_eq!(worker.wait_for_cloud_init().unwrap(), [""; 0], "`kubeadm join` failed");
    eventually("the node to be ready", LIMIT, || worker.is_ready(&api).unwrap().then_some(())).unwrap();
    // Without a pod there is no route, and the log says so.
    eventually("the hub to miss a way", LIMIT, || hub.log().contains("no pod that runs").then_some(()))
        .unwrap();
    // Like the pod of kube-proxy on that node.
    api.apply(&json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "way", "namespace": "kube-system"},
        "spec": {
            "nodeName": "worker", "hostNetwork": true, "automountServiceAccountToken": false,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "pause", "image": POD_IMAGE, "imagePullPolicy": "Never"}],
        },
    }))
    .unwrap();
    let found = eventually("the node on the board", LIMIT, || {
        node_of(port, "worker").filter(|node| node["state"] == "succeeded" || node["state"] == "degraded")
    });
    let found = found.unwrap_or_else(|error| panic!("{error}: {:?}\n{}", node_of(port, "worker"), hub.log()));
    assert_eq!(found["identity"]["hostname"], "worker", "{found}");

    only_what_the_guide_says(&api, &bench);
    a_kubelet_that_does_not_let_the_api_server_in_is_explained(&api, &bench, &hub);
}

fn only_what_the_guide_says(api: &ApiServer, bench: &Bench) {
    let access = format!("--kubeconfig={}", bench.path().join("east.kubeconfig").display());
    for question in [
        &["get", "secrets", "-n", "kube-system"][..],
        &["create", "pods/exec", "-n", "kube-system"],
        &["create", "pods/portforward", "-n", "default"],
        &["list", "pods", "-n", "default"],
        &["get", "nodes/proxy"],
    ] {
        let question = [&[access.as_str(), "auth", "can-i"], question].concat();
        assert!(api.kubectl(&question).is_err(), "{question:?}");
    }
}

/// As in clusters where kubeadm renewed the API server's certificate without the matching permission.
fn a_kubelet_that_does_not_let_the_api_server_in_is_explained(api: &ApiServer, bench: &Bench, hub: &Process) {
    let user = "kube-apiserver-kubelet-client";
    api.kubeconfig_for(user, "nobody").unwrap();
    let file = |end: &str| api.directory().join(format!("{user}.{end}")).display().to_string();
    let flags = [
        format!("--kubelet-client-certificate={}", file("crt")),
        format!("--kubelet-client-key={}", file("key")),
    ];
    // kubeadm of this version creates it.
    let binding = ["delete", "clusterrolebinding", "kubeadm:apiserver-kubelet-client", "--ignore-not-found"];
    api.kubectl(&binding).unwrap();
    let sibling = api.sibling_with(&flags).unwrap();
    bench.file("east.kubeconfig", access(api, &format!("https://127.0.0.1:{}", sibling.port())));
    let hint = "kubeadm:apiserver-kubelet-client";
    eventually("the hint", LIMIT, || hub.log().contains(hint).then_some(()))
        .unwrap_or_else(|error| panic!("{error}: {}", hub.log()));
}

/// The address of the tunnel server's frontend.
enum Front {
    Socket,
    Tls(u16),
}

struct Tunnel {
    bench: Bench,
    front: Front,
    agents: u16,
}

impl Tunnel {
    fn new(front: Front) -> Self {
        let (bench, authority) = (Bench::new(), Authority::new("tunnel", 7).unwrap());
        bench.file("tunnel-ca.crt", authority.certificate());
        for (name, leaf) in [
            ("server", Leaf::new("server", Purpose::Serve).names(["127.0.0.1"])),
            ("boat", Leaf::new("boat", Purpose::Call)),
            ("front", Leaf::new("hub", Purpose::Call)),
        ] {
            let pair = authority.issue(&leaf).unwrap();
            bench.file(&format!("{name}.crt"), &pair.certificate);
            bench.file(&format!("{name}.key"), pair.key.expose());
        }
        Self { bench, front, agents: free_port().unwrap() }
    }

    fn start(&self, name: &str, flags: &[String]) -> Process {
        Process::start(name, Path::new(PROGRAM), self.bench.path(), |command| {
            command.current_dir(self.bench.path()).args(["tunnel", name]).args(flags);
        })
        .unwrap()
    }

    fn server(&self) -> Process {
        let [health, admin] = [(); 2].map(|()| free_port().unwrap());
        let mut flags = vec![
            "--mode=http-connect".to_owned(),
            "--agent-bind-address=127.0.0.1".to_owned(),
            format!("--agent-port={}", self.agents),
            format!("--health-port={health}"),
            format!("--admin-port={admin}"),
            "--cluster-cert=server.crt".to_owned(),
            "--cluster-key=server.key".to_owned(),
            "--cluster-ca-cert=tunnel-ca.crt".to_owned(),
        ];
        match self.front {
            Front::Socket => {
                flags.extend(["--uds-name=front.sock", "--server-port=0"].map(str::to_owned));
            }
            Front::Tls(port) => flags.extend([
                format!("--server-port={port}"),
                "--server-cert=server.crt".to_owned(),
                "--server-key=server.key".to_owned(),
                "--server-ca-cert=tunnel-ca.crt".to_owned(),
            ]),
        }
        self.start("server", &flags)
    }

    fn agent(&self) -> Process {
        let [health, admin] = [(); 2].map(|()| free_port().unwrap());
        self.start(
            "agent",
            &[
                "--proxy-server-host=127.0.0.1".to_owned(),
                format!("--proxy-server-port={}", self.agents),
                "--ca-cert=tunnel-ca.crt".to_owned(),
                "--agent-cert=boat.crt".to_owned(),
                "--agent-key=boat.key".to_owned(),
                format!("--health-server-port={health}"),
                format!("--admin-server-port={admin}"),
            ],
        )
    }

    fn socket(&self) -> PathBuf {
        self.bench.path().join("front.sock")
    }
}

fn through_the_tunnel(tunnel: &Tunnel) {
    let authority = Authority::new("landfall", 7).unwrap();
    let (bench, port) = (&tunnel.bench, free_port().unwrap());
    let _agent = agent(bench, &authority, "127.0.0.1", port);
    certificates(bench, &authority);
    let _server = tunnel.server();
    let mut flags =
        ["--pull-ca=ca.crt", "--pull-cert=viewer.crt", "--pull-key=viewer.key"].map(str::to_owned).to_vec();
    flags.push(format!("--pull=castaway=127.0.0.1:{port}"));
    match tunnel.front {
        Front::Socket => flags.push(format!("--pull-proxy=unix://{}", tunnel.socket().display())),
        Front::Tls(port) => flags.extend([
            format!("--pull-proxy=https://127.0.0.1:{port}"),
            "--pull-proxy-ca=tunnel-ca.crt".to_owned(),
            "--pull-proxy-cert=front.crt".to_owned(),
            "--pull-proxy-key=front.key".to_owned(),
        ]),
    }
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let (hub, port) = hub(bench, &flags);
    // Without a tunnel agent there is no route, although the node agent would be reachable directly.
    let refused = "currently no tunnels available";
    eventually("the tunnel to lead nowhere", LIMIT, || hub.log().contains(refused).then_some(()))
        .unwrap_or_else(|error| panic!("{error}: {}", hub.log()));
    assert_eq!(node_of(port, "castaway"), None);
    let _boat = tunnel.agent();
    eventually("the verdict on the board", LIMIT, || {
        node_of(port, "castaway").filter(|node| node["cause"] == "dns-resolution-failure")
    })
    .unwrap_or_else(|error| panic!("{error}: {:?}\n{}", node_of(port, "castaway"), hub.log()));
}

#[test]
fn agents_are_asked_through_the_socket_of_a_tunnel_s_server() {
    through_the_tunnel(&Tunnel::new(Front::Socket));
}

#[test]
fn agents_are_asked_through_the_port_of_a_tunnel_s_server() {
    through_the_tunnel(&Tunnel::new(Front::Tls(free_port().unwrap())));
}

#[test]
fn ways_that_cannot_be_meant_are_refused() {
    let bench = Bench::new();
    certificates(&bench, &Authority::new("landfall", 7).unwrap());
    let flags = ["hub", "--pull-ca", "ca.crt", "--pull-cert", "viewer.crt", "--pull-key", "viewer.key"];
    for (words, error) in [
        (&["--pull", "n1", "--pull-proxy", "socks5://me:hush@proxy:1080"][..], "invalid proxy"),
        (&["--pull", "n1", "--pull-proxy", "https://proxy"], "requires the CA"),
        (&["--pull-cluster", "=x"], "invalid cluster to poll"),
        (&["--pull-cluster", "a=x", "--pull-cluster", "a=y"], "are called `a`"),
    ] {
        let run = bench.run(&[&flags[..], words].concat());
        assert!(run.code == 64 && run.stderr.contains(error), "{run:?}");
        assert!(!run.stderr.contains("hush"), "{run:?}");
    }
}
