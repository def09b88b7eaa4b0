//! The agent on a real machine, installed by each method other than a pod, and a unit that downloads its binary.
//!
//! The machines get only the rendered files.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use landfall_testkit::{
    BootstrapToken, FileServer, HOST_ADDRESS, Invitation, Need, Node, NodeSpec, eventually, have,
};
use serde_json::{Value, json};

use crate::command::Bench;
use crate::render_units::host_files;

const LIMIT: Duration = Duration::from_secs(120);
const UNIT: &str = "landfall-agent.service";
const PROGRAM: &str = "usr/local/bin/landfall";
const REPORT: &str = "var/lib/landfall/agent/report.json";
const PLACE: &str = "/landfall";

/// Renders the agent with these arguments into `folder`.
fn render(bench: &Bench, words: &[&str], folder: &str) {
    let run = bench.run(&[&["render", "agent"], words, &["-o", folder]].concat());
    assert_eq!(run.code, 0, "{run:?}");
}

/// Waits for the first report since the last one was removed, and removes it.
fn reports(node: &Node, how: &str) {
    let path = node.root().join(REPORT);
    eventually(&format!("a report, {how}"), LIMIT, || path.exists().then_some(()))
        .unwrap_or_else(|error| panic!("{error}\n{}", node.journal(&["-u", UNIT]).unwrap()));
    node.output(&["systemctl", "stop", UNIT]).unwrap();
    fs::remove_file(path).unwrap();
}

#[test]
fn an_agent_comes_to_a_machine_and_never_in_its_way() {
    if !have(&[Node::NEEDS, &[Need::Program("sha256sum")]].concat()) {
        return;
    }
    let bench = Bench::new();
    let program = Path::new(env!("CARGO_BIN_EXE_landfall"));
    let sum = Command::new("sha256sum").arg(program).output().unwrap();
    let sha256 = String::from_utf8(sum.stdout).unwrap()[..64].to_owned();
    // The local address for this machine exists only while the machine runs.
    let host = HOST_ADDRESS.to_string();
    let files = FileServer::start_at((Ipv4Addr::UNSPECIFIED, 0).into(), &[&host]).unwrap();
    let url = format!("https://{host}:{}{PLACE}", files.address().port());
    let download = ["--binary-url", url.as_str(), "--binary-sha256", sha256.as_str()];
    for (kind, folder) in [("kubeadm", "cloud-init"), ("openshift", "ignition")] {
        render(&bench, &[&["--for", kind, "--by", "first-boot"], &download[..]].concat(), folder);
    }
    render(&bench, &["--for", "kubeadm", "--by", "image"], "image");
    render(&bench, &["--for", "kubeadm", "--by", "pod", "--image", "registry.example/landfall:1"], "pod");

    let mut spec = NodeSpec::new("newborn");
    spec.user_data = fs::read_to_string(bench.path().join("cloud-init/cloud-init.yaml")).unwrap();
    spec.files.push(("/etc/ssl/certs/ca-certificates.crt".into(), files.authority().into()));
    // First a different binary.
    files.file(PLACE, "#!/bin/sh\ntouch /var/lib/somebody-else-was-here\n");
    let mut node = Node::boot(&spec).unwrap();
    node.wait_for_boot().unwrap();
    assert_eq!(node.wait_for_cloud_init().unwrap(), Vec::<String>::new());
    eventually("the program to be asked for twice", LIMIT, || (files.asked().len() >= 2).then_some(()))
        .unwrap_or_else(|error| panic!("{error}\n{}", node.journal(&["-u", UNIT]).unwrap()));
    assert!(!node.root().join(PROGRAM).exists() && !node.root().join(REPORT).exists());
    assert!(!node.root().join("var/lib/somebody-else-was-here").exists());
    // Then the right one: no manual action is needed.
    files.file(PLACE, fs::read(program).unwrap());
    reports(&node, "by cloud-init");

    by_ignition(&bench, &node);
    by_image(&bench, &node);
    a_unit_gets_its_program(&bench, &node, &files, &download);
    kubeadm_takes_the_static_pod(&bench, &node);
}

