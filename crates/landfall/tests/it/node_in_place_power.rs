//! A real system loses power at chosen moments of one attempt.
//!
//! Each moment is prolonged by a server that does not answer, a daemon that waits, or a node that does not become
//! ready. Every boot continues where the previous one was interrupted.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use landfall_testkit::{ApiServer, HOST_ADDRESS, Invitation, Node, Registry, Serve, eventually, have};
use serde_json::{Value, json};

use crate::node_in_place::{TOKEN, assert_clean, rhcos, wait_for_end};

const NODE: &str = "n1";
const LABEL: &str = "landfall.dev/in-place";
const PROGRAM: &str = "/usr/local/bin/landfall";
/// Enough for several boots on a loaded machine.
const LIMIT: Duration = Duration::from_mins(10);

struct Bed {
    node: Node,
    api: ApiServer,
}

#[test]
fn power_cuts_at_every_held_moment_are_survived() {
    if !have(&[Node::NEEDS, Registry::NEEDS, ApiServer::NEEDS].concat()) {
        return;
    }
    let api = ApiServer::start_with(&Invitation::api_server()).unwrap();
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {LABEL: "requested"}}});
    api.apply(&node).unwrap();
    let (_registry, server, mut spec) = rhcos("power");
    // The kubeconfig of this machine's kubelet, with the old and the new configuration.
    spec.files.push(("/etc/kubernetes/kubelet.conf".into(), access(&api).into_bytes()));
    spec.files.push(("/etc/hold-machine-config-daemon".into(), b"start".to_vec()));
    let good = server.served("/ignition").unwrap();
    server.serve("/ignition", Serve::Claim { claimed: 4096 });
    let mut bed = Bed { node: Node::boot(&spec).unwrap(), api };
    bed.node.wait_for_boot().unwrap();
    bed.node.output(&["chmod", "+x", PROGRAM]).unwrap();

    // During the preflight's download: nothing was changed, the kubelet runs, the label is set.
    bed.begin();
    eventually("the download to begin", LIMIT, || {
        server.asked().iter().any(|line| line == "GET /ignition").then_some(())
    })
    .unwrap();
    bed.cut();
    bed.node.wait_for_boot().unwrap();
    assert!(bed.is_labelled(), "nothing was done, so it is still asked for");
    eventually("the kubelet of an untouched machine to start", LIMIT, || {
        (bed.started() == "old\nold\n").then_some(())
    })
    .unwrap();
    assert!(!bed.node.root().join("etc/systemd/system/landfall-in-place.service").exists());

    // The daemon is about to start, in the first boot after the machine went down.
    server.serve("/ignition", good);
    bed.begin();
    bed.wait_for_hold("start");
    assert!(!bed.is_labelled(), "off before the kubelet could start again");
    the_agent_works_while_the_kubelet_is_down(&bed);
    bed.cut();
    // It was started again, and has written some of its files.
    bed.wait_for_hold("start");
    bed.hold("middle");
    bed.wait_for_hold("middle");
    bed.cut();
    // All files and the marker are written, but the machine has not rebooted yet.
    bed.wait_for_hold("middle");
    bed.hold("end");
    bed.wait_for_hold("end");
    assert_eq!(bed.started(), "old\nold\n", "no kubelet between two lives");
    bed.cut();
    bed.hold("nowhere");

    // The new kubelet runs, and the node is not ready yet.
    bed.wait_for_verify();
    bed.cut();
    bed.wait_for_verify();
    bed.be_ready();
    let status = wait_for_end(&bed.node);
    assert_eq!(status["state"]["is"], "done", "{status:#}");

    let read = |path: &str| std::fs::read_to_string(bed.node.root().join(path)).unwrap_or_default();
    assert_eq!(read("var/lib/machine-config-daemon-runs"), "run\n", "applied once");
    assert_eq!(read("etc/new"), "life");
    assert_eq!(bed.started(), "old\nold\nnew\nnew\n");
    assert!(!bed.node.root().join("var/lib/kubelet/state").exists());
    assert_eq!(server.asked().iter().filter(|line| *line == "GET /ignition").count(), 2, "cut off once");
    // The label is set again later: the result of the same request comes from the ledger.
    bed.api.kubectl(&["label", "node", NODE, &format!("{LABEL}=requested")]).unwrap();
    // Until then, the unit that finished the attempt holds the lock of the ledger.
    eventually("the answer from the ledger", LIMIT, || {
        bed.node.output(&[&[PROGRAM], &ARGUMENTS[..]].concat()).ok()
    })
    .unwrap();
    assert_eq!(read("var/lib/machine-config-daemon-runs"), "run\n", "never twice");
    bed.node.output(&["rm", "/root/secret.json"]).unwrap();
    assert_clean(&bed.node);
}

