//! A machine that fails between its old and its new configuration.
//!
//! The gate keeps its kubelet down, so no component of the cluster can reach it. Its agent reports the failure, and
//! the attempt continues by itself once the problem is fixed.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use landfall_pki::{Authority, Leaf, Purpose};
use landfall_testkit::{Node, Registry, eventually, have};
use serde_json::Value;

use crate::command::Bench;
use crate::node_in_place::{TOKEN, assert_clean, rhcos, start, wait_for_end};

const PROGRAM: &str = "/usr/local/bin/landfall";
const PORT: u16 = 8710;
const CAUSE: &str = "in-place-failed";
/// Enough for two boots on a loaded machine.
const LIMIT: Duration = Duration::from_mins(10);
const OPTIONS: &str = "LANDFALL_AGENT_OPTIONS=--serve 0.0.0.0:8710 --serve-client-ca /etc/landfall/ca.crt \
--serve-cert /etc/landfall/agent.crt --serve-key /etc/landfall/agent.key\n";

/// Enables the agent from the next boot on, as a release does.
const WANTED: &str = "etc/systemd/system/sysinit.target.d/agent.conf";

/// The path that blocks the daemon, and that the report names.
const BLOCKED: &str = "/usr/local/bin/machine-config-daemon";

/// Installs the agent's certificate on the machine, and those of a viewer here.
fn certify(bench: &Bench, node: &Node) {
    let authority = Authority::new("kubernetes", 2).unwrap();
    let address = node.address().to_string();
    let own = authority.issue(&Leaf::new("agent", Purpose::Serve).names([address.as_str()])).unwrap();
    let viewer = Leaf::new("someone", Purpose::Call).organization("landfall:viewers");
    let viewer = authority.issue(&viewer).unwrap();
    let there = node.root().join("etc/landfall");
    for (path, text) in [
        (there.join("ca.crt"), authority.certificate()),
        (there.join("agent.crt"), &own.certificate),
        (there.join("agent.key"), own.key.expose()),
        (bench.path().join("ca.crt"), authority.certificate()),
        (bench.path().join("viewer.crt"), &viewer.certificate),
        (bench.path().join("viewer.key"), viewer.key.expose()),
    ] {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
}

fn status(node: &Node) -> Option<Value> {
    let status = node.output(&[PROGRAM, "node", "status", "--output=json"]).ok()?;
    serde_json::from_str(&status).ok()
}

fn kubelet(node: &Node) -> String {
    let output = node.run(&["systemctl", "is-active", "kubelet.service"]).unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn started(node: &Node) -> String {
    std::fs::read_to_string(node.root().join("var/lib/started")).unwrap_or_default()
}

#[test]
fn a_machine_that_fails_between_two_lives_is_heard_through_its_agent() {
    if !have(&[Node::NEEDS, Registry::NEEDS].concat()) {
        return;
    }
    let (_registry, _server, mut spec) = rhcos("unheard");
    let file = |path: &str, content: &[u8]| (path.into(), content.to_vec());
    let unit = include_bytes!("../../../../dist/landfall-agent.service");
    spec.files.push(file("/etc/systemd/system/landfall-agent.service", unit));
    spec.files.push(file("/etc/systemd/system/sysinit.target.d/.keep", b""));
    spec.files.push(file("/etc/landfall/agent.env", OPTIONS.as_bytes()));
    // A container with a mount of a missing file leaves a directory in place of the binary.
    spec.files.push(file(&format!("{BLOCKED}/.keep"), b""));
    let bench = Bench::new();
    let mut node = Node::boot(&spec).unwrap();
    certify(&bench, &node);
    node.wait_for_boot().unwrap();
    node.output(&["chmod", "+x", PROGRAM]).unwrap();
    std::fs::write(node.root().join(WANTED), "[Unit]\nWants=landfall-agent.service\n").unwrap();
    start(&node, &[]);
    let failed = eventually("the attempt to fail for now", LIMIT, || {
        status(&node).filter(|status| status["state"]["is"] == "failed")
    });
    let failed = failed.unwrap_or_else(|error| panic!("{error}: {:#?}", status(&node)));

    // The report of the machine itself.
    assert_eq!(failed["state"]["step"], "apply-machine-config", "{failed:#}");
    assert_eq!(failed["state"]["retryable"], true, "{failed:#}");
    assert!(failed["state"]["reason"].as_str().unwrap().contains(BLOCKED), "{failed:#}");
    assert_eq!(failed["kubelet"]["may_start"], false, "{failed:#}");
    let text = eventually("the same for people", LIMIT, || {
        let text = node.output(&[PROGRAM, "node", "status"]).ok()?;
        text.contains("Failed at `apply-machine-config`: ").then_some(text)
    });
    let text = text.unwrap();
    assert!(text.contains("it will be retried") && text.contains("The kubelet must wait: "), "{text}");
    assert_eq!((kubelet(&node).as_str(), started(&node).as_str()), ("inactive", "old\n"));

    the_agent_tells(&bench, &node);
    assert_eq!((kubelet(&node).as_str(), started(&node).as_str()), ("inactive", "old\n"), "all the while");

    // Fixed as the bundle suggests, the attempt continues by itself.
    node.output(&["rm", "-r", BLOCKED]).unwrap();
    let status = wait_for_end(&node);
    assert_eq!(status["state"]["is"], "done", "{status:#}");
    eventually("the kubelet of the new life", LIMIT, || (started(&node) == "old\nnew\n").then_some(()))
        .unwrap();
    node.output(&["rm", "/root/secret.json"]).unwrap();
    assert_clean(&node);
}

fn the_agent_tells(bench: &Bench, node: &Node) {
    let report = node.root().join("var/lib/landfall/agent/report.json");
    eventually("the agent to have named it", LIMIT, || {
        let message = crate::command::message(std::fs::read(&report).ok()?)?;
        (message["report"]["verdict"]["cause"] == CAUSE).then_some(())
    })
    .unwrap_or_else(|error| {
        let agent = node.journal(&["-u", "landfall-agent"]).unwrap_or_default();
        panic!("{error}: {agent}\n{}", std::fs::read_to_string(&report).unwrap_or_default())
    });
    let from = format!("{}:{PORT}", node.address());
    let mut gather = vec!["gather", "--from-agent", &from, "--certificate-authority", "ca.crt"];
    gather.extend(["--client-certificate", "viewer.crt", "--client-key", "viewer.key"]);
    gather.extend(["-o", "bundle.tar.gz", "--output", "json"]);
    let run = bench.run(&gather);
    assert_eq!(run.code, 2, "{run:?}");
    let report = run.report();
    assert_eq!(report["verdict"]["cause"], CAUSE, "{report:#}");
    let quoted = report["findings"][0].to_string();
    assert!(quoted.contains("apply-machine-config") && quoted.contains(BLOCKED), "{report:#}");
    // The bundle contains the ledger and the logs of the two units.
    std::fs::create_dir(bench.path().join("bundle")).unwrap();
    let unpacked = std::process::Command::new("tar")
        .current_dir(bench.path())
        .args(["-xzf", "bundle.tar.gz", "-C", "bundle", "--strip-components=1"])
        .status()
        .unwrap();
    assert!(unpacked.success());
    let read = |name: &str| {
        let path = bench.path().join("bundle/bootstrap").join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    let told = read("journals/landfall-in-place.log");
    assert!(told.contains("error: step `apply-machine-config` failed for now: "), "{told}");
    let told = read("journals/landfall-in-place-gate.log");
    assert!(told.contains("The kubelet must wait: attempt "), "{told}");
    let ledgers = files(&bench.path().join("bundle/bootstrap/node-in-place"));
    assert!(ledgers.iter().any(|text| text.contains("apply-machine-config")), "{ledgers:?}");
    let secret = TOKEN.trim_start_matches("Bearer ");
    assert!(files(&bench.path().join("bundle")).iter().all(|text| !text.contains(secret)), "the token");
}

/// Returns the content of all files below a directory.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned());
        }
    }
    found
}
