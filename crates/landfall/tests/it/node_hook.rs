//! The hooks of a reboot operator, with a real kube-apiserver and a simulated CLUO or FLUO.

use landfall_testkit::{ApiServer, Serve, have};
use serde_json::{Value, json};

use crate::command::Run;
use crate::node_prepare::{ENV, IMAGE, Node};

const KEY: &str = "example.com/runtime";
const PLAN: &str = "landfall.dev/node-prepare";

/// Creates a node of a running cluster, with another runtime than it should have.
fn joined(server: &ApiServer) -> Node {
    let node = Node::new();
    node.bench.file(ENV, "KUBELET_IMAGE_TAG=v1.9.3_coreos.0\n");
    node.bench.file("root/etc/kubernetes/kubeconfig", std::fs::read(server.admin_kubeconfig()).unwrap());
    runs(&node, "1.12");
    node
}

/// Sets the docker version of this boot.
fn runs(node: &Node, version: &str) {
    let profile = json!({"kind": "profile-manifest-v0", "value": {"images": [{"name": "docker", "reference": version}]}});
    node.bench.file("root/run/torcx/profile.json", profile.to_string());
    node.bench.file("root/run/metadata/torcx", "");
}

fn hook(node: &Node, when: &str, more: &[&str]) -> Run {
    let mut flags = vec!["--no-verify-signatures", "--node-name=n1", "--node-annotation", KEY];
    flags.extend(more);
    node.command(&["hook", when], &flags).output().unwrap().into()
}

fn annotation(server: &ApiServer, key: &str) -> Option<String> {
    let node = server.kubectl(&["get", "node", "n1", "-o", "json"]).unwrap();
    let node: Value = serde_json::from_str(&node).unwrap();
    node["metadata"]["annotations"][key].as_str().map(str::to_owned)
}

/// The complete cycle of one node: marked, hooked, allowed, booted, verified.
#[test]
fn an_operator_of_either_kind_gets_its_word_before_and_after_the_reboot() {
    if !have(ApiServer::NEEDS) {
        return;
    }
    let server = ApiServer::start().unwrap();
    server.apply(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})).unwrap();
    for prefix in ["container-linux-update.v1.coreos.com", "flatcar-linux-update.v1.flatcar-linux.net"] {
        let node = joined(&server);
        let note = |what: &str, text: &str| {
            server.kubectl(&[what, "node", "n1", text, "--overwrite"]).unwrap();
        };
        let only = ["--only-when-labelled"];
        // No operator requests the hook yet.
        note("annotate", &format!("{KEY}-"));
        let run = hook(&node, "before-reboot", &only);
        assert_eq!(run.code, 75, "{run:?}");
        assert!(!node.has(IMAGE) && annotation(&server, KEY).is_none());

        note("label", &format!("{prefix}/before-reboot=true"));
        let run = hook(&node, "after-reboot", &only);
        assert_eq!(run.code, 75, "another moment: {run:?}");
        // After a failure the annotation stays unset, which stops the rollout to the fleet.
        node.manifest(&"0e".repeat(64));
        let run = hook(&node, "before-reboot", &only);
        assert_eq!(run.code, 1, "{run:?}");
        assert!(run.stderr.contains("its sha512 is") && annotation(&server, KEY).is_none(), "{run:?}");
        node.manifest(&node.hash());
        for _ in 0..2 {
            // The label remains: the hook runs again with the same result.
            let run = hook(&node, "before-reboot", &only);
            assert_eq!(run.code, 0, "{run:?}");
            assert_eq!(annotation(&server, KEY).as_deref(), Some("true"));
        }
        assert!(node.has(IMAGE) && node.text("root/etc/torcx/next-profile").is_some());
        let plan: Value = serde_json::from_str(&annotation(&server, PLAN).unwrap()).unwrap();
        assert_eq!(plan["decision"]["runtimes"][0]["chosen"], "17.03", "{plan}");
        assert_eq!(plan["decision"]["reboot"]["needed"], true);

        // check-before: the operator removes its label and the annotation, and allows the reboot.
        note("label", &format!("{prefix}/before-reboot-"));
        note("annotate", &format!("{KEY}-"));
        note("annotate", &format!("{prefix}/reboot-ok=true"));
        // The machine booted with the old runtime: the after-hook fails, and the next machine is not rebooted.
        note("label", &format!("{prefix}/after-reboot=true"));
        let run = hook(&node, "after-reboot", &only);
        assert_eq!(run.code, 1, "{run:?}");
        assert!(run.stderr.contains("docker 17.03 is unpacked at boot, and this boot has 1.12"), "{run:?}");
        assert!(run.stderr.contains("hint: ") && annotation(&server, KEY).is_none(), "{run:?}");
        // The machine booted with the right runtime.
        runs(&node, "17.03");
        let run = hook(&node, "after-reboot", &only);
        assert_eq!(run.code, 0, "{run:?}");
        assert_eq!(annotation(&server, KEY).as_deref(), Some("true"));
        // An image that was damaged meanwhile would break the next boot.
        note("annotate", &format!("{KEY}-"));
        node.bench.file(IMAGE, "torn");
        let run = hook(&node, "after-reboot", &only);
        assert_eq!(run.code, 1, "{run:?}");
        assert!(run.stderr.contains("is missing or damaged"), "{run:?}");
        note("label", &format!("{prefix}/after-reboot-"));
    }

    let node = joined(&server);
    // A client without write access to nodes gets an error that names the missing permission.
    let nobody = server.kubeconfig_for("nobody", "nobodies").unwrap();
    node.bench.file("root/etc/kubernetes/kubeconfig", std::fs::read(nobody).unwrap());
    let run = hook(&node, "before-reboot", &[]);
    assert_eq!(run.code, 69, "{run:?}");
    assert!(run.stderr.contains("forbidden") && run.stderr.contains("`patch` on nodes"), "{run:?}");
    let run = hook(&node, "before-reboot", &["--only-when-labelled"]);
    assert_eq!(run.code, 69, "{run:?}");

    // The Node object shows the status of a prepared node, and of one that failed.
    let node = Node::new();
    node.bench.file("root/etc/kubernetes/kubeconfig", std::fs::read(server.admin_kubeconfig()).unwrap());
    let run = node.run(&["--torcx-skip-setup", "--force-kube-version=v1.9.3", "--node-name=n1"]);
    assert_eq!(run.code, 77, "{run:?}");
    let told: Value = serde_json::from_str(&annotation(&server, PLAN).unwrap()).unwrap();
    assert_eq!(
        (&told["why"], &told["outcome"]["step"]),
        (&json!("version-skew"), &json!("decide")),
        "{told}"
    );
    assert_eq!(told["inputs"]["clusterVersion"]["value"], "v1.9.3", "{told}");
    let run =
        node.run(&["--torcx-skip-setup", "--force-kube-version=v1.9.3", "--allow-skew", "--start-over"]);
    assert_eq!(run.code, 0, "{run:?}");
    let status = ["node", "status", "--root", "root", "--annotate"];
    let run = node.bench.run(&[&status[..], &["n1"]].concat());
    assert_eq!(run.code, 0, "{run:?}");
    let told: Value = serde_json::from_str(&annotation(&server, PLAN).unwrap()).unwrap();
    assert_eq!(told["decision"]["skew"]["is"], "allowed", "{told}");
    let run = node.bench.run(&[&status[..], &["n2"]].concat());
    assert!(run.code == 75 && run.stderr.contains("has no node `n2`"), "{run:?}");
}