/// The arguments of the pod on the node, without its account.
const ARGUMENTS: [&str; 7] = [
    "node",
    "in-place",
    "--secret-file=/root/secret.json",
    "--kubeconfig=/etc/kubernetes/kubelet.conf",
    "--node-name=n1",
    "--free-space=1",
    "--reboot=systemd",
];

/// The machine reports its state while its kubelet waits, so that a failed bootstrap can be diagnosed.
fn the_agent_works_while_the_kubelet_is_down(bed: &Bed) {
    let kubelet = bed.node.run(&["systemctl", "is-active", "kubelet.service"]).unwrap();
    assert!(!kubelet.status.success(), "the kubelet runs");
    bed.node.output(&[PROGRAM, "agent", "--once", "--since=30m", "-o", "/root/bundle.tar.gz"]).unwrap();
    let journal = ["sh", "-c", "tar -xzOf /root/bundle.tar.gz | tr -d '\\0'"];
    let bundle = bed.node.run(&journal).unwrap();
    let bundle = String::from_utf8_lossy(&bundle.stdout).into_owned();
    for told in ["The kubelet must wait: attempt ", "apply-machine-config"] {
        assert!(bundle.contains(told), "{told} is not in the bundle");
    }
    assert!(!bundle.contains(TOKEN.trim_start_matches("Bearer ")), "the token is in the bundle");
    bed.node.output(&["rm", "/root/bundle.tar.gz"]).unwrap();
    let status = bed.node.output(&[PROGRAM, "node", "status"]).unwrap();
    assert!(status.contains("Applying"), "{status}");
}

// === impl Bed ===

impl Bed {
    /// Starts the pod of a labeled node, like the kubelet after each boot.
    fn begin(&self) {
        let run = ["systemd-run", "--unit=begin", PROGRAM];
        self.node.output(&[&run[..], &ARGUMENTS].concat()).unwrap();
    }

    /// Simulates a power failure.
    fn cut(&mut self) {
        self.node.power_cut().unwrap();
        self.node.power_on().unwrap();
    }

    fn hold(&self, at: &str) {
        std::fs::write(self.node.root().join("etc/hold-machine-config-daemon"), at).unwrap();
    }

    /// Waits until the daemon of this boot stops at this point.
    fn wait_for_hold(&self, at: &str) {
        eventually(&format!("the daemon to hold at {at}"), LIMIT, || {
            let here = format!("{at} {}\n", self.node.boot_id().ok()?);
            let holds = std::fs::read_to_string(self.node.root().join("var/lib/machine-config-daemon-holds"));
            holds.ok()?.ends_with(&here).then_some(())
        })
        .unwrap();
    }

    fn wait_for_verify(&self) {
        eventually("the attempt to wait for the node to be ready", LIMIT, || {
            let status = self.node.output(&[PROGRAM, "node", "status", "--output=json"]).ok()?;
            let status: Value = serde_json::from_str(&status).ok()?;
            let kubelet = self.node.run(&["systemctl", "is-active", "kubelet.service"]).ok()?;
            (status["state"]["is"] == "verifying" && kubelet.status.success()).then_some(())
        })
        .unwrap();
    }

    /// Sets the status that a kubelet of this boot would report.
    fn be_ready(&self) {
        self.api.report_ready(NODE, &self.node.boot_id().unwrap()).unwrap();
    }

    fn is_labelled(&self) -> bool {
        self.api.kubectl(&["get", "node", NODE, "-o", "jsonpath={.metadata.labels}"]).unwrap().contains(LABEL)
    }

    /// Returns the kubeconfig of each start of the kubelet.
    fn started(&self) -> String {
        std::fs::read_to_string(self.node.root().join("var/lib/started")).unwrap_or_default()
    }
}

/// Returns the administrator's kubeconfig as one file, with an address that nodes can reach.
fn access(api: &ApiServer) -> String {
    let data = |name: &str| BASE64.encode(std::fs::read(api.directory().join(name)).unwrap());
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {
            "server": format!("https://{HOST_ADDRESS}:{}", api.port()), "certificate-authority-data": data("ca.crt"),
        }}],
        "users": [{"name": "u", "user": {
            "client-certificate-data": data("admin.crt"), "client-key-data": data("admin.key"),
        }}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    })
    .to_string()
}
