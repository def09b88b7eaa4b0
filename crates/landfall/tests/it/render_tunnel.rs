//! From nothing to a webhook in the pod network and away again, with what `landfall render` writes: a bootstrap API server
//! that reaches the pod network through the tunnel only, a permanent one that never knew of it, and the teardown.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use landfall_testkit::isolated::{self, HOST, in_network, shell};
use landfall_testkit::{
    Answer, ApiServer, ApiServerSpec, Binary, ControllerManager, Need, Process, Webhook, eventually, have,
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

use crate::command::Bench;

const LIMIT: Duration = Duration::from_secs(120);
/// The webhook's service: an address of the pod network, which only the other machine has.
const SERVICE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::new(10, 96, 77, 1)), 8443);
const NAMESPACE: &str = "landfall-bootstrap";
const POD: &str = "/etc/kubernetes/manifests/landfall-tunnel-server.yaml";
const SERVICE_PROGRAM: &str = "/usr/local/bin/landfall-tunnel-teardown.sh";
/// The installer's library of records, as far as our scripts call it.
const RECORDS: &str = "record_service_stage_start(){ :; }; record_service_stage_success(){ :; }\n";
/// What tells that the bootstrap's control plane is still there.
const BOOTSTRAP: &str = "/etc/kubernetes/manifests/kube-apiserver-pod.yaml";

#[test]
fn a_bootstrap_reaches_the_pod_network_and_leaves_nothing_behind() {
    let needs = [isolated::NEEDS, ApiServer::NEEDS, ControllerManager::NEEDS, &[Need::Program("pgrep")]];
    if !needs.into_iter().all(have) {
        return;
    }
    in_network("render_tunnel::a_bootstrap_reaches_the_pod_network_and_leaves_nothing_behind", birth);
}

fn birth() {
    let bench = Bench::new();
    shell(&format!("ip -n client link set lo up && ip -n client addr add {}/32 dev lo", SERVICE.ip()));

    let words = [
        "render",
        "tunnel",
        "--for",
        "openshift",
        "--server",
        HOST,
        "--image",
        "none.example/none",
        "-o",
        "out",
    ];
    let rendered = bench.run(&words);
    assert_eq!(rendered.code, 0, "{rendered:?}");
    install(&bench.path().join("out/host"));
    fs::write("/usr/local/bin/bootstrap-service-record.sh", RECORDS).unwrap();
    shell(&format!("touch {BOOTSTRAP}"));
    // The API server's pod sees one folder under another name.
    shell("ln -sfn /etc/kubernetes/bootstrap-configs /etc/kubernetes/config");
    let tunnel_server = run_pod(&bench, "tunnel-server", &arguments_of(&fs::read_to_string(POD).unwrap()));

    let permanent = ApiServer::start_with(&privileged()).unwrap();
    let _controllers = ControllerManager::start(&permanent).unwrap();
    let told = fs::read_to_string("/opt/openshift/landfall-tunnel-config-override.yaml").unwrap();
    let egress = told.lines().find_map(|line| line.trim().strip_prefix("- /")).unwrap();
    let bootstrap = permanent.sibling_with(&[format!("--egress-selector-config-file=/{egress}")]).unwrap();
    bootstrap.kubectl(&["apply", "-f", &bench.path().join("out/manifests").display().to_string()]).unwrap();

    let webhook = other_machine(|| Webhook::start_as(SERVICE, "guard.default.svc", Answer::Allow).unwrap());
    let agent = agent(&bench, &permanent);
    guard(&permanent, &webhook);
    let near = TcpStream::connect_timeout(&SERVICE, Duration::from_secs(2));
    assert!(near.is_err(), "the pod network is in reach without the tunnel");
    eventually("the bootstrap API server to ask the webhook", LIMIT, || {
        // Whoever asks too early is refused: the webhook's word is needed.
        let made = bootstrap.kubectl(&["create", "configmap", "through-the-tunnel", "--namespace=default"]);
        made.ok().filter(|_| !webhook.reviews().is_empty())
    })
    .unwrap_or_else(|error| panic!("{error}\n{}\n{}", tunnel_server.log(), agent.log()));

    let mut words = words.to_vec();
    words.push("--teardown");
    let script = bench.run(&words);
    fs::write(bench.path().join("teardown.sh"), &script.stdout).unwrap();
    // The bootstrap is over: its API server ends, and only then may the tunnel go.
    drop(bootstrap);
    fs::remove_file(BOOTSTRAP).unwrap();
    shell("touch /opt/openshift/.bootkube.done");
    tear_down(Path::new(SERVICE_PROGRAM), &permanent);
    assert!(Path::new("/opt/openshift/landfall-tunnel-teardown.done").exists());
    tear_down(&bench.path().join("teardown.sh"), &permanent);
    for kind in ["daemonset", "secret", "rolebinding", "serviceaccount"] {
        let left = permanent.kubectl(&["get", kind, "--namespace", NAMESPACE, "-o", "name"]).unwrap();
        assert_eq!(left.trim(), "", "{kind}");
    }
    let namespace = permanent.kubectl(&["get", "namespace", NAMESPACE, "--ignore-not-found", "-o", "name"]);
    assert_eq!(namespace.unwrap().trim(), "");
    for path in [POD, "/etc/landfall/tunnel", "/etc/kubernetes/bootstrap-configs/landfall-tunnel"] {
        assert!(!Path::new(path).exists(), "`{path}` is still there");
    }
    assert!(!Path::new("/opt/openshift/landfall-tunnel-config-override.yaml").exists());
    drop((tunnel_server, agent));

    // A permanent API server is on a node, which has the pod network.
    shell(&format!("ip route add {}/32 via 192.0.2.2", SERVICE.ip()));
    let before = webhook.reviews().len();
    eventually("the permanent API server to ask the webhook", LIMIT, || {
        permanent.kubectl(&["create", "configmap", "without-a-tunnel", "--namespace=default"]).ok()
    })
    .unwrap();
    assert!(webhook.reviews().len() > before);
}