/// kured runs a command to check whether a reboot is due: it is, once the next boot has everything it needs.
#[test]
fn a_required_reboot_waits_until_the_next_boot_has_its_runtime() {
    let node = Node::new();
    node.bench.file(ENV, "KUBELET_IMAGE_TAG=v1.9.3_coreos.0\n");
    let ask = || -> Run {
        node.command(&["hook", "reboot-required"], &["--no-verify-signatures"]).output().unwrap().into()
    };
    let run = ask();
    assert_eq!((run.code, node.has(IMAGE)), (75, false), "no reboot is due: {run:?}");
    node.bench.file("root/run/reboot-required", "");
    node.manifest(&"0e".repeat(64));
    let run = ask();
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("its sha512 is"), "{run:?}");
    node.manifest(&node.hash());
    let run = ask();
    assert_eq!((run.code, node.has(IMAGE)), (0, true), "{run:?}");
}

#[test]
fn prepare_leaves_word_for_whoever_reboots_machines_here() {
    let node = Node::new();
    node.bench.file("root/run/here", "");
    let ask = || -> Run {
        node.command(&["hook", "reboot-required"], &["--no-verify-signatures"]).output().unwrap().into()
    };
    // Another component requires a reboot while the node is being prepared and its image is missing: not now.
    node.bucket.serve("/docker.tgz", Serve::Status(404));
    assert_eq!(node.run(&["--no-verify-signatures", "--reboot=required"]).code, 69);
    node.bench.file("root/run/reboot-required", "");
    let run = ask();
    assert_eq!(run.code, 75, "{run:?}");
    assert!(run.stderr.contains("is not laid down yet"), "{run:?}");
    node.bucket.file("/docker.tgz", node.image.clone());
    let run = node.run(&["--no-verify-signatures", "--reboot=required"]);
    assert_eq!(run.code, 100, "{run:?}");
    assert!(node.has("root/run/reboot-required"), "{run:?}");
    assert!(!node.has(ENV));
    // kured runs the command before the file exists that is only written after the reboot. The runtime for the next
    // boot is installed.
    let run = ask();
    assert_eq!(run.code, 0, "{run:?}");
    node.bench.file(IMAGE, "torn");
    let run = ask();
    assert_eq!(run.code, 1, "{run:?}");
    assert!(run.stderr.contains("is missing or damaged"), "{run:?}");
}

/// A reboot is required on a node that was never prepared: the version of its installer counts.
#[test]
fn a_reboot_before_a_node_is_prepared_has_what_its_installer_wants() {
    let node = Node::new();
    node.bench.file("root/run/reboot-required", "");
    let run: Run =
        node.command(&["hook", "reboot-required"], &["--no-verify-signatures"]).output().unwrap().into();
    assert_eq!((run.code, node.has(IMAGE)), (0, true), "{run:?}");
    node.bucket.serve("/docker.tgz", Serve::Status(404));
    std::fs::remove_file(node.bench.path().join(IMAGE)).unwrap();
    let run: Run =
        node.command(&["hook", "reboot-required"], &["--no-verify-signatures"]).output().unwrap().into();
    assert_eq!(run.code, 69, "{run:?}");
}
