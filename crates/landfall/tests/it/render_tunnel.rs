//! The complete life cycle of the tunnel that `landfall render` writes for the source of the installer.
//!
//! The bootstrap API server reaches a webhook in the pod network through the tunnel only. A permanent API server on
//! another machine has no tunnel. The teardown removes everything.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use landfall_testkit::isolated::{self, HOST, in_network, shell};
use landfall_testkit::{
    Answer, ApiServer, ApiServerSpec, Binary, ControllerManager, Need, Process, Webhook, eventually, have,
};
use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

use crate::command::Bench;
use crate::render_installer::{self, IMAGE, bootkube, pre_command, prepare, said};

const LIMIT: Duration = Duration::from_secs(120);
/// Address of the machine with the permanent API server.
const PERMANENT: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 2));
/// The service of the webhook: an address of the pod network, which is only reachable from nodes.
const SERVICE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 96, 77, 1)), 8443);
const NAMESPACE: &str = "landfall-bootstrap";
const POD: &str = "/etc/kubernetes/manifests/landfall-tunnel-server.yaml";
const SERVICE_PROGRAM: &str = "/usr/local/bin/landfall-tunnel-teardown.sh";
/// File whose existence shows that the bootstrap control plane still runs.
const BOOTSTRAP: &str = "/etc/kubernetes/manifests/kube-apiserver-pod.yaml";
/// Files that stay after the teardown: its script, the unit that starts it, and markers.
const KEPT: [&str; 3] = [SERVICE_PROGRAM, "/landfall-tunnel-teardown.service", ".done"];
/// Error of the bootstrap API server for an unreachable address.
const NO_WAY: &str = "no route to host";

#[test]
fn a_bootstrap_reaches_the_pod_network_and_leaves_nothing_behind() {
    let needs = [
        isolated::NEEDS,
        render_installer::NEEDS,
        ApiServer::NEEDS,
        ControllerManager::NEEDS,
        &[Need::Program("pgrep")],
    ];
    if !needs.into_iter().all(have) {
        return;
    }
    in_network("render_tunnel::a_bootstrap_reaches_the_pod_network_and_leaves_nothing_behind", birth);
}

