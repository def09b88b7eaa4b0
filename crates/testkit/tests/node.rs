//! The nodes of the test bed are real systems: they boot, reboot, lose power, join a cluster, and fail to
//! join.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Result;
use landfall_testkit::{
    ApiServer, ControllerManager, Dns, HOST_ADDRESS, Invitation, Node, NodeSpec, POD_IMAGE, eventually, have,
};
use serde_json::json;

/// The kubelet reports ready about 5 s after power-on on an idle machine.
const READY_LIMIT: Duration = Duration::from_secs(90);
/// journald and a terminal delay a process's lines in the log.
const LOG_LIMIT: Duration = Duration::from_secs(30);

#[test]
fn a_node_boots_reboots_and_survives_a_power_cut() {
    if !have(Node::NEEDS) {
        return;
    }
    let mut spec = NodeSpec::new("survivor");
    spec.user_data =
        "#cloud-config\nruncmd: [echo the runcmd of the user data ran, touch /var/lib/once]\n".to_owned();
    spec.files.push(("/etc/laid-over".into(), b"by the test\n".to_vec()));
    spec.dns = Dns::Server(HOST_ADDRESS.into());
    spec.arguments.push("--tmpfs=/srv:size=64k".to_owned());
    let mut node = Node::boot(&spec).unwrap();
    node.wait_for_boot().unwrap();

    assert_eq!(node.wait_for_cloud_init().unwrap(), [""; 0], "cloud-init met errors");
    assert_eq!(node.output(&["hostname"]).unwrap().trim(), "survivor");
    assert_eq!(node.read("/etc/laid-over").unwrap(), "by the test\n");
    assert!(node.root().join("var/lib/once").exists(), "what is written inside is not seen outside");
    assert_eq!(node.read("/etc/resolv.conf").unwrap(), "nameserver 198.18.0.1\n");
    let full =
        node.output(&["dd", "if=/dev/zero", "of=/srv/big", "bs=1k", "count=65"]).unwrap_err().to_string();
    assert!(full.contains("No space left on device"), "the small file system took it all: {full}");
    let units = node.output(&["busctl", "list", "--acquired"]).unwrap();
    assert!(units.contains("org.freedesktop.systemd1"), "systemd is not on the bus:\n{units}");
    let first = node.boot_id().unwrap();
    let said = "the runcmd of the user data ran";
    wait_for_journal(&node, "cloud-final.service", said).unwrap();
    eventually("it on the console", LOG_LIMIT, || node.console().contains(said).then_some(())).unwrap();

    node.reboot().unwrap();
    let second = node.boot_id().unwrap();
    assert_ne!(first, second);

    node.power_cut().unwrap();
    assert_eq!(node.leader(), None, "a node without power still runs");
    assert!(node.run(&["true"]).is_err(), "a node without power still answers");
    assert!(node.root().join("var/lib/once").exists(), "the disk is lost");
    node.power_on().unwrap();
    node.wait_for_boot().unwrap();
    let third = node.boot_id().unwrap();
    assert!(third != first && third != second, "the third boot has an old id: {third}");

    let plain = |id: &str| id.replace('-', "");
    let boots = node.journal(&["--list-boots"]).unwrap();
    for id in [first, second, third] {
        assert!(boots.contains(&plain(&id)), "boot {id} is missing from the journal:\n{boots}");
    }
}

#[test]
fn a_node_does_not_touch_this_machine_and_leaves_nothing_behind() {
    // Capabilities from linux/capability.h: setting the clock, and loading modules.
    const SYS_TIME: u64 = 1 << 25;
    const SYS_MODULE: u64 = 1 << 16;
    if !have(Node::NEEDS) {
        return;
    }
    let mut node = Node::boot(&NodeSpec::new("passer-by")).unwrap();
    node.wait_for_boot().unwrap();

    for process in ["1", "self"] {
        let status = node.read(&format!("/proc/{process}/status")).unwrap();
        let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
        let rights = u64::from_str_radix(rights.trim(), 16).unwrap();
        assert_eq!(rights & (SYS_TIME | SYS_MODULE), 0, "process {process} of the node has {rights:#x}");
    }
    // A setting changed by the kubelet. The node sees its own value; this machine's is unchanged.
    let before = std::fs::read_to_string("/proc/sys/kernel/panic").unwrap();
    node.output(&["sh", "-c", "echo 77 > /proc/sys/kernel/panic"]).unwrap();
    assert_eq!(node.read("/proc/sys/kernel/panic").unwrap(), "77\n");
    assert_eq!(std::fs::read_to_string("/proc/sys/kernel/panic").unwrap(), before);

    let (root, address, leader) = (node.root(), node.address().to_string(), node.leader().unwrap());
    let routes = || Command::new("ip").args(["route", "show", &address]).output().unwrap().stdout;
    assert!(!routes().is_empty(), "no route to a running node");

    drop(node);

    assert!(!root.exists(), "`{}` is left", root.display());
    assert!(!Path::new(&format!("/proc/{leader}")).exists(), "process {leader} is left");
    assert!(routes().is_empty(), "a route is left");
}