/// An API server that takes the agents' pods.
pub(crate) fn privileged() -> ApiServerSpec {
    ApiServerSpec { arguments: vec!["--allow-privileged=true".to_owned()], ..ApiServerSpec::default() }
}

/// Puts files where they belong. What is installed is seen in this test only: every folder of the root that gets some is
/// covered first, whichever it is.
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

/// The DaemonSet's pod on the other machine: its arguments and its secret, as they are in the cluster.
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
        let decoded = Command::new("sh")
            .args(["-c", "printf %s \"$1\" | base64 -d", "sh", value.as_str().unwrap()])
            .output()
            .unwrap();
        bench.file(&format!("agent/{name}"), decoded.stdout);
    }
    other_machine(|| run_pod(bench, "tunnel-agent", &arguments))
}

/// Runs the image's program with a pod's arguments.
fn run_pod(bench: &Bench, name: &str, arguments: &[String]) -> Process {
    let program = Path::new(env!("CARGO_BIN_EXE_landfall"));
    Process::start(name, program, bench.path(), |command| {
        command.args(arguments).current_dir(bench.path()).env("PROXY_AGENT_ID", "node-1");
    })
    .unwrap()
}

/// The list below `args:` of a pod.
fn arguments_of(pod: &str) -> Vec<String> {
    let after = pod.lines().skip_while(|line| line.trim_start_matches([' ', '-']) != "args:").skip(1);
    after.map_while(|line| line.trim().strip_prefix("- ")).map(str::to_owned).collect()
}

/// Runs with the other machine's network. Processes started there stay there.
fn other_machine<T>(run: impl FnOnce() -> T) -> T {
    let enter = |path: &str| {
        let network = fs::File::open(path).unwrap();
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&network), Some(LinkNameSpaceType::Network))
            .unwrap();
    };
    let home = fs::File::open("/proc/thread-self/ns/net").unwrap();
    enter("/run/netns/client");
    let done = run();
    move_into_link_name_space(std::os::fd::AsFd::as_fd(&home), Some(LinkNameSpaceType::Network)).unwrap();
    done
}

/// A webhook that has to agree to every ConfigMap.
fn guard(cluster: &ApiServer, webhook: &Webhook) {
    let (address, port) = (SERVICE.ip().to_string(), SERVICE.port());
    cluster
        .apply(&json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "guard", "namespace": "default"},
            "spec": {"clusterIP": address, "ports": [{"port": port}]},
        }))
        .unwrap();
    let bundle = Command::new("sh")
        .args(["-c", "printf %s \"$1\" | base64 -w0", "sh", webhook.authority()])
        .output()
        .unwrap();
    cluster
        .apply(&json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "guard"},
            "webhooks": [{
                "name": "guard.landfall.dev", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "failurePolicy": "Fail", "timeoutSeconds": 10,
                "clientConfig": {
                    "service": {"name": "guard", "namespace": "default", "port": port},
                    "caBundle": String::from_utf8(bundle.stdout).unwrap(),
                },
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
            }],
        }))
        .unwrap();
}

/// With what the service runs, and with what is shown to people.
fn tear_down(script: &Path, cluster: &ApiServer) {
    let kubectl = Binary::Kubectl.path().unwrap();
    let path = format!("{}:{}", kubectl.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let run = Command::new("bash")
        .arg(script)
        .env("KUBECONFIG", cluster.admin_kubeconfig())
        .env("HOME", cluster.directory())
        .env("PATH", path)
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}
