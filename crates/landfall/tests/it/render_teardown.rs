//! A permanent control plane removes its tunnel configuration when the bootstrap has finished.
//!
//! The rendered service's script runs on kubeadm, k3s and a Cluster API machine, against a real API server that uses
//! the tunnel until the script reconfigures it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use landfall_testkit::isolated::{self, HOST, in_network, shell};
use landfall_testkit::{ApiServer, Binary, ControllerManager, Need, eventually, have};
use serde_json::{Value, json};

use crate::command::Bench;
use crate::render_tunnel::{install, privileged};

const LIMIT: Duration = Duration::from_secs(180);
const NAMESPACE: &str = "landfall-bootstrap";
const PROGRAM: &str = "/usr/local/bin/landfall-tunnel-teardown.sh";
const SERVICE: &str = "/etc/systemd/system/landfall-tunnel-teardown.service";
const MANIFEST: &str = "/etc/kubernetes/manifests/kube-apiserver.yaml";
const DROP_IN: &str = "/etc/rancher/k3s/config.yaml.d/90-landfall-tunnel.yaml";
const FLAG: &str = "--egress-selector-config-file=/etc/landfall/egress/egress-selector.yaml";

/// Minimal systemd for the script: knows the existing units, and restarting k3s ends its API server.
const SYSTEMCTL: &str = "#!/bin/sh\n\
    echo \"$*\" >>systemctl.log\n\
    case $1 in\n\
    cat) [ -e \"/etc/systemd/system/$2\" ] ;;\n\
    restart) kill \"$(cat api-server.pid)\" ;;\n\
    esac\n";
/// Records that the script waits, and shortens the wait.
const SLEEP: &str = "#!/bin/sh\ntouch slept\nexec /bin/sleep 0.2\n";

/// File that Cluster API's bootstrap writes when kubeadm has succeeded.
const MARKER: &str = "/run/cluster-api/bootstrap-success.complete";

#[test]
fn a_control_plane_forgets_the_tunnel_when_the_bootstrap_is_over() {
    let further = &[Need::Program("pgrep"), Need::Built(Binary::Kubeadm)];
    let needs = [isolated::NEEDS, ApiServer::NEEDS, ControllerManager::NEEDS, further];
    if !needs.into_iter().all(have) {
        return;
    }
    in_network("render_teardown::a_control_plane_forgets_the_tunnel_when_the_bootstrap_is_over", one_by_one);
}

/// Runs the cases one by one, because the script searches all processes for API servers.
fn one_by_one() {
    let cluster = ApiServer::start_with(&privileged()).unwrap();
    let _controllers = ControllerManager::start(&cluster).unwrap();
    kubeadm(&cluster);
    k3s(&cluster);
    cluster_api(&cluster);
}

fn kubeadm(cluster: &ApiServer) {
    let bench = Bench::new();
    let script = render(&bench, cluster, "kubeadm", "config-map");
    let rendered = fs::read_to_string("/etc/landfall/tunnel/kubeadm-init-configuration.yaml").unwrap();
    let kubelet = init(&bench, cluster, &rendered);
    let mut running = start(&bench, cluster, PROGRAM);
    let word = |status: &str| {
        let metadata = json!({"name": "bootstrap", "namespace": "kube-system"});
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"status": status}});
        cluster.apply(&object).unwrap();
    };
    for status in ["progressing", "complete"] {
        still_there(&bench, cluster, "");
        assert!(fs::read_to_string(MANIFEST).unwrap().contains(FLAG));
        word(status);
    }
    assert!(running.wait().unwrap().success(), "{}", said(&bench));
    kubelet.join().unwrap();
    gone(&bench, cluster, &script);
    forgotten(&bench);
}

/// Simulates kubeadm with its configuration, and the kubelet; ends with the API server that used the tunnel.
fn init(bench: &Bench, cluster: &ApiServer, configuration: &str) -> JoinHandle<()> {
    let configuration = bench.file("kubeadm.yaml", with_cluster(configuration));
    let plain = with_cluster("apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n");
    bench.file("plain.yaml", plain);
    run_kubeadm(&["init", "phase", "control-plane", "apiserver", "--config"], &configuration, None);
    run_kubeadm(&["init", "phase", "upload-config", "kubeadm", "--config"], &configuration, Some(cluster));
    let made = fs::read_to_string(MANIFEST).unwrap();
    assert!(made.contains(FLAG) && made.matches("name: landfall-").count() == 4, "{made}");
    // Joining control planes use this configuration, and so does the next upgrade.
    let words = ["get", "configmap", "kubeadm-config", "--namespace=kube-system"];
    let kept = cluster.kubectl(&[&words[..], &["-o", "jsonpath={.data.ClusterConfiguration}"]].concat());
    let kept = kept.unwrap();
    let clean = kept.contains("kubernetesVersion") && !kept.contains("egress") && !kept.contains("landfall");
    assert!(clean, "{kept}");
    let api_server = cluster.sibling_with(&[FLAG.to_owned()]).unwrap();
    // The API server stops when the manifest no longer contains the flag.
    std::thread::spawn(move || {
        eventually("the manifest to change", LIMIT, || {
            (!fs::read_to_string(MANIFEST).ok()?.contains("egress-selector")).then_some(())
        })
        .unwrap();
        drop(api_server);
    })
}

