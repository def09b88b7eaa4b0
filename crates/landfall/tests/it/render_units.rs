//! Rendered units under a real systemd: the sandbox must allow everything they need.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use landfall_testkit::{HOST_ADDRESS, Need, Node, NodeSpec, eventually, have};

use crate::command::Bench;
use crate::gateway::kubeadm;

const LIMIT: Duration = Duration::from_secs(60);
const SOCKET: &str = "/etc/kubernetes/bootstrap-configs/landfall-tunnel/server.sock";

/// Returns all files below `folder` by their path on a machine.
pub(crate) fn host_files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap().flatten() {
            if entry.path().is_dir() {
                folders.push(entry.path());
            } else {
                let place = Path::new("/").join(entry.path().strip_prefix(folder).unwrap());
                files.push((place, fs::read(entry.path()).unwrap()));
            }
        }
    }
    files
}

/// The tunnel's server as on OpenShift, with its socket below /etc, and the hub, whose user owns none of its files.
#[test]
fn units_may_do_what_they_need() {
    if !have(&[Node::NEEDS, &[Need::Program("curl")]].concat()) {
        return;
    }
    let bench = Bench::new();
    let image = "registry.example/landfall:1";
    for words in [
        &["tunnel", "--for", "openshift", "--run-as", "unit", "--server", "127.0.0.1", "--image", image][..],
        &["hub", "--for", "openshift", "--server", "localhost"],
    ] {
        let run = bench.run(&[&["render"], words, &["-o", words[0]]].concat());
        assert_eq!(run.code, 0, "{run:?}");
    }
    let mut spec = NodeSpec::new("bootstrap");
    spec.files.push(("/usr/local/bin/landfall".into(), fs::read(env!("CARGO_BIN_EXE_landfall")).unwrap()));
    for folder in ["tunnel/host", "hub/host"] {
        spec.files.extend(host_files(&bench.path().join(folder)));
    }
    let mut node = Node::boot(&spec).unwrap();
    node.wait_for_boot().unwrap();
    node.output(&["chmod", "+x", "/usr/local/bin/landfall"]).unwrap();
    for unit in ["landfall-tunnel-server.service", "landfall-hub.service"] {
        let started = node.output(&["systemctl", "start", unit]);
        assert!(started.is_ok(), "{started:?}\n{}", node.journal(&["-u", unit]).unwrap());
    }
    node.output(&["test", "-S", SOCKET]).unwrap();
    let status = node.run(&["/usr/local/bin/landfall", "tunnel", "status"]).unwrap();
    // No agent has connected yet, so the server reports that it is not ready.
    assert!(String::from_utf8_lossy(&status.stdout).starts_with("Server "), "{status:?}");
    let page = format!("https://{}:8700/livez", node.address());
    eventually("the hub", LIMIT, || {
        Command::new("curl").args(["-sfk", "-m", "5", &page]).output().ok().filter(|run| run.status.success())
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", node.journal(&["-u", "landfall-hub.service"]).unwrap()));
}

/// Returns the exit code of curl for the machine's port, with this source address.
fn curl(node: &Node, port: u16, from: &str) -> Option<i32> {
    let mut curl = Command::new("curl");
    curl.args(["-sfk", "-m", "4", "--noproxy", "*", "--interface", from, "-o", "/dev/null"]);
    curl.arg(format!("https://{}:{port}/livez", node.address())).status().unwrap().code()
}

/// The gateway with its settings and its firewall, called from an allowed network and from another one.
#[test]
fn a_rendered_gateway_is_reached_by_those_it_is_told_and_by_nobody_else() {
    const NO_ANSWER: Option<i32> = Some(28);
    const STRANGER: &str = "198.18.0.129";
    if !have(&[Node::NEEDS, &[Need::Program("curl"), Need::Program("ip")]].concat()) {
        return;
    }
    let bench = Bench::new();
    kubeadm(&bench);
    let friends = format!("{HOST_ADDRESS}/32");
    let run = bench.run(&["render", "gateway", "--for", "kubeadm", "--allow", &friends, "-o", "gateway"]);
    assert_eq!(run.code, 0, "{run:?}");
    let mut spec = NodeSpec::new("control-plane-0");
    spec.arguments.push(format!("--bind-ro={}:/usr/local/bin/landfall", env!("CARGO_BIN_EXE_landfall")));
    for folder in ["gateway/host", "root"] {
        spec.files.extend(host_files(&bench.path().join(folder)));
    }
    let mut node = Node::boot(&spec).unwrap();
    node.wait_for_boot().unwrap();
    // A second address of this machine, on the link to the node: it is removed together with the link.
    let route =
        Command::new("ip").args(["-o", "route", "get", &node.address().to_string()]).output().unwrap();
    let route = String::from_utf8(route.stdout).unwrap();
    let cable = route.split_once(" dev ").and_then(|(_, rest)| rest.split(' ').next()).unwrap();
    let added = Command::new("ip").args(["addr", "add", &format!("{STRANGER}/32"), "dev", cable]).status();
    assert!(added.unwrap().success());

    let unit = "landfall-gateway.service";
    let started = node.output(&["systemctl", "start", unit]);
    assert!(started.is_ok(), "{started:?}\n{}", node.journal(&["-u", unit]).unwrap());
    let host = HOST_ADDRESS.to_string();
    eventually("an answer at the API's port", LIMIT, || (curl(&node, 6443, &host) == Some(0)).then_some(()))
        .unwrap_or_else(|error| panic!("{error}\n{}", node.journal(&["-u", unit]).unwrap()));
    assert_eq!(curl(&node, 6443, STRANGER), NO_ANSWER, "not from a network that may come");
    assert_eq!(curl(&node, 6444, &host), NO_ANSWER, "the port beside the API's is nobody's second door");
    assert_eq!(curl(&node, 6444, STRANGER), NO_ANSWER);
    assert_eq!(curl(&node, 6443, &host), Some(0));
    let rules = node.output(&["nft", "list", "ruleset"]).unwrap();
    assert!(
        rules.contains("landfall_gateway_guard") && rules.contains("table inet landfall_gateway "),
        "{rules}"
    );

    node.output(&["systemctl", "stop", unit]).unwrap();
    assert_eq!(node.output(&["nft", "list", "ruleset"]).unwrap().trim(), "", "no rule is left");
}
