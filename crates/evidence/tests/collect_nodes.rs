//! Bundles of real machines: booted by systemd, provisioned by cloud-init, joined by kubeadm.

#[path = "machine/mod.rs"]
mod machine;

use std::io::Read as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use flate2::read::MultiGzDecoder;
use landfall_evidence::collect::{Host, Plan};
use landfall_model::report::{State, Trust};
use landfall_testkit::{
    ApiServer, ControllerManager, Invitation, Node, NodeSpec, POD_IMAGE, eventually, have,
};
use serde_json::{Value, json};

use machine::Bundle;

/// A loaded machine is slow.
const LIMIT: Duration = Duration::from_secs(90);

/// A healthy machine writes hundreds of suspicious lines; none of them may become a verdict.
#[test]
fn a_real_node_that_is_ready_has_nothing_wrong_with_it() {
    let needs = [Node::NEEDS, ApiServer::NEEDS, ControllerManager::NEEDS, Invitation::NEEDS].concat();
    if !have(&needs) {
        return;
    }
    let cluster = ApiServer::start_with(&Invitation::api_server()).unwrap();
    let _controllers = ControllerManager::start(&cluster).unwrap();
    let invitation = Invitation::create(&cluster).unwrap();
    let mut node = Node::boot(&invitation.node("healthy")).unwrap();
    assert_eq!(node.wait_for_cloud_init().unwrap(), [""; 0], "`kubeadm join` failed");
    eventually("the node to be ready", LIMIT, || node.is_ready(&cluster).unwrap().then_some(())).unwrap();
    cluster
        .apply(&json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "guest", "namespace": "default"},
            "spec": {
                "nodeName": "healthy",
                "automountServiceAccountToken": false,
                "containers": [{
                    "name": "guest",
                    "image": POD_IMAGE,
                    "imagePullPolicy": "Never",
                    "env": [{"name": "PASSWORD", "value": "plum-Jam-und-Zimt-77"}],
                }],
            },
        }))
        .unwrap();
    eventually("the pod to run", LIMIT, || {
        let phase = cluster.kubectl(&["get", "pod", "guest", "-o", "jsonpath={.status.phase}"]).unwrap();
        (phase == "Running").then_some(())
    })
    .unwrap();
    node.output(&["journalctl", "--sync"]).unwrap();

    let root = format!("/proc/{}/root", node.leader().unwrap());
    let bundle = Bundle::of(Host::at(Path::new(&root)).unwrap());
    let report = bundle.diagnose();
    assert_eq!(report.verdict.cause, None, "{:#?}", report.findings);
    let live = machine::diagnose(Path::new(&root));
    assert_eq!(live.verdict.cause, None, "{:#?}", live.findings);
    assert_eq!((live.verdict.state, live.verdict.trust), (State::Succeeded, Trust::Proven), "{live:#?}");
    let names: Vec<&str> = live.sources.iter().map(|source| source.name.as_str()).collect();
    for name in ["journal", "systemd", "/var/log/cloud-init-output.log", "landfall:cri/containerd/pods.json"]
    {
        assert!(names.contains(&name), "{name} is missing in {names:?}");
    }

    // containerd's state, and its state of the pod.
    let json = |path: &str| -> Value { serde_json::from_str(&bundle.text(path)).unwrap() };
    assert_eq!(json("bootstrap/cri/containerd/version.json")["runtimeName"], "containerd");
    let status = json("bootstrap/cri/containerd/status.json");
    let conditions = status["conditions"].as_array().unwrap();
    let ready = |kind: &str| conditions.iter().any(|c| c["type"] == kind && c["status"] == true);
    assert!(ready("RuntimeReady") && ready("NetworkReady"), "{status}");
    let pods = json("bootstrap/cri/containerd/pods.json");
    let pods = pods.as_array().unwrap();
    let pod = pods.iter().find(|pod| pod["name"] == "guest").unwrap();
    assert_eq!((&pod["namespace"], &pod["state"]), (&json!("default"), &json!("SANDBOX_READY")));
    let images = json("bootstrap/cri/containerd/images.json");
    let tagged = |image: &Value| image["repoTags"].as_array().unwrap().contains(&json!(POD_IMAGE));
    assert!(images.as_array().unwrap().iter().any(tagged), "{images}");
    let inspected = bundle
        .files
        .keys()
        .find(|path| path.starts_with("bootstrap/containers/guest-") && path.ends_with(".inspect"));
    let status = &json(inspected.unwrap())["status"];
    assert_eq!((&status["state"], &status["podSandboxId"]), (&json!("CONTAINER_RUNNING"), &pod["id"]));
    assert!(status["startedAt"].as_i64().unwrap() > 0, "{status}");
    assert_eq!(
        bundle.contains("plum-Jam-und-Zimt-77"),
        None,
        "the environment of containers stays where it is"
    );
}

/// cloud-init reports success when kubeadm fails and a later command succeeds.
const SILENT_FAILURE: &str = "#cloud-config
runcmd:
  - echo the password is plum-Jam-und-Zimt-77
  - kubeadm join --config /run/kubeadm/absent.yaml && echo success > /run/cluster-api/bootstrap-success.complete
  - echo the post command ran
write_files:
  - path: /etc/app.conf
    content: |
      password: plum-Jam-und-Zimt-77
";

const BROKEN_UNIT: &str = "[Unit]
Description=A unit that fails
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'echo the reason is on this line; exit 7'
";