/// Adds the part that every kubeadm configuration needs.
fn with_cluster(init_configuration: &str) -> String {
    format!(
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.36.4\n---\n\
         {init_configuration}localAPIEndpoint:\n  advertiseAddress: {HOST}\n\
         nodeRegistration:\n  name: node-1\n  criSocket: unix:///run/containerd/containerd.sock\n"
    )
}

/// Checks that the API server's pod equals the one that kubeadm writes without a tunnel.
fn forgotten(bench: &Bench) {
    let left = fs::read_to_string(MANIFEST).unwrap();
    let plain = bench.path().join("plain.yaml");
    run_kubeadm(&["init", "phase", "control-plane", "apiserver", "--config"], &plain, None);
    let never: Value = serde_saphyr::from_str(&fs::read_to_string(MANIFEST).unwrap()).unwrap();
    assert_eq!(serde_saphyr::from_str::<Value>(&left).unwrap(), never, "{left}");
}

fn cluster_api(cluster: &ApiServer) {
    let bench = Bench::new();
    let script = render(&bench, cluster, "capi", "marker");
    let spec = &control_plane(&bench)["spec"]["kubeadmConfigSpec"];
    let commands = || {
        for command in spec["preKubeadmCommands"].as_array().unwrap() {
            let command = command.as_str().unwrap();
            let status = with_tools(&bench, cluster, "sh").args(["-ec", command]).status().unwrap();
            assert!(status.success(), "{command}");
        }
    };
    // A machine that joins the control plane gets the same files, and keeps none of them.
    shell("mkdir -p /run/kubeadm && echo 'kind: JoinConfiguration' >/run/kubeadm/kubeadm-join-config.yaml");
    commands();
    assert!(!bench.path().join("systemctl.log").exists(), "nothing is switched on");
    shell(
        "[ -z \"$(find /etc/landfall /etc/kubernetes/manifests/landfall-* /usr/local/bin/landfall-* -type f)\" ]",
    );
    assert!(!Path::new(SERVICE).exists());

    install(&bench.path().join("out/host"));
    shell("mv /run/kubeadm/kubeadm-join-config.yaml /run/kubeadm/kubeadm.yaml");
    shell("printf 'kind: ClusterConfiguration\n---\nkind: InitConfiguration\n' >/run/kubeadm/kubeadm.yaml");
    commands();
    let asked = fs::read_to_string(bench.path().join("systemctl.log")).unwrap();
    assert!(asked.contains("enable --now --no-block landfall-tunnel-teardown.service"), "{asked}");

    let patches = &spec["initConfiguration"]["patches"];
    let configuration =
        format!("apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\npatches: {patches}\n");
    let kubelet = init(&bench, cluster, &configuration);
    let mut running = start(&bench, cluster, PROGRAM);
    still_there(&bench, cluster, MANIFEST);
    assert!(fs::read_to_string(MANIFEST).unwrap().contains(FLAG));
    shell(&format!("mkdir -p /run/cluster-api && touch {MARKER}"));
    assert!(running.wait().unwrap().success(), "{}", said(&bench));
    kubelet.join().unwrap();
    gone(&bench, cluster, &script);
    forgotten(&bench);
}