/// The test runs itself a second time, as the process that is killed.
#[test]
fn what_a_killed_test_leaves_is_cleared_away_by_the_next() {
    const ROLE: &str = "LANDFALL_TEST_KILLED_OWNER";
    if !have(Node::NEEDS) {
        return;
    }
    if std::env::var_os(ROLE).is_some() {
        let mut node = Node::boot(&NodeSpec::new("orphan")).unwrap();
        node.wait_for_boot().unwrap();
        println!("orphan {} {}", node.leader().unwrap(), node.root().display());
        // Blocks until the process is killed.
        let _ = std::io::stdin().read(&mut [0]);
        return;
    }
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_a_killed_test_leaves_is_cleared_away_by_the_next", "--nocapture"])
        .env(ROLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let line =
        lines.map_while(Result::ok).find(|line| line.contains("orphan ")).expect("the owner booted no node");
    let (_, facts) = line.split_once("orphan ").unwrap();
    let (leader, root) = facts.split_once(' ').unwrap();
    assert!(Path::new(root).join("etc/hostname").exists());

    owner.kill().unwrap();
    owner.wait().unwrap();

    let leader = Path::new("/proc").join(leader);
    eventually("the node to end with its owner", READY_LIMIT, || (!leader.exists()).then_some(())).unwrap();
    let next = Node::boot(&NodeSpec::new("next")).unwrap();
    assert_ne!(next.root(), Path::new(root));
    assert!(!Path::new(root).exists(), "`{root}` is left");
}

#[test]
fn a_node_joins_and_becomes_ready_and_one_with_dead_dns_does_not() {
    let needs = [Node::NEEDS, ApiServer::NEEDS, ControllerManager::NEEDS, Invitation::NEEDS].concat();
    if !have(&needs) {
        return;
    }
    let cluster = ApiServer::start_with(&Invitation::api_server()).unwrap();
    let _controllers = ControllerManager::start(&cluster).unwrap();
    let invitation = Invitation::create(&cluster).unwrap();

    // Both start concurrently. The lost node knows the API server only by name, and has no working DNS.
    let mut lost = invitation.node("lost");
    lost.dns = Dns::Dead;
    lost.hosts.clear();
    let mut configuration = invitation.join_configuration();
    configuration["timeouts"] = json!({"discovery": "5s"});
    lost.user_data = invitation.user_data(&configuration);
    let mut lost = Node::boot(&lost).unwrap();
    let mut joiner = Node::boot(&invitation.node("joiner")).unwrap();

    assert_eq!(joiner.wait_for_cloud_init().unwrap(), [""; 0], "`kubeadm join` failed");
    assert_eq!(joiner.read("/run/cluster-api/bootstrap-success.complete").unwrap(), "success\n");
    eventually("the node to be ready", READY_LIMIT, || joiner.is_ready(&cluster).unwrap().then_some(()))
        .unwrap();
    wait_for_journal(&joiner, "kubelet.service", "Successfully registered node").unwrap();
    cluster
        .apply(&json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "guest", "namespace": "default"},
            "spec": {
                "nodeName": "joiner",
                "automountServiceAccountToken": false,
                "containers": [{"name": "guest", "image": POD_IMAGE, "imagePullPolicy": "Never"}],
            },
        }))
        .unwrap();
    eventually("the pod to run", READY_LIMIT, || {
        let phase = cluster.kubectl(&["get", "pod", "guest", "-o", "jsonpath={.status.phase}"]).unwrap();
        (phase == "Running").then_some(())
    })
    .unwrap();

    let errors = lost.wait_for_cloud_init().unwrap();
    assert!(!errors.is_empty(), "cloud-init did not notice that `kubeadm join` failed");
    wait_for_journal(&lost, "cloud-final.service", "lookup api.landfall.test on 203.0.113.53:53: read udp ")
        .unwrap();
    wait_for_journal(&lost, "cloud-final.service", ": i/o timeout").unwrap();
    assert!(!lost.is_ready(&cluster).unwrap());
    let registered = cluster.kubectl(&["get", "nodes", "-o", "name"]).unwrap();
    assert_eq!(registered.trim(), "node/joiner");
}

fn wait_for_journal(node: &Node, unit: &str, text: &str) -> Result<()> {
    let what = format!("{text:?} in the journal of {unit}");
    eventually(&what, LOG_LIMIT, || node.journal(&["--unit", unit]).ok()?.contains(text).then_some(()))
}