#[test]
fn a_real_node_tells_of_its_failed_unit_and_of_kubeadms_silent_failure() {
    if !have(Node::NEEDS) {
        return;
    }
    let mut spec = NodeSpec::new("teller");
    spec.user_data = SILENT_FAILURE.to_owned();
    spec.files.push(("/etc/systemd/system/broken.service".into(), BROKEN_UNIT.as_bytes().to_vec()));
    spec.arguments.push("--tmpfs=/srv:size=64k".to_owned());
    let mut node = Node::boot(&spec).unwrap();
    node.wait_for_boot().unwrap();
    assert_eq!(node.wait_for_cloud_init().unwrap(), [""; 0], "cloud-init noticed");
    assert!(!node.run(&["systemctl", "start", "broken.service"]).unwrap().status.success());
    // A program whose name is a secret.
    let name = "join token abcdef.0f1e2d3c4b5a6978";
    node.output(&["systemd-cat", "-t", name, "echo", "said under a secret name"]).unwrap();
    // The journal is written shortly after the unit ends.
    node.output(&["journalctl", "--sync"]).unwrap();

    // A full file system, and a journal that is rotated while it is read.
    assert!(!node.run(&["dd", "if=/dev/zero", "of=/srv/big", "bs=1k", "count=65"]).unwrap().status.success());
    let root = format!("/proc/{}/root", node.leader().unwrap());
    let done = AtomicBool::new(false);
    let bundle = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                node.output(&["journalctl", "--rotate"]).unwrap();
            }
        });
        let bundle = Bundle::of(Host::at(Path::new(&root)).unwrap());
        done.store(true, Ordering::Relaxed);
        bundle
    });

    assert_eq!(bundle.manifest.node.hostname, "teller");
    let failed = bundle.text("failed-units.txt");
    assert!(failed.contains("● broken.service") && failed.contains("A unit that fails"), "{failed}");
    let status = bundle.text("unit-status/broken.service.txt");
    assert!(status.contains("Active: failed (failed) (Result: exit-code)"), "{status}");
    assert!(status.contains("(code=exited, status=7)"), "{status}");
    let log = bundle.text("unit-status/broken.service.log");
    assert!(log.contains("the reason is on this line"), "{log}");
    assert!(bundle.text("unit-status/kubelet.service.txt").contains("kubelet"));

    assert!(bundle.text("bootstrap/cloud-init/result.json").contains("\"errors\": []"));
    assert!(
        !bundle.files.keys().any(|path| path.contains("bootstrap-success.complete")),
        "kubeadm did not succeed"
    );
    let words = bundle.text("bootstrap/journals/cloud-final.log");
    assert!(words.contains("absent.yaml") && words.contains("the post command ran"), "{words}");
    assert_eq!(bundle.contains("plum-Jam-und-Zimt-77"), None);
    let report = bundle.diagnose();
    let cause = report.verdict.cause.as_ref().map(landfall_model::Cause::as_str);
    assert_eq!(cause, Some("bootstrap-config-invalid"), "{:#?}", report.findings);
    let silent =
        |finding: &landfall_model::report::Finding| finding.cause.as_str() == "kubeadm-failed-silently";
    assert!(report.findings.iter().any(silent), "{:#?}", report.findings);
    let live = machine::diagnose(Path::new(&root));
    assert_eq!(live.verdict.cause, report.verdict.cause, "{:#?}", live.findings);
    assert_eq!(live.verdict.trust, Trust::Proven, "{:#?}", live.findings);
    let shown = serde_json::to_string(&live).unwrap();
    assert!(!shown.contains("plum-Jam-und-Zimt-77"), "{shown}");

    let mut journal = String::new();
    MultiGzDecoder::new(&bundle.files["bootstrap/journals/journal.log.gz"][..])
        .read_to_string(&mut journal)
        .unwrap();
    assert!(
        journal.matches(": the reason is on this line").count() == 1,
        "once, however often it was rotated"
    );
    let disks = bundle.text("bootstrap/machine/df.txt");
    assert!(disks.lines().any(|line| line.contains(" 100% ") && line.ends_with(" /srv")), "{disks}");
    assert!(!journal.contains("plum-Jam-und-Zimt-77"));
    let named = journal.lines().find(|line| line.ends_with(": said under a secret name")).unwrap();
    assert!(named.contains(" join_token_abcdef.") && !journal.contains("0f1e2d3c4b5a6978"), "{named}");

    // With a start time, only later entries are collected, in any rotated file.
    let since = jiff::Timestamp::now();
    node.output(&["systemd-cat", "-t", "later", "echo", "said later"]).unwrap();
    node.output(&["journalctl", "--sync"]).unwrap();
    node.output(&["journalctl", "--rotate"]).unwrap();
    let host = Host::at(Path::new(&root)).unwrap();
    let plan = Plan::of(&host).unwrap().since(since);
    let bundle = Bundle::with_plan(host, &plan);
    let mut journal = String::new();
    MultiGzDecoder::new(&bundle.files["bootstrap/journals/journal.log.gz"][..])
        .read_to_string(&mut journal)
        .unwrap();
    assert_eq!(journal.matches(": said later").count(), 1, "{journal}");
    assert!(!journal.contains("the reason is on this line"), "{journal}");

    // Without its private socket, systemd is queried over the bus.
    node.output(&["mv", "/run/systemd/private", "/run/systemd/hidden"]).unwrap();
    let bundle = Bundle::of(Host::at(Path::new(&root)).unwrap());
    assert_eq!(bundle.text("failed-units.txt"), failed);
    assert!(bundle.text("unit-status/broken.service.txt").contains("status=7"));
}