/// Returns the rendered patch for the object that configures the machines.
fn control_plane(bench: &Bench) -> Value {
    let text = fs::read_to_string(bench.path().join("out/cluster-api/kubeadm-control-plane.yaml")).unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

/// Writes the files of a Cluster API machine like cloud-init: at their paths, secret ones from the Secret in the
/// management cluster.
fn lay_out(bench: &Bench, cluster: &ApiServer) {
    cluster
        .kubectl(&["apply", "-f", &bench.path().join("out/cluster-api/secret.yaml").display().to_string()])
        .unwrap();
    for file in control_plane(bench)["spec"]["kubeadmConfigSpec"]["files"].as_array().unwrap() {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let secret = || {
            let source = &file["contentFrom"]["secret"];
            let key = text(&source["key"]).replace('.', "\\.");
            let path = format!("jsonpath={{.data.{key}}}");
            let value = cluster.kubectl(&["get", "secret", &text(&source["name"]), "-o", &path]).unwrap();
            String::from_utf8(STANDARD.decode(value).unwrap()).unwrap()
        };
        let content = file.get("content").map_or_else(secret, text);
        let path = bench.file(&format!("out/host{}", text(&file["path"])), content);
        let mode = u32::from_str_radix(&text(&file["permissions"]), 8).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
}

fn k3s(cluster: &ApiServer) {
    let bench = Bench::new();
    let script = render(&bench, cluster, "k3s", "event");
    assert!(fs::read_to_string(DROP_IN).unwrap().contains("/etc/landfall/egress/egress-selector.yaml"));
    let api_server = cluster.sibling_with(&[FLAG.to_owned()]).unwrap();
    bench.file("api-server.pid", api_server.process().id().to_string());
    let mut running = start(&bench, cluster, PROGRAM);
    still_there(&bench, cluster, DROP_IN);
    cluster
        .apply(&json!({
            "apiVersion": "v1", "kind": "Event",
            "metadata": {"name": "bootstrap-finished", "namespace": "kube-system"},
            "involvedObject": {"namespace": "kube-system"}, "type": "Normal",
        }))
        .unwrap();
    assert!(running.wait().unwrap().success(), "{}", said(&bench));
    gone(&bench, cluster, &script);
    assert!(!Path::new(DROP_IN).exists());
    let asked = fs::read_to_string(bench.path().join("systemctl.log")).unwrap();
    let restart = asked.find("restart k3s").unwrap();
    let disable = asked.find("disable --now landfall-tunnel-server.service").unwrap();
    assert!(restart < disable && asked.contains("disable landfall-tunnel-teardown.service"), "{asked}");
}

/// Installs the rendered files on this machine and in the cluster; returns the script as it is shown before.
fn render(bench: &Bench, cluster: &ApiServer, kind: &str, completion: &str) -> String {
    let words = ["render", "tunnel", "--for", kind, "--server", HOST, "--image", "none.example/none"];
    let words = [&words[..], &["--complete-when", completion]].concat();
    let rendered = bench.run(&[&words[..], &["-o", "out"]].concat());
    assert_eq!(rendered.code, 0, "{rendered:?}");
    if kind == "capi" {
        lay_out(bench, cluster);
    }
    install(&bench.path().join("out/host"));
    cluster.kubectl(&["apply", "-f", &bench.path().join("out/manifests").display().to_string()]).unwrap();
    let shown = bench.run(&[&words[..], &["--teardown"]].concat());
    assert_eq!(shown.stdout, fs::read_to_string(PROGRAM).unwrap(), "what is shown is what is run");
    for (name, text) in [("systemctl", SYSTEMCTL), ("sleep", SLEEP)] {
        let path = bench.file(&format!("bin/{name}"), text);
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    shown.stdout
}

fn start(bench: &Bench, cluster: &ApiServer, program: &str) -> Child {
    let errors = fs::File::create(bench.path().join("errors")).unwrap();
    with_tools(bench, cluster, program).stdout(Stdio::null()).stderr(errors).spawn().unwrap()
}

/// Returns a command that finds kubectl and the simulated systemd.
fn with_tools(bench: &Bench, cluster: &ApiServer, program: &str) -> Command {
    let kubectl = Binary::Kubectl.path().unwrap();
    let path = [bench.path().join("bin"), kubectl.parent().unwrap().to_owned()];
    let path = format!("{}:{}:{}", path[0].display(), path[1].display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(program);
    command
        .current_dir(bench.path())
        .env("KUBECONFIG", cluster.admin_kubeconfig())
        .env("HOME", bench.path())
        .env("PATH", path)
        .stdin(Stdio::null());
    command
}

fn said(bench: &Bench) -> String {
    fs::read_to_string(bench.path().join("errors")).unwrap_or_default()
}

/// Checks that the script is waiting and has changed nothing.
fn still_there(bench: &Bench, cluster: &ApiServer, path: &str) {
    let slept = bench.path().join("slept");
    let _ = fs::remove_file(&slept);
    eventually("the script to wait", LIMIT, || slept.exists().then_some(())).unwrap();
    assert!(Path::new("/").join(path).exists(), "`{path}` is gone");
    cluster.kubectl(&["get", "daemonset", "landfall-tunnel-agent", "--namespace", NAMESPACE]).unwrap();
}

/// Checks that nothing is left, and that a second run has nothing to do.
fn gone(bench: &Bench, cluster: &ApiServer, script: &str) {
    let check = || {
        let words = ["get", "namespace", NAMESPACE, "--ignore-not-found", "-o", "name"];
        assert_eq!(cluster.kubectl(&words).unwrap().trim(), "");
        for path in ["/etc/landfall/tunnel", "/etc/landfall/egress", "/run/landfall/tunnel", SERVICE, PROGRAM]
        {
            assert!(!Path::new(path).exists(), "`{path}` is still there");
        }
        shell("! ls /etc/systemd/system/landfall-* /etc/kubernetes/manifests/landfall-* 2>/dev/null");
    };
    check();
    let again = bench.file("again.sh", script);
    fs::set_permissions(&again, fs::Permissions::from_mode(0o755)).unwrap();
    let status = start(bench, cluster, &again.display().to_string()).wait().unwrap();
    assert!(status.success(), "{}", said(bench));
    check();
}

fn run_kubeadm(words: &[&str], configuration: &Path, cluster: Option<&ApiServer>) {
    let mut command = Command::new(Binary::Kubeadm.path().unwrap());
    command.args(words).arg(configuration);
    if let Some(cluster) = cluster {
        command.arg("--kubeconfig").arg(cluster.admin_kubeconfig());
    }
    let run = command.output().unwrap();
    assert!(run.status.success(), "{words:?}: {}", String::from_utf8_lossy(&run.stderr));
}