fn birth() {
    let bench = Bench::new();
    prepare(&bench, &["--image", IMAGE]);
    cable();
    for run in [pre_command(&bench, None), bootkube(&bench)] {
        assert!(run.status.success(), "{}", said(&run));
    }

    let spec = ApiServerSpec { address: PERMANENT, names: vec![HOST.to_owned()], ..privileged() };
    let permanent = on_machine("permanent", || ApiServer::start_with(&spec).unwrap());
    let _controllers = ControllerManager::start(&permanent).unwrap();
    let webhook =
        on_machine("client", || Webhook::start_as(SERVICE, "guard.default.svc", Answer::Allow).unwrap());
    guard(&permanent, &webhook);
    let through = Through { webhook: &webhook };
    let from_permanent = |arguments: &[&str]| permanent.kubectl(arguments);
    // An API server that does not know the webhook yet does not call it.
    through.eventually_asks(&from_permanent, "configmap", "permanent-first");
    through.eventually_asks(&from_permanent, "secret", "permanent-first");

    // The problem without a tunnel: an API server on the bootstrap host without egress configuration.
    let host: IpAddr = HOST.parse().unwrap();
    let near = TcpStream::connect_timeout(&SERVICE, Duration::from_secs(2));
    assert!(near.is_err(), "the pod network is in reach without the tunnel");
    let bare = permanent.sibling_at(host, &[]).unwrap();
    through.eventually_fails(&|arguments| bare.kubectl(arguments), "configmap", "bare", NO_WAY);
    drop(bare);

    // Before: the API server is configured for a tunnel that does not exist yet.
    shell(&format!("touch {BOOTSTRAP}"));
    // The pod of the API server mounts one directory under another name.
    shell("ln -sfn /etc/kubernetes/bootstrap-configs /etc/kubernetes/config");
    let bootstrap = permanent.sibling_at(host, &[egress_flag()]).unwrap();
    let from_bootstrap = |arguments: &[&str]| bootstrap.kubectl(arguments);
    through.eventually_fails(&from_bootstrap, "configmap", "too-early", "server.sock");
    through.asks(&from_permanent, "configmap", "permanent-before");

    // During: like cluster-bootstrap, through the bootstrap API server.
    bootstrap.kubectl(&["apply", "-f", "/opt/openshift/manifests"]).unwrap();
    let tunnel_server = run_pod(&bench, "tunnel-server", &arguments_of(&fs::read_to_string(POD).unwrap()));
    let agent = agent(&bench, &permanent);
    through.eventually_asks(&from_bootstrap, "configmap", "through-the-tunnel");
    through.asks(&from_permanent, "configmap", "permanent-during");
    // Calls of the same webhook by its URL bypass the tunnel.
    through.asks(&from_permanent, "secret", "permanent-by-url");
    through.fails(&from_bootstrap, "secret", "by-url", NO_WAY);

    // A hanging tunnel affects the bootstrap API server only.
    tunnel_server.signal(Signal::STOP).unwrap();
    through.asks(&from_permanent, "configmap", "permanent-while-it-hangs");
    through.fails(&from_bootstrap, "configmap", "while-it-hangs", "failed calling webhook");
    tunnel_server.signal(Signal::CONT).unwrap();
    through.eventually_asks(&from_bootstrap, "configmap", "after-it-hung");

    let words = ["render", "tunnel", "--for", "openshift", "--image", IMAGE, "--teardown"];
    let script = bench.run(&words);
    fs::write(bench.path().join("teardown.sh"), &script.stdout).unwrap();
    // The bootstrap has finished: its API server exits, and only then may the tunnel be removed.
    drop(bootstrap);
    fs::remove_file(BOOTSTRAP).unwrap();
    shell("touch /opt/openshift/.bootkube.done");
    std::thread::scope(|scope| {
        let teardown = scope.spawn(|| {
            tear_down(Path::new(SERVICE_PROGRAM), &permanent);
            assert!(Path::new("/opt/openshift/landfall-tunnel-teardown.done").exists());
            tear_down(&bench.path().join("teardown.sh"), &permanent);
        });
        let mut beat = 0;
        while !teardown.is_finished() {
            through.asks(&from_permanent, "configmap", &format!("permanent-beat-{beat}"));
            beat += 1;
        }
        teardown.join().unwrap();
    });
    assert!(through.was_asked("permanent-beat-0"), "it was asked all the time");
    nothing_is_left(&permanent);
    drop((tunnel_server, agent));

    // After the teardown.
    through.asks(&from_permanent, "configmap", "permanent-after");
    through.asks(&from_permanent, "secret", "permanent-after");
}

/// Sets up machines and links.
///
/// The bootstrap host has a route to every node and to the internet, but none to the pod network. The machine of the
/// permanent API server is a node, so it has one from the start.
fn cable() {
    let pods = SERVICE.ip();
    shell(&format!("ip -n client link set lo up && ip -n client addr add {pods}/32 dev lo"));
    shell("ip netns add permanent && ip -n permanent link set lo up");
    shell("ip link add north type veth peer name north-end netns permanent");
    shell("ip addr add 203.0.113.1/24 dev north && ip link set north up");
    shell(&format!(
        "ip -n permanent addr add {PERMANENT}/24 dev north-end && ip -n permanent link set north-end up"
    ));
    shell("ip -n permanent link add pods type veth peer name pods-end netns client");
    shell("ip -n permanent addr add 198.51.100.1/24 dev pods && ip -n permanent link set pods up");
    shell("ip -n client addr add 198.51.100.2/24 dev pods-end && ip -n client link set pods-end up");
    shell(&format!("ip -n permanent route add {pods}/32 via 198.51.100.2"));
    shell(&format!("ip route add unreachable {pods}/32"));
}

/// Returns the flag that selects the rendered egress configuration.
fn egress_flag() -> String {
    let path = "/etc/kubernetes/bootstrap-configs/kube-apiserver-config.yaml";
    let config: Value = serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let file = &config["apiServerArguments"]["egress-selector-config-file"][0];
    format!("--egress-selector-config-file={}", file.as_str().unwrap())
}