/// The unit as Ignition would have written it.
fn by_ignition(bench: &Bench, node: &Node) {
    let text = fs::read_to_string(bench.path().join("ignition/landfall-agent.ign")).unwrap();
    let config: Value = serde_json::from_str(&text).unwrap();
    let unit = &config["systemd"]["units"][0];
    assert_eq!(unit["name"], UNIT);
    let path = node.root().join("etc/systemd/system").join(UNIT);
    fs::write(&path, unit["contents"].as_str().unwrap()).unwrap();
    node.output(&["systemctl", "daemon-reload"]).unwrap();
    node.output(&["systemctl", "enable", "--now", UNIT]).unwrap();
    reports(node, "by Ignition");
    node.output(&["systemctl", "disable", UNIT]).unwrap();
    fs::remove_file(path).unwrap();
}

/// Checks a hub as Ignition would have installed it: its unit may write nowhere, and by default systemd stops it
/// after five failures.
fn a_unit_gets_its_program(bench: &Bench, node: &Node, files: &FileServer, download: &[&str]) {
    const HUB: &str = "landfall-hub.service";
    let words = ["render", "hub", "--for", "openshift", "--server", "localhost", "--format", "ignition"];
    let run = bench.run(&[&words[..], download, &["-o", "hub"]].concat());
    assert_eq!(run.code, 0, "{run:?}");
    let text = fs::read_to_string(bench.path().join("hub/landfall-hub.ign")).unwrap();
    let config: Value = serde_json::from_str(&text).unwrap();
    for file in config["storage"]["files"].as_array().unwrap() {
        let path = node.root().join(file["path"].as_str().unwrap().trim_start_matches('/'));
        let data = file["contents"]["source"].as_str().unwrap().strip_prefix("data:;base64,").unwrap();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, STANDARD.decode(data).unwrap()).unwrap();
        let mode = u32::try_from(file["mode"].as_u64().unwrap()).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let unit = &config["systemd"]["units"][0];
    assert_eq!(unit["name"], HUB);
    let path = node.root().join("etc/systemd/system").join(HUB);
    fs::write(path, unit["contents"].as_str().unwrap()).unwrap();

    fs::remove_file(node.root().join(PROGRAM)).unwrap();
    files.file(PLACE, "somebody else's");
    let asked = files.asked().len();
    node.output(&["systemctl", "daemon-reload"]).unwrap();
    node.output(&["systemctl", "start", "--no-block", HUB]).unwrap();
    eventually("the program to be asked for many times", LIMIT, || {
        (files.asked().len() > asked + 6).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", node.journal(&["-u", HUB]).unwrap()));
    files.file(PLACE, fs::read(env!("CARGO_BIN_EXE_landfall")).unwrap());
    eventually("the hub", LIMIT, || {
        node.run(&["systemctl", "is-active", HUB]).ok().filter(|run| run.status.success())
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", node.journal(&["-u", HUB]).unwrap()));
    node.output(&["systemctl", "stop", HUB]).unwrap();
}

/// Units of an image are enabled by its preset.
fn by_image(bench: &Bench, node: &Node) {
    for (path, content) in host_files(&bench.path().join("image/host")) {
        let path = node.root().join(path.strip_prefix("/").unwrap());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    node.output(&["systemctl", "daemon-reload"]).unwrap();
    let enabled = || node.run(&["systemctl", "is-enabled", UNIT]).unwrap().status.success();
    assert!(!enabled());
    node.output(&["systemctl", "preset", UNIT]).unwrap();
    assert!(enabled());
    node.output(&["systemctl", "start", UNIT]).unwrap();
    reports(node, "by the image");
}

/// kubeadm joins where the agent's static pod already exists; up to 1.23 it refused.
fn kubeadm_takes_the_static_pod(bench: &Bench, node: &Node) {
    let pods = host_files(&bench.path().join("pod/host"));
    assert_eq!(pods.len(), 1, "nothing is rendered but the pod: {pods:?}");
    let token = BootstrapToken { id: "abcdef".to_owned(), secret: "0123456789abcdef".to_owned() };
    let mut join = Invitation { endpoint: format!("{HOST_ADDRESS}:1"), token }.join_configuration();
    join["timeouts"] = json!({"discovery": "4s"});
    let configuration = ("/etc/join.yaml".into(), join.to_string().into_bytes());
    for (path, content) in pods.into_iter().chain([configuration]) {
        let path: &Path = &node.root().join(path.strip_prefix("/").unwrap());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    let preflight =
        node.run(&["kubeadm", "join", "phase", "preflight", "--config", "/etc/join.yaml"]).unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&preflight.stdout),
        String::from_utf8_lossy(&preflight.stderr)
    );
    // Without a cluster, kubeadm reports only errors that follow its checks of the machine.
    assert!(said.contains("pre-flight checks") && !said.contains("DirAvailable"), "{said}");
}