/// Checks whether an API server can call the webhook.
struct Through<'a> {
    webhook: &'a Webhook,
}

// === impl Through ===

impl Through<'_> {
    /// Succeeds immediately, without a retry.
    #[track_caller]
    fn asks(&self, kubectl: &dyn Fn(&[&str]) -> Result<String>, kind: &str, name: &str) {
        create(kubectl, kind, name).unwrap();
        assert!(self.was_asked(name), "{kind} `{name}` was made without the webhook's word");
    }

    #[track_caller]
    fn eventually_asks(&self, kubectl: &dyn Fn(&[&str]) -> Result<String>, kind: &str, name: &str) {
        let mut attempt = 0;
        eventually(&format!("the webhook to be asked about {kind} `{name}`"), LIMIT, || {
            attempt += 1;
            let name = format!("{name}-{attempt}");
            create(kubectl, kind, &name).ok().filter(|_| self.was_asked(&name))
        })
        .unwrap();
    }

    /// Checks that the API server denies the request because it cannot call the webhook, for this reason.
    #[track_caller]
    fn fails(&self, kubectl: &dyn Fn(&[&str]) -> Result<String>, kind: &str, name: &str, reason: &str) {
        let error = format!("{:#}", create(kubectl, kind, name).unwrap_err());
        assert!(error.contains("failed calling webhook") && error.contains(reason), "{error}");
        assert!(!self.was_asked(name), "{kind} `{name}`");
    }

    #[track_caller]
    fn eventually_fails(
        &self,
        kubectl: &dyn Fn(&[&str]) -> Result<String>,
        kind: &str,
        name: &str,
        reason: &str,
    ) {
        let mut attempt = 0;
        eventually("the API server to hear of the webhook", LIMIT, || {
            attempt += 1;
            create(kubectl, kind, &format!("{name}-{attempt}")).err()
        })
        .unwrap();
        self.fails(kubectl, kind, name, reason);
    }

    fn was_asked(&self, name: &str) -> bool {
        self.webhook.reviews().iter().any(|review| review["request"]["name"] == name)
    }
}

fn create(kubectl: &dyn Fn(&[&str]) -> Result<String>, kind: &str, name: &str) -> Result<String> {
    let words: &[&str] = if kind == "secret" { &["create", "secret", "generic"] } else { &["create", kind] };
    kubectl(&[words, &[name, "--namespace=default"]].concat())
}

fn nothing_is_left(cluster: &ApiServer) {
    for kind in ["daemonset", "secret", "rolebinding", "serviceaccount"] {
        let left = cluster.kubectl(&["get", kind, "--namespace", NAMESPACE, "-o", "name"]).unwrap();
        assert_eq!(left.trim(), "", "{kind}");
    }
    let namespace = cluster.kubectl(&["get", "namespace", NAMESPACE, "--ignore-not-found", "-o", "name"]);
    assert_eq!(namespace.unwrap().trim(), "");
    // Independent of its name: only the script, its markers and the unit that starts it still exist.
    let find = "find /etc /opt /usr/local -path '*landfall-tunnel*' -o -path '/etc/landfall/*'";
    let left = Command::new("sh").args(["-c", find]).output().unwrap();
    let left = String::from_utf8(left.stdout).unwrap();
    let unknown = |path: &&str| !KEPT.iter().any(|kept| path.ends_with(kept));
    assert_eq!(left.lines().filter(unknown).collect::<Vec<_>>(), [""; 0]);
    shell("! grep -q landfall /usr/local/bin/bootkube.sh");
}

/// An API server that accepts the pods of the agents.
pub(crate) fn privileged() -> ApiServerSpec {
    ApiServerSpec { arguments: vec!["--allow-privileged=true".to_owned()], ..ApiServerSpec::default() }
}

/// Installs files at their paths. Every affected directory of the root is covered first, so the installation is
/// visible in this test only.
pub(crate) fn install(files: &Path) {
    for folder in fs::read_dir(files).unwrap() {
        let folder = folder.unwrap().file_name().into_string().unwrap();
        let own = format!("/run/layers/{folder}");
        if !Path::new(&own).exists() {
            shell(&format!("mkdir -p {own}/upper {own}/work"));
            let layers = format!("lowerdir=/{folder},upperdir={own}/upper,workdir={own}/work");
            shell(&format!("mount -t overlay overlay -o {layers} /{folder}"));
        }
        shell(&format!("cp -r {}/{folder}/. /{folder}", files.display()));
    }
}

/// Starts the pod of the DaemonSet on the other machine, with its arguments and its Secret as in the cluster.
fn agent(bench: &Bench, cluster: &ApiServer) -> Process {
    let get = |kind: &str| -> Value {
        let words = ["get", kind, "landfall-tunnel-agent", "--namespace", NAMESPACE, "-o", "json"];
        serde_json::from_str(&cluster.kubectl(&words).unwrap()).unwrap()
    };
    let container = &get("daemonset")["spec"]["template"]["spec"]["containers"][0];
    let arguments: Vec<String> = container["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|argument| argument.as_str().unwrap().replace("/etc/landfall/tunnel", "agent"))
        .collect();
    let secret = get("secret");
    for (name, value) in secret["data"].as_object().unwrap() {
        bench.file(&format!("agent/{name}"), STANDARD.decode(value.as_str().unwrap()).unwrap());
    }
    on_machine("client", || run_pod(bench, "tunnel-agent", &arguments))
}

/// Runs the binary of the image with the arguments of a pod.
fn run_pod(bench: &Bench, name: &str, arguments: &[String]) -> Process {
    let program = Path::new(env!("CARGO_BIN_EXE_landfall"));
    Process::start(name, program, bench.path(), |command| {
        command.args(arguments).current_dir(bench.path()).env("PROXY_AGENT_ID", "node-1");
    })
    .unwrap()
}

/// Returns the list below `args:` of a pod.
fn arguments_of(pod: &str) -> Vec<String> {
    let after = pod.lines().skip_while(|line| line.trim_start_matches([' ', '-']) != "args:").skip(1);
    after.map_while(|line| line.trim().strip_prefix("- ")).map(str::to_owned).collect()
}

/// Runs a function in the network of another machine. Processes started there stay there.
fn on_machine<T>(name: &str, run: impl FnOnce() -> T) -> T {
    let enter = |path: &str| {
        let network = fs::File::open(path).unwrap();
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&network), Some(LinkNameSpaceType::Network))
            .unwrap();
    };
    let home = fs::File::open("/proc/thread-self/ns/net").unwrap();
    enter(&format!("/run/netns/{name}"));
    let done = run();
    move_into_link_name_space(std::os::fd::AsFd::as_fd(&home), Some(LinkNameSpaceType::Network)).unwrap();
    done
}

/// Registers a webhook that must allow every ConfigMap, called by its service, and every Secret, called by its URL.
fn guard(cluster: &ApiServer, webhook: &Webhook) {
    let (address, port) = (SERVICE.ip().to_string(), SERVICE.port());
    cluster
        .apply(&json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "guard", "namespace": "default"},
            "spec": {"clusterIP": address, "ports": [{"port": port}]},
        }))
        .unwrap();
    let entry = |name: &str, resource: &str, place: (&str, Value)| {
        json!({
            "name": format!("{name}.landfall.dev"), "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "failurePolicy": "Fail", "timeoutSeconds": 5,
            "clientConfig": {place.0: place.1, "caBundle": STANDARD.encode(webhook.authority())},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]}],
        })
    };
    let service = json!({"name": "guard", "namespace": "default", "port": port});
    cluster
        .apply(&json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "guard"},
            "webhooks": [
                entry("by-service", "configmaps", ("service", service)),
                entry("by-url", "secrets", ("url", json!(format!("https://{SERVICE}/")))),
            ],
        }))
        .unwrap();
}

/// Runs the script of the service, which is also shown to users.
fn tear_down(script: &Path, cluster: &ApiServer) {
    let kubectl = Binary::Kubectl.path().unwrap();
    let path = format!("{}:{}", kubectl.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let run = Command::new("bash")
        .arg(script)
        .env("KUBECONFIG", cluster.admin_kubeconfig())
        .env("HOME", cluster.directory())
        .env("PATH", path)
        .env("SERVICE_NAME", "landfall-tunnel-teardown")
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}
